"""Rows of the ledger -> what they say about restores; many rows, so column by column."""

from collections.abc import Collection
from dataclasses import replace

import pyarrow as pa

from kstreams_assets.backup.chains import StoredSpan
from kstreams_assets.backup.damage import NOTHING_DAMAGED, DamagedSpans
from kstreams_assets.backup.plan import UNKNOWN, GapCause
from kstreams_assets.backup.windows import Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.point import taken_at_of
from kstreams_assets.warehouse.control_table import one_of

_VALUES = [
    "window",
    "window_start_ms",
    "window_end_ms",
    "topic",
    "partition",
    "topic_id",
    "start",
    "end",
    "read_start",
    "continues",
    "log_start",
    "first_hole",
    "contiguity_known",
    "recorded_at_ms",
    "ledger_version",
    "recovery_point_id",
]
COLUMNS = [*_VALUES, "gaps"]
"""The columns of the ledger that `spans_of` needs."""
_VANISHED = frozenset({GapCause.TOPIC_DELETED, GapCause.TOPIC_RECREATED, GapCause.LOG_TRUNCATED})
"""With these the point that closes the window may not have seen the span's end."""


def spans_of(rows: pa.Table, damaged: DamagedSpans = NOTHING_DAMAGED) -> list[StoredSpan]:
    """The rows as spans; of those that are damaged nothing counts as stored."""
    complete = [True] * rows.num_rows
    for index in rows_with_gap(rows, UNKNOWN):
        complete[index] = False
    seen_at_end = [True] * rows.num_rows
    for index in rows_with_gap(rows, _VANISHED):
        seen_at_end[index] = False
    columns = [rows.column(name).to_pylist() for name in _VALUES]
    spans = list(map(_span, complete, seen_at_end, *columns)) if rows.num_rows else []
    if not damaged:
        return spans
    return [
        replace(span, complete=span.complete and not _is_damaged(span, damaged)) for span in spans
    ]


def _is_damaged(span: StoredSpan, damaged: DamagedSpans) -> bool:
    life = (span.partition.topic, span.partition.partition, span.topic_id)
    found = damaged.inside(life, span.start, span.end)
    return found is not None and found.window == span.window.key


def _span(
    complete: bool,
    seen_at_end: bool,
    window: str,
    window_start_ms: int,
    window_end_ms: int,
    topic: str,
    partition: int,
    topic_id: str,
    start: int,
    end: int,
    read_start: int,
    continues: bool,
    log_start: int,
    first_hole: int | None,
    contiguity_known: bool | None,
    recorded_at_ms: int,
    ledger_version: int | None,
    recovery_point_id: str | None,
) -> StoredSpan:
    closed_at_ms = taken_at_of(recovery_point_id) if recovery_point_id and seen_at_end else None
    if closed_at_ms is not None and closed_at_ms > recorded_at_ms:
        closed_at_ms = None  # a clock was wrong
    return StoredSpan(
        window=Window(window_start_ms, window_end_ms, window),
        partition=TopicPartitionId(topic, partition),
        topic_id=topic_id,
        start=start,
        end=end,
        read_start=read_start,
        continues=continues,
        complete=complete,
        log_start=log_start,
        first_hole=first_hole if contiguity_known or start == end else start,
        recorded_at_ms=recorded_at_ms,
        ledger_version=ledger_version,
        closed_at_ms=closed_at_ms,
    )


def rows_with_gap(rows: pa.Table, causes: Collection[GapCause]) -> list[int]:
    """Numbers of the rows that lack records for one of these causes, without objects of gaps."""
    gaps = rows.column("gaps").combine_chunks()
    rows_of = pa.table({"row": gaps.value_parent_indices(), "cause": gaps.flatten().field("cause")})
    found = rows_of.filter(one_of("cause", [cause.value for cause in causes]))
    return found.column("row").to_pylist()
