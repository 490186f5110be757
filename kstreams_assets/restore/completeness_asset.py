"""Completeness rules of a restore as a Dagster asset: after the topics, before the offsets."""

from collections.abc import Iterator, Sequence

import dagster as dg

from kstreams_assets.completeness.check_events import rule_check_result
from kstreams_assets.completeness.checks import ON_RESTORES, RuleCheck, rule_checks
from kstreams_assets.completeness.metadata import evaluation_metadata
from kstreams_assets.failure import told_as_failure
from kstreams_assets.naming import (
    group,
    restore_completeness_key,
    restore_pool,
)
from kstreams_assets.restore.completeness import SKIPPED, evaluate_restore
from kstreams_assets.restore.of_run import restore_of_run
from kstreams_assets.restore.restores_table import StoredRestore
from kstreams_assets.restore.targets import open_stored_target
from kstreams_assets.settings import ApplicationSettings
from spark_resources.session import SparkSessionResource

_Event = dg.MaterializeResult | dg.AssetCheckResult


def build_restore_completeness_asset(
    settings: ApplicationSettings, topics: Sequence[dg.AssetKey]
) -> list[dg.AssetsDefinition]:
    """The rules that hold on restores, below the restored `topics`; none without such rules.

    Needs the resource `spark` (`SparkSessionResource`).

    Raises:
        ConfigurationError: Dagster would take two of the rules for one.
    """
    checks = rule_checks(settings, ON_RESTORES)
    if not checks:
        return []
    application_id = settings.application_id
    key = restore_completeness_key(application_id)

    @dg.asset(
        key=key,
        deps=list(topics),
        description=_description(application_id, checks),
        group_name=group(application_id, "restore"),
        kinds={"kafka", "spark"},
        owners=list(settings.owners),
        tags={**settings.tags, "kstreams/app": application_id},
        check_specs=[
            dg.AssetCheckSpec(c.name, asset=key, description=c.claim, blocking=c.blocking)
            for c in checks
        ],
        pool=restore_pool(application_id),
    )
    def completeness(
        context: dg.AssetExecutionContext, spark: SparkSessionResource
    ) -> Iterator[_Event]:
        with told_as_failure():
            restore = restore_of_run(context, settings)
            if restore.skips_completeness:
                yield from _skipped(key, checks, restore)
                return
            with open_stored_target(settings, restore) as target:
                results = evaluate_restore(
                    settings, restore, target, spark=spark, log=context.log.info
                )
        yield dg.MaterializeResult(
            asset_key=key, metadata={**_of(restore), **evaluation_metadata(results)}
        )
        by_rule = {result.rule: result for result in results}
        for check in checks:
            yield rule_check_result(key, check.name, by_rule[check.rule])

    return [completeness]


def _skipped(
    key: dg.AssetKey, checks: Sequence[RuleCheck], restore: StoredRestore
) -> Iterator[_Event]:
    """Never passed: nothing was looked at."""
    note = dg.MetadataValue.text(SKIPPED)
    yield dg.MaterializeResult(asset_key=key, metadata={**_of(restore), "note": note})
    for check in checks:
        yield dg.AssetCheckResult(
            asset_key=key,
            check_name=check.name,
            passed=False,
            severity=dg.AssetCheckSeverity.WARN,
            description=SKIPPED,
        )


def _of(restore: StoredRestore) -> dict[str, dg.MetadataValue]:
    return {
        "restore": dg.MetadataValue.text(restore.restore_id),
        "target": dg.MetadataValue.text(restore.target_bootstrap_servers),
    }


def _description(application_id: str, checks: Sequence[RuleCheck]) -> str:
    listed = "\n".join(
        f"- `{check.name}`{'' if check.blocking else ' (does not block)'}: {check.claim}"
        for check in checks
    )
    return (
        f"What `{application_id}` must keep true, evaluated on the restored cluster once every"
        " topic was verified and before the group offsets are committed. A blocking rule that is"
        " violated, or that could not be evaluated, keeps them away; `skip_completeness: true` of"
        " the restore goes on all the same.\n\n"
        f"**Checks**\n\n{listed}"
    )
