"""The asset of the completeness rules, and what Dagster shows of an evaluation."""

import time
from collections.abc import Iterator, Sequence
from typing import Final

import dagster as dg

from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.completeness.evaluate import Evaluator
from kstreams_assets.completeness.result import (
    AT_WINDOWS,
    NULL,
    RuleCheck,
    counts,
    rule_checks,
    rules_version,
)
from kstreams_assets.ktables.stores import table_stores
from kstreams_assets.model.rule_results import (
    RULE,
    Outcome,
    RuleResult,
    Sample,
    explanation_of,
    is_red,
    severity_of,
)
from kstreams_assets.orchestration.check_events import CHECK_SEVERITY, window_check_specs
from kstreams_assets.orchestration.failure import repeated_after_outage
from kstreams_assets.orchestration.keys import (
    backup_key,
    completeness_key,
    completeness_pool,
    group,
    ktable_key,
    recovery_points_key,
    sanitize_name,
    window_partitions,
)
from kstreams_assets.orchestration.metadata import Values, metadata, table
from kstreams_assets.orchestration.translator import AssetKind, translator_of
from kstreams_assets.public_form import Form, Value
from kstreams_assets.settings import ApplicationSettings
from spark_resources.resource import SparkSessionResource

_EVALUATION: Final = Form(
    RuleResult,
    "outcome violations",
    Value("took_s", of=lambda result: result.took_ms / 1000),
    Value("recovery_point", of=lambda result: result.point_id or None),
    Value("stores_from", of=lambda result: result.stores_from or None),
)


def rule_metadata(result: RuleResult) -> Values:
    """Of one evaluation: how it came out, at which point, and the first rows in violation."""
    values = metadata(_EVALUATION, result)
    if result.sample.rows:
        values["rows_in_violation"] = sample_table(result.sample)
    return values


def sample_table(sample: Sample) -> dg.TableMetadataValue:
    """Rows as a table; a null is the text `null`."""
    records = [
        dg.TableRecord(
            {
                column: NULL if cell is None else cell
                for column, cell in zip(sample.columns, row, strict=True)
            }
        )
        for row in sample.rows
    ]
    schema = dg.TableSchema([dg.TableColumn(column, "string") for column in sample.columns])
    return dg.MetadataValue.table(records, schema=schema)


def evaluation_metadata(results: Sequence[RuleResult]) -> Values:
    """Of all rules together: how many came out how, and a line for each."""
    found = counts(results)
    values: Values = {
        "rules": dg.MetadataValue.int(len(results)),
        **{str(outcome): dg.MetadataValue.int(found[outcome]) for outcome in Outcome},
        "violations": dg.MetadataValue.int(sum(result.violations for result in results)),
        "took_s": dg.MetadataValue.float(round(sum(r.took_ms for r in results) / 1000, 3)),
    }
    if results:
        values["evaluations"] = table(RULE, results)
        points = sorted({result.point_id for result in results} - {""})
        if points:
            values["recovery_point"] = dg.MetadataValue.text(", ".join(points))
    return values


_MOST: Final = 10


def rule_check_events(
    context: dg.AssetExecutionContext,
    key: dg.AssetKey,
    check: str,
    results: Sequence[RuleResult],
) -> Iterator[dg.AssetCheckResult | dg.AssetCheckEvaluation]:
    """One evaluation for each window; for a range also the summary that Dagster demands."""
    if context.has_partition_key and len(results) == 1:
        yield rule_check_result(key, check, results[0])
        return
    for result in results:
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=check,
            partition=result.window,
            passed=result.passed,
            severity=CHECK_SEVERITY[severity_of(result)],
            description=explanation_of(result),
            metadata=rule_metadata(result),
        )
    yield _summary(key, check, results)


def rule_check_result(key: dg.AssetKey, check: str, result: RuleResult) -> dg.AssetCheckResult:
    """The evaluation of one rule."""
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=check,
        passed=result.passed,
        severity=CHECK_SEVERITY[severity_of(result)],
        description=explanation_of(result),
        metadata=rule_metadata(result),
    )


