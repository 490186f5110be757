"""The ledger: the table `windows`, one row for each window and partition that is backed up."""

import inspect
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from kstreams_assets.backup.chains import StoredSpan, folded
from kstreams_assets.backup.content import file_actions
from kstreams_assets.backup.damage import COLUMNS as DAMAGE_COLUMNS
from kstreams_assets.backup.damage import (
    NOTHING_DAMAGED,
    Comparison,
    DamagedSpans,
    damaged_spans,
)
from kstreams_assets.backup.plan import UNKNOWN, GapCause, SpanPlan
from kstreams_assets.backup.result import SpanContent, SpanResult, TopicBackup
from kstreams_assets.backup.windows import Position, RecordedSpan, Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.point import taken_at_of
from kstreams_assets.warehouse.column import ApplicationId, Column, RunId
from kstreams_assets.warehouse.delta import LogState, log_state
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.predicate import WindowTopic, sql_string, windows_and_topics
from kstreams_assets.warehouse.rows import rows_of
from kstreams_assets.warehouse.table import Table, one_of

_comparisons: dict[Path, tuple[tuple[LogState, LogState], Comparison]] = {}
"""By records table, how it compared with the ledger when both were in this state."""

_VANISHED = frozenset({GapCause.TOPIC_DELETED, GapCause.TOPIC_RECREATED, GapCause.LOG_TRUNCATED})
"""With these the point that closes the window may not have seen the span's end."""

_NO_PARTITION = -1
"""A topic that had no partition when the window closed has one row: it says the window is done."""


RecordedTopic = tuple[Window, str]
"""A window and the name of a topic."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One row of the ledger."""

    application_id: ApplicationId
    result: SpanResult
    recovery_point_id: Annotated[str | None, Column("The recovery point that ends the window.")]
    delta_version: Annotated[
        int | None, Column("Version of the records table that holds the span.")
    ]
    run_id: RunId
    recorded_at_ms: Annotated[int, Column("When the row was written, epoch milliseconds.")]
    ledger_version: Annotated[
        int | None,
        Column("Version of this table when the span had been read; null: not known."),
    ]

    @property
    def has_span(self) -> bool:
        """False where the row only says that the window is done: the topic had no partition."""
        return self.result.partition.partition != _NO_PARTITION


@dataclass(frozen=True, slots=True)
class _First(RecordedSpan):
    """As much of a row, with the log start offset of its plan."""

    log_start: int


@dataclass(slots=True)  # there are many, and those that are frozen take thrice as long to make
class _Done:
    """A topic in a window."""

    window: Window
    topic: str


@dataclass(slots=True)
class _Closed(_Done):
    """The same, and the recovery point that ends the window."""

    recovery_point_id: str | None


@dataclass(frozen=True, slots=True)
class _FoldedFile:
    """What one file of the ledger says, neighbouring spans put together."""

    holes_matter: frozenset[str]

    def __call__(self, rows: pa.Table) -> list[StoredSpan]:
        return folded(spans_of(rows), holes_matter=self.holes_matter)


_ROWS = rows_of(LedgerEntry)


