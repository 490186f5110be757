"""restore/topics.py: topics are made and relaxed; what is noted survives a kill in between."""

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.plan import PartitionPlan, RestorePlan, TopicPlan
from kstreams_assets.restore.records import intended_topics, prepare_topics
from kstreams_assets.restore.request import RestoreRequest
from tests.restore.after_commit import AfterCommit, now_ms, write
from tests.streams.cluster import unique_name

pytestmark = pytest.mark.kafka

RELAXED = {"retention.ms": "-1"}
PUT_BACK: dict[str, str | None] = {"retention.ms": "60000"}


def plan_of(
    bench: AfterCommit, *names: str, put_back: dict[str, str | None] | None = None
) -> RestorePlan:
    """As a planner sees these topics now."""
    present = bench.cluster.metadata().topics
    return RestorePlan(
        restore_id="restore",
        application_id=bench.settings.application_id,
        group=bench.group,
        target_cluster_id=bench.cluster.cluster_id(),
        target_bootstrap_servers=bench.cluster.connection.bootstrap_servers,
        request=RestoreRequest(),
        point=None,
        restorability=Restorability.EXACT,
        topics=tuple(
            _topic(
                name,
                PUT_BACK if put_back is None else put_back,
                present[name].topic_id if name in present else None,
                bench.ends(name) if name in present else (0, 0),
            )
            for name in names
        ),
    )


def _topic(
    name: str, put_back: dict[str, str | None], topic_id: str | None, ends: tuple[int, ...]
) -> TopicPlan:
    ids = [TopicPartitionId(name, number) for number in range(2)]
    return TopicPlan(
        source=name,
        target=name,
        roles=TopicRoles({TopicRole.INPUT}),
        partitions=tuple(
            PartitionPlan(i, i, "", (), (), records=3, bytes=0, base_offset=end)
            for i, end in zip(ids, ends, strict=True)
        ),
        replication_factor=1,
        target_topic_id=topic_id,
        configs=RELAXED,
        put_back=put_back,
    )


def test_missing_topics_are_made_with_relaxed_configs(bench: AfterCommit) -> None:
    plan = plan_of(bench, unique_name("new"), unique_name("new"))

    intended = intended_topics(plan, None)
    assert [(t.target_topic_id, t.base_offsets, t.created) for t in intended] == [
        ("", (), True)
    ] * 2
    prepared = prepare_topics(plan, intended, bench.cluster)

    described = bench.cluster.describe_topics(t.target for t in prepared)
    for topic in prepared:
        found = described[topic.target]
        assert (found.partitions, found.explicit_configs) == (2, RELAXED)
        assert topic.target_topic_id == found.topic_id
        assert (topic.base_offsets, topic.records, topic.put_back) == ((0, 0), 6, PUT_BACK)


def test_a_topic_that_is_there_is_relaxed_and_its_end_is_the_base(bench: AfterCommit) -> None:
    name = unique_name("there")
    bench.cluster.create_topics([TopicSpec(name, 2, 1, {"retention.ms": "60000"})])
    write(bench.cluster, name, [now_ms()] * 3, partitions=2)
    bench.cluster.delete_records({TopicPartitionId(name, n): 3 for n in range(2)})
    plan = plan_of(bench, name)

    (topic,) = prepare_topics(plan, intended_topics(plan, None), bench.cluster)

    assert (topic.created, topic.base_offsets) == (False, (3, 3))
    assert bench.cluster.describe_topics([name])[name].effective_configs["retention.ms"] == "-1"


def test_killed_between_making_topics_and_noting_their_ids(bench: AfterCommit) -> None:
    plan = plan_of(bench, unique_name("killed"))
    noted = replace(
        bench.restore({}, state=RestoreState.PLANNED), topics=intended_topics(plan, None)
    )
    prepare_topics(plan, noted.topics, bench.cluster)
    # the second plan finds the topic there, with relaxed configs
    second = plan_of(bench, plan.topics[0].target, put_back={"retention.ms": "-1"})

    (topic,) = prepare_topics(second, intended_topics(second, noted), bench.cluster)

    assert (topic.created, topic.put_back, topic.base_offsets) == (True, PUT_BACK, (0, 0))


def test_a_second_attempt_keeps_the_base_of_the_first(bench: AfterCommit) -> None:
    plan = plan_of(bench, unique_name("again"))
    name = plan.topics[0].target
    first = prepare_topics(plan, intended_topics(plan, None), bench.cluster)
    noted = replace(bench.restore({}, state=RestoreState.PLANNED), topics=first)
    write(bench.cluster, name, [now_ms()] * 2, partitions=2)
    plan = plan_of(bench, name)

    assert prepare_topics(plan, intended_topics(plan, noted), bench.cluster) == first

    # made anew: nothing of the first attempt holds any more
    bench.cluster.delete_topics([name])
    _await_gone(bench, name)
    plan = plan_of(bench, name)
    (anew,) = prepare_topics(plan, intended_topics(plan, noted), bench.cluster)
    assert anew.target_topic_id != first[0].target_topic_id
    assert anew.base_offsets == (0, 0)


class TestChangedSinceThePlan:
    """Nobody's records but this restore's: what was made or written meanwhile is left alone."""

    def test_created_by_somebody_else(self, bench: AfterCommit) -> None:
        plan = plan_of(bench, unique_name("raced"))
        name = plan.topics[0].target
        bench.cluster.create_topics([TopicSpec(name, 2, 1, {"retention.ms": "60000"})])

        self._refused(bench, plan, name)

        assert bench.cluster.describe_topics([name])[name].explicit_configs == {
            "retention.ms": "60000"
        }

    def test_created_between_the_look_and_the_creation(
        self, bench: AfterCommit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = plan_of(bench, unique_name("raced"), unique_name("raced"))
        name = plan.topics[1].target
        create = bench.cluster.create_topics

        def raced(specs: Iterable[TopicSpec]) -> None:
            create([TopicSpec(name, 2, 1)])
            create(specs)

        monkeypatch.setattr(bench.cluster, "create_topics", raced)
        self._refused(bench, plan, name)

    def test_written_by_a_producer(self, bench: AfterCommit) -> None:
        name = unique_name("written")
        bench.cluster.create_topics([TopicSpec(name, 2, 1)])
        plan = plan_of(bench, name)
        write(bench.cluster, name, [now_ms()])

        self._refused(bench, plan, name)

    def test_recreated(self, bench: AfterCommit) -> None:
        name = unique_name("recreated")
        bench.cluster.create_topics([TopicSpec(name, 2, 1)])
        plan = plan_of(bench, name)
        bench.cluster.delete_topics([name])
        _await_gone(bench, name)
        bench.cluster.create_topics([TopicSpec(name, 2, 1)])

        self._refused(bench, plan, name)

    def _refused(self, bench: AfterCommit, plan: RestorePlan, name: str) -> None:
        with pytest.raises(KStreamsAssetsError, match="is refused") as raised:
            prepare_topics(plan, intended_topics(plan, None), bench.cluster)
        (text,) = re.findall(r"^- .*", str(raised.value), flags=re.MULTILINE)
        assert text.startswith(f"- topic {name}: ")
        assert "Another restore, the application or a producer" in text


def _await_gone(bench: AfterCommit, name: str) -> None:
    deadline = now_ms() + 20_000
    while name in bench.cluster.metadata().topics:
        assert now_ms() < deadline
