"""Completeness rules and recomputed stores, evaluated on a drill's cluster."""

from collections.abc import Callable, Collection

from kstreams_assets.backup.run import Spark
from kstreams_assets.completeness.result import RuleResult
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.restore.completeness import evaluate_restore
from kstreams_assets.restore.restores_table import StoredRestore
from kstreams_assets.settings import ApplicationSettings


def has_rules(settings: ApplicationSettings) -> bool:
    """Whether there is anything to evaluate."""
    return bool(settings.completeness or settings.recomputed)


def rules_before_commit(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaConnection,
    *,
    spark: Spark,
    log: Callable[[str], None],
) -> tuple[RuleResult, ...]:
    """As a restore evaluates them: at the offsets that are to be committed."""
    return tuple(evaluate_restore(settings, restore, target, spark=spark, log=log))


def rules_after_catching_up(
    settings: ApplicationSettings,
    cluster: KafkaCluster,
    restore: StoredRestore,
    *,
    rules: Collection[str],
    spark: Spark,
) -> tuple[RuleResult, ...]:
    """At the offsets that the application has committed; it is stopped.

    Not by the way of restores, which asks for a group without members: a closed application may
    stay one until its session timeout.
    """
    from kstreams_assets.completeness.evaluate import evaluate_cluster

    restored = {topic.target for topic in restore.topics}
    offsets = cluster.group_offsets(restore.group)
    return tuple(
        evaluate_cluster(
            settings,
            cluster,
            names={topic.source: topic.target for topic in restore.topics},
            committed={id_: o.offset for id_, o in offsets.items() if id_.topic in restored},
            point_id=restore.point_id,
            spark=spark,
            run_id=restore.run_id,
            rules=sorted(rules),
        )
    )
