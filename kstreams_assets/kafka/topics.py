"""Topics of a cluster: names, ids, partitions, configs; creating, altering and deleting them."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (
    AlterConfigOpType,  # pyright: ignore[reportPrivateImportUsage]
    ConfigEntry,  # pyright: ignore[reportPrivateImportUsage]
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
    KafkaError,
    KafkaRequestError,
    KStreamsAssetsError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.admin import LibrdkafkaAdmin

V = TypeVar("V")

_RETRY_S = 0.05
_CREATE = "create_topics"

_NOT_ALLOWED = {
    ConfluentError.TOPIC_AUTHORIZATION_FAILED,
    ConfluentError.CLUSTER_AUTHORIZATION_FAILED,
    ConfluentError.GROUP_AUTHORIZATION_FAILED,
}
ABSENT = {
    ConfluentError.UNKNOWN_TOPIC_OR_PART,
    ConfluentError._UNKNOWN_TOPIC,  # noqa: SLF001 (librdkafka's local errors are all named like this)
    ConfluentError._UNKNOWN_PARTITION,  # noqa: SLF001
}
"""What librdkafka says of a topic or partition that is not there."""


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
    new = _new_topics(specs)
    if new:
        results = admin.call(
            _CREATE,
            lambda client: client.create_topics(
                new, operation_timeout=admin.timeout_s, request_timeout=admin.timeout_s
            ),
        )
        granted(results, operation=_CREATE, needed="CREATE", cluster=cluster)
        _await_leaders(admin, [topic.topic for topic in new], cluster)


def validate_topics(
    admin: LibrdkafkaAdmin, specs: Iterable[TopicSpec], *, cluster: str
) -> dict[str, KStreamsAssetsError]:
    """Why the cluster would not create these topics, by name; empty when it would create all.

    It creates nothing. Told are a missing right to CREATE, unknown configs and values, more
    replicas than brokers, names it does not take, topics that are there already, and what the
    cluster's own policy forbids. Raises ClusterUnavailableError, AuthenticationFailedError.
    """
    new = _new_topics(specs)
    if not new:
        return {}
    results = admin.call(
        _CREATE,
        lambda client: client.create_topics(
            new, validate_only=True, request_timeout=admin.timeout_s
        ),
    )
    problems: dict[str, KStreamsAssetsError] = {}
    for name, result in results.items():
        try:
            granted({name: result}, operation=_CREATE, needed="CREATE", cluster=cluster)
        except KafkaError as problem:
            problems[name] = problem
    return problems


def _new_topics(specs: Iterable[TopicSpec]) -> list[NewTopic]:
    return [
        NewTopic(
            spec.name,
            num_partitions=spec.partitions,
            replication_factor=spec.replication_factor,
            config=dict(spec.configs),
        )
        for spec in specs
    ]


def _await_leaders(admin: LibrdkafkaAdmin, names: list[str], cluster: str) -> None:
    deadline = time.monotonic() + admin.timeout_s
    while True:
        answers = admin.call(
            _CREATE,
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
                operation=_CREATE,
                timeout_s=admin.timeout_s,
                reason=f"no leader yet for {', '.join(absent)}",
            )
        time.sleep(_RETRY_S)


def _is_led(answer: ConfluentTopicDescription | KafkaException) -> bool:
    return not isinstance(answer, KafkaException) and all(
        partition.leader is not None and partition.leader.id >= 0 for partition in answer.partitions
    )


def alter_topic_configs(
    admin: LibrdkafkaAdmin,
    changes: Mapping[str, Mapping[str, str | None]],
    *,
    cluster: str,
) -> None:
    """Set configs of topics, or remove (None) their own values; configs not named stay.

    Each topic's changes are taken together or not at all, and hold a moment later. Raises
    TopicNotFoundError, AuthorizationFailedError (ALTER_CONFIGS), KafkaRequestError.
    """
    resources = [
        ConfigResource(
            ResourceType.TOPIC,
            name,
            incremental_configs=[_config_change(key, value) for key, value in configs.items()],
        )
        for name, configs in changes.items()
        if configs
    ]
    if resources:
        results = admin.call(
            "alter_topic_configs",
            lambda client: client.incremental_alter_configs(
                resources, request_timeout=admin.timeout_s
            ),
        )
        granted(
            {resource.name: result for resource, result in results.items()},
            operation="alter_topic_configs",
            needed="ALTER_CONFIGS",
            cluster=cluster,
        )


def _config_change(name: str, value: str | None) -> ConfigEntry:
    change = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    return ConfigEntry(name, value, incremental_operation=change)


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
    refused: dict[str, ConfluentError] = {
        name: result.args[0]
        for name, result in results.items()
        if isinstance(result, KafkaException)
    }
    pick: Callable[[set[int]], list[str]] = partial(_with_code, refused)
    if denied := pick(_NOT_ALLOWED):
        names = ", ".join(denied)
        resource = f"topic{'s' if len(denied) > 1 else ''} {names}"
        raise AuthorizationFailedError(operation=operation, resource=resource, needed=needed)
    if absent := pick(ABSENT):
        raise TopicNotFoundError(topics=absent, cluster=cluster)
    for name, error in refused.items():
        reason = error.str().rstrip(".")
        raise KafkaRequestError(operation=operation, resource=f"topic {name}", reason=reason)
    return {
        name: result for name, result in results.items() if not isinstance(result, KafkaException)
    }


def _with_code(refused: Mapping[str, ConfluentError], codes: set[int]) -> list[str]:
    return sorted(name for name, error in refused.items() if error.code() in codes)