class Ledger:
    """What is backed up, of one application.

    The rows follow the data: a window whose data is there without rows is written again.
    """

    def __init__(self, warehouse: Warehouse, application_id: str) -> None:
        self._table = Table(
            warehouse.control("windows"),
            LedgerEntry,
            grows_along="window_start_ms",
            statistics=("window", "window_start_ms", "window_end_ms", "topic", "recovery_point_id"),
        )
        self._application_id = application_id
        self._records = warehouse.records(application_id)

    def recorded_spans(
        self, windows: Sequence[Window], topics: Collection[str]
    ) -> list[RecordedSpan]:
        """The spans whose edges bear on these windows: theirs, and the nearest on either side."""
        rows = self.span_rows(topics, columns=_ROWS.names(RecordedSpan))
        if rows.num_rows == 0 or not windows:
            return []
        low = min(window.start_ms for window in windows)
        high = max(window.end_ms for window in windows)
        near = _nearest(rows, "window_end_ms", low, before=True)
        far = _nearest(rows, "window_start_ms", high, before=False)
        inside = rows.filter(
            (pc.field("window_end_ms") > low) & (pc.field("window_start_ms") < high)
        )
        chosen = pa.concat_tables([near, inside, far], promote_options="permissive")
        return _ROWS.read_part(RecordedSpan, chosen)

    def first_spans_cut_short(
        self, topics: Collection[str], *, begins_ms: int
    ) -> Mapping[TopicPartitionId, Position]:
        """Where the backups of partitions begin, if the first window passed over offsets below.

        Earlier releases let the first window (of the schedule, which begins at `begins_ms`) begin
        where an older recovery point stood. Partitions without such an edge are left out.
        """
        where = _chosen(None, topics) & (pc.field("window_start_ms") <= begins_ms)
        rows = self._table.read(
            application_id=self._application_id, columns=_ROWS.names(_First), where=where
        )
        first = _ROWS.read_part(_First, _nearest(rows, "window_start_ms", 0, before=False))
        return {
            span.partition: Position(span.topic_id, span.start)
            for span in first
            if span.continues and span.log_start < span.start
        }

    def done(self, topics: Collection[str]) -> dict[Window, set[str]]:
        """Windows that are recorded, with their topics among these."""
        where = one_of("topic", topics)
        return _topics_by_window(
            self._table.rows_as(_Done, self._application_id, where, distinct=True)
        )

    def not_examined(self, topics: Collection[str]) -> dict[Window, set[str]]:
        """Windows with topics of which the log could not be looked at in time."""
        rows = self.span_rows(topics, columns=[*_ROWS.names(_Done), "gaps"])
        found = pa.array(rows_with_gap(rows, {GapCause.NOT_EXAMINED}), pa.int64())
        return _topics_by_window(_ROWS.read_part(_Done, rows.take(found)))

    def closing_points(self, topics: Collection[str]) -> dict[str, dict[Window, str | None]]:
        """Of each topic, the recovery point (id) that bounds each recorded window."""
        found: dict[str, dict[Window, str | None]] = {}
        where = one_of("topic", topics)
        for row in self._table.rows_as(_Closed, self._application_id, where, distinct=True):
            found.setdefault(row.topic, {})[row.window] = row.recovery_point_id
        return found

    def newest_by_run(self, count: int) -> dict[str, set[tuple[str, str]]]:
        """The newest windows (key, topic), `count` of them, by the run that recorded them."""
        keys = ["window_start_ms", "window", "topic", "run_id"]
        rows = self._table.read(application_id=self._application_id, columns=keys)
        rows = rows.group_by(keys).aggregate([])
        newest = sorted(set(rows["window_start_ms"].to_pylist()))[-count:]
        found: dict[str, set[tuple[str, str]]] = {}
        for row in rows.filter(pc.field("window_start_ms").isin(newest)).to_pylist():
            found.setdefault(row["run_id"], set()).add((row["window"], row["topic"]))
        return found

    def closing_point_ids(self) -> set[str]:
        """Ids of the points that recorded windows end with."""
        rows = self._table.read(
            application_id=self._application_id,
            columns=["recovery_point_id"],
            where=pc.field("recovery_point_id").is_valid(),
        )
        return set(rows["recovery_point_id"].unique().to_pylist())

    def stored_spans(self, topics: Collection[str]) -> list[StoredSpan]:
        """Every span of these topics, as far as it says what could be restored from it.

        Each is compared with the records table, see `damaged_spans`.

        Raises:
            WarehouseError: The records table cannot be read.
        """
        rows = self.span_rows(topics, columns=[*dict.fromkeys([*COLUMNS, *DAMAGE_COLUMNS])])
        actions = file_actions(self._records)
        return spans_of(rows, damaged_spans(self._records, rows, actions))

    def damaged(
        self,
        topics: Collection[str] | None = None,
        *,
        windows: Collection[str] | None = None,
        look_s: float = math.inf,
    ) -> DamagedSpans:
        """The spans whose files do not match the ledger, see `damaged_spans`.

        The files themselves are looked at for `look_s` seconds at most, beginning where the last
        call in this process stopped: with 0 not at all, by default all of them. Ledger and log are
        only compared again when one of them changed.

        Args:
            topics: Only spans of these.
            windows: Only spans of these; ledger and log are compared anew.
            look_s: See above.

        Raises:
            WarehouseError: The records table cannot be read.
        """
        compared = self._compared() if windows is None else self._compare(_chosen(windows, topics))
        compared.look_at_files(look_s)
        return compared.damaged(topics)

    def _compared(self) -> Comparison:
        # Looked at before the tables are read: what changes meanwhile is seen by the next call.
        state = log_state(self._table.path), log_state(self._records)
        known, earlier = _comparisons.get(self._records, (None, None))
        if earlier is not None and known == state:
            return earlier
        compared = self._compare(_chosen(None, None), earlier)
        _comparisons[self._records] = (state, compared)
        return compared

    def _compare(self, where: ds.Expression, earlier: Comparison | None = None) -> Comparison:
        rows = self._table.read(
            application_id=self._application_id, columns=DAMAGE_COLUMNS, where=where
        )
        return Comparison(self._records, rows, file_actions(self._records), earlier)

    def folded_spans(
        self, topics: Collection[str], *, holes_matter: Collection[str]
    ) -> list[StoredSpan]:
        """As `stored_spans`, neighbouring spans put together (see `chains.folded`), not compared.

        What a file of the table says is remembered in this process, and files never change: a later
        call reads what was added since.
        """
        matter = frozenset(holes_matter)
        files = self._table.fold(
            self._application_id, COLUMNS, _FoldedFile(matter), where=pc.field("partition") >= 0
        )
        wanted = set(topics)
        spans = (span for file in files for span in file if span.partition.topic in wanted)
        return folded(spans, holes_matter=matter)

    def span_rows(self, topics: Collection[str], *, columns: Sequence[str]) -> pa.Table:
        """These columns of every span of these topics."""
        return self._table.read(
            application_id=self._application_id, columns=columns, where=_chosen(None, topics)
        )

    def entries(
        self, *, windows: Collection[str] | None = None, topics: Collection[str] | None = None
    ) -> list[LedgerEntry]:
        """Whole rows, ordered by window, topic and partition."""
        entries = self._table.rows(self._application_id, _chosen(windows, topics))
        return sorted(entries, key=lambda e: (e.result.plan.window, e.result.partition))

    def of_run(self, run_id: str) -> Mapping[RecordedTopic, tuple[LedgerEntry, ...]]:
        """What is still as a run recorded it; see `LedgerEntry.has_span`."""
        found: dict[RecordedTopic, list[LedgerEntry]] = {}
        entries = self._table.rows(self._application_id, pc.field("run_id") == run_id)
        for entry in sorted(entries, key=lambda e: (e.result.plan.window, e.result.partition)):
            key = entry.result.plan.window, entry.result.partition.topic
            found.setdefault(key, []).append(entry)
        return {key: tuple(entries) for key, entries in found.items()}

    def record(self, backups: Sequence[TopicBackup], *, run_id: str) -> None:
        """Put the rows of these windows and topics in place of earlier ones, in one commit."""
        if not backups:
            return
        version = self._table.version()
        rows = [
            LedgerEntry(
                application_id=self._application_id,
                result=span,
                recovery_point_id=backup.recovery_point_id,
                delta_version=backup.delta_version,
                run_id=run_id,
                recorded_at_ms=time.time_ns() // 1_000_000,
                ledger_version=version,
            )
            for backup in backups
            for span in backup.spans or (_no_span(backup),)
        ]
        pairs = windows_and_topics(WindowTopic(b.window.key, b.topic) for b in backups)
        application = sql_string(self._application_id)
        # The range lets the writer skip files, which a long list of windows does not.
        starts_ms = [backup.window.start_ms for backup in backups]
        self._table.replace(
            rows,
            where=f"application_id = {application} AND window_start_ms >= {min(starts_ms)}"
            f" AND window_start_ms <= {max(starts_ms)} AND ({pairs})",
        )

    def version(self) -> int:
        """The version of the ledger; it grows with each change."""
        return self._table.version()


