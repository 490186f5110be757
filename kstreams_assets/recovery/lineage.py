"""Whether a cluster is the one that an application's backups, or a restore of them, lead to."""

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.layout import Warehouse
from kstreams_assets.warehouse import lineage
from kstreams_assets.warehouse.points import RecoveryPointTable


def require_lineage(warehouse: Warehouse, application_id: str, cluster: KafkaCluster) -> None:
    """Refuse to write what another cluster holds to the backups of an application.

    Raises:
        OtherClusterError: See `warehouse.lineage.require_lineage`.
        ClusterUnavailableError: No broker answered in time.
    """
    newest = next(iter(RecoveryPointTable(warehouse).newest(application_id)), None)
    if newest is None or newest.cluster_id == cluster.cluster_id():
        return
    found = cluster.metadata()
    lineage.require_lineage(
        warehouse,
        application_id,
        newest=newest,
        cluster_id=found.cluster_id,
        topic_ids={name: topic.topic_id for name, topic in found.topics.items()},
    )
