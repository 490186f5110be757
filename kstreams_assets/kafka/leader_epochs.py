"""The leader epoch that each partition is in: it counts the elections of its leader."""

from collections.abc import Iterable

from kafka.protocol.metadata import MetadataRequest

from kstreams_assets.kafka.positions import TopicPartitionId
from kstreams_assets.kafka.wire import WireClient

_OPERATION = "leader_epochs"
_WITH_EPOCHS = 7
# From version 10 on topics may go by id.
_METADATA_VERSION = 9


def leader_epochs(wire: WireClient, topics: Iterable[str]) -> dict[TopicPartitionId, int]:
    """The epoch of every partition of these topics, as one broker knows it.

    Topics that are not there or not shown to this user are absent. Raises ClusterUnavailableError.
    """
    wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(set(topics))]
    if not wanted:
        return {}
    response = wire.request(
        lambda: MetadataRequest(
            topics=wanted,
            allow_auto_topic_creation=False,
            min_version=_WITH_EPOCHS,
            max_version=_METADATA_VERSION,
        ),
        operation=_OPERATION,
    )
    return {
        TopicPartitionId(topic.name, entry.partition_index): entry.leader_epoch
        for topic in response.topics
        for entry in topic.partitions
        if entry.leader_epoch >= 0
    }
