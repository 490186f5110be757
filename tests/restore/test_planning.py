"""A plan from what is wanted, what is held, and what the target is."""

from dataclasses import replace

import pytest

from kstreams_assets.app.model import Store
from kstreams_assets.app.store_format import StoreFormat, StoreKind
from kstreams_assets.checks import Finding
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import OriginalHeaders, RestoreMode
from kstreams_assets.offsets import CommittedOffset
from kstreams_assets.repository.contents import PartitionContents
from kstreams_assets.restore.plan import RestorePlan, SnapshotSource, TopicPlan
from kstreams_assets.restore.planner import make_plan, misread_buffers, plan_topics, restore_id
from kstreams_assets.restore.preconditions import Facts
from kstreams_assets.restore.request import ChangelogSource, InputsExtent, RestoreRequest
from kstreams_assets.restore.selection import Selection
from kstreams_assets.settings import VerifyExtent
from tests.restore.planning_samples import (
    ROLES,
    TARGET_CLUSTER,
    findings,
    noted,
    partition_of,
    point,
    status,
    stored,
    stored_topic,
    target,
    there,
)


def _topics(found: Facts) -> dict[str, TopicPlan]:
    return {topic.source: topic for topic in plan_topics(found)[0]}


def _plan(found: Facts, *blockers: Finding) -> RestorePlan:
    topics, notes = plan_topics(found)
    return make_plan(replace(found, notes=(*found.notes, *notes)), topics, blockers=blockers)


def _has_note(found: Facts, *words: str) -> bool:
    notes = _plan(found).notes
    return any(all(word in note for word in words) for note in notes)


class TestRestoreId:
    REQUEST = RestoreRequest()

    def _id(self, **changes: object) -> str:
        return restore_id("shop", "p1", "c1", self.REQUEST.model_copy(update=changes))  # pyright: ignore[reportArgumentType]

    def test_begins_with_the_point(self) -> None:
        assert self._id().startswith("p1-")
        assert len(self._id()) == len("p1-") + 8

    def test_the_same_for_the_same_request(self) -> None:
        assert self._id(topics={"a": "b", "c": "d"}) == self._id(topics={"c": "d", "a": "b"})
        assert self._id(exclude=("a", "b")) == self._id(exclude=("b", "a", "a"))
        assert self._id(application_id="shop") == self._id()

    @pytest.mark.parametrize(
        "changes",
        [
            {"point_id": "p1"},
            {"as_of_ms": 5},
            {"accept": Restorability.UNPROVEN},
            {"replication_factor": 3},
            {"verify": VerifyExtent.COUNTS},
            {"accept_replaced_timestamps": True},
        ],
    )
    def test_what_does_not_change_the_records_does_not_matter(self, changes: object) -> None:
        assert self._id(**changes) == self._id()  # pyright: ignore[reportCallIssue]

    @pytest.mark.parametrize(
        "changes",
        [
            {"mode": RestoreMode.REBUILD},
            {"mode": RestoreMode.LOGS},
            {"inputs": InputsExtent.TAIL},
            {"application_id": "b"},
            {"prefix": "b"},
            {"topics": {"a": "b"}},
            {"exclude": ("a",)},
            {"original_headers": OriginalHeaders(offset=True)},
            {"original_headers": OriginalHeaders(partition=True)},
            {"changelog_source": ChangelogSource.SNAPSHOT},
        ],
    )
    def test_another_for_other_records_or_names(self, changes: object) -> None:
        assert self._id(**changes) != self._id()  # pyright: ignore[reportCallIssue]

    def test_those_of_earlier_releases_stay(self) -> None:
        assert self._id() == "p1-3b7d38c5"

    def test_another_for_another_application_point_or_target(self) -> None:
        ids = {
            restore_id(*parts, self.REQUEST)
            for parts in (("a", "p", "c"), ("b", "p", "c"), ("a", "q", "c"), ("a", "p", "d"))
        }
        assert len(ids) == 4


