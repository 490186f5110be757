"""The control plane of topics: read their configs; create, alter and delete topics.

Uses confluent-kafka's `AdminClient`; `admin_calls` decides about retries and time-outs.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as client_errors

from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    KafkaRequestError,
    KStreamsAssetsError,
    TopicNotFoundError,
)
from kstreams_assets.kafka.admin_calls import AdminCalls, Change, Refusal, Start, describe_configs
from kstreams_assets.kafka.metadata import (
    ABSENT,
    RETRY_S,
    MetadataRequests,
    TopicIdentity,
    identities,
    operation_names,
    topic_id,
)
from kstreams_assets.kafka.throttle import unthrottled_time
from kstreams_assets.kafka.wire import TOPIC_NOT_ALLOWED, topics_not_allowed

if TYPE_CHECKING:
    from confluent_kafka.admin import (
        AdminClient,
        ConfigEntry,  # pyright: ignore[reportPrivateImportUsage]
    )

_ONE_BROKER_S: Final = 3.0
_CREATE: Final = "create_topics"
_ALTER: Final = "alter_topic_configs"
_DELETE: Final = "delete_topics"
_CONFIGS: Final = "describe_configs"
_EXISTS: Final = client_errors.TopicAlreadyExistsError.errno
_SET_ON_THE_TOPIC: Final = 1
"""The source of a config, in the numbers of Kafka's protocol, as librdkafka passes them on."""
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
"""Configs of a topic that decide which records it accepts and keeps. Their effective values count
on another cluster, too, wherever they were set."""

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
"""The brokers' config with the default of each topic config; `retention.ms` has several."""

_RETENTION: Final = {
    "log.retention.ms": 1,
    "log.retention.minutes": 60_000,
    "log.retention.hours": 3_600_000,
}

