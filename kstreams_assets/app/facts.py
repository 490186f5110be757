"""What a live cluster shows about an application; collected elsewhere, judged in `roles`."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamsGroupSubtopology:
    """One sub-topology of a StreamsGroupDescribe answer (KIP-1071); full names of topics.

    Sinks to user topics and global topics are not in that answer.
    """

    id: str
    source_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[str, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    state_changelog_topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Observed facts about one application id and the cluster it runs on."""

    topics: Mapping[str, int]
    """Every topic that can be seen, with its number of partitions."""
    group_topics: frozenset[str] = frozenset()
    """Topics with committed offsets of the group `application.id`."""
    transactional_topics: frozenset[str] = frozenset()
    """Topics that the application's transactional ids were seen to write."""
    other_application_ids: frozenset[str] = frozenset()
    """Other known application ids of the cluster, so that `orders` never takes from `orders-eu`."""
    streams_group: tuple[StreamsGroupSubtopology, ...] = ()
    """Empty for classic groups."""
