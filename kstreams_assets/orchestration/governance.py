"""The asset of the governance checks, and what Dagster shows of them."""

from collections.abc import Iterator

import dagster as dg

from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.checks import Evaluation, Finding, Outcome, Severity
from kstreams_assets.governance.facts import GovernanceFacts
from kstreams_assets.governance.findings import GovernanceReport
from kstreams_assets.governance.judge import CHECKS, lags_of
from kstreams_assets.governance.run import check_governance
from kstreams_assets.orchestration.check_events import CHECK_SEVERITY, metadata_numbers
from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.orchestration.keys import folded, governance_key, group, topic_key
from kstreams_assets.settings import ApplicationSettings

_FINDINGS = dg.TableSchema(
    [
        dg.TableColumn("subject", "string", "Topic, store or application"),
        dg.TableColumn("found", "string", "What is"),
        dg.TableColumn("expected", "string", "What should be"),
        dg.TableColumn("remedy", "string", "What to do"),
        dg.TableColumn("severity", "string"),
    ]
)
_TOPICS = dg.TableSchema(
    [
        dg.TableColumn("topic", "string"),
        dg.TableColumn("roles", "string"),
        dg.TableColumn("partitions", "int"),
        dg.TableColumn("replication_factor", "int"),
        dg.TableColumn("in_sync", "int", "Fewest replicas in sync of a partition"),
        dg.TableColumn("min_insync_replicas", "int"),
        dg.TableColumn("cleanup_policy", "string"),
        dg.TableColumn("retention_ms", "int"),
        dg.TableColumn("offset_lag", "int", "Offsets that the application has not processed"),
    ]
)


def report_metadata(
    report: GovernanceReport, facts: GovernanceFacts, application: StreamsApplication
) -> dict[str, dg.MetadataValue]:
    """Metadata of the asset `<app>/governance`: numbers to plot, and the topics as they stand."""
    lags = lags_of(facts)
    numbers = {
        "errors": len(report.of_severity(Severity.ERROR)),
        "warnings": len(report.of_severity(Severity.WARN)),
        "failed_checks": sum(bool(evaluation.findings) for evaluation in report.evaluations),
        "offset_lag": sum(lags.values()),
    }
    return {
        **metadata_numbers(numbers),
        "judged_at": dg.MetadataValue.timestamp(report.judged_at_ms / 1000),
        "cluster_id": dg.MetadataValue.text(report.cluster_id),
        "topics": dg.MetadataValue.table(
            [
                dg.TableRecord(
                    {
                        "topic": name,
                        "roles": ", ".join(sorted(application.topic(name).roles)),
                        "partitions": topic.partitions,
                        "replication_factor": topic.replication_factor,
                        "in_sync": topic.in_sync,
                        "min_insync_replicas": topic.number("min.insync.replicas", 1),
                        "cleanup_policy": ",".join(sorted(topic.policies)),
                        "retention_ms": topic.number("retention.ms", -1),
                        "offset_lag": lags.get(name),
                    }
                )
                for name, topic in sorted(facts.topics.items())
            ],
            schema=_TOPICS,
        ),
    }


def findings_table(findings: tuple[Finding, ...]) -> dg.TableMetadataValue:
    """Findings as a table."""
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "subject": finding.subject,
                    "found": finding.found,
                    "expected": finding.expected,
                    "remedy": finding.action,
                    "severity": finding.severity.value,
                }
            )
            for finding in findings
        ],
        schema=_FINDINGS,
    )


def build_governance_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    """The asset `<app>/governance` with one check for each kind of deviation.

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
        kinds={"kafka", "report"},
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
        for evaluation in report.evaluations:
            wanted = dg.AssetCheckKey(key, evaluation.check) in context.selected_asset_check_keys
            if wanted and evaluation.outcome is not Outcome.NOT_VERIFIABLE:
                yield _check_result(key, evaluation)

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


def _check_result(key: dg.AssetKey, evaluation: Evaluation) -> dg.AssetCheckResult:
    metadata: dict[str, dg.MetadataValue] = {
        "findings_count": dg.MetadataValue.int(len(evaluation.findings)),
    }
    if evaluation.findings:
        metadata["findings"] = findings_table(evaluation.findings)
    if evaluation.not_judged:
        metadata["not_judged"] = dg.MetadataValue.text(" ".join(evaluation.not_judged))
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=evaluation.check,
        passed=evaluation.passed,
        severity=CHECK_SEVERITY[evaluation.severity],
        description=evaluation.explanation,
        metadata=metadata,
    )
