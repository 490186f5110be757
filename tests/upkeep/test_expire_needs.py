"""What expire leaves where the oldest point does not need the most, and where Kafka compacts."""

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.app.store_format import StoreFormat, StoreKind
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import KeepSettings
from kstreams_assets.upkeep import expire as upkeep
from kstreams_assets.upkeep.expire import Change, ExpireJob, PointHarmedError
from kstreams_assets.upkeep.verify import VerifyJob
from tests.store.place import warehouse_at
from tests.upkeep.simulated_app import (
    APPLICATION_ID,
    COMPACT,
    FLIGHT,
    INPUT,
    KEYS,
    MASTER,
    MORE,
    OUTPUT,
    PARTITIONS,
    RATES,
    STATE,
    TABLE,
    SimulatedApp,
    read_back,
    restored_state,
)

pytestmark = pytest.mark.e2e

_HOUR_S = 3_600
_LAST = KeepSettings(all="0s", minimum=1)


def simulated(folder: Path, *, windows: int, keep: KeepSettings = _LAST, **given: Any):
    app = SimulatedApp.at(
        warehouse_at(folder / "warehouse"), seed=1, windows=windows, keep=keep, **given
    )
    return replace(app, per_window=12)


def listed(app: SimulatedApp) -> list[RecoveryPoint]:
    instants = Repository(app.settings.warehouse, APPLICATION_ID).points.instants()
    ids = {instant.id for instant in instants}
    return [point for point in app.points if point.id in ids]


def given_by(app: SimulatedApp) -> dict[str, Restorability]:
    points = listed(app)
    return {
        s.id: s.restorability
        for s in Repository.open(app.settings).reading(app.settings).statuses(points)
    }


def require_restorable(app: SimulatedApp, points: list[RecoveryPoint]) -> None:
    """Of each: what the group had not read is all there, and every table is as it was."""
    for point in points:
        for topic in app.roles:
            roles = app.roles[topic]
            if roles.is_read_by_group:
                there = read_back(app.settings, point, topic, from_committed=True)
                found = [row for of_it in there.values() for row in of_it]
                assert found == app.needed(point, topic), (point.id, topic)
            if roles.rebuilds_store or app.configs[topic] == COMPACT:
                there = restored_state(app.settings, point, topic)
                assert there == app.state(point, topic), (point.id, topic)


def go_back(app: SimulatedApp, *topics: str, by: int = 4) -> None:
    """The group is reset, and works through the records again; it is not there yet."""
    for id_ in app.committed:
        if id_.topic in topics:
            app.committed[id_] //= by
    app.read_slowly.update(topics)


def rows_of(app: SimulatedApp, topic: str) -> list[tuple[str, int]]:
    found = app.ledger.entries(topics={topic})
    return [(entry.result.plan.window.key, entry.result.content.records) for entry in found]


@pytest.mark.parametrize("back", [(INPUT,), pytest.param((INPUT, FLIGHT), marks=pytest.mark.drill)])
def test_offsets_that_went_back_need_what_is_old(tmp_path: Path, back: tuple[str, ...]) -> None:
    """The points of the last hours are newer than the oldest one, and need more than it."""
    app = simulated(tmp_path, windows=10, keep=KeepSettings(all="4h", minimum=2))
    app.run(app.windows[:7])
    go_back(app, *back)
    app.run(app.windows[7:])
    before = given_by(app)
    assert set(before.values()) == {Restorability.EXACT}
    done = ExpireJob(app.settings, run_id="night").run()
    assert done.plan.expiring
    assert set(given_by(app).values()) == {Restorability.EXACT}
    require_restorable(app, listed(app))
    assert VerifyJob(app.settings, full=True, record=False, settle_s=0).run().damages == ()


