"""Names and configs on the target, and where a group goes on in topics left as they are."""

from dataclasses import replace
from typing import Any

import pytest

from kstreams_assets.app.names import name_problem
from kstreams_assets.checks import Finding
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restores import (
    InputsAt,
    PlacedTopic,
    RestoreMode,
    RestoreState,
    StoredMap,
)
from kstreams_assets.offsets import OffsetMap, OffsetRange, OffsetRun, OffsetRuns, TopicPartitionId
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.target import TargetTopic
from kstreams_assets.restore.target_topics import (
    ExcludedTopic,
    TargetNames,
    Writer,
    differing_positions,
    of_existing_topic,
    of_new_topic,
    placed,
    target_names,
)
from tests.restore.planning_samples import (
    ROLES,
    SOURCE_CLUSTER,
    TARGET_CLUSTER,
    partition_of,
    point,
    stored,
    there,
)

INTERNAL = ("shop-sums-changelog", "shop-sums-repartition", "shop-fk-subscription-response-topic")
TOPICS = ("orders", "totals", "shop-window", *INTERNAL)


def _names(
    of: tuple[str, ...] = TOPICS, internal: tuple[str, ...] = INTERNAL, /, **request: Any
) -> TargetNames:
    return target_names("shop", of, internal, RestoreRequest(**request))


def test_names_stay_the_same_unless_asked() -> None:
    names = _names()
    assert names.targets == {topic: topic for topic in TOPICS}
    assert (names.group, names.blockers) == ("shop", ())
    assert names.internal == set(INTERNAL)


def test_a_new_application_id_renames_internal_topics_only() -> None:
    names = _names(application_id="shop-b")
    assert names.group == "shop-b"
    assert names.targets == {
        "orders": "orders",
        "totals": "totals",
        "shop-window": "shop-window",
        "shop-sums-changelog": "shop-b-sums-changelog",
        "shop-sums-repartition": "shop-b-sums-repartition",
        "shop-fk-subscription-response-topic": "shop-b-fk-subscription-response-topic",
    }
    assert names.blockers == ()


def test_a_prefix_goes_before_all_but_internal_topics() -> None:
    names = _names(prefix="dr.")
    assert names.targets["orders"] == "dr.orders"
    assert names.targets["shop-window"] == "dr.shop-window"
    assert names.targets["shop-sums-changelog"] == "shop-sums-changelog"


def test_a_chosen_name_wins_over_the_prefix() -> None:
    names = _names(prefix="dr.", topics={"orders": "incoming"})
    assert (names.targets["orders"], names.targets["totals"]) == ("incoming", "dr.totals")
    assert names.blockers == ()


def test_excluded_topics_have_no_target() -> None:
    names = _names(exclude=("tot*", "shop-window"))
    assert names.excluded == {"totals", "shop-window"}
    assert set(names.targets) == {"orders", *INTERNAL}


def test_an_excluded_topic_in_which_the_group_goes_on_has_a_name() -> None:
    asked = {"exclude": ("orders",), "inputs_are_at": InputsAt.MAPPED, "prefix": "dr-"}
    names = _names(**asked)
    assert names.placed == {"orders": "dr-orders"}
    assert "orders" not in names.targets
    named = _names(**asked, topics={"orders": "live"})
    assert (named.placed, named.blockers) == ({"orders": "live"}, ())
    assert _names(exclude=("orders",)).placed == {}


@pytest.mark.parametrize(
    ("request_", "subject", "words"),
    [
        ({"topics": {"Orders": "x"}}, "topics: Orders", "similar: orders"),
        ({"topics": {"zzz": "x"}}, "topics: zzz", "no topic 'zzz'."),
        ({"exclude": ("order",)}, "exclude: order", "similar: orders"),
        ({"exclude": ("orders",), "topics": {"orders": "x"}}, "topics: orders", "also excluded"),
        ({"topics": {"orders": "totals"}}, "topics orders, totals", "'totals'"),
        (
            {"topics": {"orders": "a.b", "totals": "a_b"}},
            "topics orders, totals",
            "'a.b' and 'a_b', which Kafka treats as equal",
        ),
        ({"prefix": "dr/"}, "topic orders", "'dr/orders'"),
        ({"topics": {"orders": "x" * 250}}, "topic orders", "250 characters"),
        ({"topics": {"orders": "__consumer_offsets"}}, "topic orders", "brokers"),
        ({"application_id": ""}, "application_id ''", "is empty"),
        ({"application_id": "a b"}, "application_id 'a b'", "characters other"),
        (
            {"topics": {"shop-sums-changelog": "elsewhere"}},
            "topic shop-sums-changelog",
            "looks for 'shop-sums-changelog'",
        ),
    ],
)
def test_refused(request_: dict[str, object], subject: str, words: str) -> None:
    found = [blocker for blocker in _names(**request_).blockers if blocker.subject == subject]
    assert len(found) == 1
    assert words in found[0].found
    assert found[0].action.endswith(".")


def test_every_refusal_is_listed() -> None:
    names = _names(topics={"nothing": "x", "orders": "."}, exclude=("no-such",))
    assert {r.subject for r in names.blockers} == {
        "topics: nothing",
        "topic orders",
        "exclude: no-such",
    }


def test_an_internal_topic_may_be_called_anything_where_it_is_not_restored() -> None:
    names = _names(mode=RestoreMode.REBUILD, topics={"shop-sums-changelog": "elsewhere"})
    assert names.blockers == ()


