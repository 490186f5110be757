"""Topics and brokers: what a cluster has, and creating, altering and deleting topics.

By requests of our own: librdkafka's admin client may wait for a dead broker until its timeout while
others could answer.
"""

import base64
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import kafka.errors as client_errors
from kafka.admin import ACLOperation
from kafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,  # pyright: ignore[reportAttributeAccessIssue]
)
from kafka.protocol.api_message import ApiMessage

from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    KafkaRequestError,
    KStreamsAssetsError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.leaders import Requests
from kstreams_assets.kafka.throttle import QuotaPatience, unthrottled_time, wait_throttle_time
from kstreams_assets.kafka.wire import TOPIC_NOT_ALLOWED, WireClient, topics_not_allowed
from kstreams_assets.offsets import TopicPartitionId

_RETRY_S: Final = 0.1
_ONE_BROKER_S: Final = 3.0
_MORE_ATTEMPTS: Final = 3
_CREATE: Final = "create_topics"
_TOPIC: Final = 2
_BROKER: Final = 4
_SET: Final = 0
_DELETE: Final = 1
_SET_ON_THE_TOPIC: Final = 1
_ABSENT: Final = client_errors.UnknownTopicOrPartitionError.errno
_COMPACTED_BY_EVERY_CLUSTER: Final = frozenset({"__consumer_offsets", "__transaction_state"})
_NOT_CONTROLLER: Final = client_errors.NotControllerError.errno
_QUOTA_EXCEEDED: Final = client_errors.for_code(89).errno  # THROTTLING_QUOTA_EXCEEDED
_QUOTA_RETRY_MS: Final = 100
_NOT_ALLOWED: Final = {
    TOPIC_NOT_ALLOWED,
    client_errors.ClusterAuthorizationFailedError.errno,
}
RECORD_CONFIGS: Final = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "max.decompressed.message.bytes",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
)
"""Configs of a topic that decide which records it takes and which it keeps. Their effective values
count on another cluster, too, wherever they were set."""

_BROKER_NAMES: Final = {
    "cleanup.policy": "log.cleanup.policy",
    "retention.bytes": "log.retention.bytes",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "max.decompressed.message.bytes": "max.decompressed.message.bytes",
    "message.timestamp.type": "log.message.timestamp.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
}
"""Of configs of topics the brokers' config that is their default; `retention.ms` has several."""

# The first that is set holds; a broker's hours always are.
_RETENTION: Final = {
    "log.retention.ms": 1,
    "log.retention.minutes": 60_000,
    "log.retention.hours": 3_600_000,
}


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """A topic: its id in Kafka's own notation (22 characters) and its number of partitions."""

    name: str
    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The id the cluster was formatted with, and every topic this user may describe, by name."""

    cluster_id: str
    topics: Mapping[str, TopicIdentity]


@dataclass(frozen=True, slots=True)
class Replicas:
    """The brokers (ids) that keep a partition, and those of them that are in sync."""

    brokers: tuple[int, ...]
    in_sync: tuple[int, ...]


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

    @property
    def record_configs(self) -> Mapping[str, str]:
        """The effective values of `RECORD_CONFIGS`; a broker reports those that it knows."""
        found = self.effective_configs
        return {name: found[name] for name in RECORD_CONFIGS if name in found}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create."""

    name: str
    partitions: int
    replication_factor: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)


