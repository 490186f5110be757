"""The ledger: which spans are backed up, and how far they reach."""

import inspect
import math
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import LockHandle, warehouse_lock
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.store import StorePath
from kstreams_assets.warehouse.column import (
    WINDOW_END,
    WINDOW_KEY,
    ApplicationId,
    Column,
    RunId,
    TopicName,
)
from kstreams_assets.warehouse.committer import fence, sweep
from kstreams_assets.warehouse.point import PartitionLife, taken_at_of
from kstreams_assets.warehouse.records import COLUMNS as DAMAGE_COLUMNS
from kstreams_assets.warehouse.records import (
    NOTHING_DAMAGED,
    Comparison,
    DamagedSpans,
    file_actions,
    open_records,
)
from kstreams_assets.warehouse.rows import rows_of
from kstreams_assets.warehouse.spans import (
    UNKNOWN,
    UNREAD,
    GapCause,
    Position,
    RecordedSpan,
    SpanContent,
    SpanPlan,
    SpanResult,
    TopicFacts,
    Window,
)
from kstreams_assets.warehouse.table import (
    LogState,
    Table,
    WindowTopic,
    Writer,
    fence_tables,
    log_state,
    one_of,
    refuse_newer_tables,
    table_version,
    windows_and_topics,
)

DELETE_RETENTION_MS: Final = 86_400_000
"""Kafka's default of `delete.retention.ms`."""
_NEVER = 2**63 - 1
"""Above every version of a table."""


@dataclass(frozen=True, slots=True)
class StoredSpan:
    """One row of the ledger, as far as it says what a restore could take from the backup.

    Stored are the records of `[read_start, end)`, unless some of them are missing for no known
    cause, or its files do not match the ledger (`complete` is False). `first_hole` is the lowest
    offset that may have been removed before the span was read; where that was not looked at, the
    first.

    A span may stand for several windows that follow each other (see `folded`): `window` is the
    first, `last_window` the last of them, `recorded_at_ms` the earliest time at which offsets of
    them were recorded.
    """

    window: Window
    partition: TopicPartitionId
    topic_id: str
    start: int
    end: int
    read_start: int
    continues: bool
    complete: bool
    log_start: int
    first_hole: int | None
    recorded_at_ms: int
    last: Window | None = None
    ledger_version: int | None = None
    """Version of the ledger when the span had been read; None: not known."""
    closed_at_ms: int | None = None
    """When the recovery point was begun that the span ends with (never after `recorded_at_ms`): no
    record at or above `end` had been committed then. None: not known."""
    expired: bool = False
    """Whether `expire` dropped what lies below `read_start`: no kept point needs it."""
    has_every_record: bool = False
    """Of a span that `expire` has merged: whether it left none out. Others have all of them."""

    unread: RangeSet | None = None
    """Offsets of which nothing was stored, where they are not just those below `read_start`."""

    @property
    def is_compacted(self) -> bool:
        """Whether `expire` may have left the last record of each key only: those of a point that
        ends inside it may be missing."""
        return is_folded(self.window) and not self.has_every_record

    @property
    def stored(self) -> Sequence[OffsetRange]:
        """Offsets whose records, as far as the log held them, are stored."""
        if not self.complete:
            return ()
        if self.unread is None:
            return (OffsetRange(self.read_start, self.end),)
        return RangeSet.of(self.start, self.end, without=self.unread)

    @property
    def life(self) -> PartitionLife:
        """The partition in this life of its topic."""
        return self.partition.topic, self.partition.partition, self.topic_id

    @property
    def last_window(self) -> Window:
        """The last of the windows that the span stands for."""
        return self.last or self.window

    @property
    def begins_life(self) -> bool:
        """Whether nothing that is still to be had lies before it."""
        return not self.continues or self.log_start >= self.start


def folded(
    spans: Iterable[StoredSpan], *, holes_matter: Set[str] | None = None
) -> list[StoredSpan]:
    """Neighbouring spans put together where that changes no answer of their chain.

    The later one begins where and when the earlier one ends, all that lies in them was stored, and
    nothing had been removed from the log before they were read. In topics that are not among
    `holes_matter` (None: all are) removed records are no hindrance; only how far their chains
    reach is right then.
    """
    made: list[StoredSpan] = []
    for span in sorted(spans, key=_in_chain):
        if made and _join(made[-1], span, holes_matter):
            made[-1] = _joined(made[-1], span)
        else:
            made.append(span)
    return made


def _in_chain(span: StoredSpan) -> tuple[str, int, str, int, int, Window]:
    partition = span.partition
    return partition.topic, partition.partition, span.topic_id, span.start, span.end, span.window


def _join(one: StoredSpan, other: StoredSpan, holes_matter: Set[str] | None) -> bool:
    return (
        one.end == other.start
        and one.last_window.end_ms == other.window.start_ms
        and one.partition == other.partition
        and one.topic_id == other.topic_id
        and _is_plain(one, holes_matter)
        and _is_plain(other, holes_matter)
    )


def _is_plain(span: StoredSpan, holes_matter: Set[str] | None) -> bool:
    no_hole = span.first_hole is None or not (
        holes_matter is None or span.partition.topic in holes_matter
    )
    stored = span.complete and span.read_start == span.start and not span.is_compacted
    return no_hole and stored


def _joined(one: StoredSpan, other: StoredSpan) -> StoredSpan:
    read = [span.recorded_at_ms for span in (one, other) if span.start < span.end]
    hole = one.first_hole if one.first_hole is not None else other.first_hole
    return replace(
        one,
        end=other.end,
        last=other.last_window,
        first_hole=hole,
        recorded_at_ms=min(read, default=one.recorded_at_ms),
        closed_at_ms=one.closed_at_ms if other.closed_at_ms is None else other.closed_at_ms,
    )


