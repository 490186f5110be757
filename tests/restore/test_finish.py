"""restore/finish.py: original configs come back on a real broker, once all is read."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer

from kstreams_assets.app.model import TopicRole
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.model.restores import PartitionProduced, RestoreState, StoredRestore
from kstreams_assets.offsets import CommittedOffset, OffsetRun, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.finish import RetentionEffect, finish
from kstreams_assets.restore.watch import Health, Limits
from tests.restore.after_commit import AfterCommit, now_ms, write
from tests.restore.test_watch import delete, remake
from tests.streams.cluster import unique_name

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000
WEEK_MS = 168 * HOUR_MS
RELAXED = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.before.max.ms": str(2**63 - 1),
}
QUICK = Limits(every_s=0.2, timeout_s=3)


def explicit(bench: AfterCommit, topic: str) -> dict[str, str]:
    return dict(bench.cluster.describe_topics([topic])[topic].explicit_configs)


def map_whole(bench: AfterCommit, restore: StoredRestore) -> None:
    """Store offset maps of all records of the restore, offset for offset."""
    produced = []
    for topic in restore.topics:
        count = topic.records // len(topic.base_offsets)
        for number in range(len(topic.base_offsets)):
            id_ = TopicPartitionId(topic.target, number)
            produced.append(PartitionProduced(id_, id_, (OffsetRun(0, 0, count),), count, 0, count))
    Repository(bench.settings.warehouse, restore.application_id).offset_maps.record(
        restore.restore_id, produced
    )


@contextmanager
def member(bench: AfterCommit, topic: str) -> Iterator[Consumer]:
    """A consumer that has joined the group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bench.cluster.connection.bootstrap_servers,
            "group.id": bench.group,
            "enable.auto.offset.store": False,
            "auto.commit.interval.ms": 100,
        }
    )
    joined: list[object] = []
    consumer.subscribe([topic], on_assign=lambda _, partitions: joined.extend(partitions))
    try:
        while not joined:
            consumer.poll(0.1)
        yield consumer
    finally:
        consumer.close()


def test_configs_are_put_back_when_all_is_read(bench: AfterCommit) -> None:
    old, now = now_ms() - 2 * HOUR_MS, now_ms()
    topic = bench.topic(
        unique_name("end"),
        configs=RELAXED | {"segment.bytes": "1048576"},
        put_back={
            "retention.ms": str(HOUR_MS),
            "retention.bytes": None,
            "message.timestamp.before.max.ms": None,
        },
        timestamps_ms=[old, old, now, old, now],
    )
    untouched = bench.topic(unique_name("untouched"), configs=RELAXED)
    restore = bench.restore({TopicPartitionId(topic, 0): CommittedOffset(1, "")})
    map_whole(bench, restore)
    warnings: list[tuple[RetentionEffect, dict[str, str]]] = []
    with member(bench, topic) as consumer:

        def read_on(_: object) -> None:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                consumer.store_offsets(message)

        done = finish(
            bench.settings,
            restore,
            bench.cluster,
            limits=Limits(every_s=0.1, timeout_s=30),
            report=read_on,
            warn=lambda effect: warnings.append((effect, explicit(bench, topic))),
        )
    assert done.assessment is not None
    assert done.assessment.health is Health.HEALTHY
    ((effect, configs_then),) = warnings
    assert configs_then["retention.ms"] == "-1"  # told before it is done
    assert (effect.topic, effect.retention_ms, effect.is_default) == (topic, HOUR_MS, False)
    assert (effect.deleted, effect.restored) == (2, 5)
    assert "deletes 2 of 5 restored records" in str(effect)
    assert explicit(bench, topic) == {"retention.ms": str(HOUR_MS), "segment.bytes": "1048576"}
    assert explicit(bench, untouched) == RELAXED
    assert done.put_back.keys() == {topic}
    stored = bench.stored(restore)
    assert stored is not None
    assert stored.state is RestoreState.FINISHED
    bench.cluster.alter_topic_configs({topic: {"retention.ms": "5000000"}})
    again = finish(bench.settings, stored, bench.cluster)
    assert again.was_finished
    assert explicit(bench, topic)["retention.ms"] == "5000000"  # the operator's own, left alone


