"""Stored restores: each state, the newest one, and the points they hold on to."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore, StoredTopic
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.restores import RestoresTable
from tests.repository.forging import forge

APPLICATION_ID = "shop"
DAY_MS = 86_400_000
NOW_MS = time.time_ns() // 1_000_000
TOPIC = StoredTopic(
    source="shop-totals-changelog",
    target="shop-eu-totals-changelog",
    target_topic_id="life-1",
    base_offsets=(0, 7, 2**62),
    records=3 * 2**40,
    roles=("changelog", "input"),
    put_back={"retention.ms": "604800000", "segment.ms": None, "empty": ""},
    created=False,
)


def restore(
    restore_id: str = "r1",
    state: RestoreState = RestoreState.PLANNED,
    *,
    at_ms: int = 1000,
    created_at_ms: int = 1000,
    run_id: str = "run-1",
    point_id: str = "point-1",
) -> StoredRestore:
    """A restore in a state."""
    return StoredRestore(
        application_id=APPLICATION_ID,
        restore_id=restore_id,
        state=state,
        changed_at_ms=at_ms,
        created_at_ms=created_at_ms,
        run_id=run_id,
        point_id=point_id,
        group="shop-eu",
        target_cluster_id="cluster-2",
        target_bootstrap_servers="b1:9092,b2:9092",
        mode=RestoreMode.STATE,
        request='{"mode": "state"}',
        topics=(TOPIC, replace(TOPIC, source="orders", put_back={}, roles=(), base_offsets=())),
    )


@pytest.fixture
def table(tmp_path: Path) -> RestoresTable:
    """The table in an empty warehouse."""
    return Repository(Warehouse(tmp_path), APPLICATION_ID).restores


def test_no_offsets_is_not_the_same_as_none_known(table: RestoresTable) -> None:
    table.append(restore("unknown"))
    table.append(replace(restore("none"), former_offsets=(), committed=(), topics=()))
    unknown, none = (table.newest(name) for name in ("unknown", "none"))
    assert unknown == restore("unknown")
    assert unknown is not None
    assert (unknown.former_offsets, unknown.committed, unknown.verified_records) == (None,) * 3
    assert none is not None
    assert (none.former_offsets, none.committed, none.topics) == ((), (), ())


def test_the_newest_state_counts(table: RestoresTable) -> None:
    states = [RestoreState.PLANNED, RestoreState.PRODUCED, RestoreState.VERIFIED]
    for at_ms, state in enumerate(states):
        table.append(restore(state=state, at_ms=at_ms))
        table.append(restore("other", at_ms=at_ms))
        newest = table.newest("r1")
        assert newest is not None
        assert newest.state is state
    assert [stored.state for stored in table.history("r1")] == states


def test_where_rows_lie_does_not_matter(table: RestoresTable, tmp_path: Path) -> None:
    """Readers get rows file by file, in no order that means anything."""
    states = list(RestoreState)
    for state in states:
        table.append(restore(state=state))
    for _ in range(2):
        assert table.newest("r1") == restore(state=states[-1])
        assert table.all() == [restore(state=states[-1])]
        forge(tmp_path / "restores", lambda rows: rows.sort_by("change"))


def test_a_clock_that_was_set_back(table: RestoresTable) -> None:
    table.append(restore(at_ms=5000))
    table.append(restore(state=RestoreState.PRODUCED, at_ms=3000))
    table.append(restore(state=RestoreState.VERIFIED, at_ms=3000))
    newest = table.newest("r1")
    assert newest == restore(state=RestoreState.VERIFIED, at_ms=3000)
    assert table.all() == [newest]
    assert [r.changed_at_ms for r in table.history("r1")] == [5000, 3000, 3000]


def test_all_are_listed_as_they_stand_the_last_begun_first(table: RestoresTable) -> None:
    table.append(restore("old", created_at_ms=1))
    table.append(restore("new", created_at_ms=2))
    table.append(restore("old", RestoreState.COMMITTED, created_at_ms=1, at_ms=9000))
    found = [(stored.restore_id, stored.state) for stored in table.all()]
    assert found == [("new", RestoreState.PLANNED), ("old", RestoreState.COMMITTED)]


def test_restores_of_a_run(table: RestoresTable) -> None:
    """A later run that goes on with a restore does not take it away from the first."""
    table.append(restore("r1", run_id="run-1"))
    table.append(restore("r2", run_id="run-2", created_at_ms=2000))
    table.append(restore("r1", RestoreState.FINISHED, run_id="run-2"))
    (of_first,) = table.of_run("run-1")
    assert (of_first.restore_id, of_first.state) == ("r1", RestoreState.FINISHED)
    found = [stored.restore_id for stored in table.of_run("run-2")]
    assert found == ["r2", "r1"]
    assert table.of_run("run") == []


def test_only_a_finished_restore_lets_its_point_go(table: RestoresTable) -> None:
    for number, state in enumerate(RestoreState):
        table.append(restore(f"r{number}", state, at_ms=NOW_MS, point_id=f"point-{state}"))
    table.append(restore("without a point", at_ms=NOW_MS, point_id=""))
    unfinished = [state for state in RestoreState if state is not RestoreState.FINISHED]
    assert table.pinned() == {f"point-{state}" for state in unfinished}
    assert {stored.state for stored in table.unfinished()} == set(unfinished)


@pytest.mark.parametrize("state", [one for one in RestoreState if not one.matches_backup])
def test_a_restore_that_was_given_up_lets_its_point_go(
    table: RestoresTable, state: RestoreState
) -> None:
    """Nobody has gone on with it for weeks, and its records were never verified."""
    table.append(restore("r1", state, at_ms=NOW_MS - 13 * DAY_MS))
    assert table.pinned() == {"point-1"}
    table.append(restore("r1", state, at_ms=NOW_MS - 15 * DAY_MS, created_at_ms=2000))
    assert table.pinned() == frozenset()
    table.append(restore("r2", RestoreState.VERIFIED, at_ms=NOW_MS - 15 * DAY_MS))
    assert table.pinned() == {"point-1"}


def test_a_drill_that_was_killed(table: RestoresTable) -> None:
    """It is never finished, and nobody continues from it."""
    drilled = replace(
        restore("r1", RestoreState.COMMITTED, at_ms=NOW_MS - 15 * DAY_MS),
        request='{"drill": true, "mode": "state"}',
    )
    table.append(drilled)
    (stored,) = table.unfinished()
    assert stored.is_of_drill
    assert table.pinned() == frozenset()
    assert not stored.is_continued
    assert replace(stored, request="{}").is_continued
    table.append(replace(drilled, changed_at_ms=NOW_MS, created_at_ms=2000))
    assert table.pinned() == {"point-1"}


def test_a_point_of_two_restores(table: RestoresTable) -> None:
    table.append(restore("r1", at_ms=NOW_MS))
    table.append(restore("r2", at_ms=NOW_MS))
    table.append(restore("r1", RestoreState.FINISHED))
    assert table.pinned() == {"point-1"}
    table.append(restore("r2", RestoreState.FINISHED))
    assert table.pinned() == frozenset()
    # somebody runs it once more
    table.append(restore("r2", RestoreState.PLANNED, at_ms=NOW_MS))
    assert table.pinned() == {"point-1"}
