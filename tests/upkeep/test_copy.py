"""A second copy: what it holds, at which moment it may be read, and who may write it."""

import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import obstore
import pytest
from deltalake import DeltaTable
from obstore.exceptions import PermissionDeniedError

from kstreams_assets.copy_mark import MARK, forget, read_mark
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError, WarehouseError
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.damage import Damage
from kstreams_assets.model.tables import CONTROL_TABLES
from kstreams_assets.repository.chain import table_problems
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.store import ObjectPath, StorePath, file_digest, store_at, subfolders
from kstreams_assets.upkeep import copy as copying
from kstreams_assets.upkeep import second_copy
from kstreams_assets.upkeep.copy import CopyJob, Phase
from kstreams_assets.upkeep.second_copy import promote, prune, state_at_ms
from tests.killed import exit_code_of
from tests.store.place import warehouse_at
from tests.store.seaweed import SeaweedFS, seaweed, store
from tests.upkeep.copy_process import copy_and_die
from tests.upkeep.stock import Stock, seen, stocked

__all__ = ["seaweed", "store"]

ROOT = Path(__file__).parents[2]
DAY_MS = 86_400_000


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    """A warehouse with three windows."""
    return stocked(warehouse_at(tmp_path / "first").root)


@pytest.fixture
def to(tmp_path: Path) -> StorePath:
    """An empty place for a copy."""
    return warehouse_at(tmp_path / "second").root


def _seen(place: StorePath, stock: Stock) -> str:
    return seen(Warehouse(place), stock.application)


def _chain_problems(place: StorePath) -> list[Damage]:
    return [
        problem
        for name in CONTROL_TABLES
        for problem in table_problems(place / name, name, read=True)
    ]


def _data_files(place: Path) -> list[Path]:
    """In order of windows and partitions."""
    return sorted((place / "records" / "shop").glob("*/*.parquet"), key=lambda file: file.name)


@pytest.mark.on_store
class TestWhatIsCopied:
    def test_a_copy_is_what_the_source_was(self, stock: Stock, to: StorePath) -> None:
        result = CopyJob(stock.warehouse, to).run()
        assert result.lacking == ()
        assert result.files > 6
        assert _seen(to, stock) == seen(stock.warehouse, stock.application)
        assert "file" not in [str(found) for found in Ledger(Warehouse(to), "shop").damaged()]

    def test_every_table_opens_without_the_mark(self, stock: Stock, tmp_path: Path) -> None:
        """Other readers of Delta tables know nothing of it."""
        to = tmp_path / "plain"
        CopyJob(stock.warehouse, to).run()
        for name in ("records/shop", "windows", "recovery_points", "recovery_point_records"):
            table = DeltaTable(str(to / name))
            assert table.to_pyarrow_table().num_rows > 0

    def test_a_plan_names_what_a_run_copies(self, stock: Stock, to: StorePath) -> None:
        for job in (CopyJob(stock.warehouse, to), CopyJob(stock.warehouse, to, prunes=True)):
            before = sorted(map(str, store_at(to).files()))
            plan = job.plan()
            assert sorted(map(str, store_at(to).files())) == before
            phases: list[Phase] = []
            done = replace(job, on_phase=lambda at: phases.append(at.phase)).run()  # noqa: B023
            assert (len(plan.missing), plan.there) == (done.files, done.there)
            assert phases == [*Phase][: 4 if job.prunes else 3]
            assert (done.pruned is not None) is job.prunes
            stock.grow([3])

    def test_only_what_is_new_is_copied_again(self, stock: Stock, to: StorePath) -> None:
        first = CopyJob(stock.warehouse, to).run()
        again = CopyJob(stock.warehouse, to).run()
        assert (again.files, again.bytes, again.there) == (0, 0, first.files)
        stock.grow([3])
        third = CopyJob(stock.warehouse, to).run()
        assert 0 < third.files <= 8
        assert third.bytes < first.bytes
        assert _seen(to, stock) == seen(stock.warehouse, stock.application)

    def test_windows_that_were_replaced_or_removed(self, stock: Stock, to: StorePath) -> None:
        CopyJob(stock.warehouse, to).run()
        stock.back_up(1, value=b"another one")
        stock.tidy()
        CopyJob(stock.warehouse, to).run()
        assert _seen(to, stock) == seen(stock.warehouse, stock.application)

    def test_a_source_whose_early_log_is_gone(self, stock: Stock, to: StorePath) -> None:
        """Commits before a checkpoint are dropped; the copy is behind by more than those."""
        CopyJob(stock.warehouse, to).run()
        stock.grow(range(3, 8))
        table = DeltaTable(str(stock.path)) if isinstance(stock.path, Path) else None
        if table is None:
            pytest.skip("the log is cut by hand")
        table.create_checkpoint()
        windows = stock.warehouse.root / "windows"
        DeltaTable(str(windows)).create_checkpoint()
        stock.grow([8])
        assert isinstance(stock.path, Path)
        for log in (stock.path / "_delta_log", windows / "_delta_log"):
            for entry in sorted(log.glob("*.json"))[:7]:  # type: ignore[union-attr]
                entry.unlink()
        CopyJob(stock.warehouse, to).run()
        assert _seen(to, stock) == seen(stock.warehouse, stock.application)
        assert _chain_problems(to) == []
        other = to.parent / "third"
        CopyJob(stock.warehouse, other).run()
        assert _seen(other, stock) == seen(stock.warehouse, stock.application)
        promote(to)
        assert _chain_problems(to) == []
        assert _seen(to, stock) == seen(stock.warehouse, stock.application)

    def test_a_copy_of_a_copy(self, stock: Stock, to: StorePath, tmp_path: Path) -> None:
        CopyJob(stock.warehouse, to).run()
        third = tmp_path / "third"
        CopyJob(Warehouse(to), third).run()
        assert _seen(third, stock) == _seen(to, stock)

    def test_one_application_of_two(self, stock: Stock, to: StorePath) -> None:

        other = Stock(stock.warehouse.root, application_id="bar")
        other.grow([0])
        CopyJob(stock.warehouse, to, applications=["shop"]).run()
        assert [path.name for path in subfolders(to / "records")] == ["shop"]
        missing = Repository(Warehouse(to), "bar").absence()
        assert missing is not None
        assert "contains shop, but not bar" in str(missing)
        assert Repository(Warehouse(to), "shop").absence() is None
        CopyJob(stock.warehouse, to, applications=["bar"]).run()
        assert Repository(Warehouse(to), "bar").absence() is None
        assert _seen(to, other) == seen(other.warehouse, other.application)


