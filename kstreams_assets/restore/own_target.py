"""What a restore left on its target, and whether that target is at hand."""

from collections.abc import Iterator
from contextlib import contextmanager

from kstreams_assets.app.model import TopicRole
from kstreams_assets.errors import (
    ConfigurationError,
    GroupNotEmptyError,
    TargetTopicChangedError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.restores_table import StoredRestore, StoredTopic
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.lock import LockHandle, warehouse_lock


@contextmanager
def restore_lock(
    warehouse: Warehouse, *, cluster_id: str, group: str, purpose: str, wait_s: float
) -> Iterator[LockHandle]:
    """Hold the lock of all that is written to one group and its topics on a target cluster.

    Raises WarehouseLockedError, see `warehouse_lock`.
    """
    path = warehouse.lock_file(f"restore-{cluster_id}-{group}")
    with warehouse_lock(path, purpose=purpose, wait_s=wait_s) as handle:
        yield handle


def require_own_target(
    settings: ApplicationSettings, restore: StoredRestore, target: KafkaCluster
) -> None:
    """Refuse a restore of another application, and a cluster that was not restored into.

    Raises:
        ConfigurationError: The restore is of another application than the settings.
        TargetTopicChangedError: The cluster has another id than the restore's target.
    """
    if settings.application_id != restore.application_id:
        raise ConfigurationError(
            f"Restore {restore.restore_id} is of application {restore.application_id}, not of"
            f" {settings.application_id}.",
            remedy="Give the YAML of that application, or the id of another restore.",
        )
    require_same_cluster(restore, target)


def require_same_cluster(restore: StoredRestore, target: KafkaCluster) -> None:
    """Refuse a cluster that was not restored into; raises TargetTopicChangedError."""
    found = target.cluster_id()
    if found != restore.target_cluster_id:
        raise TargetTopicChangedError(
            subject=f"cluster {target.connection.bootstrap_servers}",
            expected=restore.target_cluster_id,
            found=found,
        )


def require_empty_group(group: str, target: KafkaCluster, *, operation: str) -> None:
    """Refuse a group that has members; raises GroupNotEmptyError."""
    state = target.group_state(group)
    if state is not None and not state.is_empty:
        raise GroupNotEmptyError(
            operation=operation, group=group, group_type=state.type, state=state.state
        )


def roles_of(topic: StoredTopic) -> frozenset[TopicRole]:
    """The roles of a restored topic."""
    return frozenset(TopicRole(role) for role in topic.roles)


def partitions_of(topic: StoredTopic) -> list[TopicPartitionId]:
    """Every partition of a restored topic on the target."""
    return [TopicPartitionId(topic.target, number) for number in range(len(topic.base_offsets))]
