"""What is declared of an application, and what was found of it on its cluster. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kstreams_assets.app.governance import Governance
from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.offsets import TopicPartitionId


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it stands on the cluster.

    `replication_factor` and `in_sync` are the lowest of any partition; `lagging` are the partitions
    of which a replica is not in sync. `configs` are all that hold for it, defaults included.
    """

    name: str
    partitions: int
    replication_factor: int
    in_sync: int
    configs: Mapping[str, str]
    lagging: tuple[int, ...] = ()

    def number(self, config: str, default: int) -> int:
        """A config that is a number."""
        return int(self.configs.get(config, default))

    @property
    def policies(self) -> frozenset[str]:
        """What `cleanup.policy` says: `compact`, `delete`, both or neither."""
        said = self.configs.get("cleanup.policy", "delete").split(",")
        return frozenset(policy.strip() for policy in said if policy.strip())

    @property
    def deletes(self) -> bool:
        """Whether records go by age or size."""
        limits = (self.number("retention.ms", -1), self.number("retention.bytes", -1))
        return "delete" in self.policies and limits != (-1, -1)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Where a partition that the application reads begins, ends (last stable offset) and how far
    the group has committed, None where it has not.
    """

    log_start: int
    end: int
    committed: int | None

    @property
    def lag(self) -> int:
        """Offsets that the application has not processed."""
        return max(0, self.end - max(self.log_start, self.committed or 0))

    @property
    def lost(self) -> int:
        """Offsets that Kafka deleted before the application had processed them."""
        return 0 if self.committed is None else max(0, self.log_start - self.committed)


@dataclass(frozen=True, slots=True)
class BackedUpRecords:
    """What the newest windows hold of one partition."""

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
    """Everything that is judged, as it was at `taken_at_ms` (epoch milliseconds).

    `topics` are those of the application that are there; `cluster_topics` all names that this user
    may see. `reads` are the partitions of topics that the group reads; `committed_topics` those
    that it has offsets of. `other_application_ids` are groups of the cluster whose ids begin like
    the application's. `backed_up` is by partition, over the newest windows of each topic.
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
    """Topics that transactions of the application wrote, as far as that can be seen."""
    backed_up: Mapping[TopicPartitionId, BackedUpRecords] = field(default_factory=dict)
    store_rows: Mapping[str, StoreRows] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declared:
    """What the facts are compared with: declaration, topology, formats, owners, objectives.

    `formats` has every store. `window_ms` is the length of a backup's window, None if not known;
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
        """The topics with one of these roles, in order."""
        return [topic.name for topic in self.application.topics if topic.roles & set(roles)]

    @property
    def internal(self) -> frozenset[str]:
        """The topics that Kafka Streams itself makes."""
        return frozenset(topic.name for topic in self.application.topics if topic.is_internal)
