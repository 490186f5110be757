"""Governance as a Dagster asset: a click, or its schedule, compares declaration and cluster."""

import dagster as dg

from kstreams_assets.backup.check_events import CHECK_SEVERITY
from kstreams_assets.failure import told_as_failure
from kstreams_assets.governance.findings import CHECKS, GovernanceVerdict
from kstreams_assets.governance.metadata import findings_table, report_metadata
from kstreams_assets.governance.run import check_governance
from kstreams_assets.naming import folded, governance_key, group, topic_key
from kstreams_assets.settings import ApplicationSettings


def build_governance_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    """The asset `governance/<app>` with one check for each kind of deviation."""
    application_id = settings.application_id
    key = governance_key(application_id)
    checks = "\n".join(f"- `{name}`: {text}" for name, text in CHECKS.items())

    @dg.asset(
        key=key,
        deps=[topic_key(topic.name) for topic in settings.application.topics],
        description=(
            f"What is declared of `{application_id}`, compared with its cluster as it stands:"
            " control calls only, no JVM. Each finding says what to do.\n\n**Checks**\n\n" + checks
        ),
        group_name=group(application_id, "governance"),
        kinds={"deltalake", "kafka"},
        owners=list(settings.owners),
        tags={**settings.tags, "kstreams/app": application_id},
        metadata={"dagster/uri": str(settings.warehouse.control("governance_findings"))},
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, description=text) for name, text in CHECKS.items()
        ],
    )
    def governance(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with told_as_failure():
            report, facts = check_governance(settings, run_id=context.run.run_id)
        return dg.MaterializeResult(
            metadata=report_metadata(report, facts, settings.application),
            check_results=[_check_result(key, verdict) for verdict in report.verdicts],
        )

    return governance


def build_governance_schedules(settings: ApplicationSettings) -> list[dg.ScheduleDefinition]:
    """The schedule of `governance.every`, none without it; on where the sensors are on."""
    cron = settings.governance.every
    if cron is None:
        return []
    on, off = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED
    return [
        dg.ScheduleDefinition(
            name=f"{folded(settings.application_id)}_governance",
            target=dg.AssetSelection.assets(governance_key(settings.application_id)),
            cron_schedule=cron,
            default_status=on if settings.sensors_running else off,
            description=f"Compares what is declared of {settings.application_id} with its cluster.",
        )
    ]


def _check_result(key: dg.AssetKey, verdict: GovernanceVerdict) -> dg.AssetCheckResult:
    metadata: dict[str, dg.MetadataValue] = {
        "findings_count": dg.MetadataValue.int(len(verdict.findings)),
        "compared": dg.MetadataValue.bool(verdict.compared),
    }
    if verdict.findings:
        metadata["findings"] = findings_table(verdict.findings)
    if verdict.not_judged:
        metadata["not_judged"] = dg.MetadataValue.text(" ".join(verdict.not_judged))
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=verdict.check,
        passed=verdict.passed,
        severity=CHECK_SEVERITY[verdict.severity],
        description=verdict.explanation,
        metadata=metadata,
    )
