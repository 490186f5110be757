"""The ledger: the backed-up spans and their extent."""

import inspect
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.chains import NEVER, Chain, StoredSpan, chains_of, merge_spans
from kstreams_assets.model.damage import NOTHING_DAMAGED, DamagedSpans
from kstreams_assets.model.data_files import ExpectedFiles
from kstreams_assets.model.numbered import distinct
from kstreams_assets.model.point import taken_at_of
from kstreams_assets.model.recordings import (
    _NO_PARTITION,
    BackedUpTopic,
    LedgerEntry,
    NotedTopic,
    Recorded,
    RecordedTopic,
    Recording,
    StoredSize,
)
from kstreams_assets.model.spans import (
    UNKNOWN,
    UNREAD,
    GapCause,
    Position,
    RecordedSpan,
    SpanContent,
    SpanKey,
    SpanKind,
    SpanPlan,
    SpanResult,
    TopicFacts,
    Window,
)
from kstreams_assets.model.tables import INCREMENTS, TOPICS, WINDOWS
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.repository.known import Known
from kstreams_assets.repository.records import COLUMNS as DAMAGE_COLUMNS
from kstreams_assets.repository.records import (
    SPAN,
    Comparison,
    file_actions,
    has_all_columns,
    noted_files,
    records_version,
)
from kstreams_assets.repository.rows import rows_of
from kstreams_assets.repository.table import (
    ApplicationTable,
    LogState,
    Table,
    WindowTopic,
    Writer,
    log_state,
    one_of,
    windows_and_topics,
)
from kstreams_assets.store import StorePath
from kstreams_assets.store.locks import LockHandle

_VANISHED = frozenset({GapCause.TOPIC_DELETED, GapCause.TOPIC_RECREATED, GapCause.LOG_TRUNCATED})
"""With these the point that closes the window may not have seen the span's end."""

_COMMITS_AT_ONCE = 10
"""More than other applications commit to the ledger while one of them writes a row."""


_KEYS: Final = ["window", "topic"]
_LIFE: Final = [*_KEYS, "partition", "topic_id"]

_LOOKS: Final = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _First(RecordedSpan):
    """The needed part of a row, with the log start offset of its plan."""

    log_start: int


@dataclass(slots=True)  # there are many, and those that are frozen take thrice as long to make
class _Done:
    """A topic in a window."""

    window: Window
    topic: str


@dataclass(slots=True)
class _Closed(_Done):
    """The same, with the recovery point at the end of the window."""

    recovery_point_id: str | None


@dataclass(frozen=True, slots=True)
class _MergedFile:
    """The spans in one file of the ledger, with neighbours merged."""

    holes_matter: frozenset[str]

    def __call__(self, rows: pa.Table) -> list[StoredSpan]:
        return merge_rows(rows, holes_matter=self.holes_matter)


_ROWS = rows_of(LedgerEntry)


