"""The control plane of one Kafka cluster, as the rest of this project asks it."""

from collections.abc import Callable, Iterable, Mapping

from kstreams_assets.closing import Closing
from kstreams_assets.errors import AuthorizationFailedError, KStreamsAssetsError
from kstreams_assets.kafka import groups, topics, transactions
from kstreams_assets.kafka import groups as group_commit
from kstreams_assets.kafka import leaders as offsets
from kstreams_assets.kafka import metadata as replicas
from kstreams_assets.kafka.admin import LibrdkafkaAdmin
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.groups import GroupState
from kstreams_assets.kafka.leader_epochs import epoch_ends, leader_doubt, leader_epochs
from kstreams_assets.kafka.leaders import PartitionLeaders
from kstreams_assets.kafka.metadata import (
    ClusterMetadata,
    Replicas,
    broker_ids,
    broker_retention_ms,
    cluster_metadata,
    hidden_topics,
    topic_configs,
)
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.topics import TopicDescription, TopicSpec
from kstreams_assets.kafka.transactions import TransactionalId, TransactionalTopics
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId


class KafkaCluster(Closing):
    """Questions to one cluster, each answered or failed within the connection's request timeout.

    Connects at the first call and keeps its connections; usable from one thread at a time. Every
    call raises ClusterUnavailableError when no broker answers in time, AuthenticationFailedError
    for wrong credentials or a failed TLS handshake, AuthorizationFailedError where an ACL is
    missing, TopicNotFoundError for topics that are not there, SecretNotFoundError and
    ConfigurationError where the connection itself is wrong.
    """

    def __init__(self, connection: KafkaConnection, *, timeout_s: float | None = None) -> None:
        self.connection = connection
        limit_s = connection.request_timeout_seconds if timeout_s is None else timeout_s
        self._admin = LibrdkafkaAdmin(connection, timeout_s=limit_s)
        self._wire = WireClient(connection, timeout_s=limit_s)
        self._name = connection.bootstrap_servers
        self._leaders = PartitionLeaders(self._wire, cluster=self._name)
        self._cluster_id: str | None = None

    def close(self) -> None:
        """Close all connections."""
        self._admin.close()
        self._wire.close()

    def raw_log(self) -> RawLogReader:
        """A reader of raw logs on this object's connections. Needs READ on what it reads."""
        return RawLogReader(self.connection, shared=(self._wire, self._leaders))

    def cluster_id(self) -> str:
        """The id the cluster was formatted with; asked once."""
        return self._cluster_id or self.metadata().cluster_id

    def metadata(self) -> ClusterMetadata:
        """Ids and partitions of every topic this user may describe; asked of any live broker."""
        found = cluster_metadata(self._wire)
        self._cluster_id = found.cluster_id
        return found

    def broker_ids(self) -> tuple[int, ...]:
        """The ids of the brokers that are alive now, in order."""
        return broker_ids(self._wire)

    def leader_epochs(self, topics: Iterable[str]) -> Mapping[TopicPartitionId, int]:
        """The leader epoch that each partition of these topics is in; absent topics left out."""
        return leader_epochs(self._wire, topics)

    def watch_leaders(self) -> None:
        """Begin to note which leaders report ends of logs, and which coordinators are asked."""
        self._leaders.answered.clear()
        self._wire.asked_coordinators.clear()

    def leader_doubt(self, group: str, *, wait_s: float) -> str:
        """Why what was reported since `watch_leaders` may be old (`leader_epochs.leader_doubt`)."""
        return leader_doubt(self._wire, self._leaders, group, wait_s=wait_s)

    def reported_epoch(self, partition: TopicPartitionId) -> int | None:
        """The epoch of the leader that reported ends since `watch_leaders`, None if not one."""
        epochs = self._leaders.answered.get(partition, set())
        return next(iter(epochs)) if len(epochs) == 1 else None

    def epoch_ends(self, epochs: Mapping[TopicPartitionId, int]) -> Mapping[TopicPartitionId, int]:
        """Where each log stops being that of a leader epoch, -1 if unknown. Needs DESCRIBE."""
        return epoch_ends(self._wire, self._leaders, epochs)

    def replicas(self, topics: Iterable[str]) -> Mapping[TopicPartitionId, Replicas]:
        """Which brokers keep each partition of these topics; absent topics left out.

        Needs DESCRIBE on the topics.
        """
        return replicas.replicas(self._wire, topics)

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        """Every config that holds for these topics; absent ones left out. Asked of any live broker.

        Needs DESCRIBE_CONFIGS on the topics.
        """
        return topic_configs(self._wire, topics)

    def broker_retention_ms(self) -> int | None:
        """The brokers' default of `retention.ms`, -1 for without end; None if not told.

        Needs DESCRIBE_CONFIGS on the cluster.
        """
        return broker_retention_ms(self._wire)

    def topics(self) -> Mapping[str, int]:
        """Number of partitions of every topic this user may describe, internal ones too."""
        return {name: topic.partitions for name, topic in self.metadata().topics.items()}

    def hidden_topics(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these topics that this user may not describe, whether they exist or not."""
        return hidden_topics(self._wire, names)

    def describe_topics(self, names: Iterable[str]) -> Mapping[str, TopicDescription]:
        """Ids, partitions, configs and this user's rights; one TopicNotFoundError for all missing.

        Needs DESCRIBE and DESCRIBE_CONFIGS on the topics.
        """
        return topics.describe_topics(self._admin, names, cluster=self._name)

    def require_read(self, names: Iterable[str]) -> None:
        """Raise AuthorizationFailedError with every topic this user may not READ."""
        described = self.describe_topics(names)
        denied = [
            name
            for name, topic in described.items()
            if not topic.authorized_operations & {"READ", "ALL"}
        ]
        if denied:
            resource = f"topic{'s' if len(denied) > 1 else ''} {', '.join(sorted(denied))}"
            raise AuthorizationFailedError(operation="fetch", resource=resource, needed="READ")

    def log_start_offsets(
        self, partitions: Iterable[TopicPartitionId]
    ) -> Mapping[TopicPartitionId, int]:
        """The first offset each log still holds. Needs DESCRIBE."""
        wanted = dict.fromkeys(partitions, offsets.EARLIEST)
        return offsets.list_offsets(self._wire, self._leaders, wanted)

    def high_watermarks(
        self, partitions: Iterable[TopicPartitionId]
    ) -> Mapping[TopicPartitionId, int]:
        """The end (exclusive) of what is replicated, open transactions included. Needs DESCRIBE."""
        wanted = dict.fromkeys(partitions, offsets.LATEST)
        return offsets.list_offsets(self._wire, self._leaders, wanted)

    def last_stable_offsets(
        self, partitions: Iterable[TopicPartitionId]
    ) -> Mapping[TopicPartitionId, int]:
        """The end (exclusive) of what is decided by transactions. Needs DESCRIBE."""
        wanted = dict.fromkeys(partitions, offsets.LATEST)
        isolation = offsets.Isolation.READ_COMMITTED
        return offsets.list_offsets(self._wire, self._leaders, wanted, isolation=isolation)

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartitionId, int]
    ) -> Mapping[TopicPartitionId, int | None]:
        """The first offset with that timestamp or a later one, None without. Needs DESCRIBE."""
        return offsets.offsets_for_times(self._wire, self._leaders, timestamps_ms)

    def group_offsets(
        self,
        group: str,
        *,
        partitions: Iterable[TopicPartitionId] | None = None,
        before_retry: Callable[[], None] | None = None,
    ) -> Mapping[TopicPartitionId, CommittedOffset]:
        """Committed offsets with metadata, only once no open transaction may still change them.

        Waits up to 25 s for that, calling `before_retry` before each new attempt. Partitions
        without an offset are absent; so is everything of a group that does not exist. Without
        `partitions` all that have an offset; Kafka then passes over a partition whose very first
        offset is still undecided. Needs DESCRIBE on the group and its topics. Raises
        UnstableGroupOffsetsError.
        """
        return groups.group_offsets(
            self._wire, group, partitions=partitions, before_retry=before_retry
        )

    def group_state(self, group: str) -> GroupState | None:
        """Type, state and members of a group, None when there is none. Needs DESCRIBE."""
        return groups.group_state(self._wire, group)

    def group_ids(self) -> frozenset[str]:
        """Every group this user may describe, of whatever type."""
        return groups.group_ids(self._wire)

    def group_operations(self, group: str) -> frozenset[str]:
        """What this user may do with a group, there or not: READ, DELETE ... Needs DESCRIBE."""
        return groups.group_operations(self._wire, group)

    def commit_group_offsets(
        self, group: str, offsets: Mapping[TopicPartitionId, CommittedOffset]
    ) -> None:
        """Set what a group without members has committed; a group that is not there is created.

        Metadata byte for byte, always without a leader epoch; partitions not named keep theirs.
        After an error some may be set; setting them again does no harm. Needs READ on the group and
        its topics. Raises GroupNotEmptyError, OffsetsRefusedError (names every refused partition).
        """
        group_commit.commit_group_offsets(self._wire, group, offsets)

    def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartitionId]) -> None:
        """Delete committed offsets of a group without members; absent ones are fine.

        Needs DELETE on the group and READ on its topics. Raises GroupNotEmptyError,
        OffsetsRefusedError.
        """
        group_commit.delete_group_offsets(self._wire, group, partitions)

    def transactional_ids(self, application_id: str) -> tuple[TransactionalId, ...]:
        """The application's transactional ids with their producer ids, by name.

        Empty proves nothing: brokers leave out what this user may not DESCRIBE, without a word.
        """
        return transactions.transactional_ids(self._wire, application_id)

    def ongoing_producers(self, transactional_ids: Iterable[str]) -> frozenset[tuple[int, int]]:
        """Producer id and epoch of those whose transaction is open now. Needs DESCRIBE on them."""
        return transactions.ongoing_producers(self._wire, transactional_ids)

    def transactional_topics(self, application_id: str) -> TransactionalTopics:
        """Topics the application's open transactions write now; empty with a reason if unseen."""
        return transactions.transactional_topics(self._wire, application_id)

    def create_topics(self, specs: Iterable[TopicSpec]) -> None:
        """Create topics. Needs CREATE; raises KafkaRequestError when one exists."""
        topics.create_topics(self._admin, specs, cluster=self._name)

    def validate_topics(self, specs: Iterable[TopicSpec]) -> Mapping[str, KStreamsAssetsError]:
        """Why the cluster would not create these topics, by name; creates nothing.

        Rights, configs, replication factor, names, the cluster's policy, topics that exist already.
        """
        return topics.validate_topics(self._admin, specs, cluster=self._name)

    def alter_topic_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        """Set configs of topics, or remove (None) their own values; configs not named stay.

        Needs ALTER_CONFIGS. Raises KafkaRequestError for values the cluster does not take.
        """
        topics.alter_topic_configs(self._admin, changes, cluster=self._name)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics; they vanish a moment later. Needs DELETE."""
        topics.delete_topics(self._admin, names, cluster=self._name)

    def delete_records(
        self, before: Mapping[TopicPartitionId, int]
    ) -> Mapping[TopicPartitionId, int]:
        """Delete records below the given offsets; the new log starts. Needs DELETE."""
        return offsets.delete_records(self._admin, before, cluster=self._name)
