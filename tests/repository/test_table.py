"""Small tables, and several processes that write them."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.layout import LAYOUT_PROPERTY, NewerLayoutError, Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.column import ApplicationId, Column, Int32
from kstreams_assets.model.tables import TABLES as DECLARED
from kstreams_assets.repository import table as tables
from kstreams_assets.repository.rows import rows_of
from kstreams_assets.repository.table import Table, one_of
from kstreams_assets.store import store_at
from kstreams_assets.store.folders import FolderStore
from tests.repository.disk import on_disk

NOWHERE = Warehouse(Path("/nowhere"))


@dataclass(frozen=True)
class Thing:
    """A row of a table."""

    application_id: ApplicationId
    name: Annotated[str, Column("Any.")]
    number: Annotated[int | None, Column("Any.")]


SCHEMA = rows_of(Thing).schema

_PROCESS = """
import sys
from pathlib import Path
import pyarrow.compute as pc
from tests.repository.test_table import Thing, rows
from kstreams_assets.repository.table import Table
application = sys.argv[2]
table = Table(Path(sys.argv[1]), Thing, "number", application)
for number in range(10):
    table.append(rows(application, number))
    table.replace(
        rows(application, 100 + number, name="newest"),
        where=pc.field("name") == "newest",
    )
"""

_READER = """
import sys
from pathlib import Path
import pyarrow as pa
from kstreams_assets.repository.table import Table
from tests.repository.test_table import Thing
print(Table(Path(sys.argv[1]), Thing, "number", "a").read().num_rows)
"""


_OTHER = """
import sys
from pathlib import Path
from kstreams_assets.repository.table import Table
from tests.repository.test_table import Thing, rows
Table(Path(sys.argv[1]), Thing, "number", "a").append(rows("a", 2))
"""

_KILLED = """
import os, signal, sys
from pathlib import Path
from deltalake import DeltaTable
from tests.repository.test_table import Thing, rows
from kstreams_assets.repository import table as tables
from kstreams_assets.store.folders import FolderStore

left = int(sys.argv[3])

def killed_around(call):
    def step(*args, **options):
        die()
        result = call(*args, **options)
        die()
        return result
    return step

def die():
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1

FolderStore.put_file = killed_around(FolderStore.put_file)
for name in ("create_write_transaction", "vacuum", "create_checkpoint"):
    setattr(DeltaTable, name, killed_around(getattr(DeltaTable, name)))
table = tables.Table(Path(sys.argv[1]), Thing, "number", "a", small_files=1)
table.append(rows("a", int(sys.argv[2])))
"""


def rows(application_id: str, *numbers: int, name: str = "row") -> list[Thing]:
    """Rows of one application."""
    return [Thing(application_id, name, number) for number in numbers]


def columns(rows: list[Thing]) -> pa.Table:
    """The same as columns."""
    return rows_of(Thing).write(rows)


def unlocked(write: Callable[..., None], *args: Any, **options: Any) -> None:
    """As a writer on another machine, whom the lock does not reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "warehouse_lock", nullcontext_for)
        write(*args, **options)


@contextmanager
def nullcontext_for(*_: object, **__: object) -> Iterator[None]:
    """A lock that keeps nobody out."""
    yield


TABLES: list[Table[Any]] = [Table.of(spec, NOWHERE, "a") for spec in DECLARED]
"""Every control table, nowhere."""


class TestOpening:
    """A log is replayed when it changed, and only then."""

    def test_what_was_not_changed_is_not_read_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened: list[Path] = []
        real = tables.delta_table

        def counted(path: Path, version: int | None = None) -> DeltaTable:
            opened.append(path)
            return real(path, version)

        monkeypatch.setattr(tables, "delta_table", counted)
        table = Table(tmp_path / "t", Thing, "number", "a")
        table.append(rows("a", 1))
        opened.clear()
        for _ in range(3):
            assert table.read().num_rows == 1
        assert len(opened) <= 1
        subprocess.run([sys.executable, "-c", _OTHER, str(tmp_path / "t")], timeout=60, check=True)
        assert table.read().num_rows == 2
        max((tmp_path / "t" / "_delta_log").glob("*.json")).unlink()
        assert table.read().num_rows == 1
        store_at(tmp_path / "t").remove_tree()
        assert table.read().num_rows == 0

    def test_who_reads_does_not_see_a_table_move(self, tmp_path: Path) -> None:
        table = Table(tmp_path / "t", Thing, "number", "a")
        table.append(rows("a", 1))
        seen = table.open()
        assert seen is not None
        version = seen.version()
        table.append(rows("a", 2))
        assert seen.version() == version
        assert table.version() > version


