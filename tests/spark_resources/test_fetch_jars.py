"""spark_resources/fetch_jars.py, with a program in Java's place that delivers what a test wants."""

import hashlib
from pathlib import Path

import pytest
from click.testing import CliRunner

from kstreams_assets.errors import KStreamsAssetsError
from spark_resources import fetch_jars, jars
from tests.spark_resources.fake_java import fake_java

DELIVERS = """
while [ "$1" != -retrieve ]; do shift; done
to=$(dirname "$2")
mkdir -p "$to"
printf good > "$to/a-1.jar"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A jar home; the lock wants `a-1.jar` with the content `good` in every set."""
    checkout = tmp_path / "checkout"
    (checkout / "jars").mkdir(parents=True)
    digest = hashlib.sha256(b"good").hexdigest()
    (checkout / "jars" / "jars.lock").write_text(
        "".join(f"{jar_set} a-1.jar 4 {digest}\n" for jar_set in jars.JAR_SETS)
    )
    monkeypatch.setattr(jars, "_PACKAGE", checkout / "spark_resources")
    monkeypatch.setenv("KSTREAMS_ASSETS_JARS", str(tmp_path / "home"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    fake_java(tmp_path / "java", run=DELIVERS)
    return tmp_path / "home"


def only(home: Path) -> set[str]:
    return {path.name for path in home.iterdir()} - {".fetch.lock"}


def test_jars_are_fetched_once(home: Path) -> None:
    assert fetch_jars.fetch_jars("kafka") is True
    assert (home / "kafka" / "a-1.jar").read_bytes() == b"good"
    assert fetch_jars.fetch_jars("kafka") is False
    assert only(home) == {"kafka"}


def test_damaged_and_left_over_jars_are_replaced(home: Path) -> None:
    (home / "kafka").mkdir(parents=True)
    (home / "kafka" / "a-1.jar").write_bytes(b"baad")
    (home / "kafka" / "a-0.jar").write_bytes(b"older")
    assert fetch_jars.fetch_jars("kafka") is True
    assert {path.name for path in (home / "kafka").iterdir()} == {"a-1.jar"}
    assert jars.verify_jars("kafka", hashes=True) == home / "kafka"


def test_other_bytes_than_locked_are_not_put_in_place(home: Path, tmp_path: Path) -> None:
    fake_java(tmp_path / "java", run=DELIVERS.replace("good", "evil"))
    with pytest.raises(KStreamsAssetsError, match=r"a-1\.jar \(sha256 differs\)"):
        fetch_jars.fetch_jars("kafka")
    assert only(home) == set()


def test_what_ivy_cannot_find_is_named(home: Path, tmp_path: Path) -> None:
    says = "echo '\t\t:: org.example#a;1: not found'; exit 1"
    fake_java(tmp_path / "java", run=says)
    with pytest.raises(KStreamsAssetsError, match=r"not found: org\.example#a;1\. Check the netw"):
        fetch_jars.fetch_jars("kafka")
    assert only(home) == set()


def test_an_ivy_that_hangs_is_given_up(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "java", run="exec sleep 60")
    monkeypatch.setattr(fetch_jars, "_FETCH_TIMEOUT_S", 0.3)
    with pytest.raises(KStreamsAssetsError, match=r"within 0\.3 s"):
        fetch_jars.fetch_jars("kafka")


def test_relock_writes_the_given_set_and_keeps_the_others(home: Path, tmp_path: Path) -> None:
    fake_java(tmp_path / "java", run=DELIVERS.replace("good", "newer"))
    result = CliRunner().invoke(fetch_jars.main, ["--relock", "kafka"])
    assert result.exit_code == 0, result.output
    (kafka,) = jars.read_lock("kafka")
    assert (kafka.size, kafka.sha256) == (5, hashlib.sha256(b"newer").hexdigest())
    assert [jars.read_lock(other)[0].size for other in ("spark", "kafka39")] == [4, 4]
    assert jars.verify_jars("kafka", hashes=True) == home / "kafka"


def test_the_command_fetches_what_users_need_all_sets_or_says_why_not(
    home: Path, tmp_path: Path
) -> None:
    result = CliRunner().invoke(fetch_jars.main, [])
    assert result.exit_code == 0, result.output
    assert only(home) == {"spark", "kafka"}
    result = CliRunner().invoke(fetch_jars.main, ["all"])
    assert result.exit_code == 0, result.output
    assert only(home) == {"spark", "kafka", "kafka43", "kafka39", "registry"}
    fake_java(tmp_path / "java", version="11")
    (home / "kafka" / "a-1.jar").unlink()
    result = CliRunner(env={"PATH": str(tmp_path)}).invoke(fetch_jars.main, ["kafka"])
    assert result.exit_code == 1
    assert "No JDK 17 or 21" in result.output
