"""The table of recovery points."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.app.model import TopicRole
from kstreams_assets.errors import StoredDataError
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.recovery.offset_ranges import OffsetRanges
from kstreams_assets.recovery.point import (
    GroupOffset,
    Guarantee,
    Method,
    PartitionCut,
    RecoveryPoint,
    in_force,
    in_order,
)
from kstreams_assets.warehouse.control_table import ControlTable, StoredFile, one_of
from kstreams_assets.warehouse.digest import value_digest
from kstreams_assets.warehouse.layout import Warehouse

CHANGED = "its row does not match the digest that was noted when it was taken"
"""What is wrong with a point that is `damaged`."""

SCHEMA = pa.schema(
    [
        pa.field("application_id", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("cluster_id", pa.string(), nullable=False),
        pa.field("taken_at_ms", pa.int64(), nullable=False),
        pa.field("closes_window_end_ms", pa.int64()),
        pa.field("method", pa.string(), nullable=False),
        pa.field("guarantee", pa.string(), nullable=False),
        pa.field("sealed", pa.bool_(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("took_ms", pa.int64(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("in_flight", pa.int64(), nullable=False),
        pa.field("unsealed_because", pa.string(), nullable=False),
        pa.field("absent_topics", pa.list_(pa.string())),
        pa.field(
            "partitions",
            pa.list_(
                pa.struct(
                    [
                        ("topic", pa.string()),
                        ("partition", pa.int32()),
                        ("topic_id", pa.string()),
                        ("log_start", pa.int64()),
                        ("end", pa.int64()),
                        ("roles", pa.list_(pa.string())),
                        (
                            "excluded",
                            pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64())])),
                        ),
                        ("saved_from", pa.int64()),
                        ("leader_epoch", pa.int32()),
                    ]
                )
            ),
        ),
        pa.field(
            "group_offsets",
            pa.list_(
                pa.struct(
                    [
                        ("topic", pa.string()),
                        ("partition", pa.int32()),
                        ("offset", pa.int64()),
                        ("metadata", pa.string()),
                    ]
                )
            ),
        ),
        pa.field("sequence", pa.int64()),
        pa.field("ledger_version", pa.int64()),
        pa.field("undeclared_topics", pa.list_(pa.string())),
        pa.field("cut_guarantee", pa.string()),
        pa.field("digest", pa.string()),
        pa.field("saved_version", pa.int64()),
    ]
)


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
        self._table = ControlTable(
            path,
            SCHEMA,
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
        rows = [row_of(point) for point in points]
        self._table.append([{**row, "digest": value_digest(row)} for row in rows])

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
        rows = self._table.read(application_id=application_id, where=wanted).to_pylist()
        points = sorted((_point(row) for row in rows), key=in_order)
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
            found = self._by_sequence.read_newest(application_id, wanted).to_pylist()
            if len(found) < wanted:  # points of earlier releases have no sequence
                found += self._table.read_newest(application_id, wanted).to_pylist()
            rows = {row["id"]: row for row in found}
            points = sorted(map(_point, rows.values()), key=in_order, reverse=True)
            sound = [point for point in points if damaged_too or not point.damaged]
            if len(sound) >= count or len(rows) < wanted:
                return sound[:count]
            wanted *= 2

    def newest_sealed(self, application_id: str) -> RecoveryPoint | None:
        """The newest point that is sealed, None without one."""
        sealed = [i for i in self.instants(application_id) if i.sealed]
        for newest in sorted(sealed, key=in_order, reverse=True):
            where = (pc.field("taken_at_ms") == newest.taken_at_ms) & (pc.field("id") == newest.id)
            rows = self._table.read(application_id=application_id, where=where).to_pylist()
            for point in map(_point, rows):
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
    """A point as plain values, in the columns of `SCHEMA`."""
    return {
        "application_id": point.application_id,
        "id": point.id,
        "cluster_id": point.cluster_id,
        "taken_at_ms": point.taken_at_ms,
        "closes_window_end_ms": point.closes_window_end_ms,
        "method": point.method.value,
        "guarantee": point.guarantee.value,
        "sealed": point.sealed,
        "reason": point.reason,
        "took_ms": point.took_ms,
        "attempts": point.attempts,
        "in_flight": point.in_flight,
        "unsealed_because": point.unsealed_because,
        "absent_topics": list(point.absent_topics),
        "partitions": [
            {
                "topic": cut.topic,
                "partition": cut.partition,
                "topic_id": cut.topic_id,
                "log_start": cut.log_start,
                "end": cut.end,
                "roles": sorted(role.value for role in cut.roles),
                "excluded": [{"start": bad.start, "end": bad.end} for bad in cut.excluded],
                "saved_from": cut.saved_from,
                "leader_epoch": cut.leader_epoch,
            }
            for cut in point.partitions
        ],
        "group_offsets": [
            {
                "topic": offset.topic,
                "partition": offset.partition,
                "offset": offset.offset,
                "metadata": offset.metadata,
            }
            for offset in point.group_offsets
        ],
        "sequence": point.sequence,
        "ledger_version": point.ledger_version,
        "undeclared_topics": (
            None if point.undeclared_topics is None else list(point.undeclared_topics)
        ),
        "cut_guarantee": None if point.cut_guarantee is None else point.cut_guarantee.value,
        "saved_version": point.saved_version,
    }


def _point(row: dict[str, Any]) -> RecoveryPoint:
    return RecoveryPoint(
        id=row["id"],
        application_id=row["application_id"],
        cluster_id=row["cluster_id"],
        taken_at_ms=row["taken_at_ms"],
        method=Method(row["method"]),
        guarantee=Guarantee(row["guarantee"]),
        reason=row["reason"],
        took_ms=row["took_ms"],
        attempts=row["attempts"],
        in_flight=row["in_flight"],
        sequence=row["sequence"],
        ledger_version=row["ledger_version"],
        unsealed_because=row["unsealed_because"],
        partitions=tuple(_cut(cut) for cut in row["partitions"]),
        group_offsets=tuple(GroupOffset(**offset) for offset in row["group_offsets"]),
        closes_window_end_ms=row["closes_window_end_ms"],
        sealed=row["sealed"],
        absent_topics=tuple(row["absent_topics"] or ()),
        undeclared_topics=(
            None if row["undeclared_topics"] is None else tuple(row["undeclared_topics"])
        ),
        cut_guarantee=None if row["cut_guarantee"] is None else Guarantee(row["cut_guarantee"]),
        saved_version=row["saved_version"],
        damaged=_is_damaged(row),
    )


def _is_damaged(row: Mapping[str, Any]) -> bool:
    """Whether a row is not the one that was written; rows of earlier releases have no digest."""
    digest = row["digest"]
    noted = {name: value for name, value in row.items() if name != "digest"}
    return digest is not None and digest != value_digest(noted)


def _cut(row: dict[str, Any]) -> PartitionCut:
    return PartitionCut(
        topic=row["topic"],
        partition=row["partition"],
        topic_id=row["topic_id"],
        log_start=row["log_start"],
        end=row["end"],
        roles=frozenset(TopicRole(role) for role in row["roles"] or ()),
        excluded=tuple(OffsetRange(bad["start"], bad["end"]) for bad in row["excluded"] or ()),
        saved_from=row["saved_from"],
        leader_epoch=row["leader_epoch"],
    )
