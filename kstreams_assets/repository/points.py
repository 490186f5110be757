"""The tables of recovery points, and of the records that are saved with them."""

import hashlib
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.app.model import TopicRole
from kstreams_assets.errors import StoredDataError
from kstreams_assets.kafka.raw_batch import RawRecord, header_name, header_name_bytes, header_text
from kstreams_assets.layout import value_digest
from kstreams_assets.model.file_ranges import FileRange, ranges_to_rewrite
from kstreams_assets.model.numbered import distinct, numbered_spans, positions
from kstreams_assets.model.point import (
    CHANGED,
    Guarantee,
    PartitionCut,
    Pin,
    PointInstant,
    PointVersions,
    RecoveryPoint,
    in_order,
)
from kstreams_assets.model.point_bounds import PointBounds, as_counted
from kstreams_assets.model.restorability import Yardstick
from kstreams_assets.model.saved_records import SavedRecord, SavedTail
from kstreams_assets.model.tables import PINS, RECOVERY_POINTS, SAVED_RECORDS
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.repository.rows import plain_columns, rows_of
from kstreams_assets.repository.table import ApplicationTable, StoredFile, Writer, one_of
from kstreams_assets.settings import DeclaredGuarantee
from kstreams_assets.store.locks import LockHandle

_Offsets = npt.NDArray[np.int64]
_Key = tuple[str, str, int]
"""Topic, topic id, partition."""


