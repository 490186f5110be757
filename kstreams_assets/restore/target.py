"""What is on the target cluster: topics, offsets, configs, rights, the group. Writes nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from kstreams_assets.app.names import name_problem
from kstreams_assets.errors import (
    AuthorizationFailedError,
    KStreamsAssetsError,
    UnstableGroupOffsetsError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.topics import TopicDescription, TopicSpec
from kstreams_assets.offsets import TopicPartitionId, offsets_of_topic
from kstreams_assets.restore.observed import TargetGroup, TargetState, TargetTopic
from kstreams_assets.restore.plan import Refusal, TopicPlan

T = TypeVar("T")


def inspect_target(cluster: KafkaCluster, names: Iterable[str], group: str) -> TargetState:
    """The target as it is now; `names` are the topics that matter, whether they are there or not.

    What this user may not look at becomes one of the state's problems. A topic that this user may
    not DESCRIBE looks absent.
    """
    problems: list[Refusal] = []
    metadata = cluster.metadata()
    present = sorted(name for name in set(names) if name in metadata.topics)
    described = _described(cluster, present, problems)
    state = _tried(lambda: cluster.group_state(group), problems)
    operations = _tried(lambda: cluster.group_operations(group), problems)
    # A live group may be in the midst of a transaction, which would have to be waited for.
    settled = state is None or state.is_empty
    committed = _tried(lambda: cluster.group_offsets(group), problems) if settled else None
    return TargetState(
        cluster_id=metadata.cluster_id,
        bootstrap_servers=cluster.connection.bootstrap_servers,
        brokers=len(cluster.broker_ids()),
        topics=_topics(cluster, described),
        group=None
        if state is None
        else TargetGroup(state.type, state.state, state.member_count, state.is_empty),
        group_operations=operations,
        group_offsets=committed or {},
        unseen=frozenset(present) - described.keys(),
        problems=tuple(dict.fromkeys(problems)),
    )


def refused_topics(
    cluster: KafkaCluster, state: TargetState, topics: Iterable[TopicPlan]
) -> list[Refusal]:
    """What the brokers say against topics that are to be created; they create none."""
    specs = [
        TopicSpec(topic.target, len(topic.partitions), topic.replication_factor, topic.configs)
        for topic in topics
        if not topic.exists
        and topic.target not in state.unseen
        and name_problem(topic.target) is None
    ]
    found = cluster.validate_topics(specs)
    return [
        Refusal(f"topic {name}", f"It cannot be created: {error.problem}", error.remedy)
        for name, error in sorted(found.items())
    ]


def _described(
    cluster: KafkaCluster, names: Sequence[str], problems: list[Refusal]
) -> dict[str, TopicDescription]:
    """Those of the topics that this user may look at, by one question if it may look at all."""
    found: list[Refusal] = []
    together = _tried(lambda: cluster.describe_topics(names), found)
    if together is not None or len(names) == 1:
        problems += found
        return dict(together or {})
    described: dict[str, TopicDescription] = {}
    for name in names:
        described |= _described(cluster, [name], problems)
    return described


def _tried(ask: Callable[[], T], problems: list[Refusal]) -> T | None:
    try:
        return ask()
    except AuthorizationFailedError as error:
        problems.append(_problem(error, error.resource))
    except UnstableGroupOffsetsError as error:
        problems.append(_problem(error, f"group {error.group}"))
    return None


def _problem(error: KStreamsAssetsError, subject: str) -> Refusal:
    return Refusal(subject, error.problem, error.remedy)


def _topics(
    cluster: KafkaCluster, described: Mapping[str, TopicDescription]
) -> dict[str, TargetTopic]:
    partitions = [
        TopicPartitionId(name, number)
        for name, topic in described.items()
        for number in range(topic.partitions)
    ]
    starts = cluster.log_start_offsets(partitions) if partitions else {}
    ends = cluster.high_watermarks(partitions) if partitions else {}
    return {
        name: TargetTopic(
            name=name,
            topic_id=topic.topic_id,
            replication_factor=topic.replication_factor,
            explicit_configs=topic.explicit_configs,
            effective_configs=topic.effective_configs,
            operations=topic.authorized_operations,
            starts=offsets_of_topic(starts, name),
            ends=offsets_of_topic(ends, name),
        )
        for name, topic in described.items()
    }
