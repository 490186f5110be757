"""The end of a restore: topics get their own configs back once the application has caught up."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kstreams_assets.errors import NotCaughtUpError, RestoreError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.topics import TopicDescription
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import LockHandle
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.steps import Step, newest_locked, require
from kstreams_assets.restore.target import partitions_of, require_own_target
from kstreams_assets.restore.watch import Assessment, Health, Limits, follow
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.restores import (
    OffsetMapsTable,
    RestoresTable,
    RestoreState,
    StoredRestore,
    StoredTopic,
)

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


# Under load with the default commit interval of at least once (30 s), twice what lies in the logs.
FINISH_LIMITS: Final = Limits(timeout_s=120.0)

_APPLIED_WITHIN_S: Final = 10.0
_RETRY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished restore.

    `put_back` are the configs that were set, by topic (None: its own value removed), empty when it
    `was_finished` before. `effects` is what retention now deletes. `left_alone` are topics that
    were deleted or made anew since the restore. `assessment` is how the application was seen, None
    if that was not asked.
    """

    restore: StoredRestore
    put_back: Mapping[str, Mapping[str, str | None]]
    effects: tuple[RetentionEffect, ...]
    left_alone: tuple[str, ...]
    assessment: Assessment | None
    was_finished: bool = False


def finish(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaCluster,
    *,
    force: bool = False,
    limits: Limits = FINISH_LIMITS,
    report: Callable[[Assessment], None] | None = None,
    warn: Callable[[RetentionEffect], None] | None = None,
) -> Finished:
    """Put the original topic configs back, read them back, and note that the restore is finished.

    Before that the application has to be seen caught up, within `limits`, unless `force`. `warn`
    gets what the original `retention.ms` deletes of a topic before it is set. A second time nothing
    is done. Needs ALTER_CONFIGS on the topics, and what `watch` needs.

    Raises:
        RestoreStateError: The group offsets of the restore were not committed.
        NotCaughtUpError: The application is not there or has not caught up; nothing was changed.
        RestoreError: Configs read back differ; the restore is not noted as finished.
        KStreamsAssetsError: See `require_own_target`, and what the target refuses.
    """
    require_own_target(settings, restore, target)
    require(restore, Step.FINISH)
    if restore.state is RestoreState.FINISHED:
        return Finished(restore, {}, (), (), None, was_finished=True)
    assessment = None if force else _caught_up(settings, restore, target, limits, report)
    with newest_locked(settings, restore, Step.FINISH) as (newest, lock):
        if newest.state is RestoreState.FINISHED:
            return Finished(newest, {}, (), (), assessment, was_finished=True)
        return _finished(settings, newest, target, assessment, warn, lock)


def _finished(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaCluster,
    assessment: Assessment | None,
    warn: Callable[[RetentionEffect], None] | None,
    lock: LockHandle,
) -> Finished:
    """Set the configs, read them back, record it."""
    now_ms = time.time_ns() // 1_000_000
    effects = retention_effects(settings.warehouse, restore, target, now_ms=now_ms)
    for effect in effects:
        if warn is not None:
            warn(effect)
    present = target.metadata().topics
    own = [
        topic
        for topic in restore.topics
        if topic.target in present and present[topic.target].topic_id == topic.target_topic_id
    ]
    changes = {topic.target: dict(topic.put_back) for topic in own if topic.put_back}
    if changes:
        target.alter_topic_configs(changes)
        _compare([topic for topic in own if topic.put_back], target)
    finished = RestoresTable(settings.warehouse).change(
        restore, writer=lock, state=RestoreState.FINISHED
    )
    left_alone = tuple(t.target for t in restore.topics if t not in own)
    return Finished(finished, changes, effects, left_alone, assessment)


def _caught_up(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaCluster,
    limits: Limits,
    report: Callable[[Assessment], None] | None,
) -> Assessment:
    """How the application was seen; raises NotCaughtUpError, at once if it does not run."""
    assessments = follow(settings, restore, target, limits=limits)
    while True:
        assessment = next(assessments)
        if report is not None:
            report(assessment)
        if assessment.health is Health.HEALTHY:
            assessments.close()
            return assessment
        if assessment.has_ended or assessment.health is Health.WAITING:
            assessments.close()
            raise NotCaughtUpError(
                group=restore.group,
                seen=str(assessment),
                troubles=[trouble.text for trouble in assessment.troubles],
                records_left=assessment.records_left if assessment.counted else None,
                is_running=assessment.observation.has_members,
            )


def _compare(topics: list[StoredTopic], target: KafkaCluster) -> None:
    """Read the configs back; brokers learn of a change a moment after it was accepted."""
    deadline = time.monotonic() + _APPLIED_WITHIN_S
    while True:
        described = target.describe_topics(topic.target for topic in topics)
        differing = {
            topic.target: difference
            for topic in topics
            if (difference := _difference(topic, described[topic.target]))
        }
        if not differing:
            return
        if time.monotonic() > deadline:
            listed = "; ".join(f"{topic}: {what}" for topic, what in differing.items())
            raise RestoreError(
                f"Configs read back are not those that were put back: {listed}.",
                remedy="Check that nothing else sets the configs of these topics, then finish"
                " again.",
            )
        time.sleep(_RETRY_S)


def _difference(topic: StoredTopic, described: TopicDescription) -> str:
    return ", ".join(
        f"{name} is {described.explicit_configs.get(name, 'not set')}, not {wanted or 'removed'}"
        for name, wanted in sorted(topic.put_back.items())
        if described.explicit_configs.get(name) != wanted
    )