class TopicRequests(Requests):
    """The part of `KafkaCluster` that concerns topics and brokers.

    Where one topic of several is refused, the error names every topic with the same refusal.
    """

    _cluster_id: str | None = None

    def cluster_id(self) -> str:
        """The id the cluster was formatted with; asked once."""
        return self._cluster_id or self.metadata().cluster_id

    def metadata(self) -> ClusterMetadata:
        """Ids and partitions of every topic this user may describe; asked of any live broker."""
        response = self._wire.metadata(None, operation="metadata")
        topics = {
            topic.name: TopicIdentity(topic.name, _notation(topic.topic_id), len(topic.partitions))
            for topic in sorted(response.topics, key=lambda topic: topic.name)
            if topic.partitions
        }
        self._cluster_id = str(response.cluster_id)
        return ClusterMetadata(self._cluster_id, topics)

    def topics(self) -> Mapping[str, int]:
        """Number of partitions of every topic this user may describe, internal ones too."""
        return {name: topic.partitions for name, topic in self.metadata().topics.items()}

    def hidden_topics(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these topics that this user may not describe, whether they exist or not.

        Left out of a list of all topics they look absent; asked for by name, the broker says that
        it does not say (`KafkaApis.handleTopicMetadataRequest`).
        """
        wanted = sorted(set(names))
        if not wanted:
            return frozenset()
        response = self._wire.metadata(wanted, operation="metadata")
        return frozenset(t.name for t in response.topics if t.error_code == TOPIC_NOT_ALLOWED)

    def broker_ids(self) -> tuple[int, ...]:
        """The ids of the brokers that are alive now, in order."""
        response = self._wire.metadata([], operation="metadata")
        return tuple(sorted(broker.node_id for broker in response.brokers))

    def replicas(self, topics: Iterable[str]) -> Mapping[TopicPartitionId, Replicas]:
        """Which brokers keep each partition of these topics; absent topics left out.

        Needs DESCRIBE on the topics.
        """
        operation, wanted = "replicas", sorted(set(topics))
        if not wanted:
            return {}
        response = self._wire.metadata(wanted, operation=operation)
        denied = [t.name for t in response.topics if t.error_code == TOPIC_NOT_ALLOWED]
        if denied:
            raise topics_not_allowed(operation, denied, "DESCRIBE")
        return {
            TopicPartitionId(topic.name, entry.partition_index): Replicas(
                tuple(sorted(entry.replica_nodes)), tuple(sorted(entry.isr_nodes))
            )
            for topic in response.topics
            for entry in topic.partitions
        }

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        """Every config that holds for these topics; absent ones left out. Asked of any live broker.

        Needs DESCRIBE_CONFIGS on the topics.
        """
        found = _topic_configs(self._wire, sorted(set(topics)))
        return {topic: _values(entries) for topic, entries in found.items()}

    def broker_retention_ms(self) -> int | None:
        """The brokers' default of `retention.ms`, -1 for without end; None if not told.

        Needs DESCRIBE_CONFIGS on the cluster.
        """
        for broker in self._wire.broker_ids(operation="describe_configs"):
            with contextlib.suppress(ClusterUnavailableError):  # another one tells the same
                (result,) = _configs(self._wire, _BROKER, [str(broker)], _RETENTION, node=broker)
                told = _values(result.configs or ())
                for name, unit_ms in _RETENTION.items():
                    if told.get(name):
                        return max(-1, int(told[name]) * unit_ms)
                return None
        return None

    def topic_defaults(self) -> Mapping[str, str]:
        """The brokers' defaults of `RECORD_CONFIGS`, as far as they are reported.

        Needs DESCRIBE_CONFIGS on the cluster.
        """
        names = [*_BROKER_NAMES.values()]
        for broker in self._wire.broker_ids(operation="describe_configs"):
            with contextlib.suppress(ClusterUnavailableError):  # another one reports the same
                (result,) = _configs(self._wire, _BROKER, [str(broker)], names, node=broker)
                reported = _values(result.configs or ())
                found = {
                    name: reported[of_broker]
                    for name, of_broker in _BROKER_NAMES.items()
                    if reported.get(of_broker)
                }
                retention_ms = self.broker_retention_ms()
                if retention_ms is not None:
                    found["retention.ms"] = str(retention_ms)
                return found
        return {}

    def describe_topics(self, names: Iterable[str]) -> Mapping[str, TopicDescription]:
        """Ids, partitions, configs and this user's rights; one TopicNotFoundError for all missing.

        Needs DESCRIBE and DESCRIBE_CONFIGS on the topics.
        """
        operation, wanted = "describe_topics", sorted(set(names))
        if not wanted:
            return {}
        answers = self._described(wanted, operation)
        self._require_granted(answers, operation, "DESCRIBE")
        configs = _topic_configs(self._wire, wanted)
        if absent := set(wanted) - configs.keys():
            raise TopicNotFoundError(topics=absent, cluster=self._wire.bootstrap_servers)
        return {
            topic.name: TopicDescription(
                name=topic.name,
                topic_id=_notation(topic.topic_id),
                partitions=len(topic.partitions),
                replication_factor=min(len(entry.replica_nodes) for entry in topic.partitions),
                explicit_configs=_values(
                    entry
                    for entry in configs[topic.name]
                    if entry.config_source == _SET_ON_THE_TOPIC
                ),
                effective_configs=_values(configs[topic.name]),
                authorized_operations=operation_names(topic.authorized_operations),
            )
            for topic in answers
        }

    def _described(self, names: Sequence[str], operation: str) -> Sequence[Any]:
        """The answers by name; a broker may not have heard yet of a topic just created."""
        more_attempts = _MORE_ATTEMPTS
        while True:
            topics = self._wire.metadata(names, operation=operation, with_rights=True).topics
            if not more_attempts or all(topic.error_code != _ABSENT for topic in topics):
                return sorted(topics, key=lambda topic: topic.name)
            more_attempts -= 1
            time.sleep(_RETRY_S)

    def require_read(self, names: Iterable[str]) -> None:
        """Raise AuthorizationFailedError with every topic this user may not READ."""
        denied = [
            name
            for name, topic in self.describe_topics(names).items()
            if not topic.authorized_operations & {"READ", "ALL"}
        ]
        if denied:
            raise topics_not_allowed("fetch", denied, "READ")

    def create_topics(self, specs: Iterable[TopicSpec]) -> None:
        """Create topics and wait until the cluster knows them and their leaders.

        Needs CREATE; raises KafkaRequestError when one exists.
        """
        wanted = list(specs)
        if not wanted:
            return
        self._require_granted(self._created(wanted), _CREATE, "CREATE")
        names = [spec.name for spec in wanted]
        deadline = unthrottled_time() + self._wire.timeout_s
        while True:
            described = self._wire.metadata(names, operation=_CREATE).topics
            absent = [topic.name for topic in described if not _is_led(topic)]
            if not absent:
                return
            if unthrottled_time() + _RETRY_S > deadline:
                reason = f"no leader yet for {', '.join(absent)}"
                raise self._wire.unavailable(_CREATE, self._wire.timeout_s, reason)
            time.sleep(_RETRY_S)

    def validate_topics(self, specs: Iterable[TopicSpec]) -> Mapping[str, KStreamsAssetsError]:
        """Why the cluster would not create these topics, by name; creates nothing.

        Rights, configs, replication factor, names, the cluster's policy, topics that exist already.
        """
        wanted = list(specs)
        if not wanted:
            return {}
        return {
            topic.name: self._refusal([topic], _CREATE, "CREATE")
            for topic in self._created(wanted, validate_only=True)
            if topic.error_code
        }

    def _created(self, specs: Iterable[TopicSpec], *, validate_only: bool = False) -> list[Any]:
        by_name = {spec.name: spec for spec in specs}
        return self._change_topics(
            _CREATE,
            [*by_name],
            lambda names: self._creation([by_name[n] for n in names], validate_only=validate_only),
            lambda answer: answer.topics,
        )

    def _creation(
        self, specs: Iterable[TopicSpec], *, validate_only: bool = False
    ) -> CreateTopicsRequest:
        topic = CreateTopicsRequest.CreatableTopic
        return CreateTopicsRequest(
            topics=[
                topic(
                    name=spec.name,
                    num_partitions=spec.partitions,
                    replication_factor=spec.replication_factor,
                    assignments=[],
                    configs=[
                        topic.CreatableTopicConfig(name=name, value=value)
                        for name, value in spec.configs.items()
                    ],
                )
                for spec in specs
            ],
            timeout_ms=round(1000 * self._wire.timeout_s),
            validate_only=validate_only,
        )

    def alter_topic_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        """Set configs of topics, or remove (None) their own values; configs not named stay.

        Each topic's changes are taken together or not at all, and hold a moment later. Needs
        ALTER_CONFIGS. Raises KafkaRequestError for values the cluster does not take.
        """
        operation = "alter_topic_configs"
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        resources = [
            resource(
                resource_type=_TOPIC,
                resource_name=topic,
                configs=[
                    resource.AlterableConfig(
                        name=name, config_operation=_DELETE if value is None else _SET, value=value
                    )
                    for name, value in configs.items()
                ],
            )
            for topic, configs in changes.items()
            if configs
        ]
        if resources:
            request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
            response = self._change(operation, request, lambda answer: answer.responses)
            self._require_granted(response.responses, operation, "ALTER_CONFIGS")

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics; they vanish a moment later. Needs DELETE."""
        operation, wanted = "delete_topics", sorted(set(names))
        if wanted:
            results = self._change_topics(
                operation,
                wanted,
                lambda names: DeleteTopicsRequest(
                    topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names],
                    topic_names=[*names],
                    timeout_ms=round(1000 * self._wire.timeout_s),
                ),
                lambda answer: answer.responses,
            )
            self._require_granted(results, operation, "DELETE")

    def _change_topics(
        self,
        operation: str,
        names: Sequence[str],
        make: Callable[[Sequence[str]], ApiMessage],
        results: Callable[[Any], Iterable[Any]],
    ) -> list[Any]:
        """The controller's result for each topic; asked again for those beyond its quota.

        A quota of changes (`controller_mutation_rate`, KIP-599) lets some of the topics of a
        request through and refuses the others for some time.
        """
        done: list[Any] = []
        patience = QuotaPatience()
        while names:
            response = self._change(operation, make(names), results)
            answers = [*results(response)]
            refused = [one for one in answers if one.error_code == _QUOTA_EXCEEDED]
            if refused and patience.is_exhausted():
                return done + answers
            done += [one for one in answers if one.error_code != _QUOTA_EXCEEDED]
            names = [_name(one) for one in refused]
            if names:
                wait_throttle_time(max(response.throttle_time_ms, _QUOTA_RETRY_MS))
        return done

    def _change(
        self, operation: str, request: ApiMessage, results: Callable[[Any], Iterable[Any]]
    ) -> Any:  # noqa: ANN401 (kafka-python builds its response classes at run time)
        """The controller's answer to a request that is sent once, as it may not be done twice.

        Only to a broker that answers at this moment; asked again of another one where the answer
        is that it is not the controller. Raises ClusterUnavailableError.
        """
        limit_s = self._wire.timeout_s
        deadline = unthrottled_time() + limit_s
        while True:
            reason = "the controller moves"
            node = self._wire.metadata([], operation=operation, timeout_s=limit_s).controller_id
            try:
                answers_s = min(_ONE_BROKER_S, limit_s)
                self._wire.metadata(
                    [], operation=operation, node=node, timeout_s=answers_s, retry=False
                )
            except ClusterUnavailableError as error:
                reason = error.reason
            else:
                response = self._wire.request(
                    lambda: request,
                    operation=operation,
                    node=node,
                    timeout_s=max(_RETRY_S, deadline - unthrottled_time()),
                    retry=False,
                )
                if all(result.error_code != _NOT_CONTROLLER for result in results(response)):
                    return response
            if unthrottled_time() + _RETRY_S > deadline:
                raise self._wire.unavailable(operation, self._wire.timeout_s, reason)
            time.sleep(_RETRY_S)
            limit_s = max(_RETRY_S, deadline - unthrottled_time())

    def _require_granted(self, results: Iterable[Any], operation: str, needed: str) -> None:
        refused = [result for result in results if result.error_code]
        if refused:
            raise self._refusal(refused, operation, needed)

    def _refusal(
        self, refused: Sequence[Any], operation: str, needed: str
    ) -> AuthorizationFailedError | TopicNotFoundError | KafkaRequestError:
        """One error that names every topic that was refused for the same reason."""
        if denied := [_name(one) for one in refused if one.error_code in _NOT_ALLOWED]:
            return topics_not_allowed(operation, denied, needed)
        if absent := [_name(one) for one in refused if one.error_code == _ABSENT]:
            return TopicNotFoundError(topics=absent, cluster=self._wire.bootstrap_servers)
        return _failed(refused[0], operation)


