"""What the brokers tell of an application: topics, ends of logs; state, offsets and lag of it."""

from collections.abc import Mapping, Sequence
from typing import Final

from kstreams_assets.app.model import AppTopic, TopicRole
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.metrics import catalogue
from kstreams_assets.metrics.sample import Sample
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.settings import ApplicationSettings

GROUP_STATES: Final = (
    "Absent",
    "Stable",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Empty",
    "Dead",
)
"""Kafka's states of classic, consumer and streams groups; `Absent` is our word for no group."""

_READ: Final = frozenset({TopicRole.INPUT, TopicRole.REPARTITION})


def read_cluster(settings: ApplicationSettings, *, timeout_s: float) -> list[Sample]:
    """Topics of the application, and where their logs begin and end.

    Every single question ends within `timeout_s` seconds. Raises KafkaError and its kin,
    SecretNotFoundError, ConfigurationError.
    """
    with KafkaCluster(settings.connection, timeout_s=timeout_s) as cluster:
        partitions = _partitions(cluster, settings.application.topics)
        present = [one for of_topic in partitions.values() for one in of_topic]
        starts = cluster.log_start_offsets(present)
        ends = cluster.last_stable_offsets(present)
    roles = _roles(settings)
    samples: list[Sample] = []
    for topic, of_topic in partitions.items():
        named = {"topic": topic, "role": roles[topic]}
        samples.append(catalogue.TOPIC_PRESENT.sample(bool(of_topic), **named))
        if of_topic:
            samples.append(catalogue.TOPIC_PARTITIONS.sample(len(of_topic), **named))
    for one in present:
        samples.append(catalogue.LOG_START.sample(starts[one], **_labels(one, roles)))
        samples.append(catalogue.PRODUCED.sample(ends[one], **_labels(one, roles)))
    return samples


def read_group(settings: ApplicationSettings, *, timeout_s: float) -> list[Sample]:
    """State and members of the group, its committed offsets, and how far behind they are.

    Committed offsets wait for open transactions, so this may take up to 25 s more than its single
    questions, which end within `timeout_s` seconds. Raises as `read_cluster`, and
    UnstableGroupOffsetsError.
    """
    application = settings.application
    topics = [topic for topic in application.topics if topic.roles & _READ]
    with KafkaCluster(settings.connection, timeout_s=timeout_s) as cluster:
        state = cluster.group_state(application.application_id)
        of_topics = _partitions(cluster, topics)
        read = [one for of_topic in of_topics.values() for one in of_topic]
        # Ends after offsets: the other way round the lag of a quick application is negative.
        committed = cluster.group_offsets(application.application_id, partitions=read)
        starts = cluster.log_start_offsets(read)
        ends = cluster.last_stable_offsets(read)
    samples = [*catalogue.GROUP_STATE.one_of(state.state if state else "Absent", GROUP_STATES)]
    members = 0 if state is None else state.member_count
    if members is not None:
        samples.append(catalogue.GROUP_MEMBERS.sample(members))
    roles = _roles(settings)
    for one in read:
        labels = _labels(one, roles)
        reached = starts[one]
        if one in committed:
            reached = committed[one].offset
            samples.append(catalogue.CONSUMED.sample(reached, **labels))
        samples.append(catalogue.LAG.sample(max(0, ends[one] - reached), **labels))
    return samples


def _partitions(
    cluster: KafkaCluster, topics: Sequence[AppTopic]
) -> Mapping[str, list[TopicPartitionId]]:
    """The partitions of each of these topics that the cluster has now, none of absent ones."""
    found = cluster.topics()
    return {
        topic.name: [TopicPartitionId(topic.name, n) for n in range(found.get(topic.name, 0))]
        for topic in topics
    }


def _roles(settings: ApplicationSettings) -> Mapping[str, str]:
    return {topic.name: "+".join(sorted(topic.roles)) for topic in settings.application.topics}


def _labels(one: TopicPartitionId, roles: Mapping[str, str]) -> Mapping[str, str]:
    return {"topic": one.topic, "partition": str(one.partition), "role": roles[one.topic]}
