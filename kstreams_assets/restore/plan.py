"""The plan of a restore, with its blockers. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kstreams_assets.app.model import TopicRoles
from kstreams_assets.checks import Finding
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.model.data_files import SpanFile
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import PlacedTopic
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.restore.request import RestoreRequest

OTHER_WRITER: Final = (
    "Another restore, the application or a producer created, deleted or wrote it. Stop that"
    " process, delete the topic on the target if you do not need it, and run the restore again."
)


def identity(topic_id: str | None) -> str:
    """Return whether a topic exists and its id, as a predicate."""
    return "is absent" if topic_id is None else f"has id {topic_id}"


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition: the source offsets `ranges` (in order, disjoint) are written to the target.

    `records` is exact, `bytes` (keys, values, headers; uncompressed) an estimate. `saved_records`
    of them come from records saved with recovery points. `committed` is the offset the group had
    committed at the point, in source offsets, None if it had none or none is to be committed.
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
    """The KTable snapshot that replaces the raw log of a changelog.

    `raw_records` (exact) and `raw_bytes` (an estimate, uncompressed) are those of the raw log.
    `keyless` rows are left out, `undecoded` ones are restored byte for byte. `keeps_deletions`:
    rows without a value are records too (a versioned store, where they end a validity).
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

    `target_topic_id` is the id of an existing target topic of that name (empty, or filled by this
    restore), None without one. `configs` are set when the topic is created, or changed if it
    exists. `put_back` is what `finish` sets afterwards; None removes the topic's own value.
    `windows` counts the backups that are read. `snapshot` is set on a changelog that is written
    from a KTable snapshot.
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
        """Whether it exists on the target."""
        return self.target_topic_id is not None

    @property
    def records(self) -> int:
        """Number of records to restore."""
        return sum(partition.records for partition in self.partitions)

    @property
    def bytes(self) -> int:
        """Approximate size, uncompressed."""
        return sum(partition.bytes for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A restore as it would run; with `blockers` it does not run.

    `restore_id` is the same for the same point, mode, names and target cluster: a second run
    continues the first one's work. `group` is the consumer group on the target, the target's
    application id. `group_offsets` are already committed offsets of that group. `restorability` is
    that of the point. `point` is None if no point can be restored. `placed` are excluded topics in
    which the group continues.
    """

    restore_id: str
    application_id: str
    group: str
    target_cluster_id: str
    target_bootstrap_servers: str
    request: RestoreRequest
    point: RecoveryPoint | None
    restorability: Restorability
    topics: tuple[TopicPlan, ...]
    blockers: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    group_offsets: Mapping[TopicPartitionId, CommittedOffset] = field(default_factory=dict)
    placed: tuple[PlacedTopic, ...] = ()

    @property
    def from_snapshots(self) -> tuple[tuple[TopicPlan, SnapshotSource], ...]:
        """The topics that are written from KTable snapshots."""
        return tuple((topic, topic.snapshot) for topic in self.topics if topic.snapshot)

    def require_allowed(self) -> RecoveryPoint:
        """Return the point to restore; raise KStreamsAssetsError with all blockers."""
        if self.blockers or self.point is None:
            raise restore_refused(self.application_id, map(str, self.blockers))
        return self.point

    @property
    def records(self) -> int:
        """Number of records to restore."""
        return sum(topic.records for topic in self.topics)

    @property
    def bytes(self) -> int:
        """Approximate size, uncompressed."""
        return sum(topic.bytes for topic in self.topics)


def restore_refused(application_id: str, blockers: Iterable[str]) -> KStreamsAssetsError:
    """Return the error for a restore with blockers; no record was written."""
    listed = "\n".join(f"- {blocker}" for blocker in blockers)
    return KStreamsAssetsError(
        f"The restore of {application_id} is refused. No record was written:\n{listed}\n",
        remedy="Fix these blockers; kstreams-assets restore plan lists the remaining ones.",
    )