def test_compacted_topics_keep_the_last_record_of_each_key(tmp_path: Path) -> None:
    """Master data that is no store's changelog would be restored empty otherwise."""
    app = simulated(tmp_path, windows=8, more=MORE)
    app.configs[OUTPUT] = COMPACT
    app.run(app.windows)
    Repository(app.settings.warehouse, APPLICATION_ID).pins.pin(app.points[4].id, "audit")
    before = {name: sum(n for _, n in rows_of(app, name)) for name in app.roles}
    done = ExpireJob(app.settings, run_id="night").run()
    points = listed(app)
    assert app.points[4] in points
    assert len(points) < len(app.points)
    assert set(given_by(app).values()) == {Restorability.EXACT}
    require_restorable(app, points)
    changes = {(one.topic, one.what) for one in done.topics}
    assert {(MASTER, Change.COMPACT), (OUTPUT, Change.COMPACT), (INPUT, Change.DROP)} <= changes
    assert not {(MASTER, Change.DROP), (OUTPUT, Change.DROP)} & changes
    for name in (MASTER, TABLE, RATES, OUTPUT):
        after = sum(n for _, n in rows_of(app, name))
        assert after < before[name]
    again = ExpireJob(app.settings, run_id="again").run()
    assert (again.plan.expiring, again.topics) == ({}, ())


def test_offsets_go_back_into_what_was_compacted(tmp_path: Path) -> None:
    """The point that needs records which are gone is not called exact, and nothing grows worse."""
    app = simulated(tmp_path, windows=8, more=MORE)
    app.run(app.windows[:5])
    ExpireJob(app.settings, run_id="one").run()
    go_back(app, MASTER, TABLE)
    app.run(app.windows[5:])
    restorability = given_by(app)
    assert [restorability[point.id] for point in app.points[5:]] == [Restorability.UNPROVEN] * 3
    assert restorability[app.points[4].id] is Restorability.EXACT
    (status,) = Repository.open(app.settings).reading(app.settings).statuses(app.points[-1:])
    assert f"{MASTER}-0: of offsets 0 to" in status.reason
    assert "kept only the last record of each key" in status.reason
    Repository(app.settings.warehouse, APPLICATION_ID).pins.pin(app.points[4].id, "audit")
    ExpireJob(app.settings, run_id="two").run()
    after = given_by(app)
    assert after == {id_: restorability[id_] for id_ in after}
    require_restorable(app, [app.points[4]])


def test_a_plan_that_is_wrong_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last look is at every point; the topic is left out, all others are done."""
    app = simulated(tmp_path, windows=8, keep=KeepSettings(all="3h", minimum=1))
    app.run(app.windows)
    monkeypatch.setattr(upkeep._Topic, "_below_need", lambda topic: len(topic._rows))
    monkeypatch.setattr(upkeep._Work, "harms", lambda *_: None)
    before = rows_of(app, INPUT)
    with pytest.raises(PointHarmedError, match=f"restores {INPUT} with restorability exact"):
        ExpireJob(app.settings, run_id="night").run()
    assert rows_of(app, INPUT) == before
    assert any("~" in key for key, _ in rows_of(app, STATE))
    assert set(given_by(app).values()) == {Restorability.EXACT}
    require_restorable(app, listed(app))
    assert VerifyJob(app.settings, full=True, record=False, settle_s=0).run().damages == ()


def test_a_point_that_comes_meanwhile_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not backed up yet, so that what a restore of it would give cannot get worse."""
    app = simulated(tmp_path, windows=8)
    app.run(app.windows)
    merge = upkeep.merge

    def merge_while_reset(*args: Any, parts: set[tuple[str, str]], **options: Any) -> Any:
        if INPUT in {topic for _, topic in parts}:
            go_back(app, INPUT)
            app.take(app.windows[-1].end_ms + 1)
        return merge(*args, parts=parts, **options)

    monkeypatch.setattr(upkeep, "merge", merge_while_reset)
    before = rows_of(app, INPUT)
    with pytest.raises(PointHarmedError, match=f"{INPUT}-. .* taken during the merge"):
        ExpireJob(app.settings, run_id="night").run()
    monkeypatch.undo()
    assert rows_of(app, INPUT) == before
    ExpireJob(app.settings, run_id="again").run()
    newest = app.points[-1]
    for number in range(PARTITIONS):
        id_ = TopicPartitionId(INPUT, number)
        rows = app.ledger.entries(topics={INPUT})
        of_it = [e.result for e in rows if e.result.partition == id_]
        kept = min(r.plan.read_start for r in of_it)
        (committed,) = (o.offset for o in newest.group_offsets if o.id == id_)
        assert kept <= committed


def test_a_versioned_store_without_a_table_keeps_its_history(tmp_path: Path) -> None:
    """Whether tables are made of a store says nothing about what its changelog is for."""
    app = simulated(tmp_path, windows=6)
    app.run(app.windows)
    app.settings = replace(
        app.settings,
        store_formats={"totals": StoreFormat(kind=StoreKind.VERSIONED)},
        without_ktable=frozenset({"totals"}),
    )
    plan = ExpireJob(app.settings).plan()
    assert {change.what for change in plan.changes if change.topic == STATE} == {Change.JOIN}
    assert any("is versioned" in note for note in plan.notes)


