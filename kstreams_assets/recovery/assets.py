"""Recovery points as a Dagster asset: a click takes one now, and shows what could be restored."""

import dagster as dg

from kstreams_assets.backup.coverage import (
    POINT_CHECKS,
    Coverage,
    Recency,
    counts,
    recovery_point_is_recent,
)
from kstreams_assets.backup.from_settings import recorder_of
from kstreams_assets.backup.point_judge import PointStatus
from kstreams_assets.failure import told_as_failure
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.naming import group, recovery_points_key
from kstreams_assets.recovery.metadata import point_metadata
from kstreams_assets.recovery.point import RecoveryPoint
from kstreams_assets.settings import ApplicationSettings

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
        kinds={"deltalake", "kafka"},
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
            coverage = Coverage(settings)
            statuses = coverage.newest(_JUDGED)
            recency = recovery_point_is_recent(settings, restorable=coverage.newest_restorable())
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
    exact, covered = recency.restorable.exact, recency.restorable.covered
    values: dict[str, dg.MetadataValue] = {}
    if exact is not None:
        values["newest_restorable_point"] = dg.MetadataValue.text(exact.id)
        values["newest_restorable_point_taken_at"] = _timestamp(exact)
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
