"""Small tables, and several processes that write them."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

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
