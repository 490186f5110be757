"""Everything on the target or in the records that stands against a restore is found, and named."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kstreams_assets.checks import Finding
from kstreams_assets.kafka.groups import GroupState
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore
from kstreams_assets.offsets import CommittedOffset
from kstreams_assets.repository.contents import PartitionContents
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.planner import make_plan, plan_topics
from kstreams_assets.restore.preconditions import Facts, blockers, changed_since
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.selection import Selection
from kstreams_assets.restore.target import TargetState
from tests.restore.planning_samples import (
    RIGHTS,
    SOURCE_CLUSTER,
    findings,
    partition_of,
    stored,
    stored_topic,
    target,
    there,
)


def _blockers(
    found: Facts,
    *,
    largest: Mapping[str, int] = {},
    writers: Mapping[str, StoredRestore] = {},
) -> list[Finding]:
    topics, _ = plan_topics(found)
    return blockers(found, topics, largest=largest, writers=writers)


def _only(found: Facts, **known: Any) -> str:
    listed = _blockers(found, **known)
    assert len(listed) == 1, listed
    assert listed[0].subject
    assert listed[0].found.endswith(".")
    assert listed[0].action.endswith(".")
    return str(listed[0])


def _existing(name: str = "orders", **changes: Any) -> Facts:
    return findings(target=target(there(name, **changes)))


def _configs(**changes: str) -> dict[str, str]:
    configs = dict(there("t").effective_configs)
    return configs | {name.replace("_", "."): value for name, value in changes.items()}


def test_nothing_stands_against_an_empty_target() -> None:
    assert _blockers(findings()) == []
    assert _blockers(_existing()) == []
    assert _blockers(_existing(starts=(9,), ends=(9,))) == []


class TestGroup:
    @pytest.mark.parametrize("kind", ["classic", "consumer", "streams"])
    def test_with_members(self, kind: str) -> None:
        group = GroupState("shop", kind, "Stable", 2)
        text = _only(findings(target=target(group=group)))
        assert f"group shop: It is in use on the target ({kind} group, state Stable, 2" in text

    def test_with_members_that_a_command_is_to_stop(self) -> None:
        group = GroupState("shop", "classic", "Stable", 2)
        request = RestoreRequest(before_command="stop it", command_timeout_s=70)
        found = replace(findings(target=target(group=group)), request=request)
        assert _blockers(found) == []
        (note,) = [n for n in make_plan(found, ()).notes if "in use" in n]
        assert note.startswith("Group shop is in use on the target (state Stable). The before")
        assert "do not leave within 70 s" in note

    def test_whose_members_are_not_counted(self) -> None:
        group = GroupState("shop", "streams", "NotReady", None)
        assert "(streams group, state NotReady)" in _only(findings(target=target(group=group)))

    @pytest.mark.parametrize("kind", ["classic", "consumer", "streams"])
    def test_an_empty_one_is_fine(self, kind: str) -> None:
        group = GroupState("shop", kind, "Empty", 0)
        assert _blockers(findings(target=target(group=group))) == []

    def test_a_share_group_is_not(self) -> None:
        group = GroupState("shop", "share", "Empty", 0)
        assert "share group" in _only(findings(target=target(group=group)))

    def test_without_the_right_to_commit(self) -> None:
        text = _only(findings(target=target(group_operations=frozenset({"DESCRIBE"}))))
        assert "no right READ" in text
        assert "group shop" in text

    def test_all_rights_are_enough_and_unknown_ones_are_told_elsewhere(self) -> None:
        everything = target(group_operations=frozenset({"ALL"}))
        assert _blockers(findings(target=everything)) == []
        problem = Finding("group shop", "Not allowed.", action="Allow it.")
        unknown = target(group_operations=None, problems=(problem,))
        assert _blockers(findings(target=unknown)) == [problem]


class TestExistingTopics:
    def test_not_empty(self) -> None:
        text = _only(_existing(starts=(5,), ends=(1_205,)))
        assert "topic orders: It is not empty on the target: its logs hold 1,200 offsets." in text

    def test_written_by_another_restore(self) -> None:
        text = _only(_existing(ends=(5,)), writers={"orders-there": stored(restore_id="p0-1234")})
        assert "(written by restore p0-1234)" in text

    @pytest.mark.parametrize(
        ("topic", "remedy"),
        [
            ("orders", "--exclude orders --inputs-are-at mapped"),
            ("totals", "Run this restore with --exclude totals to keep"),
        ],
    )
    def test_restored_with_another_application(self, topic: str, remedy: str) -> None:
        other = stored(application_id="billing", restore_id="b0-99", state=RestoreState.COMMITTED)
        found = _existing(topic, ends=(5,))
        text = _only(found, writers={f"{topic}-there": other})
        assert "restore b0-99 of application billing (committed)" in text
        assert "Do not delete it" in text
        assert remedy in text

    def test_about_to_be_written_by_another_applications_restore(self) -> None:
        other = stored(application_id="billing", restore_id="b0-99")
        text = _only(_existing(), writers={"orders-there": other})
        assert "restore b0-99 of application billing has started to write it" in text
        done = replace(other, state=RestoreState.FINISHED)
        assert _blockers(_existing(), writers={"orders-there": done}) == []

    def test_partition_count(self) -> None:
        text = _only(_existing(starts=(0, 0, 0), ends=(0, 0, 0)))
        assert "It has 3 partition(s) on the target, the source had 1" in text

    def test_log_append_time(self) -> None:
        text = _only(_existing(effective_configs=_configs(message_timestamp_type="LogAppendTime")))
        assert "message.timestamp.type is LogAppendTime" in text

    def test_too_small_for_the_largest_record(self) -> None:
        text = _only(_existing(), largest={"orders": 2_000_000})
        assert "max.message.bytes is 1048588" in text
        assert "takes 2000000 bytes" in text

    def test_that_nothing_can_be_written_to(self) -> None:
        text = _only(_existing(effective_configs=_configs(min_insync_replicas="2")))
        assert "min.insync.replicas is 2, but it has 1 replica(s)" in text

    @pytest.mark.parametrize("right", ["READ", "WRITE", "ALTER_CONFIGS"])
    def test_rights(self, right: str) -> None:
        text = _only(_existing(operations=RIGHTS - {right}))
        assert f"topic orders: The user of the target connection has no right {right}" in text

    def test_several_things_of_one_topic_are_all_listed(self) -> None:
        found = _existing(
            starts=(0, 0),
            ends=(1, 0),
            operations=frozenset(),
            effective_configs=_configs(message_timestamp_type="LogAppendTime"),
        )
        assert len(_blockers(found, largest={"orders": 2_000_000})) == 5

    def test_under_its_name_on_the_target(self) -> None:
        request = RestoreRequest(prefix="dr-")
        assert _blockers(findings(request, target=target(there("orders", ends=(5,))))) == []
        found = findings(request, target=target(there("dr-orders", ends=(5,))))
        assert _only(found).startswith("topic dr-orders: It is not empty")


class TestThisRestore:
    BEGUN = stored(stored_topic("orders"))

    @pytest.mark.parametrize("end", [0, 3, 5])
    def test_what_it_wrote_itself_is_fine(self, end: int) -> None:
        found = findings(target=target(there("orders", ends=(end,))), stored=self.BEGUN)
        assert _blockers(found) == []

    def test_more_than_it_writes(self) -> None:
        found = findings(target=target(there("orders", ends=(6,))), stored=self.BEGUN)
        assert "ends at offset 6; this restore would end at 5: another process" in _only(found)

    def test_less_than_it_wrote(self) -> None:
        known = there("orders", starts=(2,), ends=(4,))
        text = _only(findings(target=target(known), stored=self.BEGUN))
        assert (
            "starts at offset 2, this restore started at 0: restored records were deleted" in text
        )

    def test_records_before_its_first_one(self) -> None:
        """Another restore had written the topic when this one began, so it began behind it."""
        begun = stored(stored_topic("orders", base_offsets=(5,)))
        known = target(there("orders", ends=(10,)))
        text = _only(findings(target=known, stored=begun))
        assert "starts at offset 0, this restore started at 5" in text

    def test_one_that_it_had_not_begun_to_write_must_be_empty(self) -> None:
        begun = stored(stored_topic("orders", target_topic_id="", base_offsets=()))
        assert _blockers(findings(target=target(there("orders")), stored=begun)) == []
        found = findings(target=target(there("orders", ends=(1,))), stored=begun)
        assert "It is not empty" in _only(found)

    def test_another_topic_of_that_name_is_not_its_own(self) -> None:
        known = there("orders", topic_id="recreated", ends=(3,))
        assert "It is not empty" in _only(findings(target=target(known), stored=self.BEGUN))


class TestHandedOver:
    """The same command again, when the application has gone on from what it restored."""

    DONE = stored(
        stored_topic("orders"),
        state=RestoreState.COMMITTED,
        committed=(GroupOffset("orders", 0, 3, ""),),
    )

    @pytest.mark.parametrize(
        ("ends", "changes", "sign"),
        [
            (5, {"group": GroupState("shop", "streams", "Stable", 2)}, "group shop is"),
            (5, {"group_offsets": {partition_of("orders"): CommittedOffset(4, "")}}, "offsets"),
            (8, {}, "1 topic(s) have newer records"),
        ],
    )
    def test_is_named_instead_of_somebody_elses_records(
        self, ends: int, changes: dict[str, Any], sign: str
    ) -> None:
        here = target(there("orders", ends=(ends,)), **changes)
        text = _only(findings(target=here, stored=self.DONE))
        assert text.startswith("restore begun: It was committed at 1970-01-01")
        assert sign in text
        assert "restore watch" in text
        assert "another process" not in text

    def test_as_it_was_left_it_may_be_run_again(self) -> None:
        offsets = {partition_of("orders"): CommittedOffset(3, "")}
        here = target(there("orders", ends=(5,)), group_offsets=offsets)
        assert _blockers(findings(target=here, stored=self.DONE)) == []

    def test_one_that_was_never_committed_is_not(self) -> None:
        verified = replace(self.DONE, state=RestoreState.VERIFIED, committed=None)
        here = target(there("orders", ends=(8,)))
        assert "another process has written to it" in _only(findings(target=here, stored=verified))


class TestChangedSince:
    """A plan made before the lock against the plan made under it."""

    def _changed(
        self, then: TargetState, now: TargetState, own: StoredRestore | None = None
    ) -> list[str]:
        before, after = (self._plan(seen, own) for seen in (then, now))
        return [str(blocker) for blocker in changed_since(before, after, own)]

    def _plan(self, seen: TargetState, own: StoredRestore | None) -> RestorePlan:
        found = findings(target=seen, stored=own)
        return make_plan(found, plan_topics(found)[0])

    def test_nothing(self) -> None:
        for seen in (target(), target(there("orders", starts=(4,), ends=(4,)))):
            assert self._changed(seen, seen) == []

    @pytest.mark.parametrize(
        ("then", "now", "how"),
        [
            (target(), target(there("orders")), "it is absent; now it has id"),
            (target(there("orders")), target(), "now it is absent"),
            (target(there("orders")), target(there("orders", topic_id="anew")), "has id anew"),
            (
                target(there("orders")),
                target(there("orders", starts=(7,), ends=(7,))),
                "ended at offset 0 at planning time; now it ends at 7",
            ),
        ],
    )
    def test_topics(self, then: TargetState, now: TargetState, how: str) -> None:
        (text,) = self._changed(then, now)
        assert text.startswith("topic orders: ")
        assert how in text

    def test_what_this_restore_wrote_meanwhile_is_no_difference(self) -> None:
        own = stored(stored_topic("orders"))
        written = target(there("orders", ends=(5,)))
        assert self._changed(target(), written, own) == []
        assert self._changed(target(), target(there("orders", topic_id="anew")), own) != []

    def test_offsets_of_the_group(self) -> None:
        id_ = partition_of("orders")
        now = target(group_offsets={id_: CommittedOffset(60, "")})
        (text,) = self._changed(target(), now)
        assert "group shop: Its committed offsets of 1 partition(s) have changed" in text
        own = stored(committed=(GroupOffset("orders", 0, 60, ""),))
        assert self._changed(target(), now, own) == []
        assert self._changed(now, target(), own) != []

    def test_what_is_restored(self) -> None:
        found = findings()
        then = make_plan(found, plan_topics(found)[0])
        fewer = replace(
            found, holdings={**found.holdings, partition_of("orders"): PartitionContents()}
        )
        now = make_plan(fewer, plan_topics(fewer)[0])
        (blocker,) = changed_since(then, now, None)
        assert "The restore now has 0 records; the plan had 5" in blocker.found


class TestSourceCluster:
    def _found(self, *topics: str, **changes: Any) -> Facts:
        here = target(*map(there, topics), **changes)
        return findings(target=replace(here, cluster_id=SOURCE_CLUSTER))

    def test_where_the_topics_are_still(self) -> None:
        text = _only(self._found("orders", "totals"))
        assert f"cluster {SOURCE_CLUSTER}: It is the source cluster" in text
        assert "still has these topics: orders, totals." in text

    def test_topics_that_are_gone_may_come_back(self) -> None:
        assert _blockers(self._found()) == []

    def test_other_names_are_no_danger(self) -> None:
        request = RestoreRequest(application_id="b", prefix="b-")
        here = replace(target(there("orders")), cluster_id=SOURCE_CLUSTER)
        assert _blockers(findings(request, target=here)) == []

    def test_nor_another_cluster(self) -> None:
        assert _blockers(findings(target=target(there("orders")))) == []

    def test_nor_those_that_this_restore_made(self) -> None:
        found = replace(self._found("orders"), stored=stored(stored_topic("orders")))
        assert _blockers(found) == []


class TestLeftThere:
    CHANGELOG = "shop-sums-changelog"

    def test_state_that_a_rebuild_would_go_on_from(self) -> None:
        request = RestoreRequest(mode=RestoreMode.REBUILD)
        old = target(there(self.CHANGELOG, ends=(4,)))
        text = _only(findings(request, target=old))
        assert f"topic {self.CHANGELOG}: It is an internal topic" in text
        assert _blockers(findings(request, target=target(there(self.CHANGELOG)))) == []

    def test_topics_of_others_are_none_of_ours(self) -> None:
        found = findings(target=target(there("elsewhere", ends=(4,))))
        assert _blockers(found) == []

    def test_without_a_point_every_topic_with_records_is_named(self) -> None:
        here = target(there("orders", ends=(4,)), there("totals"), there("rates", ends=(9,)))
        nothing: dict[str, Any] = {"selection": Selection(), "holdings": {}, "facts": {}}
        found = replace(findings(target=here), point=None, status=None, **nothing)
        assert [r.subject for r in _blockers(found)] == ["topic orders", "topic rates"]


class TestTopicsWithoutFacts:
    """Of which no backup recorded configs and replicas."""

    def test_each_that_would_be_created_is_refused(self) -> None:
        found = findings(facts={})
        expected = {
            f"topic {topic.source}"
            for topic in found.selection.topics
            if not topic.roles.in_flight_only
        }
        refused = _blockers(found)
        assert {one.subject for one in refused} == expected
        assert "topic shop-sums-changelog" in expected
        assert "cleanup.policy=delete" in str(refused[0])
        assert "with 1 partition(s)" in refused[0].action

    def test_those_that_are_there_keep_their_own_configs(self) -> None:
        names = [topic.source for topic in findings().selection.topics]
        assert _blockers(findings(facts={}, target=target(*map(there, names)))) == []


class TestRecords:
    ODD: Mapping[Any, PartitionContents] = {
        partition_of("orders"): PartitionContents(records=9, non_positive_timestamps=1_003),
        partition_of("totals"): PartitionContents(records=9, non_positive_timestamps=2),
    }

    def test_timestamps_of_zero_or_below_stand_against_nothing(self) -> None:
        assert _blockers(findings(holdings=self.ODD)) == []


@pytest.mark.parametrize("asked", [0, 2, -1])
def test_replicas_that_the_target_cannot_have(asked: int) -> None:
    text = _only(findings(RestoreRequest(replication_factor=asked)))
    assert f"replication_factor {asked}: The target has 1 broker(s)" in text
