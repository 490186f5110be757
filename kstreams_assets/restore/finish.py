"""The end of a restore: topics get their own configs back once the application has caught up."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kstreams_assets.errors import ConfigsNotPutBackError, NotCaughtUpError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.topics import TopicDescription
from kstreams_assets.restore.own_target import require_own_target
from kstreams_assets.restore.restores_table import (
    RestoresTable,
    RestoreState,
    StoredRestore,
    StoredTopic,
)
from kstreams_assets.restore.retention_effect import RetentionEffect, retention_effects
from kstreams_assets.restore.watch import follow
from kstreams_assets.restore.watch_signs import Assessment, Health, Limits
from kstreams_assets.settings import ApplicationSettings

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
        NotCaughtUpError: The application is not there or has not caught up; nothing was changed.
        ConfigsNotPutBackError: Configs read back differ; the restore is not noted as finished.
        KStreamsAssetsError: See `require_own_target`, and what the target refuses.
    """
    require_own_target(settings, restore, target)
    if restore.state is RestoreState.FINISHED:
        return Finished(restore, {}, (), (), None, was_finished=True)
    assessment = None if force else _caught_up(settings, restore, target, limits, report)
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
    finished = replace(
        restore, state=RestoreState.FINISHED, changed_at_ms=time.time_ns() // 1_000_000
    )
    RestoresTable(settings.warehouse).append(finished)
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
                troubles=[str(trouble) for trouble in assessment.troubles],
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
            raise ConfigsNotPutBackError(differing=differing)
        time.sleep(_RETRY_S)


def _difference(topic: StoredTopic, described: TopicDescription) -> str:
    return ", ".join(
        f"{name} is {described.explicit_configs.get(name, 'not set')}, not {wanted or 'removed'}"
        for name, wanted in sorted(topic.put_back.items())
        if described.explicit_configs.get(name) != wanted
    )
