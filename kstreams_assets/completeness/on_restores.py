"""Completeness rules on a restored cluster: selection, evaluation and results."""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.app.rules import Place
from kstreams_assets.completeness.evaluate import Evaluator
from kstreams_assets.completeness.result import ON_RESTORES, rule_checks
from kstreams_assets.completeness.runnable import Runnable, not_verifiable, runnables_of
from kstreams_assets.errors import RestoreIncompleteError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore
from kstreams_assets.model.rule_results import Outcome, RuleResult, explanation_of
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.request import ChangelogSource, InputsExtent
from kstreams_assets.restore.steps import Step, require
from kstreams_assets.restore.target import require_empty_group, require_own_target
from kstreams_assets.rules.view import ViewKind
from kstreams_assets.settings import ApplicationSettings
from spark_resources.work import Spark


def rules_on_restores(settings: ApplicationSettings) -> list[Runnable]:
    """Return the rules with place `restore`, and the recomputed stores."""
    return [rule for rule in runnables_of(settings) if Place.RESTORE in rule.rule.on]


def why_not_evaluated(rule: Runnable, restore: StoredRestore) -> str:
    """Return why a rule cannot be evaluated on the target, with a remedy; empty if it can.

    Records missing in the backup itself are found later, in the evaluation.
    """
    if restore.mode is RestoreMode.LOGS:
        return (
            "The restore (mode logs) commits no group offsets, so no position of the application is"
            " defined at which the rule could be evaluated. Evaluate the rule at a window instead."
        )
    if restore.mode is not RestoreMode.STATE:
        return (
            f"The restore (mode {restore.mode.value}) restores inputs only; everything else is"
            " recomputed. Evaluate the rule at a window when the application has caught up."
        )
    restored = {topic.source: topic for topic in restore.topics}
    views = [view for view, _ in rule.views.values()]
    absent = {view.topic for view in views} - restored.keys()
    if absent:
        return (
            f"The rule reads {_join(absent)}, which the restore does not contain. Restore all"
            " topics to evaluate it."
        )
    asked = restore.asked
    read = {view.topic for view in views if view.kind is ViewKind.TOPIC}
    roles = {topic: TopicRoles(map(TopicRole, restored[topic].roles)) for topic in read}
    inputs = {topic for topic in read if roles[topic].input_only}
    if asked.get("inputs") == InputsExtent.TAIL.value and inputs:
        return (
            f"The rule reads {_join(inputs)}, but only its tail was restored. Restore with inputs:"
            " full to evaluate it."
        )
    logs = {topic for topic in read if roles[topic].is_changelog}
    if asked.get("changelog_source") == ChangelogSource.SNAPSHOT.value and logs:
        return (
            f"The rule reads the log of {_join(logs)}, which was restored from KTable snapshots"
            " with one record per key. Restore with changelog_source: raw to evaluate it."
        )
    return ""


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


_log = logging.getLogger(__name__)

SKIPPED: Final = "Not evaluated, because skip_completeness is set."


def evaluate_restore(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaConnection,
    *,
    spark: Spark,
    rules: Collection[str] | None = None,
    log: Callable[[str], None] = _log.info,
) -> list[RuleResult]:
    """Evaluate the rules with place `restore`, and the recomputations, on a verified restore.

    `rules` selects rules, all by default. Views end at the planned offsets of the group
    (`to_commit`), or at the committed ones after the commit. Rules that read topics outside the
    restore are not verifiable; if no other rules exist, Spark is not started. Results are stored
    with the run id of the restore, so that the commit finds them.

    Raises:
        KStreamsAssetsError: The restore is not verified, differs from the backup, or is finished,
            or the cluster is not its target.
        KafkaError: The application runs and changes the target.
    """
    require(restore, Step.EVALUATE)
    asked = [r for r in rules_on_restores(settings) if rules is None or r.name in rules]
    if not asked:
        return []
    reasons = {rule.name: why for rule in asked if (why := why_not_evaluated(rule, restore))}
    skipped = [
        _skipped(rule, reasons[rule.name], restore) for rule in asked if rule.name in reasons
    ]
    Repository.open(settings).results.record(skipped)
    evaluated = [rule.name for rule in asked if rule.name not in reasons]
    log(f"Evaluating {len(evaluated)} completeness rules on the target, {len(skipped)} skipped.")
    if not evaluated:
        return skipped
    with KafkaCluster(target) as cluster:
        require_own_target(settings, restore, cluster)
        require_empty_group(restore.group, cluster, operation="evaluate completeness rules")
        with Evaluator(settings, spark=spark, run_id=restore.run_id, log=log) as evaluator:
            found = evaluator.cluster(
                cluster,
                names={topic.source: topic.target for topic in restore.topics},
                committed=_committed(restore, cluster),
                point_id=restore.point_id,
                rules=evaluated,
            )
    return [*found, *skipped]


def results_of_restore(
    settings: ApplicationSettings, restore: StoredRestore
) -> dict[str, RuleResult]:
    """Return the newest stored result of each rule on this restore."""
    found = Repository.open(settings).results.of(
        points=[restore.point_id], places=[Place.RESTORE], run_id=restore.run_id
    )
    return {result.rule: result for result in found}


def require_complete(settings: ApplicationSettings, restore: StoredRestore) -> None:
    """Require that all blocking rules were evaluated on a restore and passed.

    A restore with `skip_completeness` is not checked.

    Raises:
        RestoreIncompleteError: It lists the rules and their results.
    """
    blocking = {check.rule for check in rule_checks(settings, ON_RESTORES) if check.blocking}
    if not blocking or restore.skips_completeness:
        return
    found = results_of_restore(settings, restore)
    require_none_blocks(restore, (found[rule] for rule in sorted(blocking & found.keys())))
    missing = sorted(blocking - found.keys())
    if missing:
        raise RestoreIncompleteError(
            restore_id=restore.restore_id, violated={}, not_evaluated=missing
        )


def require_none_blocks(restore: StoredRestore, results: Iterable[RuleResult]) -> None:
    """Raise RestoreIncompleteError if a result prevents the commit of group offsets."""
    violated = {r.rule: _found(r) for r in results if r.blocks}
    if violated:
        raise RestoreIncompleteError(
            restore_id=restore.restore_id, violated=violated, not_evaluated=()
        )


def _found(result: RuleResult) -> str:
    if result.outcome is Outcome.VIOLATED:
        return f"{result.violations:,} row(s) in violation"
    return explanation_of(result).rstrip(".")


def _committed(restore: StoredRestore, cluster: KafkaCluster) -> dict[TopicPartitionId, int]:
    restored = {topic.target for topic in restore.topics}
    if restore.state is RestoreState.COMMITTED:
        offsets = cluster.group_offsets(restore.group)
        return {id_: found.offset for id_, found in offsets.items() if id_.topic in restored}
    return {one.id: one.offset for one in restore.to_commit if one.topic in restored}


def _skipped(rule: Runnable, why: str, restore: StoredRestore) -> RuleResult:
    return rule.result(
        not_verifiable(why),
        Place.RESTORE,
        restore.application_id,
        restore.run_id,
        point_id=restore.point_id,
    )
