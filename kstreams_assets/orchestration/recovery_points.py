"""The asset of the recovery points, and what Dagster shows of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import dagster as dg

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.model.point import POINT, RecoveryPoint
from kstreams_assets.model.restorability import POINT_CHECKS, PointStatus, Recency, counts
from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.orchestration.keys import group, recovery_points_key
from kstreams_assets.orchestration.metadata import Values, metadata, table
from kstreams_assets.public_form import DAGSTER, Form, Timestamp, Value, only
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.repository.coverage import (
    newest_restorable,
    newest_statuses,
    recovery_point_is_recent,
)
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings

RECENCY: Final = Form(
    Recency,
    *only(
        DAGSTER,
        "newest_restorable_point=restorable.enough.id",
        Value("newest_restorable_point_taken_at", Timestamp, "restorable.enough.taken_at_ms"),
        "newest_restorable_point_gives=restorable.enough.restorability",
        Value("recovery_point_age_s", of=lambda r: r.age_s and round(r.age_s, 1)),
        "recovery_point_objective_s=objective_s",
        "newest_covered_point=restorable.lesser.id",
        Value("newest_covered_point_taken_at", Timestamp, "restorable.lesser.taken_at_ms"),
        "newest_covered_point_gives=restorable.lesser.restorability",
    ),
)
"""The newest points that can be restored, and how old they are."""
_JUDGED = 1000
"""Of so many points, the newest, the asset tells how many give what."""
LISTED_POINTS: Final = 200
"""So many points, the newest, are listed with an asset."""


@dataclass(frozen=True, slots=True)
class ListedPoint:
    """A recovery point in a list; `pin` is why it is pinned, empty if it is not."""

    status: PointStatus
    pin: str


LISTED_POINT: Final = Form(
    ListedPoint,
    Value("taken_at", Timestamp, "status.taken_at_ms"),
    Value("restores", of="status.restorability", text="What a restore gives now"),
    Value("guarantee", of="status.guarantee", text="Guarantee of the point itself"),
    Value("covered", of="status.covered", text="Whether backups hold everything below its ends"),
    Value("recovery_point", of="status.id"),
    Value("pin", text="Reason why the point is kept regardless of the policy"),
    Value("reason", of="status.reason"),
)
"""A row of the table of recovery points. Dagster shows about five columns beside its sidebar."""


def listed_points(settings: ApplicationSettings, statuses: Sequence[PointStatus]) -> Values:
    """The newest recovery points as a table."""
    pins = {pin.recovery_point_id: pin.reason for pin in Repository.open(settings).pins.all()}
    rows = [ListedPoint(one, pins.get(one.id, "")) for one in statuses[:LISTED_POINTS]]
    return {"recovery_points": table(LISTED_POINT, rows)}


def build_recovery_points_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    """The recovery points of an application; materialising takes one and stores it."""
    application_id = settings.application_id
    key = recovery_points_key(settings)

    @dg.asset(
        key=key,
        description=(
            f"Consistent cuts of `{application_id}`. Materialize to take one now: control calls"
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
            contents = Repository.open(settings).reading(settings)
            statuses = newest_statuses(settings, _JUDGED, contents)
            restorable = newest_restorable(settings, contents)
            recency = recovery_point_is_recent(settings, restorable=restorable)
        return dg.MaterializeResult(
            metadata={
                **metadata(POINT, point),
                **metadata(RECENCY, recency),
                **_counts(statuses),
                **listed_points(settings, statuses),
            },
            check_results=[check_result(settings, recency)],
        )

    return recovery_points


def _take(settings: ApplicationSettings) -> RecoveryPoint:
    with KafkaCluster(settings.connection) as cluster:
        recorder = recorder_of(settings, cluster)
        return recorder.take(commit_wait_s=settings.recovery_points.wait_s())


def check_result(settings: ApplicationSettings, recency: Recency) -> dg.AssetCheckResult:
    """The check `recovery_point_is_recent` as Dagster shows it."""
    return dg.AssetCheckResult(
        asset_key=recovery_points_key(settings),
        check_name="recovery_point_is_recent",
        passed=recency.passed,
        description=recency.explanation,
        metadata=metadata(RECENCY, recency),
    )


def _counts(statuses: list[PointStatus]) -> Values:
    values = {
        f"points_that_restore_{restorability}": dg.MetadataValue.int(count)
        for restorability, count in counts(statuses).items()
    }
    return {"points_judged": dg.MetadataValue.int(len(statuses)), **values}
