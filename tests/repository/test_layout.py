"""Where tables lie, and which layouts are read."""

from pathlib import Path

import pytest

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.layout import (
    LAYOUT_PROPERTY,
    LAYOUT_VERSION,
    NewerLayoutError,
    Warehouse,
    check_layout,
)
from kstreams_assets.repository.repository import Repository
from tests.backup.samples import cut, point


@pytest.mark.parametrize("found", [{}, {LAYOUT_PROPERTY: None}, {LAYOUT_PROPERTY: "1"}])
def test_a_layout_up_to_ours_is_read(found: dict[str, str | None]) -> None:
    check_layout("windows", found)


@pytest.mark.parametrize("version", [str(LAYOUT_VERSION + 1), "999", "1.5", "new", "-1"])
def test_a_newer_or_strange_layout_is_refused(version: str) -> None:
    with pytest.raises(NewerLayoutError, match="nothing was changed") as caught:
        check_layout("windows", {LAYOUT_PROPERTY: version})
    assert (caught.value.table, caught.value.found) == ("windows", version)
    assert f"The table windows has layout version {version}" in str(caught.value)


@pytest.mark.parametrize(
    "location",
    [
        "gs://bucket",
        "abfss://c@account.dfs.core.windows.net/x",
        "hdfs://name/x",
        "s3:bucket",
    ],
)
def test_stores_of_other_kinds_are_refused(location: str) -> None:
    with pytest.raises(ConfigurationError, match="neither on a local or mounted disk") as caught:
        Warehouse.at(location)
    assert location in str(caught.value)


AMBIGUOUS = ["share%20of", "pct%41", "100%25", "a%2Fb", "back\\slash", "tab\there", "line\nbreak"]


@pytest.mark.parametrize("name", AMBIGUOUS)
@pytest.mark.parametrize("form", ["/data/{}/w", "file:///data/{}", "s3://bucket/{}/w", "{}"])
def test_paths_that_libraries_read_unlike_are_refused(name: str, form: str) -> None:
    with pytest.raises(ConfigurationError, match="do not agree on the folder") as caught:
        Warehouse.at(form.format(name))
    assert "Rename the folder" in caught.value.remedy
    with pytest.raises(ConfigurationError, match="do not agree on the folder"):
        Warehouse.at("/data/w", state_in=form.format(name))


def test_a_link_to_such_a_path_is_refused(tmp_path: Path) -> None:
    """Delta's libraries follow it first."""
    (tmp_path / "a%20b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a%20b")
    with pytest.raises(ConfigurationError, match=r"a%20b.* contains '%20'"):
        Warehouse.at(tmp_path / "link/w")


@pytest.mark.parametrize("name", ["100%", "a%zz", "x%2", "a b", "#1?", "[x]{y}", "ü", "a:b", "~"])
def test_other_paths_hold_tables(tmp_path: Path, name: str) -> None:
    table = Repository(Warehouse.at(tmp_path / name / "w"), "shop").points
    for time_ms in (1_790_000_000_000, 1_790_000_001_000):
        table.append_many([point(time_ms, cut(0, 10))])
    assert len(table.instants()) == 2


@pytest.mark.parametrize("location", ["/data/w", "file:/data/w", "file:///data/w", Path("/data/w")])
def test_a_folder(location: str | Path) -> None:
    assert Warehouse.at(location) == Warehouse(Path("/data/w"))


def test_a_relative_folder_and_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert Warehouse.at("w").root == tmp_path / "w"
    assert Warehouse.at("~/w").root == Path("/home/somebody/w")


def test_where_tables_lie() -> None:
    warehouse = Warehouse(Path("/w"))
    assert warehouse.records("shop") == Path("/w/records/shop")
    assert warehouse.control("windows") == Path("/w/windows")
    assert warehouse.lock_file("shop").parent.name == ".locks"
    assert warehouse.lock_file("shop") != warehouse.lock_file("shop.recorder")
