"""examples/streams/process.py, with a program in Java's place."""

from pathlib import Path

import pytest

from examples.streams.process import StreamsProcess
from kstreams_assets.errors import ProcessError
from spark_resources import java as java_program
from spark_resources.java import JavaProgram
from tests.spark_resources.fake_java import fake_java


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamsProcess:
    """An application that says what it was given, then that it is running, and runs on."""
    says_so(tmp_path, 'echo "$@"; echo STATE RUNNING; exec sleep 60')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setattr(java_program, "jars_home", lambda: tmp_path / "home")
    monkeypatch.setattr(java_program, "class_path", lambda jar_set: f"/jars/{jar_set}/*")
    source = tmp_path / "Application.java"
    source.touch()
    log_file = tmp_path / "application.log"
    return StreamsProcess(JavaProgram(source), ["--a", "b"], log_file=log_file, heap_mb=64)


def says_so(tmp_path: Path, run: str) -> None:
    javac = fake_java(tmp_path / "java", run=run).with_name("javac")
    javac.write_text('#!/bin/sh\nmkdir -p "$4"\n')
    javac.chmod(0o755)


def test_it_runs_with_its_arguments_until_stopped(application: StreamsProcess) -> None:
    assert application.pid is None
    with application:
        assert application.running
        assert application.pid is not None
        assert application.log_file.read_text().splitlines()[0].endswith("Application --a b")
    assert not application.running
    assert application.pid is None


def test_it_can_be_killed_and_started_again(application: StreamsProcess) -> None:
    with application:
        first = application.pid
        application.kill()
        assert not application.running
        application.start()
        assert application.pid not in (None, first)


@pytest.mark.parametrize(
    "run", ["echo topic is missing; exit 1", "echo topic is missing; exec sleep 60"]
)
def test_an_application_that_never_runs_is_one_clear_error(
    application: StreamsProcess, tmp_path: Path, run: str
) -> None:
    says_so(tmp_path, run)
    with pytest.raises(
        ProcessError, match=r"Application is not RUNNING: topic is missing"
    ) as caught:
        application.start(timeout_s=5.0)
    assert str(application.log_file) in str(caught.value)
    assert not application.running