class TestTopics:
    def test_all_that_is_wanted_with_what_is_held(self) -> None:
        found = _topics(findings(RestoreRequest(application_id="shop-b", prefix="dr-")))
        assert list(found) == sorted(ROLES)
        topic = found["shop-sums-changelog"]
        assert (topic.target, topic.roles) == ("shop-b-sums-changelog", ROLES[topic.source])
        assert (topic.records, topic.bytes, topic.windows, topic.exists) == (5, 50, 2, False)
        assert found["orders"].target == "dr-orders"
        (partition,) = topic.partitions
        assert partition.source == partition_of("shop-sums-changelog")
        assert partition.target == partition_of("shop-b-sums-changelog")
        assert (partition.topic_id, partition.base_offset) == ("shop-sums-changelog-id", 0)

    def test_committed_offsets_stay_in_source_offsets(self) -> None:
        (partition,) = _topics(findings())["orders"].partitions
        assert partition.committed is not None
        assert (partition.committed.offset, partition.committed.topic) == (60, "orders")

    def test_a_new_topic_gets_the_source_s_configs_relaxed(self) -> None:
        topic = _topics(findings())["orders"]
        assert topic.configs["retention.ms"] == "-1"
        assert topic.put_back["retention.ms"] == "1000"
        assert topic.configs["max.message.bytes"] == "104857600"

    def test_an_existing_topic_goes_on_from_its_end(self) -> None:
        known = there("orders", starts=(7,), ends=(7,), explicit_configs={"retention.bytes": "5"})
        topic = _topics(findings(target=target(known)))["orders"]
        assert (topic.exists, topic.partitions[0].base_offset) == (True, 7)
        assert topic.put_back["retention.bytes"] == "5"
        assert "max.message.bytes" not in topic.configs

    def test_one_of_this_restore_goes_on_where_it_began(self) -> None:
        known = there("orders", ends=(3,), explicit_configs={"retention.ms": "-1"})
        found = findings(target=target(known), stored=stored(stored_topic("orders")))
        topic = _topics(found)["orders"]
        assert (topic.exists, topic.partitions[0].base_offset) == (True, 0)
        assert topic.put_back == {"retention.ms": "77"}

    @pytest.mark.parametrize("topic_id", ["", "orders-there"])
    def test_a_topic_is_this_restore_s_by_its_id_or_while_none_was_noted(
        self, topic_id: str
    ) -> None:
        begun = stored(stored_topic("orders", target_topic_id=topic_id))
        found = findings(target=target(there("orders")), stored=begun)
        assert found.of_this_restore("orders") is not None

    def test_another_topic_of_the_same_name_is_not(self) -> None:
        begun = stored(stored_topic("orders", target_topic_id="deleted-since"))
        found = findings(target=target(there("orders", ends=(3,))), stored=begun)
        assert found.of_this_restore("orders") is None
        assert _topics(found)["orders"].partitions[0].base_offset == 3

    def test_one_that_is_written_from_a_snapshot(self) -> None:
        source = SnapshotSource("sums", "w1", raw_records=9, raw_bytes=90)
        topics = _topics(findings(snapshots={"shop-sums-changelog": source}))
        assert topics["shop-sums-changelog"].snapshot == source
        assert topics["orders"].snapshot is None

    @pytest.mark.parametrize(
        ("asked", "brokers", "source", "expected"),
        [(None, 1, 3, 1), (None, 3, 3, 3), (None, 5, 3, 3), (2, 3, 3, 2), (4, 3, 1, 3)],
    )
    def test_replicas(self, asked: int | None, brokers: int, source: int, expected: int) -> None:
        found = findings(
            RestoreRequest(replication_factor=asked),
            target=target(brokers=brokers),
            facts={"orders": noted("orders", {}, replicas=source)},
        )
        assert _topics(found)["orders"].replication_factor == expected
        assert _has_note(found, "fewer replicas", "orders") == (asked is None and source > expected)