@dataclass
class Chain:
    """The spans of one partition in one life of its topic."""

    spans: Sequence[StoredSpan]
    """In order of offsets, those without offsets in order of time."""
    recorded: RangeSet = field(init=False)
    """Offsets that the ledger answers for, whether or not their records could still be read."""
    stored: RangeSet = field(init=False)
    """Offsets whose records, as far as the log held them, are in the backup."""
    expired: RangeSet = field(init=False)
    """Offsets whose records `expire` dropped, since no kept point needs them."""
    restored_at_ms: int | None = field(init=False, default=None)
    """Not before this a restore wrote the first records of the log; None where none did."""
    _ends: list[int] = field(init=False)
    _compacted: list[StoredSpan] = field(init=False)
    _late: "dict[int, tuple[LateHole, ...]]" = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.spans = sorted(self.spans, key=lambda s: (s.start, s.end, s.window))
        self.recorded = RangeSet(OffsetRange(s.start, s.end) for s in self.spans)
        self.stored = RangeSet(offsets for span in self.spans for offsets in span.stored)
        self.expired = RangeSet(OffsetRange(s.start, s.read_start) for s in self.spans if s.expired)
        self._ends = [span.end for span in self.spans]
        self._compacted = [span for span in self.spans if span.is_compacted]

    @property
    def last_window_end_ms(self) -> int:
        """When the last of its windows ended, epoch milliseconds."""
        return max(span.last_window.end_ms for span in self.spans)

    @property
    def begin(self) -> int:
        """Below it the ledger answers for nothing, but nothing was to be had either."""
        first = self.spans[0]
        return first.start if first.begins_life else 0

    @property
    def unbroken_end(self) -> int | None:
        """How far the recorded spans reach from the begin of the life without a missing window.

        Offsets that Kafka had lost before they could be read are no break: nobody can read them
        any more. A span that lacks records for no known cause is one. None when the begin of the
        life was not backed up.
        """
        if not self.spans[0].begins_life:
            return None
        end = self.spans[0].start
        for span in self.spans:
            if span.start > end or not span.complete:
                break
            end = max(end, span.end)
        return end

    def neighbours(self, offset: int) -> tuple[StoredSpan | None, StoredSpan | None]:
        """The spans before and after an offset that no span holds."""
        index = bisect_right(self._ends, offset)
        before = self.spans[index - 1] if index else None
        return before, self.spans[index] if index < len(self.spans) else None

    def compacted_inside(self, whole_from: int, end: int) -> StoredSpan | None:
        """A compacted span that cannot give every record of `[whole_from, end)`.

        Nor the last ones of each key below `whole_from`, if it reaches beyond. None without any.
        """
        spans = self._compacted
        return next((s for s in spans if s.start < end and s.end > whole_from), None)

    def hole_read_after(self, start: int, end: int, ledger_version: int | None) -> int | None:
        """A hole below `end` in a span that reaches above `start` and was read after a point's cut.

        `ledger_version` is that of the ledger before the cut. A span that had been read when the
        ledger was older still was read before the cut: versions only grow, whatever clocks say.
        Where either is not known it counts as read after. None when all such spans were contiguous
        up to `end`.
        """
        holes, ends, read_at = self._thinned
        low, high = bisect_right(ends, start), bisect_left(holes, end)
        if low >= high:
            return None
        latest = low + int(read_at[low:high].argmax())
        before_the_cut = ledger_version is not None and read_at[latest] < ledger_version
        return None if before_the_cut else holes[latest]

    @cached_property
    def _thinned(self) -> tuple[list[int], list[int], npt.NDArray[np.int64]]:
        """First hole, end and version of the ledger of each span with a hole, in order.

        The spans of a life do not overlap, so their ends and first holes come in the same order.
        """
        thinned = [
            (s.first_hole, s.end, _NEVER if s.ledger_version is None else s.ledger_version)
            for s in self.spans
            if s.first_hole is not None
        ]
        holes, ends, read_at = ([one[column] for one in thinned] for column in range(3))
        return holes, ends, np.array(read_at, np.int64)

    def late_holes(self, delete_retention_ms: int) -> tuple["LateHole", ...]:
        """Where a deletion may have been removed before it was backed up, in order of offsets.

        Nothing takes the place of a deletion in the log, so a key that an earlier span holds would
        live on. Kafka keeps a deletion for `delete.retention.ms` from the first cleaning on, and
        this cleaning removes the key's earlier records (KIP-534). It came after an earlier span was
        read, else that span would not hold the key. It also came after the deletion was committed
        (the cleaner stops at the last stable offset), so after the cut that closes the span before
        the hole. A span that was read within `delete.retention.ms` of the later of the two has
        missed none. Half of that time is left for clocks that differ, for cleanings that last,
        and since a span is recorded some time after it was read.
        """
        if delete_retention_ms not in self._late:
            self._late[delete_retention_ms] = tuple(self._find_late(delete_retention_ms))
        return self._late[delete_retention_ms]

    def _find_late(self, delete_retention_ms: int) -> Iterator["LateHole"]:
        first_read_ms = self.restored_at_ms  # the backups of the older log hold what it wrote
        closed: StoredSpan | None = None
        for span in self.spans:
            hole, read_ms = span.first_hole, span.recorded_at_ms
            if hole is not None and first_read_ms is not None:
                cleaned_ms = first_read_ms
                # A time behind the reading comes of a wrong clock.
                if closed and closed.end <= hole and (closed.closed_at_ms or 0) <= read_ms:
                    cleaned_ms = max(cleaned_ms, closed.closed_at_ms or 0)
                if 2 * (read_ms - cleaned_ms) >= delete_retention_ms:
                    yield LateHole(hole, span.end, span.window.key)
            if span.start < span.end:
                first_read_ms = min(read_ms, read_ms if first_read_ms is None else first_read_ms)
            if span.closed_at_ms is not None:
                closed = span


