"""The asset of the recovery drill, and what Dagster shows of it."""

from collections.abc import Iterator, Mapping
from typing import Final

import dagster as dg
from pydantic import Field

from kstreams_assets.drill.readiness import READINESS, readiness
from kstreams_assets.drill.report import REPORT, DrillReport, objective_verdict
from kstreams_assets.drill.run import DrillJob, DrillRequest, report_file
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.drill import ObjectiveResult
from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.orchestration.keys import DRILL_POOL, drill_job, drill_key
from kstreams_assets.orchestration.metadata import metadata
from kstreams_assets.orchestration.upkeep import of_warehouse, schedules
from kstreams_assets.settings import ApplicationSettings
from spark_resources.resource import SparkSessionResource

DRILL_CHECKS: Final[Mapping[str, str]] = {
    "recovery_objective_met": (
        "From the begin of the restore until the application had caught up no more time passed than"
        " was declared, and its state and totals were right. Red: the drill failed, or took longer;"
        " the phase that took longest is named, and what to do. A warning: no objective is"
        " declared."
    ),
}
"""Checks of the asset `<app>/drill`."""


class DrillConfig(dg.PermissiveConfig):
    """One drill; by default it is not made, and only its readiness is shown.

    Names are those of the command line; `point_id` of earlier releases is accepted.
    """

    as_of: str | None = Field(
        default="",
        description="The last point complete at this time: ISO 8601 with a time zone, as"
        " 2026-11-21T14:30:00Z. Empty: the newest restorable one.",
    )
    dry_run: bool = Field(
        default=True, description="Only show whether a drill could start. No cluster is started."
    )
    keep: bool = Field(
        default=False,
        description="Keep the local cluster, the state directory and the application's log.",
    )
    point: str | None = Field(
        default="", description="This recovery point. Empty: the newest restorable one."
    )

    def request(self) -> DrillRequest:
        """The request.

        Raises:
            ConfigurationError: A key is unknown, or keys contradict each other.
        """
        older = dict(self.model_extra or {})
        point_id = older.pop("point_id", None)
        if older:
            raise ConfigurationError(
                f"The configuration of this run has an unknown key {min(older)!r}.",
                remedy=f"Known are {', '.join(type(self).model_fields)}.",
            )
        return DrillRequest.of(self.as_of or None, self.point or point_id, keep=self.keep)


def build_drill_assets(settings: ApplicationSettings) -> list[dg.AssetsDefinition]:
    """The drills of an application; none where nothing says how it is started.

    Needs the resource `spark` (`SparkSessionResource`).
    """
    return [_drill_asset(settings)] if settings.drill.command else []


def build_drill_schedules(settings: ApplicationSettings) -> list[dg.ScheduleDefinition]:
    """The schedule of an application's drills, where one is declared; on from the start if the
    application's sensors are."""
    cron = settings.drill.every if settings.drill.command else None
    key, text = drill_key(settings), f"Restore drills of `{settings.application_id}`."
    return schedules(settings, "drill", key, cron, text, config={"dry_run": False})


def build_drill_job(settings: ApplicationSettings) -> dg.Definitions:
    """The job that makes a drill; none where nothing says how the application is started."""
    if not settings.drill.command:
        return dg.Definitions()
    application_id = settings.application_id
    key = drill_key(settings)
    shown = DrillConfig(dry_run=False).model_dump()
    job = dg.define_asset_job(
        drill_job(application_id),
        selection=[key],
        config={"ops": {key.to_python_identifier(): {"config": shown}}},
        description=(
            f"Restores `{application_id}` into a throwaway cluster of this machine, starts it"
            " there, measures and judges."
        ),
        tags={"kstreams/app": application_id},
    )
    return dg.Definitions(jobs=[job])


def _drill_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    application_id = settings.application_id
    key = drill_key(settings)

    arguments = of_warehouse(settings, "drill", settings.warehouse.control("drills"))

    @dg.multi_asset(
        name=key.to_python_identifier(),
        specs=[
            dg.AssetSpec(
                key,
                description=(
                    f"`{application_id}`, restored into a throwaway cluster of this machine and"
                    " started there with an empty state directory: how long it takes until it has"
                    " caught up, and whether its state is right. The source cluster is not"
                    " touched.\n\nMaterializing it only shows whether a drill could start, as an"
                    " observation."
                    f" Job `{drill_job(application_id)}` makes one."
                ),
                kinds={"kafka", "drill"},
                **arguments,
            )
        ],
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, description=text)
            for name, text in DRILL_CHECKS.items()
        ],
        can_subset=True,  # lets a dry run yield nothing
        pool=DRILL_POOL,
    )
    def drill(
        context: dg.AssetExecutionContext, config: DrillConfig, spark: SparkSessionResource
    ) -> Iterator[dg.MaterializeResult | dg.AssetObservation]:
        job = DrillJob(settings, spark, context.run.run_id, log=context.log.info)
        with told_as_failure():
            request = config.request()
            if config.dry_run:
                job.require_possible()
                yield dg.AssetObservation(key, metadata=metadata(READINESS, readiness(settings)))
                return
            report = job.run(request)
            ready = readiness(settings)
        file = dg.MetadataValue.path(str(report_file(settings, report.drill_id)))
        told = {**metadata(REPORT, report), "report_file": file, **metadata(READINESS, ready)}
        yield dg.MaterializeResult(
            asset_key=key, metadata=told, check_results=[check_result(key, report)]
        )

    return drill


def check_result(key: dg.AssetKey, report: DrillReport) -> dg.AssetCheckResult:
    """The check `recovery_objective_met` as Dagster shows it."""
    verdict = objective_verdict(report)
    not_declared = verdict.result is ObjectiveResult.NOT_DECLARED
    return dg.AssetCheckResult(
        asset_key=key,
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
