"""What retention deletes of restored records once a topic has its own configs again."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.offset_maps_table import OffsetMapsTable
from kstreams_assets.restore.own_target import partitions_of
from kstreams_assets.restore.restores_table import StoredRestore, StoredTopic
from kstreams_assets.warehouse.layout import Warehouse

_RETENTION: Final = "retention.ms"
_POLICY: Final = "cleanup.policy"
_KAFKA_DEFAULT_MS: Final = 604_800_000
_WITHOUT_END: Final = -1


@dataclass(frozen=True, slots=True)
class RetentionEffect:
    """What the original `retention.ms` of one topic deletes at once.

    `deleted` of the topic's `restored` records lie below the first record that is young enough:
    those go minutes after the config is back, segment by segment, so somewhat fewer may go at once.
    `before_ms` is the timestamp from which on records are kept. `is_default`: the topic has no
    value of its own, the brokers' default counts.
    """

    topic: str
    retention_ms: int
    is_default: bool
    before_ms: int
    restored: int
    deleted: int

    def __str__(self) -> str:
        before = datetime.fromtimestamp(self.before_ms / 1000, tz=UTC).isoformat(timespec="seconds")
        whose = "the brokers' default" if self.is_default else "its own value"
        return (
            f"{self.topic}: retention.ms={self.retention_ms} ({whose}) deletes {self.deleted:,} of"
            f" {self.restored:,} restored records at once: those up to the first record from"
            f" {before} or later."
        )


def retention_effects(
    warehouse: Warehouse, restore: StoredRestore, target: KafkaCluster, *, now_ms: int
) -> tuple[RetentionEffect, ...]:
    """What `finish` would let go, by topic; topics that lose nothing are left out.

    A broker deletes segments from the start of the log while their largest timestamp is older than
    `retention.ms`, the active segment included. Raises KafkaError where the target does not answer.
    """
    there = target.metadata().topics
    topics = [t for t in restore.topics if t.target in there and _RETENTION in t.put_back]
    described = target.describe_topics(topic.target for topic in topics)
    topics = [t for t in topics if "delete" in described[t.target].effective_configs[_POLICY]]
    maps = OffsetMapsTable(warehouse).load(
        restore.application_id, restore.restore_id, topics={topic.source for topic in topics}
    )
    ends = {stored.target: stored.map.end for stored in maps.values()}
    default_ms = _default_ms(target)
    found = []
    for topic in topics:
        own = topic.put_back[_RETENTION]
        retention_ms = default_ms if own is None else int(own)
        if retention_ms == _WITHOUT_END:
            continue
        before_ms = max(0, now_ms - retention_ms)
        deleted = _deleted(topic, ends, target, before_ms)
        if deleted:
            found.append(
                RetentionEffect(
                    topic.target, retention_ms, own is None, before_ms, topic.records, deleted
                )
            )
    return tuple(found)


def _default_ms(target: KafkaCluster) -> int:
    told = target.broker_retention_ms()
    return _KAFKA_DEFAULT_MS if told is None else told


def _deleted(
    topic: StoredTopic,
    ends: Mapping[TopicPartitionId, int],
    target: KafkaCluster,
    before_ms: int,
) -> int:
    """How many restored records lie below the first one that is kept."""
    partitions = partitions_of(topic)
    starts = target.log_start_offsets(partitions)
    highs = target.high_watermarks(partitions)
    first_kept = target.offsets_for_times(dict.fromkeys(partitions, before_ms))
    deleted = 0
    for id_, base in zip(partitions, topic.base_offsets, strict=True):
        kept_from = first_kept[id_]
        end = highs[id_] if kept_from is None else kept_from
        restored_end = ends.get(id_, base)
        deleted += max(0, min(end, restored_end) - max(starts[id_], base))
    return deleted
