"""Drops recovery points by policy, and of the backups what no kept point needs.

The points go first, in one commit, so that nothing is listed that is about to lose its records.
Then, topic by topic, windows that lie between two kept points are put together:

- of a store's changelog the last record of each key stays, with its offset, as Kafka's compaction
  would leave it; deletions stay as long as something before them may still hold their key;
- inputs, outputs and records in flight go below the least that any kept point needs; where Kafka
  compacts the topic, the last record of each key stays;
- what stays of them becomes one row and one file of each partition.

New files are written and looked at while backups go on. Under the locks of the application and of
its recorder the needs of all points are read again, and every one of them must restore as it did.
One commit adds the files, one changes the ledger, and only then the old files go. A run that is
killed anywhere is finished by the next one.
"""

import logging
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import accumulate, chain

from kstreams_assets.app.model import TopicRoles
from kstreams_assets.app.store_format import StoreKind, format_of
from kstreams_assets.backup.fold import Pieces, drop_superseded, fold_tasks, gaps_together
from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.checks import Severity
from kstreams_assets.errors import ConfigurationError, StoredDataError
from kstreams_assets.ktables.snapshot import Snapshot
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.ktables.table import open_table
from kstreams_assets.lease import LockHandle, warehouse_lock
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.settings import ApplicationSettings, KeepSettings
from kstreams_assets.store import StorePath
from kstreams_assets.texts import bytes_text
from kstreams_assets.upkeep.needs import PartitionNeed, TopicNeeds, Untouched, roles_of
from kstreams_assets.upkeep.policy import first_index, kept_points
from kstreams_assets.warehouse.committer import NewFile, commit, fence, uncommitted
from kstreams_assets.warehouse.contents import Contents
from kstreams_assets.warehouse.judge import RANK, PointStatus, Restores
from kstreams_assets.warehouse.ledger import (
    DELETE_RETENTION_MS,
    FOLDED,
    INCREMENT,
    Ledger,
    LedgerEntry,
    StoredSize,
    StoredSpan,
    TopicFactsTable,
    chains_of,
    is_folded,
)
from kstreams_assets.warehouse.lineage import points_of_restores
from kstreams_assets.warehouse.point import (
    PartitionLife,
    RecoveryPoint,
    in_order,
    topic_id_of,
)
from kstreams_assets.warehouse.points import (
    PinsTable,
    PointInstant,
    RecoveryPointTable,
    points_locked,
)
from kstreams_assets.warehouse.records import (
    SpanId,
    contents_of,
    ensure_records,
    file_actions,
    tidy_files,
    tidy_records,
)
from kstreams_assets.warehouse.restores import RestoresTable
from kstreams_assets.warehouse.spans import (
    Gap,
    GapCause,
    SpanContent,
    SpanResult,
    TopicFacts,
    Window,
)
from kstreams_assets.warehouse.table import require_backup
from kstreams_assets.warehouse.verifications import Verified
from spark_resources.span_tasks import LastOfEachKey

_RATIO = 4
_AT_ONCE = 2
"""Partitions that are put together at a time."""

_LOT_BYTES = 2**30
"""A run that is killed does at most so much again."""
_LOT_ROWS = 50_000
"""Rows of the ledger that are in memory at a time."""

_log = logging.getLogger(__name__)


class Change(StrEnum):
    """What becomes of windows that are put together.

    `drop`: no record stays. `fold`: the last one of each key. `join`: all of them.
    """

    DROP = "drop"
    FOLD = "fold"
    JOIN = "join"


@dataclass(frozen=True, slots=True)
class TopicChange:
    """Windows of one topic that become one row of each partition, and what they take now.

    `without_deletions`: when they are folded, nothing lies before them that still needs a deletion.
    """

    topic: str
    what: Change
    windows: tuple[Window, ...]
    without_deletions: bool
    rows: int
    records: int
    bytes: int

    @property
    def window(self) -> Window:
        """The one that stands for all of them."""
        first, last = self.windows[0], self.windows[-1]
        begin, end = first.key.partition(FOLDED)[0], last.key.rpartition(FOLDED)[2]
        return Window(first.start_ms, last.end_ms, f"{begin}{FOLDED}{end}")


