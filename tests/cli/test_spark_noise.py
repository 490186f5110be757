"""What a command that starts Spark says on standard error: nothing, unless something is wrong."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.spark

_PROBE = """
import os, sys
from kstreams_assets.cli import main as module
from kstreams_assets.cli.spark_run import spark_run

@module.cli.command("probe")
def probe():
    with spark_run() as run:
        session = run.spark.spark_session
        print("rows", session.range(10).count(), flush=True)
        if os.environ["PROBE"] == "long":
            session.range(10**12).selectExpr("max(xxhash64(id))").collect()
        session.sparkContext._jvm.System.err.println("a real error")

sys.argv = ["kstreams-assets", "probe"]
module.main()
"""
_START_S = 240


def _probe(length: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROBE],
        env={**os.environ, "PROBE": length},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_only_what_is_wrong_is_on_standard_error() -> None:
    out, err = _probe("short").communicate(timeout=_START_S)
    assert (out, err) == ("rows 10\n", "a real error\n")


def test_ctrl_c_is_one_line() -> None:
    process = _probe("long")
    assert process.stdout is not None
    assert process.stdout.readline() == "rows 10\n"
    time.sleep(2)  # into the job
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=_START_S)
    assert process.returncode == 130
    assert err.strip() == "Interrupted; what was committed stays, run the same command again."
