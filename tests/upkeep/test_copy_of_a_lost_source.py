"""What a copy does when its source is not what it was: nothing is concluded from an absence."""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.copy_mark import MARK, read_mark
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError, WarehouseError
from kstreams_assets.layout import MARKER, Warehouse
from kstreams_assets.model.tables import CONTROL_TABLES, Lock
from kstreams_assets.repository.chain import table_problems
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.table import open_delta
from kstreams_assets.store import StorePath, file_digest
from kstreams_assets.store.folders import FolderStore
from kstreams_assets.upkeep import copy as copying
from kstreams_assets.upkeep import copy_plan
from kstreams_assets.upkeep.copy import CopyJob, Phase, Progress
from kstreams_assets.upkeep.copy_plan import tables_in
from kstreams_assets.upkeep.second_copy import PROMOTED, UNPUBLISHED, promote, prune
from tests.upkeep.stock import Stock, seen, stocked

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    """A warehouse with three windows."""
    return stocked(tmp_path / "first")


@pytest.fixture
def to(tmp_path: Path) -> Path:
    """An empty place for a copy."""
    return tmp_path / "second"


def _root(stock: Stock) -> Path:
    assert isinstance(stock.warehouse.root, Path)
    return stock.warehouse.root


def _seen(place: StorePath, stock: Stock) -> str:
    return seen(Warehouse(place), stock.application)


def _make_older(to: Path, hours: int) -> None:
    mark = json.loads((to / MARK).read_text())
    for state in (mark["newest"], *mark["earlier"]):
        state["finished_at_ms"] -= hours * HOUR_MS
    (to / MARK).write_text(json.dumps(mark))
    at = time.time() - (hours + 2) * 3600
    for path in to.rglob("*"):
        if path.is_file():
            os.utime(path, (at, at))


def _files(place: Path) -> list[str]:
    return sorted(str(path) for path in place.rglob("*.parquet"))


def _table(name: str) -> Callable[[Path], None]:
    def lose(root: Path) -> None:
        shutil.rmtree(root / name)

    lose.__name__ = name
    return lose


def _everything_but_the_marker(root: Path) -> None:
    for path in root.iterdir():
        if path.name != MARKER:
            shutil.rmtree(path)


def _the_log_of_the_ledger(root: Path) -> None:
    shutil.rmtree(root / "windows" / "_delta_log")


def _the_entries_of_a_log(root: Path) -> None:
    for entry in (root / "recovery_points" / "_delta_log").glob("*"):
        entry.unlink()


def _the_marker_and_a_table(root: Path) -> None:
    (root / MARKER).unlink()
    shutil.rmtree(root / "recovery_points")


def _all_and_a_new_warehouse_is_there(root: Path) -> None:
    shutil.rmtree(root)
    time.sleep(1.1)  # it says to the second when it was made
    Stock(root).grow(range(6))


def _a_table_that_began_again(root: Path) -> None:
    """It has more commits than it had, and none that both still have."""
    shutil.rmtree(root / "recovery_points")
    stock = Stock(root)
    for index in range(3, 20):
        stock.take_point(index)
    log = root / "recovery_points" / "_delta_log"
    DeltaTable(str(root / "recovery_points")).create_checkpoint()
    for entry in sorted(log.glob("*.json"))[:-2]:
        entry.unlink()


