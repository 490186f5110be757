"""The asset of the recovery points, and what Dagster shows of one."""

import dagster as dg

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.orchestration.keys import group, recovery_points_key
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.contents import Contents
from kstreams_assets.warehouse.coverage import (
    POINT_CHECKS,
    Recency,
    counts,
    newest_restorable,
    newest_statuses,
    recovery_point_is_recent,
)
from kstreams_assets.warehouse.judge import PointStatus
from kstreams_assets.warehouse.point import PartitionCut, RecoveryPoint

_POSITIONS = dg.TableSchema(
    [
        dg.TableColumn("topic", "string"),
        dg.TableColumn("partition", "int"),
        dg.TableColumn("log_start", "int", "First offset that Kafka held"),
        dg.TableColumn("end", "int", "Exclusive end of what belongs to the point"),
        dg.TableColumn("committed", "int", "Committed offset of the application's group"),
    ]
)

_LAG = dg.TableSchema(
    [
        dg.TableColumn("topic", "string"),
        dg.TableColumn("offset_lag", "int", "Offsets that the application has not processed"),
    ]
)


def point_metadata(point: RecoveryPoint) -> dict[str, dg.MetadataValue]:
    """Metadata of the asset `<app>/recovery_points` for a point that was taken."""
    committed = {(o.topic, o.partition): o.offset for o in point.group_offsets}
    lags = input_lags(point)
    values: dict[str, dg.MetadataValue] = {
        "recovery_point": dg.MetadataValue.text(point.id),
        "taken_at": dg.MetadataValue.timestamp(point.taken_at_ms / 1000),
        "method": dg.MetadataValue.text(point.method.value),
        "guarantee": dg.MetadataValue.text(point.guarantee.value),
        "reason": dg.MetadataValue.text(point.reason),
        "repeats_at_most": dg.MetadataValue.int(sum(point.repeats_at_most.values())),
        "sealed": dg.MetadataValue.bool(point.sealed),
        "in_flight": dg.MetadataValue.int(point.in_flight),
        "offset_lag": dg.MetadataValue.int(sum(lags.values())),
        "input_lag": dg.MetadataValue.table(
            [dg.TableRecord({"topic": t, "offset_lag": lag}) for t, lag in sorted(lags.items())],
            schema=_LAG,
        ),
        "took_ms": dg.MetadataValue.int(point.took_ms),
        "attempts": dg.MetadataValue.int(point.attempts),
        "positions": dg.MetadataValue.table(
            [
                dg.TableRecord(
                    {
                        "topic": cut.topic,
                        "partition": cut.partition,
                        "log_start": cut.log_start,
                        "end": cut.end,
                        "committed": committed.get((cut.topic, cut.partition)),
                    }
                )
                for cut in point.partitions
            ],
            schema=_POSITIONS,
        ),
    }
    if point.unsealed_because:
        values["unsealed_because"] = dg.MetadataValue.text(point.unsealed_because)
    return values


def input_lags(point: RecoveryPoint) -> dict[str, int]:
    """Offsets of each input topic that the application had not processed.

    Of a partition without a committed offset it has processed nothing.
    """
    committed = {(o.topic, o.partition): o.offset for o in point.group_offsets}
    lags: dict[str, int] = {}
    for cut in point.partitions:
        reached = committed.get((cut.topic, cut.partition))
        if _is_input(cut, has_committed=reached is not None):
            start = cut.log_start if reached is None else reached
            lags[cut.topic] = lags.get(cut.topic, 0) + max(0, cut.end - start)
    return lags


def _is_input(cut: PartitionCut, *, has_committed: bool) -> bool:
    """Points of the first release do not say which roles a topic has."""
    return cut.roles.is_input if cut.roles else has_committed


_JUDGED = 1000
"""Of so many points, the newest, the asset tells how many give what."""


def build_recovery_points_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    """The recovery points of an application; materialising takes one and stores it."""
    application_id = settings.application_id
    key = recovery_points_key(application_id)

    @dg.asset(
        key=key,
        description=(
            f"Consistent cuts of `{application_id}`. Materialise to take one now: control calls"
            " and short reads, no JVM. Windows end where recovery points stand."
        ),
        group_name=group(application_id, "backups"),
        kinds={"kafka", "recovery-point"},
        owners=list(settings.owners),
        tags={**settings.tags, "kstreams/app": application_id},
        metadata={"dagster/uri": str(settings.warehouse.control("recovery_points"))},
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, description=text)
            for name, text in POINT_CHECKS.items()
        ],
    )
    def recovery_points() -> dg.MaterializeResult:
        with told_as_failure():
            point = _take(settings)
            contents = Contents.of(settings)
            statuses = newest_statuses(settings, _JUDGED, contents)
            restorable = newest_restorable(settings, contents)
            recency = recovery_point_is_recent(settings, restorable=restorable)
        return dg.MaterializeResult(
            metadata={
                **point_metadata(point),
                **restorable_metadata(recency),
                **_counts(statuses),
            },
            check_results=[check_result(settings, recency)],
        )

    return recovery_points


def _take(settings: ApplicationSettings) -> RecoveryPoint:
    with KafkaCluster(settings.connection) as cluster:
        return recorder_of(settings, cluster).take()


def check_result(settings: ApplicationSettings, recency: Recency) -> dg.AssetCheckResult:
    """The check `recovery_point_is_recent` as Dagster shows it."""
    return dg.AssetCheckResult(
        asset_key=recovery_points_key(settings.application_id),
        check_name="recovery_point_is_recent",
        passed=recency.passed,
        description=recency.explanation,
        metadata=restorable_metadata(recency),
    )


def restorable_metadata(recency: Recency) -> dict[str, dg.MetadataValue]:
    """The newest points that can be restored, and how old they are."""
    exact, covered = recency.restorable.enough, recency.restorable.covered
    values: dict[str, dg.MetadataValue] = {}
    if exact is not None:
        values["newest_restorable_point"] = dg.MetadataValue.text(exact.id)
        values["newest_restorable_point_taken_at"] = _timestamp(exact)
        values["newest_restorable_point_gives"] = dg.MetadataValue.text(exact.gives.value)
    if recency.age_s is not None:
        values["recovery_point_age_s"] = dg.MetadataValue.float(round(recency.age_s, 1))
    if recency.objective_s is not None:
        values["recovery_point_objective_s"] = dg.MetadataValue.int(recency.objective_s)
    if covered is not None and covered != exact:
        values["newest_covered_point"] = dg.MetadataValue.text(covered.id)
        values["newest_covered_point_taken_at"] = _timestamp(covered)
        values["newest_covered_point_gives"] = dg.MetadataValue.text(covered.gives.value)
    return values


def _timestamp(status: PointStatus) -> dg.TimestampMetadataValue:
    return dg.MetadataValue.timestamp(status.taken_at_ms / 1000)


def _counts(statuses: list[PointStatus]) -> dict[str, dg.MetadataValue]:
    values = {
        f"points_that_restore_{gives}": dg.MetadataValue.int(count)
        for gives, count in counts(statuses).items()
    }
    return {"points_judged": dg.MetadataValue.int(len(statuses)), **values}