class OffsetRanges:
    """Offsets by partition and topic id, as ranges."""

    def __init__(self, ranges: Iterable[tuple[_Key, RangeSet]] = ()) -> None:
        self._by_key: dict[_Key, RangeSet] = {}
        for key, of_key in ranges:
            self._by_key[key] = self._by_key.get(key, RangeSet()) | of_key

    @classmethod
    def of_cuts(cls, cuts: Iterable[PartitionCut]) -> "OffsetRanges":
        """The offsets that these cuts have saved: `[saved_from, end)` outside the excluded
        ranges."""
        return cls(
            (
                (cut.topic, cut.topic_id, cut.partition),
                cut.saved,
            )
            for cut in cuts
        )

    @classmethod
    def of_points(
        cls,
        partitions: pa.ChunkedArray,
        proven: Mapping[TopicPartitionId, Sequence[tuple[str, int, int]]] | None = None,
    ) -> "OffsetRanges":
        """The offsets that many points have saved, from the column `partitions` of their table.

        Changelog offsets in `proven` (topic id, start, end) are omitted.
        """
        if len(partitions) == 0:
            return cls()
        cuts = pa.Table.from_struct_array(partitions.combine_chunks().flatten())
        cuts = cuts.filter(pc.field("saved_from").is_valid()).combine_chunks()
        if cuts.num_rows == 0:
            return cls()
        rows, starts, ends = _pieces(cuts)
        keys, codes = _codes(cuts)
        provable = _may_be_proven(cuts)
        found: list[tuple[_Key, RangeSet]] = []
        for code, mine in _groups(codes[rows] * 2 + provable[rows]):
            key = keys[code // 2]
            saved = RangeSet.of_arrays(starts[mine], ends[mine])
            if code % 2:
                known = (proven or {}).get(TopicPartitionId(key[0], key[2]), ())
                saved -= [OffsetRange(s, e) for life, s, e in known if life == key[1]]
            found.append((key, saved))
        return cls(found)

    def mask(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Which rows (columns topic, topic_id, partition, offset) are in the ranges."""
        inside = np.zeros(rows.num_rows, np.bool_)
        if rows.num_rows == 0 or not self._by_key:
            return inside
        keys, codes = _codes(rows)
        offsets = rows["offset"].to_numpy()
        for code, mine in _groups(codes):
            of_key = self._by_key.get(keys[code])
            if of_key is not None:
                inside[mine] = of_key.mask(offsets[mine])
        return inside


def _pieces(cuts: pa.Table) -> tuple[_Offsets, _Offsets, _Offsets]:
    """Row, start and end of every range that a cut has saved."""
    saved_from, end = cuts["saved_from"].to_numpy(), cuts["end"].to_numpy()
    excluded = cuts["excluded"].combine_chunks()
    of_row = excluded.value_parent_indices().to_numpy().astype(np.int64)
    bad = pa.Table.from_struct_array(excluded.flatten())
    bad_start, bad_end = bad["start"].to_numpy(), bad["end"].to_numpy()
    # Each cut has a piece up to its first excluded range, each such range one up to the next.
    rows = np.concatenate((np.arange(len(end)), of_row))
    starts = np.concatenate((saved_from, np.maximum(bad_end, saved_from[of_row])))
    ends = np.concatenate((end.copy(), end[of_row]))
    firsts = np.flatnonzero(np.concatenate(([True], of_row[1:] != of_row[:-1]))[: len(of_row)])
    ends[of_row[firsts]] = bad_start[firsts]
    follows = np.flatnonzero(of_row[1:] == of_row[:-1])
    ends[len(end) + follows] = bad_start[follows + 1]
    return rows, starts, np.minimum(ends, end[rows])


def _may_be_proven(cuts: pa.Table) -> _Offsets:
    """1 for each cut whose records a backup can replace: changelogs, not repartition topics.

    Records in flight stay with their point, whatever other roles their topic has.
    """
    roles = cuts["roles"].combine_chunks()
    of_row = roles.value_parent_indices().to_numpy().astype(np.int64)
    names = roles.flatten()
    is_changelog = np.zeros(cuts.num_rows, np.bool_)
    in_flight = np.zeros(cuts.num_rows, np.bool_)
    is_changelog[of_row[matching(names, TopicRole.CHANGELOG.value.__eq__)]] = True
    in_flight[of_row[matching(names, TopicRole.REPARTITION.value.__eq__)]] = True
    return (is_changelog & ~in_flight).astype(np.int64)


def matching(column: pa.Array, test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    """Which texts of a column pass a test; each distinct text is tested once."""
    encoded = column.dictionary_encode()
    passed = np.array([test(text) for text in encoded.dictionary.to_pylist()], np.bool_)
    return passed[encoded.indices.to_numpy()]


def _codes(rows: pa.Table) -> tuple[list[_Key], _Offsets]:
    """The distinct partitions and incarnations of the rows, and for each row its number."""
    found, numbers = distinct(rows, ["topic", "topic_id", "partition"])
    return [*zip(*(column.to_pylist() for column in found.columns), strict=True)], numbers


def _groups(codes: _Offsets) -> Iterable[tuple[int, _Offsets]]:
    """Each code with its positions."""
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    edges = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
    for start, end in zip(edges, [*edges[1:], len(codes)], strict=True):
        yield int(codes[start]), order[start:end]


_ENOUGH_POINTS = 5_000
"""A file of this size is not merged with others."""
_INSTANT = [
    "id",
    "taken_at_ms",
    "closes_window_end_ms",
    "sealed",
    "guarantee",
    "took_ms",
    "sequence",
    "cluster_id",
    "runs_at",
]


class RecoveryPointTable(ApplicationTable[RecoveryPoint], spec=RECOVERY_POINTS):
    """Recovery points of one application, one row each."""

    def append(self, point: RecoveryPoint, *, writer: LockHandle | None = None) -> None:
        """Store a point; `writer` is the lock of the recorder, under which it was taken.

        Raises:
            LeaseLostError: Another holder now has the lock; nothing was written.
        """
        self._append([point], self._writer(writer))

    def append_many(self, points: Iterable[RecoveryPoint]) -> None:
        """Store points in one commit."""
        self._append(points, None)

    def _append(self, points: Iterable[RecoveryPoint], writer: Writer | None) -> None:
        rows = [replace(point, digest=value_digest(self.plain(point))) for point in points]
        self._table.append(rows, writer=writer)

    @staticmethod
    def plain(point: RecoveryPoint) -> dict[str, Any]:
        """A point as plain values by column, without the digest, which is computed from them."""
        row = rows_of(RecoveryPoint).plain(point)
        del row["digest"]
        return row

    def instants(self) -> list[PointInstant]:
        """The evaluation time of each point of the application, oldest first."""
        return [*self.bounds().counting]

    def bounds(self) -> "PointBounds":
        """The points that can bound windows; costs only what was added since the last call."""
        parts = self._table.reduce(_INSTANT, _instants_of)
        known, key = self._table.known.bounds, (self._table.path, self._application_id)
        return known.put(key, (known.get(key) or PointBounds()).with_parts(parts))

    def clusters(self) -> frozenset[str]:
        """Ids of the clusters on which points were taken."""
        found = self._table.reduce(["cluster_id"], _cluster_ids)
        return frozenset(cluster for of_file in found for cluster in of_file)

    def load(self, ids: Iterable[str], *, damaged_too: bool = False) -> list[RecoveryPoint]:
        """The points with these ids, oldest first.

        Raises:
            StoredDataError: A row was changed after the point was taken; unless `damaged_too`.
        """
        names = sorted(ids)
        if not names:
            return []
        rows = self._table.read(where=_one_of_ids(names))
        points = sorted(_points(rows), key=in_order)
        for point in points:
            if point.damaged and not damaged_too:
                raise StoredDataError(
                    subject=f"Recovery point {point.id}",
                    problem=CHANGED,
                    remedy="Restore the table recovery_points from a copy of the warehouse, or use"
                    " another recovery point.",
                )
        return points

    def cuts(self, ids: Collection[str]) -> pa.Table:
        """The cuts of the points with these ids as columns; digests are not verified.

        Columns `id, topic, partition, topic_id, log_start, end`, `roles` joined by commas, and
        `committed`, the offset that the group had committed there, null if none.
        """
        found = self._table.read(
            columns=["id", "partitions", "group_offsets"],
            where=_one_of_ids(ids),
        )
        cuts, offsets = (
            _flat(found["id"], found[name]) for name in ("partitions", "group_offsets")
        )
        mine, theirs = numbered_spans(cuts, offsets, ["id", "topic", "partition"])
        at = positions(mine, theirs)
        committed = offsets["offset"].take(pa.array(at, mask=at < 0))
        columns = ["id", "topic", "partition", "topic_id", "log_start", "end"]
        roles = pc.call_function("binary_join", [cuts["roles"].combine_chunks(), ","])
        both = cuts.select(columns).append_column("roles", roles)
        return both.append_column("committed", committed)

    def of_topic(self, topic: str) -> list[RecoveryPoint]:
        """Every point reduced to one topic, in order; digests are not verified.

        As in `RecoveryPoint.narrowed`: other missing parts of a point do not count.
        """
        rows = self._table.read()
        for name in ("partitions", "group_offsets"):
            column = rows.schema.get_field_index(name)
            rows = rows.set_column(column, name, _of_topic(rows[name], topic))
        columns = dict(plain_columns(rows))
        for name in ("absent_topics", "undeclared_topics"):
            columns[name] = [()] * rows.num_rows
        return sorted(rows_of(RecoveryPoint).of_plain(columns), key=in_order)

    def newest(self, count: int = 1, *, damaged_too: bool = False) -> list[RecoveryPoint]:
        """The newest points, newest first; the cost does not grow with their total number.

        Points whose row was changed after they were taken are skipped, unless `damaged_too`.
        """
        wanted = count
        by_sequence = replace(self._table, grows_along="sequence")
        while True:
            found = _points(by_sequence.read_newest(wanted))
            if len(found) < wanted:  # points of earlier releases have no sequence
                found += _points(self._table.read_newest(wanted))
            by_id = {point.id: point for point in found}
            points = sorted(by_id.values(), key=in_order, reverse=True)
            sound = [point for point in points if damaged_too or not point.damaged]
            if len(sound) >= count or len(points) < wanted:
                return sound[:count]
            wanted *= 2

    def versions(self) -> list["PointVersions"]:
        """The table versions recorded in each point, without its positions."""
        names = list(PointVersions._fields)
        rows = self._table.read(columns=names)
        columns = [rows[name].to_pylist() for name in names]
        return [PointVersions(*row) for row in zip(*columns, strict=True)]

    def yardstick(
        self, declared: DeclaredGuarantee, instants: Iterable[PointInstant] | None = None
    ) -> Yardstick:
        """The guarantee to require of the points: the application's own.

        The declared one; else the one of the newest point that shows one. If no point shows any,
        points have to be exact. `at_least_once` is the default of Kafka Streams: points of such an
        application need no better guarantee.

        Args:
            declared: As in the settings of the application.
            instants: Of its points, if already known.
        """
        if declared is not DeclaredGuarantee.AUTO:
            return Yardstick(Guarantee(declared.value), declared=True)
        instants = self.instants() if instants is None else instants
        shown = [i for i in sorted(instants, key=in_order, reverse=True) if i.runs_at is not None]
        if not shown:
            return Yardstick(Guarantee.EXACT)
        newest = shown[0]
        other = next((i for i in shown if i.runs_at is not newest.runs_at), None)
        return Yardstick(newest.runs_at or Guarantee.EXACT, newest, other)

    def newest_sealed(self) -> RecoveryPoint | None:
        """The newest point that is sealed, None without one."""
        return self._newest_of(lambda instant: instant.sealed)

    def newest_exact(self) -> RecoveryPoint | None:
        """The newest point that was taken as `exact`, None without one."""
        return self._newest_of(lambda instant: instant.exact)

    def _newest_of(self, fits: Callable[["PointInstant"], bool]) -> RecoveryPoint | None:
        instants = reversed(self.bounds().taken)
        for newest in filter(fits, instants):
            where = (pc.field("taken_at_ms") == newest.taken_at_ms) & (pc.field("id") == newest.id)
            for point in _points(self._table.read(where=where)):
                if not point.damaged:
                    return point
        return None

    def saved(
        self,
        proven: Mapping[TopicPartitionId, Sequence[tuple[str, int, int]]] | None = None,
    ) -> OffsetRanges:
        """The offsets that the stored points have saved, without changelog offsets in `proven`."""
        rows = self._table.read(columns=["partitions"])
        return OffsetRanges.of_points(rows["partitions"], proven)

    def drop(
        self,
        leaving: Mapping[str, int],
        *,
        writer: LockHandle | None = None,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> list[int]:
        """Drop points, given by id with the time they were taken, and merge small files.

        Each range of neighbouring files is merged in one commit; none starts after `goes_on`
        returns false. `writer` as in `append`.

        Returns:
            How many points each commit dropped.
        """
        ordered = sorted((at_ms, point_id) for point_id, at_ms in leaving.items())
        times = [at_ms for at_ms, _ in ordered]
        ranges = ranges_to_rewrite(
            [FileRange(file.rows, file.low, file.high) for file in self.files()],
            lambda file: bisect_left(times, file.low) < bisect_right(times, file.high),
            enough=_ENOUGH_POINTS,
        )
        by, dropped = self._writer(writer), list[int]()
        for low, high in ranges:
            if not goes_on():
                break
            inside = ordered[bisect_left(times, low) : bisect_right(times, high)]
            ids = {point_id for _, point_id in inside}

            def change(rows: pa.Table, ids: Collection[str] = ids) -> pa.Table:
                stays = rows.filter(~one_of("id", ids)) if ids else rows
                return stays.sort_by([("taken_at_ms", "ascending"), ("id", "ascending")])

            self._table.rewrite(low, high, change, writer=by)
            dropped.append(len(ids))
        return dropped


class PinsTable(ApplicationTable[Pin], spec=PINS):
    """Points of one application that neither maintenance nor `expire` drops."""

    def all(self) -> list[Pin]:
        """All of them, the last one first."""
        found = self._table.rows()
        return sorted(found, key=lambda pin: pin.pinned_at_ms, reverse=True)

    def pin(self, point_id: str, reason: str, *, writer: LockHandle | None = None) -> Pin:
        """Pin a point; pinning it again replaces the reason.

        `writer` is the lock of the recorder, under which the point was seen.
        """
        pin = Pin(self._application_id, point_id, time.time_ns() // 1_000_000, reason)
        self._replace(point_id, [pin], writer)
        return pin

    def unpin(self, point_id: str) -> bool:
        """Remove a pin; return whether there was one."""
        there = any(pin.recovery_point_id == point_id for pin in self.all())
        if there:
            self._replace(point_id, [])
        return there

    def _replace(
        self,
        point_id: str,
        pins: Sequence[Pin],
        writer: LockHandle | None = None,
    ) -> None:
        where, by = pc.field("recovery_point_id") == point_id, self._writer(writer)
        self._table.replace(pins, where=where, writer=by)


def _cluster_ids(rows: pa.Table) -> frozenset[str]:
    return frozenset(rows["cluster_id"].unique().to_pylist())


def _instants_of(rows: pa.Table) -> tuple[PointInstant, ...]:
    """The evaluation times of points, oldest first."""
    columns = rows.to_pydict()
    exact = Guarantee.EXACT.value
    instants = [
        PointInstant(
            id=point_id,
            taken_at_ms=taken_at_ms,
            effective_at_ms=taken_at_ms if closes_ms is None else closes_ms - 1,
            sealed=sealed,
            exact=guarantee == exact,
            took_ms=took_ms,
            sequence=sequence,
            cluster_id=cluster_id,
            runs_at=None if runs_at is None else Guarantee(runs_at),
        )
        for (
            point_id,
            taken_at_ms,
            closes_ms,
            sealed,
            guarantee,
            took_ms,
            sequence,
            cluster_id,
            runs_at,
        ) in zip(*(columns[name] for name in _INSTANT), strict=True)
    ]
    return tuple(sorted(instants, key=as_counted))


def _one_of_ids(ids: Collection[str]) -> pc.Expression:
    # The range lets the reader skip files and row groups, which a list of values does not.
    return one_of("id", ids) & (pc.field("id") >= min(ids)) & (pc.field("id") <= max(ids))


def _flat(ids: pa.ChunkedArray, lists: pa.ChunkedArray) -> pa.Table:
    """The elements of lists of structs as rows, each with the id of its list."""
    of_it = lists.combine_chunks()
    rows = pa.Table.from_struct_array(of_it.flatten())
    return rows.append_column("id", ids.take(of_it.value_parent_indices()))


def _of_topic(lists: pa.ChunkedArray, topic: str) -> pa.Array:
    """Lists of structs with only the elements of a topic."""
    of_it = lists.combine_chunks()
    mine = pc.call_function("equal", [of_it.flatten().field("topic"), topic])
    of_row = of_it.value_parent_indices().filter(mine).to_numpy()
    counts = np.bincount(of_row, minlength=len(of_it))
    offsets = np.concatenate(([0], np.cumsum(counts)))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), of_it.flatten().filter(mine))


def _points(rows: pa.Table) -> list[RecoveryPoint]:
    columns = plain_columns(rows)
    points = rows_of(RecoveryPoint).of_plain(columns)
    others = [name for name in columns if name != "digest"]
    values = zip(*(columns[name] for name in others), strict=True)
    # The digest is that of the stored row: it stays valid when the table gets another column.
    return [
        replace(point, damaged=True)
        if point.digest not in (None, value_digest(dict(zip(others, row, strict=True))))
        else point
        for point, row in zip(points, values, strict=True)
    ]


SCHEMA = rows_of(SavedRecord).schema
NONE_SAVED = SCHEMA.empty_table()
_HEADERS = SCHEMA.field("headers").type
_DIGEST_BYTES = 16
_AT_ONCE = 65_536
_KEY = ["topic", "partition", "topic_id", "offset"]


class SavedRecordsTable(ApplicationTable[SavedRecord], spec=SAVED_RECORDS):
    """Saved records of one application."""

    def append(
        self,
        point_id: str,
        tails: Iterable[SavedTail],
        *,
        writer: LockHandle | None = None,
    ) -> int:
        """Store the saved records of a point, in one commit, before the point itself; return their
        number.

        `writer` as in `RecoveryPointTable.append`.
        """
        parts = [_columns(self._application_id, point_id, tail) for tail in tails if tail.records]
        if not parts:
            return 0
        rows = pa.concat_tables(parts)
        self._table.append_table(rows, writer=self._writer(writer))
        return rows.num_rows

    def _require_all_of(self, point: RecoveryPoint) -> None:
        """Refuse a table without the commit that saved the records of a point.

        Raises:
            StoredDataError: The table is older than the point.
        """
        version = self.version()
        if point.saved_version is not None and version < point.saved_version:
            raise StoredDataError(
                subject="The table recovery_point_records",
                problem=f"recovery point {point.id} was stored when it had version"
                f" {point.saved_version}, now it has {version}: its last commits are missing, as in"
                " a copy that was made while a point was taken",
                remedy="Restore the table recovery_point_records from a later copy of the"
                " warehouse, or restore a recovery point that does not need it.",
            )

    def of_point(self, point: RecoveryPoint) -> pa.Table:
        """The saved records of a point, each once, by topic, partition and offset.

        Columns as in `SCHEMA`. Excludes records that a backup contains without holes (see
        `drop_unneeded`).

        Raises:
            StoredDataError: A record was changed after it was saved, or the table is older than the
                point.
        """
        cuts = {cut.id: cut for cut in point.partitions if cut.saved_from is not None}
        return self.of_cuts(point, cuts)

    def of_cuts(
        self, point: RecoveryPoint, cuts: Mapping[TopicPartitionId, PartitionCut]
    ) -> pa.Table:
        """The records in `[saved_from, end)` outside the excluded ranges of cuts of a point.

        Any point may have saved them.

        Raises:
            StoredDataError: As in `of_point`.
        """
        if not cuts:
            return SCHEMA.empty_table()
        self._require_all_of(point)
        rows = self._table.read(where=_near(cuts.values()))
        found = chosen(rows, cuts)
        _require_unchanged(found)
        return found

    def changed(self) -> Iterator[tuple[TopicPartitionId, str, int, str]]:
        """Rows that do not match their digest: partition, topic id, offset, saving point; reads all
        rows, one file after the other."""
        for file in self._table.files():
            point_id = pc.field("recovery_point_id")
            rows = self._table.read(
                where=(point_id >= file.low) & (point_id <= file.high),
            )
            for batch in rows.to_batches(max_chunksize=_AT_ONCE):
                yield from _changed(pa.Table.from_batches([batch]))

    def needed_rows(self, file: StoredFile, needed: OffsetRanges, fresh_from: str) -> int:
        """The number of rows that `drop_unneeded` would leave in a file; reads only their keys."""
        point_id = pc.field("recovery_point_id")
        rows = self._table.read(
            columns=[*_KEY, "recovery_point_id"],
            where=(point_id >= file.low) & (point_id <= file.high),
        )
        return int(_stays(rows, needed, fresh_from).sum())

    def drop_unneeded(
        self,
        low: str,
        high: str,
        needed: OffsetRanges,
        fresh_from: str,
        *,
        writer: LockHandle | None = None,
    ) -> int:
        """Merge the files of points `[low, high]` without unneeded rows; return the number dropped.

        `needed` are the references of the stored points. Rows of point ids from `fresh_from` on
        stay, because their point may be about to be stored. `writer` as in
        `RecoveryPointTable.append`.
        """
        dropped = 0

        def change(rows: pa.Table) -> pa.Table:
            nonlocal dropped
            stays = rows.filter(pa.array(_stays(rows, needed, fresh_from)))
            stays = _each_once(stays.combine_chunks())
            dropped = rows.num_rows - stays.num_rows
            return stays

        self._table.rewrite(low, high, change, writer=self._writer(writer))
        return dropped


def chosen(rows: pa.Table, cuts: Mapping[TopicPartitionId, PartitionCut]) -> pa.Table:
    """The saved records that belong to these cuts, each once, in order."""
    inside = OffsetRanges.of_cuts(cuts.values()).mask(rows)
    return _each_once(rows.filter(pa.array(inside)))


def _near(cuts: Iterable[PartitionCut]) -> pc.Expression:
    """A coarse filter, one range of offsets per topic, to skip files."""
    ranges: dict[str, tuple[int, int]] = {}
    for cut in cuts:
        low, high = ranges.get(cut.topic, (cut.end, cut.end))
        ranges[cut.topic] = min(low, cut.saved_from or 0), max(high, cut.end)
    offset = pc.field("offset")
    wanted = pc.scalar(False)
    for topic, (low, high) in ranges.items():
        wanted |= (pc.field("topic") == topic) & (offset >= low) & (offset < high)
    return wanted


def _stays(rows: pa.Table, needed: OffsetRanges, fresh_from: str) -> npt.NDArray[np.bool_]:
    ids = rows["recovery_point_id"].combine_chunks()
    return needed.mask(rows) | matching(ids, lambda point_id: point_id >= fresh_from)


def _each_once(rows: pa.Table) -> pa.Table:
    """In order; records that a later point read again (an excluded range, decided) only once."""
    rows = rows.sort_by([(name, "ascending") for name in (*_KEY, "recovery_point_id")])
    if rows.num_rows < 2:
        return rows
    first = np.zeros(rows.num_rows, np.bool_)
    first[0] = True
    for name in _KEY:
        values = rows[name].combine_chunks().dictionary_encode().indices.to_numpy()
        first[1:] |= values[1:] != values[:-1]
    return rows if first.all() else rows.filter(pa.array(first))


def _columns(application_id: str, point_id: str, tail: SavedTail) -> pa.Table:
    offsets, times, kinds, keys, values, headers = zip(*tail.records, strict=True)
    count = len(offsets)
    columns = [
        pa.repeat(application_id, count),
        pa.repeat(point_id, count),
        pa.repeat(tail.partition.topic, count),
        pa.repeat(tail.topic_id, count),
        pa.repeat(pa.scalar(tail.partition.partition, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        pa.array(times, pa.int64()),
        pa.array(kinds, pa.int32()),
        _header_column(headers),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([_digest(tail.partition, record) for record in tail.records], pa.binary()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _digest(partition: TopicPartitionId, record: RawRecord) -> bytes:
    """A digest of one record and its position, over Python's text form of its parts."""
    text = ascii((partition.topic, partition.partition, *record))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _require_unchanged(rows: pa.Table) -> None:
    """Rows of earlier releases have no digest and cannot be verified."""
    for source, _, offset, point_id in _changed(rows):
        raise StoredDataError(
            subject=f"Offset {offset} of {source}, saved with recovery point {point_id},",
            problem="it does not match the digest that was recorded when it was saved",
            remedy="Restore the table recovery_point_records from a copy of the warehouse,"
            " or restore a recovery point that does not need it.",
        )


def _changed(rows: pa.Table) -> Iterator[tuple[TopicPartitionId, str, int, str]]:
    names = ("topic", "partition", "topic_id", *RawRecord._fields, "recovery_point_id", "digest")
    columns = [rows.column(name).to_pylist() for name in names]
    for topic, number, life, *fields, headers, point_id, digest in zip(*columns, strict=True):
        offset, timestamp_ms, timestamp_type, key, value = fields
        pairs = tuple((_name(header), header["value"]) for header in headers or ())
        record = RawRecord(offset, timestamp_ms, timestamp_type, key, value, pairs)
        source = TopicPartitionId(topic, number)
        if digest is not None and digest != _digest(source, record):
            yield source, life, offset, point_id


def _name(header: Mapping[str, Any]) -> str:
    """The name of a stored header as `RawRecord` has it."""
    raw = header.get("key_bytes")
    return header["key"] if raw is None else header_name(raw)


def _header_column(headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> pa.Array:
    names = [name for of_one in headers for name, _ in of_one]
    values = [value for of_one in headers for _, value in of_one]
    ends = np.cumsum([0, *map(len, headers)], dtype=np.int32)
    pairs = pa.StructArray.from_arrays(
        [
            pa.array(map(header_text, names), pa.string()),
            pa.array(values, pa.binary()),
            pa.array(map(header_name_bytes, names), pa.binary()),
        ],
        fields=list(_HEADERS.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(ends), pairs, type=_HEADERS)
