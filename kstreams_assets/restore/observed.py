"""What a plan is made from: facts of the backup and of the target, as they were found. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kstreams_assets.backup.content import SpanFile
from kstreams_assets.backup.damage import SpanDamage
from kstreams_assets.backup.result import TopicFacts
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.restore.plan import Refusal


@dataclass(frozen=True, slots=True)
class Holding:
    """What the warehouse holds of the wanted ranges of one partition.

    `records` is exact, `bytes` an estimate of keys, values and headers. `saved_records` of them lie
    in no file, but were saved with recovery points. `odd_timestamps` counts those with a timestamp
    of 0 or below. `lost` are offsets that Kafka had lost before they could be backed up. `windows`
    are the keys of the backups that the files belong to. `damaged` are spans among them whose files
    do not match the ledger: then nothing else is counted.
    """

    files: tuple[SpanFile, ...] = ()
    records: int = 0
    bytes: int = 0
    saved_records: int = 0
    odd_timestamps: int = 0
    lost: int = 0
    windows: frozenset[str] = frozenset()
    damaged: tuple[SpanDamage, ...] = ()


@dataclass(frozen=True, slots=True)
class NotedFacts:
    """A source topic as a backup noted it; `later`: only after the recovery point."""

    facts: TopicFacts
    later: bool


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic that is on the target; `starts` and `ends` (high watermarks) are by partition."""

    name: str
    topic_id: str
    replication_factor: int
    explicit_configs: Mapping[str, str]
    effective_configs: Mapping[str, str]
    operations: frozenset[str]
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def partitions(self) -> int:
        """How many it has."""
        return len(self.ends)

    @property
    def holds_records(self) -> bool:
        """Whether a partition's log holds any offset."""
        return self.starts != self.ends


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """A group on the target, `type` and `state` in Kafka's words."""

    type: str
    state: str
    member_count: int | None
    is_empty: bool


@dataclass(frozen=True, slots=True)
class TargetState:
    """The target cluster as it is now.

    `group` is None when there is none of that name. `unseen` are topics that are there and that
    this user may not look at; `problems` say so of them and of the group.
    """

    cluster_id: str
    bootstrap_servers: str
    brokers: int
    topics: Mapping[str, TargetTopic] = field(default_factory=dict)
    group: TargetGroup | None = None
    group_operations: frozenset[str] | None = None
    """None where they were not told."""
    group_offsets: Mapping[TopicPartitionId, CommittedOffset] = field(default_factory=dict)
    unseen: frozenset[str] = frozenset()
    problems: tuple[Refusal, ...] = ()