class TestNotes:
    def test_none_without_a_reason(self) -> None:
        known = set(findings().selection.notes)
        assert set(_plan(findings()).notes) == known

    def test_configs_that_are_not_known(self) -> None:
        found = findings(facts={})
        assert _has_note(found, "shop-sums-repartition", "Kafka Streams repartition topic")
        repartition = _topics(found)["shop-sums-repartition"]
        assert repartition.configs["segment.bytes"] == "52428800"

    def test_configs_of_another_time_or_topic(self) -> None:
        later = findings(facts={"orders": noted("orders", {}, later=True)})
        assert _has_note(later, "recorded at the end of a window after the point: orders")
        recreated = findings(facts={"orders": noted("recreated", {})})
        assert _has_note(recreated, "configs of orders", "another topic of this name")

    def test_what_the_point_gives(self) -> None:
        weak = findings(status=status(Restorability.AT_LEAST_ONCE))
        assert _has_note(weak, "at_least_once")
        assert _has_note(
            findings(status=status(Restorability.UNPROVEN)), "possibly incomplete", "Because."
        )
        rebuilt = findings(
            RestoreRequest(mode=RestoreMode.REBUILD), status=status(Restorability.AT_LEAST_ONCE)
        )
        assert not _has_note(rebuilt, "at_least_once")

    def test_what_kafka_had_lost(self) -> None:
        found = findings(holdings={partition_of("orders"): PartitionContents(lost=1234)})
        assert _has_note(found, "lost 1,234 offset(s) of orders")

    def test_another_application_id_and_headers(self) -> None:
        assert _has_note(findings(RestoreRequest(application_id="b")), "continues as b")
        headers = OriginalHeaders(timestamp=True)
        assert _has_note(findings(RestoreRequest(original_headers=headers)), "Headers are added")

    def test_offsets_that_the_group_has_already(self) -> None:
        held = target(group_offsets={partition_of("orders"): CommittedOffset(5, "")})
        assert _has_note(findings(target=held), "has 1 committed offset(s)")
        mine = stored(committed=())
        mine = replace(mine, committed=point().group_offsets)
        assert not _has_note(findings(target=held, stored=mine), "committed offset(s) on")


class TestPlan:
    def test_of_a_point(self) -> None:
        plan = _plan(findings())
        assert plan.point == point()
        assert plan.restorability is Restorability.EXACT
        assert (plan.group, plan.target_cluster_id) == ("shop", TARGET_CLUSTER)
        assert plan.restore_id == restore_id("shop", point().id, TARGET_CLUSTER, RestoreRequest())
        assert (plan.records, plan.bytes, plan.blockers) == (35, 350, ())

    def test_without_one(self) -> None:
        nothing = {"selection": Selection(), "holdings": {}, "facts": {}}
        plan = _plan(replace(findings(), point=None, status=None, **nothing))
        assert (plan.restore_id, plan.point, plan.restorability) == (
            "",
            None,
            Restorability.NOTHING,
        )
        assert plan.topics == ()

    def test_all_refusals_are_listed_each_once(self) -> None:
        one, other, third = (Finding(name, "Problem.", action="Remedy.") for name in "abc")
        wrong_name = RestoreRequest(topics={"nothing": "x"})
        found = replace(
            findings(wrong_name),
            blockers=(one,),
            selection=replace(findings().selection, blockers=(other,)),
        )
        plan = _plan(found, third, one)
        assert [r.subject for r in plan.blockers] == ["a", "topics: nothing", "b", "c"]


BUFFER = Store("priced-Buffer", "shop-priced-Buffer-changelog")
SUMS = Store("sums", "shop-sums-changelog")
FORMATS = {"sums": StoreFormat(), "waits": StoreFormat(kind=StoreKind.JOIN_BUFFER)}
RESTORED = {"shop-priced-Buffer-changelog", "shop-sums-changelog", "shop-waits-changelog"}


def test_a_buffer_is_known_by_its_name_or_its_declared_kind() -> None:
    waits = Store("waits", "shop-waits-changelog")
    notes = [*misread_buffers([BUFFER, SUMS, waits], FORMATS, RESTORED)]
    assert [note.split(" buffers ")[0] for note in notes] == ["Store priced-Buffer", "Store waits"]
    assert "With shop-priced-Buffer-changelog excluded" in notes[0]


def test_nothing_is_said_of_one_whose_log_is_not_restored() -> None:
    unlogged = Store("other-Buffer", None)
    assert [*misread_buffers([BUFFER, unlogged], {}, {"shop-sums-changelog"})] == []


def test_a_store_that_only_has_such_a_name_is_read_as_declared() -> None:
    declared = {"priced-Buffer": StoreFormat()}
    assert [*misread_buffers([BUFFER], declared, RESTORED)] == []
