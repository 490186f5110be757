"""The tables of restores: every state each has gone through, and where its records went."""

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.errors import StoredDataError
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import LockHandle
from kstreams_assets.offsets import OffsetMap, OffsetRun, OffsetRuns, TopicPartitionId, merge_runs
from kstreams_assets.warehouse.column import ApplicationId, Column, RunId
from kstreams_assets.warehouse.point import GroupOffset
from kstreams_assets.warehouse.rows import rows_of
from kstreams_assets.warehouse.table import Table, Writer, fence_tables, one_of


class RestoreMode(StrEnum):
    """What is restored and how the application goes on.

    `state`: inputs, changelogs, records in flight, outputs and offsets, so that it continues
    exactly where it stood. `rebuild`: all inputs, offsets at their beginning; everything is
    recomputed. `inputs_until`: the same with the inputs up to a recovery point.
    """

    STATE = "state"
    REBUILD = "rebuild"
    INPUTS_UNTIL = "inputs_until"


class InputsAt(StrEnum):
    """Where a group goes on in inputs that are not restored, since the target has them already.

    `mapped`: at the same records. The topic is the very one of the recovery point, or a restore of
    this warehouse wrote it, whose offset map says where they are. `latest`: at the end of the
    topic; what lies in it is never read, so that the restore is not exact.
    """

    MAPPED = "mapped"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class OriginalHeaders:
    """Which headers are added to each restored record, behind its own; values are decimal text.

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

_ABANDONED_MS: Final = 14 * 86_400_000
"""A restore that nobody has gone on with for so long does not keep files any more."""


class RestoreState(StrEnum):
    """How far a restore is.

    `planned`: it has begun, topics may be there in part. `produced`: all records are on the target,
    the offset maps are stored. `verified`: the target was read back and is as in the backup.
    `failed_verification`: it is not; no group offset was committed. `committed`: the group offsets
    are on the target. `rolled_back`: the former group offsets are there again. `finished`: the
    application has caught up and the topics have their own configs again.
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


@dataclass(frozen=True, slots=True)
class PlacedTopic:
    """A topic that is not restored, in which the group goes on at `offsets` (of the target).

    `target_topic_id` is that of the topic it was looked up in. Mapped offsets follow from the
    offset map of the restore that wrote it (`written_by` of application `writer_application_id`),
    both empty where it is the very topic of the recovery point.
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

    `target_topic_id` tells a topic that this restore wrote from another one of the same name.
    `base_offsets` are, by partition, the target's ends before the first restored record. `roles`
    are the values of `TopicRole`. `put_back` are the configs that `finish` sets, None removes the
    topic's own value. `created`: the restore created the topic.
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
        Column("Number of the change; the highest one is how the restore stands.", type="int32"),
    ] = field(default=0, compare=False)
    state: Annotated[
        RestoreState,
        Column(
            "`planned`, `produced`, `verified`, `failed_verification`, `committed`,"
            " `rolled_back`, `finished`."
        ),
    ]
    changed_at_ms: Annotated[int, Column("When it came into this state, epoch milliseconds.")]
    created_at_ms: Annotated[int, Column("When it was begun, epoch milliseconds.")]
    run_id: RunId
    point_id: Annotated[str, Column("The recovery point.")]
    group: Annotated[str, Column("Consumer group on the target, its application id.")]
    target_cluster_id: Annotated[str, Column("Id of the target cluster.")]
    target_bootstrap_servers: Annotated[str, Column("Where it was.")]
    mode: Annotated[RestoreMode, Column("`state`, `rebuild` or `inputs_until`.")]
    request: Annotated[str, Column("What was asked for, as JSON.")]
    topics: Annotated[
        tuple[StoredTopic, ...],
        Column(
            "Names, id on the target, ends there before the first restored record, number of"
            " records, configs that `finish` puts back."
        ),
    ]
    former_offsets: Annotated[
        tuple[GroupOffset, ...] | None,
        Column("What the group had committed on the target before; null before the commit."),
    ] = None
    to_commit: Annotated[
        tuple[GroupOffset, ...],
        Column("What is to be committed once the restore is verified, in the target's offsets."),
    ] = ()
    committed: Annotated[
        tuple[GroupOffset, ...] | None,
        Column("What was committed, in the target's offsets; null before the commit."),
    ] = None
    verified_records: Annotated[int | None, Column("Records that were read back and compared.")] = (
        None
    )
    problem: Annotated[str, Column("What went wrong, empty when nothing did.")] = ""
    placed: Annotated[
        tuple[PlacedTopic, ...],
        Column(
            "Excluded topics in which the group goes on: where, how that is known, and its"
            " `offsets` there, which are among those `to_commit`; null in rows of earlier releases."
        ),
    ] = ()

    @property
    def asked(self) -> Mapping[str, Any]:
        """The request as it was stored; fields that an earlier release did not know are absent."""
        return json.loads(self.request)

    @property
    def is_of_drill(self) -> bool:
        """Whether a drill made it, onto a cluster of its own from which nobody continues.

        False for drills of earlier releases.
        """
        return bool(self.asked.get(DRILL, False))

    @property
    def skips_completeness(self) -> bool:
        """Whether group offsets may be committed whatever completeness rules say."""
        return bool(self.asked.get("skip_completeness", False))

    @property
    def matches_backup(self) -> bool:
        """Whether the target was found to match the backup; a finished one needs its offsets."""
        is_over = self.state in (RestoreState.ROLLED_BACK, RestoreState.FINISHED)
        return self.state.matches_backup and not (is_over and self.committed is None)

    def own_topic(self, target: str, topic_id: str) -> StoredTopic | None:
        """What was noted of a target topic, if the topic of this id is the one that was noted.

        A topic that was noted before it was created, and not after, has no id yet.
        """
        for topic in self.topics:
            if topic.target == target:
                return topic if topic.target_topic_id in ("", topic_id) else None
        return None

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to be done, so that the recovery point may go."""
        return self.state is RestoreState.FINISHED


