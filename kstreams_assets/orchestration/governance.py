"""The asset of the governance checks, and what Dagster shows of them."""

from collections.abc import Iterator
from typing import Final

import dagster as dg

from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.checks import Evaluation
from kstreams_assets.governance.evaluation import CHECKS, lags_of
from kstreams_assets.governance.facts import GovernanceFacts
from kstreams_assets.governance.run import check_governance
from kstreams_assets.model.governance_report import (
    EVALUATION,
    REPORT,
    GovernanceReport,
    is_compared,
)
from kstreams_assets.orchestration.check_events import CHECK_SEVERITY
from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.orchestration.keys import governance_key, group, topic_key
from kstreams_assets.orchestration.metadata import Values, metadata, table
from kstreams_assets.orchestration.upkeep import schedules
from kstreams_assets.public_form import Form, Value
from kstreams_assets.settings import ApplicationSettings

_TOPIC: Final = Form(
    tuple,
    Value("topic", of=lambda row: row[0].name),
    Value("roles", of=lambda row: ", ".join(sorted(row[1]))),
    Value("partitions", int, lambda row: row[0].partitions),
    Value("replication_factor", int, lambda row: row[0].replication_factor),
    Value(
        "in_sync",
        int,
        lambda row: row[0].in_sync,
        text="Fewest replicas in sync of a partition",
    ),
    Value("min_insync_replicas", int, lambda row: row[0].number("min.insync.replicas", 1)),
    Value("cleanup_policy", of=lambda row: ",".join(sorted(row[0].policies))),
    Value("retention_ms", int, lambda row: row[0].number("retention.ms", -1)),
    Value(
        "offset_lag",
        int,
        lambda row: row[2],
        text="Offsets that the application has not processed",
    ),
)
"""Of a topic: how it stands on the cluster, its roles, and the lag, None for no input."""


def report_metadata(
    report: GovernanceReport, facts: GovernanceFacts, application: StreamsApplication
) -> Values:
    """Metadata of the asset `<app>/governance`: numbers to plot, and the topics as they stand."""
    lags = lags_of(facts)
    topics = [
        (topic, application.topic(name).roles, lags.get(name))
        for name, topic in sorted(facts.topics.items())
    ]
    return {
        **metadata(REPORT, report),
        "offset_lag": dg.MetadataValue.int(sum(lags.values())),
        "topics": table(_TOPIC, topics),
    }


def build_governance_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    """The asset `<app>/governance` with one check for each kind of deviation.

    A check that compared nothing (nothing is declared, or nothing is there) gives no result, so
    that Dagster shows it as skipped and not as passed.
    """
    application_id = settings.application_id
    key = governance_key(settings)
    checks = "\n".join(f"- `{name}`: {text}" for name, text in CHECKS.items())

    spec = dg.AssetSpec(
        key,
        deps=[topic_key(settings, topic.name) for topic in settings.application.topics],
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
            if wanted and is_compared(evaluation):
                yield _check_result(key, evaluation)

    return governance


def build_governance_schedules(settings: ApplicationSettings) -> list[dg.ScheduleDefinition]:
    """The schedule of `governance.every`, none without it; on where the sensors are on."""
    cron, key = settings.governance.every, governance_key(settings)
    text = f"Compares what is declared of {settings.application_id} with its cluster."
    return schedules(settings, "governance", key, cron, text)


def _check_result(key: dg.AssetKey, evaluation: Evaluation) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=evaluation.check,
        passed=evaluation.passed,
        severity=CHECK_SEVERITY[evaluation.severity],
        description=evaluation.explanation,
        metadata=metadata(EVALUATION, evaluation),
    )
