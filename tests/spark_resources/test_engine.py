"""The engine of a host, from the processes that use it."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from pyspark.errors import PySparkException

from spark_resources import engine as module
from spark_resources.engine import ENGINES_VARIABLE, engines, lease, stop
from spark_resources.session import LazySession
from spark_resources.settings import SparkSettings
from tests.cli.application import Program

pytestmark = pytest.mark.spark

_PROBE = """
import os, sys
from kstreams_assets.cli import main as module
from kstreams_assets.cli.spark_run import spark_run

@module.cli.command("probe")
def probe():
    with spark_run() as run:
        session = run.spark.spark_session
        print("rows", session.range(10).count(), run.spark.jvm_pid(), flush=True)
        if os.environ["PROBE"] == "long":
            session.range(10**12).selectExpr("max(xxhash64(id))").collect()

sys.argv = ["kstreams-assets", "probe"]
module.main()
"""
_LEAVES_SESSIONS = """
from spark_resources.rules import new_session
from spark_resources.session import LazySession
from spark_resources.settings import SparkSettings

spark = LazySession(SparkSettings.from_environment())
beside = new_session(spark.spark_session)
print(beside.range(5).count(), flush=True)
"""
_START_S = 240
_SOON_S = 60


@contextmanager
def _engines_in(folder: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(ENGINES_VARIABLE, str(folder))
        # None lives long enough for what HotSpot compiles at its highest level.
        patched.setenv("KSTREAMS_ASSETS_SPARK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        yield folder
        for engine in engines():
            stop(engine)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A place for engines of this test alone."""
    with _engines_in(tmp_path / "engines") as folder:
        yield folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A place for one engine; a test finds that of the test before it, or starts one."""
    with _engines_in(tmp_path_factory.mktemp("shared") / "engines") as folder:
        yield folder


def _probe(length: str = "short", **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROBE],
        env={**os.environ, "PROBE": length, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _jvm_of(process: subprocess.Popen[str]) -> int:
    """The JVM that a probe used, which said nothing but what it should."""
    out, err = process.communicate(timeout=_START_S)
    assert err == ""
    rows, count, pid = out.split()
    assert (rows, count) == ("rows", "10")
    return int(pid)


def _gone(pid: int, within_s: float = _SOON_S) -> bool:
    deadline = time.monotonic() + within_s
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True


def test_processes_share_one_engine_which_ends_unused(folder: Path) -> None:
    idle = {"KSTREAMS_ASSETS_SPARK_ENGINE_IDLE_S": "20"}
    together = [_probe(**idle) for _ in range(3)]
    assert len({_jvm_of(process) for process in together}) == 1
    (engine,) = engines()
    assert _jvm_of(_probe(**idle)) == engine.jvm_pid
    # Its token lets anybody run code as this user.
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (told,) = folder.glob("*.json")
    assert stat.S_IMODE(told.stat().st_mode) == 0o600
    jvm = psutil.Process(engine.jvm_pid)
    assert engine.token not in " ".join(jvm.cmdline())
    assert engine.token not in told.with_suffix(".log").read_text()
    assert engine.token not in repr(engine)
    assert {c.laddr.ip.removeprefix("::ffff:") for c in jvm.net_connections("inet") if c.laddr} == {
        "127.0.0.1"
    }
    assert _gone(engine.pid)
    assert _gone(engine.jvm_pid)
    assert engines() == []
    assert not told.exists()


def test_a_process_ends_that_has_not_stopped_its_sessions(shared: Path) -> None:
    ends = subprocess.run(
        [sys.executable, "-c", _LEAVES_SESSIONS],
        capture_output=True,
        text=True,
        check=False,
        timeout=_START_S,
    )
    assert (ends.returncode, ends.stdout) == (0, "5\n"), ends.stderr


def test_nobody_gets_in_without_the_token(shared: Path) -> None:
    _jvm_of(_probe())
    (engine,) = engines()
    stranger = {"KSTREAMS_ASSETS_SPARK_REMOTE": engine.url.replace(engine.token, "guessed")}
    out, err = _probe(**stranger).communicate(timeout=_START_S)
    assert out == ""
    assert "cannot be used" in err
    assert "guessed" not in err
    friend = {"KSTREAMS_ASSETS_SPARK_REMOTE": engine.url}
    out, err = _probe(**friend).communicate(timeout=_START_S)
    assert (out, err) == ("rows 10 None\n", "")


def test_an_interrupted_command_ends_its_job_and_leaves_the_engine(shared: Path) -> None:
    process = _probe("long")
    assert process.stdout is not None
    jvm_pid = int(process.stdout.readline().split()[-1])
    time.sleep(2)  # into the job
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=_START_S)
    assert process.returncode == 130
    assert err.strip() == "Interrupted. Committed work is kept; run the same command again."
    assert _jvm_of(_probe()) == jvm_pid
    jvm = psutil.Process(jvm_pid)
    deadline = time.monotonic() + _SOON_S
    while jvm.cpu_percent(1.0) > 20:
        assert time.monotonic() < deadline


def test_a_killed_engine_is_replaced_and_a_killed_client_frees_it(shared: Path) -> None:
    first = _jvm_of(_probe())
    (engine,) = engines()
    os.kill(engine.pid, signal.SIGKILL)
    assert _gone(first)
    client = _probe("long")
    assert client.stdout is not None
    assert client.stdout.readline().startswith("rows 10 ")
    time.sleep(2)  # into the job
    client.kill()
    client.wait(_SOON_S)
    (engine,) = engines()
    assert engine.jvm_pid != first
    jvm = psutil.Process(engine.jvm_pid)
    deadline = time.monotonic() + _SOON_S
    while jvm.cpu_percent(1.0) > 20:  # what the killed client had begun
        assert time.monotonic() < deadline


def test_an_engine_that_has_not_noticed_its_end_keeps_nobody_out(shared: Path) -> None:
    first = _jvm_of(_probe())
    (engine,) = engines()
    os.kill(engine.pid, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + _SOON_S
    while engines():  # its threads end one after the other
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert _jvm_of(_probe()) != first
    assert _gone(engine.pid)


def test_an_engine_whose_starter_was_killed_is_used_when_it_is_up(folder: Path) -> None:
    pid = _starting(folder)
    assert psutil.pid_exists(_jvm_of(_probe()))
    assert [engine.pid for engine in engines()] == [pid]


def test_an_engine_that_hangs_in_its_start_is_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = _starting(folder)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(module, "_START_S", 15.0)
    monkeypatch.setattr(module, "_NOTICE_S", 1.0)
    lease(SparkSettings.from_environment()).close()
    assert pid not in [engine.pid for engine in engines()]
    assert _gone(pid)


def _starting(folder: Path) -> int:
    """Kill a process as soon as its engine starts; return the process of the engine."""
    starter = _probe()
    deadline = time.monotonic() + _SOON_S
    while not (found := [file.read_text() for file in folder.glob("*.alive")]) or not found[0]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not list(folder.glob("*.json"))
    starter.kill()
    starter.wait(_SOON_S)
    return int(found[0])


def test_a_session_goes_on_with_another_engine_when_its_own_is_killed(shared: Path) -> None:
    spark = LazySession(SparkSettings.from_environment())
    try:
        assert spark.spark_session.range(10).count() == 10
        before = spark.jvm_pid()
        assert before is not None
        os.kill(before, signal.SIGKILL)
        with pytest.raises(PySparkException):
            spark._session.range(10).count()  # pyright: ignore # a job that was under way
        began = time.monotonic()
        assert spark.spark_session.range(10).count() == 10
        assert spark.jvm_pid() != before
        assert time.monotonic() - began < 60
    finally:
        spark.stop()


def test_it_is_started_looked_at_and_stopped_by_commands(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    """The first start runs rules and keeps nothing of them; its classes are kept for the next."""
    assert json.loads(program("engine", "status", "--json").out) == {"engines": []}
    scratch, archive = tmp_path / "tmp", tmp_path / "classes.jsa"
    scratch.mkdir()
    archived = {"KSTREAMS_ASSETS_SPARK_CLASS_DATA_ARCHIVE": str(archive)}
    start = ["engine", "start", "--driver-memory", "1g", "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "kstreams_assets.cli.main", *start],
        env={**os.environ, **archived, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_START_S,
    )
    assert ended.returncode == 0, ended.stderr
    assert not list(scratch.glob("kstreams-assets-warm-up-*"))
    (told,) = json.loads(ended.stdout)["engines"]
    assert "-Xmx1g" in psutil.Process(told["jvm_pid"]).cmdline()
    monkeypatch.setattr("spark_resources.warm_up.warm_up", lambda *_, **__: None)
    assert json.loads(program(*start).out)["engines"] == [told]
    assert told["clients"] == "none"
    assert _jvm_of(_probe()) == told["jvm_pid"]  # it asks for nothing else
    larger = {"KSTREAMS_ASSETS_SPARK_DRIVER_MEMORY": "1100m"}
    assert _jvm_of(_probe(**larger)) != told["jvm_pid"]
    program("engine", "stop")
    assert _gone(told["jvm_pid"], within_s=_START_S)  # it writes its classes first
    assert json.loads(program("engine", "status", "--json").out) == {"engines": []}
    assert archive.stat().st_size > 50_000_000
    second = _jvm_of(_probe(**archived))
    assert str(archive) in {region.path for region in psutil.Process(second).memory_maps()}
