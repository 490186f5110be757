"""The ledger: the table `windows`, one row for each window and partition that is backed up."""

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from kstreams_assets.backup.chains import StoredSpan, folded
from kstreams_assets.backup.content import file_actions
from kstreams_assets.backup.damage import COLUMNS as DAMAGE_COLUMNS
from kstreams_assets.backup.damage import Comparison, DamagedSpans, damaged_spans
from kstreams_assets.backup.plan import Gap, GapCause, SpanPlan
from kstreams_assets.backup.result import SpanContent, SpanResult, TopicBackup
from kstreams_assets.backup.stored_spans import COLUMNS, rows_with_gap, spans_of
from kstreams_assets.backup.windows import Position, RecordedSpan, Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.warehouse.control_table import ControlTable, one_of
from kstreams_assets.warehouse.delta import LogState, log_state
from kstreams_assets.warehouse.digest import WRITTEN_FILES, files_in
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.predicate import WindowTopic, sql_string, windows_and_topics

_GAP = pa.struct(
    [
        ("cause", pa.string()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("offsets", pa.int64()),
    ]
)

SCHEMA = pa.schema(
    [
        pa.field("application_id", pa.string(), nullable=False),
        pa.field("window", pa.string(), nullable=False),
        pa.field("window_start_ms", pa.int64(), nullable=False),
        pa.field("window_end_ms", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("read_start", pa.int64(), nullable=False),
        pa.field("continues", pa.bool_(), nullable=False),
        pa.field("log_start", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("stored_bytes", pa.int64(), nullable=False),
        pa.field("files", pa.int32(), nullable=False),
        pa.field("tombstones", pa.int64(), nullable=False),
        pa.field("null_keys", pa.int64(), nullable=False),
        pa.field("odd_timestamps", pa.int64(), nullable=False),
        pa.field("first_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("min_timestamp_ms", pa.int64()),
        pa.field("max_timestamp_ms", pa.int64()),
        pa.field("gaps", pa.list_(_GAP)),
        pa.field("first_hole", pa.int64()),
        pa.field("contiguity_known", pa.bool_()),
        pa.field("recovery_point_id", pa.string()),
        pa.field("delta_version", pa.int64()),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("recorded_at_ms", pa.int64(), nullable=False),
        pa.field("ledger_version", pa.int64()),
        pa.field("written", WRITTEN_FILES),
    ]
)

_EDGE_COLUMNS = [
    "window",
    "window_start_ms",
    "window_end_ms",
    "topic",
    "partition",
    "topic_id",
    "start",
    "end",
    "continues",
]


_comparisons: dict[Path, tuple[tuple[LogState, LogState], Comparison]] = {}
"""By records table, how it compared with the ledger when both were in this state."""

_NO_PARTITION = -1
"""A topic that had no partition when the window closed has one row: it says the window is done."""


RecordedTopic = tuple[Window, str]
"""A window and the name of a topic."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One row of the ledger."""

    result: SpanResult
    recovery_point_id: str | None
    delta_version: int | None
    run_id: str
    recorded_at_ms: int

    @property
    def has_span(self) -> bool:
        """False where the row only says that the window is done: the topic had no partition."""
        return self.result.partition.partition != _NO_PARTITION


@dataclass(frozen=True, slots=True)
class _FoldedFile:
    """What one file of the ledger says, neighbouring spans put together."""

    holes_matter: frozenset[str]

    def __call__(self, rows: pa.Table) -> list[StoredSpan]:
        return folded(spans_of(rows), holes_matter=self.holes_matter)


class Ledger:
    """What is backed up, of one application.

    The rows follow the data: a window whose data is there without rows is written again.
    """

    def __init__(self, warehouse: Warehouse, application_id: str) -> None:
        self._table = ControlTable(
            warehouse.control("windows"),
            SCHEMA,
            grows_along="window_start_ms",
            statistics=("window", "window_start_ms", "window_end_ms", "topic", "recovery_point_id"),
        )
        self._application_id = application_id
        self._records = warehouse.records(application_id)

    def recorded_spans(
        self, windows: Sequence[Window], topics: Iterable[str]
    ) -> list[RecordedSpan]:
        """The spans whose edges bear on these windows: theirs, and the nearest on either side."""
        rows = self._table.read(
            application_id=self._application_id,
            columns=_EDGE_COLUMNS,
            where=one_of("topic", topics) & (pc.field("partition") >= 0),
        )
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
        return [_recorded(row) for row in chosen.to_pylist()]

    def first_spans_cut_short(
        self, topics: Iterable[str], *, begins_ms: int
    ) -> Mapping[TopicPartitionId, Position]:
        """Where the backups of partitions begin, if the first window passed over offsets below.

        Earlier releases let the first window (of the schedule, which begins at `begins_ms`) begin
        where an older recovery point stood. Partitions without such an edge are left out.
        """
        rows = self._table.read(
            application_id=self._application_id,
            columns=[*_EDGE_COLUMNS, "log_start"],
            where=one_of("topic", topics)
            & (pc.field("partition") >= 0)
            & (pc.field("window_start_ms") <= begins_ms),
        ).to_pylist()
        first: dict[TopicPartitionId, dict[str, Any]] = {}
        for row in sorted(rows, key=itemgetter("window_start_ms")):
            first.setdefault(TopicPartitionId(row["topic"], row["partition"]), row)
        return {
            partition: Position(row["topic_id"], row["start"])
            for partition, row in first.items()
            if row["continues"] and row["log_start"] < row["start"]
        }

    def done(self, topics: Collection[str]) -> dict[Window, set[str]]:
        """Windows that are recorded, with their topics among these."""
        rows = self._table.read(
            application_id=self._application_id,
            columns=["window", "window_start_ms", "window_end_ms", "topic"],
            where=one_of("topic", topics),
        )
        done: dict[Window, set[str]] = {}
        keys = ["window", "window_start_ms", "window_end_ms", "topic"]
        for row in rows.group_by(keys).aggregate([]).to_pylist():
            window = Window(row["window_start_ms"], row["window_end_ms"], row["window"])
            done.setdefault(window, set()).add(row["topic"])
        return done

    def not_examined(self, topics: Collection[str]) -> dict[Window, set[str]]:
        """Windows with topics of which the log could not be looked at in time."""
        rows = self.span_rows(topics, columns=[*_EDGE_COLUMNS, "gaps"])
        found: dict[Window, set[str]] = {}
        for index in rows_with_gap(rows, {GapCause.NOT_EXAMINED}):
            (row,) = rows.slice(index, 1).to_pylist()
            found.setdefault(_window(row), set()).add(row["topic"])
        return found

    def closing_points(self, topics: Collection[str]) -> dict[str, dict[Window, str | None]]:
        """Of each topic, the recovery point (id) that bounds each recorded window."""
        keys = ["topic", "window", "window_start_ms", "window_end_ms", "recovery_point_id"]
        rows = self._table.read(
            application_id=self._application_id, columns=keys, where=one_of("topic", topics)
        )
        found: dict[str, dict[Window, str | None]] = {}
        for row in rows.group_by(keys).aggregate([]).to_pylist():
            found.setdefault(row["topic"], {})[_window(row)] = row["recovery_point_id"]
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
            application_id=self._application_id,
            columns=list(columns),
            where=one_of("topic", topics) & (pc.field("partition") >= 0),
        )

    def entries(
        self, *, windows: Collection[str] | None = None, topics: Collection[str] | None = None
    ) -> list[LedgerEntry]:
        """Whole rows, ordered by window, topic and partition."""
        where = _chosen(windows, topics)
        rows = self._table.read(application_id=self._application_id, where=where).to_pylist()
        entries = [_entry(row) for row in rows]
        return sorted(entries, key=lambda e: (e.result.plan.window, e.result.partition))

    def of_run(self, run_id: str) -> Mapping[RecordedTopic, tuple[LedgerEntry, ...]]:
        """What is still as a run recorded it; see `LedgerEntry.has_span`."""
        rows = self._table.read(
            application_id=self._application_id, where=pc.field("run_id") == run_id
        ).to_pylist()
        found: dict[RecordedTopic, list[LedgerEntry]] = {}
        for row in sorted(rows, key=itemgetter("window_start_ms", "topic", "partition")):
            found.setdefault((_window(row), row["topic"]), []).append(_entry(row))
        return {key: tuple(entries) for key, entries in found.items()}

    def record(self, backups: Sequence[TopicBackup], *, run_id: str) -> None:
        """Put the rows of these windows and topics in place of earlier ones, in one commit."""
        if not backups:
            return
        version = self._table.version()
        rows = [
            self._row(backup, span, run_id, version)
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

    def _row(
        self, backup: TopicBackup, span: SpanResult, run_id: str, version: int
    ) -> dict[str, Any]:
        plan, content = span.plan, span.content
        return {
            "application_id": self._application_id,
            "window": plan.window.key,
            "window_start_ms": plan.window.start_ms,
            "window_end_ms": plan.window.end_ms,
            "topic": plan.partition.topic,
            "partition": plan.partition.partition,
            "topic_id": plan.topic_id,
            "start": plan.start,
            "end": plan.end,
            "read_start": plan.read_start,
            "continues": plan.continues,
            "log_start": plan.log_start,
            "records": content.records,
            "bytes": content.bytes,
            "stored_bytes": content.stored_bytes,
            "files": content.files,
            "tombstones": content.tombstones,
            "null_keys": content.null_keys,
            "odd_timestamps": content.odd_timestamps,
            "first_offset": content.first_offset,
            "last_offset": content.last_offset,
            "min_timestamp_ms": content.min_timestamp_ms,
            "max_timestamp_ms": content.max_timestamp_ms,
            "gaps": [
                {"cause": g.cause.value, "start": g.start, "end": g.end, "offsets": g.offsets}
                for g in span.gaps
            ],
            "first_hole": span.first_hole,
            "contiguity_known": span.contiguity_known,
            "recovery_point_id": backup.recovery_point_id,
            "delta_version": backup.delta_version,
            "run_id": run_id,
            "recorded_at_ms": time.time_ns() // 1_000_000,
            "ledger_version": version,
            "written": [file.row() for file in content.written] or None,
        }


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


def _window(row: dict[str, Any]) -> Window:
    return Window(row["window_start_ms"], row["window_end_ms"], row["window"])


def _recorded(row: dict[str, Any]) -> RecordedSpan:
    return RecordedSpan(
        window=_window(row),
        partition=TopicPartitionId(row["topic"], row["partition"]),
        topic_id=row["topic_id"],
        start=row["start"],
        end=row["end"],
        continues=row["continues"],
    )


def _entry(row: dict[str, Any]) -> LedgerEntry:
    gaps = tuple(
        Gap(GapCause(g["cause"]), g["start"], g["end"], g["offsets"]) for g in row["gaps"] or []
    )
    plan = SpanPlan(
        window=_window(row),
        partition=TopicPartitionId(row["topic"], row["partition"]),
        topic_id=row["topic_id"],
        start=row["start"],
        end=row["end"],
        read_start=row["read_start"],
        continues=row["continues"],
        gaps=gaps,
        log_start=row["log_start"],
    )
    content = SpanContent(
        **{name: row[name] for name in SpanContent.__dataclass_fields__ if name != "written"},
        written=files_in(row["written"]),
    )
    return LedgerEntry(
        result=SpanResult(
            plan,
            content,
            gaps,
            first_hole=row["first_hole"],
            contiguity_known=bool(row["contiguity_known"]),
        ),
        recovery_point_id=row["recovery_point_id"],
        delta_version=row["delta_version"],
        run_id=row["run_id"],
        recorded_at_ms=row["recorded_at_ms"],
    )
