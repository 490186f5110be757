"""The tables of recovery points, and of the records that are saved with them."""

import hashlib
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.app.model import TopicRole
from kstreams_assets.errors import StoredDataError
from kstreams_assets.kafka.raw_batch import (
    RawRecord,
    header_name,
    header_name_bytes,
    header_text,
)
from kstreams_assets.layout import Warehouse, value_digest
from kstreams_assets.lease import LockHandle, warehouse_lock
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.store import StorePath
from kstreams_assets.warehouse.column import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TIMESTAMP_TYPE,
    VALUE,
    ApplicationId,
    Column,
    TopicId,
    TopicName,
)
from kstreams_assets.warehouse.point import (
    Guarantee,
    PartitionCut,
    RecoveryPoint,
    in_force,
    in_order,
)
from kstreams_assets.warehouse.records import distinct, numbered_spans, positions
from kstreams_assets.warehouse.rows import plain_columns, rows_of
from kstreams_assets.warehouse.table import StoredFile, Table, Writer, fence_tables, one_of

_Offsets = npt.NDArray[np.int64]
_Key = tuple[str, str, int]
"""Topic, topic id, partition."""


class ProvenRange(NamedTuple):
    """Offsets of one life of a topic that a backup holds without a hole."""

    topic_id: str
    start: int
    end: int


class OffsetRanges:
    """Offsets by partition and topic id, as ranges."""

    def __init__(self, ranges: Iterable[tuple[_Key, RangeSet]] = ()) -> None:
        self._by_key: dict[_Key, RangeSet] = {}
        for key, of_key in ranges:
            self._by_key[key] = self._by_key.get(key, RangeSet()) | of_key

    @classmethod
    def of_cuts(cls, cuts: Iterable[PartitionCut]) -> "OffsetRanges":
        """What these cuts have saved: `[saved_from, end)` outside the excluded ranges."""
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
        """What many points have saved, from the column `partitions` of their table.

        Changelog offsets in `proven` (topic id, start, end) are left out.
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
        """Which rows (columns topic, topic_id, partition, offset) lie in the ranges."""
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
    # Each cut gives a piece up to its first excluded range, each such range one up to the next.
    rows = np.concatenate((np.arange(len(end)), of_row))
    starts = np.concatenate((saved_from, np.maximum(bad_end, saved_from[of_row])))
    ends = np.concatenate((end.copy(), end[of_row]))
    firsts = np.flatnonzero(np.concatenate(([True], of_row[1:] != of_row[:-1]))[: len(of_row)])
    ends[of_row[firsts]] = bad_start[firsts]
    follows = np.flatnonzero(of_row[1:] == of_row[:-1])
    ends[len(end) + follows] = bad_start[follows + 1]
    return rows, starts, np.minimum(ends, end[rows])


def _may_be_proven(cuts: pa.Table) -> _Offsets:
    """1 for each cut whose records a backup may stand in for: changelogs, not repartition topics.

    Records in flight stay with their point, whatever else their topic is.
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
    """The distinct partitions and lives of the rows, and for each row the number of its own."""
    found, numbers = distinct(rows, ["topic", "topic_id", "partition"])
    return [*zip(*(column.to_pylist() for column in found.columns), strict=True)], numbers


def _groups(codes: _Offsets) -> Iterable[tuple[int, _Offsets]]:
    """Each code with the positions at which it stands."""
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    edges = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
    for start, end in zip(edges, [*edges[1:], len(codes)], strict=True):
        yield int(codes[start]), order[start:end]


def writer_of(application_id: str, lock: LockHandle | None) -> Writer | None:
    """The writer that holds a lock, if there is one."""
    return None if lock is None else Writer(application_id, lock)


CHANGED = "its row does not match the digest that was noted when it was taken"
"""What is wrong with a point that is `damaged`."""