@dataclass(frozen=True, slots=True)
class ExpirePlan:
    """What `expire` would do. `kept` are point ids with the lines of the policy that keep them.

    `going` are points that go, with the time at which they were taken (epoch milliseconds).
    `waits` says why windows are not put together now; empty where they are.
    `notes` are for the operator.
    """

    application_id: str
    policy: KeepSettings
    kept: Mapping[str, tuple[str, ...]]
    going: Mapping[str, int]
    snapshots: tuple[Snapshot, ...] = ()
    changes: tuple[TopicChange, ...] = ()
    waits: str = ""
    notes: tuple[str, ...] = ()

    @property
    def by_line(self) -> dict[str, int]:
        """How many points each line of the policy keeps; one point may be kept by several."""
        found: dict[str, int] = defaultdict(int)
        for lines in self.kept.values():
            for line in lines:
                found[line] += 1
        return dict(found)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.going or self.snapshots or self.changes)


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What came of the windows of a topic; sizes in bytes, as stored."""

    topic: str
    what: Change
    window: str
    windows: int
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class ExpireResult:
    """What a run has done."""

    plan: ExpirePlan
    topics: tuple[TopicResult, ...] = ()
    took_s: float = 0.0

    @property
    def bytes_freed(self) -> int:
        """How much less the backups take; files on the disk go some hours later."""
        return sum(one.bytes_before - one.bytes_after for one in self.topics)


def plan_expire(settings: ApplicationSettings, *, now_ms: int | None = None) -> ExpirePlan:
    """What `expire` would do now; writes nothing.

    Raises:
        ConfigurationError: The application has no policy.
        StoredDataError: Something is damaged, or no recovery point could be restored; then nothing
            may go.
        WarehouseError: There is no warehouse, or it cannot be read.
    """
    if settings.keep is None:
        raise ConfigurationError(
            f"{settings.application_id} has no policy: what may expire is not said.",
            remedy="Write it into its YAML, as keep: {all: 2d, hourly: 7d, daily: 90d}.",
        )
    require_backup(settings.warehouse, settings.application_id)
    return _planner(settings, now_ms).plan()


def _planner(settings: ApplicationSettings, now_ms: int | None) -> "_Planner":
    policy = settings.keep or KeepSettings(all_s=0)
    moment = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return _Planner(settings, policy, moment)


class _Planner:
    """One look at an application's points and backups."""

    def __init__(self, settings: ApplicationSettings, policy: KeepSettings, now_ms: int) -> None:
        self._settings, self._policy, self._now_ms = settings, policy, now_ms
        self._id = settings.application_id
        self._points = RecoveryPointTable(settings.warehouse)
        self._contents = Contents.of(settings)
        self._statuses: dict[str, PointStatus | None] = {}
        self._notes: list[str] = []

    def going(self) -> set[str]:
        """Ids of the points that go."""
        instants = self._points.instants(self._id)
        return {i.id for i in instants} - self._kept(instants).keys()

    def plan(self) -> ExpirePlan:
        self._require_sound()
        instants = self._points.instants(self._id)
        kept = self._kept(instants)
        going = {i.id: i.taken_at_ms for i in instants if i.id not in kept}
        restorable = any(
            (status := self._judge(id_)) is not None and status.covered for id_ in kept
        )
        if going and not restorable:
            raise StoredDataError(
                subject=f"The warehouse of {self._id}",
                problem="holds no recovery point that could be restored, so nothing of it expires",
                remedy="See kstreams-assets recovery-points list for why, back up what is due, then"
                " run expire again.",
            )
        waits = self._waits()
        changes = self.changes_of([i for i in instants if i.id in kept])
        changes = changes if restorable else ()
        return ExpirePlan(
            application_id=self._id,
            policy=self._policy,
            kept=kept,
            going=going,
            snapshots=tuple(self._snapshots(kept, changes)),
            changes=changes,
            waits=waits,
            notes=tuple(dict.fromkeys(self._notes)),
        )

    def _require_sound(self) -> None:
        """What is damaged can be repaired; points that it takes away now must not go for it."""
        spans = (
            f"{span}"
            for span in self._ledger.damaged()
            if (span.window, span.topic) not in self._given_up
        )
        told = (
            f"{one.place}: {one.problem}"
            for one in self._verified.open
            if one.severity is Severity.ERROR
        )
        problem = next(chain(spans, told), None)
        if problem is not None:
            raise StoredDataError(
                subject=f"The warehouse of {self._id}",
                problem=f"is damaged, so nothing of it expires: {problem}",
                remedy="Mend it first (kstreams-assets verify --repair), or bring it back from a"
                " second copy; kstreams-assets verify --full then says that it is sound. Give up"
                " what nobody can bring back: verify --full --accept REASON.",
            )

    @cached_property
    def _verified(self) -> Verified:
        return Verified.of(self._settings.warehouse, self._id)

    @cached_property
    def _given_up(self) -> frozenset[tuple[str | None, str | None]]:
        """Windows (keys) and topics of damage that somebody has accepted as lost."""
        return frozenset((one.window, one.topic) for one in self._verified.open if one.accepted)

    def _judge(self, point_id: str) -> PointStatus | None:
        if point_id not in self._statuses:
            (self._statuses[point_id],) = self._contents.statuses_of([point_id])
        return self._statuses[point_id]

    def _kept(self, instants: Sequence[PointInstant]) -> dict[str, tuple[str, ...]]:
        settings, warehouse = self._settings, self._settings.warehouse
        due = [status.window for status in window_statuses(settings) if status.is_due]
        return kept_points(
            instants,
            self._judge,
            self._policy,
            now_ms=self._now_ms,
            timezone=settings.windows.timezone,
            backed_up_to_ms=self._ledger.last_end_ms({topic.name for topic in settings.topics}),
            pinned={pin.recovery_point_id for pin in PinsTable(warehouse).of(self._id)},
            restored=points_of_restores(warehouse, self._id),
            due_edges_ms={edge for window in due for edge in (window.start_ms, window.end_ms)},
        )

    def _waits(self) -> str:
        writing = RestoresTable(self._settings.warehouse).writing(self._id)
        if not writing:
            return ""
        return (
            f"Restore {writing[0].restore_id} is not verified yet and reads the backups as they"
            " are: windows are put together once it is. Run it again, or give it up:"
            f" kstreams-assets restore abandon --restore {writing[0].restore_id}."
        )

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger(self._settings.warehouse, self._id)

    def _snapshots(
        self, kept: Mapping[str, object], changes: Iterable[TopicChange]
    ) -> Iterator[Snapshot]:
        """Those of points that go, but the last one of each store: later ones build on it."""
        inside = {
            (change.topic, window.end_ms) for change in changes for window in change.windows[:-1]
        }
        found = SnapshotsTable(self._settings.warehouse).of(self._id)
        newest = {s.store: s.window for s in found}
        for snapshot in found:
            if snapshot.point_id in kept:
                continue
            # What ends within windows that are put together, nothing can build on.
            if snapshot.window < newest[snapshot.store] or (
                (snapshot.topic, snapshot.window.end_ms) in inside
            ):
                yield snapshot

    def changes(self) -> tuple[TopicChange, ...]:
        """What is to be put together, given all points that are there."""
        return self.changes_of(self._points.instants(self._id))

    def changes_of(self, listed: Sequence[PointInstant]) -> tuple[TopicChange, ...]:
        """What is to be put together if these points are all there are."""
        bounds = self._bounds(listed)
        if not bounds or self._waits():
            return ()
        ids = {instant.id for instant in listed}
        found: list[TopicChange] = []
        facts = TopicFactsTable(self._settings.warehouse, self._id)
        topics = {topic.name: topic.roles for topic in self._settings.topics}
        retention, noted = facts.delete_retention_ms(topics), facts.of_incarnations()
        newest = {topic: of_topic for (topic, _), of_topic in noted.items()}
        sizes = self._ledger.sizes()
        for name, declared in sorted(topics.items()):
            # Of one topic at a time: there may be millions.
            spans = [s for s in self._ledger.stored_spans({name}) if INCREMENT not in s.window.key]
            points = [p for p in self._points.of_topic(self._id, name) if p.id in ids]
            roles = roles_of(declared, points)
            configs = newest[name].known_configs if name in newest else {}
            is_compacted = _is_compacted(name, spans, noted, newest.get(name))
            below, between = self._changes_by_need(name, roles, configs, is_compacted)
            lag_ms = int(configs.get(_MIN_LAG, 0)) if is_compacted else 0
            topic = _Topic(
                name,
                spans,
                TopicNeeds.of(
                    points,
                    roles,
                    whole_logs=self._policy.whole_logs,
                    # State needs no history, which somebody else who reads the topic may.
                    untouched=None
                    if lag_ms == 0 or roles.changelog_only
                    else _untouched(spans, lag_ms),
                ),
                next((p for p in reversed(points) if p.id in bounds and p.partitions), None),
                below=below,
                between=between,
                is_changelog=roles.changelog_only,
                delete_retention_ms=retention.get(name, DELETE_RETENTION_MS),
                sizes=sizes,
                given_up={window for window, topic_of in self._given_up if topic_of == name},
            )
            found += topic.changes()
        return tuple(found)

    def _bounds(self, instants: Iterable[PointInstant]) -> set[str]:
        """Ids of the points up to the first one from which on all of them are kept.

        Only windows below it are put together. Their rows are as they were written.
        """
        ordered = sorted(instants, key=in_order)
        all_from_ms = self._now_ms - 1000 * self._policy.all_s
        few: list[str] = []
        for instant in ordered:
            few.append(instant.id)
            if instant.effective_at_ms >= all_from_ms:
                break
        return {point.id for point in self._points.load(self._id, few)}

    def _changes_by_need(
        self,
        name: str,
        roles: TopicRoles,
        configs: Mapping[str, str],
        is_compacted: bool | None,
    ) -> tuple[Change, Change]:
        """What becomes of windows below the least need of all points, and of those above."""
        if guesses := self._settings.application.guesses_about(topics=[name]):
            self._notes.append(f"All records of {name} stay: {guesses[0]} {guesses[0].remedy}")
            return Change.JOIN, Change.JOIN
        if roles.rebuilds_store:  # what lies below a point is its state
            folds = self._folds(name, roles, configs, is_compacted)
            return (Change.FOLD, Change.FOLD) if folds else (Change.JOIN, Change.JOIN)
        if roles.in_flight_only:
            return Change.DROP, Change.JOIN
        if is_compacted is None:
            self._notes.append(
                f"All records of {name} stay: whether Kafka compacts it is not known, or changed"
                " when the topic was recreated."
            )
            return Change.JOIN, Change.JOIN
        return (Change.FOLD if is_compacted else Change.DROP), Change.JOIN

    def _folds(
        self,
        name: str,
        roles: TopicRoles,
        configs: Mapping[str, str],
        is_compacted: bool | None,
    ) -> bool:
        """Whether of its records the last one of each key will do."""
        if not (roles.changelog_only or is_compacted):
            return False  # others write it: only what Kafka itself would compact is folded
        settings = self._settings
        for store in settings.application.stores:
            if store.changelog != name:
                continue
            told = format_of(store.name, settings.store_formats)
            lag = int(configs.get(_MIN_LAG, 0)) > 0
            if told.kind is StoreKind.VERSIONED or (
                told.kind is StoreKind.KEY_VALUE and told.undeclared and lag
            ):
                self._notes.append(
                    f"All records of {name} stay: its store {store.name} is versioned, or may be"
                    f" (its kind is not declared, and the topic has {_MIN_LAG} set)."
                )
                return False
        return True


