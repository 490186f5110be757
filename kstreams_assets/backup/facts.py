"""The table `topics`: how each topic was described when a window was backed up."""

from collections.abc import Mapping

from kstreams_assets.kafka.topics import TopicDescription
from kstreams_assets.warehouse.spans import TopicFacts


def facts_of(descriptions: Mapping[str, TopicDescription]) -> Mapping[str, TopicFacts]:
    """The facts that are kept of each described topic."""
    return {
        name: TopicFacts(
            topic_id=topic.topic_id,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=tuple(sorted(topic.explicit_configs.items())),
        )
        for name, topic in descriptions.items()
    }