@dataclass(frozen=True, slots=True)
class LateHole:
    """Offsets `[start, end)` of a window's span that may have held deletions."""

    start: int
    end: int
    window: str

    def doubt(
        self, partition: TopicPartitionId, start: int, end: int, saved: RangeSet, retention_ms: int
    ) -> str | None:
        """Why a state that is made of `[start, end)` is not proved; None where it is.

        `saved` are the offsets of which every record was saved with recovery points.
        """
        low, high = max(self.start, start), min(self.end, end)
        if low >= high or saved.reach(low) >= high:
            return None
        return (
            f"{partition}: compaction may have taken deletions before they were backed up with"
            f" window {self.window}: the log did not hold offset {low} any more"
            f" (delete.retention.ms is {retention_ms})"
        )


def chains_of(spans: Iterable[StoredSpan]) -> dict[PartitionLife, Chain]:
    """Spans sorted into chains."""
    grouped: dict[PartitionLife, list[StoredSpan]] = defaultdict(list)
    for span in spans:
        grouped[span.life].append(span)
    return {life: Chain(of_life) for life, of_life in grouped.items()}


_comparisons: dict[StorePath, tuple[tuple[LogState, ...], Comparison]] = {}
"""By records table, how it compared with the ledger when all were in this state."""

_VANISHED = frozenset({GapCause.TOPIC_DELETED, GapCause.TOPIC_RECREATED, GapCause.LOG_TRUNCATED})
"""With these the point that closes the window may not have seen the span's end."""

_COMMITS_AT_ONCE = 10
"""More than other applications commit to the ledger while one of them writes a row."""

_TABLES: Final = ("windows", "increments")
INCREMENT: Final = "+"
"""Stands in keys of increments, between that of their window and their number."""

FOLDED: Final = "~"
"""Stands in keys of rows that `expire` has put together, between their first and last window."""

_KEYS: Final = ["window", "topic"]
_LIFE: Final = [*_KEYS, "partition", "topic_id"]

_LOOKS: Final = 5

T = TypeVar("T")

_NO_PARTITION = -1
"""A topic that had no partition when the window closed has one row: it says the window is done."""


RecordedTopic = tuple[Window, str]
"""A window and the name of a topic."""


