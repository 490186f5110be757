"""An engine that is killed, or stopped, in the middle of a job is one line with a remedy."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from spark_resources.engine import ENGINES_VARIABLE, engines, stop

pytestmark = [pytest.mark.spark, pytest.mark.drill]

_PROBE = """
import os, sys, threading, time
from kstreams_assets.cli import main as module
from kstreams_assets.cli.spark_run import spark_run
from spark_resources.partition_tasks import run_partition_tasks

def task(item):
    print("task", file=open(os.environ["BEGUN"], "w"))
    time.sleep(120)

@module.cli.command("probe")
def probe():
    with spark_run() as run:
        session = run.spark.spark_session
        print(run.spark.jvm_pid(), flush=True)
        if os.environ["PROBE"] == "tasks":
            run_partition_tasks(session, [1, 2], task)
        elif os.environ["PROBE"] == "query":
            session.range(10**12).selectExpr("max(xxhash64(id))").collect()
        else:
            sys.stdin.readline()
            session.conf.set("spark.sql.shuffle.partitions", "3")

sys.argv = ["kstreams-assets", "probe"]
module.main()
"""


@pytest.fixture(autouse=True)
def _own_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(ENGINES_VARIABLE, str(tmp_path / "engines"))
    yield
    for engine in engines():
        stop(engine)


@pytest.mark.parametrize("probe", ["tasks", "query", "setting"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_command_ends_with_one_line(probe: str, number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROBE],
        env={**os.environ, "PROBE": probe, "BEGUN": str(tmp_path / "begun")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    jvm = int(process.stdout.readline())
    os.kill(jvm if number is signal.SIGKILL else engines()[0].pid, number)
    if probe == "setting":
        psutil.wait_procs([psutil.Process(jvm)] if psutil.pid_exists(jvm) else [], timeout=60)
    _, err = process.communicate("go\n", timeout=200)
    assert process.returncode == 2, err
    (line,) = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert err.rstrip().endswith(line)
    assert "Spark" in line
    assert "un the command again" in line
    for riddle in ("<_", "StatusCode", "not expected", "debug_error_string"):
        assert riddle not in err