@pytest.mark.parametrize("known", TABLES, ids=lambda known: known.name)
def test_each_control_table_is_put_together(known: Table[Any], tmp_path: Path) -> None:
    table: Table[Any] = replace(known, path=tmp_path / "w" / "table", small_files=3)
    for number in range(6):
        table.append_table(pa.Table.from_pylist([_made_up(table, number)], schema=table.schema))
    assert table.read().num_rows == 6
    assert len(table.files()) == 3
    log = "\n".join(entry.read_text() for entry in _log_entries(table))
    added = [line["add"] for line in map(json.loads, log.splitlines()) if "add" in line]
    assert len(added) == 7
    assert all(table.grows_along in json.loads(file["stats"])["minValues"] for file in added)


def _made_up(table: Table[Any], number: int) -> dict[str, object]:
    """Some row of a table, the `number`th along the column that it grows along."""
    row: dict[str, object] = {"application_id": "a"}
    for column in table.schema:
        if pa.types.is_list(column.type):
            row[column.name] = []
        elif pa.types.is_string(column.type):
            row.setdefault(column.name, f"{number:03d}")
        elif pa.types.is_boolean(column.type):
            row[column.name] = False
        elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            row[column.name] = number
    return row


def _listed(found: pa.Table) -> list[int]:
    return found["number"].to_pylist()


