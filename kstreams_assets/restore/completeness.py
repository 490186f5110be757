"""Completeness rules on a restored cluster: evaluated before its group offsets are committed."""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from kstreams_assets.backup.run import Spark
from kstreams_assets.completeness.checks import (
    ON_RESTORES,
    explanation_of,
    rule_checks,
)
from kstreams_assets.completeness.evaluate import evaluate_cluster
from kstreams_assets.completeness.result import Outcome, ResultsTable, RuleResult
from kstreams_assets.completeness.rule import Place
from kstreams_assets.completeness.runnable import Runnable
from kstreams_assets.completeness.standing import Judged
from kstreams_assets.errors import RestoreIncompleteError, RestoreNotVerifiedError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.own_target import require_empty_group, require_own_target
from kstreams_assets.restore.readable_rules import rules_on_restores, why_not_judged
from kstreams_assets.restore.restores_table import RestoreState, StoredRestore
from kstreams_assets.settings import ApplicationSettings

_log = logging.getLogger(__name__)

SKIPPED: Final = "Skipped, as asked (skip_completeness): nothing was looked at."

_EVALUABLE: Final = frozenset({RestoreState.VERIFIED, RestoreState.COMMITTED})


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

    `rules` are those to evaluate, all by default. Views hold what the group is to take in:
    `to_commit` says where it goes on; once committed, what the group has committed on the target.
    Rules that read what the restore leaves out are not verifiable; if none is left, Spark is not
    started. Results are stored under the run that made the restore: so the commit finds them.

    Raises:
        RestoreNotVerifiedError: The restore was not verified, or differs from the backup.
        TargetTopicChangedError: The cluster is another one.
        GroupNotEmptyError: The application runs, so that nothing on the target holds still.
    """
    if restore.state not in _EVALUABLE:
        raise RestoreNotVerifiedError(restore_id=restore.restore_id, state=restore.state)
    asked = [r for r in rules_on_restores(settings) if rules is None or r.name in rules]
    if not asked:
        return []
    reasons = {rule.name: why for rule in asked if (why := why_not_judged(rule, restore))}
    skipped = [
        _skipped(rule, reasons[rule.name], restore) for rule in asked if rule.name in reasons
    ]
    ResultsTable(settings.warehouse).record(skipped)
    judged = [rule.name for rule in asked if rule.name not in reasons]
    log(f"{len(judged)} completeness rules are evaluated on the target, {len(skipped)} cannot be.")
    if not judged:
        return skipped
    with KafkaCluster(target) as cluster:
        require_own_target(settings, restore, cluster)
        require_empty_group(restore.group, cluster, operation="evaluate completeness rules")
        found = evaluate_cluster(
            settings,
            cluster,
            names={topic.source: topic.target for topic in restore.topics},
            committed=_committed(restore, cluster),
            point_id=restore.point_id,
            spark=spark,
            run_id=restore.run_id,
            rules=judged,
            place=Place.RESTORE,
            log=log,
        )
    return [*found, *skipped]


def results_of_restore(
    settings: ApplicationSettings, restore: StoredRestore
) -> dict[str, RuleResult]:
    """The newest stored result of each rule on this restore."""
    found = ResultsTable(settings.warehouse).of(
        settings.application_id,
        points=[restore.point_id],
        places=[Place.RESTORE],
        run_id=restore.run_id,
    )
    return {result.rule: result for result in found}


def require_complete(settings: ApplicationSettings, restore: StoredRestore) -> None:
    """Refuse a restore on which a blocking rule does not hold or was not evaluated.

    Not so if the restore was asked to skip them.

    Raises:
        RestoreIncompleteError: It names the rules, and what was found.
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
    """Refuse results of which one keeps the group offsets away; raises RestoreIncompleteError."""
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
    return {
        TopicPartitionId(o.topic, o.partition): o.offset
        for o in restore.to_commit
        if o.topic in restored
    }


def _skipped(rule: Runnable, why: str, restore: StoredRestore) -> RuleResult:
    return rule.result(
        Judged(Outcome.NOT_VERIFIABLE, why),
        Place.RESTORE,
        application_id=restore.application_id,
        run_id=restore.run_id,
        point_id=restore.point_id,
    )