def _chosen(windows: Collection[str] | None, topics: Collection[str] | None) -> pc.Expression:
    where = pc.field("partition") >= 0
    if windows is not None:
        where &= one_of("window", windows)
    if topics is not None:
        where &= one_of("topic", topics)
    return where


def _no_span(backup: TopicBackup) -> SpanResult:
    plan = SpanPlan(
        window=backup.window,
        partition=TopicPartitionId(backup.topic, _NO_PARTITION),
        topic_id="",
        start=0,
        end=0,
        read_start=0,
        continues=False,
    )
    return SpanResult(plan, SpanContent(), ())


def _nearest(rows: pa.Table, column: str, edge_ms: int, *, before: bool) -> pa.Table:
    """Of each partition, the rows of the window nearest to an edge on one side of it."""
    side = rows.filter(pc.field(column) <= edge_ms if before else pc.field(column) >= edge_ms)
    extreme = side.group_by(["topic", "partition"]).aggregate(
        [(column, "max" if before else "min")]
    )
    extreme = extreme.rename_columns(["topic", "partition", column])
    return side.join(extreme, ["topic", "partition", column], join_type="left semi")


def _topics_by_window(found: Iterable[_Done]) -> dict[Window, set[str]]:
    topics: dict[Window, set[str]] = {}
    for one in found:
        topics.setdefault(one.window, set()).add(one.topic)
    return topics


def spans_of(rows: pa.Table, damaged: DamagedSpans = NOTHING_DAMAGED) -> list[StoredSpan]:
    """The rows as spans; of those that are damaged nothing counts as stored."""
    complete = [True] * rows.num_rows
    for index in rows_with_gap(rows, UNKNOWN):
        complete[index] = False
    seen_at_end = [True] * rows.num_rows
    for index in rows_with_gap(rows, _VANISHED):
        seen_at_end[index] = False
    columns = [rows.column(name).to_pylist() for name in COLUMNS[:-1]]
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
    by_row = pa.table({"row": gaps.value_parent_indices(), "cause": gaps.flatten().field("cause")})
    found = by_row.filter(one_of("cause", [cause.value for cause in causes]))
    return found.column("row").to_pylist()


COLUMNS = [*[*inspect.signature(_span).parameters][2:], "gaps"]
"""The columns that `spans_of` needs."""