_MIN_LAG = "min.compaction.lag.ms"


def _is_compacted(
    name: str,
    spans: Iterable[StoredSpan],
    noted: Mapping[tuple[str, str], TopicFacts],
    newest: TopicFacts | None,
) -> bool | None:
    """Whether Kafka compacts a topic; None: not known, or not the same in all its incarnations.

    What was noted last counts, where nothing was noted of an incarnation.
    """
    facts = {noted.get((name, id_), newest) for id_ in {topic_id_of(s.topic_id) for s in spans}}
    found = {
        None if one is None else "compact" in one.known_configs.get("cleanup.policy", "")
        for one in facts
    }
    return found.pop() if len(found) == 1 else None


def _untouched(spans: Iterable[StoredSpan], lag_ms: int) -> Untouched:
    """Records younger than `min.compaction.lag.ms` are not compacted."""
    by_life: dict[PartitionLife, list[StoredSpan]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.window.end_ms):
        by_life[span.life].append(span)
    older = {
        life: (
            [span.window.end_ms for span in of_life],
            [0, *accumulate((span.end for span in of_life), max)],
        )
        for life, of_life in by_life.items()
    }

    def untouched(life: PartitionLife, at_ms: int) -> int:
        ends_ms, reached = older.get(life, ([], [0]))
        return reached[bisect_right(ends_ms, at_ms - lag_ms)]

    return untouched


