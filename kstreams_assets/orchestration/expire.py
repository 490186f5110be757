"""The asset of a policy: points that stay and go, windows that are put together."""

from typing import Final

import dagster as dg
from pydantic import Field

from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.orchestration.keys import (
    backup_key,
    expire_key,
    folded,
    group,
    pool,
    recovery_points_key,
)
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.upkeep.expire import ExpirePlan, TopicResult, expire, plan_expire

_POINTS: Final = dg.TableSchema(
    [dg.TableColumn("kept_by", "string"), dg.TableColumn("points", "int")]
)
_WINDOWS: Final = dg.TableSchema(
    [
        dg.TableColumn("topic", "string"),
        dg.TableColumn("what", "string", "drop, fold (the last record of each key stays) or join"),
        dg.TableColumn("window", "string"),
        dg.TableColumn("windows", "int"),
        dg.TableColumn("records_before", "int"),
        dg.TableColumn("records_after", "int"),
        dg.TableColumn("bytes_before", "int"),
        dg.TableColumn("bytes_after", "int"),
    ]
)


class ExpireConfig(dg.Config):
    """One run of the policy."""

    dry_run: bool = Field(default=False, description="Say what would be done; change nothing.")


def build_expire_assets(settings: ApplicationSettings) -> list[dg.AssetsDefinition]:
    """The policy of an application; none where nothing is said of what is kept."""
    return [] if settings.keep is None else [_expire_asset(settings)]


def build_expire_schedules(settings: ApplicationSettings) -> list[dg.ScheduleDefinition]:
    """The schedule of `keep.every`, none without it; on where the sensors are on."""
    if settings.keep is None or settings.keep.every is None:
        return []
    on, off = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED
    return [
        dg.ScheduleDefinition(
            name=f"{folded(settings.application_id)}_expire",
            target=[expire_key(settings.application_id)],
            cron_schedule=settings.keep.every,
            execution_timezone="UTC",
            default_status=on if settings.sensors_running else off,
            description=f"Drops what the policy of `{settings.application_id}` does not keep.",
            tags={"kstreams/app": settings.application_id},
        )
    ]


def _expire_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    application_id = settings.application_id

    @dg.asset(
        key=expire_key(application_id),
        deps=[
            recovery_points_key(application_id),
            *(backup_key(application_id, topic.name) for topic in settings.topics),
        ],
        description=(
            f"Recovery points of `{application_id}` that its policy (`keep`) does not keep go, and"
            " of the backups what no kept point needs. Points that stay restore as before."
        ),
        group_name=group(application_id, "backups"),
        kinds={"deltalake"},
        owners=list(settings.owners),
        tags={**settings.tags, "kstreams/app": application_id},
        metadata={"dagster/uri": str(settings.warehouse.root)},
        pool=pool(application_id),
    )
    def expired(context: dg.AssetExecutionContext, config: ExpireConfig) -> dg.MaterializeResult:
        with told_as_failure():
            if config.dry_run:
                return dg.MaterializeResult(metadata=_planned(plan_expire(settings)))
            done = expire(settings, run_id=context.run.run_id, log=context.log.info)
        return dg.MaterializeResult(
            metadata={
                **_planned(done.plan),
                "bytes_freed": dg.MetadataValue.int(done.bytes_freed),
                "took_s": dg.MetadataValue.float(round(done.took_s, 2)),
                "windows": dg.MetadataValue.table([*map(_row, done.topics)], schema=_WINDOWS),
            }
        )

    return expired


def _planned(plan: ExpirePlan) -> dict[str, dg.MetadataValue]:
    notes = [note for note in (*plan.notes, plan.waits) if note]
    return {
        "points_kept": dg.MetadataValue.int(len(plan.kept)),
        "points_gone": dg.MetadataValue.int(len(plan.going)),
        "points_by_line": dg.MetadataValue.table(
            [
                dg.TableRecord({"kept_by": line, "points": count})
                for line, count in plan.by_line.items()
            ],
            schema=_POINTS,
        ),
        **({"notes": dg.MetadataValue.text(" ".join(notes))} if notes else {}),
    }


def _row(one: TopicResult) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "topic": one.topic,
            "what": one.what.value,
            "window": one.window,
            "windows": one.windows,
            "records_before": one.records_before,
            "records_after": one.records_after,
            "bytes_before": one.bytes_before,
            "bytes_after": one.bytes_after,
        }
    )
