"""The end of a restore: topics get their original configs once the application has caught up."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.admin import TopicDescription
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.model.restores import RestoreState, StoredRestore, StoredTopic
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.public_form import Form, Value
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.steps import Step, newest_locked, require
from kstreams_assets.restore.target import partitions_of, require_own_target
from kstreams_assets.restore.watch import ASSESSMENT, Assessment, Health, Limits, follow
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store.locks import LockHandle

_RETENTION: Final = "retention.ms"
_POLICY: Final = "cleanup.policy"
_KAFKA_DEFAULT_MS: Final = 604_800_000
_WITHOUT_END: Final = -1


@dataclass(frozen=True, slots=True)
class RetentionEffect:
    """The records of one topic that its original `retention.ms` deletes at once.

    `deleted` of the topic's `restored` records are below the first record that is young enough.
    Brokers delete them minutes after the config is restored, by segment, so slightly fewer may be
    deleted at once. `before_ms` is the timestamp from which on records are kept. `is_default`: the
    topic has no value of its own, and the brokers' default applies.
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
    repo: Repository, restore: StoredRestore, target: KafkaCluster, *, now_ms: int
) -> tuple[RetentionEffect, ...]:
    """Return what `finish` would let brokers delete, by topic; unaffected topics are left out.

    A broker deletes segments from the start of the log while their largest timestamp is older than
    `retention.ms`, the active segment included. Raises KafkaError if the target does not answer.
    """
    there = target.metadata().topics
    topics = [t for t in restore.topics if t.target in there and _RETENTION in t.put_back]
    described = target.describe_topics(topic.target for topic in topics)
    topics = [t for t in topics if "delete" in described[t.target].effective_configs[_POLICY]]
    maps = repo.offset_maps.load(restore.restore_id, topics={topic.source for topic in topics})
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
    reported_ms = target.broker_retention_ms()
    return _KAFKA_DEFAULT_MS if reported_ms is None else reported_ms


def _deleted(
    topic: StoredTopic,
    ends: Mapping[TopicPartitionId, int],
    target: KafkaCluster,
    before_ms: int,
) -> int:
    """Return how many restored records are below the first one that is kept."""
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


# Under load with the default commit interval of at least once (30 s), twice the log contents.
FINISH_LIMITS: Final = Limits(timeout_s=120.0)

_APPLIED_WITHIN_S: Final = 10.0
_RETRY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished restore.

    `put_back` are the configs that were set, by topic (None: its own value removed), empty if it
    `was_finished` before. `effects` is what retention now deletes. `left_alone` are topics that
    were deleted or recreated since the restore. `assessment` describes the application, None if
    that was not checked.
    """

    restore: StoredRestore
    put_back: Mapping[str, Mapping[str, str | None]]
    effects: tuple[RetentionEffect, ...]
    left_alone: tuple[str, ...]
    assessment: Assessment | None
    was_finished: bool = False


FINISHED: Final = Form(
    Finished,
    "restore_id=restore.restore_id state=restore.state was_finished put_back",
    Value("retention", of=lambda done: [*map(str, done.effects)]),
    "left_alone",
    Value("seen", of="assessment", form=ASSESSMENT),
)


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
    """Restore the original topic configs, read them back, and record the restore as finished.

    Before that the application must be seen to have caught up, within `limits`, unless `force`, or
    unless the mode is `logs`, from which no application continues. `warn` receives what the
    original `retention.ms` deletes of a topic before it is set. A second call changes nothing.
    Needs ALTER_CONFIGS on the topics, and what `watch` needs.

    Raises:
        KStreamsAssetsError: The group offsets of the restore were not committed.
            The application is missing or has not caught up; nothing was changed.
            Configs read back differ; the restore is not recorded as finished.
            See `require_own_target`, and errors of the target.
    """
    require_own_target(settings, restore, target)
    require(restore, Step.FINISH)
    if restore.state is RestoreState.FINISHED:
        return Finished(restore, {}, (), (), None, was_finished=True)
    is_unread = force or not restore.mode.commits_offsets
    assessment = None if is_unread else _caught_up(settings, restore, target, limits, report)
    with newest_locked(settings, restore, Step.FINISH) as (repo, newest, lock):
        if newest.state is RestoreState.FINISHED:
            return Finished(newest, {}, (), (), assessment, was_finished=True)
        return _finished(repo, newest, target, assessment, warn, lock)


def _finished(
    repo: Repository,
    restore: StoredRestore,
    target: KafkaCluster,
    assessment: Assessment | None,
    warn: Callable[[RetentionEffect], None] | None,
    lock: LockHandle,
) -> Finished:
    """Set the configs, read them back, record the result."""
    now_ms = time.time_ns() // 1_000_000
    effects = retention_effects(repo, restore, target, now_ms=now_ms)
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
    finished = repo.restores.change(restore, writer=lock, state=RestoreState.FINISHED)
    left_alone = tuple(t.target for t in restore.topics if t not in own)
    return Finished(finished, changes, effects, left_alone, assessment)


def _caught_up(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaCluster,
    limits: Limits,
    report: Callable[[Assessment], None] | None,
) -> Assessment:
    """Return the state of the application; raise KStreamsAssetsError, at once if it is stopped."""
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
            raise _not_caught_up(restore.group, assessment)


def _not_caught_up(group: str, seen: Assessment) -> KStreamsAssetsError:
    what = "has not caught up"
    if not seen.observation.has_members:
        what = "has no member, so the application does not seem to run"
    elif seen.counted and seen.records_left == 0:
        what = "has no record left to read, but is not healthy yet"
    troubles = "".join(f" {trouble.text}" for trouble in seen.troubles)
    return KStreamsAssetsError(
        f"Group {group} {what} ({seen}).{troubles} Nothing was changed.",
        remedy="Start the application and run kstreams-assets restore watch, then try again. If the"
        " application will not continue here, use --force.",
    )


def _compare(topics: list[StoredTopic], target: KafkaCluster) -> None:
    """Read the configs back; brokers apply a change a moment after accepting it."""
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
            raise KStreamsAssetsError(
                f"Configs read back differ from the restored ones: {listed}.",
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


def abandon(settings: ApplicationSettings, restore: StoredRestore) -> StoredRestore:
    """Record that a restore is not continued, and return the record.

    Its recovery point may expire, and neither `expire` nor backups wait for it. The target is not
    changed: topics of the restore stay there. A later run of the same restore is planned from the
    state of the target at that time.

    Raises:
        KStreamsAssetsError: Its group offsets are committed, or it is finished.
        WarehouseLockedError: It is running.
    """
    require(restore, Step.ABANDON)
    with newest_locked(settings, restore, Step.ABANDON) as (repo, newest, lock):
        return repo.restores.change(
            newest,
            writer=lock,
            state=RestoreState.FINISHED,
            # No application continues from a finished restore without committed offsets.
            committed=None,
            problem="It was abandoned.",
        )