Configs = Mapping[str, "ConfigEntry"]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster describes it.

    `topic_id` in Kafka's own notation (22 characters). `explicit_configs` were set on this topic;
    `effective_configs` include defaults. `authorized_operations` are this user's rights (READ,
    DESCRIBE ...).
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
        """The effective values of `RECORD_CONFIGS`; a broker reports those that it supports."""
        effective = self.effective_configs
        return {name: effective[name] for name in RECORD_CONFIGS if name in effective}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create."""

    name: str
    partitions: int
    replication_factor: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)


class AdminRequests(MetadataRequests):
    """The part of `KafkaCluster` that describes topics and brokers, and changes topics.

    If one of several topics is refused, the error names every topic with the same refusal.
    """

    _admin: AdminCalls

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        """Every effective config of these topics; absent topics are omitted. Any live broker
        answers.

        Needs DESCRIBE_CONFIGS on the topics.
        """
        configs = self._configs_of_topics(sorted(set(topics)))
        return {topic: _values(entries.values()) for topic, entries in configs.items()}

    def broker_retention_ms(self) -> int | None:
        """The brokers' default of `retention.ms`, -1 for unlimited; None if not reported.

        Needs DESCRIBE_CONFIGS on the cluster.
        """
        return _retention_ms(self._broker_configs())

    def topic_defaults(self) -> Mapping[str, str]:
        """The brokers' defaults of `RECORD_CONFIGS`, as far as reported.

        Needs DESCRIBE_CONFIGS on the cluster.
        """
        reported = self._broker_configs()
        retention_ms = _retention_ms(reported)
        defaults = {} if retention_ms is None else {"retention.ms": str(retention_ms)}
        return defaults | {
            name: reported[of_broker]
            for name, of_broker in _BROKER_NAMES.items()
            if reported.get(of_broker)
        }

    def describe_topics(self, names: Iterable[str]) -> Mapping[str, TopicDescription]:
        """Ids, partitions, configs and this user's rights; one TopicNotFoundError for all missing.

        Needs DESCRIBE and DESCRIBE_CONFIGS on the topics.
        """
        operation, names = "describe_topics", sorted(set(names))
        if not names:
            return {}
        topics = self._topics_with_rights(names, operation)
        refusals = {
            topic.name: Refusal(topic.error_code, client_errors.for_code(topic.error_code).__name__)
            for topic in topics
            if topic.error_code
        }
        if refusals:
            raise self._admin_error(refusals, operation, "DESCRIBE")
        configs = self._configs_of_topics(names)
        if absent := set(names) - configs.keys():
            raise TopicNotFoundError(topics=absent, cluster=self._wire.bootstrap_servers)
        return {
            topic.name: TopicDescription(
                name=topic.name,
                topic_id=topic_id(topic.topic_id),
                partitions=len(topic.partitions),
                replication_factor=min(len(entry.replica_nodes) for entry in topic.partitions),
                explicit_configs=_values(_explicit(configs[topic.name])),
                effective_configs=_values(configs[topic.name].values()),
                authorized_operations=operation_names(topic.authorized_operations),
            )
            for topic in topics
        }

    def require_read(self, names: Iterable[str]) -> None:
        """Raise AuthorizationFailedError with every topic that this user may not READ."""
        denied = [
            name
            for name, topic in self.describe_topics(names).items()
            if not topic.authorized_operations & {"READ", "ALL"}
        ]
        if denied:
            raise topics_not_allowed("fetch", denied, "READ")

    def create_topics(self, specs: Iterable[TopicSpec]) -> None:
        """Create topics and wait until the cluster knows them and their leaders.

        Needs CREATE; raises KafkaRequestError if one exists.
        """
        by_name = {spec.name: spec for spec in specs}
        if not by_name:
            return
        names = list(by_name)
        before = self._identities(names, _CREATE)
        creation = Change(
            _CREATE,
            lambda some: self._creation([by_name[name] for name in some]),
            lambda some: self._created(some, by_name, before),
        )
        self._change(creation, names, "CREATE")
        deadline = unthrottled_time() + self._wire.timeout_s
        while True:
            described = self._wire.metadata(names, operation=_CREATE).topics
            absent = [topic.name for topic in described if not _is_led(topic)]
            if not absent:
                return
            if unthrottled_time() + RETRY_S > deadline:
                reason = f"no leader yet for {', '.join(absent)}"
                raise self._wire.unavailable(_CREATE, self._wire.timeout_s, reason)
            time.sleep(RETRY_S)

    def validate_topics(self, specs: Iterable[TopicSpec]) -> Mapping[str, KStreamsAssetsError]:
        """The reasons why the cluster would not create these topics, by name; creates nothing.

        Checks rights, configs, replication factor, names, the cluster's policy and existing topics.
        """
        specs = list(specs)
        if not specs:
            return {}
        answers = self._admin.ask(_CREATE, self._creation(specs, validate_only=True))
        return {
            name: self._admin_error({name: answer}, _CREATE, "CREATE")
            for name, answer in answers.items()
            if isinstance(answer, Refusal)
        }

    def alter_topic_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        """Set configs of topics, or remove (None) their own values; other configs are unchanged.

        The changes of each topic are applied together or not at all, after a short delay. Needs
        ALTER_CONFIGS. Raises KafkaRequestError for values that the cluster rejects.
        """
        changes = {topic: configs for topic, configs in changes.items() if configs}
        alteration = Change(
            _ALTER,
            lambda some: _alteration({topic: changes[topic] for topic in some}),
            lambda some: self._altered({topic: changes[topic] for topic in some}),
        )
        self._change(alteration, list(changes), "ALTER_CONFIGS")

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics; they disappear after a short delay. Needs DELETE."""
        names = sorted(set(names))
        if not names:
            return
        before = self._identities(names, _DELETE)
        deletion = Change(_DELETE, self._deletion, lambda some: self._deleted(some, before))
        self._change(deletion, names, "DELETE")

    def _change(self, change: Change, names: Sequence[str], needed: str) -> None:
        if refusals := self._admin.change(change, names):
            raise self._admin_error(refusals, change.operation, needed)

    def _deletion(self, names: Sequence[str]) -> Start:
        return lambda admin, timeout_s: admin.delete_topics(
            list(names), request_timeout=timeout_s, operation_timeout=self._wire.timeout_s
        )

    def _creation(self, specs: Sequence[TopicSpec], *, validate_only: bool = False) -> Start:
        def start(admin: "AdminClient", timeout_s: float) -> Mapping[str, Future[Any]]:
            from confluent_kafka.cimpl import NewTopic

            topics = [
                NewTopic(
                    spec.name, spec.partitions, spec.replication_factor, config=dict(spec.configs)
                )
                for spec in specs
            ]
            return admin.create_topics(
                topics,
                request_timeout=timeout_s,
                operation_timeout=self._wire.timeout_s,
                validate_only=validate_only,
            )

        return start

    def _configs_of_topics(self, topics: Sequence[str]) -> dict[str, Configs]:
        """The config entries of each existing topic, including defaults."""
        if not topics:
            return {}
        answers = self._admin.ask(_CONFIGS, describe_configs("topic", topics))
        refusals = {
            topic: answer
            for topic, answer in answers.items()
            if isinstance(answer, Refusal) and answer.code != ABSENT
        }
        if refusals:
            raise self._admin_error(refusals, _CONFIGS, "DESCRIBE_CONFIGS")
        return {
            topic: answer for topic, answer in answers.items() if not isinstance(answer, Refusal)
        }

    def _broker_configs(self) -> Mapping[str, str]:
        """Configs of the first broker that answers; another one would report the same."""
        for broker in self._wire.broker_ids(operation=_CONFIGS):
            with contextlib.suppress(ClusterUnavailableError):
                description = describe_configs("broker", [str(broker)])
                (answer,) = self._admin.ask(_CONFIGS, description, limit_s=_ONE_BROKER_S).values()
                return {} if isinstance(answer, Refusal) else _values(answer.values())
        return {}

    def _created(
        self,
        names: Sequence[str],
        specs: Mapping[str, TopicSpec],
        before: Mapping[str, TopicIdentity],
    ) -> dict[str, Refusal | None]:
        exists = Refusal(_EXISTS, "a topic of this name already exists")
        return {
            name: None
            if name not in before and topic.partitions == specs[name].partitions
            else exists
            for name, topic in self._identities(names, _CREATE).items()
        }

    def _altered(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, Refusal | None]:
        configs = self._configs_of_topics(list(changes))
        outcome: dict[str, Refusal | None] = {
            topic: Refusal(ABSENT, "the topic is not on the cluster")
            for topic in changes.keys() - configs.keys()
        }
        for topic, entries in configs.items():
            values = _values(_explicit(entries))
            if all(values.get(name) == value for name, value in changes[topic].items()):
                outcome[topic] = None
        return outcome

    def _deleted(
        self, names: Sequence[str], before: Mapping[str, TopicIdentity]
    ) -> dict[str, Refusal | None]:
        """Recognise a topic that was created after the deletion: same name, other id."""
        now = self._identities(names, _DELETE)
        return {name: None for name in names if name not in now or now[name] != before.get(name)}

    def _identities(self, names: Sequence[str], operation: str) -> dict[str, TopicIdentity]:
        return identities(self._wire.metadata(names, operation=operation).topics)

    def _admin_error(
        self, refusals: Mapping[str, Refusal], operation: str, needed: str
    ) -> AuthorizationFailedError | TopicNotFoundError | KafkaRequestError:
        """One error that names every topic that was refused for the same reason."""
        if denied := [name for name, one in refusals.items() if one.code in _NOT_ALLOWED]:
            return topics_not_allowed(operation, denied, needed)
        if absent := [name for name, one in refusals.items() if one.code == ABSENT]:
            return TopicNotFoundError(topics=absent, cluster=self._wire.bootstrap_servers)
        name, refusal = next(iter(refusals.items()))
        return KafkaRequestError(
            operation=operation, resource=f"topic {name}", reason=refusal.reason
        )


