"""Where a group goes on in topics that a restore leaves as they are."""

from dataclasses import replace
from typing import Any

import pytest

from kstreams_assets.checks import Finding
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.restore.offset_map import OffsetMap, OffsetRun, OffsetRuns
from kstreams_assets.restore.plan import PlacedTopic
from kstreams_assets.restore.request import InputsAt
from kstreams_assets.restore.target import TargetTopic
from kstreams_assets.restore.target_topics import (
    ExcludedTopic,
    Writer,
    differing_positions,
    placed,
)
from kstreams_assets.warehouse.point import GroupOffset, RecoveryPoint
from kstreams_assets.warehouse.restores import RestoreState, StoredMap
from tests.restore.planning_samples import (
    ROLES,
    SOURCE_CLUSTER,
    TARGET_CLUSTER,
    partition_of,
    point,
    stored,
    there,
)

ORDERS = partition_of("orders")
ON_TARGET = there("orders", ends=(90,))
MAP = OffsetMap(OffsetRuns.of([OffsetRun(10, 0, 90)]), 90)
"""Source offsets 10 to 100 are 0 to 90 on the target; the group had committed 60."""


def _writer(taken: RecoveryPoint | None = None, **changes: Any) -> Writer:
    facts = {"application_id": "billing", "state": RestoreState.COMMITTED} | changes
    restore = stored(**facts)
    maps = {ORDERS: StoredMap(TopicPartitionId("orders", 0), MAP)}
    return Writer(restore, taken or point(), maps)


def _placed(
    inputs_are_at: InputsAt = InputsAt.MAPPED,
    *,
    topic: str = "orders",
    known: TargetTopic | None = ON_TARGET,
    writer: Writer | None = None,
    cluster_id: str = TARGET_CLUSTER,
    taken: RecoveryPoint | None = None,
) -> tuple[PlacedTopic | None, tuple[Finding, ...]]:
    excluded = ExcludedTopic(topic, topic, known, (85,) if known else (), writer)
    return placed(
        excluded, taken or point(), ROLES, inputs_are_at=inputs_are_at, target_cluster_id=cluster_id
    )


def _problem(**changes: Any) -> str:
    found, (refusal,) = _placed(**changes)
    assert found is None
    assert refusal.action.endswith(".")
    return refusal.found


class TestMapped:
    def test_through_the_map_of_the_restore_that_wrote_it(self) -> None:
        found, refused = _placed(writer=_writer())
        assert refused == ()
        assert found == PlacedTopic(
            "orders",
            "orders",
            "orders-there",
            InputsAt.MAPPED,
            (GroupOffset("orders", 0, 50, "metadata of orders"),),
            "billing",
            "begun",
        )

    def test_in_the_very_topic_of_the_point_nothing_moves(self) -> None:
        own = there("orders", topic_id="orders-id", starts=(60,), ends=(100,))
        found, refused = _placed(known=own, cluster_id=SOURCE_CLUSTER)
        assert refused == ()
        assert found is not None
        assert [o.offset for o in found.offsets] == [60]
        assert found.written_by == ""

    def test_not_in_a_topic_that_was_recreated(self) -> None:
        assert "no restore in this warehouse wrote it" in _problem(cluster_id=SOURCE_CLUSTER)

    @pytest.mark.parametrize(("start", "end"), [(61, 100), (10, 59)])
    def test_not_outside_the_log(self, start: int, end: int) -> None:
        own = there("orders", topic_id="orders-id", starts=(start,), ends=(end,))
        text = _problem(known=own, cluster_id=SOURCE_CLUSTER)
        assert f"offset 60, where it would go on, lies outside its log ({start} to {end})" in text

    def test_not_without_a_writer(self) -> None:
        assert "no restore in this warehouse wrote it" in _problem()

    def test_not_where_the_topic_is_absent(self) -> None:
        assert "the target has no topic of that name" in _problem(known=None)

    @pytest.mark.parametrize(
        "state",
        [RestoreState.PLANNED, RestoreState.PRODUCED, RestoreState.FAILED_VERIFICATION],
    )
    def test_not_from_a_restore_that_is_not_verified(self, state: RestoreState) -> None:
        assert f"wrote it and is {state}" in _problem(writer=_writer(state=state))

    def test_not_behind_what_the_other_restore_brought_back(self) -> None:
        """The other application's point is older: what this group had read comes once more."""
        older = point()
        older = replace(older, partitions=tuple(replace(cut, end=59) for cut in older.partitions))
        text = _problem(writer=_writer(older))
        assert "had committed offset 60, restore begun of billing brought back 10 to 59" in text

    def test_not_behind_a_transaction_that_was_left_out(self) -> None:
        """The other application writes the topic, and will write that transaction again."""
        other = point(excluded={"orders": [OffsetRange(40, 45)]})
        assert "brought back 10 to 40" in _problem(writer=_writer(other))

    @pytest.mark.parametrize(("committed", "is_refused"), [(59, True), (60, False)])
    def test_not_before_the_tail_of_the_other_restore(
        self, committed: int, is_refused: bool
    ) -> None:
        writer = _writer(request='{"inputs": "tail"}')
        found, refused = _placed(writer=writer, taken=point(committed={"orders": committed}))
        assert (found is None, bool(refused)) == (is_refused, is_refused)

    def test_not_once_records_of_it_are_gone(self) -> None:
        short = there("orders", ends=(80,))
        assert "it ends at 80, restore begun" in _problem(known=short, writer=_writer())

    def test_not_from_another_source_topic(self) -> None:
        other = replace(point(), cluster_id="elsewhere")
        assert "from another topic of this name" in _problem(writer=_writer(other))


class TestLatest:
    def test_the_last_stable_offset_with_the_metadata_of_the_point(self) -> None:
        found, refused = _placed(InputsAt.LATEST)
        assert refused == ()
        assert found is not None
        assert found.offsets == (GroupOffset("orders", 0, 85, "metadata of orders"),)

    def test_a_partition_without_an_offset_at_the_point_gets_one_too(self) -> None:
        found, _ = _placed(InputsAt.LATEST, taken=point(committed={}))
        assert found is not None
        assert found.offsets == (GroupOffset("orders", 0, 85, ""),)

    def test_not_records_in_flight(self) -> None:
        name = "shop-sums-repartition"
        problem = _placed(InputsAt.LATEST, topic=name, known=there(name))[1][0].found
        assert "the records in flight would be skipped" in problem


class TestOnceMoreBeforeTheCommit:
    """What was planned against what is known now."""

    def _differing(self, planned: PlacedTopic | None, **now: Any) -> list[str]:
        assert planned is not None
        again, _ = _placed(planned.inputs_are_at, **now)
        logs = {"orders": now.get("known", ON_TARGET)}
        return differing_positions([planned], {} if again is None else {"orders": again}, logs)

    def test_mapped(self) -> None:
        planned, _ = _placed(writer=_writer())
        assert planned is not None
        assert self._differing(planned, writer=_writer()) == []
        grown = there("orders", ends=(99,))
        assert self._differing(planned, writer=_writer(), known=grown) == []
        assert self._differing(planned) != []
        moved = replace(planned, offsets=(GroupOffset("orders", 0, 51, "metadata of orders"),))
        assert self._differing(moved, writer=_writer()) != []

    def test_latest_stays_where_it_was_as_records_come(self) -> None:
        planned, _ = _placed(InputsAt.LATEST)
        assert self._differing(planned, known=there("orders", ends=(99,))) == []
        assert self._differing(planned, known=there("orders", ends=(84,))) != []
        recreated = there("orders", topic_id="anew", ends=(99,))
        assert self._differing(planned, known=recreated) != []