@dataclass(frozen=True, slots=True)
class _Piece:
    """What would become one row: offsets of a partition in one incarnation of its topic."""

    life: PartitionLife
    start: int
    end: int


class _Topic:
    """The windows of one topic, and what the listed points need of them.

    Windows above `last`, the last point between which windows are put together, stay as they are.
    """

    def __init__(
        self,
        name: str,
        spans: Sequence[StoredSpan],
        needs: TopicNeeds,
        last: RecoveryPoint | None,
        *,
        below: Change,
        between: Change,
        is_changelog: bool,
        delete_retention_ms: int,
        sizes: Mapping[tuple[str, str], StoredSize],
        given_up: Set[str | None],
    ) -> None:
        self._name, self._needs, self._last = name, needs, last
        self._below, self._between, self._is_changelog = below, between, is_changelog
        by_window: dict[Window, list[StoredSpan]] = defaultdict(list)
        for span in spans:
            by_window[span.window].append(span)
        self._sizes = sizes
        self._windows = sorted(by_window)
        self._rows = [by_window[window] for window in self._windows]
        late = {
            hole.window
            for chain in chains_of(spans).values()
            for hole in chain.late_holes(delete_retention_ms)
        }
        # Nothing is put together across what is not whole, not proved, or not next to each other.
        self._breaks = {
            index
            for index, (window, rows) in enumerate(zip(self._windows, self._rows, strict=True))
            if window.key in late or window.key in given_up or not all(row.complete for row in rows)
        }

    def changes(self) -> list[TopicChange]:
        """What is to be put together."""
        below = 0 if self._below is self._between else self._below_need()
        found: list[TopicChange] = []
        if self._below is Change.DROP:
            if below and not self._is_dropped(below):
                found.append(self._change(Change.DROP, 0, below))
        else:
            found += self._together(self._below, 0, below)
        return found + self._together(self._between, below, self._top())

    def _together(self, what: Change, low: int, high: int) -> list[TopicChange]:
        found: list[TopicChange] = []
        for begin, end in self._runs(what, low, high):
            sizes = [self._size(window).bytes for window in self._windows[begin:end]]
            first = begin + first_index(sizes, ratio=_RATIO)
            if end - first >= 2:
                found.append(self._change(what, first, end))
        return found

    def _change(self, what: Change, low: int, high: int) -> TopicChange:
        windows = tuple(self._windows[low:high])
        sizes = [self._size(window) for window in windows]
        return TopicChange(
            self._name,
            what,
            windows,
            without_deletions=low == 0 and self._is_changelog,
            rows=sum(size.rows for size in sizes),
            records=sum(size.records for size in sizes),
            bytes=sum(size.bytes for size in sizes),
        )

    def _size(self, window: Window) -> StoredSize:
        return self._sizes.get((window.key, self._name), StoredSize(0, 0, 0))

    def _is_dropped(self, count: int) -> bool:
        # By itself such a row would be replaced by one with its own key, in two commits.
        return count == 1 and is_folded(self._windows[0])

    def _need(self, life: PartitionLife) -> PartitionNeed:
        return self._needs.of_life(life)

    def _below_need(self) -> int:
        """How many windows, from the first on, hold nothing of which a point needs every record."""
        lives: dict[TopicPartitionId, PartitionLife] = {}
        for count, rows in enumerate(self._rows):
            for row in rows:
                before, need = lives.get(row.partition, row.life), self._need(row.life)
                is_later = row.start < row.end and row.window.end_ms > need.lacked_from_ms + 1
                if row.end > need.least or is_later or self._hides(before, row.life):
                    return count
                lives[row.partition] = row.life
        return len(self._rows)

    def _hides(self, before: PartitionLife, life: PartitionLife) -> bool:
        """One row cannot stand for two incarnations: some point still has the earlier one."""
        return before != life and self._need(before).is_listed

    def _top(self) -> int:
        """How many windows, from the first on, lie below the last point."""
        last = self._last
        if last is None:
            return 0
        for count, rows in enumerate(self._rows):
            for row in rows:
                cut = last.cut(row.partition)
                if (
                    row.end > cut.end
                    if cut is not None and cut.topic_id == row.topic_id
                    else row.window.end_ms > last.effective_at_ms + 1
                ):
                    return count
        return len(self._rows)

    def _runs(self, what: Change, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Windows `[begin, end)` that may become one, as many as possible at a time."""
        begin = low
        pieces: dict[TopicPartitionId, _Piece] = {}
        for index in range(low, high):
            windows = self._windows
            follows = index > begin and windows[index - 1].end_ms == windows[index].start_ms
            joined = self._joined(what, index, pieces) if follows else None
            if joined is None:
                yield begin, index
                begin, pieces, joined = index, {}, self._joined(what, index, {})
            if joined is None:
                begin = index + 1  # a point stands within it, or it has to stay as it is
            else:
                pieces |= joined
        yield begin, high

    def _joined(
        self, what: Change, index: int, before: Mapping[TopicPartitionId, _Piece]
    ) -> dict[TopicPartitionId, _Piece] | None:
        """What a window makes of the pieces before it; None where some point forbids it."""
        if index in self._breaks:
            return None
        found: dict[TopicPartitionId, _Piece] = {}
        for row in self._rows[index]:
            earlier = before.get(row.partition, _Piece(row.life, row.start, row.start))
            if self._hides(earlier.life, row.life):
                return None
            if earlier.life != row.life:
                earlier = _Piece(row.life, row.start, row.start)
            need, piece = self._need(row.life), replace(earlier, end=row.end)
            if earlier.end != row.start:
                return None
            if what is Change.FOLD:
                if not need.allows(piece.start, piece.end):
                    return None
            elif row.is_compacted or need.ends_inside(piece.start, piece.end):
                return None
            found[row.partition] = piece
        return found


@dataclass(frozen=True, slots=True)
class _Work:
    """A change with the rows of the ledger that it is made of.

    `keeps` says by partition what stays when they are folded. `hidden` are incarnations that no
    row stands for afterwards, since a later one has their windows.
    """

    change: TopicChange
    pieces: tuple[Pieces, ...]
    keeps: Mapping[TopicPartitionId, LastOfEachKey]
    hidden: frozenset[PartitionLife]

    @classmethod
    def of(cls, change: TopicChange, entries: Sequence[LedgerEntry], needs: TopicNeeds) -> "_Work":
        """The work of a change; `entries` are the rows of its topic in its windows, in order."""
        of_partition: dict[TopicPartitionId, list[LedgerEntry]] = defaultdict(list)
        for entry in entries:
            of_partition[entry.result.partition].append(entry)
        pieces: list[Pieces] = []
        keeps: dict[TopicPartitionId, LastOfEachKey] = {}
        for partition, of_it in sorted(of_partition.items()):
            life = _life(of_it[-1])
            pieces.append(Pieces(change.window, tuple(e for e in of_it if _life(e) == life)))
            if change.what is Change.FOLD:
                need = needs.of_life(life)
                keeps[partition] = LastOfEachKey(
                    undecided=need.undecided,
                    # Of what the log did not hold any more at the first point nobody needs any.
                    floor=need.floor,
                    without_deletions=change.without_deletions,
                )
        return cls(
            change,
            tuple(pieces),
            keeps,
            frozenset(map(_life, entries)) - {_life(one.entries[-1]) for one in pieces},
        )

    def harms(self, needs: TopicNeeds) -> TopicPartitionId | None:
        """A partition of which points, which may have come since it was planned, need more."""
        for topic, partition, topic_id in self.hidden:
            if needs.of_life((topic, partition, topic_id)).is_listed:
                return TopicPartitionId(topic, partition)
        for one in self.pieces:
            plan, need = one.plan, needs.of_life(_life(one.entries[-1]))
            if self.change.what is Change.DROP and plan.end > need.least:
                return one.partition
            if self.change.what is Change.FOLD:
                keeps = self.keeps[one.partition]
                undecided = need.undecided.clip(plan.start, plan.end) - keeps.undecided
                if undecided or not need.allows(plan.start, plan.end) or need.floor < keeps.floor:
                    return one.partition
        return None

    def rows(
        self, contents: Mapping[SpanId, SpanContent], version: int | None, run_id: str
    ) -> list[LedgerEntry]:
        """The rows that stand for the windows."""
        what = self.change.what
        return [
            _row(what, one, contents.get(one.id, SpanContent()), version, run_id)
            for one in self.pieces
        ]


def _life(entry: LedgerEntry) -> PartitionLife:
    plan = entry.result.plan
    return plan.partition.topic, plan.partition.partition, plan.topic_id


def _row(
    what: Change, pieces: Pieces, content: SpanContent, version: int | None, run_id: str
) -> LedgerEntry:
    """The row that stands for the windows of one partition.

    Whatever a later look at it can find must be what it found in the rows before: holes, when they
    were read, when the windows were closed.
    """
    entries = pieces.entries
    results = [entry.result for entry in entries]
    plan = pieces.plan
    had = sum(result.content.records for result in results)
    gaps = gaps_together(gap for result in results for gap in result.gaps)
    if what is Change.DROP:
        plan = replace(plan, read_start=plan.end)
        gaps = (Gap(GapCause.EXPIRED, plan.start, plan.end, plan.end - plan.start),)
        gaps = gaps if plan.start < plan.end else ()
    elif content.records > had or (what is Change.JOIN and content.records != had):
        raise StoredDataError(
            subject=f"What was put together of {pieces.partition}",
            problem=f"it has {content.records:,} records, the windows had {had:,}",
            remedy="Nothing was changed. Run it again; if it says the same, see kstreams-assets"
            " verify --full.",
        )
    elif content.records < had:
        left_out = Gap(GapCause.FOLDED, plan.start, plan.end, had - content.records)
        gaps = gaps_together([*gaps, left_out])
    examined = [r for r in results if r.plan.start < r.plan.end]
    known = any(r.contiguity_known for r in examined) or not examined
    holes = [
        (r.first_hole if r.contiguity_known else r.plan.start, entry.ledger_version)
        for r, entry in zip(results, entries, strict=True)
        if r.plan.start < r.plan.end and (r.first_hole is not None or not r.contiguity_known)
    ]
    read = [e.recorded_at_ms for e in entries if e.result.plan.start < e.result.plan.end]
    versions = [version for _, version in holes] or [e.ledger_version for e in entries]
    last = max(entries, key=lambda e: e.result.plan.window)
    return LedgerEntry(
        application_id=entries[0].application_id,
        result=SpanResult(
            plan=plan,
            content=content,
            gaps=gaps,
            kept=any(r.kept for r in results),
            first_hole=min((hole for hole, _ in holes if hole is not None), default=None)
            if known
            else None,
            contiguity_known=known and any(r.contiguity_known for r in results),
        ),
        recovery_point_id=last.recovery_point_id,
        delta_version=version,
        run_id=run_id,
        recorded_at_ms=min(read, default=min(e.recorded_at_ms for e in entries)),
        ledger_version=None if None in versions else max(v for v in versions if v is not None),
    )


class PointHarmedError(StoredDataError):
    """A recovery point would restore worse once windows of a topic were put together."""


def expire(
    settings: ApplicationSettings,
    *,
    run_id: str,
    now_ms: int | None = None,
    log: Callable[[str], None] = _log.info,
    check: Callable[[], None] = lambda: None,
) -> ExpireResult:
    """Drop what the policy does not keep, and put together what lies between kept points.

    `check` is called now and then and may raise.

    Raises:
        ConfigurationError: The application has no policy.
        StoredDataError: Files of the backups are not those that were written; nothing was changed
            then. Or a point would restore worse than before (PointHarmedError): then the windows of
            one topic are as they were, and all other work is done.
        WarehouseLockedError: Another run works on the application for too long.
    """
    began = time.monotonic()
    run = _Run(settings, run_id, now_ms, log, check)
    with warehouse_lock(
        settings.warehouse.lock_file(f"fold/{settings.application_id}"),
        purpose=f"expire run {run_id}",
        wait_s=settings.backup.lock_wait_s,
    ):
        plan = plan_expire(settings, now_ms=now_ms)
        run.drop_points(plan)
        topics = run.put_together()
    return ExpireResult(plan, tuple(topics), time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run, which holds the lock of those that put files together."""

    settings: ApplicationSettings
    run_id: str
    now_ms: int | None
    log: Callable[[str], None]
    check: Callable[[], None]

    @property
    def _id(self) -> str:
        return self.settings.application_id

    @property
    def _records(self) -> StorePath:
        return self.settings.warehouse.records(self._id)

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.settings.warehouse, self._id)

    def drop_points(self, plan: ExpirePlan) -> None:
        """Take the points that go from every list, and the snapshots that were made at them."""
        settings = self.settings
        with self._ledger.locked(f"expire run {self.run_id}", settings.backup.lock_wait_s) as lock:
            # Else they would count again once their window is part of another.
            drop_superseded(
                self._ledger,
                self._records,
                self._ledger.closed_with_increments(),
                writer=lock,
                provenance=self._provenance,
            )
            self._remove_leftovers(lock)
            self._drop_snapshots(plan.snapshots, lock)
        if not plan.going:
            return
        with points_locked(
            settings.warehouse,
            self._id,
            purpose=f"expire run {self.run_id}",
            wait_s=settings.backup.lock_wait_s,
        ) as lock:
            # A restore may have begun, or a point been pinned, since the plan was made.
            again = _planner(settings, self.now_ms).going()
            going = {id_: at_ms for id_, at_ms in plan.going.items() if id_ in again}
            RecoveryPointTable(settings.warehouse).expire(self._id, going, writer=lock)
            RecoveryPointTable(settings.warehouse).tidy()
        self.log(f"{len(going):,} recovery points of {self._id} expired.")

    def _drop_snapshots(self, snapshots: Sequence[Snapshot], lock: LockHandle) -> None:
        SnapshotsTable(self.settings.warehouse).fence(self._id, lock)
        SnapshotsTable(self.settings.warehouse).drop(snapshots, writer=lock)
        by_store: dict[str, list[Snapshot]] = defaultdict(list)
        for snapshot in snapshots:
            by_store[snapshot.store].append(snapshot)
        for store, of_it in by_store.items():
            path = self.settings.warehouse.ktable(self._id, store)
            table = fence(path, open_table(path, to_write=True), lock)
            if table is None:
                continue
            gone = [{"window": snapshot.window.key} for snapshot in of_it]
            commit(path, table, [], writer=lock, replaces=gone, provenance=self._provenance)
            table = open_table(path, to_write=True)
            if table is not None:
                tidy_files(path, table, keep_files=self._is_read)

    @property
    def _is_read(self) -> bool:
        return bool(RestoresTable(self.settings.warehouse).writing(self._id))

    @property
    def _provenance(self) -> dict[str, object]:
        return {"run_id": self.run_id, "application_id": self._id, "expire": True}

    def put_together(self) -> list[TopicResult]:
        """Topic by topic, so that a run that is stopped has done a part of it.

        Between all points that are there now, whatever was planned: what is listed is restorable.
        """
        changes = _planner(self.settings, self.now_ms).changes()
        done: list[TopicResult] = []
        left_out: list[PointHarmedError] = []
        for lot in _lots(changes):
            try:
                done += self._put_together(lot)
            except PointHarmedError as error:
                self.log(f"{error}")
                left_out.append(error)
        with self._ledger.locked(
            f"expire run {self.run_id}", self.settings.backup.lock_wait_s
        ) as lock:
            self._remove_leftovers(lock)
            tidy_records(self._records, keep_files=self._is_read)
        if left_out:
            raise left_out[0]
        return done

    def _needs(self, topic: str) -> tuple[list[RecoveryPoint], TopicNeeds]:
        """All points that are there now as far as the topic goes, and what they need of it."""
        points = RecoveryPointTable(self.settings.warehouse).of_topic(self._id, topic)
        declared = next(one.roles for one in self.settings.topics if one.name == topic)
        keep = self.settings.keep
        needs = TopicNeeds.of(
            points,
            roles_of(declared, points),
            whole_logs=keep is not None and keep.whole_logs,
        )
        return points, needs

    def _put_together(self, changes: Sequence[TopicChange]) -> list[TopicResult]:
        """Changes of one topic, all of them or none."""
        topic = changes[0].topic
        _, needs = self._needs(topic)
        windows = [window for change in changes for window in change.windows]
        entries = self._entries(topic, windows)
        works = [
            _Work.of(
                change,
                [entry for window in change.windows for entry in entries.get(window, ())],
                needs,
            )
            for change in changes
        ]
        with ExitStack() as stack:
            with uncommitted(self._records) as folder:
                files = self._write(works, folder)
                contents = contents_of(self._records, files)
                lock = stack.enter_context(
                    self._ledger.locked(
                        f"expire run {self.run_id}", self.settings.backup.lock_wait_s
                    )
                )
                self._require_unchanged(topic, entries)
            new = {(change.window.key, topic) for change in changes}
            version = self._commit_records(lock, new, files)
            rows = [work.rows(contents, version, self.run_id) for work in works]
            # No point comes between the look at all of them and the change of the ledger.
            points = stack.enter_context(
                points_locked(
                    self.settings.warehouse,
                    self._id,
                    purpose=f"expire run {self.run_id}",
                    wait_s=self.settings.backup.lock_wait_s,
                )
            )
            every_row = [row for of_work in rows for row in of_work]
            self._require_as_before(topic, works, every_row)
            points.require_held()
            self._ledger.put_together(every_row, {topic: windows}, writer=lock)
            self._commit_records(lock, {(window.key, topic) for window in windows} - new)
        return [self._told(one, of_one) for one, of_one in zip(changes, rows, strict=True)]

    def _told(self, change: TopicChange, rows: Sequence[LedgerEntry]) -> TopicResult:
        result = TopicResult(
            topic=change.topic,
            what=change.what,
            window=change.window.key,
            windows=len(change.windows),
            records_before=change.records,
            records_after=sum(row.result.content.records for row in rows),
            bytes_before=change.bytes,
            bytes_after=sum(row.result.content.stored_bytes for row in rows),
        )
        self.log(
            f"{result.topic}: {result.windows} windows ({result.window}) are one now,"
            f" {bytes_text(result.bytes_before)} became {bytes_text(result.bytes_after)}."
        )
        return result

    def _entries(
        self, topic: str, windows: Iterable[Window]
    ) -> dict[Window, tuple[LedgerEntry, ...]]:
        found: dict[Window, list[LedgerEntry]] = defaultdict(list)
        for entry in self._ledger.entries(windows={w.key for w in windows}, topics={topic}):
            found[entry.result.plan.window].append(entry)
        return {window: tuple(of_it) for window, of_it in found.items()}

    def _commit_records(
        self, lock: LockHandle, parts: Set[tuple[str, str]], files: Sequence[NewFile] = ()
    ) -> int | None:
        """Put files in place of those of these windows (keys) and topics."""
        return commit(
            self._records,
            ensure_records(self._records),
            files,
            writer=lock,
            replaces=[{"window": key, "topic": topic} for key, topic in sorted(parts)],
            provenance=self._provenance,
        )

    def _write(self, works: Sequence[_Work], folder: StorePath) -> list[NewFile]:
        from spark_resources.data_files import NewFolder
        from spark_resources.span_tasks import run_here

        backup = self.settings.backup
        new = NewFolder(folder, backup.compression, backup.compression_level)
        tasks = [
            replace(task, keeps=work.keeps.get(task.partition))
            for work in works
            if work.change.what is not Change.DROP
            for task in fold_tasks(self._records, work.pieces, new)
        ]
        if not tasks:
            return []
        done = run_here(tasks, self.check, at_a_time=backup.tasks or _AT_ONCE)
        return [NewFile.told(folder, row) for one in done for row in one.rows]

    def _require_unchanged(
        self, topic: str, entries: Mapping[Window, tuple[LedgerEntry, ...]]
    ) -> None:
        """The rows are still those of which the files were made, and no restore reads them."""
        if self._entries(topic, entries) != entries or self._is_read:
            raise StoredDataError(
                subject=f"The backup of {topic}",
                problem="was changed by another run while its windows were put together, or a"
                " restore has begun to read it",
                remedy="Nothing was changed. Run expire again when that has ended.",
            )

    def _require_as_before(
        self, topic: str, works: Sequence[_Work], rows: Sequence[LedgerEntry]
    ) -> None:
        """Every point that is there now restores as it did, once it is backed up too.

        Raises:
            PointHarmedError: One would not.
        """
        points, needs = self._needs(topic)
        for work in works:
            partition = work.harms(needs)
            if partition is not None:
                raise PointHarmedError(
                    subject=f"The backup of {partition}",
                    problem=f"has records in {work.change.window.key} that a recovery point needs"
                    " which was taken while they were put together",
                    remedy="Nothing of the topic was changed. Run expire again.",
                )
        contents = Contents.of(self.settings)
        keys = {window.key for work in works for window in work.change.windows}
        spans = [s for s in self._ledger.stored_spans({topic}) if s.window.key not in keys]
        after = contents.with_spans(topic, [*spans, *self._ledger.as_spans(rows)])
        statuses = {one.id: one for one in after.statuses(points)}
        # Nothing is better than exact, so that the others alone may have been better before.
        others = [point for point in points if statuses[point.id].gives is not Restores.EXACT]
        for before in contents.statuses(others):
            other = statuses[before.id]
            if RANK[other.gives] < RANK[before.gives]:
                raise PointHarmedError(
                    subject=f"Recovery point {before.id}",
                    problem=f"gives {before.gives} as far as {topic} goes, and would give"
                    f" {other.gives} once windows of it are put together: {other.reason}",
                    remedy="Nothing of the topic was changed. Report this; until it is mended,"
                    " keep.logs: whole or a pin keeps the windows as they are.",
                )

    def _remove_leftovers(self, lock: LockHandle) -> None:
        """Files of windows that the ledger has put together, left by a run that was killed."""
        gone = leftovers(self._ledger, self._records)
        if gone:
            self._commit_records(lock, gone)