class BackedUpTopic(Protocol):
    """A topic in a window that was backed up just now."""

    @property
    def window(self) -> Window: ...

    @property
    def topic(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def spans(self) -> Sequence[SpanResult]: ...

    @property
    def facts(self) -> TopicFacts | None: ...

    @property
    def recovery_point_id(self) -> str | None: ...

    @property
    def delta_version(self) -> int | None: ...


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
class StoredSize:
    """What a topic in a window takes: rows of the ledger, records, and bytes of its files."""

    rows: int
    records: int
    bytes: int


Recorded = Mapping[RecordedTopic, tuple[LedgerEntry, ...]]
"""Rows of the ledger by window and topic; see `LedgerEntry.has_span`."""


@dataclass(frozen=True, slots=True)
class Recording:
    """That a run recorded a topic in a window. Recorded again, it is another recording."""

    window: Window
    topic: str
    run_id: str
    recorded_at_ms: int

    @classmethod
    def of(cls, entries: Sequence[LedgerEntry]) -> "Recording":
        """The recording that the rows of one topic in one window are."""
        result = entries[0].result
        recorded_at_ms = max(entry.recorded_at_ms for entry in entries)
        return cls(result.plan.window, result.partition.topic, entries[0].run_id, recorded_at_ms)


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
        return folded_rows(rows, holes_matter=self.holes_matter)


_ROWS = rows_of(LedgerEntry)


class Ledger:
    """What is backed up, of one application.

    The rows follow the data: a window whose data is there without rows is written again.
    """

    def __init__(self, warehouse: Warehouse, application_id: str) -> None:
        self._table, self._open = (
            Table(
                warehouse.control(name),
                LedgerEntry,
                grows_along="window_start_ms",
                statistics=(
                    "window",
                    "window_start_ms",
                    "window_end_ms",
                    "topic",
                    "recovery_point_id",
                ),
                narrow=True,
            )
            for name in _TABLES
        )
        self.warehouse = warehouse
        self._application_id = application_id
        self._records = warehouse.records(application_id)

    def ensure(self) -> None:
        """Create the ledger, empty, unless it exists.

        That comes before the first records: records without a ledger have lost it.
        """
        self._table.ensure()

    def recorded_spans(
        self, windows: Sequence[Window], topics: Collection[str]
    ) -> list[RecordedSpan]:
        """The spans whose edges bear on these windows: theirs, and the nearest on either side.

        Among them increments where windows are increments.
        """
        rows = self.span_rows(
            topics,
            columns=_ROWS.names(RecordedSpan),
            increments=any(INCREMENT in window.key for window in windows),
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

    def done(
        self, topics: Collection[str], *, windows: Iterable[Window] = ()
    ) -> dict[Window, set[str]]:
        """Windows that are recorded, with their topics among these.

        Of `windows` also those that `expire` has put together with others: all topics of them.
        """
        where = one_of("topic", topics)
        found = self._table.rows_as(_Done, self._application_id, where, distinct=True)
        done = _topics_by_window(one for one in found if not is_folded(one.window))
        put_together = [one.window for one in found if is_folded(one.window)]
        for window in windows:
            # Whatever it did not hold when it was put together cannot be added any more.
            if any(one.start_ms <= window.start_ms < one.end_ms for one in put_together):
                done[window] = {*topics}
        return done

    def not_examined(self, topics: Collection[str]) -> dict[Window, set[str]]:
        """Windows with topics of which the log could not be looked at in time."""
        rows = self.span_rows(topics, columns=[*_ROWS.names(_Done), "gaps"])
        found = pa.array(rows_with_gap(rows, {GapCause.NOT_EXAMINED}), pa.int64())
        return _topics_by_window(_ROWS.read_part(_Done, rows.take(found)))

    def closing_points(self, topics: Collection[str]) -> dict[str, dict[Window, str | None]]:
        """Of each topic, the recovery point (id) that bounds each recorded window."""
        found: dict[str, dict[Window, str | None]] = {}
        where = one_of("topic", topics) & _one_window
        for row in self._table.rows_as(_Closed, self._application_id, where, distinct=True):
            found.setdefault(row.topic, {})[row.window] = row.recovery_point_id
        return found

    def with_offsets(self, topics: Collection[str]) -> set[Window]:
        """The recorded windows that hold an offset of one of these topics."""
        where = one_of("topic", topics) & (pc.field("end") > pc.field("start"))
        found = self._table.rows_as(_Done, self._application_id, where, distinct=True)
        return {one.window for one in found}

    def first_recorded_since(self, version: int, topics: Collection[str]) -> int | None:
        """When the earliest window begins of which one of these topics was recorded since then.

        None where none was. May be earlier: windows of the last commits before count, too.
        """
        # A row notes the version before its commit; other applications commit in between.
        recent = pc.field("ledger_version") >= version - _COMMITS_AT_ONCE
        rows = self._table.read(
            application_id=self._application_id,
            columns=["window_start_ms"],
            where=recent & one_of("topic", topics) & _one_window,
        )
        return min(rows["window_start_ms"].to_pylist(), default=None)

    def recordings(self, topics: Collection[str], *, begins_ms: int) -> list[Recording]:
        """Who recorded the windows that begin at or after an instant, and when, in order."""
        keys = ["window_start_ms", "window_end_ms", "window", "topic", "run_id"]
        rows = self._table.read(
            application_id=self._application_id,
            columns=[*keys, "recorded_at_ms"],
            where=(pc.field("window_start_ms") >= begins_ms)
            & one_of("topic", topics)
            & _one_window,
        )
        rows = rows.group_by(keys).aggregate([("recorded_at_ms", "max")])
        columns = [rows[name].to_pylist() for name in (*keys, "recorded_at_ms_max")]
        recordings = [
            Recording(Window(start_ms, end_ms, key), topic, run_id, recorded_at_ms)
            for start_ms, end_ms, key, topic, run_id, recorded_at_ms in zip(*columns, strict=True)
        ]
        return sorted(recordings, key=lambda recording: (recording.window, recording.topic))

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
        look_s: float = math.inf,
    ) -> DamagedSpans:
        """The spans whose files do not match the ledger, see `Comparison`.

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
        compared = self.compared() if windows is None else self._compare(_chosen(windows, topics))
        compared.look_at_files(look_s)
        return compared.damaged(topics)

    def compared(self) -> Comparison:
        """The ledger and Delta's log, compared again only when one of them changed."""
        # Looked at before the tables are read: what changes meanwhile is seen by the next call.
        state = self._state()
        known, earlier = _comparisons.get(self._records, (None, None))
        if earlier is not None and known == state:
            return earlier
        compared = self._compare(_chosen(None, None), earlier)
        _comparisons[self._records] = (state, compared)
        return compared

    def _compare(self, where: ds.Expression, earlier: Comparison | None = None) -> Comparison:
        def read() -> tuple[pa.Table, pa.Table]:
            # Delta's log takes as long as the ledger, and native code reads both.
            with ThreadPoolExecutor(1) as pool:
                actions = pool.submit(copy_context().run, file_actions, self._records)
                rows = self._spans(DAMAGE_COLUMNS, where, increments=True)
                return rows, actions.result()

        rows, actions = self._at_rest(read)
        return Comparison(self._records, rows, actions, earlier)

    def folded_spans(
        self, topics: Collection[str], *, holes_matter: Collection[str]
    ) -> list[StoredSpan]:
        """As `stored_spans`, neighbouring spans put together (see `chains.folded`), not compared.

        What a file of the table says is remembered in this process, and files never change: a later
        call reads what was added since.
        """
        matter = frozenset(holes_matter)
        files, open_rows = self._at_rest(
            lambda: (
                self._table.fold(
                    self._application_id,
                    COLUMNS,
                    _FoldedFile(matter),
                    where=pc.field("partition") >= 0,
                ),
                self._increments(COLUMNS, _chosen(None, topics)),
            )
        )
        wanted = set(topics)
        spans = (span for file in files for span in file if span.partition.topic in wanted)
        # Of an open window there may be an increment for every other second.
        return folded([*spans, *folded_rows(open_rows, holes_matter=matter)], holes_matter=matter)

    def held_positions(
        self, application: StreamsApplication
    ) -> Mapping[TopicPartitionId, Position]:
        """Of each changelog partition, how far the recorded spans reach without a missing window.

        A point cut now need not save what lies below. Counted from the begin of the newest life of
        the topic; a partition whose begin was never backed up is left out. Everything below the
        position was read before this is asked for, and its files match the ledger.
        """
        topics = {topic.name for topic in application.with_role(TopicRole.CHANGELOG)}
        newest: dict[TopicPartitionId, Chain] = {}
        for chain in chains_of(self.folded_spans(topics, holes_matter=topics)).values():
            partition = chain.spans[0].partition
            other = newest.get(partition)
            if other is None or other.last_window_end_ms < chain.last_window_end_ms:
                newest[partition] = chain
        damaged = self.damaged(topics, look_s=0)
        held: dict[TopicPartitionId, Position] = {}
        for partition, chain in newest.items():
            end = chain.unbroken_end
            if end is not None:
                bad = damaged.inside(chain.spans[0].life, 0, end)
                end = end if bad is None else min(end, bad.start)
                held[partition] = Position(chain.spans[0].topic_id, end)
        return held

    def proven_ranges(
        self, application: StreamsApplication
    ) -> Mapping[TopicPartitionId, Sequence[tuple[str, int, int]]]:
        """Offsets of changelogs, as (topic id, start, end), that backups hold without a hole.

        What was saved of them with recovery points is there a second time.
        """
        topics = {topic.name for topic in application.with_role(TopicRole.CHANGELOG)}
        found: dict[TopicPartitionId, list[tuple[str, int, int]]] = {}
        damaged = self.damaged(topics, look_s=0)
        for span in self.folded_spans(topics, holes_matter=topics):
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
        """These columns of every span of these topics, those of increments if asked for."""
        return self._spans(columns, _chosen(None, topics), increments=increments)

    def all_span_rows(self, columns: Sequence[str]) -> pa.Table:
        """These columns of every span of every topic, those of increments of open windows too.

        Read while nobody commits, if that can be had.
        """
        return self._at_rest(lambda: self._spans(columns, _chosen(None, None), increments=True))

    def _spans(self, columns: Sequence[str], where: ds.Expression, *, increments: bool) -> pa.Table:
        if not increments:
            return self._table.read(
                application_id=self._application_id, columns=columns, where=where
            )
        # First, for they go after their window's rows have come.
        open_ = self._open_rows(columns, where)
        rows = self._table.read(
            application_id=self._application_id,
            columns=[*dict.fromkeys([*columns, *_LIFE])],
            where=where | one_of("window", _parents(open_)),
        )
        kept = rows.filter(where) if open_.num_rows else rows
        return pa.concat_tables([kept.select(columns), _not_closed(open_, rows).select(columns)])

    def _open_rows(self, columns: Sequence[str], where: ds.Expression) -> pa.Table:
        return self._open.read(
            application_id=self._application_id,
            columns=[*dict.fromkeys([*columns, *_LIFE])],
            where=where,
        )

    def _increments(self, columns: Sequence[str], where: ds.Expression) -> pa.Table:
        """These columns of the increments of windows that the ledger does not have yet."""
        open_ = self._open_rows(columns, where)
        if open_.num_rows:
            of_windows = one_of("window", _parents(open_))
            rows = self._table.read(
                application_id=self._application_id, columns=_LIFE, where=of_windows
            )
            open_ = _not_closed(open_, rows)
        return open_.select(columns)

    def _at_rest(self, read: Callable[[], T]) -> T:
        """What `read` makes of tables that nobody has committed to meanwhile, if that can be had.

        A run commits to one after the other: read across such a moment, they do not match.
        """
        state = self._state()
        found = read()
        for _ in range(_LOOKS):
            before, state = state, self._state()
            if before == state:
                break
            found = read()
        return found

    def _state(self) -> tuple[LogState, ...]:
        return tuple(map(log_state, (self._table.path, self._open.path, self._records)))

    def noted_files(self) -> pa.Table:
        """Every file that a row names, increments of closed windows included.

        Columns `window, topic, partition, topic_id, start, path` (as in Delta's log)`, size,
        digest`. Files of earlier releases are not among them.
        """
        columns = ["window", "topic", "partition", "topic_id", "start", "written"]
        rows = pa.concat_tables(
            table.read(application_id=self._application_id, columns=columns)
            for table in (self._open, self._table)
        )
        written = rows["written"].combine_chunks()
        files, of_row = written.flatten(), written.value_parent_indices()
        named = {name: rows[name].combine_chunks().take(of_row) for name in columns[:-1]}
        return pa.table(
            {**named, **{name: files.field(name) for name in ("path", "size", "digest")}}
        )

    def increments_of(
        self, window: Window, topics: Collection[str] | None = None
    ) -> list[LedgerEntry]:
        """The increments of a window, in order, also where the ledger has the window by now."""
        return self.increments_between([window], topics)

    def increments_so_far(self, window: Window) -> tuple[dict[str, int], int]:
        """Where the increments of a window end (epoch ms), by topic, and the next one's number.

        As of `increments_of`, without the rows: a follower asks every few seconds.
        """
        rows = self._open.read(
            application_id=self._application_id,
            columns=["window", "window_end_ms", "topic"],
            where=_inside([window]),
        )
        ends = rows.group_by("topic").aggregate([("window_end_ms", "max")])
        numbers = (int(k.partition(INCREMENT)[2]) for k in rows["window"].unique().to_pylist())
        by_topic = zip(
            ends["topic"].to_pylist(), ends["window_end_ms_max"].to_pylist(), strict=True
        )
        return dict(by_topic), 1 + max(numbers, default=-1)

    def increments_between(
        self, windows: Sequence[Window], topics: Collection[str] | None = None
    ) -> list[LedgerEntry]:
        """As `increments_of`, of all windows from the first to the last of these."""
        if not windows:
            return []
        where = _inside(windows)
        if topics is not None:
            where &= one_of("topic", topics)
        found = self._open.rows(self._application_id, where)
        return sorted(found, key=lambda e: (e.result.plan.window, e.result.partition))

    def closed_with_increments(self) -> list[Window]:
        """Windows that are recorded while increments of them are still there, in order.

        A run takes those away once it has put them together; it may have been killed before.
        """
        rows = self._open.read(application_id=self._application_id, columns=["window"])
        where = one_of("window", _parents(rows))
        found = self._table.rows_as(_Done, self._application_id, where, distinct=True)
        return sorted({one.window for one in found})

    def record_increment(
        self,
        backups: "Sequence[BackedUpTopic]",
        *,
        run_id: str,
        writer: LockHandle | None = None,
    ) -> None:
        """Add the rows of an increment (windows with keys from `increment_key`), in one commit."""
        self._record(self._open, backups, run_id, writer)

    def keep_increments(
        self, window: Window, entries: Sequence[LedgerEntry], writer: LockHandle | None = None
    ) -> None:
        """Drop the increments of a window but for these, in one commit."""
        self._open.replace(
            entries,
            application_id=self._application_id,
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
        entries = table.rows(self._application_id, _chosen(windows, topics))
        return sorted(entries, key=lambda e: (e.result.plan.window, e.result.partition))

    def keys(self) -> set[tuple[str, str]]:
        """Keys of windows and increments that are recorded, with their topics."""
        found: set[tuple[str, str]] = set()
        for table in (self._open, self._table):
            rows = table.read(application_id=self._application_id, columns=_KEYS)
            keys = rows.group_by(_KEYS).aggregate([]).to_pydict()
            found.update(zip(*(keys[name] for name in _KEYS), strict=True))
        return found

    def sizes(self) -> dict[tuple[str, str], StoredSize]:
        """What each window (key) and topic takes, increments too."""
        names = ["records", "stored_bytes"]
        rows = self.every_row([*_KEYS, *names])
        sums = rows.group_by(_KEYS).aggregate(
            [("records", "count"), *((name, "sum") for name in names)]
        )
        keys = zip(*(sums[name].to_pylist() for name in _KEYS), strict=True)
        told = ("records_count", *(f"{name}_sum" for name in names))
        found = map(StoredSize, *(sums[name].to_pylist() for name in told))
        return dict(zip(keys, found, strict=True))

    def last_end_ms(self, topics: Collection[str]) -> int:
        """When the last window or increment of these topics ends; 0 where there is none."""
        rows = self.span_rows(topics, columns=["window_end_ms"], increments=True)
        return pc.call_function("max", [rows["window_end_ms"]]).as_py() or 0

    def first_start_ms(self) -> int | None:
        """When the first recorded window or increment starts, None where there is none."""
        tables = (self._open, self._table)
        starts_ms = [
            pc.call_function("min", [rows["window_start_ms"]]).as_py()
            for table in tables
            for rows in [
                table.read(application_id=self._application_id, columns=["window_start_ms"])
            ]
        ]
        return min((one for one in starts_ms if one is not None), default=None)

    def every_row(self, columns: Sequence[str]) -> pa.Table:
        """These columns of every span of the application, increments too."""
        return self._spans(columns, _chosen(None, None), increments=True)

    def as_spans(self, entries: Sequence[LedgerEntry]) -> list[StoredSpan]:
        """What rows say, as `stored_spans` would give it once they were recorded."""
        return spans_of(_ROWS.write(entries))

    def of_run(self, run_id: str) -> Recorded:
        """What is still as a run recorded it."""
        return self._recorded(pc.field("run_id") == run_id)

    def of_windows(self, windows: Collection[str]) -> Recorded:
        """What these windows (keys) hold."""
        return self._recorded(one_of("window", windows))

    def _recorded(self, where: ds.Expression) -> Recorded:
        found: dict[RecordedTopic, list[LedgerEntry]] = {}
        entries = self._table.rows(self._application_id, where)
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
        """Put the rows of these windows and topics in place of earlier ones, in one commit.

        `writer` is the lock of the application under which they were backed up. `kept` are rows of
        the same windows and topics that stay, with the time at which they were read.

        Raises:
            LeaseLostError: Another writer has the lock by now; nothing was written.
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
            application_id=self._application_id,
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
        """Put rows that stand for several windows in place of these, in one commit.

        `windows` are those of each topic, which go.

        Raises:
            LeaseLostError: Another writer has the lock by now; nothing was written.
        """
        replaced = {(window, topic) for topic, of_it in windows.items() for window in of_it}
        replaced |= {(row.result.plan.window, row.result.partition.topic) for row in rows}
        pairs = windows_and_topics(WindowTopic(window.key, topic) for window, topic in replaced)
        every = [window for window, _ in replaced]
        begins_ms = pc.field("window_start_ms")
        self._table.replace(
            rows,
            application_id=self._application_id,
            where=(begins_ms >= min(one.start_ms for one in every))
            & (begins_ms <= max(one.start_ms for one in every))
            & pairs,
            writer=self._writer(writer),
        )

    @contextmanager
    def locked(self, purpose: str, wait_s: float) -> Iterator[LockHandle]:
        """Hold the application's lock, with the warehouse in order: no earlier writer commits any
        more, and what killed ones left is gone.

        Raises:
            NewerLayoutError: A newer release wrote a table; nothing was touched.
            WarehouseLockedError: Another run holds the lock for longer than `wait_s` seconds.
            WarehouseError: The warehouse cannot be read or written.
        """
        path = self.warehouse.lock_file(self._application_id)
        with warehouse_lock(path, purpose=purpose, wait_s=wait_s) as lock:
            records = open_records(self._records, to_write=True)
            refuse_newer_tables(self.warehouse)
            self.fence(lock)
            sweep(self._records, fence(self._records, records, lock))
            yield lock

    def fence(self, lock: LockHandle) -> None:
        """Let no earlier writer of the application commit to the ledger any more.

        The lock is new; where it does not know of writers that only the tables tell of (a copied
        warehouse), it becomes later than they. It has to be raised before records are committed.

        Raises:
            WarehouseError: The ledger cannot be read or written.
        """
        fence_tables(
            (self._table, self._open, topics_table(self.warehouse)),
            Writer(self._application_id, lock),
        )

    def _writer(self, lock: LockHandle | None) -> Writer | None:
        return None if lock is None else Writer(self._application_id, lock)

    def version(self) -> int:
        """The version of the ledger; it grows with each change."""
        return ledger_version(self.warehouse)


def ledger_version(warehouse: Warehouse) -> int:
    """The version of the ledger of all applications; it grows with each change.

    -1 while nobody has written it.
    """
    windows, increments = (table_version(warehouse.control(name)) for name in _TABLES)
    return windows + increments + 1


def is_folded(window: Window) -> bool:
    """Whether it stands for several windows, which `expire` has put together."""
    return FOLDED in window.key


_folds = pc.match_substring(  # pyright: ignore[reportAttributeAccessIssue] (made at run time)
    pc.field("window"), FOLDED
)
_one_window = ~_folds
"""A filter for rows of one window each."""


def increment_key(window: Window, number: int) -> str:
    """The key under which an increment of a window is recorded, its files and its rows."""
    return f"{window.key}{INCREMENT}{number:06d}"


def _chosen(windows: Collection[str] | None, topics: Collection[str] | None) -> pc.Expression:
    where = pc.field("partition") >= 0
    if windows is not None:
        where &= one_of("window", windows)
    if topics is not None:
        where &= one_of("topic", topics)
    return where


def _inside(windows: Sequence[Window]) -> pc.Expression:
    """Rows of what lies between the begin of the first and the end of the last of these."""
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
    """Of each partition, the rows of the window nearest to an edge on one side of it."""
    side = rows.filter(pc.field(column) <= edge_ms if before else pc.field(column) >= edge_ms)
    extreme = side.group_by(["topic", "partition"]).aggregate(
        [(column, "max" if before else "min")]
    )
    extreme = extreme.rename_columns(["topic", "partition", column])
    return side.join(extreme, ["topic", "partition", column], join_type="left semi")


def _parents(increments: pa.Table) -> list[str]:
    """The keys of the windows of increments."""
    keys = increments["window"].unique().to_pylist()
    return sorted({key.partition(INCREMENT)[0] for key in keys})


def _not_closed(increments: pa.Table, rows: pa.Table) -> pa.Table:
    """The increments of partitions that rows of the ledger do not have in their window yet."""
    if increments.num_rows == 0 or rows.num_rows == 0:
        return increments
    known = {*zip(*(rows[name].to_pylist() for name in _LIFE), strict=True)}
    keys = (key.partition(INCREMENT)[0] for key in increments["window"].to_pylist())
    lives = zip(keys, *(increments[name].to_pylist() for name in _LIFE[1:]), strict=True)
    open_ = [number for number, life in enumerate(lives) if life not in known]
    return increments.take(pa.array(open_, pa.int64()))


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
    expired = [False] * rows.num_rows
    for index in rows_with_gap(rows, {GapCause.EXPIRED}):
        expired[index] = True
    every = [True] * rows.num_rows
    for index in rows_with_gap(rows, {GapCause.FOLDED}):
        every[index] = False
    unread: list[RangeSet | None] = [None] * rows.num_rows
    for index, ranges in _unread_in_the_middle(rows).items():
        unread[index] = ranges
    columns = [rows.column(name).to_pylist() for name in COLUMNS[:-1]]
    known = (complete, seen_at_end, expired, every, unread)
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
        closed_at_ms=_closed_at_ms(recovery_point_id, seen_at_end, recorded_at_ms),
        expired=expired,
        has_every_record=has_every_record,
        unread=unread,
    )


def _closed_at_ms(point_id: str | None, seen_at_end: bool, recorded_at_ms: int) -> int | None:
    closed_at_ms = taken_at_of(point_id) if point_id and seen_at_end else None
    # Later than the recording: a clock was wrong.
    return None if closed_at_ms is None or closed_at_ms > recorded_at_ms else closed_at_ms


def folded_rows(rows: pa.Table, *, holes_matter: Set[str] | None = None) -> list[StoredSpan]:
    """`folded(spans_of(rows))`, with objects only for what remains: rows come by the million."""
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
    every = _without(rows, {GapCause.FOLDED})[order]
    unread = _unread_in_the_middle(rows)
    # As in `_span`: where nobody looked, the first offset may be a hole.
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
    read = np.minimum.reduceat(np.where(start < end, recorded, _NEVER), firsts)
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
        names = ("window_start_ms", "window_end_ms", "window")
        start_ms, end_ms, key = (columns[name][row].as_py() for name in names)
        return Window(start_ms, end_ms, key)

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
                recorded_at_ms=one["recorded_at_ms"] if read_ms == _NEVER else read_ms,
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
    """Of each row a number that stands for its partition and life, in their order, and whether
    holes matter in its topic."""
    topics, topic = _ranked(columns["topic"])
    lives, life = _ranked(columns["topic_id"])
    partition = columns["partition"].to_numpy().astype(np.int64) - _NO_PARTITION
    codes = (topic * (int(partition.max()) + 1) + partition) * len(lives) + life
    matter = np.array([holes_matter is None or name in holes_matter for name in topics], np.bool_)
    return codes, matter[topic]


def _ranked(column: pa.Array) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The distinct texts in order, and of each row the number of its own."""
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
    # Files are in order of time, and so are the offsets of a life: then there is nothing to sort.
    if ((ordered[1:] != ordered[:-1]) | (starts[1:] > starts[:-1])).all():
        return order
    return np.lexsort((_ranked(windows)[1], *reversed(keys), life))


def _without(rows: pa.Table, causes: Collection[GapCause]) -> npt.NDArray[np.bool_]:
    """Which rows lack no records for one of these causes."""
    sound = np.ones(rows.num_rows, np.bool_)
    sound[rows_with_gap(rows, causes)] = False
    return sound


def rows_with_gap(rows: pa.Table, causes: Collection[GapCause]) -> list[int]:
    """Numbers of the rows that lack records for one of these causes, without objects of gaps."""
    gaps = rows.column("gaps").combine_chunks()
    by_row = pa.table({"row": gaps.value_parent_indices(), "cause": gaps.flatten().field("cause")})
    found = by_row.filter(one_of("cause", [cause.value for cause in causes]))
    return found.column("row").to_pylist()


def _unread_in_the_middle(rows: pa.Table) -> dict[int, RangeSet]:
    """By number of the row, the offsets that could not be read, where some below `read_start` are
    stored all the same.

    Increments become one row when their window closes. If a topic vanished or lost records after
    the first of them, what they held before is stored nevertheless.
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
        # Rows of earlier releases may give one gap of a cause for several: where is not known.
        if known and all(gap["offsets"] == gap["end"] - gap["start"] for gap in known):
            found[index] = RangeSet(OffsetRange(gap["start"], gap["end"]) for gap in known)
    return found


COLUMNS = [*[*inspect.signature(_span).parameters][5:], "gaps"]
"""The columns that `spans_of` needs."""


@dataclass(frozen=True, slots=True)
class NotedTopic:
    """A row of the table."""

    application_id: ApplicationId
    window: Annotated[str, WINDOW_KEY]
    window_end_ms: Annotated[int, WINDOW_END]
    topic: TopicName
    role: Annotated[str, Column("Roles, joined with `+`.")]
    facts: TopicFacts


def topics_table(warehouse: Warehouse) -> Table[NotedTopic]:
    """The table of what topics looked like."""
    return Table(
        warehouse.control("topics"),
        NotedTopic,
        grows_along="window_end_ms",
        statistics=("window", "window_end_ms", "topic"),
        narrow=True,
    )


class TopicFactsTable:
    """What topics of one application looked like, window by window."""

    def __init__(self, warehouse: Warehouse, application_id: str) -> None:
        self._table = topics_table(warehouse)
        self._application_id = application_id

    def record(self, backups: Sequence[BackedUpTopic], *, writer: LockHandle | None = None) -> None:
        """Put the facts of these windows and topics in place of earlier ones, in one commit.

        `writer` is the application's lock, under which they came about.

        Raises:
            LeaseLostError: Another writer has the lock by now; nothing was written.
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
            application_id=self._application_id,
            where=(pc.field("window_end_ms") >= min(ends_ms))
            & (pc.field("window_end_ms") <= max(ends_ms))
            & pairs,
            writer=None if writer is None else Writer(self._application_id, writer),
        )

    def delete_retention_ms(self, topics: Collection[str]) -> Mapping[str, int]:
        """The shortest time for which topics ever kept deletions, where that was recorded."""
        wanted = set(topics)
        least: dict[str, int] = {}
        columns = ["topic", "configs", "effective_configs"]
        for of_file in self._table.fold(self._application_id, columns, _least_delete_retention_ms):
            for topic in wanted & of_file.keys():
                least[topic] = min(of_file[topic], least.get(topic, of_file[topic]))
        return least

    def roles(self) -> Mapping[str, str]:
        """The roles of each topic, joined with `+`, as noted last."""
        names = ["topic", "role"]
        found: dict[str, str] = {}
        for of_file in self._table.fold(self._application_id, names, _roles):
            found |= of_file
        return found

    def before(self, instant_ms: int) -> Mapping[str, TopicFacts]:
        """Of each topic, what was noted at the last window that ended at or before an instant."""
        where = pc.field("window_end_ms") <= instant_ms
        rows = self._table.read(application_id=self._application_id, where=where)
        return _last_noted(rows, rows["topic"].to_pylist())

    def of_incarnations(self) -> Mapping[tuple[str, str], TopicFacts]:
        """By topic and topic id what was noted last, in order of time."""
        rows = self._table.read(application_id=self._application_id)
        keys = zip(rows["topic"].to_pylist(), rows["topic_id"].to_pylist(), strict=True)
        return _last_noted(rows, [*keys])

    def between(self, from_ms: int, to_ms: int) -> list[NotedTopic]:
        """What was noted at windows that end after one instant and not after another, in order."""
        ends_ms = pc.field("window_end_ms")
        rows = self._table.rows(self._application_id, (ends_ms > from_ms) & (ends_ms <= to_ms))
        return sorted(rows, key=lambda row: row.window_end_ms)

    def rows(self, topics: Iterable[str]) -> pa.Table:
        """All that was noted of these topics; columns of `NotedTopic`."""
        return self._table.read(application_id=self._application_id, where=one_of("topic", topics))


K = TypeVar("K")


def _last_noted(rows: pa.Table, keys: Sequence[K]) -> dict[K, TopicFacts]:
    """Of the rows of each key the last one, in order of time."""
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
    told = pc.coalesce(effective, own)  # pyright: ignore[reportAttributeAccessIssue]
    table = pa.table({"topic": rows["topic"], "ms": told.cast(pa.int64())})
    least = table.filter(pc.field("ms").is_valid()).group_by("topic").aggregate([("ms", "min")])
    return dict(zip(least["topic"].to_pylist(), least["ms_min"].to_pylist(), strict=True))


def facts_in(rows: pa.Table) -> list[TopicFacts]:
    """The facts in rows of the table."""
    return rows_of(NotedTopic).read_part(TopicFacts, rows)