@dataclass(frozen=True, slots=True)
class PointInstant:
    """When a point counts, and what decides whether it is kept.

    Enough to choose among many without reading their positions.
    """

    id: str
    taken_at_ms: int
    effective_at_ms: int
    sealed: bool = False
    exact: bool = False
    took_ms: int = 0
    sequence: int | None = None
    cluster_id: str = ""
    runs_at: Guarantee | None = None

    @property
    def ended_at_ms(self) -> int:
        """See `RecoveryPoint.ended_at_ms`."""
        return self.taken_at_ms + self.took_ms

    @property
    def closes_window(self) -> bool:
        """Whether it was taken late, on behalf of a window that had closed without one."""
        return self.effective_at_ms != self.taken_at_ms


class PointVersions(NamedTuple):
    """The number of a point, and the versions of tables that it was taken at; None: not known."""

    id: str
    sequence: int | None
    ledger_version: int | None
    saved_version: int | None


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
_STATISTICS = ("taken_at_ms", "id", "sequence")


class RecoveryPointTable:
    """Recovery points of all applications, one row each."""

    def __init__(self, warehouse: Warehouse) -> None:
        path = warehouse.control("recovery_points")
        self._table = Table(
            path,
            RecoveryPoint,
            grows_along="taken_at_ms",
            statistics=_STATISTICS,
            small_files=128,  # rounds of maintenance come before; this is for where there are none
        )
        self._by_sequence = replace(self._table, grows_along="sequence")

    def append(self, point: RecoveryPoint, *, writer: LockHandle | None = None) -> None:
        """Store a point; `writer` is the lock of `points_locked`, under which it was taken.

        Raises:
            LeaseLostError: Another holder has the lock by now; nothing was written.
        """
        self._append([point], writer_of(point.application_id, writer))

    def append_many(self, points: Iterable[RecoveryPoint]) -> None:
        """Store points in one commit."""
        self._append(points, None)

    def _append(self, points: Iterable[RecoveryPoint], writer: Writer | None) -> None:
        rows = [replace(point, digest=value_digest(row_of(point))) for point in points]
        self._table.append(rows, writer=writer)

    def instants(self, application_id: str) -> list[PointInstant]:
        """When each point of the application counts, oldest first."""
        return [*self._instants(application_id).counting]

    def bounds(self, application_id: str) -> "PointBounds":
        """The points that can bound windows; costs what was added since the call before."""
        return self._instants(application_id)

    def _instants(self, application_id: str) -> "PointBounds":
        parts = self._table.fold(application_id, _INSTANT, _instants_of)
        key = (self._table.path, application_id)
        found = _bounds.get(key, _NO_BOUNDS).with_parts(parts)
        _bounds[key] = found
        return found

    def clusters(self, application_id: str) -> frozenset[str]:
        """Ids of the clusters on which points were taken."""
        found = self._table.fold(application_id, ["cluster_id"], _cluster_ids)
        return frozenset(cluster for of_file in found for cluster in of_file)

    def load(
        self, application_id: str, ids: Iterable[str], *, damaged_too: bool = False
    ) -> list[RecoveryPoint]:
        """The points with these ids, oldest first.

        Raises:
            StoredDataError: The row of one was changed since it was taken; unless `damaged_too`.
        """
        names = sorted(ids)
        if not names:
            return []
        rows = self._table.read(application_id=application_id, where=_one_of_ids(names))
        points = sorted(_points(rows), key=in_order)
        for point in points:
            if point.damaged and not damaged_too:
                raise StoredDataError(
                    subject=f"Recovery point {point.id}",
                    problem=CHANGED,
                    remedy="Bring the table recovery_points back from a copy of the warehouse, or"
                    " use another recovery point.",
                )
        return points

    def cuts(self, application_id: str, ids: Collection[str]) -> pa.Table:
        """The cuts of the points with these ids by the column, which takes no look at digests.

        Columns `id, topic, partition, topic_id, log_start, end`, `roles` joined by commas, and
        `committed`, the offset that the group had committed there, null if none.
        """
        found = self._table.read(
            application_id=application_id,
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

    def of_topic(self, application_id: str, topic: str) -> list[RecoveryPoint]:
        """Every point as far as one topic goes, in order; takes no look at digests.

        As of `RecoveryPoint.narrowed`: what else a point lacks does not count.
        """
        rows = self._table.read(application_id=application_id)
        for name in ("partitions", "group_offsets"):
            column = rows.schema.get_field_index(name)
            rows = rows.set_column(column, name, _of_topic(rows[name], topic))
        columns = dict(plain_columns(rows))
        for name in ("absent_topics", "undeclared_topics"):
            columns[name] = [()] * rows.num_rows
        return sorted(rows_of(RecoveryPoint).of_plain(columns), key=in_order)

    def newest(
        self, application_id: str, count: int = 1, *, damaged_too: bool = False
    ) -> list[RecoveryPoint]:
        """The newest points, newest first; what it costs does not grow with all there are.

        Those whose row was changed since they were taken are passed over, unless `damaged_too`.
        """
        wanted = count
        while True:
            found = _points(self._by_sequence.read_newest(application_id, wanted))
            if len(found) < wanted:  # points of earlier releases have no sequence
                found += _points(self._table.read_newest(application_id, wanted))
            by_id = {point.id: point for point in found}
            points = sorted(by_id.values(), key=in_order, reverse=True)
            sound = [point for point in points if damaged_too or not point.damaged]
            if len(sound) >= count or len(points) < wanted:
                return sound[:count]
            wanted *= 2

    def versions(self, application_id: str) -> list["PointVersions"]:
        """What each point notes of other tables, without its positions."""
        names = list(PointVersions._fields)
        rows = self._table.read(application_id=application_id, columns=names)
        columns = [rows[name].to_pylist() for name in names]
        return [PointVersions(*row) for row in zip(*columns, strict=True)]

    def newest_sealed(self, application_id: str) -> RecoveryPoint | None:
        """The newest point that is sealed, None without one."""
        return self._newest_of(application_id, lambda instant: instant.sealed)

    def newest_exact(self, application_id: str) -> RecoveryPoint | None:
        """The newest point that was taken as `exact`, None without one."""
        return self._newest_of(application_id, lambda instant: instant.exact)

    def _newest_of(
        self, application_id: str, fits: Callable[["PointInstant"], bool]
    ) -> RecoveryPoint | None:
        instants = reversed(self._instants(application_id).taken)
        for newest in filter(fits, instants):
            where = (pc.field("taken_at_ms") == newest.taken_at_ms) & (pc.field("id") == newest.id)
            for point in _points(self._table.read(application_id=application_id, where=where)):
                if not point.damaged:
                    return point
        return None

    def saved(
        self,
        application_id: str,
        proven: Mapping[TopicPartitionId, Sequence[tuple[str, int, int]]] | None = None,
    ) -> OffsetRanges:
        """What the stored points have saved, but for changelog offsets in `proven`."""
        rows = self._table.read(application_id=application_id, columns=["partitions"])
        return OffsetRanges.of_points(rows["partitions"], proven)

    @property
    def table(self) -> Table[RecoveryPoint]:
        """The table itself."""
        return self._table

    def files(self, application_id: str) -> list[StoredFile]:
        """The files of an application by the times at which their points were taken."""
        return self._table.files(application_id)

    def expire(
        self, application_id: str, going: Mapping[str, int], *, writer: LockHandle | None = None
    ) -> None:
        """Drop points, given by id with the time they were taken, from every list in one commit.

        `writer` as in `append`.
        """
        if going:
            low_ms, high_ms = min(going.values()), max(going.values())
            self.drop(application_id, low_ms, high_ms, going.keys(), writer=writer)

    def drop(
        self,
        application_id: str,
        low_ms: int,
        high_ms: int,
        ids: Collection[str],
        *,
        writer: LockHandle | None = None,
    ) -> None:
        """Put the files of points taken in `[low_ms, high_ms]` together, without these points.

        `writer` as in `append`.
        """

        def change(rows: pa.Table) -> pa.Table:
            stays = rows.filter(~one_of("id", ids)) if ids else rows
            return stays.sort_by([("taken_at_ms", "ascending"), ("id", "ascending")])

        by = writer_of(application_id, writer)
        self._table.rewrite(application_id, low_ms, high_ms, change, writer=by)

    def tidy(self) -> None:
        """Drop files and log entries that are no longer part of the table."""
        self._table.tidy()


@dataclass(frozen=True, slots=True)
class Pin:
    """A row of the table of pins: a point that stays until it is unpinned."""

    application_id: ApplicationId
    recovery_point_id: Annotated[str, Column("The point that stays.")]
    pinned_at_ms: Annotated[int, Column("When it was pinned, epoch milliseconds.")]
    reason: Annotated[str, Column("Why, in the words of who pinned it.")]


class PinsTable:
    """Points that neither maintenance nor `expire` drops, of all applications."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = Table(warehouse.control("pins"), Pin, grows_along="pinned_at_ms")

    def of(self, application_id: str) -> list[Pin]:
        """Those of an application, the last one first."""
        found = self._table.rows(application_id)
        return sorted(found, key=lambda pin: pin.pinned_at_ms, reverse=True)

    def pin(
        self, application_id: str, point_id: str, reason: str, *, writer: LockHandle | None = None
    ) -> Pin:
        """Pin a point; pinned again, it gets the new reason.

        `writer` is the lock of `points_locked`, under which the point was seen.
        """
        pin = Pin(application_id, point_id, time.time_ns() // 1_000_000, reason)
        self._replace(application_id, point_id, [pin], writer)
        return pin

    def unpin(self, application_id: str, point_id: str) -> bool:
        """Take a pin away; whether there was one."""
        there = any(pin.recovery_point_id == point_id for pin in self.of(application_id))
        if there:
            self._replace(application_id, point_id, [])
        return there

    def _replace(
        self,
        application_id: str,
        point_id: str,
        pins: Sequence[Pin],
        writer: LockHandle | None = None,
    ) -> None:
        where, by = pc.field("recovery_point_id") == point_id, writer_of(application_id, writer)
        self._table.replace(pins, application_id=application_id, where=where, writer=by)

    @property
    def table(self) -> Table[Pin]:
        """The table itself."""
        return self._table


def _cluster_ids(rows: pa.Table) -> frozenset[str]:
    return frozenset(rows["cluster_id"].unique().to_pylist())


def _instants_of(rows: pa.Table) -> tuple[PointInstant, ...]:
    """When each of some points counts, oldest first."""
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
    return tuple(sorted(instants, key=_as_counted))


def _as_counted(instant: PointInstant) -> tuple[int, int, str]:
    # The id decides between equals, so that their order in the files never does.
    return (instant.effective_at_ms, instant.taken_at_ms, instant.id)


@dataclass(frozen=True, slots=True)
class PointBounds:
    """The points of an application, in the orders in which they are asked for.

    `counting` are all of them by the instant they count for, `taken` by when they were taken,
    `in_force` those that can bound windows (`point.in_force`), of which `effective_ms` are the
    instants. A follower takes a point every few seconds: adding it must not cost what all cost.
    """

    parts: tuple[tuple[PointInstant, ...], ...] = ()
    """What the files of the table hold, each remembered for as long as the file is there."""
    counting: Sequence[PointInstant] = ()
    taken: Sequence[PointInstant] = ()
    in_force: Sequence[PointInstant] = ()
    effective_ms: Sequence[int] = ()

    def with_parts(self, parts: Sequence[tuple[PointInstant, ...]]) -> "PointBounds":
        """The same of the files that there are by now."""
        known = {id(part) for part in self.parts}
        new = [part for part in parts if id(part) not in known]
        if not new and len(parts) == len(self.parts):
            return self
        added = sorted((one for part in new for one in part), key=_as_counted)
        is_longer = len(parts) == len(self.parts) + len(new)
        if is_longer and self._are_later(added):
            return PointBounds(
                (*self.parts, *new),
                [*self.counting, *added],
                [*self.taken, *added],
                [*self.in_force, *added],
                [*self.effective_ms, *(one.effective_at_ms for one in added)],
            )
        instants = sorted((one for part in parts for one in part), key=_as_counted)
        ordered = in_force(instants)
        return PointBounds(
            tuple(parts),
            instants,
            sorted(instants, key=in_order),
            ordered,
            [one.effective_at_ms for one in ordered],
        )

    def _are_later(self, added: Sequence[PointInstant]) -> bool:
        """Whether points count after all others in every order, and after one another."""
        last = [self.counting[-1], self.taken[-1], self.in_force[-1]] if self.counting else []
        return all(
            _as_counted(before) < _as_counted(after) and in_order(before) < in_order(after)
            for before, after in [*((one, added[0]) for one in last if added), *pairwise(added)]
        )

    def before(self, instant_ms: int) -> PointInstant | None:
        """The last point that counts before an instant, None without one."""
        index = bisect_left(self.effective_ms, instant_ms)
        return self.in_force[index - 1] if index else None

    def last_inside(self, start_ms: int, end_ms: int) -> PointInstant | None:
        """The last point that counts in `[start_ms, end_ms)`, None without one."""
        last = self.before(end_ms)
        return last if last is not None and last.effective_at_ms >= start_ms else None

    def at_edges(self, edges_ms: Iterable[int]) -> set[str]:
        """As the function `at_edges`."""
        found = (self.before(edge) for edge in edges_ms)
        return {one.id for one in found if one is not None}


def at_edges(instants: Iterable[PointInstant], edges_ms: Iterable[int]) -> set[str]:
    """Ids of the points that windows with these edges need: the last one before each edge."""
    return _NO_BOUNDS.with_parts([tuple(instants)]).at_edges(edges_ms)


_NO_BOUNDS: Final = PointBounds()
_bounds: dict[tuple[StorePath, str], PointBounds] = {}
"""Of each table and application that this process has read."""


def row_of(point: RecoveryPoint) -> dict[str, Any]:
    """A point as plain values by column, without the digest, which is of these."""
    row = rows_of(RecoveryPoint).plain(point)
    del row["digest"]
    return row


def _one_of_ids(ids: Collection[str]) -> pc.Expression:
    # The range lets the reader skip files and row groups, which a list of values does not.
    return one_of("id", ids) & (pc.field("id") >= min(ids)) & (pc.field("id") <= max(ids))


def _flat(ids: pa.ChunkedArray, lists: pa.ChunkedArray) -> pa.Table:
    """The elements of lists of structs as rows, each with the id of its list."""
    of_it = lists.combine_chunks()
    rows = pa.Table.from_struct_array(of_it.flatten())
    return rows.append_column("id", ids.take(of_it.value_parent_indices()))


def _of_topic(lists: pa.ChunkedArray, topic: str) -> pa.Array:
    """Lists of structs with those elements only that are of a topic."""
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
    # The digest is of the row as it stands there: it keeps it when the table gets another column.
    return [
        replace(point, damaged=True)
        if point.digest not in (None, value_digest(dict(zip(others, row, strict=True))))
        else point
        for point, row in zip(points, values, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Header:
    """A header of a record."""

    key: str
    value: bytes | None
    key_bytes: bytes | None = None


@dataclass(frozen=True, slots=True)
class SavedRecord:
    """A row of the table; there are many, so that they are written and read by the column."""

    application_id: ApplicationId
    recovery_point_id: Annotated[
        str, Column("The point that saved the record; later ones refer to it by offset.")
    ]
    topic: TopicName
    topic_id: TopicId
    partition: Annotated[int, PARTITION]
    offset: Annotated[int, OFFSET]
    timestamp_ms: Annotated[int, TIMESTAMP]
    timestamp_type: Annotated[int, TIMESTAMP_TYPE]
    headers: Annotated[tuple[Header, ...], HEADERS]
    key: Annotated[bytes | None, KEY]
    value: Annotated[bytes | None, VALUE]
    digest: Annotated[
        bytes | None,
        Column(
            "BLAKE2b (16 bytes) of the record with its topic and partition; compared when it is"
            " read. Null in rows of earlier releases."
        ),
    ]


SCHEMA = rows_of(SavedRecord).schema
NONE_SAVED = SCHEMA.empty_table()
_HEADERS = SCHEMA.field("headers").type
_DIGEST_BYTES = 16
_AT_ONCE = 65_536
_KEY = ["topic", "partition", "topic_id", "offset"]


@dataclass(frozen=True, slots=True)
class SavedTail:
    """Records of one partition that one point saves, in offset order."""

    partition: TopicPartitionId
    topic_id: str
    records: Sequence[RawRecord]


class SavedRecordsTable:
    """Saved records of all applications."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = Table(
            warehouse.control("recovery_point_records"),
            SavedRecord,
            grows_along="recovery_point_id",  # ids sort by the time their point was taken
            statistics=("recovery_point_id", "topic", "partition", "offset"),
            bulky=True,
            small_files=128,  # as those of the points
        )

    @property
    def table(self) -> Table[SavedRecord]:
        """The table itself."""
        return self._table

    def append(
        self,
        application_id: str,
        point_id: str,
        tails: Iterable[SavedTail],
        *,
        writer: LockHandle | None = None,
    ) -> int:
        """Store what a point saves, in one commit, before the point itself; number of records.

        `writer` as in `RecoveryPointTable.append`.
        """
        parts = [_columns(application_id, point_id, tail) for tail in tails if tail.records]
        if not parts:
            return 0
        rows = pa.concat_tables(parts)
        self._table.append_table(rows, writer=writer_of(application_id, writer))
        return rows.num_rows

    def version(self) -> int:
        """The version of the table; it grows with each change."""
        return self._table.version()

    def _require_all_of(self, point: RecoveryPoint) -> None:
        """Refuse a table that lacks the commit with which records of a point were saved.

        Raises:
            StoredDataError: It is older than the point.
        """
        version = self.version()
        if point.saved_version is not None and version < point.saved_version:
            raise StoredDataError(
                subject="The table recovery_point_records",
                problem=f"recovery point {point.id} was stored when it had version"
                f" {point.saved_version}, now it has {version}: its last commits are missing, as in"
                " a copy that was made while a point was taken",
                remedy="Bring the table recovery_point_records back from a later copy of the"
                " warehouse, or restore a recovery point that does not need it.",
            )

    def of_point(self, point: RecoveryPoint) -> pa.Table:
        """The saved records that belong to a point, each once, by topic, partition and offset.

        Columns as in `SCHEMA`. What a backup was said to hold without holes (see `drop_unneeded`)
        is not among them.

        Raises:
            StoredDataError: One of them was changed since it was saved, or the table is older than
                the point.
        """
        cuts = {cut.id: cut for cut in point.partitions if cut.saved_from is not None}
        return self.of_cuts(point, cuts)

    def of_cuts(
        self, point: RecoveryPoint, cuts: Mapping[TopicPartitionId, PartitionCut]
    ) -> pa.Table:
        """The records in `[saved_from, end)` outside the excluded ranges of cuts of a point.

        Whichever points saved them.

        Raises:
            StoredDataError: As `of_point`.
        """
        if not cuts:
            return SCHEMA.empty_table()
        self._require_all_of(point)
        rows = self._table.read(application_id=point.application_id, where=_near(cuts.values()))
        found = chosen(rows, cuts)
        _require_unchanged(found)
        return found

    def changed(self, application_id: str) -> Iterator[tuple[TopicPartitionId, str, int, str]]:
        """Rows that do not match their digest: partition, topic id, offset, saving point; all are
        read, one file after the other."""
        for file in self._table.files(application_id):
            point_id = pc.field("recovery_point_id")
            rows = self._table.read(
                application_id=application_id,
                where=(point_id >= file.low) & (point_id <= file.high),
            )
            for batch in rows.to_batches(max_chunksize=_AT_ONCE):
                yield from _changed(pa.Table.from_batches([batch]))

    def files(self, application_id: str) -> list[StoredFile]:
        """The files of an application by the ids of the points whose records they hold."""
        return self._table.files(application_id)

    def needed_rows(
        self, application_id: str, file: StoredFile, needed: OffsetRanges, fresh_from: str
    ) -> int:
        """How many rows of a file `drop_unneeded` would leave; reads their keys only."""
        point_id = pc.field("recovery_point_id")
        rows = self._table.read(
            application_id=application_id,
            columns=[*_KEY, "recovery_point_id"],
            where=(point_id >= file.low) & (point_id <= file.high),
        )
        return int(_stays(rows, needed, fresh_from).sum())

    def drop_unneeded(
        self,
        application_id: str,
        low: str,
        high: str,
        needed: OffsetRanges,
        fresh_from: str,
        *,
        writer: LockHandle | None = None,
    ) -> int:
        """Put the files of points `[low, high]` together without what nobody needs; rows dropped.

        `needed` is what the stored points refer to. Rows of point ids from `fresh_from` on stay:
        their point may be about to be stored. `writer` as in `RecoveryPointTable.append`.
        """
        dropped = 0

        def change(rows: pa.Table) -> pa.Table:
            nonlocal dropped
            stays = rows.filter(pa.array(_stays(rows, needed, fresh_from)))
            stays = _each_once(stays.combine_chunks())
            dropped = rows.num_rows - stays.num_rows
            return stays

        by = writer_of(application_id, writer)
        self._table.rewrite(application_id, low, high, change, writer=by)
        return dropped

    def tidy(self) -> None:
        """Drop files and log entries that are no longer part of the table."""
        self._table.tidy()


