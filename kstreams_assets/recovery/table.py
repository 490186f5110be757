"""The table of recovery points."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kstreams_assets.recovery.point import (
    GroupOffset,
    Guarantee,
    Method,
    PartitionCut,
    RecoveryPoint,
    in_force,
)
from kstreams_assets.warehouse.control_table import ControlTable, one_of
from kstreams_assets.warehouse.layout import Warehouse

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
    ]
)


@dataclass(frozen=True, slots=True)
class PointInstant:
    """When a point counts: enough to choose among many without reading their positions."""

    id: str
    taken_at_ms: int
    effective_at_ms: int


class RecoveryPointTable:
    """Recovery points of all applications, one row each."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = ControlTable(warehouse.control("recovery_points"), SCHEMA)

    def append(self, point: RecoveryPoint) -> None:
        """Store a point."""
        self._table.append([row_of(point)])

    def instants(self, application_id: str) -> list[PointInstant]:
        """When each point of the application counts, oldest first."""
        columns = ["id", "taken_at_ms", "closes_window_end_ms"]
        rows = self._table.read(application_id=application_id, columns=columns).to_pylist()
        instants = [
            PointInstant(
                id=row["id"],
                taken_at_ms=row["taken_at_ms"],
                effective_at_ms=row["taken_at_ms"]
                if row["closes_window_end_ms"] is None
                else row["closes_window_end_ms"] - 1,
            )
            for row in rows
        ]
        return sorted(instants, key=lambda i: (i.effective_at_ms, i.taken_at_ms))

    def load(self, application_id: str, ids: Iterable[str]) -> list[RecoveryPoint]:
        """The points with these ids, oldest first."""
        wanted = one_of("id", ids)
        rows = self._table.read(application_id=application_id, where=wanted).to_pylist()
        return sorted((_point(row) for row in rows), key=lambda p: p.taken_at_ms)

    def newest(self, application_id: str, count: int = 1) -> list[RecoveryPoint]:
        """The newest points, newest first."""
        instants = sorted(self.instants(application_id), key=lambda i: i.taken_at_ms)
        return self.load(application_id, [i.id for i in instants[-count:]])[::-1]


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
        "absent_topics": list(point.absent_topics),
        "partitions": [
            {
                "topic": cut.topic,
                "partition": cut.partition,
                "topic_id": cut.topic_id,
                "log_start": cut.log_start,
                "end": cut.end,
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
        partitions=tuple(PartitionCut(**cut) for cut in row["partitions"]),
        group_offsets=tuple(GroupOffset(**offset) for offset in row["group_offsets"]),
        closes_window_end_ms=row["closes_window_end_ms"],
        sealed=row["sealed"],
        absent_topics=tuple(row["absent_topics"] or ()),
    )
