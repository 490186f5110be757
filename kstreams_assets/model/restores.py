"""The stored form of restores: their requests, their progress, and where their records are."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final

from kstreams_assets.app.model import TopicRoles
from kstreams_assets.model.column import ApplicationId, Column, RunId
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.offsets import OffsetMap, OffsetRun, TopicPartitionId


class RestoreMode(StrEnum):
    """What is restored and how the application continues.

    `state`: inputs, changelogs, records in flight, outputs and offsets, so that it continues
    exactly at its old position. `rebuild`: all inputs, with offsets at their start; everything is
    recomputed. `inputs_until`: the same with the inputs up to a recovery point. `logs`: inputs and
    outputs for other readers; no internal topics, and no group offsets are committed.
    """

    STATE = "state"
    REBUILD = "rebuild"
    INPUTS_UNTIL = "inputs_until"
    LOGS = "logs"

    @property
    def recomputes(self) -> bool:
        """Whether the application starts again at the first record of its inputs."""
        return self in (RestoreMode.REBUILD, RestoreMode.INPUTS_UNTIL)

    @property
    def commits_offsets(self) -> bool:
        """Whether the restore commits offsets of the application's group."""
        return self is not RestoreMode.LOGS

    def creates(self, roles: TopicRoles) -> bool:
        """Return whether a topic with these roles is created on the target."""
        return self is RestoreMode.STATE or not roles.is_internal

    def writes(self, roles: TopicRoles) -> bool:
        """Return whether records of a topic with these roles are written."""
        return roles.is_recomputed_from if self.recomputes else self.creates(roles)


class InputsAt(StrEnum):
    """Where a group continues in inputs that are not restored because the target has them already.

    `mapped`: at the same records. The topic is the original one of the recovery point, or a restore
    of this warehouse wrote it, whose offset map has their positions. `latest`: at the end of the
    topic; existing records are never read, so the restore is not exact.
    """

    MAPPED = "mapped"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class OriginalHeaders:
    """The headers that are added to each restored record, after its own; values are decimal text.

    Off by default: headers can be state.
    """

    offset: bool = False
    """`x-original-offset`"""
    timestamp: bool = False
    """`x-original-timestamp`, epoch milliseconds"""
    partition: bool = False
    """`x-source-partition`"""


DRILL: Final = "drill"
"""Key of `StoredRestore.asked`: a drill made the restore."""


class RestoreState(StrEnum):
    """The progress of a restore.

    `planned`: it has started, topics may exist in part. `produced`: all records are on the target,
    the offset maps are stored. `verified`: the target was read back and matches the backup.
    `failed_verification`: it does not match; no group offset was committed. `committed`: the group
    offsets are on the target. `rolled_back`: the previous group offsets were restored. `finished`:
    the application has caught up and the topics have their original configs again.
    """

    PLANNED = "planned"
    PRODUCED = "produced"
    VERIFIED = "verified"
    FAILED_VERIFICATION = "failed_verification"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    FINISHED = "finished"

    @property
    def matches_backup(self) -> bool:
        """Whether the target was read back and found to match the backup."""
        return self not in (self.PLANNED, self.PRODUCED, self.FAILED_VERIFICATION)

    @property
    def is_committed(self) -> bool:
        """Whether the group has the offsets of the restore, so that its application continues."""
        return self in (self.COMMITTED, self.FINISHED)


