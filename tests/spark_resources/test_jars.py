"""spark_resources/jars.py, and the lock file of the repository."""

import hashlib
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kstreams_assets.errors import ConfigurationError, JarsMissingError
from spark_resources import jars
from spark_resources.jars import JAR_SETS, JarSet, read_lock, verify_jars

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A jar home whose kafka set is `a.jar` and `b.jar`, complete."""
    lists = tmp_path / "lists"
    lists.mkdir()
    directory = tmp_path / "home" / "kafka"
    directory.mkdir(parents=True)
    lines = ["# comment", ""]
    for name in ("a.jar", "b.jar"):
        (directory / name).write_bytes(name.encode())
        lines.append(f"kafka {name} 5 {hashlib.sha256(name.encode()).hexdigest()}")
    (lists / "jars.lock").write_text("\n".join(lines))
    monkeypatch.setattr(jars, "lists_directory", lambda: lists)
    monkeypatch.setenv("KSTREAMS_ASSETS_JARS", str(tmp_path / "home"))
    return tmp_path / "home"


def test_complete_jars_give_their_folder(home: Path) -> None:
    assert verify_jars("kafka", hashes=False) == home / "kafka"
    assert verify_jars("kafka", hashes=True) == home / "kafka"
    assert jars.class_path("kafka") == f"{home}/kafka/*"


def test_a_missing_jar_is_named_with_the_command(home: Path) -> None:
    (home / "kafka" / "b.jar").unlink()
    with pytest.raises(JarsMissingError) as caught:
        verify_jars("kafka", hashes=False)
    assert caught.value.missing == ("b.jar",)
    assert caught.value.command == "kstreams-assets jars fetch kafka"
    assert caught.value.command in str(caught.value)


def test_another_size_is_seen_without_hashes(home: Path) -> None:
    (home / "kafka" / "b.jar").write_bytes(b"longer")
    with pytest.raises(JarsMissingError, match=r"b\.jar \(size 6, locked 5\)"):
        verify_jars("kafka", hashes=False)


def test_other_bytes_are_seen_with_hashes(home: Path) -> None:
    (home / "kafka" / "b.jar").write_bytes(b"B.jar")
    verify_jars("kafka", hashes=False)
    with pytest.raises(JarsMissingError, match=r"b\.jar \(sha256 differs\)"):
        verify_jars("kafka", hashes=True)


def test_a_jar_nobody_locked_is_not_put_on_the_class_path(home: Path) -> None:
    (home / "kafka" / "old-1.0.jar").touch()
    with pytest.raises(JarsMissingError, match=r"old-1\.0\.jar \(not in jars\.lock\)"):
        verify_jars("kafka", hashes=False)


def test_a_folder_that_does_not_exist(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTREAMS_ASSETS_JARS", str(home / "elsewhere"))
    with pytest.raises(JarsMissingError, match=r"2 jar\(s\) missing"):
        verify_jars("kafka", hashes=False)


def test_an_unknown_set_or_a_damaged_lock_is_refused(home: Path) -> None:
    with pytest.raises(ConfigurationError, match="no jar of the set spark"):
        read_lock("spark")
    with pytest.raises(ConfigurationError, match="Cannot read"):
        read_lock("kafka", lock_file=home / "none")
    (home / "damaged").write_text("kafka a.jar many 00")
    with pytest.raises(ConfigurationError, match=r"Line 1 .* malformed"):
        read_lock("kafka", lock_file=home / "damaged")


def test_a_checkout_keeps_its_jars_and_an_installation_uses_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KSTREAMS_ASSETS_JARS", raising=False)
    assert jars.jars_home() == ROOT / ".jars"
    assert jars.lists_directory() == ROOT / "jars"
    monkeypatch.setattr(jars, "_PACKAGE", tmp_path / "site-packages" / "spark_resources")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jars.jars_home() == tmp_path / ".cache/kstreams-assets/jars"
    assert jars.lists_directory() == tmp_path / "site-packages/spark_resources/jar_lists"


@pytest.mark.parametrize("jar_set", JAR_SETS)
def test_lock_and_ivy_file_name_the_same_jars(jar_set: JarSet) -> None:
    tree = ET.parse(ROOT / "jars" / f"{jar_set}-ivy.xml")  # noqa: S314 - our own file
    dependencies = tree.findall("dependencies/dependency")
    listed = {
        f"{each.attrib['name']}-{each.attrib['rev']}"
        f".{'jar' if (archive := each.find('artifact')) is None else archive.attrib['ext']}"
        for each in dependencies
    }
    assert {jar.file_name for jar in read_lock(jar_set)} == listed
    assert {each.attrib["transitive"] for each in dependencies} == {"false"}


def test_importing_it_does_not_import_pyspark() -> None:
    code = "import spark_resources.jars, sys; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0