class RestoresTable:
    """Restores of all applications, one row for each change of state."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = Table(
            warehouse.control("restores"),
            StoredRestore,
            grows_along="changed_at_ms",
            statistics=("restore_id", "change", "changed_at_ms"),
        )

    def append(self, restore: StoredRestore, *, writer: LockHandle | None = None) -> None:
        """Store a restore in a new state, which from then on is its newest.

        The order in which states are stored decides, not the clock: it may have been set back.
        `writer` is the lock of the target's group (`fence_restores`).

        Raises:
            LeaseLostError: Another holder has the lock by now; nothing was written.
        """
        earlier = self._changes(restore.application_id, restore.restore_id)
        row = replace(restore, change=max(earlier, default=0) + 1)
        self._table.append([row], writer=_writer_of(restore, writer))

    def change(
        self,
        restore: StoredRestore,
        *,
        writer: LockHandle | None = None,
        **changes: Any,  # noqa: ANN401
    ) -> StoredRestore:
        """Store a restore with other fields, from now on its newest state, and return it.

        `writer` as in `append`.
        """
        changed = replace(restore, changed_at_ms=time.time_ns() // 1_000_000, **changes)
        self.append(changed, writer=writer)
        return changed

    @property
    def table(self) -> Table[StoredRestore]:
        """The table itself."""
        return self._table

    def newest(self, application_id: str, restore_id: str) -> StoredRestore | None:
        """A restore as it stands, None when there is none with this id."""
        return max(self._of(application_id, restore_id), key=_place, default=None)

    def all(self, application_id: str) -> list[StoredRestore]:
        """Every restore as it stands; the one that was begun last comes first."""
        return _as_they_stand(self._table.rows(application_id))

    def onto(self, target_cluster_id: str) -> list[StoredRestore]:
        """The restores of all applications onto one cluster, as in `all`."""
        where = pc.field("target_cluster_id") == target_cluster_id
        return _as_they_stand(self._table.rows(None, where))

    def changes_onto(self, target_cluster_id: str) -> list[StoredRestore]:
        """The same restores in each of their states; those of one restore are oldest first."""
        where = pc.field("target_cluster_id") == target_cluster_id
        return sorted(self._table.rows(None, where), key=_place)

    def version(self) -> int:
        """The version of the table (`table_version`)."""
        return self._table.version()

    def history(self, application_id: str, restore_id: str) -> list[StoredRestore]:
        """A restore in each of its states, oldest first."""
        return sorted(self._of(application_id, restore_id), key=_place)

    def of_run(self, application_id: str, run_id: str) -> list[StoredRestore]:
        """The restores whose state this run changed, as they stand; as in `all`."""
        where = pc.field("run_id") == run_id
        rows = self._table.read(application_id=application_id, columns=["restore_id"], where=where)
        ids = set(rows["restore_id"].to_pylist())
        return [restore for restore in self.all(application_id) if restore.restore_id in ids]

    def unfinished(self, application_id: str) -> list[StoredRestore]:
        """The restores that are not finished, as they stand; as in `all`."""
        return [restore for restore in self.all(application_id) if not restore.is_finished]

    def writing(self, application_id: str) -> list[StoredRestore]:
        """Restores that may still read files: not verified yet, and changed in the last days."""
        since_ms = _abandoned_before_ms()
        return [
            restore
            for restore in self.unfinished(application_id)
            if not restore.state.matches_backup and restore.changed_at_ms >= since_ms
        ]

    def pinned(self, application_id: str) -> frozenset[str]:
        """Ids of the recovery points that unfinished restores are made from.

        Those of drills, and of restores whose records were never verified, while somebody goes on
        with them: what was killed is never finished.
        """
        since_ms = _abandoned_before_ms()
        points = {
            restore.point_id
            for restore in self.unfinished(application_id)
            if restore.changed_at_ms >= since_ms
            or (restore.state.matches_backup and not restore.is_of_drill)
        }
        return frozenset(points - {""})

    def _of(self, application_id: str, restore_id: str) -> list[StoredRestore]:
        return self._table.rows(application_id, pc.field("restore_id") == restore_id)

    def _changes(self, application_id: str, restore_id: str) -> list[int]:
        where = pc.field("restore_id") == restore_id
        rows = self._table.read(application_id=application_id, columns=["change"], where=where)
        return rows["change"].to_pylist()


def fence_restores(warehouse: Warehouse, cluster_id: str, group: str, lock: LockHandle) -> None:
    """Let no earlier holder of the lock of a group on a target note anything any more.

    Raises:
        LeaseLostError: A later writer has the lock.
        WarehouseError: The tables cannot be read or written.
    """
    tables = (RestoresTable(warehouse).table, OffsetMapsTable(warehouse).table)
    fence_tables(tables, Writer("", lock, _scope(cluster_id, group)))


def _scope(cluster_id: str, group: str) -> str:
    return f"restore/{cluster_id}/{group}"


def _writer_of(restore: StoredRestore, lock: LockHandle | None) -> Writer | None:
    if lock is None:
        return None
    scope = _scope(restore.target_cluster_id, restore.group)
    return Writer(restore.application_id, lock, scope)


def writers_of(restores: Iterable[StoredRestore]) -> dict[str, StoredRestore]:
    """By the id of a target topic the restore that wrote it; the one that was begun last counts."""
    return {
        topic.target_topic_id: restore
        for restore in sorted(restores, key=lambda r: (r.created_at_ms, r.restore_id))
        for topic in restore.topics
        if topic.target_topic_id
    }


def _as_they_stand(restores: Iterable[StoredRestore]) -> list[StoredRestore]:
    newest = {(r.application_id, r.restore_id): r for r in sorted(restores, key=_place)}
    return sorted(newest.values(), key=lambda r: (r.created_at_ms, r.restore_id), reverse=True)


def _abandoned_before_ms() -> int:
    """Restores that changed before this are given up."""
    return time.time_ns() // 1_000_000 - _ABANDONED_MS


def _place(restore: StoredRestore) -> tuple[int, int]:
    """Two processes may have stored the same change of a restore at once: the later one counts."""
    return restore.change, restore.changed_at_ms


@dataclass(frozen=True, slots=True)
class PartitionProduced:
    """One partition after producing.

    `runs` map source to target offsets, of all its records; `records` is their number, of which
    `resumed` were there from an earlier attempt. `end` is the target's end behind the last one.
    """

    source: TopicPartitionId
    target: TopicPartitionId
    runs: Sequence[OffsetRun]
    records: int
    resumed: int
    end: int


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
        Column("First source offset of the run; null in the row that tells the end."),
    ]
    target_start: Annotated[
        int, Column("Its target offset; in the row that tells the end, the target's end.")
    ]
    length: Annotated[
        int,
        Column("Records with consecutive offsets on both sides; 0 in the row that tells the end."),
    ]
    digest: Annotated[
        str | None,
        Column(
            "In the row that tells the end: SHA-256 of the partition's map; compared when it is"
            " read. Null in rows of earlier releases."
        ),
    ]


_NAMES = rows_of(MapRow).schema.names
_LOADED = [name for name in _NAMES if name not in ("application_id", "restore_id")]


@dataclass(frozen=True, slots=True)
class StoredMap:
    """Where the records of one partition went."""

    target: TopicPartitionId
    map: OffsetMap


class OffsetMapsTable:
    """Offset maps of the restores of all applications."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = Table(
            warehouse.control("offset_maps"),
            MapRow,
            grows_along="restore_id",
            statistics=("restore_id", "topic", "partition", "source_start"),
            bulky=True,
        )

    @property
    def table(self) -> Table[MapRow]:
        """The table itself."""
        return self._table

    def record(
        self,
        application_id: str,
        restore_id: str,
        produced: Iterable[PartitionProduced],
        *,
        of: StoredRestore | None = None,
        writer: LockHandle | None = None,
    ) -> None:
        """Put the maps of all partitions of a restore in place of earlier ones, in one commit.

        `writer` is the lock of the target's group (`fence_restores`), `of` the restore itself.

        Raises:
            LeaseLostError: Another holder has the lock by now; nothing was written.
            OffsetMapError: The runs of a partition contradict each other; nothing is stored.
        """
        parts = [
            _columns(application_id, restore_id, partition)
            for partition in sorted(produced, key=lambda p: p.source)
        ]
        if not parts:
            return
        rows = pa.concat_tables(parts).unify_dictionaries()
        by = None if of is None else _writer_of(of, writer)
        self._table.rewrite(application_id, restore_id, restore_id, lambda _: rows, writer=by)
        self._table.tidy()

    def load(
        self, application_id: str, restore_id: str, *, topics: Collection[str] | None = None
    ) -> Mapping[TopicPartitionId, StoredMap]:
        """The maps of a restore by source partition; of all topics, or of these source topics.

        Empty when the restore has stored none.

        Raises:
            OffsetMapError: The stored runs of a partition contradict each other.
            StoredDataError: They are not those that were stored.
        """
        where = pc.field("restore_id") == restore_id
        if topics is not None:
            where &= one_of("topic", topics)
        rows = self._table.read(application_id=application_id, columns=_LOADED, where=where)
        runs_by_partition = _runs(rows.filter(pc.field("length") > 0))
        none = OffsetRuns((), (), ())
        ends = rows.filter(pc.field("length") == 0).to_pylist()
        for row in ends:
            source = TopicPartitionId(row["topic"], row["partition"])
            target = TopicPartitionId(row["target_topic"], row["target_partition"])
            runs = runs_by_partition.get(source, none)
            # Maps of earlier releases have no digest.
            if row["digest"] not in (None, _digest(target, runs, row["target_start"])):
                raise StoredDataError(
                    subject=f"The offset map of {source} in restore {restore_id}",
                    problem="it does not match the digest that was noted when it was stored",
                    remedy="Bring the table offset_maps back from a copy of the warehouse, or run"
                    " the restore again: it writes nothing twice and stores the map anew.",
                )
        return {
            (source := TopicPartitionId(row["topic"], row["partition"])): StoredMap(
                target=TopicPartitionId(row["target_topic"], row["target_partition"]),
                map=OffsetMap(
                    runs_by_partition.get(source, none), row["target_start"], partition=source
                ),
            )
            for row in sorted(ends, key=lambda row: (row["topic"], row["partition"]))
        }

    def version(self) -> int:
        """The version of the table (`table_version`)."""
        return self._table.version()

    def ends_of(
        self, restores: Iterable[tuple[str, str]]
    ) -> Mapping[tuple[str, str], Mapping[TopicPartitionId, tuple[TopicPartitionId, int]]]:
        """For each restore (application, id), by source partition, the target and its end.

        The end is that behind the last restored record. No run is read.
        """
        requested = set(restores)
        ids = {restore_id for _, restore_id in requested}
        where = one_of("restore_id", sorted(ids)) & (pc.field("length") == 0)
        columns = [name for name in _NAMES if name not in ("source_start", "length", "digest")]
        found: dict[tuple[str, str], dict[TopicPartitionId, tuple[TopicPartitionId, int]]] = {}
        for row in self._table.read(application_id=None, columns=columns, where=where).to_pylist():
            key = row["application_id"], row["restore_id"]
            if key in requested:
                source = TopicPartitionId(row["topic"], row["partition"])
                target = TopicPartitionId(row["target_topic"], row["target_partition"])
                found.setdefault(key, {})[source] = target, row["target_start"]
        return found

    def ends(self, application_id: str, restore_id: str) -> Mapping[TopicPartitionId, int]:
        """The end behind the last restored record of each target partition; reads no runs."""
        where = (pc.field("restore_id") == restore_id) & (pc.field("length") == 0)
        columns = ["target_topic", "target_partition", "target_start"]
        rows = self._table.read(application_id=application_id, columns=columns, where=where)
        return {
            TopicPartitionId(row["target_topic"], row["target_partition"]): row["target_start"]
            for row in rows.to_pylist()
        }


