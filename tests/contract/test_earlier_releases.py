"""Warehouses that earlier releases wrote go on with this one, and earlier processes do not."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.spans import SpanKind
from kstreams_assets.model.tables import INCREMENTS, TABLES, WINDOWS, Lock
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.table import LogState, Table, log_state, open_delta
from kstreams_assets.store.locks import WarehouseLockedError
from kstreams_assets.upkeep.copy import CopyJob
from kstreams_assets.upkeep.expire import ExpireJob
from kstreams_assets.upkeep.second_copy import promote
from kstreams_assets.upkeep.verify import VerifyJob
from tests.backup.simulated_run import backup_run, without_cluster
from tests.cli.application import Program
from tests.cli.shop import Shop
from tests.contract.earlier_release import (
    CLOSED,
    COMMITS,
    MERGED,
    EarlierProcess,
    earlier_app,
    earlier_process,
    stored_windows,
)
from tests.restore.simulated_target import SimulatedTarget, restores_go_to
from tests.upkeep.simulated_app import PARTITIONS, SimulatedApp
from tests.upkeep.test_expire_needs import listed, require_restorable


@pytest.fixture(params=COMMITS)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> SimulatedApp:
    """The application, with its warehouse as a release left it."""
    return earlier_app(request.param, tmp_path)


@pytest.fixture
def shop(app: SimulatedApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Shop:
    """The same, with a target, for commands."""
    target = SimulatedTarget()
    restores_go_to(target, monkeypatch)
    monkeypatch.setattr("kstreams_assets.drill.readiness._ASK_CLUSTER_S", 0.3)
    program = Program(monkeypatch, capsys)
    made = Shop(app, app.settings.warehouse, target, tmp_path / "defs.yaml", program)
    made.configure()
    return made


def _repository(app: SimulatedApp) -> Repository:
    return Repository.open(app.settings)


def _write(app: SimulatedApp) -> None:
    """What the first writer of this release does first."""
    with _repository(app).writing(Lock.APPLICATION, purpose="test", wait_s=1):
        pass


def _kinds(app: SimulatedApp) -> dict[str, tuple[SpanKind, str, str]]:
    found = stored_windows(app.settings.warehouse)
    return {one.key: (one.kind, one.first_window, one.last_window) for one in found}


def _stored_kinds(app: SimulatedApp, table: str) -> list[str | None]:
    """The column `kind` in the files of a table; None for the rows of a file without one."""
    delta = open_delta(app.settings.warehouse.control(table), table)
    assert delta is not None
    found: list[str | None] = []
    for path in delta.file_uris():
        rows = pq.ParquetFile(path).read()
        named = "kind" in rows.column_names
        found += rows["kind"].to_pylist() if named else [None] * rows.num_rows
    return found


def _require_whole(app: SimulatedApp) -> None:
    """Every point restores exactly, and nothing is damaged."""
    points = listed(app)
    assert points
    assert {
        s.restorability
        for s in Repository.open(app.settings).reading(app.settings).statuses(points)
    } == {Restorability.EXACT}
    require_restorable(app, points)
    assert VerifyJob(app.settings, full=True, record=False, settle_s=0).run().damages == ()


def _continue(app: SimulatedApp) -> None:
    """Follow the open window to its end, close it as a backup does, and back up two more."""
    window, *later = app.windows[CLOSED : CLOSED + 3]
    assert app.ledger.increments_of(window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "record", Ledger.record_increment)
        app._work(window)
        middle_ms = (window.start_ms + window.end_ms) // 2
        part = window.increment(2, middle_ms, window.end_ms)
        app.take(part.end_ms - 1_000)
        app.back_up(part)
    with pytest.MonkeyPatch.context() as patch:
        without_cluster(patch)
        backup_run(app).execute([window], newest_closed=None)
    app.run(later)


def test_it_is_browsed(app: SimulatedApp, shop: Shop) -> None:
    before = sorted(shop.file.parent.rglob("*"))
    schedule = [window.key for window in app.windows]
    first = schedule[0]
    kinds = _kinds(app)
    assert kinds[schedule[CLOSED - 1]] == (
        SpanKind.WINDOW,
        schedule[CLOSED - 1],
        schedule[CLOSED - 1],
    )
    assert kinds[f"{first}~{schedule[MERGED - 1]}"] == (
        SpanKind.MERGED,
        first,
        schedule[MERGED - 1],
    )
    open_ = schedule[CLOSED]
    assert kinds[f"{open_}+000001"] == (SpanKind.INCREMENT, open_, open_)
    _require_whole(app)
    for command in (["recovery-points", "list"], ["windows"], ["restore", "list"]):
        result = shop.program(*command, "--app", shop.file, "--json")
        assert result.exit_code == 0, result.err
    assert sorted(shop.file.parent.rglob("*")) == before


def test_it_is_restored(shop: Shop) -> None:
    assert shop("run").exit_code == 0
    app, topics, offsets = shop.app, shop.target.topics, shop.target.offsets
    for topic, roles in app.roles.items():
        logs = topics[topic].logs
        if roles.is_read_by_group:
            ends = [offsets[TopicPartitionId(topic, number)].offset for number in range(PARTITIONS)]
            unread = [
                (r["key"], r["value"]) for log, at in zip(logs, ends, strict=True) for r in log[at:]
            ]
            assert unread == [(row.key, row.value) for row in app.needed(shop.point, topic)]
        if roles.rebuilds_store:
            for number, state in app.state(shop.point, topic).items():
                newest = {record["key"]: record["value"] for record in logs[number]}
                assert {k: v for k, v in newest.items() if v is not None} == state


def test_it_is_continued(app: SimulatedApp) -> None:
    before = app.ledger.version()
    _continue(app)
    assert app.ledger.version() > before
    assert not app.ledger.increments_of(app.windows[CLOSED])
    _require_whole(app)
    assert None not in _stored_kinds(app, WINDOWS.name)
    assert _stored_kinds(app, INCREMENTS.name) == []


def test_it_expires(app: SimulatedApp) -> None:
    assert ExpireJob(app.settings, run_id="night").run().plan.expiring
    _require_whole(app)
    _continue(app)
    assert ExpireJob(app.settings, run_id="next night").run().plan.expiring
    _require_whole(app)
    merged = [last for kind, _, last in _kinds(app).values() if kind is SpanKind.MERGED]
    assert max(merged) >= app.windows[CLOSED].key


def test_it_is_copied(app: SimulatedApp, tmp_path: Path) -> None:
    to = tmp_path / "copy"
    copy = replace(app, settings=replace(app.settings, warehouse=Warehouse(to)))
    assert CopyJob(app.settings.warehouse, to).run().lacking == ()
    assert _kinds(copy) == _kinds(app)
    _require_whole(copy)
    _continue(app)
    assert CopyJob(app.settings.warehouse, to).run().lacking == ()
    assert _kinds(copy) == _kinds(app)
    _require_whole(copy)
    promote(to)
    assert ExpireJob(copy.settings, run_id="night").run().plan.expiring
    _require_whole(copy)


class TestMigration:
    """The first writer writes files of earlier releases again."""

    @pytest.fixture
    def app(self, tmp_path: Path) -> SimulatedApp:
        return earlier_app("9389ffd", tmp_path)

    def test_rows_stay_as_they_are(self, app: SimulatedApp) -> None:
        before = [app.ledger.entries(increments=of) for of in (False, True)]
        kinds = _kinds(app)
        assert set(_stored_kinds(app, WINDOWS.name)) == {None}
        _write(app)
        assert [app.ledger.entries(increments=of) for of in (False, True)] == before
        assert _kinds(app) == kinds
        assert set(_stored_kinds(app, WINDOWS.name)) == {"window", "merged"}
        assert set(_stored_kinds(app, INCREMENTS.name)) == {"increment"}
        assert VerifyJob(app.settings, full=True, record=False, settle_s=0).run().damages == ()

    def test_only_once(self, app: SimulatedApp) -> None:
        _write(app)
        before = _states(app)
        _write(app)
        assert _states(app) == before

    @pytest.mark.parametrize("commits", [0, 3])
    def test_killed_and_continued(
        self, app: SimulatedApp, commits: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kinds = _kinds(app)
        rewrite: Callable[..., None] = Table._rewrite
        left = iter(range(commits))

        def killed(*given: Any) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            rewrite(*given)

        with monkeypatch.context() as patch:
            patch.setattr("kstreams_assets.repository.table._FULL_BYTES", 1)
            patch.setattr(Table, "_rewrite", killed)
            with pytest.raises(KeyboardInterrupt):
                _write(app)
        assert _kinds(app) == kinds
        assert None in [*_stored_kinds(app, WINDOWS.name), *_stored_kinds(app, INCREMENTS.name)]
        _require_whole(app)
        _write(app)
        assert _kinds(app) == kinds
        assert None not in _stored_kinds(app, WINDOWS.name)
        assert None not in _stored_kinds(app, INCREMENTS.name)


def _states(app: SimulatedApp) -> dict[str, LogState]:
    warehouse = app.settings.warehouse
    return {table.name: log_state(warehouse.control(table.name)) for table in TABLES}


class TestBeside:
    """A process of the earlier release on the same warehouse is refused by the layout."""

    @pytest.fixture
    def app(self, tmp_path: Path) -> SimulatedApp:
        return earlier_app("9389ffd", tmp_path)

    @pytest.fixture
    def earlier(self, app: SimulatedApp, tmp_path: Path) -> Iterator[EarlierProcess]:
        root = app.settings.warehouse.root
        assert isinstance(root, Path)
        with earlier_process(tmp_path / "program", root) as process:
            yield process

    def _require_refused(self, app: SimulatedApp, earlier: EarlierProcess, shop: Shop) -> None:
        before = _states(app)
        ended = earlier("command", "recovery-points", "list", "--app", str(shop.file))
        assert ended["exit_code"] != 0
        told = " ".join(ended["out"].split())
        assert "has layout version 3; this release knows up to 2" in told
        for step in ("lock", "lock points", "record", "take"):
            assert earlier(step)["refused"] == "NewerLayoutError", step
        assert _states(app) == before

    def test_it_is_refused_when_this_release_has_written(
        self, app: SimulatedApp, earlier: EarlierProcess, shop: Shop
    ) -> None:
        listed = earlier("command", "recovery-points", "list", "--app", str(shop.file))
        assert listed["exit_code"] == 0, listed
        assert earlier("lock") == earlier("record") == earlier("take") == earlier("unlock") == {}
        _write(app)
        self._require_refused(app, earlier, shop)
        _continue(app)
        self._require_refused(app, earlier, shop)

    def test_both_wait_for_the_lock(
        self, app: SimulatedApp, earlier: EarlierProcess, shop: Shop
    ) -> None:
        assert earlier("lock") == {}
        with pytest.raises(WarehouseLockedError):
            _write(app)
        assert earlier("record") == {}
        with _repository(app).lock(Lock.RECORDER, purpose="test", wait_s=1):
            pass
        assert earlier("unlock") == {}
        with _repository(app).writing(Lock.APPLICATION, purpose="test", wait_s=1):
            assert earlier("lock")["refused"] == "WarehouseLockedError"
            assert earlier("record")["refused"] == "NewerLayoutError"
        self._require_refused(app, earlier, shop)

    def test_a_recorder_that_holds_its_lock_stores_no_more_points(
        self, app: SimulatedApp, earlier: EarlierProcess, shop: Shop
    ) -> None:
        assert earlier("lock points") == earlier("take") == {}
        _write(app)
        before = _states(app)
        assert earlier("take")["refused"] == "NewerLayoutError"
        assert _states(app) == before
