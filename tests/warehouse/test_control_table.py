"""Small tables, and several processes that write them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.warehouse.control_table import ControlTable, one_of
from kstreams_assets.warehouse.layout import LAYOUT_PROPERTY, NewerLayoutError
from kstreams_assets.warehouse.lock import warehouse_lock

SCHEMA = pa.schema(
    [
        pa.field("application_id", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("number", pa.int64()),
    ]
)

_PROCESS = """
import sys
from pathlib import Path
from tests.warehouse.test_control_table import SCHEMA, rows
from kstreams_assets.warehouse.control_table import ControlTable
table = ControlTable(Path(sys.argv[1]), SCHEMA)
application = sys.argv[2]
for number in range(10):
    table.append(rows(application, number))
    table.replace(
        rows(application, 100 + number, name="newest"),
        where=f"application_id = '{application}' AND name = 'newest'",
    )
"""

_READER = """
import sys
from pathlib import Path
import pyarrow as pa
from kstreams_assets.warehouse.control_table import ControlTable
schema = pa.schema([("application_id", pa.string()), ("name", pa.string()), ("number", pa.int64())])
print(ControlTable(Path(sys.argv[1]), schema).read(application_id="a").num_rows)
"""


def rows(application_id: str, *numbers: int, name: str = "row") -> list[dict[str, object]]:
    """Rows of one application."""
    return [{"application_id": application_id, "name": name, "number": n} for n in numbers]


def _numbers(table: ControlTable, application_id: str) -> list[int]:
    return sorted(table.read(application_id=application_id)["number"].to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> ControlTable:
    """A table that nobody has written."""
    return ControlTable(tmp_path / "warehouse" / "things", SCHEMA)


def test_a_table_that_nobody_has_written(table: ControlTable) -> None:
    assert table.open() is None
    assert table.read(application_id="a").schema == SCHEMA
    assert table.read(application_id="a", columns=["number"]).column_names == ["number"]
    assert not table.path.exists()


def test_rows_of_each_application(table: ControlTable) -> None:
    table.append(rows("a", 1, 2))
    table.append(rows("b'c=d/e", 3))
    assert _numbers(table, "a") == [1, 2]
    assert _numbers(table, "b'c=d/e") == [3]
    assert table.read(application_id="a", columns=["name"]).column_names == ["name"]


def test_filters(table: ControlTable) -> None:
    table.append([*rows("a", 1, name="x"), *rows("a", 2, name="y"), *rows("b", 3, name="x")])
    for wanted, expected in ((["x"], [1]), (["x", "y"], [1, 2]), (["z"], []), ([], [])):
        found = table.read(application_id="a", where=one_of("name", wanted))
        assert sorted(found["number"].to_pylist()) == expected


def test_replace_is_one_commit_and_touches_what_matches(table: ControlTable) -> None:
    table.append([*rows("a", 1), *rows("a", 2, name="y"), *rows("b", 3)])
    before = DeltaTable(table.path).version()
    table.replace(rows("a", 4, 5), where="application_id = 'a' AND name = 'row'")
    assert DeltaTable(table.path).version() == before + 1
    assert _numbers(table, "a") == [2, 4, 5]
    assert _numbers(table, "b") == [3]
    table.replace([], where="application_id = 'a' AND name = 'row'")
    assert _numbers(table, "a") == [2]


def test_a_newer_layout_is_neither_read_nor_written(table: ControlTable) -> None:
    table.append(rows("a", 1))
    delta = DeltaTable(table.path)
    assert delta.metadata().configuration[LAYOUT_PROPERTY] == "1"
    delta.alter.set_table_properties({LAYOUT_PROPERTY: "2"}, raise_if_not_exists=False)
    version = delta.version()
    for use in (
        lambda: table.read(application_id="a"),
        lambda: table.append(rows("a", 2)),
        lambda: table.replace([], where="application_id = 'a'"),
    ):
        with pytest.raises(NewerLayoutError, match="things has layout version 2"):
            use()
    assert DeltaTable(table.path).version() == version


@pytest.mark.e2e
def test_processes_of_two_applications_lose_nothing(table: ControlTable) -> None:
    applications = ("a", "b")
    processes = [
        subprocess.Popen([sys.executable, "-c", _PROCESS, str(table.path), application])
        for application in applications
    ]
    assert [process.wait(60) for process in processes] == [0, 0]
    for application in applications:
        assert _numbers(table, application) == [*range(10), 109]


def test_a_reader_needs_no_lock(table: ControlTable) -> None:
    table.append(rows("a", 1))
    lock = table.path.parent / ".locks" / "tables" / "things.lock"
    with warehouse_lock(lock, purpose="test", wait_s=0):
        assert _numbers(table, "a") == [1]


@pytest.fixture
def growing(table: ControlTable) -> ControlTable:
    """A table whose rows come in the order of their numbers."""
    return ControlTable(table.path, SCHEMA, grows_along="number", statistics=("number",))


class TestFilesByRange:
    """A table that grows along a column."""

    def test_files_with_their_ranges(self, growing: ControlTable) -> None:
        assert growing.files("a") == []
        growing.append(rows("a", 7, 5))
        growing.append([*rows("a", 3), *rows("b", 9)])
        growing.append_table(pa.Table.from_pylist(rows("a", 8), schema=SCHEMA))
        found = [(file.rows, file.low, file.high) for file in growing.files("a")]
        assert found == [(1, 3, 3), (2, 5, 7), (1, 8, 8)]
        assert [file.low for file in growing.files("b")] == [9]

    def test_a_range_is_rewritten_in_one_commit(self, growing: ControlTable) -> None:
        for number in range(6):
            growing.append([*rows("a", number), *rows("b'c", number)])
        version = DeltaTable(growing.path).version()

        def change(found: pa.Table) -> pa.Table:
            assert sorted(found["number"].to_pylist()) == [1, 2, 3]
            return found.filter(pc.field("number") != 2).sort_by("number")

        growing.rewrite("a", 1, 3, change)
        assert DeltaTable(growing.path).version() == version + 1
        assert _numbers(growing, "a") == [0, 1, 3, 4, 5]
        assert [(f.rows, f.low, f.high) for f in growing.files("a")][1] == (2, 1, 3)
        growing.rewrite("b'c", 0, 9, lambda found: found.slice(0, 0))
        assert _numbers(growing, "b'c") == []
        assert len(_numbers(growing, "a")) == 5

    def test_what_others_add_meanwhile_is_not_lost(self, growing: ControlTable) -> None:
        """A writer on another machine, whom the lock does not reach."""
        growing.append(rows("a", 1, 2, 5))
        seen: list[int] = []

        def change(found: pa.Table) -> pa.Table:
            seen.append(found.num_rows)
            if len(seen) == 1:
                late = pa.Table.from_pylist([*rows("a", 3), *rows("b", 3)], schema=SCHEMA)
                write_deltalake(growing.path, late, mode="append")
            return found.filter(pc.field("number") != 1)

        growing.rewrite("a", 1, 5, change)
        assert _numbers(growing, "a") == [2, 3, 5]
        assert _numbers(growing, "b") == [3]
        assert seen == [3, 4]

    def test_a_table_without_such_a_column(self, table: ControlTable) -> None:
        with pytest.raises(TypeError, match="things does not grow along a column"):
            table.rewrite("a", 1, 2, lambda found: found)


class TestNewest:
    """The rows at the end, without reading the rest."""

    def test_as_many_as_asked_for(self, growing: ControlTable) -> None:
        assert growing.read_newest("a", 1).num_rows == 0
        growing.append([*rows("a", 1, 4, 9), *rows("b", 99)])
        growing.append(rows("a", 5, 3, 8))
        for count, lowest in ((1, 9), (2, 8), (3, 5), (4, 4), (6, 1), (60, 1)):
            found = sorted(growing.read_newest("a", count)["number"].to_pylist())
            assert found == [n for n in (1, 3, 4, 5, 8, 9) if n >= lowest]
        assert growing.read_newest("a", 0).num_rows == growing.read_newest("c", 1).num_rows == 0

    def test_other_files_are_not_opened(self, growing: ControlTable) -> None:
        for number in range(4):
            growing.append(rows("a", number))
        kept = growing.files("a")[-1].path
        for file in growing.path.rglob("*.parquet"):
            if "_delta_log" not in file.parts and file.name != Path(kept).name:
                file.unlink()
        assert growing.read_newest("a", 1)["number"].to_pylist() == [3]


class TestFold:
    """What is made of each file is remembered while the file is part of the table."""

    def test_a_file_is_read_once(self, growing: ControlTable) -> None:
        made: list[list[int]] = []

        def numbers(rows: pa.Table) -> int:
            made.append(sorted(rows["number"].to_pylist()))
            return sum(made[-1])

        def total() -> int:
            return sum(growing.fold("a", ["number"], numbers, where=pc.field("number") > 0))

        assert total() == 0
        growing.append([*rows("a", 0, 1, 2), *rows("b", 9)])
        growing.append(rows("a", 3))
        assert (total(), total()) == (6, 6)
        assert sorted(made) == [[1, 2], [3]]
        growing.append(rows("a", 4))
        assert (total(), made[2:]) == (10, [[4]])
        growing.replace(rows("a", 30), where="application_id = 'a' AND number IN (3, 30)")
        assert (total(), made[3:]) == (37, [[30]])
        growing.rewrite("a", 0, 30, lambda found: found)
        assert (total(), made[4:]) == (37, [[1, 2, 4, 30]])


class TestTidy:
    """Files and log entries that are no longer part of the table."""

    def test_after_an_hour(self, growing: ControlTable) -> None:
        for number in range(5):
            growing.append(rows("a", number))
        growing.rewrite("a", 0, 4, lambda found: found)
        folder = growing.path / "application_id=a"
        killed = folder / "part-00000-killed.parquet"
        killed.write_bytes(b"half of a file")
        _age(growing.path, 3000)
        growing.tidy()
        assert (len(list(folder.iterdir())), len(_log_entries(growing))) == (7, 7)
        _age(growing.path, 3700)
        recent = folder / "part-00000-recent.parquet"
        recent.write_bytes(b"being written")
        growing.tidy()
        assert not killed.exists()
        assert recent.exists()
        assert len(list(folder.iterdir())) == 7  # readers may still use what was rewritten just now
        assert len(_log_entries(growing)) <= 3
        assert _numbers(growing, "a") == [0, 1, 2, 3, 4]
        growing.append(rows("a", 5))
        assert _numbers(growing, "a") == [0, 1, 2, 3, 4, 5]

    def test_the_log_of_a_table_that_nobody_rewrites(self, growing: ControlTable) -> None:
        for number in range(5):
            growing.append(rows("a", number))
        _age(growing.path, 3700)
        growing.tidy()
        assert len(_log_entries(growing)) <= 1
        assert _numbers(growing, "a") == [0, 1, 2, 3, 4]

    def test_a_table_of_an_earlier_release(self, table: ControlTable) -> None:
        table.tidy()
        assert table.open() is None
        table.path.mkdir(parents=True)
        DeltaTable.create(table.path, schema=SCHEMA, partition_by=["application_id"])
        table.append(rows("a", 1))
        table.tidy()
        configuration = DeltaTable(table.path).metadata().configuration
        assert configuration["delta.logRetentionDuration"] == "interval 1 hours"
        version = DeltaTable(table.path).version()
        table.tidy()
        assert DeltaTable(table.path).version() <= version + 2  # the vacuum's own entries


def test_columns_that_a_table_of_an_earlier_release_lacks(table: ControlTable) -> None:
    application, name, number = SCHEMA
    earlier = pa.schema([application, name, _parts(("part", pa.int32()))])
    later = pa.schema(
        [application, name, _parts(("part", pa.int32()), ("epoch", pa.int32())), number]
    )
    old = {"application_id": "a", "parts": [{"part": 1}]}
    ControlTable(table.path, earlier).append([{**old, "name": name} for name in ("old", "again")])
    grown = ControlTable(table.path, later)
    new = {"application_id": "a", "parts": [{"part": 2, "epoch": 7}], "number": 5}
    grown.append([{**new, "name": "new"}])
    grown.replace([{**new, "name": "again"}], where="application_id = 'a' AND name = 'again'")
    found = {row.pop("name"): row for row in grown.read(application_id="a").to_pylist()}
    assert found["old"] == {**old, "parts": [{"part": 1, "epoch": None}], "number": None}
    assert found["new"] == found["again"] == new


def _parts(*fields: tuple[str, pa.DataType]) -> pa.Field:
    return pa.field("parts", pa.list_(pa.struct(list(fields))))


def _age(path: Path, seconds: float) -> None:
    """Make every file this much older than now."""
    for file in path.rglob("*"):
        if file.is_file():
            at_s = time.time() - seconds
            os.utime(file, (at_s, at_s))


def _log_entries(table: ControlTable) -> list[Path]:
    return sorted(table.path.glob("_delta_log/*.json"))


@pytest.mark.e2e
def test_a_reading_process_ends_in_peace(table: ControlTable) -> None:
    """Reading through deltalake's own file system aborted one process in three at its exit."""
    table.append(rows("a", 1, 2))
    for _ in range(2):
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", _READER, str(table.path)], stdout=subprocess.PIPE, text=True
            )
            for _ in range(5)
        ]
        assert [(reader.communicate(timeout=60)[0], reader.returncode) for reader in readers] == [
            ("2\n", 0)
        ] * 5