def test_records_younger_than_the_lag_stay(tmp_path: Path) -> None:
    """Kafka does not compact what is younger than min.compaction.lag.ms."""
    lagging = (*COMPACT, ("min.compaction.lag.ms", f"{3 * _HOUR_S * 1000}"))
    more = {MASTER: (TopicRoles({TopicRole.INPUT}), lagging)}
    app = simulated(tmp_path, windows=10, more=more)
    app.run(app.windows)
    plan = ExpireJob(app.settings).plan()
    (change,) = (c for c in plan.changes if (c.topic, c.what) == (MASTER, Change.COMPACT))
    oldest = min(p.effective_at_ms for p in app.points if p.id in plan.kept)
    last_ms = change.windows[-1].end_ms
    assert last_ms <= oldest - 3 * _HOUR_S * 1000 < last_ms + _HOUR_S * 1000


def test_of_a_recreated_topic_older_points_keep_theirs(tmp_path: Path) -> None:
    app = simulated(tmp_path, windows=8, more=MORE)
    app.run(app.windows[:5])
    for topic in (INPUT, MASTER, STATE, OUTPUT):
        app.recreate(topic)
    app.run(app.windows[5:])
    for point in app.points[2:5:2]:
        Repository(app.settings.warehouse, APPLICATION_ID).pins.pin(point.id, "audit")
    before = given_by(app)
    ExpireJob(app.settings, run_id="night").run()
    points = listed(app)
    assert len(points) == 3
    assert given_by(app) == {point.id: before[point.id] for point in points}
    assert before[app.points[4].id] is Restorability.EXACT
    require_restorable(app, points)


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["", "back", "caught up", "recreate", "expire"]),
        st.sampled_from([INPUT, FLIGHT, MASTER, TABLE]),
        st.booleans(),
    ),
    min_size=5,
    max_size=8,
)


def _whatever_happens(seed: int, events: list[tuple[str, str, bool]], hours: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = SimulatedApp.at(
            Warehouse(Path(folder)),
            seed=seed,
            windows=len(events),
            keep=KeepSettings(all=f"{hours}h", minimum=1),
            more=MORE,
        )
        app = replace(app, per_window=KEYS)
        chance = random.Random(seed)
        for window, (event, topic, pinned) in zip(app.windows, events, strict=True):
            if event == "back":
                go_back(app, topic, by=chance.choice([2, 10**9]))
            elif event == "caught up":
                app.read_slowly.discard(topic)
            elif event == "recreate":
                app.recreate(topic)
            app.run([window])
            if pinned:
                Repository(app.settings.warehouse, APPLICATION_ID).pins.pin(
                    app.points[-1].id, "audit"
                )
            if event == "expire":
                _expire_changes_nothing(app)
        _expire_changes_nothing(app)


def _expire_changes_nothing(app: SimulatedApp) -> None:
    before = given_by(app)
    ExpireJob(app.settings, run_id="night").run()
    after = given_by(app)
    assert after == {id_: before[id_] for id_ in after}
    exact = [point for point in listed(app) if after[point.id] is Restorability.EXACT]
    require_restorable(app, exact)


_NO_SHRINK = (Phase.explicit, Phase.generate)
_CHECKS = (HealthCheck.too_slow, HealthCheck.data_too_large)


@settings(max_examples=1, deadline=None, phases=_NO_SHRINK, suppress_health_check=_CHECKS)
@given(seed=st.integers(0, 99), events=_EVENTS, hours=st.integers(0, 4))
def test_whatever_happens_points_restore_as_before(
    seed: int, events: list[tuple[str, str, bool]], hours: int
) -> None:
    _whatever_happens(seed, events, hours)


@pytest.mark.drill
@settings(max_examples=40, deadline=None, phases=_NO_SHRINK, suppress_health_check=_CHECKS)
@given(seed=st.integers(0, 99), events=_EVENTS, hours=st.integers(0, 4))
def test_whatever_happens_points_restore_as_before_at_length(
    seed: int, events: list[tuple[str, str, bool]], hours: int
) -> None:
    _whatever_happens(seed, events, hours)