def may_be_compacted(effective_configs: Mapping[str, str]) -> bool:
    """Whether compaction may have removed records of a topic with these effective configs.

    Tiered storage and compaction exclude each other.
    """
    policies = effective_configs.get("cleanup.policy", "delete").split(",")
    is_tiered = effective_configs.get("remote.storage.enable", "false").lower() == "true"
    return "compact" in [policy.strip() for policy in policies] and not is_tiered


def _alteration(changes: Mapping[str, Mapping[str, str | None]]) -> Start:
    def start(admin: "AdminClient", timeout_s: float) -> Mapping[str, Future[Any]]:
        from confluent_kafka.admin import (
            AlterConfigOpType,  # pyright: ignore[reportPrivateImportUsage]
            ConfigEntry,  # pyright: ignore[reportPrivateImportUsage]
            ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
        )

        def entry(name: str, value: str | None) -> ConfigEntry:
            operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            return ConfigEntry(name, value, incremental_operation=operation)

        resources = [
            ConfigResource(
                "topic",
                topic,
                incremental_configs=[entry(name, value) for name, value in configs.items()],
            )
            for topic, configs in changes.items()
        ]
        futures = admin.incremental_alter_configs(resources, request_timeout=timeout_s)
        return {resource.name: future for resource, future in futures.items()}

    return start


def _retention_ms(configs: Mapping[str, str]) -> int | None:
    """The value of the first config that is set; a broker always has its hours."""
    set_ = (int(configs[name]) * ms for name, ms in _RETENTION.items() if configs.get(name))
    return next((max(-1, retention_ms) for retention_ms in set_), None)


def _explicit(configs: Configs) -> list["ConfigEntry"]:
    """The entries that were set on the topic itself."""
    return [entry for entry in configs.values() if entry.source == _SET_ON_THE_TOPIC]


def _values(entries: Iterable["ConfigEntry"]) -> dict[str, str]:
    values = {entry.name: entry.value for entry in entries if entry.value is not None}
    return dict(sorted(values.items()))


def _is_led(topic: Any) -> bool:  # noqa: ANN401 (kafka-python builds its responses at run time)
    return not topic.error_code and all(entry.leader_id >= 0 for entry in topic.partitions)