def _lots(changes: Iterable[TopicChange]) -> Iterator[list[TopicChange]]:
    """Changes of one topic that are done at once: checking every point takes as long as many."""
    lot: list[TopicChange] = []
    for change in changes:
        together = [*lot, change]
        if lot and (
            lot[0].topic != change.topic
            or sum(one.bytes for one in together) > _LOT_BYTES
            or sum(one.rows for one in together) > _LOT_ROWS
        ):
            yield lot
            together = [change]
        lot = together
    if lot:
        yield lot


def leftovers(ledger: Ledger, records: StorePath) -> set[tuple[str, str]]:
    """Windows (keys) and topics of files that no row of the ledger has any more.

    Those that `expire` has put together, and what it wrote without getting to the ledger.
    """
    known = ledger.keys()
    folded = [(key, topic) for key, topic in known if FOLDED in key]
    found: set[tuple[str, str]] = set()
    actions = file_actions(records).select(["window", "topic"]).group_by(["window", "topic"])
    for row in actions.aggregate([]).to_pylist():
        key, topic = row["window"], row["topic"]
        window = key.partition(INCREMENT)[0]
        if (key, topic) in known:
            continue
        if FOLDED in key or any(
            topic == other and first <= window <= last
            for other, first, last in (
                (topic_of, *of_folded.split(FOLDED)) for of_folded, topic_of in folded
            )
        ):
            found.add((key, topic))
    return found
