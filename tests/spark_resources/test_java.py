"""spark_resources/java.py, with programs that answer like Java."""

from pathlib import Path

import pytest

from kstreams_assets.errors import JavaNotFoundError
from spark_resources import java
from spark_resources.java import find_java
from tests.spark_resources.fake_java import fake_java


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.mark.parametrize("version", ["17", "21"])
def test_java_home_wins_over_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    fake_java(tmp_path / "other")
    program = fake_java(tmp_path / "home", version=version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "other" / "bin"))
    found = find_java(compiler=True)
    assert (found.executable, found.version) == (program, int(version))
    assert found.compiler == tmp_path / "home" / "bin" / "javac"


def test_path_helps_when_java_home_has_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "old", version="1.8")
    program = fake_java(tmp_path / "good")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(program.parent))
    assert find_java().executable == program


def test_without_java_one_line_says_what_to_install() -> None:
    with pytest.raises(JavaNotFoundError, match=r"PATH has no java.*openjdk-17") as caught:
        find_java()
    assert "\n" not in str(caught.value)


def test_wrong_versions_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "old", version="1.8")
    program = fake_java(tmp_path / "new", version="25")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(program.parent))
    with pytest.raises(JavaNotFoundError, match=r"which is Java 8; PATH .* which is Java 25"):
        find_java()


def test_a_java_home_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME gives .*gone.* cannot be run"):
        find_java()


def test_a_runtime_without_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, javac=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java().compiler is None
    with pytest.raises(JavaNotFoundError, match="no compiler"):
        find_java(compiler=True)


def test_a_java_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_java(tmp_path)
    program.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(java, "_VERSION_TIMEOUT_S", 0.3)
    with pytest.raises(JavaNotFoundError, match=r"did not answer within 0\.3 s"):
        find_java()
