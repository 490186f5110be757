"""The tables of restores: all states of each, and the positions of its records."""

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.errors import StoredDataError
from kstreams_assets.model.restores import MapRow, PartitionProduced, StoredMap, StoredRestore
from kstreams_assets.model.tables import OFFSET_MAPS, RESTORES
from kstreams_assets.offsets import OffsetMap, OffsetRuns, TopicPartitionId, merge_runs
from kstreams_assets.repository.rows import rows_of
from kstreams_assets.repository.table import ApplicationTable, one_of
from kstreams_assets.store.locks import LockHandle

_ABANDONED_MS: Final = 14 * 86_400_000
"""A restore without progress for this time no longer keeps files."""


class RestoresTable(ApplicationTable[StoredRestore], spec=RESTORES):
    """Restores of one application, one row for each change of state."""

    def append(self, restore: StoredRestore, *, writer: LockHandle | None = None) -> None:
        """Store a restore in a new state, which becomes its newest.

        The order in which states are stored decides, not the clock, which may have been set back.
        `writer` is the lock of the target's group (`Lock.RESTORE`).

        Raises:
            LeaseLostError: Another holder now has the lock; nothing was written.
        """
        earlier = self._changes(restore.restore_id)
        row = replace(restore, change=max(earlier, default=0) + 1)
        self._table.append([row], writer=self._writer(writer, _scope_of(restore)))

    def change(
        self,
        restore: StoredRestore,
        *,
        writer: LockHandle | None = None,
        **changes: Any,  # noqa: ANN401
    ) -> StoredRestore:
        """Store a restore with other fields as its newest state, and return it.

        `writer` as in `append`.
        """
        changed = replace(restore, changed_at_ms=time.time_ns() // 1_000_000, **changes)
        self.append(changed, writer=writer)
        return changed

    def newest(self, restore_id: str) -> StoredRestore | None:
        """The current state of a restore, None if there is none with this id."""
        return max(self._of(restore_id), key=_place, default=None)

    def all(self) -> list[StoredRestore]:
        """The current state of every restore, newest restore first."""
        return _as_they_stand(self._table.rows())

    def continued(self) -> list[StoredRestore]:
        """Those from which the application may have continued, newest first."""
        mine = self._application_id
        return [one for one in self.all() if one.is_continued and one.group == mine]

    def onto(self, target_cluster_id: str) -> list[StoredRestore]:
        """The restores of all applications onto one cluster, as in `all`."""
        where = pc.field("target_cluster_id") == target_cluster_id
        return _as_they_stand(self._table.of_all.rows(where))

    def changes_onto(self, target_cluster_id: str) -> list[StoredRestore]:
        """The same restores in each of their states; those of one restore are oldest first."""
        where = pc.field("target_cluster_id") == target_cluster_id
        return sorted(self._table.of_all.rows(where), key=_place)

    def history(self, restore_id: str) -> list[StoredRestore]:
        """A restore in each of its states, oldest first."""
        return sorted(self._of(restore_id), key=_place)

    def of_run(self, run_id: str) -> list[StoredRestore]:
        """The restores whose state this run changed, in their current state; as in `all`."""
        where = pc.field("run_id") == run_id
        rows = self._table.read(columns=["restore_id"], where=where)
        ids = set(rows["restore_id"].to_pylist())
        return [restore for restore in self.all() if restore.restore_id in ids]

    def unfinished(self) -> list[StoredRestore]:
        """The unfinished restores, in their current state; as in `all`."""
        return [restore for restore in self.all() if not restore.is_finished]

    def writing(self) -> list[StoredRestore]:
        """Restores that may still read files: not verified yet, and changed in the last days."""
        since_ms = _abandoned_before_ms()
        return [
            restore
            for restore in self.unfinished()
            if not restore.state.matches_backup and restore.changed_at_ms >= since_ms
        ]

    def pinned(self) -> frozenset[str]:
        """Ids of the source points of unfinished restores.

        Drills, and restores whose records were never verified, count only while they make progress:
        a killed one is never finished.
        """
        since_ms = _abandoned_before_ms()
        points = {
            restore.point_id
            for restore in self.unfinished()
            if restore.changed_at_ms >= since_ms
            or (restore.state.matches_backup and not restore.is_of_drill)
        }
        return frozenset(points - {""})

    def _of(self, restore_id: str) -> list[StoredRestore]:
        return self._table.rows(pc.field("restore_id") == restore_id)

    def _changes(self, restore_id: str) -> list[int]:
        where = pc.field("restore_id") == restore_id
        rows = self._table.read(columns=["change"], where=where)
        return rows["change"].to_pylist()


def restore_scope(cluster_id: str, group: str) -> str:
    """The scope of a group's lock on a target, in the tables that its holder writes."""
    return f"restore/{cluster_id}/{group}"


def _scope_of(restore: StoredRestore) -> str:
    return restore_scope(restore.target_cluster_id, restore.group)


def _as_they_stand(restores: Iterable[StoredRestore]) -> list[StoredRestore]:
    newest = {(r.application_id, r.restore_id): r for r in sorted(restores, key=_place)}
    return sorted(newest.values(), key=lambda r: (r.created_at_ms, r.restore_id), reverse=True)


def _abandoned_before_ms() -> int:
    """Restores without a change since this time are abandoned."""
    return time.time_ns() // 1_000_000 - _ABANDONED_MS


def _place(restore: StoredRestore) -> tuple[int, int]:
    """Two processes may have stored the same change of a restore at once: the later one counts."""
    return restore.change, restore.changed_at_ms


_NAMES = rows_of(MapRow).schema.names
_LOADED = [name for name in _NAMES if name not in ("application_id", "restore_id")]


class OffsetMapsTable(ApplicationTable[MapRow], spec=OFFSET_MAPS):
    """Offset maps of the restores of one application."""

    def record(
        self,
        restore_id: str,
        produced: Iterable[PartitionProduced],
        *,
        of: StoredRestore | None = None,
        writer: LockHandle | None = None,
    ) -> None:
        """Replace the maps of all partitions of a restore, in one commit.

        `writer` is the lock of the target's group (`Lock.RESTORE`), `of` the restore itself.

        Raises:
            LeaseLostError: Another holder now has the lock; nothing was written.
            OffsetMapError: The runs of a partition contradict each other; nothing is stored.
        """
        parts = [
            _columns(self._application_id, restore_id, partition)
            for partition in sorted(produced, key=lambda p: p.source)
        ]
        if not parts:
            return
        rows = pa.concat_tables(parts).unify_dictionaries()
        by = None if of is None else self._writer(writer, _scope_of(of))
        self._table.rewrite(restore_id, restore_id, lambda _: rows, writer=by)
        self._table.tidy()

    def load(
        self, restore_id: str, *, topics: Collection[str] | None = None
    ) -> Mapping[TopicPartitionId, StoredMap]:
        """The maps of a restore by source partition; of all topics, or of these source topics.

        It is empty if the restore has stored none.

        Raises:
            OffsetMapError: The stored runs of a partition contradict each other.
            StoredDataError: They differ from the stored ones.
        """
        where = pc.field("restore_id") == restore_id
        if topics is not None:
            where &= one_of("topic", topics)
        rows = self._table.read(columns=_LOADED, where=where)
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
                    problem="it does not match the digest that was recorded when it was stored",
                    remedy="Restore the table offset_maps from a copy of the warehouse, or run the"
                    " restore again: it writes no record twice and stores the map again.",
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

    def of_committed(self, restore_id: str, topic: str) -> Mapping[TopicPartitionId, OffsetMap]:
        """The maps of a source topic, of a restore whose group offsets are committed.

        They no longer change, and are cached. Raises the errors of `load`.
        """
        known, key = self._table.known.maps, (self._application_id, restore_id, topic)
        found = known.get(key)
        if found is None:
            stored = self.load(restore_id, topics=[topic])
            found = known.put(key, {source: one.map for source, one in stored.items()})
        return found

    def ends_of(
        self, restores: Iterable[tuple[str, str]]
    ) -> Mapping[tuple[str, str], Mapping[TopicPartitionId, tuple[TopicPartitionId, int]]]:
        """For each restore (application, id), by source partition, the target and its end.

        The end is after the last restored record. No run is read.
        """
        requested = set(restores)
        ids = {restore_id for _, restore_id in requested}
        where = one_of("restore_id", sorted(ids)) & (pc.field("length") == 0)
        columns = [name for name in _NAMES if name not in ("source_start", "length", "digest")]
        found: dict[tuple[str, str], dict[TopicPartitionId, tuple[TopicPartitionId, int]]] = {}
        for row in self._table.of_all.read(columns=columns, where=where).to_pylist():
            key = row["application_id"], row["restore_id"]
            if key in requested:
                source = TopicPartitionId(row["topic"], row["partition"])
                target = TopicPartitionId(row["target_topic"], row["target_partition"])
                found.setdefault(key, {})[source] = target, row["target_start"]
        return found

    def ends(self, restore_id: str) -> Mapping[TopicPartitionId, int]:
        """The end after the last restored record of each target partition; reads no runs."""
        where = (pc.field("restore_id") == restore_id) & (pc.field("length") == 0)
        columns = ["target_topic", "target_partition", "target_start"]
        rows = self._table.read(columns=columns, where=where)
        return {
            TopicPartitionId(row["target_topic"], row["target_partition"]): row["target_start"]
            for row in rows.to_pylist()
        }


def _columns(application_id: str, restore_id: str, produced: PartitionProduced) -> pa.Table:
    """The rows of one partition: its runs in order, then its end."""
    runs = merge_runs([produced.runs], partition=produced.source)
    OffsetMap(runs, produced.end, partition=produced.source)  # refuses contradictions
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
    """A text repeated millions of times: one byte for each row instead of the text."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array([text]))


def _runs(rows: pa.Table) -> dict[TopicPartitionId, OffsetRuns]:
    """The runs of each partition, in order; `rows` may be in any order."""
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