class TestMoments:
    def test_what_readers_see_changes_in_one_step(
        self, stock: Stock, to: StorePath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        CopyJob(stock.warehouse, to).run()
        before = _seen(to, stock)
        stock.grow([3])
        stock.back_up(1, value=b"new")
        looks: list[str] = []
        real = copying.copy_file

        def looked(*args: object, **options: object) -> None:
            real(*args, **options)  # type: ignore[arg-type]
            looks.append(_seen(to, stock))

        monkeypatch.setattr(copying, "copy_file", looked)
        monkeypatch.setattr(copying, "_THREADS", 1)
        CopyJob(stock.warehouse, to).run()
        assert len(looks) > 8
        assert set(looks) == {before}
        assert _seen(to, stock) == seen(stock.warehouse, stock.application) != before

    @pytest.mark.parametrize("is_first", [True, False])
    def test_killed_at_any_moment(self, stock: Stock, tmp_path: Path, is_first: bool) -> None:
        source, model = stock.warehouse.root, tmp_path / "model"
        assert isinstance(source, Path)
        earlier = ""
        if not is_first:
            assert CopyJob(stock.warehouse, model).run().lacking == ()
            earlier = _seen(model, stock)
            stock.grow([3])
            stock.back_up(1, value=b"new")
        now = seen(stock.warehouse, stock.application)
        whole = tmp_path / "whole"
        if not is_first:
            shutil.copytree(model, whole)
        steps = copy_and_die(source, whole)
        refused = 0
        for moment in sorted({round(number * (steps - 1) / 11) for number in range(12)}):
            to = tmp_path / f"killed-{moment}"
            if not is_first:
                shutil.copytree(model, to)
            assert exit_code_of(copy_and_die, source, to, moment) == -signal.SIGKILL
            mark = read_mark(to)
            if mark is None:
                assert not Warehouse(to).exists
            elif mark.newest is None:
                assert is_first
                refused += 1
                with pytest.raises(WarehouseError, match=r"it is an unfinished copy of"):
                    seen(Warehouse(to), stock.application)
            else:
                assert seen(Warehouse(to), stock.application) in {earlier, now}
            CopyJob(stock.warehouse, to).run()
            assert seen(Warehouse(to), stock.application) == now
            assert not list(to.glob(".copying/*"))
            for log in to.glob("**/_delta_log"):
                assert DeltaTable(str(log.parent)).version() >= 0
        assert refused >= (8 if is_first else 0)

    def test_while_backups_go_on(self, stock: Stock, to: StorePath) -> None:
        ended = threading.Event()
        failures: list[BaseException] = []

        def write() -> None:
            try:
                for index in range(3, 12):
                    stock.grow([index])
                    stock.back_up(index - 2, value=b"again %d" % index)
                    stock.tidy()
            except BaseException as error:
                failures.append(error)
                raise
            finally:
                ended.set()

        writer = threading.Thread(target=write)
        writer.start()
        copies = 0
        while not ended.is_set():
            assert CopyJob(stock.warehouse, to).run().lacking == ()
            copies += 1
            told = json.loads(_seen(to, stock))
            assert told[2] == []
            assert [row["problem"] for row in told[1] if row["problem"]] == []
        writer.join()
        assert not failures
        assert copies >= 2
        CopyJob(stock.warehouse, to).run()
        assert _seen(to, stock) == seen(stock.warehouse, stock.application)

    def test_files_that_go_while_they_are_copied(
        self, stock: Stock, to: StorePath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As by a vacuum of the source: the window was written again long ago."""
        real = copying.copy_file
        old = _data_files(stock.warehouse.root)  # type: ignore[arg-type]
        done: list[object] = []

        def slow(*args: object, **options: object) -> None:
            if not done:
                done.append(1)
                stock.back_up(1, value=b"new")
                for file in old[2:4]:
                    file.unlink()
            real(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(copying, "copy_file", slow)
        monkeypatch.setattr(copying, "_THREADS", 1)
        assert CopyJob(stock.warehouse, to).run().lacking == ()
        assert _seen(to, stock) == seen(stock.warehouse, stock.application)

    def test_no_lock_of_the_source_is_held(self, stock: Stock, to: StorePath) -> None:
        lock = stock.warehouse.lock_file("shop")
        with warehouse_lock(lock, purpose="a backup", wait_s=0):
            CopyJob(stock.warehouse, to).run()
        assert _seen(to, stock) == seen(stock.warehouse, stock.application)


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


class TestDamage:
    def test_a_damaged_file_is_named_and_not_copied(self, stock: Stock, to: Path) -> None:
        bad = _data_files(stock.warehouse.root)[2]  # type: ignore[arg-type]
        good = bad.read_bytes()
        _flip(bad)
        result = CopyJob(stock.warehouse, to).run()
        name = str(bad.relative_to(to.parent / "first/records/shop"))
        problem = "does not match the SHA-256 that was recorded when it was written"
        (lacking,) = result.lacking
        assert (lacking.table, lacking.file, lacking.problem) == ("records/shop", name, problem)
        whose = (lacking.window, lacking.topic, lacking.partition)
        assert whose == ("w0001", "t", int(bad.stem[-1]))
        assert not (to / "records/shop" / name).exists()
        assert result.finished_at_ms is not None
        assert [str(d).split(",")[0] for d in Ledger(Warehouse(to), "shop").damaged()] == [
            "window w0001"
        ]
        bad.write_bytes(good)
        assert CopyJob(stock.warehouse, to).run().lacking == ()
        assert _seen(to, stock) == seen(stock.warehouse, stock.application)

    def test_a_good_file_is_not_copied_over(self, stock: Stock, to: Path) -> None:
        CopyJob(stock.warehouse, to).run()
        bad = _data_files(stock.warehouse.root)[2]  # type: ignore[arg-type]
        copied = to / bad.relative_to(to.parent / "first")
        good = copied.read_bytes()
        _flip(bad)
        assert CopyJob(stock.warehouse, to).run().lacking == ()
        bad.write_bytes(bad.read_bytes()[:-9])
        assert CopyJob(stock.warehouse, to).run().lacking == ()
        bad.unlink()
        assert CopyJob(stock.warehouse, to).run().lacking == ()
        assert copied.read_bytes() == good

    def test_missing_in_the_source(self, stock: Stock, to: Path) -> None:
        _data_files(stock.warehouse.root)[0].unlink()  # type: ignore[arg-type]
        result = CopyJob(stock.warehouse, to).run()
        assert [lacking.problem for lacking in result.lacking] == ["is missing"]
        assert result.lacking_texts[0].startswith("window w0000, t-")

    def test_a_file_that_was_cut_off_in_the_copy_is_copied_again(
        self, stock: Stock, to: Path
    ) -> None:
        CopyJob(stock.warehouse, to).run()
        copied = _data_files(to)[0]
        good = copied.read_bytes()
        copied.write_bytes(good[:-1])
        assert CopyJob(stock.warehouse, to).run().files == 1
        assert copied.read_bytes() == good

    def test_a_log_that_was_rewritten_is_not_followed(self, stock: Stock, to: Path) -> None:
        CopyJob(stock.warehouse, to).run()
        before = _seen(to, stock)
        newest = max((stock.path / "_delta_log").glob("*.json"))
        newest.write_text(newest.read_text().replace("1", "2", 1))
        with pytest.raises(WarehouseError, match="the table was rewritten"):
            CopyJob(stock.warehouse, to).run()
        assert _seen(to, stock) == before

    def test_a_table_that_was_put_back_is_not_followed(self, stock: Stock, to: Path) -> None:
        root = stock.warehouse.root
        assert isinstance(root, Path)
        kept = root.parent / "kept"
        shutil.copytree(root, kept)
        stock.grow([3])
        CopyJob(stock.warehouse, to).run()
        before = _seen(to, stock)
        shutil.rmtree(root)
        kept.rename(root)
        with pytest.raises(WarehouseError, match="replaced by an older one"):
            CopyJob(stock.warehouse, to).run()
        assert _seen(to, stock) == before


class TestOnlyRead:
    def test_nobody_writes_a_copy(self, stock: Stock, to: Path) -> None:
        CopyJob(stock.warehouse, to).run()
        before = sorted(str(p) for p in to.rglob("*"))
        copied = Stock(to)
        for write in (lambda: copied.take_point(9), lambda: copied.back_up(9), copied.tidy):
            with pytest.raises(WarehouseError, match=r"it is a copy of .*--promote"):
                write()
        assert sorted(str(p) for p in to.rglob("*")) == before

    def test_notes_lie_elsewhere(self, stock: Stock, to: Path, tmp_path: Path) -> None:
        CopyJob(stock.warehouse, to).run()
        before = sorted(str(p) for p in to.rglob("*"))
        reading = Warehouse.at(to, state_in=str(tmp_path / "notes"))
        with warehouse_lock(reading.lock_file("restore"), purpose="restore", wait_s=0):
            assert Repository(reading, "shop").restores.all() == []
        assert seen(reading, stock.application) == seen(stock.warehouse, stock.application)
        assert sorted(str(p) for p in to.rglob("*")) == before

    def test_promoted(self, stock: Stock, to: Path) -> None:
        CopyJob(stock.warehouse, to).run()
        promote(to)
        first = seen(stock.warehouse, stock.application)
        shutil.rmtree(stock.warehouse.root)  # type: ignore[arg-type]
        copied = Stock(to)
        assert seen(copied.warehouse, stock.application) == first
        copied.grow([3])
        assert len(json.loads(seen(copied.warehouse, stock.application))[0]) == 4

    def test_promoted_after_a_killed_run(self, stock: Stock, to: Path) -> None:
        """What it has put beyond what readers saw is forgotten."""
        CopyJob(stock.warehouse, to).run()
        first = _seen(to, stock)
        stock.grow([3])
        source = stock.warehouse.root
        assert isinstance(source, Path)
        other = to.parent / "whole"
        shutil.copytree(to, other)
        steps = copy_and_die(source, other)
        # The mark, and what tells readers where to begin, come last.
        assert exit_code_of(copy_and_die, source, to, steps - 12) == -signal.SIGKILL
        assert (
            DeltaTable(str(to / "records/shop")).version()
            > DeltaTable(str(to / "records/shop")).version() - 1
        )
        promote(to)
        copied = Stock(to)
        assert seen(copied.warehouse, stock.application) == first
        copied.grow([3])

    def test_an_incomplete_copy_is_not_promoted(self, stock: Stock, to: Path) -> None:
        CopyJob(stock.warehouse, to).run()
        _data_files(to)[0].unlink()
        with pytest.raises(WarehouseError, match="incomplete: in records/shop, file"):
            promote(to)
        assert read_mark(to) is not None

    @pytest.mark.parametrize("where", ["warehouse", "inside", "around", "other copy"])
    def test_no_place_for_a_copy(self, stock: Stock, to: Path, tmp_path: Path, where: str) -> None:
        root = stock.warehouse.root
        assert isinstance(root, Path)
        place = {"inside": root / "copy", "around": root.parent}.get(where, to)
        if where == "warehouse":
            Stock(to).grow([0])
        if where == "other copy":
            other = Stock(tmp_path / "other")
            other.grow([0])
            CopyJob(other.warehouse, to).run()
            made = json.loads((to / MARK).read_text())
            (to / MARK).write_text(json.dumps(made | {"made_at": "at another time"}))
        with pytest.raises(ConfigurationError):
            CopyJob(stock.warehouse, place).run()


class TestPrune:
    def test_only_after_a_day(self, stock: Stock, to: Path) -> None:
        CopyJob(stock.warehouse, to).run()
        _make_older(to, hours=30)
        old = {p for p in _data_files(to) if p.name.startswith("0001")}
        stock.back_up(1, value=b"new")
        CopyJob(stock.warehouse, to).run()
        assert len(old) == 2
        assert prune(to).files == 0  # readers saw them until just now
        assert old < set(_data_files(to))
        _make_older(to, hours=30)
        before = _seen(to, stock)
        assert prune(to).files >= len(old)
        assert not old & set(_data_files(to))
        assert _seen(to, stock) == before == seen(stock.warehouse, stock.application)
        stock.grow([3])
        assert CopyJob(stock.warehouse, to).run().lacking == ()
        assert _seen(to, stock) == seen(stock.warehouse, stock.application)
        assert time.time() * 1000 - (state_at_ms(to) or 0) < 60_000


def _make_older(to: Path, hours: int) -> None:
    """As if all was copied so long ago."""
    mark = json.loads((to / MARK).read_text())
    for state in (mark["newest"], *mark["earlier"]):
        state["finished_at_ms"] -= hours * 3_600_000
    (to / MARK).write_text(json.dumps(mark))
    at = time.time() - (hours + 2) * 3600
    for path in to.rglob("*"):
        if path.is_file():
            os.utime(path, (at, at))


@pytest.mark.store
class TestInAStore:
    """A copy in an object store, from folders and back."""

    def test_there_and_back(self, stock: Stock, store: ObjectPath, tmp_path: Path) -> None:
        first = CopyJob(stock.warehouse, store).run()
        assert first.lacking == ()
        assert _seen(store, stock) == seen(stock.warehouse, stock.application)
        assert CopyJob(stock.warehouse, store).run().files == 0
        stock.grow([3])
        stock.back_up(1, value=b"new")
        assert 0 < CopyJob(stock.warehouse, store).run().files < first.files
        forget(store)
        assert _seen(store, stock) == seen(stock.warehouse, stock.application)
        back = tmp_path / "back"
        assert CopyJob(Warehouse(store), back).run().lacking == ()
        assert _seen(back, stock) == seen(stock.warehouse, stock.application)
        other = store / "other"
        with pytest.raises(ConfigurationError, match="one contains the other"):
            CopyJob(Warehouse(store), other).run()
        beside = store.parent / "beside"
        assert CopyJob(Warehouse(store), beside).run().lacking == ()
        assert _seen(beside, stock) == seen(stock.warehouse, stock.application)
        promote(beside)
        promoted = Stock(beside)
        promoted.grow([4])
        assert len(json.loads(seen(promoted.warehouse, stock.application))[0]) == 5

    def test_promoted_after_a_run_that_was_killed(
        self, stock: Stock, store: ObjectPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also with a table that the copy did not have before."""
        CopyJob(stock.warehouse, store).run()
        before = _seen(store, stock)
        Repository(stock.warehouse, "shop").pins.pin("point-0001", "audit")
        stock.grow([3])

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(copying._Run, "_put_marker", killed)
            with pytest.raises(KeyboardInterrupt):
                CopyJob(stock.warehouse, store).run()
        first = promote(store)
        assert promote(store) == first
        assert _seen(store, stock) == before
        assert Repository(Warehouse(store), "shop").pins.all() == []
        Stock(store).grow([4])

    def test_a_source_that_lost_a_table(self, stock: Stock, store: ObjectPath) -> None:
        CopyJob(stock.warehouse, store).run()
        shutil.rmtree(stock.warehouse.root / "recovery_points")  # type: ignore[arg-type]
        with pytest.raises(WarehouseError, match="no longer has recovery_points"):
            CopyJob(stock.warehouse, store).run()

    def test_read_with_credentials_that_only_read(
        self,
        stock: Stock,
        store: ObjectPath,
        seaweed: SeaweedFS,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        CopyJob(stock.warehouse, store).run()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweed.reader[0])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", seaweed.reader[1])
        forget(store)
        reading = Warehouse.at(store, state_in=str(tmp_path / "notes"))
        assert seen(reading, stock.application) == seen(stock.warehouse, stock.application)
        with warehouse_lock(reading.lock_file("restore"), purpose="restore", wait_s=0):
            assert Repository(reading, "shop").restores.all() == []
        with pytest.raises(WarehouseError, match="denies"):
            CopyJob(stock.warehouse, store.parent / "elsewhere").run()

    def test_a_bucket_that_lets_nobody_delete(
        self, stock: Stock, store: ObjectPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As object lock, or a policy without s3:DeleteObject; SeaweedFS cannot tell it apart."""

        def denied(*_: object) -> None:
            raise PermissionDeniedError("Access Denied")

        monkeypatch.setattr(obstore, "delete", denied)
        CopyJob(stock.warehouse, store).run()
        stock.back_up(1, value=b"another one")
        stock.grow([3])
        assert CopyJob(stock.warehouse, store).run().lacking == ()
        assert _seen(store, stock) == seen(stock.warehouse, stock.application)
        assert prune(store).files == 0
        listed = second_copy._below
        monkeypatch.setattr(
            second_copy,
            "_below",
            lambda folder: [(path, size, at - DAY_MS) for path, size, at in listed(folder)],
        )
        with pytest.raises(WarehouseError, match="denies"):
            prune(store, now_ms=time.time_ns() // 1_000_000 + 2 * DAY_MS)
        assert _seen(store, stock) == seen(stock.warehouse, stock.application)

    def test_large_files_piece_by_piece(self, store: ObjectPath, tmp_path: Path) -> None:
        stock = Stock(tmp_path / "large", partitions=1)
        stock.back_up(0, value=os.urandom(200_000))
        (file,) = _data_files(tmp_path / "large")
        assert file.stat().st_size > 2 * 8 * 1024**2
        _flip(file)
        (lacking,) = CopyJob(stock.warehouse, store).run().lacking
        name = str(file.relative_to(tmp_path / "large"))
        assert lacking.file in name
        assert not (store / name).exists()
        _flip(file)
        assert CopyJob(stock.warehouse, store).run().lacking == ()
        assert file_digest(store / name) == file_digest(file)

    def test_two_runs_at_once(
        self, stock: Stock, store: ObjectPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever comes second says so, and does not put an older state in place of a newer."""
        CopyJob(stock.warehouse, store).run()
        stock.grow([3])
        real = copying.copy_file
        done: list[object] = []

        def overtaken(*args: object, **options: object) -> None:
            real(*args, **options)  # type: ignore[arg-type]
            if not done:
                done.append(1)
                stock.grow([4])
                CopyJob(stock.warehouse, store).run()

        monkeypatch.setattr(copying, "copy_file", overtaken)
        monkeypatch.setattr(copying, "STORE_THREADS", 1)
        with pytest.raises(WarehouseError, match="another run of kstreams-assets copy"):
            CopyJob(stock.warehouse, store).run()
        assert _seen(store, stock) == seen(stock.warehouse, stock.application)


class TestPoints:
    def test_only_what_a_point_needs(self, stock: Stock, to: Path) -> None:
        CopyJob(stock.warehouse, to, points=["point-0001"]).run()
        assert [file.name[:4] for file in _data_files(to)] == ["0000", "0000", "0001", "0001"]
        told = {one[0]: one[1] for one in json.loads(_seen(to, stock))[0]}
        source = {one[0]: one[1] for one in json.loads(seen(stock.warehouse, stock.application))[0]}
        assert told["point-0001"] == source["point-0001"]
        assert told["point-0000"] == source["point-0000"]
        assert told["point-0002"] != source["point-0002"]
        with pytest.raises(
            ConfigurationError, match="contains only data for recovery points point-0001"
        ):
            promote(to)
        CopyJob(stock.warehouse, to, points=["point-0000"]).run()
        assert len(_data_files(to)) == 4
        CopyJob(stock.warehouse, to).run()
        assert _seen(to, stock) == seen(stock.warehouse, stock.application)
        promote(to)

    def test_there_is_no_such_point(self, stock: Stock, to: Path) -> None:
        with pytest.raises(KStreamsAssetsError, match="point-9"):
            CopyJob(stock.warehouse, to, points=["point-9"]).run()
