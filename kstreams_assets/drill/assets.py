"""Restore drills as a Dagster asset, with its check and its schedule."""

from collections.abc import Mapping
from typing import Final

import dagster as dg
from pydantic import Field

from kstreams_assets.drill.judgement import ObjectiveResult, objective_verdict
from kstreams_assets.drill.metadata import drill_metadata, readiness_metadata
from kstreams_assets.drill.readiness_facts import readiness
from kstreams_assets.drill.report import DrillReport
from kstreams_assets.drill.request import DrillRequest
from kstreams_assets.drill.run import DrillRun, report_file
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.failure import told_as_failure
from kstreams_assets.naming import (
    DRILL_POOL,
    backup_key,
    drill_key,
    drill_schedule,
    group,
    recovery_points_key,
)
from kstreams_assets.restore.config import parse_instant
from kstreams_assets.settings import ApplicationSettings
from spark_resources.session import SparkSessionResource

DRILL_CHECKS: Final[Mapping[str, str]] = {
    "recovery_objective_met": (
        "From the begin of the restore until the application had caught up no more time passed than"
        " was declared, and its state and totals were right. Red: the drill failed, or took longer;"
        " the phase that took longest is named, and what to do. A warning: no objective is"
        " declared."
    ),
}
"""Checks of the asset `drill/<app>`."""


class DrillConfig(dg.Config):
    """One drill; as it stands of the newest exact recovery point."""

    as_of: str | None = Field(
        default=None,
        description="Restore the newest recovery point that was complete at this time: ISO 8601"
        " with a time zone, as 2026-11-21T14:30:00Z.",
    )
    point_id: str | None = Field(default=None, description="Restore this recovery point.")
    keep: bool = Field(
        default=False,
        description="Keep the local cluster, the state directory and the application's log.",
    )

    def request(self) -> DrillRequest:
        """The request; raises ConfigurationError where settings contradict each other."""
        if self.as_of is not None and self.point_id is not None:
            raise ConfigurationError(
                f"Both as_of ({self.as_of}) and point_id ({self.point_id}) are given.",
                remedy="Give one of them, or neither for the newest point.",
            )
        as_of_ms = None if self.as_of is None else parse_instant(self.as_of)
        return DrillRequest(point_id=self.point_id, as_of_ms=as_of_ms, keep=self.keep)


def build_drill_assets(settings: ApplicationSettings) -> list[dg.AssetsDefinition]:
    """The drills of an application; none where nothing says how it is started.

    Needs the resource `spark` (`SparkSessionResource`).
    """
    return [_drill_asset(settings)] if settings.drill.command else []


def build_drill_schedules(settings: ApplicationSettings) -> list[dg.ScheduleDefinition]:
    """The schedule of an application's drills, where one is declared; on from the start if the
    application's sensors are."""
    drill = settings.drill
    if not drill.command or drill.every is None:
        return []
    running, stopped = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED
    return [
        dg.ScheduleDefinition(
            name=drill_schedule(settings.application_id),
            target=[drill_key(settings.application_id)],
            cron_schedule=drill.every,
            execution_timezone="UTC",
            default_status=running if settings.sensors_running else stopped,
            description=f"Restore drills of `{settings.application_id}`.",
            tags={"kstreams/app": settings.application_id},
        )
    ]


def _drill_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    application_id = settings.application_id
    key = drill_key(application_id)

    @dg.asset(
        key=key,
        deps=[
            recovery_points_key(application_id),
            *(backup_key(application_id, topic.name) for topic in settings.topics),
        ],
        description=(
            f"`{application_id}`, restored into a throwaway cluster of this machine and started"
            " there with an empty state directory: how long it takes until it has caught up, and"
            " whether its state is right. The source cluster is not touched."
        ),
        group_name=group(application_id, "drill"),
        kinds={"kafka"},
        owners=list(settings.owners),
        tags={**settings.tags, "kstreams/app": application_id},
        metadata={"dagster/uri": str(settings.warehouse.control("drills"))},
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, description=text)
            for name, text in DRILL_CHECKS.items()
        ],
        pool=DRILL_POOL,
    )
    def drill(
        context: dg.AssetExecutionContext, config: DrillConfig, spark: SparkSessionResource
    ) -> dg.MaterializeResult:
        run = DrillRun(settings, spark, context.run.run_id, log=context.log.info)
        with told_as_failure():
            report = run.execute(config.request())
            ready = readiness(settings)
        file = str(report_file(settings, report.drill_id))
        return dg.MaterializeResult(
            metadata={**drill_metadata(report, file), **readiness_metadata(ready)},
            check_results=[check_result(report)],
        )

    return drill


def check_result(report: DrillReport) -> dg.AssetCheckResult:
    """The check `recovery_objective_met` as Dagster shows it."""
    verdict = objective_verdict(report)
    not_declared = verdict.result is ObjectiveResult.NOT_DECLARED
    return dg.AssetCheckResult(
        asset_key=drill_key(report.application_id),
        check_name="recovery_objective_met",
        passed=verdict.passed,
        severity=dg.AssetCheckSeverity.WARN if not_declared else dg.AssetCheckSeverity.ERROR,
        description=verdict.explanation,
        metadata={
            name: value
            for name, value in (
                ("recovery_s", report.total_s),
                ("objective_s", report.objective_s),
            )
            if value is not None
        },
    )
