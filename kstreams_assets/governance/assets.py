"""Governance as a Dagster asset: a click, or its schedule, compares declaration and cluster."""

from collections.abc import Iterator

import dagster as dg

from kstreams_assets.backup.check_events import CHECK_SEVERITY
from kstreams_assets.failure import told_as_failure
from kstreams_assets.governance.findings import CHECKS, GovernanceVerdict
from kstreams_assets.governance.metadata import findings_table, report_metadata
from kstreams_assets.governance.run import check_governance
from kstreams_assets.naming import folded, governance_key, group, topic_key
from kstreams_assets.settings import ApplicationSettings


def build_governance_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    """The asset `governance/<app>` with one check for each kind of deviation.

    A check that compared nothing (nothing is declared, or nothing is there) gives no result, so
    that Dagster shows it as skipped and not as passed.
    """
    application_id = settings.application_id
    key = governance_key(application_id)
    checks = "\n".join(f"- `{name}`: {text}" for name, text in CHECKS.items())

    spec = dg.AssetSpec(
        key,
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
    )

    # Only the checks of a definition that can be materialised in part may be left without a result.
    @dg.multi_asset(
        name=key.to_python_identifier(),
        specs=[spec],
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, description=text) for name, text in CHECKS.items()
        ],
        can_subset=True,
    )
    def governance(
        context: dg.AssetExecutionContext,
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
        with told_as_failure():
            report, facts = check_governance(settings, run_id=context.run.run_id)
        if key in context.selected_asset_keys:
            yield dg.MaterializeResult(
                asset_key=key, metadata=report_metadata(report, facts, settings.application)
            )
        for verdict in report.verdicts:
            wanted = dg.AssetCheckKey(key, verdict.check) in context.selected_asset_check_keys
            if wanted and verdict.compared:
                yield _check_result(key, verdict)

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