def _summary(key: dg.AssetKey, check: str, results: Sequence[RuleResult]) -> dg.AssetCheckResult:
    failed = [result for result in results if not result.passed]
    passed = bool(results) and not failed
    is_error = passed or any(map(is_red, failed))
    texts = [f"{result.window}: {explanation_of(result)}" for result in failed[:_MOST]]
    if not results:
        texts = ["It was evaluated in no window."]
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=check,
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
        description="\n\n".join(texts) or f"It held in all {len(results)} windows.",
        metadata={
            "windows": len(results),
            "failed_windows": len(failed),
            "violations": sum(result.violations for result in results),
        },
    )


_Event = dg.MaterializeResult | dg.AssetCheckResult | dg.AssetCheckEvaluation


def build_completeness_assets(settings: ApplicationSettings) -> list[dg.AssetsDefinition]:
    """The rules of an application, evaluated at each window; none without rules for windows.

    Needs the resource `spark` (`SparkSessionResource`).

    Raises:
        ConfigurationError: Dagster would take two of the rules for one.
    """
    checks = rule_checks(settings, AT_WINDOWS)
    if not checks:
        return []
    application_id = settings.application_id
    key = completeness_key(settings)
    calendar = WindowCalendar(settings.windows)
    partitions = window_partitions(settings.windows)
    retries = translator_of(settings).get_retry_policy(AssetKind.COMPLETENESS)

    @dg.multi_asset(
        name=f"completeness_{sanitize_name(application_id)}",
        specs=[_spec(key, settings, checks)],
        check_specs=window_check_specs({key: {c.name: c.claim for c in checks}}, partitions),
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=completeness_pool(application_id),
    )
    def completeness(
        context: dg.AssetExecutionContext, spark: SparkSessionResource
    ) -> Iterator[_Event]:
        began = time.monotonic()
        windows = calendar.windows(context.partition_keys)
        evaluated: list[RuleResult] = []
        with (
            repeated_after_outage(context, retries),
            _evaluator(context, settings, spark) as evaluator,
        ):
            for window in windows:
                results = evaluator.window(window)
                context.add_asset_metadata(evaluation_metadata(results), key, window.key)
                evaluated += results
        context.log.info(f"{len(windows)} windows, {time.monotonic() - began:.1f} s.")
        yield dg.MaterializeResult(asset_key=key)
        for check in checks:
            of_check = [result for result in evaluated if result.rule == check.rule]
            yield from rule_check_events(context, key, check.name, of_check)

    return [completeness]


def _evaluator(
    context: dg.AssetExecutionContext, settings: ApplicationSettings, spark: SparkSessionResource
) -> Evaluator:
    return Evaluator(settings, spark=spark, run_id=context.run.run_id, log=context.log.info)


def _spec(
    key: dg.AssetKey, settings: ApplicationSettings, checks: Sequence[RuleCheck]
) -> dg.AssetSpec:
    application_id = settings.application_id
    results = settings.warehouse.control("completeness_results")
    listed = "\n".join(f"- `{check.name}`: {check.claim}" for check in checks)
    return dg.AssetSpec(
        key=key,
        deps=[
            *(backup_key(settings, topic.name) for topic in settings.topics),
            *(ktable_key(settings, store.store) for store in table_stores(settings)),
            recovery_points_key(settings),
        ],
        description=(
            f"What `{application_id}` must keep true so that nothing is lost, evaluated at the"
            " recovery point that ends each window: records in flight are counted, so they are no"
            " violation. Stores come from their KTable snapshots where there are any, else from"
            f" their changelogs.\n\nResults: table `{results}`; at any other recovery point:"
            " `kstreams-assets completeness check --app defs.yaml --as-of TIME`.\n\n"
            f"**Checks**\n\n{listed}"
        ),
        group_name=group(application_id, "completeness"),
        code_version=rules_version(settings, AT_WINDOWS),
        kinds={"sql", "report", "spark"},
        owners=list(settings.owners),
        tags={**settings.tags, "kstreams/app": application_id},
        metadata={
            "dagster/uri": str(results),
            "dagster/table_name": "completeness_results",
        },
    )