def test_an_internal_topic_with_a_prefix_of_its_own_must_be_named() -> None:
    topics, internal = ("orders", "ksql-sums-changelog"), ("ksql-sums-changelog",)
    assert _names(topics, internal).blockers == ()
    renamed = _names(topics, internal, application_id="b")
    assert [r.subject for r in renamed.blockers] == ["topic ksql-sums-changelog"]
    named = _names(topics, internal, application_id="b", topics={internal[0]: "b-sums-changelog"})
    assert named.blockers == ()


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249])
def test_legal_names(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "ä", "a b", "a:b", "a/b"])
def test_illegal_names(name: str) -> None:
    assert name_problem(name) is not None


FOR_EVER = "9223372036854775807"
RELAXED = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.before.max.ms": FOR_EVER,
    "message.timestamp.after.max.ms": FOR_EVER,
    "min.compaction.lag.ms": FOR_EVER,
    "max.compaction.lag.ms": FOR_EVER,
    "segment.ms": FOR_EVER,
}
NEW = {**RELAXED, "message.timestamp.type": "CreateTime", "max.message.bytes": "104857600"}


def test_a_new_topic_has_the_source_s_configs_and_relaxed_limits() -> None:
    source = {"cleanup.policy": "compact", "retention.ms": "3600000", "segment.bytes": "1000000"}
    found = of_new_topic("t", source, replication_factor=1)
    assert found.configs == {**source, **NEW}
    assert found.put_back == {**dict.fromkeys(NEW), "retention.ms": "3600000"}
    assert found.notes == ()


def test_log_append_time_comes_back_afterwards() -> None:
    source = {"message.timestamp.type": "LogAppendTime"}
    found = of_new_topic("t", source, replication_factor=1)
    assert found.configs["message.timestamp.type"] == "CreateTime"
    assert found.put_back["message.timestamp.type"] == "LogAppendTime"


def test_the_larger_limit_of_message_sizes_holds() -> None:
    for own, expected in (("1000", "104857600"), ("209715200", "209715200")):
        found = of_new_topic("t", {"max.message.bytes": own}, replication_factor=1)
        assert found.configs["max.message.bytes"] == expected
        assert found.put_back["max.message.bytes"] == own


def test_what_the_replicas_cannot_fulfil_is_lowered_and_told() -> None:
    source = {"min.insync.replicas": "2"}
    lowered = of_new_topic("t", source, replication_factor=1)
    assert lowered.configs["min.insync.replicas"] == "1"
    assert "min.insync.replicas of t is 1 instead of 2" in lowered.notes[0]
    assert "min.insync.replicas" not in lowered.put_back
    kept = of_new_topic("t", source, replication_factor=2)
    assert (kept.configs["min.insync.replicas"], kept.notes) == ("2", ())


def test_configs_that_mean_nothing_there_are_left_out_and_told() -> None:
    source = {
        "leader.replication.throttled.replicas": "0:1",
        "message.timestamp.difference.max.ms": "5",
    }
    found = of_new_topic("t", source, replication_factor=1)
    assert found.configs == NEW
    assert all(name in found.notes[0] for name in source)


def test_an_existing_topic_keeps_type_and_size_of_its_records() -> None:
    own = {"retention.ms": "5", "max.message.bytes": "7", "message.timestamp.type": "CreateTime"}
    found = of_existing_topic(own, own)
    assert found.configs == RELAXED
    assert found.put_back == {**dict.fromkeys(RELAXED), "retention.ms": "5"}


LIMIT = "max.decompressed.message.bytes"


def test_records_larger_than_a_limit_that_was_lowered_later_are_taken() -> None:
    """Only where the target has the limit: releases before 4.4 refuse its name."""
    own = {LIMIT: "1000"}
    for found in (
        of_new_topic("t", own, replication_factor=1),
        of_new_topic("t", own, replication_factor=1, known=[LIMIT]),
        of_existing_topic(own, own),
    ):
        assert (found.configs[LIMIT], found.put_back[LIMIT]) == ("2147483639", "1000")
    of_brokers = of_new_topic("t", {}, replication_factor=1, known=[LIMIT])
    assert (of_brokers.configs[LIMIT], of_brokers.put_back[LIMIT]) == ("2147483639", None)
    assert LIMIT not in of_new_topic("t", {}, replication_factor=1).configs


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
    found, (blocker,) = _placed(**changes)
    assert found is None
    assert blocker.action.endswith(".")
    return blocker.found


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
        assert f"offset 60, where it would continue, is outside its log ({start} to {end})" in text

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
        assert "had committed offset 60, restore begun of billing restored 10 to 59" in text

    def test_not_behind_a_transaction_that_was_left_out(self) -> None:
        """The other application writes the topic, and will write that transaction again."""
        other = point(excluded={"orders": [OffsetRange(40, 45)]})
        assert "restored 10 to 40" in _problem(writer=_writer(other))

    @pytest.mark.parametrize(("committed", "is_refused"), [(59, True), (60, False)])
    def test_not_before_the_tail_of_the_other_restore(
        self, committed: int, is_refused: bool
    ) -> None:
        writer = _writer(request='{"inputs": "tail"}')
        found, refused = _placed(writer=writer, taken=point(committed={"orders": committed}))
        assert (found is None, bool(refused)) == (is_refused, is_refused)

    def test_not_once_records_of_it_are_gone(self) -> None:
        short = there("orders", ends=(80,))
        assert "it ends at 80, but restore begun" in _problem(known=short, writer=_writer())

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
