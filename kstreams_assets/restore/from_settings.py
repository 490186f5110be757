"""Restores of an application as it is configured."""

from collections.abc import Callable

from kstreams_assets.backup.run import Spark
from kstreams_assets.completeness.on_restores import require_complete
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.restore.group_offsets import GroupOffsetsCommit
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.planner import plan_again, plan_restore
from kstreams_assets.restore.run import RestoreResult, RestoreRun
from kstreams_assets.restore.target import restore_lock
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.restores import RestoresTable, StoredRestore

__all__ = ["commit_group_offsets", "plan_restore", "run_restore"]


def run_restore(
    settings: ApplicationSettings,
    plan: RestorePlan,
    target: KafkaConnection,
    *,
    spark: Spark,
    run_id: str,
    log: Callable[[str], None],
) -> RestoreResult:
    """Plan again, create topics, produce and verify as planned; see `RestoreRun.execute`."""
    run = RestoreRun(
        warehouse=settings.warehouse,
        settings=settings.restore,
        target=target,
        spark=spark,
        run_id=run_id,
        again=lambda planned: plan_again(settings, planned, target),
        log=log,
    )
    return run.execute(plan)


def commit_group_offsets(
    settings: ApplicationSettings, restore: StoredRestore, target: KafkaConnection
) -> StoredRestore:
    """Commit the offsets of a verified restore; see `GroupOffsetsCommit.execute`.

    It is the newest state of the restore that counts, under the restore's lock: another run of it
    may have found since that the target is not as the backup.

    Raises:
        RestoreNotVerifiedError: Another run of the restore has begun again since, or found it
            wrong.
        RestoreIncompleteError: A blocking completeness rule does not hold on the target, or was not
            evaluated there (`evaluate_restore`).
        KStreamsAssetsError: As `GroupOffsetsCommit.execute`.
    """
    require_complete(settings, restore)
    with (
        restore_lock(
            settings.warehouse,
            cluster_id=restore.target_cluster_id,
            group=restore.group,
            purpose=f"commit of the group offsets of restore {restore.restore_id}",
            wait_s=settings.restore.lock_wait_s,
        ),
        KafkaCluster(target) as cluster,
    ):
        newest = RestoresTable(settings.warehouse).newest(
            restore.application_id, restore.restore_id
        )
        return GroupOffsetsCommit(settings.warehouse, cluster).execute(newest or restore)
