"""Whether a cluster is the one that an application's backups, or a restore of them, lead to."""

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.repository.repository import Repository


def require_lineage(warehouse: Warehouse, application_id: str, cluster: KafkaCluster) -> None:
    """Refuse to write what another cluster holds to the backups of an application.

    Raises:
        OtherClusterError: See `Lineage.require`.
        ClusterUnavailableError: No broker answered in time.
    """
    for newest in Repository.of(warehouse, application_id).points.newest():
        require_continues(warehouse, newest, cluster)


def require_continues(warehouse: Warehouse, newest: RecoveryPoint, cluster: KafkaCluster) -> None:
    """The same, of an application whose newest recovery point is at hand."""
    if newest.cluster_id == cluster.cluster_id():
        return
    found = cluster.metadata()
    Repository.of(warehouse, newest.application_id).lineage.require(
        newest,
        cluster_id=found.cluster_id,
        topic_ids={name: topic.topic_id for name, topic in found.topics.items()},
    )