@contextmanager
def points_locked(
    warehouse: Warehouse, application_id: str, *, purpose: str, wait_s: float
) -> Iterator[LockHandle]:
    """Hold the lock under which points of an application are taken, dropped and pinned.

    No earlier holder commits any more: one that was stopped for longer than its lease would store
    a second point with the same number, or drop one that was pinned meanwhile.

    Raises:
        WarehouseLockedError: Another process holds it for longer than `wait_s` seconds.
        WarehouseError: The warehouse cannot be read or written.
    """
    path = warehouse.lock_file(f"recorder/{application_id}")
    with warehouse_lock(path, purpose=purpose, wait_s=wait_s) as lock:
        if warehouse.notes_in is None:  # else these tables are only read, and the lock is another
            fence_tables(
                (
                    RecoveryPointTable(warehouse).table,
                    SavedRecordsTable(warehouse).table,
                    PinsTable(warehouse).table,
                ),
                Writer(application_id, lock),
            )
        yield lock


def chosen(rows: pa.Table, cuts: Mapping[TopicPartitionId, PartitionCut]) -> pa.Table:
    """Of saved records those that belong to these cuts, each once, in order."""
    inside = OffsetRanges.of_cuts(cuts.values()).mask(rows)
    return _each_once(rows.filter(pa.array(inside)))