def _columns(application_id: str, restore_id: str, produced: PartitionProduced) -> pa.Table:
    """The rows of one partition: its runs in order, then its end."""
    runs = merge_runs([produced.runs], partition=produced.source)
    OffsetMap(runs, produced.end, partition=produced.source)  # refuses what contradicts itself
    count = len(runs) + 1
    source, target = produced.source, produced.target
    behind_last = np.arange(count) == len(runs)
    columns = {
        "application_id": pa.repeat(application_id, count),
        "restore_id": _repeated(restore_id, count),
        "topic": _repeated(source.topic, count),
        "partition": pa.repeat(pa.scalar(source.partition, pa.int32()), count),
        "target_topic": _repeated(target.topic, count),
        "target_partition": pa.repeat(pa.scalar(target.partition, pa.int32()), count),
        "source_start": pa.array(np.append(runs.source_starts, 0), mask=behind_last),
        "target_start": pa.array(np.append(runs.target_starts, produced.end)),
        "length": pa.array(np.append(runs.lengths, 0)),
        "digest": pa.array([None] * len(runs) + [_digest(target, runs, produced.end)], pa.string()),
    }
    return pa.table([columns[name] for name in _NAMES], names=_NAMES)


def _digest(target: TopicPartitionId, runs: OffsetRuns, end: int) -> str:
    """A digest of the map of one partition, whose runs are in order of source offsets."""
    numbers = (runs.source_starts, runs.target_starts, runs.lengths)
    content = hashlib.sha256(f"{target.topic}\n{target.partition}\n{end}\n".encode())
    for column in numbers:
        content.update(np.ascontiguousarray(column, "<i8").tobytes())
    return content.hexdigest()


def _repeated(text: str, count: int) -> pa.DictionaryArray:
    """A text by the million: one byte for each row instead of the text."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array([text]))


def _runs(rows: pa.Table) -> dict[TopicPartitionId, OffsetRuns]:
    """The runs of each partition, in order; `rows` may be in any."""
    if rows.num_rows == 0:
        return {}
    topics = rows["topic"].combine_chunks().dictionary_encode()
    partition = rows["partition"].to_numpy().astype(np.int64)
    width = int(partition.max()) + 1
    codes = topics.indices.to_numpy() * width + partition
    source, target, lengths = (
        rows[name].to_numpy() for name in ("source_start", "target_start", "length")
    )
    order = np.lexsort((source, codes))
    codes = codes[order]
    found, starts = np.unique(codes, return_index=True)
    names = topics.dictionary.to_pylist()
    return {
        TopicPartitionId(names[code // width], code % width): OffsetRuns(
            source[mine], target[mine], lengths[mine]
        )
        for code, mine in zip(found.tolist(), np.split(order, starts[1:]), strict=True)
    }