def test_a_stopped_application_that_has_read_everything_is_not_said_to_lag(
    bench: AfterCommit,
) -> None:
    topic = bench.topic(unique_name("read"), timestamps_ms=[now_ms()] * 3)
    restore = bench.restore({TopicPartitionId(topic, 0): CommittedOffset(3, "")})
    map_whole(bench, restore)
    with pytest.raises(KStreamsAssetsError, match="does not seem to run") as refused:
        finish(bench.settings, restore, bench.cluster, limits=QUICK)
    assert "0 records left" in refused.value.problem
    assert "has not caught up" not in refused.value.problem


def test_refused_until_it_has_caught_up_unless_forced(bench: AfterCommit) -> None:
    topic = bench.topic(
        unique_name("end"),
        configs=RELAXED,
        put_back={"retention.ms": None},
        timestamps_ms=[now_ms()] * 3,
    )
    restore = bench.restore({TopicPartitionId(topic, 0): CommittedOffset(0, "")})
    map_whole(bench, restore)
    with pytest.raises(KStreamsAssetsError, match="3 records left") as refused:
        finish(bench.settings, restore, bench.cluster, limits=QUICK)
    assert "waiting" in refused.value.problem
    assert "does not seem to run" in refused.value.problem
    with member(bench, topic), pytest.raises(KStreamsAssetsError, match="timed out"):
        finish(bench.settings, restore, bench.cluster, limits=QUICK)
    assert explicit(bench, topic) == RELAXED
    assert bench.stored(restore) == restore
    done = finish(bench.settings, restore, bench.cluster, force=True)
    assert done.assessment is None
    assert "retention.ms" not in explicit(bench, topic)
    assert bench.stored(restore) == done.restore


def test_what_the_brokers_default_deletes(bench: AfterCommit) -> None:
    ancient = now_ms() - WEEK_MS - HOUR_MS
    back: dict[str, str | None] = {"retention.ms": None}
    kept = unique_name("kept"), unique_name("compacted"), unique_name("for-ever")
    lost = bench.topic(
        unique_name("lost"),
        partitions=2,
        configs=RELAXED,
        put_back=back,
        role=TopicRole.OUTPUT,
        timestamps_ms=[ancient] * 4,
    )
    bench.topic(kept[0], configs=RELAXED, put_back=back, timestamps_ms=[now_ms()] * 4)
    compacted = RELAXED | {"cleanup.policy": "compact"}
    bench.topic(kept[1], configs=compacted, put_back=back, timestamps_ms=[ancient] * 4)
    for_ever: dict[str, str | None] = {"retention.ms": "-1"}
    bench.topic(kept[2], configs=RELAXED, put_back=for_ever, timestamps_ms=[ancient] * 4)
    restore = bench.restore({})
    map_whole(bench, restore)
    # written since, by the application: not the restore's records
    write(bench.cluster, lost, [ancient], partitions=2)
    done = finish(bench.settings, restore, bench.cluster, force=True)
    (effect,) = done.effects
    assert (effect.topic, effect.retention_ms, effect.is_default) == (lost, WEEK_MS, True)
    assert (effect.deleted, effect.restored) == (8, 8)


def test_topics_made_anew_are_left_alone(bench: AfterCommit) -> None:
    back: dict[str, str | None] = {"retention.ms": "5000000"}
    topics = [bench.topic(unique_name(name), put_back=back) for name in ("mine", "anew", "gone")]
    restore = bench.restore({})
    remake(bench.cluster, topics[1])
    delete(bench.cluster, topics[2])
    done = finish(bench.settings, restore, bench.cluster, force=True)
    assert done.left_alone == tuple(topics[1:])
    assert explicit(bench, topics[0]) == back
    assert explicit(bench, topics[1]) == {}


def test_not_finished_while_configs_differ(
    bench: AfterCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic(unique_name("end"), put_back={"retention.ms": "5000000"})
    restore = bench.restore({})
    monkeypatch.setattr("kstreams_assets.restore.finish._APPLIED_WITHIN_S", 0.5)
    monkeypatch.setattr(bench.cluster, "alter_topic_configs", lambda changes: None)
    with pytest.raises(KStreamsAssetsError, match=r"retention\.ms is not set, not 5000000"):
        finish(bench.settings, restore, bench.cluster, force=True)
    assert bench.stored(restore) == restore
