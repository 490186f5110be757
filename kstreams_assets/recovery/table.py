"""The table of recovery points."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.errors import StoredDataError
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.offset_ranges import OffsetRanges
from kstreams_assets.recovery.point import Guarantee, RecoveryPoint, in_force, in_order
from kstreams_assets.warehouse.digest import value_digest
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.rows import plain_columns, rows_of
from kstreams_assets.warehouse.table import StoredFile, Table, one_of

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

    @property
    def ended_at_ms(self) -> int:
        """See `RecoveryPoint.ended_at_ms`."""
        return self.taken_at_ms + self.took_ms

    @property
    def closes_window(self) -> bool:
        """Whether it was taken late, on behalf of a window that had closed without one."""
        return self.effective_at_ms != self.taken_at_ms


_INSTANT = [
    "id",
    "taken_at_ms",
    "closes_window_end_ms",
    "sealed",
    "guarantee",
    "took_ms",
    "sequence",
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

    def append(self, point: RecoveryPoint) -> None:
        """Store a point."""
        self.append_many([point])

    def append_many(self, points: Iterable[RecoveryPoint]) -> None:
        """Store points in one commit."""
        self._table.append([replace(point, digest=value_digest(row_of(point))) for point in points])

    def instants(self, application_id: str) -> list[PointInstant]:
        """When each point of the application counts, oldest first."""
        rows = self._table.read(application_id=application_id, columns=_INSTANT).to_pydict()
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
            )
            for point_id, taken_at_ms, closes_ms, sealed, guarantee, took_ms, sequence in zip(
                *(rows[name] for name in _INSTANT), strict=True
            )
        ]
        # The id decides between equals, so that their order in the files never does.
        return sorted(instants, key=lambda i: (i.effective_at_ms, i.taken_at_ms, i.id))

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
        # The range lets the reader skip files and row groups, which a list of values does not.
        wanted = one_of("id", names) & (pc.field("id") >= names[0]) & (pc.field("id") <= names[-1])
        rows = self._table.read(application_id=application_id, where=wanted)
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

    def newest_sealed(self, application_id: str) -> RecoveryPoint | None:
        """The newest point that is sealed, None without one."""
        sealed = [i for i in self.instants(application_id) if i.sealed]
        for newest in sorted(sealed, key=in_order, reverse=True):
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

    def files(self, application_id: str) -> list[StoredFile]:
        """The files of an application by the times at which their points were taken."""
        return self._table.files(application_id)

    def drop(self, application_id: str, low_ms: int, high_ms: int, ids: Collection[str]) -> None:
        """Put the files of points taken in `[low_ms, high_ms]` together, without these points."""

        def change(rows: pa.Table) -> pa.Table:
            stays = rows.filter(~one_of("id", ids)) if ids else rows
            return stays.sort_by([("taken_at_ms", "ascending"), ("id", "ascending")])

        self._table.rewrite(application_id, low_ms, high_ms, change)

    def tidy(self) -> None:
        """Drop files and log entries that are no longer part of the table."""
        self._table.tidy()


def at_edges(instants: Sequence[PointInstant], edges_ms: Iterable[int]) -> set[str]:
    """Ids of the points that windows with these edges need: the last one before each edge."""
    ordered = in_force(instants)
    effective = [instant.effective_at_ms for instant in ordered]
    before = {bisect_left(effective, edge) for edge in edges_ms}
    return {ordered[index - 1].id for index in before if index}


def row_of(point: RecoveryPoint) -> dict[str, Any]:
    """A point as plain values by column, without the digest, which is of these."""
    row = rows_of(RecoveryPoint).plain(point)
    del row["digest"]
    return row


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