def _numbers(table: Table[Thing], application_id: str) -> list[int]:
    return sorted(replace(table, application_id=application_id).read()["number"].to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> Table[Thing]:
    """A table that nobody has written."""
    return Table(tmp_path / "warehouse" / "things", Thing, "number", "a")


def test_a_table_that_nobody_has_written(table: Table[Thing]) -> None:
    assert table.open() is None
    assert table.read().schema == SCHEMA
    assert table.read(columns=["number"]).column_names == ["number"]
    assert not table.path.exists()


def test_rows_of_each_application(table: Table[Thing]) -> None:
    table.append(rows("a", 1, 2))
    table.append(rows("b'c=d/e", 3))
    assert _numbers(table, "a") == [1, 2]
    assert _numbers(table, "b'c=d/e") == [3]
    assert table.read(columns=["name"]).column_names == ["name"]


def test_filters(table: Table[Thing]) -> None:
    table.append([*rows("a", 1, name="x"), *rows("a", 2, name="y"), *rows("b", 3, name="x")])
    for wanted, expected in ((["x"], [1]), (["x", "y"], [1, 2]), (["z"], []), ([], [])):
        found = table.read(where=one_of("name", wanted))
        assert sorted(found["number"].to_pylist()) == expected


def test_replace_is_one_commit_and_touches_what_matches(table: Table[Thing]) -> None:
    table.append([*rows("a", 1), *rows("a", 2, name="y"), *rows("b", 3)])
    before = DeltaTable(on_disk(table.path)).version()
    table.replace(rows("a", 4, 5), where=pc.field("name") == "row")
    assert DeltaTable(on_disk(table.path)).version() == before + 1
    assert _numbers(table, "a") == [2, 4, 5]
    assert _numbers(table, "b") == [3]
    table.replace([], where=pc.field("name") == "row")
    assert _numbers(table, "a") == [2]


def test_a_newer_layout_is_neither_read_nor_written(table: Table[Thing]) -> None:
    table.append(rows("a", 1))
    delta = DeltaTable(on_disk(table.path))
    assert delta.metadata().configuration[LAYOUT_PROPERTY] == "3"
    delta.alter.set_table_properties({LAYOUT_PROPERTY: "4"}, raise_if_not_exists=False)
    version = delta.version()
    for use in (
        lambda: table.read(),
        lambda: table.append(rows("a", 2)),
        lambda: table.replace([], where=pc.scalar(True)),
    ):
        with pytest.raises(NewerLayoutError, match="things has layout version 4"):
            use()
    assert DeltaTable(on_disk(table.path)).version() == version


@pytest.mark.e2e
def test_processes_of_two_applications_lose_nothing(table: Table[Thing]) -> None:
    applications = ("a", "b")
    processes = [
        subprocess.Popen([sys.executable, "-c", _PROCESS, str(table.path), application])
        for application in applications
    ]
    assert [process.wait(60) for process in processes] == [0, 0]
    for application in applications:
        assert _numbers(table, application) == [*range(10), 109]


def test_a_reader_needs_no_lock(table: Table[Thing]) -> None:
    table.append(rows("a", 1))
    lock = table.path.parent / ".locks" / "tables" / "things.lock"
    with warehouse_lock(lock, purpose="test", wait_s=0):
        assert _numbers(table, "a") == [1]


@pytest.fixture
def growing(table: Table[Thing]) -> Table[Thing]:
    """A table whose rows come in the order of their numbers."""
    return Table(table.path, Thing, "number", "a", statistics=("number",))


class TestFilesByRange:
    """A table that grows along a column."""

    def test_files_with_their_ranges(self, growing: Table[Thing]) -> None:
        assert growing.files() == []
        growing.append(rows("a", 7, 5))
        growing.append([*rows("a", 3), *rows("b", 9)])
        growing.append_table(columns(rows("a", 8)))
        found = [(file.rows, file.low, file.high) for file in growing.files()]
        assert found == [(1, 3, 3), (2, 5, 7), (1, 8, 8)]
        assert [file.low for file in replace(growing, application_id="b").files()] == [9]

    def test_a_range_is_rewritten_in_one_commit(self, growing: Table[Thing]) -> None:
        for number in range(6):
            growing.append([*rows("a", number), *rows("b'c", number)])
        version = DeltaTable(on_disk(growing.path)).version()

        def change(found: pa.Table) -> pa.Table:
            assert sorted(found["number"].to_pylist()) == [1, 2, 3]
            return found.filter(pc.field("number") != 2).sort_by("number")

        growing.rewrite(1, 3, change)
        assert DeltaTable(on_disk(growing.path)).version() == version + 1
        assert _numbers(growing, "a") == [0, 1, 3, 4, 5]
        assert [(f.rows, f.low, f.high) for f in growing.files()][1] == (2, 1, 3)
        replace(growing, application_id="b'c").rewrite(0, 9, lambda found: found.slice(0, 0))
        assert _numbers(growing, "b'c") == []
        assert len(_numbers(growing, "a")) == 5

    def test_what_others_add_meanwhile_is_not_lost(self, growing: Table[Thing]) -> None:
        """A writer on another machine, whom the lock does not reach."""
        growing.append(rows("a", 1, 2, 5))
        seen: list[int] = []

        def change(found: pa.Table) -> pa.Table:
            seen.append(found.num_rows)
            if len(seen) == 1:
                unlocked(growing.append, [*rows("a", 3), *rows("b", 3)])
            return found.filter(pc.field("number") != 1)

        growing.rewrite(1, 5, change)
        assert _numbers(growing, "a") == [2, 3, 5]
        assert _numbers(growing, "b") == [3]
        assert seen == [3, 4]


class TestNewest:
    """The rows at the end, without reading the rest."""

    def test_as_many_as_asked_for(self, growing: Table[Thing]) -> None:
        assert growing.read_newest(1).num_rows == 0
        growing.append([*rows("a", 1, 4, 9), *rows("b", 99)])
        growing.append(rows("a", 5, 3, 8))
        for count, lowest in ((1, 9), (2, 8), (3, 5), (4, 4), (6, 1), (60, 1)):
            found = sorted(growing.read_newest(count)["number"].to_pylist())
            assert found == [n for n in (1, 3, 4, 5, 8, 9) if n >= lowest]
        assert growing.read_newest(0).num_rows == 0
        assert replace(growing, application_id="c").read_newest(1).num_rows == 0

    def test_other_files_are_not_opened(self, growing: Table[Thing]) -> None:
        for number in range(4):
            growing.append(rows("a", number))
        kept = growing.files()[-1].path
        for file in growing.path.rglob("*.parquet"):
            if "_delta_log" not in file.parts and file.name != Path(kept).name:
                file.unlink()
        assert growing.read_newest(1)["number"].to_pylist() == [3]


class TestPutTogether:
    """Small files become one while the table grows; nobody loses a row by it."""

    @pytest.fixture
    def small(self, growing: Table[Thing]) -> Table[Thing]:
        """Put together when four files can be spared."""
        return replace(growing, small_files=4)

    def test_however_many_commits_few_files_are_read(self, small: Table[Thing]) -> None:
        other = replace(small, application_id="b")
        for number in range(40):
            where = pc.field("number") == number
            small.replace(rows("a", number), where=where)
            other.append(rows("b", number))
            assert max(len(small.files()), len(other.files())) <= 6
        assert _numbers(small, "a") == _numbers(small, "b") == [*range(40)]

    def test_rows_are_in_order_and_files_hold_ranges(self, small: Table[Thing]) -> None:
        for number in (3, 1, 2, 0, 7, 9, 8, 6, 5, 4, *range(10, 40)):
            small.append(rows("a", number))
        by_file = small.reduce(["number"], _listed)
        assert all(of_file == sorted(of_file) for of_file in by_file)
        found = [(file.low, file.high) for file in small.files()]
        assert len(found) < 6
        assert all(int(one[1]) < int(other[0]) for one, other in itertools.pairwise(found))
        assert small.read_newest(1)["number"].to_pylist() == [39]

    def test_what_is_kept(self, small: Table[Thing]) -> None:
        table = replace(small, kept=10)
        for number in range(0, 100, 2):
            table.append(rows("a", number))
        found = _numbers(table, "a")
        assert found[-6:] == [*range(88, 100, 2)]
        assert len(found) < 12

    def test_a_writer_that_planned_before_is_not_undone(self, small: Table[Thing]) -> None:
        """A writer on another machine, whom the lock does not reach, puts files together."""
        for number in range(4):
            small.append(rows("a", number))
        stale = [DeltaTable(on_disk(small.path))]
        small.append(rows("a", 4))
        assert len(small.files()) == 1

        class Stale(Table[Thing]):
            def open(self) -> DeltaTable | None:
                return stale.pop() if stale else super().open()

        Stale(small.path, Thing, "number", "a", small_files=99).replace(
            rows("a", 30, 31), where=pc.field("number").isin([2, 3, 30, 31])
        )
        assert not stale
        assert _numbers(small, "a") == [0, 1, 4, 30, 31]

    def test_a_replacement_meanwhile_is_not_undone(self, small: Table[Thing]) -> None:
        for number in range(4):
            small.append(rows("a", number))
        commits: list[int] = []

        class Interrupted(Table[Thing]):
            def _commit(self, table: DeltaTable, *args: Any, **options: Any) -> None:
                commits.append(len(args))
                if len(commits) == 2:  # the first is the row, the second puts files together
                    other = Table(self.path, Thing, "number", "a", small_files=99)
                    where = pc.field("number") == 1
                    unlocked(other.replace, rows("a", 1, 1), where=where)
                super()._commit(table, *args, **options)

        Interrupted(small.path, Thing, "number", "a", small_files=4).append(rows("a", 4))
        assert len(commits) == 3
        assert _numbers(small, "a") == [0, 1, 1, 2, 3, 4]
        assert len(small.files()) == 1

    def test_a_reader_of_the_version_before_goes_on(self, small: Table[Thing]) -> None:
        for number in range(4):
            small.append(rows("a", number))
        before = DeltaTable(on_disk(small.path)).to_pyarrow_dataset()
        small.append(rows("a", 4))
        small.append(rows("a", 5))
        assert before.to_table().num_rows == 4

    def test_what_was_written_does_not_fail_for_it(
        self,
        small: Table[Thing],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Table, "_tidy", full)
        for number in range(6):
            small.append(rows("a", number))
        assert _numbers(small, "a") == [*range(6)]
        assert "Small files of things were not merged: [Errno 28]" in caplog.text

    def test_files_of_an_earlier_release_without_statistics(self, table: Table[Thing]) -> None:
        table.path.mkdir(parents=True)
        configuration = {"delta.dataSkippingStatsColumns": "name"}
        DeltaTable.create(
            on_disk(table.path),
            SCHEMA,
            partition_by=["application_id"],
            configuration=configuration,
        )
        odd = replace(table, application_id="a b'c", small_files=4)
        for number in range(5):
            found = columns(rows("a b'c", number))
            write_deltalake(on_disk(table.path), found, mode="append")
        assert [(f.low, f.high) for f in odd.files()] == [(n, n) for n in range(5)]
        odd.append(rows("a b'c", 5))
        assert [(f.low, f.high) for f in odd.files()] == [(0, 5)]
        assert _numbers(table, "a b'c") == [*range(6)]

    @pytest.mark.e2e
    def test_killed_at_each_step_it_stays_whole(self, small: Table[Thing]) -> None:
        """SIGKILL before and after each commit, between the files and the log, in the clean-up."""
        number = 0
        for step in range(8):
            for _ in range(5):
                small.append(rows("a", number))
                number += 1
            command = [sys.executable, "-c", _KILLED, str(small.path), str(number), str(step)]
            killed = subprocess.run(command, timeout=60, check=False)
            assert killed.returncode == -signal.SIGKILL, step
            found = _numbers(small, "a")
            assert found in ([*range(number)], [*range(number + 1)]), step
            number = len(found)
            small.append(rows("b", number))  # nothing is left that holds others up
        small.append(rows("a", number))
        assert _numbers(small, "a") == [*range(number + 1)]


class TestFold:
    """What is made of each file is remembered while the file is part of the table."""

    def test_a_file_is_read_once(self, growing: Table[Thing]) -> None:
        made: list[list[int]] = []

        def numbers(rows: pa.Table) -> int:
            made.append(sorted(rows["number"].to_pylist()))
            return sum(made[-1])

        def total() -> int:
            return sum(growing.reduce(["number"], numbers, where=pc.field("number") > 0))

        assert total() == 0
        growing.append([*rows("a", 0, 1, 2), *rows("b", 9)])
        growing.append(rows("a", 3))
        assert (total(), total()) == (6, 6)
        assert sorted(made) == [[1, 2], [3]]
        growing.append(rows("a", 4))
        assert (total(), made[2:]) == (10, [[4]])
        growing.replace(rows("a", 30), where=pc.field("number").isin([3, 30]))
        assert (total(), made[3:]) == (37, [[30]])
        growing.rewrite(0, 30, lambda found: found)
        assert (total(), made[4:]) == (37, [[1, 2, 4, 30]])


class TestTidy:
    """Files and log entries that are no longer part of the table."""

    def test_after_an_hour(self, growing: Table[Thing]) -> None:
        for number in range(5):
            growing.append(rows("a", number))
        growing.rewrite(0, 4, lambda found: found)
        folder = growing.path / "application_id=a"
        killed = folder / "part-00000-killed.parquet"
        killed.write_bytes(b"half of a file")
        _age(on_disk(growing.path), 3000)
        growing.tidy()
        assert (len(list(folder.iterdir())), len(_log_entries(growing))) == (7, 7)
        _age(on_disk(growing.path), 3700)
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

    @pytest.mark.parametrize(
        ("ahead_h", "age_h", "stays"),
        [(3, 0.0, True), (3, 2.0, False), (-3, 0.5, True), (-3, 4.5, False)],
    )
    def test_the_clock_that_dates_the_files_counts(
        self,
        growing: Table[Thing],
        monkeypatch: pytest.MonkeyPatch,
        ahead_h: int,
        age_h: float,
        stays: bool,
    ) -> None:
        """A machine whose clock is ahead of the store's deletes nothing that is being written."""

        def of_the_store(_: object) -> float:
            return time.time() - 3600 * ahead_h

        monkeypatch.setattr(FolderStore, "now", of_the_store)
        for number in range(3):
            growing.append(rows("a", number))
        growing.rewrite(0, 2, lambda found: found)
        folder = growing.path / "application_id=a"
        writing = folder / "part-00000-writing.parquet"
        writing.write_bytes(b"half of a file")
        _age(on_disk(growing.path), round(3600 * (ahead_h + age_h)))
        growing.tidy()
        assert writing.exists() == stays
        assert len(list(folder.iterdir())) == 4 + stays  # tombstones have the store's time, too
        assert (len(_log_entries(growing)) >= 4) == stays
        assert _numbers(growing, "a") == [0, 1, 2]

    def test_the_log_of_a_table_that_nobody_rewrites(self, growing: Table[Thing]) -> None:
        for number in range(5):
            growing.append(rows("a", number))
        _age(on_disk(growing.path), 3700)
        growing.tidy()
        assert len(_log_entries(growing)) <= 1
        assert _numbers(growing, "a") == [0, 1, 2, 3, 4]

    def test_a_table_of_an_earlier_release(self, table: Table[Thing]) -> None:
        table.tidy()
        assert table.open() is None
        table.path.mkdir(parents=True)
        DeltaTable.create(on_disk(table.path), schema=SCHEMA, partition_by=["application_id"])
        table.append(rows("a", 1))
        table.tidy()
        configuration = DeltaTable(on_disk(table.path)).metadata().configuration
        assert configuration["delta.logRetentionDuration"] == "interval 1 hours"
        version = DeltaTable(on_disk(table.path)).version()
        table.tidy()
        assert DeltaTable(on_disk(table.path)).version() == version


def test_columns_that_a_table_of_an_earlier_release_lacks(table: Table[Thing]) -> None:
    Table(table.path, Earlier, "name", "a").append(
        [Earlier("a", name, (EarlierPart(1),)) for name in ("old", "again")]
    )
    grown = Table(table.path, Later, "name", "a")
    new, again = (Later("a", name, (LaterPart(2, 7),), ("y",), 5) for name in ("new", "again"))
    grown.append([new])
    grown.replace([again], where=pc.field("name") == "again")
    found = sorted(grown.rows(), key=lambda row: row.name)
    assert found == [again, new, Later("a", "old", (LaterPart(1, None),), (), 3)]


@dataclass(frozen=True)
class EarlierPart:
    """A value in a list."""

    part: Int32


@dataclass(frozen=True)
class Earlier:
    """A row as an earlier release knew it."""

    application_id: ApplicationId
    name: Annotated[str, Column("Any.")]
    parts: Annotated[tuple[EarlierPart, ...], Column("Any.")]


@dataclass(frozen=True)
class LaterPart(EarlierPart):
    """The same with one field more."""

    epoch: Int32 | None


@dataclass(frozen=True)
class Later:
    """The same with more columns."""

    application_id: ApplicationId
    name: Annotated[str, Column("Any.")]
    parts: Annotated[tuple[LaterPart, ...], Column("Any.")]
    names: Annotated[tuple[str, ...], Column("Any.")]
    number: Annotated[int, Column("Any.", nullable=True)] = 3


def _age(path: Path, seconds: float) -> None:
    """Make every file this much older than now."""
    for file in path.rglob("*"):
        if file.is_file():
            at_s = time.time() - seconds
            os.utime(file, (at_s, at_s))


def _log_entries(table: Table[Thing]) -> list[Path]:
    return sorted(on_disk(table.path).glob("_delta_log/*.json"))


@pytest.mark.e2e
def test_a_reading_process_ends_in_peace(table: Table[Thing]) -> None:
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
