"""Completeness rules as a Dagster asset: one evaluation of every rule at the end of each window."""

import time
from collections.abc import Iterator, Sequence

import dagster as dg

from kstreams_assets.backup.check_events import window_check_specs
from kstreams_assets.backup.partitions import WindowCalendar
from kstreams_assets.completeness.check_events import rule_check_events
from kstreams_assets.completeness.checks import AT_WINDOWS, RuleCheck, rule_checks
from kstreams_assets.completeness.evaluate import Evaluator
from kstreams_assets.completeness.metadata import evaluation_metadata
from kstreams_assets.completeness.result import RuleResult
from kstreams_assets.failure import told_as_failure
from kstreams_assets.ktables.from_settings import table_stores
from kstreams_assets.naming import (
    backup_key,
    completeness_key,
    completeness_pool,
    folded,
    group,
    ktable_key,
    recovery_points_key,
)
from kstreams_assets.settings import ApplicationSettings
from spark_resources.session import SparkSessionResource

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
    key = completeness_key(application_id)
    calendar = WindowCalendar(settings.windows)

    @dg.multi_asset(
        name=f"completeness_{folded(application_id)}",
        specs=[_spec(key, settings, checks)],
        check_specs=window_check_specs({key: {c.name: c.claim for c in checks}}, calendar),
        partitions_def=calendar.partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
        pool=completeness_pool(application_id),
    )
    def completeness(
        context: dg.AssetExecutionContext, spark: SparkSessionResource
    ) -> Iterator[_Event]:
        began = time.monotonic()
        windows = calendar.windows(context.partition_keys)
        evaluated: list[RuleResult] = []
        with told_as_failure(), _evaluator(context, settings, spark) as evaluator:
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
    table = settings.warehouse.control("completeness_results")
    listed = "\n".join(f"- `{check.name}`: {check.claim}" for check in checks)
    return dg.AssetSpec(
        key=key,
        deps=[
            *(backup_key(application_id, topic.name) for topic in settings.topics),
            *(ktable_key(application_id, store.store) for store in table_stores(settings)),
            recovery_points_key(application_id),
        ],
        description=(
            f"What `{application_id}` must keep true so that nothing is lost, evaluated at the"
            " recovery point that ends each window: records in flight are counted, so they are no"
            " violation. Stores come from their KTable snapshots where there are any, else from"
            f" their changelogs.\n\nResults: table `{table}`; at any other recovery point:"
            " `kstreams-assets completeness check --app defs.yaml --as-of TIME`.\n\n"
            f"**Checks**\n\n{listed}"
        ),
        group_name=group(application_id, "completeness"),
        kinds={"spark", "report"},
        owners=list(settings.owners),
        tags={**settings.tags, "kstreams/app": application_id},
        metadata={
            "dagster/uri": str(table),
            "dagster/table_name": "completeness_results",
        },
    )