@dataclass(frozen=True, slots=True)
class PlacedTopic:
    """A topic that is not restored, in which the group continues at `offsets` (of the target).

    `target_topic_id` is the id of the topic in which the offsets were looked up. Mapped offsets
    follow from the offset map of the restore that wrote it (`written_by` of application
    `writer_application_id`), both empty for the original topic of the recovery point.
    """

    source: str
    target: str
    target_topic_id: str
    inputs_are_at: InputsAt
    offsets: tuple[GroupOffset, ...]
    writer_application_id: str = ""
    written_by: str = ""


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """One restored topic.

    `target_topic_id` distinguishes a topic that this restore wrote from another one with the same
    name. `base_offsets` are, by partition, the target's ends before the first restored record.
    `roles` are the values of `TopicRole`. `put_back` are the configs that `finish` sets, None
    removes the topic's own value. `created`: the restore created the topic.
    """

    source: str
    target: str
    target_topic_id: str
    base_offsets: tuple[int, ...]
    records: int
    roles: tuple[str, ...] = ()
    put_back: Mapping[str, str | None] = field(default_factory=dict)
    created: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRestore:
    """A restore in one of its states, a row of the table; `change` is set when it is stored.

    `run_id` is the run that changed the state. `to_commit` are the point's offsets, set once all
    records are produced.
    """

    application_id: ApplicationId
    restore_id: Annotated[str, Column("The same for the same point, mode, names and target.")]
    change: Annotated[
        int,
        Column("Number of the change; the highest one is the current state.", type="int32"),
    ] = field(default=0, compare=False)
    state: Annotated[
        RestoreState,
        Column(
            "`planned`, `produced`, `verified`, `failed_verification`, `committed`,"
            " `rolled_back`, `finished`."
        ),
    ]
    changed_at_ms: Annotated[int, Column("When it entered this state, epoch milliseconds.")]
    created_at_ms: Annotated[int, Column("When it started, epoch milliseconds.")]
    run_id: RunId
    point_id: Annotated[str, Column("The recovery point.")]
    group: Annotated[str, Column("Consumer group on the target, its application id.")]
    target_cluster_id: Annotated[str, Column("Id of the target cluster.")]
    target_bootstrap_servers: Annotated[str, Column("Its address.")]
    mode: Annotated[RestoreMode, Column("`state`, `rebuild`, `inputs_until` or `logs`.")]
    request: Annotated[str, Column("The request, as JSON.")]
    topics: Annotated[
        tuple[StoredTopic, ...],
        Column(
            "Names, id on the target, ends there before the first restored record, number of"
            " records, original configs that `finish` restores."
        ),
    ]
    former_offsets: Annotated[
        tuple[GroupOffset, ...] | None,
        Column("Committed offsets of the group on the target before; null before the commit."),
    ] = None
    to_commit: Annotated[
        tuple[GroupOffset, ...],
        Column("Offsets to commit after verification, in the target's offsets."),
    ] = ()
    committed: Annotated[
        tuple[GroupOffset, ...] | None,
        Column("Committed offsets, in the target's offsets; null before the commit."),
    ] = None
    verified_records: Annotated[int | None, Column("Records that were read back and compared.")] = (
        None
    )
    problem: Annotated[str, Column("The problem, empty if there is none.")] = ""
    placed: Annotated[
        tuple[PlacedTopic, ...],
        Column(
            "Excluded topics in which the group continues: at which positions, their origin, and"
            " its `offsets` there, which are among those `to_commit`; null in rows of earlier"
            " releases."
        ),
    ] = ()

    @property
    def asked(self) -> Mapping[str, Any]:
        """The request as it was stored; without fields that are newer than its release."""
        return json.loads(self.request)

    @property
    def is_continued(self) -> bool:
        """Whether the application of its group may have continued on the restored records."""
        return self.state.is_committed and self.matches_backup and not self.is_of_drill

    @property
    def is_of_drill(self) -> bool:
        """Whether a drill made it, on its own cluster that no application continues.

        False for drills of earlier releases.
        """
        return bool(self.asked.get(DRILL, False))

    @property
    def skips_completeness(self) -> bool:
        """Whether group offsets may be committed regardless of completeness rules."""
        return bool(self.asked.get("skip_completeness", False))

    @property
    def matches_backup(self) -> bool:
        """Whether the target was found to match the backup; a finished one needs its offsets."""
        is_over = self.state in (RestoreState.ROLLED_BACK, RestoreState.FINISHED)
        return self.state.matches_backup and not (is_over and self.committed is None)

    def own_topic(self, target: str, topic_id: str) -> StoredTopic | None:
        """The record of a target topic, if it describes the topic with this id.

        A topic that was recorded only before its creation has no id yet.
        """
        for topic in self.topics:
            if topic.target == target:
                return topic if topic.target_topic_id in ("", topic_id) else None
        return None

    @property
    def is_finished(self) -> bool:
        """Whether nothing remains to be done, so that the recovery point may expire."""
        return self.state is RestoreState.FINISHED


def writers_of(restores: Iterable[StoredRestore]) -> dict[str, StoredRestore]:
    """The restore that wrote each target topic, by topic id; the newest one counts."""
    return {
        topic.target_topic_id: restore
        for restore in sorted(restores, key=lambda r: (r.created_at_ms, r.restore_id))
        for topic in restore.topics
        if topic.target_topic_id
    }


@dataclass(frozen=True, slots=True)
class PartitionProduced:
    """One partition after producing.

    `runs` map source to target offsets, of all its records; `records` is their number, of which
    `resumed` existed from an earlier attempt. `end` is the target's end after the last one.
    """

    source: TopicPartitionId
    target: TopicPartitionId
    runs: Sequence[OffsetRun]
    records: int
    resumed: int
    end: int


@dataclass(frozen=True, slots=True)
class StoredMap:
    """The positions of the records of one partition."""

    target: TopicPartitionId
    map: OffsetMap

    def mapped(self, committed: GroupOffset) -> GroupOffset:
        """A committed offset on the target, with unchanged metadata."""
        at = self.map.map(committed.offset)
        return GroupOffset(self.target.topic, self.target.partition, at, committed.metadata)


@dataclass(frozen=True, slots=True)
class MapRow:
    """A row of the table: a run, or the end of a partition."""

    application_id: ApplicationId
    restore_id: Annotated[str, Column("The restore.")]
    topic: Annotated[str, Column("Source topic.")]
    partition: Annotated[int, Column("Source partition.", type="int32")]
    target_topic: Annotated[str, Column("Topic on the target.")]
    target_partition: Annotated[int, Column("Partition on the target.", type="int32")]
    source_start: Annotated[
        int | None,
        Column("First source offset of the run; null in the row of the end."),
    ]
    target_start: Annotated[
        int, Column("Its target offset; in the row of the end, the target's end.")
    ]
    length: Annotated[
        int,
        Column("Records with consecutive offsets on both sides; 0 in the row of the end."),
    ]
    digest: Annotated[
        str | None,
        Column(
            "In the row of the end: SHA-256 of the partition's map; verified when it is read. Null"
            " in rows of earlier releases."
        ),
    ]
