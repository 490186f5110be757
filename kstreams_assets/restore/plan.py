"""What a restore would do, and everything that stands against it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kstreams_assets.app.model import TopicRoles
from kstreams_assets.checks import Finding
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.model.data_files import SpanFile
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restorability import Restores
from kstreams_assets.model.restores import PlacedTopic
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.restore.request import RestoreRequest

SOMEBODY_ELSE: Final = (
    "Another restore, the application or a producer created, deleted or wrote it. Stop that"
    " process, delete the topic on the target if you do not need it, and run the restore again."
)


def identity(topic_id: str | None) -> str:
    """Whether a topic is there and which one it is, as a predicate."""
    return "is absent" if topic_id is None else f"has id {topic_id}"


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition: source offsets `ranges` (in order, disjoint) go to the target.

    `records` is exact, `bytes` (keys, values, headers; uncompressed) an estimate. `saved_records`
    of them come from records saved with recovery points. `committed` is the offset the group had
    committed at the point, in source offsets, None where it had none or none is to be committed.
    `base_offset` is the target's end before the restore's first record (0 in a new topic).
    """

    source: TopicPartitionId
    target: TopicPartitionId
    topic_id: str
    ranges: Sequence[OffsetRange]
    files: Sequence[SpanFile]
    records: int
    bytes: int
    saved_records: int = 0
    committed: GroupOffset | None = None
    base_offset: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """The KTable snapshot that a changelog is written from instead of its raw log.

    `raw_records` (exact) and `raw_bytes` (an estimate, uncompressed) are those of the raw log.
    `keyless` rows are left out, `undecoded` ones are restored byte for byte. `keeps_deletions`:
    rows without a value are records, too (a versioned store, where they end a validity).
    """

    store: str
    window: str
    raw_records: int
    raw_bytes: int
    keyless: int = 0
    undecoded: int = 0
    keeps_deletions: bool = False


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """One topic.

    `target_topic_id` is the id of the topic of that name that is on the target already (empty, or
    filled by this very restore), None when there is none. `configs` are those it is created with,
    or set to where it exists; `put_back` is what `finish` sets afterwards, None removes the topic's
    own value. `windows` counts the backups it is read from. `snapshot` is set on a changelog that
    is written from a KTable snapshot.
    """

    source: str
    target: str
    roles: TopicRoles
    partitions: tuple[PartitionPlan, ...]
    replication_factor: int
    target_topic_id: str | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    put_back: Mapping[str, str | None] = field(default_factory=dict)
    windows: int = 0
    snapshot: SnapshotSource | None = None

    @property
    def exists(self) -> bool:
        """Whether it is on the target already."""
        return self.target_topic_id is not None

    @property
    def records(self) -> int:
        """How many records are restored."""
        return sum(partition.records for partition in self.partitions)

    @property
    def bytes(self) -> int:
        """About how many bytes, uncompressed."""
        return sum(partition.bytes for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A restore as it would be run; with `refusals` it is not run at all.

    `restore_id` is the same for the same point, mode, names and target cluster: a second run goes
    on with the first one's work. `group` is the consumer group on the target, the target's
    application id, `group_offsets` are what that group has committed there already. `gives` is what
    the point gives. `point` is None when none can be restored. `placed` are excluded topics in
    which the group goes on.
    """

    restore_id: str
    application_id: str
    group: str
    target_cluster_id: str
    target_bootstrap_servers: str
    request: RestoreRequest
    point: RecoveryPoint | None
    gives: Restores
    topics: tuple[TopicPlan, ...]
    refusals: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    group_offsets: Mapping[TopicPartitionId, CommittedOffset] = field(default_factory=dict)
    placed: tuple[PlacedTopic, ...] = ()

    @property
    def from_snapshots(self) -> tuple[tuple[TopicPlan, SnapshotSource], ...]:
        """The topics that are written from KTable snapshots."""
        return tuple((topic, topic.snapshot) for topic in self.topics if topic.snapshot)

    def require_allowed(self) -> RecoveryPoint:
        """The point to restore; raises KStreamsAssetsError with all that stands against it."""
        if self.refusals or self.point is None:
            raise restore_refused(self.application_id, map(str, self.refusals))
        return self.point

    @property
    def records(self) -> int:
        """How many records are restored."""
        return sum(topic.records for topic in self.topics)

    @property
    def bytes(self) -> int:
        """About how many bytes, uncompressed."""
        return sum(topic.bytes for topic in self.topics)


def restore_refused(application_id: str, refusals: Iterable[str]) -> KStreamsAssetsError:
    """The error for a restore that things stand against; no record was written."""
    listed = "\n".join(f"- {refusal}" for refusal in refusals)
    return KStreamsAssetsError(
        f"The restore of {application_id} is refused. No record was written:\n{listed}\n",
        remedy="Fix these blockers; kstreams-assets restore plan lists the remaining ones.",
    )
