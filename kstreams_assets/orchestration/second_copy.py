"""The asset of the second copy of a warehouse, and its schedule."""

from typing import Final

import dagster as dg

from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.orchestration.keys import (
    backup_key,
    folded,
    group,
    recovery_points_key,
    second_copy_key,
)
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.upkeep.copy import copy_warehouse

COMPLETE: Final = "source_gave_every_file"
_MOST: Final = 20


def build_second_copy_assets(settings: ApplicationSettings) -> list[dg.AssetsDefinition]:
    """The asset `<app>/second_copy`, where `second_copy.to` says where it is; no JVM, no broker."""
    told, application_id = settings.second_copy, settings.application_id
    to = told.to
    if to is None:
        return []
    key = second_copy_key(application_id)

    @dg.asset(
        key=key,
        deps=[
            recovery_points_key(application_id),
            *(backup_key(application_id, topic.name) for topic in settings.topics),
        ],
        description=(
            f"What the warehouse holds of `{application_id}`, copied to `{to}` and compared. Only"
            " what is new is copied; restores can be made from the copy alone."
        ),
        group_name=group(application_id, "second_copy"),
        kinds={"deltalake"},
        owners=list(settings.owners),
        tags={**settings.tags, "kstreams/app": application_id},
        metadata={"dagster/uri": str(to)},
        check_specs=[
            dg.AssetCheckSpec(
                COMPLETE,
                asset=key,
                description="Every file of the source is the one that was written, or the copy has"
                " it already. Red: the damaged files by name; all else is copied.",
            )
        ],
    )
    def second_copy(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with told_as_failure():
            result = copy_warehouse(
                settings.warehouse,
                to,
                applications=[application_id],
                bytes_per_s=told.bytes_per_s,
                log=context.log.info,
            )
        found = [str(file) for file in result.lacking]
        return dg.MaterializeResult(
            metadata={
                "files_copied": dg.MetadataValue.int(result.files),
                "bytes_copied": dg.MetadataValue.int(result.bytes),
                "files_there": dg.MetadataValue.int(result.there),
                "took_s": dg.MetadataValue.float(round(result.took_s, 2)),
            },
            check_results=[
                dg.AssetCheckResult(
                    check_name=COMPLETE,
                    passed=not found,
                    description="; ".join(found[:_MOST]) or "Nothing is lacking.",
                    metadata={"lacking": dg.MetadataValue.int(len(found))},
                )
            ],
        )

    return [second_copy]


def build_second_copy_schedules(settings: ApplicationSettings) -> list[dg.ScheduleDefinition]:
    """The schedule of `second_copy.every`, none without it; on where the sensors are on."""
    told = settings.second_copy
    if told.to is None or told.every is None:
        return []
    on, off = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED
    return [
        dg.ScheduleDefinition(
            name=f"{folded(settings.application_id)}_second_copy",
            target=dg.AssetSelection.assets(second_copy_key(settings.application_id)),
            cron_schedule=told.every,
            default_status=on if settings.sensors_running else off,
            description=f"Brings the copy of {settings.application_id} in {told.to} up to date.",
        )
    ]