def by_partition(saved: pa.Table) -> dict[TopicPartitionId, pa.Table]:
    """Saved records, which come by topic, partition and offset, cut into partitions."""
    if saved.num_rows == 0:
        return {}
    saved = saved.combine_chunks()
    topics = saved["topic"].combine_chunks().dictionary_encode().indices.to_numpy()
    partitions = saved["partition"].to_numpy()
    changes = (topics[1:] != topics[:-1]) | (partitions[1:] != partitions[:-1])
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), saved.num_rows]
    found = {}
    for start, end in pairwise(starts):
        rows = saved.slice(start, end - start)
        found[TopicPartitionId(rows["topic"][0].as_py(), rows["partition"][0].as_py())] = rows
    return found


def _near(cuts: Iterable[PartitionCut]) -> pc.Expression:
    """A coarse filter, one range of offsets per topic, by which files are skipped."""
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
    """In order; what a later point had to read again (an excluded range, decided) only once."""
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
    """A digest of one record and where it belongs: of the text that Python writes for its parts."""
    text = ascii((partition.topic, partition.partition, *record))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _require_unchanged(rows: pa.Table) -> None:
    """Rows of earlier releases have no digest: nothing is known of them."""
    for source, _, offset, point_id in _changed(rows):
        raise StoredDataError(
            subject=f"Offset {offset} of {source}, saved with recovery point {point_id},",
            problem="it does not match the digest that was noted when it was saved",
            remedy="Bring the table recovery_point_records back from a copy of the warehouse,"
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