def operation_names(codes: Iterable[int]) -> frozenset[str]:
    """What Kafka calls these operations: READ, DESCRIBE ...; kafka-python has read the bits."""
    return frozenset(operation.name for operation in ACLOperation if operation.value in codes)


def _topic_configs(wire: WireClient, topics: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The entries of each topic that is there, defaults included."""
    if not topics:
        return {}
    results = _configs(wire, _TOPIC, topics, None)
    denied = [r.resource_name for r in results if r.error_code == TOPIC_NOT_ALLOWED]
    if denied:
        raise topics_not_allowed("describe_configs", denied, "DESCRIBE_CONFIGS")
    for result in results:
        if result.error_code not in (0, _ABSENT):
            raise _failed(result, "describe_configs")
    return {result.resource_name: result.configs for result in results if not result.error_code}


def may_be_compacted(effective_configs: Mapping[str, str]) -> bool:
    """Whether compaction may have removed records of a topic with these effective configs.

    Tiered storage and compaction exclude each other.
    """
    policies = effective_configs.get("cleanup.policy", "delete").split(",")
    is_tiered = effective_configs.get("remote.storage.enable", "false").lower() == "true"
    return "compact" in [policy.strip() for policy in policies] and not is_tiered


def is_compacted(wire: WireClient, topic: str) -> bool:
    """The same of a topic of the cluster; every cluster compacts the topics of its coordinators.

    Raises what `KafkaCluster.topic_configs` raises.
    """
    if topic in _COMPACTED_BY_EVERY_CLUSTER:
        return True
    return may_be_compacted(_values(_topic_configs(wire, [topic]).get(topic, ())))


def _configs(
    wire: WireClient,
    kind: int,
    names: Iterable[str],
    keys: Iterable[str] | None,
    *,
    node: int | None = None,
) -> Sequence[Any]:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    wanted = None if keys is None else list(keys)
    request = DescribeConfigsRequest(
        resources=[
            resource(resource_type=kind, resource_name=name, configuration_keys=wanted)
            for name in names
        ],
        include_synonyms=False,
        include_documentation=False,
    )
    return wire.request(lambda: request, operation="describe_configs", node=node).results


def _values(entries: Iterable[Any]) -> dict[str, str]:
    found = {entry.name: entry.value for entry in entries if entry.value is not None}
    return dict(sorted(found.items()))


def _failed(result: Any, operation: str) -> KafkaRequestError:  # noqa: ANN401
    # not every answer has room for the broker's own words
    told = getattr(result, "error_message", None)
    reason = told or client_errors.for_code(result.error_code).__name__
    return KafkaRequestError(
        operation=operation, resource=f"topic {_name(result)}", reason=reason.rstrip(".")
    )


def _name(result: Any) -> str:  # noqa: ANN401
    return result.resource_name if hasattr(result, "resource_name") else result.name


def _is_led(topic: Any) -> bool:  # noqa: ANN401
    return not topic.error_code and all(entry.leader_id >= 0 for entry in topic.partitions)


def _notation(topic_id: UUID) -> str:
    """A topic id as Kafka's own `Uuid` writes it."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
