"""spark_resources/java.py, with programs that answer like Java and its compiler."""

from pathlib import Path

import pytest

from kstreams_assets.errors import ProcessError
from spark_resources import java as java_program
from spark_resources.java import JavaProgram
from tests.spark_resources.fake_java import fake_java

# Called as: javac -cp <jars> -d <folder> <source>
COMPILES = """#!/bin/sh
echo compiled >> "$(dirname "$0")/compilations"
mkdir -p "$4"
cp "$5" "$4/"
"""


@pytest.fixture
def javac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that copies the source; the Java beside it prints its arguments."""
    java = fake_java(tmp_path / "java", run='echo "$@"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setattr(java_program, "jars_home", lambda: tmp_path / "home")
    monkeypatch.setattr(java_program, "class_path", lambda jar_set: f"/jars/{jar_set}/*")
    compiler = java.with_name("javac")
    compiler.write_text(COMPILES)
    compiler.chmod(0o755)
    return compiler


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "Greeter.java"
    path.write_text("first")
    return path


def compilations(javac: Path) -> int:
    return len(javac.with_name("compilations").read_text().splitlines())


def test_it_is_compiled_once_per_source_and_jar_set(javac: Path, source: Path) -> None:
    first = JavaProgram(source).command(heap_mb=64)
    assert JavaProgram(source).command(heap_mb=64) == first
    assert compilations(javac) == 1
    older = JavaProgram(source, "kafka39").command(heap_mb=64)
    assert compilations(javac) == 2
    source.write_text("second")
    newer = JavaProgram(source).command(heap_mb=64)
    assert compilations(javac) == 3
    assert len({first[-2], older[-2], newer[-2]}) == 3


def test_the_command_runs_the_compiled_class_with_its_jars(javac: Path, source: Path) -> None:
    command = JavaProgram(source, "kafka39").command(heap_mb=64)
    assert command[0] == str(javac.with_name("java"))
    assert "-Xmx64m" in command
    jars, _, classes = command[-2].partition(":")
    assert (command[-3], jars, command[-1]) == ("-cp", "/jars/kafka39/*", "Greeter")
    assert (Path(classes) / "Greeter.java").read_text() == "first"
    output = JavaProgram(source).run(["--name", "anna"], timeout_s=20)
    assert output.endswith(" Greeter --name anna\n")


def test_a_source_that_does_not_compile_leaves_no_classes(javac: Path, source: Path) -> None:
    javac.write_text('#!/bin/sh\nmkdir -p "$4"\necho "no such type" >&2\nexit 1\n')
    with pytest.raises(ProcessError, match="no such type"):
        JavaProgram(source).command(heap_mb=64)
    assert list((javac.parents[2] / "home" / "classes").iterdir()) == []


def test_a_program_that_does_not_end_is_given_up(javac: Path, source: Path) -> None:
    fake_java(javac.parents[1], run="exec sleep 60", javac=False)
    with pytest.raises(ProcessError, match=r"within 0\.3 s"):
        JavaProgram(source).run([], timeout_s=0.3)
