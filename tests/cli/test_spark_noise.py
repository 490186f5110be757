"""What a command that starts Spark says on standard error: nothing, unless something is wrong."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
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


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.0, 2.0])
def test_ctrl_c_while_the_jvm_starts_leaves_none_behind(after_s: float) -> None:
    process = _probe("long")
    deadline = time.monotonic() + _START_S
    while not _jvms(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=_START_S)
    assert process.returncode == 130, err
    deadline = time.monotonic() + 20
    while left := _jvms(process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _jvms(session: int) -> list[str]:
    """Command lines of the JVMs of a session, its leader gone or not."""
    found = []
    for each in psutil.process_iter(["name", "cmdline"]):
        with contextlib.suppress(ProcessLookupError):
            if each.info["name"] == "java" and os.getsid(each.pid) == session:
                found.append(" ".join(each.info["cmdline"] or ()))
    return [line for line in found if "pyspark-shell" in line]


def test_ctrl_c_is_one_line() -> None:
    process = _probe("long")
    assert process.stdout is not None
    assert process.stdout.readline() == "rows 10\n"
    time.sleep(2)  # into the job
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=_START_S)
    assert process.returncode == 130
    assert err.strip() == "Interrupted; what was committed stays, run the same command again."
