"""What a loss of power leaves of a table's log: a last entry that is not whole is not committed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.repository import delta_log
from kstreams_assets.repository.chain import head, shortened, table_problems
from kstreams_assets.repository.delta_log import committing, delta_table, is_torn, make_checkpoint
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.records import ensure_records, file_actions, tidy_records
from kstreams_assets.repository.repository import Repository
from kstreams_assets.store import StorePath
from tests.backup.samples import window
from tests.upkeep.stock import Stock, stocked

TORN: Final[dict[str, Callable[[bytes], bytes]]] = {
    "empty": lambda whole: b"",
    "zeros": lambda whole: bytes(len(whole)),
    "half": lambda whole: whole[: len(whole) // 2],
    "all but a byte": lambda whole: whole[:-1],
    "half, then zeros": lambda whole: whole[: len(whole) // 2].ljust(len(whole), b"\0"),
}
DAMAGES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "text in front": lambda whole: b"x" + whole,
    "a bracket": lambda whole: whole[:-1] + b"]",
    "a quote less": lambda whole: whole.replace(b'":', b" :", 1),
}


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    return stocked(tmp_path / "warehouse")


def _newest_entry(table: StorePath) -> Path:
    assert isinstance(table, Path)
    return max((table / "_delta_log").glob("*.json"))


@pytest.mark.parametrize("tear", TORN.values(), ids=TORN)
def test_a_torn_control_entry_is_not_committed(
    stock: Stock, tear: Callable[[bytes], bytes]
) -> None:
    points = Repository(stock.warehouse, stock.application_id).points
    before = points.instants()
    stock.take_point(3)
    assert len(points.instants()) == len(before) + 1
    entry = _newest_entry(stock.warehouse.root / "recovery_points")
    entry.write_bytes(tear(entry.read_bytes()))
    assert points.instants() == before
    assert table_problems(entry.parents[1], "recovery_points", read=True) == []
    stock.take_point(3)
    assert len(points.instants()) == len(before) + 1
    assert not is_torn(entry.read_bytes())
    assert table_problems(entry.parents[1], "recovery_points", read=True) == []
    assert {file.suffix for file in entry.parent.iterdir()} <= {".json", ".parquet", ""}


@pytest.mark.parametrize("tear", TORN.values(), ids=TORN)
def test_a_torn_entry_of_records_is_not_committed(
    stock: Stock, tear: Callable[[bytes], bytes]
) -> None:
    """Its rows are not in the ledger yet: the window is backed up again."""
    before = file_actions(stock.path)
    rows = Ledger(stock.warehouse, stock.application_id).entries()
    stock.back_up(3)
    entry = _newest_entry(stock.path)
    entry.write_bytes(tear(entry.read_bytes()))
    _newest_entry(stock.warehouse.control("windows")).unlink()
    assert file_actions(stock.path).equals(before)
    ledger = Ledger(stock.warehouse, stock.application_id)
    assert ledger.entries() == rows
    assert not ledger.damaged()
    stock.back_up(3)
    assert ledger.done([rows[0].result.partition.topic]).keys() == set(map(window, range(4)))
    assert not ledger.damaged()
    assert file_actions(stock.path).num_rows == before.num_rows + stock.partitions


@pytest.mark.parametrize(
    ("change", "which"),
    [
        *((one, -2) for one in (*TORN.values(), *DAMAGES.values())),
        *((one, -1) for one in DAMAGES.values()),
    ],
)
def test_any_other_entry_is_damaged(
    stock: Stock, change: Callable[[bytes], bytes], which: int
) -> None:
    table = stock.warehouse.root / "recovery_points"
    entry = sorted((table / "_delta_log").glob("*.json"))[which]
    entry.write_bytes(change(entry.read_bytes()))
    (problem, *_) = table_problems(table, "recovery_points")
    assert entry.name in problem.file
    if which == -1:
        with pytest.raises(KStreamsAssetsError):
            stock.take_point(3)


def test_a_table_whose_first_entry_is_torn_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "warehouse/records/shop"
    ensure_records(path)
    _newest_entry(path).write_bytes(b"")
    assert file_actions(path).num_rows == 0
    assert ensure_records(path).version() == 0
    assert not is_torn(_newest_entry(path).read_bytes())


def test_what_was_there_at_an_earlier_verification_is_missed(stock: Stock) -> None:
    """Who cuts off an entry that was seen whole does not make it a commit that never was."""
    table = stock.warehouse.root / "recovery_points"

    seen = head(table)
    assert seen is not None
    entry = _newest_entry(table)
    entry.write_bytes(entry.read_bytes()[:-9])
    problem = shortened(table, "recovery_points", seen)
    assert problem is not None
    assert "had version" in problem.problem


class TestCheckpoints:
    def test_made_after_so_many_commits(self, stock: Stock) -> None:
        for number in range(4, 4 + delta_log.CHECKPOINT_INTERVAL):
            stock.back_up(number)
        for table in (stock.path, stock.warehouse.control("windows")):
            assert isinstance(table, Path)
            log = table / "_delta_log"
            (made, *_) = sorted(log.glob("*.checkpoint.parquet"))
            assert json.loads((log / "_last_checkpoint").read_text())["version"] in {
                int(file.name[:20]) for file in log.glob("*.checkpoint.parquet")
            }
            assert DeltaTable(table).version() > int(made.name[:20]) - 1
            assert not list(table.glob(".checkpoint-*"))

    def test_a_killed_run_has_put_the_checkpoint_and_not_the_hint(self, stock: Stock) -> None:
        files = file_actions(stock.path)
        make_checkpoint(stock.path)
        log = stock.path / "_delta_log"
        version = delta_table(stock.path).version()
        (log / "_last_checkpoint").write_text(json.dumps({"version": version - 1, "size": 1}))
        (stock.path / ".checkpoint-left" / "_delta_log").mkdir(parents=True)
        tidy_records(stock.path)
        assert not list(stock.path.glob(".checkpoint-*"))
        assert file_actions(stock.path).equals(files)


def test_an_entry_of_a_killed_writer_is_synced_before_the_next_commit(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[list[str]] = []

    def note(paths: list[Path]) -> None:
        synced.append([path.name for path in paths])

    monkeypatch.setattr(delta_log, "make_durable", note)
    delta_log._settled.clear()
    version = delta_table(stock.path).version()
    with committing(stock.path):
        assert synced == [[f"{version:020d}.json"]]
    assert synced == [[f"{version:020d}.json"]]


def test_is_torn() -> None:
    whole = b'{"commitInfo":{"a":"\\u00e4 \xc3\xa4","b":[true,null,-1.5]}}\n{"add":{"x":false}}'
    assert not is_torn(whole)
    assert not is_torn(whole + b"\n")
    for end in range(len(whole)):
        # Cut off between two lines nobody can tell.
        assert is_torn(whole[:end]) or whole[:end].rstrip(b"\n").endswith(b"}}"), end
    for place in range(len(whole) - 3):
        changed = whole[:place] + b"\x01" + whole[place + 1 :]
        assert not is_torn(changed), place
