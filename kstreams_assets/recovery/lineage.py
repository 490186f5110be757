"""Checks that an application's backups, or a restore of them, lead to a cluster."""

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.repository.repository import Repository


def require_lineage(warehouse: Warehouse, application_id: str, cluster: KafkaCluster) -> None:
    """Raise if backups of an application would mix in the contents of another cluster.

    Raises:
        OtherClusterError: See `Lineage.require`.
        ClusterUnavailableError: No broker answered in time.
    """
    for newest in Repository.of(warehouse, application_id).points.newest():
        require_continues(warehouse, newest, cluster)


def require_continues(warehouse: Warehouse, newest: RecoveryPoint, cluster: KafkaCluster) -> None:
    """As `require_lineage`, for an application with this newest recovery point."""
    if newest.cluster_id == cluster.cluster_id():
        return
    found = cluster.metadata()
    Repository.of(warehouse, newest.application_id).lineage.require(
        newest,
        cluster_id=found.cluster_id,
        topic_ids={name: topic.topic_id for name, topic in found.topics.items()},
    )
