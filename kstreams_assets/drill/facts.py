"""What a drill notes of its restore and of its application."""

import time
from collections.abc import Iterable
from pathlib import Path

from kstreams_assets.app.model import TopicRole
from kstreams_assets.drill.measure import size_of
from kstreams_assets.drill.process import DrilledApplication
from kstreams_assets.drill.report import ApplicationMeasure, RateFrom, Restored
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.restore.own_target import roles_of
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.restores_table import StoredRestore
from kstreams_assets.restore.retention_effect import retention_effects
from kstreams_assets.settings import ApplicationSettings

_SOURCES = frozenset({TopicRole.INPUT, TopicRole.GLOBAL})


def restored_of(
    settings: ApplicationSettings,
    plan: RestorePlan,
    restore: StoredRestore,
    target: KafkaConnection,
) -> Restored:
    """What was restored, with what the original topic configs would delete of it."""
    point = plan.point
    assert point is not None  # noqa: S101 (else nothing was restored)
    return Restored(
        point_id=point.id,
        point_taken_at_ms=point.taken_at_ms,
        gives=plan.gives.value,
        records=plan.records,
        bytes=plan.bytes,
        input_records=sum(t.records for t in plan.topics if TopicRole.INPUT in t.roles),
        notes=plan.notes,
        retention=tuple(_retention(settings, restore, target)),
    )


def _retention(
    settings: ApplicationSettings, restore: StoredRestore, target: KafkaConnection
) -> Iterable[str]:
    try:
        with KafkaCluster(target) as cluster:
            effects = retention_effects(
                settings.warehouse, restore, cluster, now_ms=time.time_ns() // 1_000_000
            )
    except KStreamsAssetsError as error:
        return [f"What retention deletes of it could not be told: {error}"]
    return [str(effect) for effect in effects]


def changelogs_of(restore: StoredRestore) -> dict[str, int]:
    """Records of the changelogs that the application restores its stores from, by target topic.

    Source topics that serve as changelogs are not among them: how far they are read depends on
    their committed offsets.
    """
    return {
        topic.target: topic.records
        for topic in restore.topics
        if TopicRole.CHANGELOG in (roles := roles_of(topic)) and not roles & _SOURCES
    }


def measure_of(
    application: DrilledApplication,
    restore: StoredRestore,
    *,
    caught_up_s: float | None,
    state_dir: Path,
    failed: bool,
) -> ApplicationMeasure:
    """What was measured of an application; to be asked before it is stopped.

    `failed`: it did not come to its end, so that its last lines matter.
    """
    expected = changelogs_of(restore)
    records, per_s, source = _restoration(application, expected)
    use, at_running = application.use, application.use_at_running
    start_s = at_running.cpu_s if at_running is not None else use.cpu_s
    return ApplicationMeasure(
        to_running_s=application.running_s,
        to_caught_up_s=caught_up_s,
        changelog_records=records,
        changelog_records_expected=sum(expected.values()),
        changelog_records_per_s=per_s,
        rate_from=source,
        cpu_s=use.cpu_s,
        cpu_start_s=start_s,
        cpu_catch_up_s=use.cpu_s - start_s,
        peak_memory_bytes=use.peak_memory_bytes,
        disk_written_bytes=use.disk_written_bytes,
        disk_read_bytes=use.disk_read_bytes,
        state_bytes=size_of(state_dir),
        exit_code=application.exit_code,
        last_lines=application.last_lines() if failed else (),
    )


def _restoration(
    application: DrilledApplication, expected: dict[str, int]
) -> tuple[int | None, float | None, RateFrom | None]:
    """Changelog records that were restored and how many a second, as far as either is known."""
    log = application.log
    if log.records and log.restoration_s is not None:
        records = sum(
            count
            for partition, count in log.records.items()
            if partition.rpartition("-")[0] in expected
        )
        # Less than one look of the log between the lines tells nothing about a rate.
        per_s = records / log.restoration_s if log.restoration_s > 0 else None
        if per_s is not None:
            return records, per_s, RateFrom.LOG
        return records, *_by_offsets(application, expected)
    return None, *_by_offsets(application, expected)


def _by_offsets(
    application: DrilledApplication, expected: dict[str, int]
) -> tuple[float | None, RateFrom | None]:
    running_s, records = application.running_s, sum(expected.values())
    if not running_s or not records:
        return None, None
    return records / running_s, RateFrom.OFFSETS