@pytest.mark.parametrize(
    "lose",
    [
        *map(_table, ("recovery_points", "recovery_point_records", "windows", "records/shop")),
        _table("records"),
        _everything_but_the_marker,
        _the_log_of_the_ledger,
        _the_entries_of_a_log,
        _the_marker_and_a_table,
        _all_and_a_new_warehouse_is_there,
        _a_table_that_began_again,
    ],
    ids=lambda lose: lose.__name__.strip("_"),
)
def test_the_copy_stays_as_it_is(stock: Stock, to: Path, lose: Callable[[Path], None]) -> None:
    CopyJob(stock.warehouse, to).run()
    _make_older(to, hours=72)
    before, files, mark = _seen(to, stock), _files(to), (to / MARK).read_text()
    lose(_root(stock))
    for _ in range(2):
        with pytest.raises(KStreamsAssetsError):
            CopyJob(stock.warehouse, to).run()
    assert (to / MARK).read_text() == mark
    assert _seen(to, stock) == before
    prune(to, now_ms=time.time_ns() // 1_000_000 + 2 * DAY_MS)
    assert _files(to) == files
    assert _seen(to, stock) == before


def test_the_alarm_says_what_vanished_and_what_to_do(stock: Stock, to: Path) -> None:
    CopyJob(stock.warehouse, to).run()
    kept = to.parent / "kept"
    (_root(stock) / "recovery_points").rename(kept)
    with pytest.raises(WarehouseError, match="no longer has recovery_points") as found:
        CopyJob(stock.warehouse, to).run()
    assert "Restore each of these folders from the copy" in found.value.remedy
    kept.rename(_root(stock) / "recovery_points")
    assert CopyJob(stock.warehouse, to).run().lacking == ()


def test_of_an_application_too(stock: Stock, to: Path) -> None:
    Stock(_root(stock), application_id="bar").grow([0])
    CopyJob(stock.warehouse, to).run()
    shutil.rmtree(_root(stock) / "records" / "bar")
    with pytest.raises(WarehouseError, match="no longer has records/bar"):
        CopyJob(stock.warehouse, to).run()


def test_a_first_copy_that_was_killed_counts(
    stock: Stock, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _killed(stock, to, "_put_marker", monkeypatch)
    mark = read_mark(to)
    assert mark is not None
    assert mark.newest is None
    shutil.rmtree(_root(stock) / "recovery_points")
    with pytest.raises(WarehouseError, match="no longer has recovery_points"):
        CopyJob(stock.warehouse, to).run()


class TestFollowedByAnEarlierRelease:
    """A copy whose newest state lacks a table that readers saw before."""

    @pytest.fixture
    def followed(self, stock: Stock, to: Path) -> str:
        CopyJob(stock.warehouse, to).run()
        _make_older(to, hours=72)
        before = _seen(to, stock)
        mark = json.loads((to / MARK).read_text())
        mark["earlier"] = [mark["newest"]]
        versions = {k: v for k, v in mark["newest"]["versions"].items() if k != "recovery_points"}
        at_ms = time.time_ns() // 1_000_000 - 30 * HOUR_MS
        mark["newest"] = {"finished_at_ms": at_ms, "versions": versions}
        (to / MARK).write_text(json.dumps(mark))
        return before

    def test_nothing_of_the_table_is_pruned(self, stock: Stock, to: Path, followed: str) -> None:
        files = _files(to)
        prune(to, now_ms=time.time_ns() // 1_000_000 + 9 * DAY_MS)
        assert _files(to) == files

    @pytest.mark.parametrize("is_long_ago", [False, True])
    def test_promote_has_it_as_it_was_seen(
        self, stock: Stock, to: Path, followed: str, is_long_ago: bool
    ) -> None:
        if is_long_ago:
            mark = json.loads((to / MARK).read_text())
            (to / MARK).write_text(json.dumps(mark | {"earlier": []}))
        assert list(promote(to).regained) == ["recovery_points"]
        assert _seen(to, stock) == followed
        Stock(to).grow([3])


def test_files_that_the_ledger_names_are_never_pruned(
    stock: Stock, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another program has deleted rows of the records: its log says so, the ledger not."""
    monkeypatch.setattr(copy_plan, "_BETWEEN_COMMITS_S", 0.5)
    CopyJob(stock.warehouse, to).run()
    files = [file for file in _files(to) if "records" in file]
    DeltaTable(str(stock.path)).delete("window = 'w0001'")
    lacking = CopyJob(stock.warehouse, to).run().lacking
    assert {file.window for file in lacking} == {"w0001"}
    assert "but not in the table" in lacking[0].problem
    _make_older(to, hours=72)
    CopyJob(stock.warehouse, to).run()
    prune(to)
    assert [file for file in files if not Path(file).exists()] == []


class TestABusySource:
    def test_slow_opening_with_commits_at_each_look(
        self, stock: Stock, to: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody is waited for, and the tables belong together."""
        looks = [0]

        def slow(path: StorePath, name: str, **more: object) -> object:
            looks[0] += 1
            if name == "records/shop":
                stock.back_up(2, value=b"%d" % looks[0] * 20)
            return open_delta(path, name, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(copy_plan, "_BETWEEN_COMMITS_S", 0.0)
        monkeypatch.setattr(copy_plan, "open_delta", slow)
        assert CopyJob(stock.warehouse, to).run().lacking == ()
        assert looks[0] > 0
        _require_restorable(to, stock)

    def test_logs_that_are_never_at_rest(
        self, stock: Stock, to: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever is listed, a backup, a point and a pin are committed before the next look."""
        count = [0]
        real = copy_plan.log_state

        def busy(path: StorePath) -> object:
            state = real(path)
            if path.name in ("windows", "recovery_points"):
                count[0] += 1
                stock.back_up(count[0] % 3, value=b"%d" % count[0] * 20)
                stock.take_point(2 + count[0])
            return state

        monkeypatch.setattr(copy_plan, "_LOOKS", 3)
        monkeypatch.setattr(copy_plan, "log_state", busy)
        monkeypatch.setattr(copy_plan, "_PATIENCE_S", 2.0)
        monkeypatch.setattr(copy_plan, "_BETWEEN_COMMITS_S", 60.0)
        try:
            CopyJob(stock.warehouse, to).run()
        except WarehouseError as error:
            assert "were inconsistent" in str(error)  # noqa: PT017
            mark = read_mark(to)
            assert mark is not None
            assert mark.newest is None
        else:
            monkeypatch.undo()
            _require_restorable(to, stock)

    def test_between_two_commits_nothing_is_published(
        self, stock: Stock, to: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A backup at work: each look finds other files that the ledger does not have yet."""
        CopyJob(stock.warehouse, to).run()
        before = _seen(to, stock)
        record = Ledger.record
        monkeypatch.setattr(Ledger, "record", lambda *_, **__: None)
        real = copy_plan.CopyPlanner._disagreements

        def back_up_first(run: object, *args: object, **more: object) -> object:
            found = real(run, *args, **more)  # type: ignore[arg-type]
            stock.back_up(1, value=b"%d" % time.time_ns())
            return found

        stock.back_up(1, value=b"another one")
        monkeypatch.setattr(copy_plan.CopyPlanner, "_disagreements", back_up_first)
        monkeypatch.setattr(copy_plan, "_PATIENCE_S", 1.0)
        with pytest.raises(WarehouseError, match="were inconsistent"):
            CopyJob(stock.warehouse, to).run()
        assert _seen(to, stock) == before
        monkeypatch.setattr(copy_plan.CopyPlanner, "_disagreements", real)
        monkeypatch.setattr(Ledger, "record", record)
        stock.back_up(1, value=b"the last one")
        assert CopyJob(stock.warehouse, to).run().lacking == ()
        assert _seen(to, stock) == seen(stock.warehouse, stock.application)


def _require_restorable(place: Path, stock: Stock) -> None:
    points = Repository(Warehouse(place), "shop").points.newest(1000)
    told = (
        Repository.of(Warehouse(place), stock.application_id)
        .reading(stock.application)
        .statuses(points)
    )
    given = {one.restorability.value for one in told if int(one.id[6:]) < 3}
    assert given == {"at_least_once"}, told
    assert list(Ledger(Warehouse(place), "shop").damaged()) == []


class _KilledError(BaseException):
    pass


def _killed(stock: Stock, to: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise _KilledError

    with monkeypatch.context() as patch:
        patch.setattr(copying._Run, step, killed)
        with pytest.raises(_KilledError):
            CopyJob(stock.warehouse, to).run()


def _require_usable(place: Path, stock: Stock, expected: str) -> None:
    """Every table opens, readers see what they saw, and the next backup works."""
    assert not (place / MARK).exists()
    warehouse = Warehouse(place)
    assert _seen(place, stock) == expected
    repo = Repository(warehouse, "shop")
    with repo.writing(Lock.APPLICATION, purpose="backup", wait_s=1):
        pass
    assert Repository(warehouse, "shop").pins.all() == []
    for name in tables_in(place):
        open_delta(place / name, name)
    for name in CONTROL_TABLES:
        assert table_problems(place / name, name, read=True) == []
    Stock(place).grow([7])


class TestPromote:
    @pytest.mark.parametrize("step", ["_publish", "_put_marker"])
    def test_a_copy_that_was_killed_with_a_table_that_it_did_not_have(
        self, stock: Stock, to: Path, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        CopyJob(stock.warehouse, to).run()
        before = _seen(to, stock)
        Repository(stock.warehouse, "shop").pins.pin("point-0001", "audit")
        other = Stock(_root(stock), application_id="bar")
        other.grow([0])
        _killed(stock, to, step, monkeypatch)
        promote(to)
        assert list((to / UNPUBLISHED).glob("*/pins/**/*.parquet"))
        _require_usable(to, stock, before)

    def test_killed_at_any_step(
        self, stock: Stock, to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        CopyJob(stock.warehouse, to).run()
        before = _seen(to, stock)
        Repository(stock.warehouse, "shop").pins.pin("point-0001", "audit")
        stock.grow([3])
        _killed(stock, to, "_put_marker", monkeypatch)
        step = 0
        while True:
            place = tmp_path / f"step-{step}"
            shutil.copytree(to, place)
            if not self._promoted_but_killed(place, step, monkeypatch):
                break
            if (place / MARK).exists():
                assert _seen(place, stock) == before  # readers see the copy all the time
            first = promote(place)
            assert promote(place) == first
            _require_usable(place, stock, before)
            step += 1
        assert step >= 6
        assert read_mark(place) is None

    def _promoted_but_killed(self, place: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> bool:
        """Whether it was killed just before this step."""
        left = [step]

        def counted(real: Callable[..., object]) -> Callable[..., object]:
            def act(*args: object, **more: object) -> object:
                if ".locks" in str(args[0]):
                    return real(*args, **more)
                if left[0] == 0:
                    raise _KilledError
                left[0] -= 1
                return real(*args, **more)

            return act

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", counted(Path.unlink))
            patch.setattr(Path, "rename", counted(Path.rename))
            patch.setattr(FolderStore, "put_text", counted(FolderStore.put_text))
            try:
                promote(place)
            except _KilledError:
                return True
        return False

    def test_a_second_time_changes_nothing(self, stock: Stock, to: Path) -> None:
        CopyJob(stock.warehouse, to).run()
        first = promote(to)
        Stock(to).grow([3])
        assert promote(to) == first
        assert len(Repository(Warehouse(to), "shop").points.instants()) == 4
        (to / PROMOTED).write_text("{")
        with pytest.raises(WarehouseError, match="it is damaged"):
            promote(to)

    def test_a_part_of_a_warehouse(self, stock: Stock, to: Path) -> None:
        Stock(_root(stock), application_id="bar").grow([0])
        CopyJob(stock.warehouse, to, applications=["shop"]).run()
        with pytest.raises(ConfigurationError, match="ledger of bar, but no records"):
            promote(to)
        with pytest.raises(ConfigurationError, match="contains the records of shop"):
            promote(to, applications=["bar"])
        assert read_mark(to) is not None
        assert promote(to, applications=["shop"]).missing == ("bar",)
        Stock(to).grow([3])

    def test_what_is_no_copy(self, stock: Stock, to: Path) -> None:
        with pytest.raises(ConfigurationError, match="is not a copy"):
            promote(_root(stock))


def test_a_run_that_ends_after_the_copy_was_promoted(stock: Stock, to: Path) -> None:
    """In a store nothing else keeps it from putting logs into a warehouse."""
    CopyJob(stock.warehouse, to).run()
    stock.grow([3])

    def promote_first(progress: Progress) -> None:
        if progress.phase is Phase.PUBLISH:
            (to / MARK).unlink()

    before = sorted(str(path) for path in to.rglob("*.json"))
    with pytest.raises(WarehouseError, match="was promoted meanwhile"):
        CopyJob(stock.warehouse, to, on_phase=promote_first).run()
    assert [*map(str, sorted(to.rglob("*.json")))] == [p for p in before if MARK not in p]


def test_an_overwritten_table_is_not_followed(stock: Stock, to: Path) -> None:
    """Its own log says that all rows are gone, and nothing of this release says that."""
    CopyJob(stock.warehouse, to).run()
    before = _seen(to, stock)
    path = _root(stock) / "recovery_points"
    rows = pa.table(DeltaTable(str(path)).to_pyarrow_table().slice(0, 0))
    write_deltalake(str(path), rows, mode="overwrite")
    with pytest.raises(KStreamsAssetsError):
        CopyJob(stock.warehouse, to).run()
    assert _seen(to, stock) == before


def test_a_snapshot_between_its_two_commits(
    stock: Stock, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row names files that its table no longer has, until the next commit."""
    from kstreams_assets.model.files import WrittenFile
    from tests.ktables.samples import snapshot

    rows = pa.table({"window": ["w"], "key": ["k"]})
    table = stock.warehouse.ktable("shop", "totals")
    write_deltalake(str(table), rows, partition_by=["window"])
    (file,) = DeltaTable(str(table)).file_uris()
    name = str(Path(file).relative_to(str(table)))
    made = replace(snapshot(), application_id="shop")
    size = Path(file).stat().st_size
    there = replace(made, written=(WrittenFile(name, size, 1, file_digest(Path(file))),))
    gone = replace(made, written=(WrittenFile("window=w/gone.parquet", 9, 1, "0" * 64),))
    Repository(stock.warehouse, "shop").snapshots.record([there])
    CopyJob(stock.warehouse, to).run()
    before = read_mark(to)
    Repository(stock.warehouse, "shop").snapshots.record([gone])
    monkeypatch.setattr(copy_plan, "_PATIENCE_S", 1.0)
    with pytest.raises(WarehouseError, match="ktables/shop/totals, window"):
        CopyJob(stock.warehouse, to).run()
    assert read_mark(to) == before
    monkeypatch.setattr(copy_plan, "_BETWEEN_COMMITS_S", 0.3)
    (lacking,) = CopyJob(stock.warehouse, to).run().lacking
    assert lacking.file == "window=w/gone.parquet"
