"""The declaration of an application, and the facts from its cluster. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kstreams_assets.app.governance import Governance
from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.offsets import TopicPartitionId


@dataclass(frozen=True, slots=True)
class TopicState:
    """The present state of a topic on the cluster.

    `replication_factor` and `in_sync` are the minimum of all partitions. `lagging` are partitions
    with a replica that is not in sync. `configs` are the effective configs, including defaults.
    """

    name: str
    partitions: int
    replication_factor: int
    in_sync: int
    configs: Mapping[str, str]
    lagging: tuple[int, ...] = ()

    def number(self, config: str, default: int) -> int:
        """Return a numeric config."""
        return int(self.configs.get(config, default))

    @property
    def policies(self) -> frozenset[str]:
        """The policies in `cleanup.policy`: `compact`, `delete`, both or neither."""
        policies = self.configs.get("cleanup.policy", "delete").split(",")
        return frozenset(policy.strip() for policy in policies if policy.strip())

    @property
    def deletes(self) -> bool:
        """Whether Kafka deletes records by age or size."""
        limits = (self.number("retention.ms", -1), self.number("retention.bytes", -1))
        return "delete" in self.policies and limits != (-1, -1)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Log start, end (last stable offset) and committed offset of a partition that is read.

    `committed` is None if the group has not committed an offset.
    """

    log_start: int
    end: int
    committed: int | None

    @property
    def lag(self) -> int:
        """The number of unprocessed offsets."""
        return max(0, self.end - max(self.log_start, self.committed or 0))

    @property
    def lost(self) -> int:
        """The number of offsets that Kafka deleted before they were processed."""
        return 0 if self.committed is None else max(0, self.log_start - self.committed)


@dataclass(frozen=True, slots=True)
class BackedUpRecords:
    """Records of one partition in the newest windows."""

    records: int
    tombstones: int


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Rows of a store in its two newest snapshots, by the keys of their windows."""

    before_window: str
    before: int
    window: str
    rows: int


@dataclass(frozen=True, slots=True)
class GovernanceFacts:
    """All facts for the checks at `taken_at_ms` (epoch milliseconds).

    `topics` are existing topics of the application, `cluster_topics` all topics visible to this
    user. `reads` are the partitions that the group reads, `committed_topics` the topics with
    committed offsets. `other_application_ids` are groups whose ids start with that of the
    application. `backed_up` covers the newest windows of each topic.
    """

    bootstrap_servers: str
    cluster_id: str
    taken_at_ms: int
    brokers: int
    topics: Mapping[str, TopicState]
    cluster_topics: frozenset[str]
    reads: Mapping[TopicPartitionId, PartitionState] = field(default_factory=dict)
    committed_topics: frozenset[str] = frozenset()
    other_application_ids: frozenset[str] = frozenset()
    written_topics: frozenset[str] = frozenset()
    """Topics that transactions of the application wrote, as far as known."""
    backed_up: Mapping[TopicPartitionId, BackedUpRecords] = field(default_factory=dict)
    store_rows: Mapping[str, StoreRows] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of an application: topology, formats, owners, objectives.

    `formats` has every store. `window_ms` is the length of a backup window, None if not known;
    `objective_s` (recovery point) and `recovery_time_s` are seconds.
    """

    application: StreamsApplication
    governance: Governance
    formats: Mapping[str, StoreFormat] = field(default_factory=dict)
    owners: tuple[str, ...] = ()
    objective_s: float | None = None
    recovery_time_s: float | None = None
    window_ms: int | None = None
    backed_up_topics: frozenset[str] = frozenset()

    @property
    def application_id(self) -> str:
        """The Kafka Streams `application.id`."""
        return self.application.application_id

    def names(self, *roles: TopicRole) -> list[str]:
        """Return the topics with one of these roles, in order."""
        return [topic.name for topic in self.application.topics if topic.roles & set(roles)]

    @property
    def internal(self) -> frozenset[str]:
        """The topics that Kafka Streams creates."""
        return frozenset(topic.name for topic in self.application.topics if topic.is_internal)