class Ledger:
    """The backups of one application.

    Rows are written after the data: a window whose data exists without rows is written again.
    """

    def __init__(
        self, warehouse: Warehouse, application_id: str, known: Known | None = None
    ) -> None:
        """`known` belongs to the ledger's Repository."""
        self._known = known or Known()
        self._table = Table.of(WINDOWS, warehouse, application_id, self._known)
        self._open = Table.of(INCREMENTS, warehouse, application_id, self._known)
        self.warehouse = warehouse
        self._application_id = application_id
        self._records = warehouse.records(application_id)

    def ensure(self) -> None:
        """Create the ledger, empty, unless it exists.

        This happens before the first records: records without a ledger mean that the ledger was
        lost.
        """
        self._table.ensure()

    def recorded_spans(
        self, windows: Sequence[Window], topics: Collection[str]
    ) -> list[RecordedSpan]:
        """The spans whose edges affect these windows: their own, and the nearest on either side.

        Includes increments if windows are increments.
        """
        rows = self.span_rows(
            topics,
            columns=_ROWS.names(RecordedSpan),
            increments=any(window.is_increment for window in windows),
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
        return _ROWS.read_part(RecordedSpan, chosen)

    def first_spans_cut_short(
        self, topics: Collection[str], *, begins_ms: int
    ) -> Mapping[TopicPartitionId, Position]:
        """Where the backups of partitions start, if the first window skipped lower offsets.

        In earlier releases the first window (of the schedule, which starts at `begins_ms`) started
        at an older recovery point. Partitions without such an edge are omitted.
        """
        where = _chosen(None, topics) & (pc.field("window_start_ms") <= begins_ms)
        rows = self._table.read(columns=_ROWS.names(_First), where=where)
        first = _ROWS.read_part(_First, _nearest(rows, "window_start_ms", 0, before=False))
        return {
            span.partition: Position(span.topic_id, span.start)
            for span in first
            if span.continues and span.log_start < span.start
        }

    def done(
        self, topics: Collection[str], *, windows: Iterable[Window] = ()
    ) -> dict[Window, set[str]]:
        """Recorded windows, with their topics among these.

        Of `windows` also those that `expire` has merged with others: all topics of them.
        """
        where = one_of("topic", topics)
        found = self._table.rows_as(_Done, where, distinct=True)
        done = _topics_by_window(one for one in found if not one.window.is_merged)
        put_together = [one.window for one in found if one.window.is_merged]
        for window in windows:
            # Topics that were missing at the merge cannot be added any more.
            if any(one.start_ms <= window.start_ms < one.end_ms for one in put_together):
                done[window] = {*topics}
        return done

    def not_examined(self, topics: Collection[str]) -> dict[Window, set[str]]:
        """Windows with topics whose log could not be inspected in time."""
        rows = self.span_rows(topics, columns=[*_ROWS.names(_Done), "gaps"])
        found = pa.array(_rows_with_gap(rows, {GapCause.NOT_EXAMINED}), pa.int64())
        return _topics_by_window(_ROWS.read_part(_Done, rows.take(found)))

    def closing_points(self, topics: Collection[str]) -> dict[str, dict[Window, str | None]]:
        """For each topic, the recovery point (id) that bounds each recorded window."""
        found: dict[str, dict[Window, str | None]] = {}
        where = one_of("topic", topics)
        for row in self._table.rows_as(_Closed, where, distinct=True):
            if not row.window.is_merged:
                found.setdefault(row.topic, {})[row.window] = row.recovery_point_id
        return found

    def with_offsets(self, topics: Collection[str]) -> set[Window]:
        """The recorded windows with an offset of one of these topics."""
        where = one_of("topic", topics) & (pc.field("end") > pc.field("start"))
        found = self._table.rows_as(_Done, where, distinct=True)
        return {one.window for one in found}

    def first_recorded_since(self, version: int, topics: Collection[str]) -> int | None:
        """Start of the earliest window in which one of these topics was recorded since then.

        None if there is none. May be earlier: windows of the previous commits count, too.
        """
        # A row records the version before its commit; other applications commit in between.
        recent = pc.field("ledger_version") >= version - _COMMITS_AT_ONCE
        rows = self._table.read(
            columns=["window_start_ms", "kind"],
            where=recent & one_of("topic", topics),
        )
        return min(rows.filter(_ONE_WINDOW)["window_start_ms"].to_pylist(), default=None)

    def recordings(self, topics: Collection[str], *, begins_ms: int) -> list[Recording]:
        """The recordings of the windows that start at this time or later, in order."""
        keys = ["window_start_ms", "window_end_ms", "window", "topic", "run_id"]
        rows = self._table.read(
            columns=[*keys, "kind", "recorded_at_ms"],
            where=(pc.field("window_start_ms") >= begins_ms) & one_of("topic", topics),
        )
        rows = rows.filter(_ONE_WINDOW).group_by(keys).aggregate([("recorded_at_ms", "max")])
        columns = [rows[name].to_pylist() for name in (*keys, "recorded_at_ms_max")]
        recordings = [
            Recording(Window(start_ms, end_ms, key), topic, run_id, recorded_at_ms)
            for start_ms, end_ms, key, topic, run_id, recorded_at_ms in zip(*columns, strict=True)
        ]
        return sorted(recordings, key=lambda recording: (recording.window, recording.topic))

    def closing_point_ids(self) -> set[str]:
        """Ids of the points at the ends of recorded windows."""
        rows = self._table.read(
            columns=["recovery_point_id"],
            where=pc.field("recovery_point_id").is_valid(),
        )
        return set(rows["recovery_point_id"].unique().to_pylist())

    def stored_spans(self, topics: Collection[str]) -> list[StoredSpan]:
        """Every span of these topics, reduced to what restores need to know.

        Each is compared with the records table, see `Comparison`.

        Raises:
            WarehouseError: The records table cannot be read.
        """

        def read() -> list[StoredSpan]:
            rows = self.span_rows(topics, columns=COLUMNS, increments=True)
            return spans_of(rows, self.compared().damaged(topics))

        return self._at_rest(read)

    def damaged(
        self,
        topics: Collection[str] | None = None,
        *,
        windows: Collection[str] | None = None,
        inspect_timeout_s: float = math.inf,
    ) -> DamagedSpans:
        """The spans whose files do not match the ledger, see `Comparison`.

        The files themselves are inspected for at most `inspect_timeout_s` seconds, starting where
        the last call stopped: with 0 not at all, by default all of them. Ledger and log are only
        compared again if one of them has changed.

        Args:
            topics: Only spans of these.
            windows: Only spans of these; ledger and log are compared again.
            inspect_timeout_s: See above.

        Raises:
            WarehouseError: The records table cannot be read.
        """
        compared = self.compared() if windows is None else self._compare(_chosen(windows, topics))
        compared.inspect_files(inspect_timeout_s)
        return compared.damaged(topics)

    def file_actions(self) -> pa.Table:
        """The files of the records table, see `records.file_actions`."""
        return file_actions(self._records, self._known)

    def records_version(self) -> int:
        """The version of the records table, -1 if it was never written."""
        return records_version(self._records, self._known)

    def records_have_all_columns(self) -> bool:
        """Whether the records table has the columns of this release."""
        return has_all_columns(self._records, self._known)

    def compared(self) -> Comparison:
        """The ledger and Delta's log, compared again only if one of them has changed."""
        # Read before the tables: the next call notices later changes.
        state = self._state()
        then, earlier = self._known.compared.get(self._records) or (None, None)
        if earlier is not None and then == state:
            return earlier
        compared = self._compare(_chosen(None, None), earlier)
        self._known.compared.put(self._records, (state, compared))
        return compared

    def _compare(self, where: ds.Expression, earlier: Comparison | None = None) -> Comparison:
        def read() -> tuple[pa.Table, pa.Table, int]:
            # Delta's log takes as long as the ledger, and native code reads both.
            with ThreadPoolExecutor(1) as pool:
                actions = pool.submit(copy_context().run, self.file_actions)
                rows = self._spans(DAMAGE_COLUMNS, where, increments=True)
                return rows, actions.result(), self.records_version()

        rows, actions, version = self._at_rest(read)
        return Comparison(self._records, rows, actions, earlier, version=version)

    def merged_spans(
        self, topics: Collection[str], *, holes_matter: Collection[str]
    ) -> list[StoredSpan]:
        """Like `stored_spans`, with neighbouring spans merged (see `chains.merge_spans`), without
        comparison.

        The spans of a file of the table are cached, and files never change: a later call reads only
        new files.
        """
        matter = frozenset(holes_matter)
        files, open_rows = self._at_rest(
            lambda: (
                self._table.reduce(
                    COLUMNS,
                    _MergedFile(matter),
                    where=pc.field("partition") >= 0,
                ),
                self._increments(COLUMNS, _chosen(None, topics)),
            )
        )
        wanted = set(topics)
        spans = (span for file in files for span in file if span.partition.topic in wanted)
        # An open window may have an increment for every other second.
        return merge_spans(
            [*spans, *merge_rows(open_rows, holes_matter=matter)], holes_matter=matter
        )

    def held_positions(
        self, application: StreamsApplication
    ) -> Mapping[TopicPartitionId, Position]:
        """For each changelog partition, the end of its contiguous recorded range.

        A point cut now need not save lower records. Counted from the start of the newest topic
        incarnation; partitions whose start was never backed up are omitted. Everything below the
        position was read before this call, and its files match the ledger.
        """
        topics = {topic.name for topic in application.with_role(TopicRole.CHANGELOG)}
        newest: dict[TopicPartitionId, Chain] = {}
        for chain in chains_of(self.merged_spans(topics, holes_matter=topics)).values():
            partition = chain.spans[0].partition
            other = newest.get(partition)
            if other is None or other.last_window_end_ms < chain.last_window_end_ms:
                newest[partition] = chain
        damaged = self.damaged(topics, inspect_timeout_s=0)
        held: dict[TopicPartitionId, Position] = {}
        for partition, chain in newest.items():
            end = chain.unbroken_end
            if end is not None:
                bad = damaged.inside(chain.spans[0].life, 0, end)
                end = end if bad is None else min(end, bad.offsets.start)
                held[partition] = Position(chain.spans[0].topic_id, end)
        return held

    def proven_ranges(
        self, application: StreamsApplication
    ) -> Mapping[TopicPartitionId, Sequence[tuple[str, int, int]]]:
        """Offsets of changelogs, as (topic id, start, end), that backups contain without a hole.

        Records of them that were saved with recovery points are duplicates.
        """
        topics = {topic.name for topic in application.with_role(TopicRole.CHANGELOG)}
        found: dict[TopicPartitionId, list[tuple[str, int, int]]] = {}
        damaged = self.damaged(topics, inspect_timeout_s=0)
        for span in self.merged_spans(topics, holes_matter=topics):
            end = span.end if span.first_hole is None else span.first_hole
            if span.complete and span.read_start < end:
                bad = damaged.ranges(span.life, span.read_start, end)
                found.setdefault(span.partition, []).extend(
                    (span.topic_id, sound.start, sound.end)
                    for sound in RangeSet.of(span.read_start, end, without=bad)
                )
        return {partition: sorted(ranges) for partition, ranges in found.items()}

    def span_rows(
        self, topics: Collection[str], *, columns: Sequence[str], increments: bool = False
    ) -> pa.Table:
        """These columns of every span of these topics, and of increments if requested."""
        return self._spans(columns, _chosen(None, topics), increments=increments)

    def topics_with_gap(
        self, topics: Collection[str], causes: Collection[GapCause]
    ) -> frozenset[str]:
        """Those of these topics whose windows have missing records for one of the causes."""
        rows = self.span_rows(topics, columns=["topic", "gaps"])
        # Typed, because Arrow cannot select from a column with an empty list, whose type is null.
        numbers = pa.array(_rows_with_gap(rows, causes), pa.int64())
        return frozenset(rows["topic"].take(numbers).to_pylist())

    def all_span_rows(self, columns: Sequence[str]) -> pa.Table:
        """These columns of every span of every topic, including increments of open windows.

        Read while nobody commits, if possible.
        """
        return self._at_rest(lambda: self._spans(columns, _chosen(None, None), increments=True))

    def _spans(self, columns: Sequence[str], where: ds.Expression, *, increments: bool) -> pa.Table:
        if not increments:
            return self._table.read(columns=columns, where=where)
        # Read first, because they are removed after their window's rows were written.
        open_ = self._open_rows(columns, where)
        rows = self._table.read(
            columns=[*dict.fromkeys([*columns, *_LIFE])],
            where=where | one_of("window", _parents(open_)),
        )
        kept = rows.filter(where) if open_.num_rows else rows
        return pa.concat_tables([kept.select(columns), _not_closed(open_, rows).select(columns)])

    def _open_rows(self, columns: Sequence[str], where: ds.Expression) -> pa.Table:
        return self._open.read(
            columns=[*dict.fromkeys([*columns, *_LIFE, "first_window"])],
            where=where,
        )

    def _increments(self, columns: Sequence[str], where: ds.Expression) -> pa.Table:
        """These columns of the increments of windows that the ledger does not have yet."""
        open_ = self._open_rows(columns, where)
        if open_.num_rows:
            of_windows = one_of("window", _parents(open_))
            rows = self._table.read(columns=_LIFE, where=of_windows)
            open_ = _not_closed(open_, rows)
        return open_.select(columns)

    def _at_rest(self, read: Callable[[], T]) -> T:
        """The result of `read` on tables without concurrent commits, if possible.

        A run commits to one table after the other: a read in between sees tables that do not match.
        """
        if self._known.log_states:
            return read()
        state = self._state()
        found = read()
        for _ in range(_LOOKS):
            before, state = state, self._state()
            if before == state:
                break
            found = read()
        return found

    def pin(self) -> None:
        """For a view: keep its tables and the records table in their current, consistent state."""
        states = self._state()
        for _ in range(_LOOKS):
            for table in (self._table, self._open):
                self._known.unpin(table.path)
                table.open()
            before, states = states, self._state()
            if before == states:
                break
        self._known.log_states = dict(zip(self._logs, states, strict=True))

    @property
    def _logs(self) -> tuple[StorePath, ...]:
        return self._table.path, self._open.path, self._records

    def _state(self) -> tuple[LogState, ...]:
        states = self._known.log_states
        return tuple(states[path] if path in states else log_state(path) for path in self._logs)

    def expected_files(self, *, superseded: bool = False) -> ExpectedFiles:
        """The files in the rows, as backups wrote them; none of earlier releases.

        `superseded`: includes those of increments whose window has its own rows.
        """
        columns = [*SPAN, "written"]
        rows = (
            pa.concat_tables(table.read(columns=columns) for table in (self._open, self._table))
            if superseded
            else self.all_span_rows(columns)
        )
        return ExpectedFiles(self._records, noted_files(rows), rows.select(SPAN))

    def increments_of(
        self, window: Window, topics: Collection[str] | None = None
    ) -> list[LedgerEntry]:
        """The increments of a window, in order, even if the ledger has the window by now."""
        return self.increments_between([window], topics)

    def increments_so_far(self, window: Window) -> tuple[dict[str, int], int]:
        """The ends of a window's increments (epoch ms), by topic, and the next one's number.

        Like `increments_of`, without the rows: a follower asks every few seconds.
        """
        rows = self._open.read(
            columns=["window", "window_end_ms", "topic"],
            where=_inside([window]),
        )
        ends = rows.group_by("topic").aggregate([("window_end_ms", "max")])
        numbers = (SpanKey.of(key).number for key in rows["window"].unique().to_pylist())
        by_topic = zip(
            ends["topic"].to_pylist(), ends["window_end_ms_max"].to_pylist(), strict=True
        )
        return dict(by_topic), 1 + max(numbers, default=-1)

    def increments_between(
        self, windows: Sequence[Window], topics: Collection[str] | None = None
    ) -> list[LedgerEntry]:
        """Like `increments_of`, for all windows from the first to the last of these."""
        if not windows:
            return []
        where = _inside(windows)
        if topics is not None:
            where &= one_of("topic", topics)
        found = self._open.rows(where)
        return sorted(found, key=lambda e: (e.result.plan.window, e.result.partition))

    def closed_with_increments(self) -> list[Window]:
        """Recorded windows whose increments still exist, in order.

        A run removes those after it has closed the window; it may have been killed before.
        """
        rows = self._open.read(columns=["first_window"])
        where = one_of("window", _parents(rows))
        found = self._table.rows_as(_Done, where, distinct=True)
        return sorted({one.window for one in found})

    def record_increment(
        self,
        backups: "Sequence[BackedUpTopic]",
        *,
        run_id: str,
        writer: LockHandle | None = None,
    ) -> None:
        """Add the rows of an increment (see `Window.increment`), in one commit."""
        self._record(self._open, backups, run_id, writer)

    def keep_increments(
        self, window: Window, entries: Sequence[LedgerEntry], writer: LockHandle | None = None
    ) -> None:
        """Drop the increments of a window except these, in one commit."""
        self._open.replace(
            entries,
            where=(pc.field("window_start_ms") >= window.start_ms)
            & (pc.field("window_end_ms") <= window.end_ms),
            writer=self._writer(writer),
        )

    def entries(
        self,
        *,
        windows: Collection[str] | None = None,
        topics: Collection[str] | None = None,
        increments: bool = False,
    ) -> list[LedgerEntry]:
        """Whole rows, ordered by window, topic and partition; of windows, or of increments."""
        if windows is not None and not windows:
            return []
        table = self._open if increments else self._table
        entries = table.rows(_chosen(windows, topics))
        return sorted(entries, key=lambda e: (e.result.plan.window, e.result.partition))

    def keys(self) -> dict[tuple[str, str], Window]:
        """All recorded keys by topic: windows, merged ones and increments."""
        return {
            (one.window.key, one.topic): one.window
            for table in (self._open, self._table)
            for one in table.rows_as(_Done, distinct=True)
        }

    def sizes(self) -> dict[tuple[str, str], StoredSize]:
        """The size of each window (key) and topic, including increments."""
        names = ["records", "stored_bytes"]
        rows = self.every_row([*_KEYS, *names])
        sums = rows.group_by(_KEYS).aggregate(
            [("records", "count"), *((name, "sum") for name in names)]
        )
        keys = zip(*(sums[name].to_pylist() for name in _KEYS), strict=True)
        columns = ("records_count", *(f"{name}_sum" for name in names))
        found = map(StoredSize, *(sums[name].to_pylist() for name in columns))
        return dict(zip(keys, found, strict=True))

    def last_end_ms(self, topics: Collection[str]) -> int:
        """The end of the last window or increment of these topics; 0 if there is none."""
        rows = self.span_rows(topics, columns=["window_end_ms"], increments=True)
        return pc.call_function("max", [rows["window_end_ms"]]).as_py() or 0

    def first_start_ms(self) -> int | None:
        """Start of the first recorded window or increment, None if there is none."""
        tables = (self._open, self._table)
        starts_ms = [
            pc.call_function("min", [rows["window_start_ms"]]).as_py()
            for table in tables
            for rows in [table.read(columns=["window_start_ms"])]
        ]
        return min((one for one in starts_ms if one is not None), default=None)

    def every_row(self, columns: Sequence[str]) -> pa.Table:
        """These columns of every span of the application, including increments."""
        return self._spans(columns, _chosen(None, None), increments=True)

    def as_spans(self, entries: Sequence[LedgerEntry]) -> list[StoredSpan]:
        """Rows as spans, as `stored_spans` would return them once they are recorded."""
        return spans_of(_ROWS.write(entries))

    def of_run(self, run_id: str) -> Recorded:
        """The unchanged recordings of a run."""
        return self._recorded(pc.field("run_id") == run_id)

    def of_windows(self, windows: Collection[str]) -> Recorded:
        """The contents of these windows (keys)."""
        return self._recorded(one_of("window", windows))

    def _recorded(self, where: ds.Expression) -> Recorded:
        found: dict[RecordedTopic, list[LedgerEntry]] = {}
        entries = self._table.rows(where)
        for entry in sorted(entries, key=lambda e: (e.result.plan.window, e.result.partition)):
            key = entry.result.plan.window, entry.result.partition.topic
            found.setdefault(key, []).append(entry)
        return {key: tuple(entries) for key, entries in found.items()}

    def record(
        self,
        backups: Sequence[BackedUpTopic],
        *,
        run_id: str,
        writer: LockHandle | None = None,
        kept: Sequence[LedgerEntry] = (),
    ) -> None:
        """Replace the rows of these windows and topics, in one commit.

        `writer` is the lock of the application under which they were backed up. `kept` are rows of
        the same windows and topics that stay, with the time at which they were read.

        Raises:
            LeaseLostError: Another writer now holds the lock; nothing was written.
        """
        self._record(self._table, backups, run_id, writer, kept)

    def _record(
        self,
        table: Table[LedgerEntry],
        backups: Sequence[BackedUpTopic],
        run_id: str,
        writer: LockHandle | None,
        kept: Sequence[LedgerEntry] = (),
    ) -> None:
        if not backups:
            return
        version = self.version()
        stay = {(e.result.plan.window, e.result.partition): e for e in kept}
        rows = [
            stay.get((span.plan.window, span.partition))
            or LedgerEntry(
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
        # The range lets the writer skip files, which a long list of windows does not.
        starts_ms = [backup.window.start_ms for backup in backups]
        table.replace(
            rows,
            where=(pc.field("window_start_ms") >= min(starts_ms))
            & (pc.field("window_start_ms") <= max(starts_ms))
            & pairs,
            writer=self._writer(writer),
        )

    def put_together(
        self,
        rows: Sequence[LedgerEntry],
        windows: Mapping[str, Collection[Window]],
        *,
        writer: LockHandle,
    ) -> None:
        """Replace these rows by rows that cover several windows, in one commit.

        `windows` are those of each topic whose rows are removed.

        Raises:
            LeaseLostError: Another writer now holds the lock; nothing was written.
        """
        replaced = {(window, topic) for topic, of_it in windows.items() for window in of_it}
        replaced |= {(row.result.plan.window, row.result.partition.topic) for row in rows}
        pairs = windows_and_topics(WindowTopic(window.key, topic) for window, topic in replaced)
        every = [window for window, _ in replaced]
        begins_ms = pc.field("window_start_ms")
        self._table.replace(
            rows,
            where=(begins_ms >= min(one.start_ms for one in every))
            & (begins_ms <= max(one.start_ms for one in every))
            & pairs,
            writer=self._writer(writer),
        )

    def _writer(self, lock: LockHandle | None) -> Writer | None:
        return None if lock is None else Writer(self._application_id, lock)

    def version(self) -> int:
        """The version of the ledger of all applications, which increases with each change.

        It is -1 if the ledger was never written.
        """
        return self._table.version() + self._open.version() + 1


_ONE_WINDOW: Final = pc.field("kind") == SpanKind.WINDOW
"""A filter for rows of one window each, once they are read."""


def _chosen(windows: Collection[str] | None, topics: Collection[str] | None) -> pc.Expression:
    where = pc.field("partition") >= 0
    if windows is not None:
        where &= one_of("window", windows)
    if topics is not None:
        where &= one_of("topic", topics)
    return where


def _inside(windows: Sequence[Window]) -> pc.Expression:
    """Rows between the start of the first and the end of the last of these windows."""
    return (pc.field("window_start_ms") >= min(w.start_ms for w in windows)) & (
        pc.field("window_end_ms") <= max(w.end_ms for w in windows)
    )


def _no_span(backup: BackedUpTopic) -> SpanResult:
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
    """For each partition, the rows of the nearest window on one side of an edge."""
    side = rows.filter(pc.field(column) <= edge_ms if before else pc.field(column) >= edge_ms)
    extreme = side.group_by(["topic", "partition"]).aggregate(
        [(column, "max" if before else "min")]
    )
    extreme = extreme.rename_columns(["topic", "partition", column])
    return side.join(extreme, ["topic", "partition", column], join_type="left semi")


def _parents(increments: pa.Table) -> list[str]:
    """The keys of the windows of increments."""
    return sorted(increments["first_window"].unique().to_pylist())


def _not_closed(increments: pa.Table, rows: pa.Table) -> pa.Table:
    """The increments of partitions whose window has no rows in the ledger yet."""
    if increments.num_rows == 0 or rows.num_rows == 0:
        return increments
    known = {*zip(*(rows[name].to_pylist() for name in _LIFE), strict=True)}
    names = ("first_window", *_LIFE[1:])
    lives = zip(*(increments[name].to_pylist() for name in names), strict=True)
    open_ = [number for number, life in enumerate(lives) if life not in known]
    return increments.take(pa.array(open_, pa.int64()))


def _topics_by_window(found: Iterable[_Done]) -> dict[Window, set[str]]:
    topics: dict[Window, set[str]] = {}
    for one in found:
        topics.setdefault(one.window, set()).add(one.topic)
    return topics


def spans_of(rows: pa.Table, damaged: DamagedSpans = NOTHING_DAMAGED) -> list[StoredSpan]:
    """The rows as spans; damaged ones count as not stored."""
    complete = [True] * rows.num_rows
    for index in _rows_with_gap(rows, UNKNOWN):
        complete[index] = False
    seen_at_end = [True] * rows.num_rows
    for index in _rows_with_gap(rows, _VANISHED):
        seen_at_end[index] = False
    expired = [False] * rows.num_rows
    for index in _rows_with_gap(rows, {GapCause.EXPIRED}):
        expired[index] = True
    every = [True] * rows.num_rows
    for index in _rows_with_gap(rows, {GapCause.COMPACTED_BY_EXPIRE}):
        every[index] = False
    unread: list[RangeSet | None] = [None] * rows.num_rows
    for index, ranges in _unread_in_the_middle(rows).items():
        unread[index] = ranges
    columns = [rows.column(name).to_pylist() for name in _OF_SPAN]
    found, of_row = distinct(rows, _OF_WINDOW[:3], _OF_WINDOW)
    windows = map(_ROWS.read_part(Window, found).__getitem__, of_row.tolist())
    known = (complete, seen_at_end, expired, every, unread, windows)
    spans = list(map(_span, *known, *columns)) if rows.num_rows else []
    if not damaged:
        return spans
    return [
        replace(span, complete=span.complete and not _is_damaged(span, damaged)) for span in spans
    ]


def _is_damaged(span: StoredSpan, damaged: DamagedSpans) -> bool:
    found = damaged.inside(span.life, span.start, span.end)
    return found is not None and found.window == span.window.key


def _span(
    complete: bool,
    seen_at_end: bool,
    expired: bool,
    has_every_record: bool,
    unread: RangeSet | None,
    window: Window,
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
    return StoredSpan(
        window=window,
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
        closed_at_ms=_closed_at_ms(recovery_point_id, seen_at_end, recorded_at_ms),
        expired=expired,
        has_every_record=has_every_record,
        unread=unread,
    )


def _closed_at_ms(point_id: str | None, seen_at_end: bool, recorded_at_ms: int) -> int | None:
    closed_at_ms = taken_at_of(point_id) if point_id and seen_at_end else None
    # Later than the recording: a clock was wrong.
    return None if closed_at_ms is None or closed_at_ms > recorded_at_ms else closed_at_ms


def merge_rows(rows: pa.Table, *, holes_matter: Set[str] | None = None) -> list[StoredSpan]:
    """`merge_spans(spans_of(rows))` with objects for the result only: rows may be millions."""
    if rows.num_rows == 0:
        return []
    columns = {name: rows.column(name).combine_chunks() for name in COLUMNS}
    life, matters = _lives(columns, holes_matter)
    numbers = {name: columns[name].to_numpy(zero_copy_only=False) for name in _NUMBERS}
    order = _chain_order(life, numbers, columns["window"])
    life, matters = life[order], matters[order]
    numbers = {name: values[order] for name, values in numbers.items()}
    start, end, recorded = numbers["start"], numbers["end"], numbers["recorded_at_ms"]
    complete, seen_at_end = (_without(rows, causes)[order] for causes in (UNKNOWN, _VANISHED))
    expired = ~_without(rows, {GapCause.EXPIRED})[order]
    every = _without(rows, {GapCause.COMPACTED_BY_EXPIRE})[order]
    unread = _unread_in_the_middle(rows)
    # As in `_span`: without an inspection, the first offset may be a hole.
    looked = pc.fill_null(columns["contiguity_known"], False).to_numpy(zero_copy_only=False)
    hole = pc.fill_null(columns["first_hole"], _NO_HOLE).to_numpy()[order]
    hole = np.where(looked[order] | (start == end), hole, start)
    plain = complete & every & (numbers["read_start"] == start)
    plain &= (hole == _NO_HOLE) | ~matters
    joins = (
        (life[1:] == life[:-1])
        & (end[:-1] == start[1:])
        & (numbers["window_end_ms"][:-1] == numbers["window_start_ms"][1:])
        & plain[1:]
        & plain[:-1]
    )
    firsts = np.concatenate(([0], np.flatnonzero(~joins) + 1))
    lasts = np.concatenate((firsts[1:], [len(order)])) - 1
    read = np.minimum.reduceat(np.where(start < end, recorded, NEVER), firsts)
    holes = np.flatnonzero(hole != _NO_HOLE)
    first_holes = np.append(holes, len(order))[np.searchsorted(holes, firsts)]

    def closed_at_ms(first: int, last: int) -> int | None:
        for index in range(last, first - 1, -1):
            point_id = columns["recovery_point_id"][order[index]].as_py()
            found = _closed_at_ms(point_id, bool(seen_at_end[index]), int(recorded[index]))
            if found is not None:
                return found
        return None

    def window(row: int) -> Window:
        start_ms, end_ms, key, kind, *edges = (columns[n][row].as_py() for n in _OF_WINDOW)
        return Window(start_ms, end_ms, key, SpanKind(kind), *edges)

    spans: list[StoredSpan] = []
    runs = zip(firsts.tolist(), lasts.tolist(), first_holes.tolist(), read.tolist(), strict=True)
    for first, last, at_hole, read_ms in runs:
        row = int(order[first])
        one = {name: columns[name][row].as_py() for name in _OF_FIRST}
        spans.append(
            StoredSpan(
                window=window(row),
                partition=TopicPartitionId(one["topic"], one["partition"]),
                topic_id=one["topic_id"],
                start=one["start"],
                end=int(end[last]),
                read_start=one["read_start"],
                continues=one["continues"],
                complete=bool(complete[first]),
                log_start=one["log_start"],
                first_hole=int(hole[at_hole]) if at_hole <= last else None,
                recorded_at_ms=one["recorded_at_ms"] if read_ms == NEVER else read_ms,
                last=window(int(order[last])) if last > first else None,
                ledger_version=one["ledger_version"],
                closed_at_ms=closed_at_ms(first, last),
                expired=bool(expired[first]),
                has_every_record=bool(every[first]),
                unread=unread.get(row),
            )
        )
    return spans


_NO_HOLE: Final = -1
_NUMBERS: Final = (
    "window_start_ms",
    "window_end_ms",
    "start",
    "end",
    "read_start",
    "recorded_at_ms",
)
_OF_FIRST: Final = (
    "topic",
    "partition",
    "topic_id",
    "start",
    "read_start",
    "continues",
    "log_start",
    "recorded_at_ms",
    "ledger_version",
)


def _lives(
    columns: Mapping[str, pa.Array], holes_matter: Set[str] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """For each row the number of its partition incarnation, in order, and whether holes matter in
    its topic."""
    topics, topic = _ranked(columns["topic"])
    lives, life = _ranked(columns["topic_id"])
    partition = columns["partition"].to_numpy().astype(np.int64) - _NO_PARTITION
    codes = (topic * (int(partition.max()) + 1) + partition) * len(lives) + life
    matter = np.array([holes_matter is None or name in holes_matter for name in topics], np.bool_)
    return codes, matter[topic]


def _ranked(column: pa.Array) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The distinct texts in order, and for each row the number of its text."""
    encoded = column.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    ordered = sorted(range(len(names)), key=names.__getitem__)
    ranks = np.empty(len(names), np.int64)
    ranks[ordered] = np.arange(len(names))
    return [names[index] for index in ordered], ranks[encoded.indices.to_numpy()]


def _chain_order(
    life: npt.NDArray[np.int64], numbers: Mapping[str, npt.NDArray[np.int64]], windows: pa.Array
) -> npt.NDArray[np.int64]:
    """The order of `_in_chain`."""
    keys = [numbers[name] for name in ("start", "end", "window_start_ms", "window_end_ms")]
    order = np.argsort(life, kind="stable")
    ordered, starts = life[order], keys[0][order]
    # Files are in order of time, and so are the offsets of an incarnation: then no sort is needed.
    if ((ordered[1:] != ordered[:-1]) | (starts[1:] > starts[:-1])).all():
        return order
    return np.lexsort((_ranked(windows)[1], *reversed(keys), life))


def _without(rows: pa.Table, causes: Collection[GapCause]) -> npt.NDArray[np.bool_]:
    """Which rows have no missing records for one of these causes."""
    sound = np.ones(rows.num_rows, np.bool_)
    sound[_rows_with_gap(rows, causes)] = False
    return sound


def _rows_with_gap(rows: pa.Table, causes: Collection[GapCause]) -> list[int]:
    """Numbers of the rows with missing records for one of these causes, without gap objects."""
    gaps = rows.column("gaps").combine_chunks()
    by_row = pa.table({"row": gaps.value_parent_indices(), "cause": gaps.flatten().field("cause")})
    found = by_row.filter(one_of("cause", [cause.value for cause in causes]))
    return found.column("row").to_pylist()


def _unread_in_the_middle(rows: pa.Table) -> dict[int, RangeSet]:
    """By number of the row, offsets that could not be read although some below `read_start` are
    stored.

    Increments become one row when their window closes. If a topic disappeared or lost records
    after the first of them, their earlier records are stored nevertheless.
    """
    skipped = rows["read_start"].to_numpy() - rows["start"].to_numpy()
    if not (skipped > 0).any():
        return {}
    gaps = rows.column("gaps").combine_chunks()
    each, row = gaps.flatten(), gaps.value_parent_indices().to_numpy().astype(np.int64)
    of_cause = pc.call_function(
        "is_in", [each.field("cause")], pc.SetLookupOptions(pa.array(sorted(UNREAD)))
    ).to_numpy(zero_copy_only=False)
    counted = of_cause & each.field("end").is_valid().to_numpy(zero_copy_only=False)
    offsets = pc.fill_null(each.field("offsets"), 0).to_numpy().astype(np.int64)
    named = np.bincount(row[counted], weights=offsets[counted], minlength=rows.num_rows)
    found: dict[int, RangeSet] = {}
    for index in np.flatnonzero((skipped > 0) & (named < skipped)).tolist():
        known = [
            gap
            for gap in gaps[index].as_py() or ()
            if gap["cause"] in UNREAD and gap["end"] is not None
        ]
        # Rows of earlier releases may have one gap for several: the position is unknown.
        if known and all(gap["offsets"] == gap["end"] - gap["start"] for gap in known):
            found[index] = RangeSet(OffsetRange(gap["start"], gap["end"]) for gap in known)
    return found


_OF_WINDOW: Final = _ROWS.names(Window)
_OF_SPAN: Final = [*inspect.signature(_span).parameters][6:]
COLUMNS = [*_OF_WINDOW, *_OF_SPAN, "gaps"]
"""The columns that `spans_of` needs."""


class TopicFactsTable(ApplicationTable[NotedTopic], spec=TOPICS):
    """Descriptions of topics of one application, window by window."""

    def record(self, backups: Sequence[BackedUpTopic], *, writer: LockHandle | None = None) -> None:
        """Replace the facts of these windows and topics, in one commit.

        `writer` is the application's lock under which they were collected.

        Raises:
            LeaseLostError: Another writer now holds the lock; nothing was written.
        """
        rows = [
            NotedTopic(
                self._application_id,
                backup.window.key,
                backup.window.end_ms,
                backup.topic,
                backup.role,
                backup.facts,
            )
            for backup in backups
            if backup.facts is not None
        ]
        if not rows:
            return
        pairs = windows_and_topics(WindowTopic(b.window.key, b.topic) for b in backups)
        ends_ms = [backup.window.end_ms for backup in backups]
        self._table.replace(
            rows,
            where=(pc.field("window_end_ms") >= min(ends_ms))
            & (pc.field("window_end_ms") <= max(ends_ms))
            & pairs,
            writer=self._writer(writer),
        )

    def delete_retention_ms(self, topics: Collection[str]) -> Mapping[str, int]:
        """The shortest recorded time for which topics kept deletions."""
        wanted = set(topics)
        least: dict[str, int] = {}
        columns = ["topic", "configs", "effective_configs"]
        for of_file in self._table.reduce(columns, _least_delete_retention_ms):
            for topic in wanted & of_file.keys():
                least[topic] = min(of_file[topic], least.get(topic, of_file[topic]))
        return least

    def roles(self) -> Mapping[str, str]:
        """The last recorded roles of each topic, joined with `+`."""
        names = ["topic", "role"]
        found: dict[str, str] = {}
        for of_file in self._table.reduce(names, _roles):
            found |= of_file
        return found

    def before(self, instant_ms: int) -> Mapping[str, TopicFacts]:
        """For each topic, the facts at the last window that ended at or before this time."""
        where = pc.field("window_end_ms") <= instant_ms
        rows = self._table.read(where=where)
        return _last_noted(rows, rows["topic"].to_pylist())

    def of_incarnations(self) -> Mapping[tuple[str, str], TopicFacts]:
        """The last recorded facts by topic and topic id, in order of time."""
        rows = self._table.read()
        keys = zip(rows["topic"].to_pylist(), rows["topic_id"].to_pylist(), strict=True)
        return _last_noted(rows, [*keys])

    def between(self, from_ms: int, to_ms: int) -> list[NotedTopic]:
        """The records of windows that end after one time and not after another, in order."""
        ends_ms = pc.field("window_end_ms")
        rows = self._table.rows((ends_ms > from_ms) & (ends_ms <= to_ms))
        return sorted(rows, key=lambda row: row.window_end_ms)

    def rows(self, topics: Iterable[str]) -> pa.Table:
        """All records of these topics; columns of `NotedTopic`."""
        return self._table.read(where=one_of("topic", topics))


K = TypeVar("K")


def _last_noted(rows: pa.Table, keys: Sequence[K]) -> dict[K, TopicFacts]:
    """The last row of each key, in order of time."""
    ends_ms = rows["window_end_ms"].to_pylist()
    newest: dict[K, int] = {}
    for index, key in enumerate(keys):
        if ends_ms[index] >= ends_ms[newest.get(key, index)]:
            newest[key] = index
    newest = dict(sorted(newest.items(), key=lambda one: ends_ms[one[1]]))
    chosen = rows.take(pa.array(newest.values(), pa.int64()))
    return dict(zip(newest, facts_in(chosen), strict=True))


def _roles(rows: pa.Table) -> Mapping[str, str]:
    distinct = rows.group_by(["topic", "role"]).aggregate([])
    return dict(zip(distinct["topic"].to_pylist(), distinct["role"].to_pylist(), strict=True))


def _least_delete_retention_ms(rows: pa.Table) -> Mapping[str, int]:
    name = pa.scalar("delete.retention.ms")
    own, effective = (
        pc.map_lookup(rows[column], name, "first")  # pyright: ignore[reportAttributeAccessIssue]
        for column in ("configs", "effective_configs")
    )
    retention_ms = pc.coalesce(effective, own)  # pyright: ignore[reportAttributeAccessIssue]
    table = pa.table({"topic": rows["topic"], "ms": retention_ms.cast(pa.int64())})
    least = table.filter(pc.field("ms").is_valid()).group_by("topic").aggregate([("ms", "min")])
    return dict(zip(least["topic"].to_pylist(), least["ms_min"].to_pylist(), strict=True))


def facts_in(rows: pa.Table) -> list[TopicFacts]:
    """The facts in rows of the table."""
    return rows_of(NotedTopic).read_part(TopicFacts, rows)
