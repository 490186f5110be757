"""Topics of a cluster: names, ids, partitions, configs; creating and deleting them."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    ConfigSource,  # pyright: ignore[reportPrivateImportUsage]
    NewTopic,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)
from confluent_kafka.admin import (
    TopicDescription as ConfluentTopicDescription,  # pyright: ignore[reportPrivateImportUsage]
)

from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    KafkaRequestError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.librdkafka_admin import LibrdkafkaAdmin

V = TypeVar("V")

_RETRY_S = 0.05

_NOT_ALLOWED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_ABSENT = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 (librdkafka's local errors are all named like this)
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
}


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster describes it.

    `topic_id` in Kafka's own notation (22 characters); `explicit_configs` only what was set on this
    topic, `effective_configs` everything that holds for it. `authorized_operations` are what this
    user may do with it (READ, DESCRIBE ...).
    """

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    explicit_configs: Mapping[str, str]
    effective_configs: Mapping[str, str]
    authorized_operations: frozenset[str]


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create."""

    name: str
    partitions: int
    replication_factor: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)


def describe_topics(
    admin: LibrdkafkaAdmin, names: Iterable[str], *, cluster: str
) -> dict[str, TopicDescription]:
    """Descriptions by name.

    Raises TopicNotFoundError with all that are missing, AuthorizationFailedError (DESCRIBE,
    DESCRIBE_CONFIGS).
    """
    wanted = sorted(set(names))
    if not wanted:
        return {}
    described = admin.call(
        "describe_topics",
        lambda client: client.describe_topics(
            TopicCollection(wanted),
            include_authorized_operations=True,
            request_timeout=admin.timeout_s,
        ),
    )
    topics = granted(described, operation="describe_topics", needed="DESCRIBE", cluster=cluster)
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in wanted}
    answers = admin.call(
        "describe_configs",
        lambda client: client.describe_configs(
            list(resources.values()), request_timeout=admin.timeout_s
        ),
    )
    configs = granted(
        {resource.name: answer for resource, answer in answers.items()},
        operation="describe_configs",
        needed="DESCRIBE_CONFIGS",
        cluster=cluster,
    )
    descriptions = {}
    for name in wanted:
        topic = topics[name]
        entries = {key: entry for key, entry in configs[name].items() if entry.value is not None}
        descriptions[name] = TopicDescription(
            name=name,
            # librdkafka writes it with the other two characters of base64
            topic_id=str(topic.topic_id).replace("+", "-").replace("/", "_"),
            partitions=len(topic.partitions),
            replication_factor=min(len(part.replicas) for part in topic.partitions),
            explicit_configs={
                key: entry.value
                for key, entry in sorted(entries.items())
                if ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
            },
            effective_configs={key: entry.value for key, entry in sorted(entries.items())},
            authorized_operations=frozenset(
                operation.name for operation in topic.authorized_operations or ()
            ),
        )
    return descriptions


def create_topics(admin: LibrdkafkaAdmin, specs: Iterable[TopicSpec], *, cluster: str) -> None:
    """Create topics and wait until the cluster knows them and their leaders.

    Raises AuthorizationFailedError (CREATE), KafkaRequestError (when one exists),
    ClusterUnavailableError when a topic is not there in time.
    """
    new = [
        NewTopic(
            spec.name,
            num_partitions=spec.partitions,
            replication_factor=spec.replication_factor,
            config=dict(spec.configs),
        )
        for spec in specs
    ]
    if new:
        results = admin.call(
            "create_topics",
            lambda client: client.create_topics(
                new, operation_timeout=admin.timeout_s, request_timeout=admin.timeout_s
            ),
        )
        granted(results, operation="create_topics", needed="CREATE", cluster=cluster)
        _await_leaders(admin, [topic.topic for topic in new], cluster)


def _await_leaders(admin: LibrdkafkaAdmin, names: list[str], cluster: str) -> None:
    deadline = time.monotonic() + admin.timeout_s
    while True:
        answers = admin.call(
            "create_topics",
            lambda client: client.describe_topics(
                TopicCollection(names), request_timeout=admin.timeout_s
            ),
        )
        absent = [name for name, answer in answers.items() if not _is_led(answer)]
        if not absent:
            return
        if time.monotonic() + _RETRY_S > deadline:
            raise ClusterUnavailableError(
                bootstrap_servers=cluster,
                operation="create_topics",
                timeout_s=admin.timeout_s,
                reason=f"no leader yet for {', '.join(absent)}",
            )
        time.sleep(_RETRY_S)


def _is_led(answer: ConfluentTopicDescription | KafkaException) -> bool:
    return not isinstance(answer, KafkaException) and all(
        partition.leader is not None and partition.leader.id >= 0 for partition in answer.partitions
    )


def delete_topics(admin: LibrdkafkaAdmin, names: Iterable[str], *, cluster: str) -> None:
    """Delete topics; TopicNotFoundError, AuthorizationFailedError (DELETE)."""
    wanted = sorted(set(names))
    if wanted:
        results = admin.call(
            "delete_topics",
            lambda client: client.delete_topics(
                wanted, operation_timeout=admin.timeout_s, request_timeout=admin.timeout_s
            ),
        )
        granted(results, operation="delete_topics", needed="DELETE", cluster=cluster)


def granted(
    results: Mapping[str, V | KafkaException], *, operation: str, needed: str, cluster: str
) -> dict[str, V]:
    """The results by topic, or one error that names every topic that failed for the same reason."""
    refused: dict[str, KafkaError] = {
        name: result.args[0]
        for name, result in results.items()
        if isinstance(result, KafkaException)
    }
    pick: Callable[[set[int]], list[str]] = partial(_with_code, refused)
    if denied := pick(_NOT_ALLOWED):
        names = ", ".join(denied)
        resource = f"topic{'s' if len(denied) > 1 else ''} {names}"
        raise AuthorizationFailedError(operation=operation, resource=resource, needed=needed)
    if absent := pick(_ABSENT):
        raise TopicNotFoundError(topics=absent, cluster=cluster)
    for name, error in refused.items():
        reason = error.str().rstrip(".")
        raise KafkaRequestError(operation=operation, resource=f"topic {name}", reason=reason)
    return {
        name: result for name, result in results.items() if not isinstance(result, KafkaException)
    }


def _with_code(refused: Mapping[str, KafkaError], codes: set[int]) -> list[str]:
    return sorted(name for name, error in refused.items() if error.code() in codes)
