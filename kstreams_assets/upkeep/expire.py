"""Drops recovery points by policy, and of the backups what no kept point needs.

The points go first, so that nothing is listed that is about to lose its records. Then, topic by
topic, windows that lie between two kept points are put together:

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
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import accumulate, chain

from kstreams_assets.app.model import TopicRoles
from kstreams_assets.app.store_format import StoreKind, format_of
from kstreams_assets.backup.merge import Keep, Merged, Pieces, drop_superseded, merge
from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.checks import Finding, Severity
from kstreams_assets.errors import StoredDataError
from kstreams_assets.model.chains import DELETE_RETENTION_MS, StoredSpan, chains_of
from kstreams_assets.model.damage import Verified
from kstreams_assets.model.point import (
    PartitionLife,
    PointInstant,
    RecoveryPoint,
    in_order,
    topic_id_of,
)
from kstreams_assets.model.recordings import LedgerEntry, StoredSize
from kstreams_assets.model.restorability import RANK, PointStatus, Restores
from kstreams_assets.model.snapshot import Snapshot
from kstreams_assets.model.spans import SpanId, SpanKey, SpanKind, TopicFacts, Window
from kstreams_assets.model.tables import Lock
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.retention import kept_by_policy, policy_of
from kstreams_assets.repository.committer import commit, fence
from kstreams_assets.repository.ktable_files import open_table
from kstreams_assets.repository.records import ensure_records, tidy_files, tidy_records
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath
from kstreams_assets.store.locks import LockHandle
from kstreams_assets.texts import bytes_text
from kstreams_assets.upkeep.needs import PartitionNeed, TopicNeeds, Untouched, roles_of
from spark_resources.span_tasks import LastOfEachKey

_RATIO = 4
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
        return self.windows[0].merged_to(self.windows[-1])


@dataclass(frozen=True, slots=True)
class ExpirePlan:
    """What `expire` would do. `kept` are point ids with the lines of the policy that keep them.

    `going` are points that go, with the time at which they were taken (epoch milliseconds).
    `waits` says why windows are not put together now; empty where they are.
    `notes` are for the operator. Nothing is done while there are `blockers`.
    """

    application_id: str
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    going: Mapping[str, int] = field(default_factory=dict)
    snapshots: tuple[Snapshot, ...] = ()
    changes: tuple[TopicChange, ...] = ()
    waits: str = ""
    notes: tuple[str, ...] = ()
    blockers: tuple[Finding, ...] = ()

    def require_allowed(self) -> None:
        """Raise StoredDataError for the first blocker."""
        for one in self.blockers:
            raise StoredDataError(subject=one.subject, problem=one.found, remedy=one.action)

    @property
    def by_line(self) -> dict[str, int]:
        """How many points each line of the policy keeps; one point may be kept by several."""
        found: dict[str, int] = defaultdict(int)
        for lines in self.kept.values():
            for line in lines:
                found[line] += 1
        return dict(found)


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


class _Planner:
    """One look at an application's points and backups."""

    def __init__(self, settings: ApplicationSettings, now_ms: int) -> None:
        self._settings, self._policy, self._now_ms = settings, policy_of(settings), now_ms
        self._id = settings.application_id
        self._repo = Repository.open(settings)
        self._points = self._repo.points
        self._contents = Repository.open(settings).reading(settings)
        self._statuses: dict[str, PointStatus | None] = {}
        self._notes: list[str] = []

    def going(self) -> set[str]:
        """Ids of the points that go."""
        instants = self._points.instants()
        return {i.id for i in instants} - self._kept(instants).keys()

    def plan(self) -> ExpirePlan:
        damage = self._damage()
        if damage is not None:
            return ExpirePlan(self._id, blockers=(damage,))
        instants = self._points.instants()
        kept = self._kept(instants)
        going = {i.id: i.taken_at_ms for i in instants if i.id not in kept}
        restorable = any(
            (status := self._judge(id_)) is not None and status.covered for id_ in kept
        )
        changes = self.changes_of([i for i in instants if i.id in kept]) if restorable else ()
        return ExpirePlan(
            application_id=self._id,
            kept=kept,
            going=going,
            snapshots=tuple(self._snapshots(kept, changes)),
            changes=changes,
            waits=self._waits(),
            notes=tuple(dict.fromkeys(self._notes)),
            blockers=(self._nothing_restorable,) if going and not restorable else (),
        )

    @property
    def _nothing_restorable(self) -> Finding:
        return Finding(
            f"The warehouse of {self._id}",
            "holds no recovery point that could be restored, so nothing of it expires",
            action="See kstreams-assets recovery-points list for why, back up what is due, then"
            " run expire again.",
        )

    def _damage(self) -> Finding | None:
        """What is damaged can be repaired; points that it takes away now must not go for it."""
        spans = (
            f"{span}"
            for span in self._repo.ledger.damaged()
            if (span.window, span.topic) not in self._given_up
        )
        told = (
            f"{one.place}: {one.problem}"
            for one in self._verified.open
            if one.severity is Severity.ERROR
        )
        problem = next(chain(spans, told), None)
        if problem is None:
            return None
        return Finding(
            f"The warehouse of {self._id}",
            f"is damaged, so nothing of it expires: {problem}",
            action="Repair it first (kstreams-assets verify --repair), or restore it from a second"
            " copy, then run kstreams-assets verify --full. Accept permanent damage with verify"
            " --full --accept REASON.",
        )

    @cached_property
    def _verified(self) -> Verified:
        return self._repo.verifications.verified()

    @cached_property
    def _given_up(self) -> frozenset[tuple[str | None, str | None]]:
        """Windows (keys) and topics of damage that somebody has accepted as lost."""
        return frozenset((one.window, one.topic) for one in self._verified.open if one.accepted)

    def _judge(self, point_id: str) -> PointStatus | None:
        if point_id not in self._statuses:
            (self._statuses[point_id],) = self._contents.statuses_of([point_id])
        return self._statuses[point_id]

    def _kept(self, instants: Sequence[PointInstant]) -> dict[str, tuple[str, ...]]:
        settings = self._settings
        due = [status.window for status in window_statuses(settings) if status.is_due]
        return kept_by_policy(
            settings,
            instants,
            self._judge,
            now_ms=self._now_ms,
            backed_up_to_ms=self._repo.ledger.last_end_ms(
                {topic.name for topic in settings.topics}
            ),
            due_edges_ms={edge for window in due for edge in (window.start_ms, window.end_ms)},
        )

    def _waits(self) -> str:
        writing = self._repo.restores.writing()
        if not writing:
            return ""
        return (
            f"Restore {writing[0].restore_id} is not verified yet and still reads the backups."
            " Windows are merged once it is verified. Run it again, or give it up:"
            f" kstreams-assets restore abandon --restore {writing[0].restore_id}."
        )

    def _snapshots(
        self, kept: Mapping[str, object], changes: Iterable[TopicChange]
    ) -> Iterator[Snapshot]:
        """Those of points that go, but the last one of each store: later ones build on it."""
        inside = {
            (change.topic, window.end_ms) for change in changes for window in change.windows[:-1]
        }
        found = self._repo.snapshots.of()
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
        return self.changes_of(self._points.instants())

    def changes_of(self, listed: Sequence[PointInstant]) -> tuple[TopicChange, ...]:
        """What is to be put together if these points are all there are."""
        bounds = self._bounds(listed)
        if not bounds or self._waits():
            return ()
        ids = {instant.id for instant in listed}
        found: list[TopicChange] = []
        facts = self._repo.topics
        topics = {topic.name: topic.roles for topic in self._settings.topics}
        retention, noted = facts.delete_retention_ms(topics), facts.of_incarnations()
        newest = {topic: of_topic for (topic, _), of_topic in noted.items()}
        sizes = self._repo.ledger.sizes()
        for name, declared in sorted(topics.items()):
            # Of one topic at a time: there may be millions.
            spans = [s for s in self._repo.ledger.stored_spans({name}) if not s.window.is_increment]
            points = [p for p in self._points.of_topic(name) if p.id in ids]
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
                    whole_logs=self._policy.keeps_whole_logs,
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
        return {point.id for point in self._points.load(few)}

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
        return count == 1 and self._windows[0].is_merged

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

    `keep` says which records stay. `hidden` are incarnations that no row stands for afterwards,
    since a later one has their windows.
    """

    change: TopicChange
    pieces: tuple[Pieces, ...]
    keep: Mapping[SpanId, Keep | LastOfEachKey]
    hidden: frozenset[PartitionLife]

    @classmethod
    def of(cls, change: TopicChange, entries: Sequence[LedgerEntry], needs: TopicNeeds) -> "_Work":
        """The work of a change; `entries` are the rows of its topic in its windows, in order."""
        of_partition: dict[TopicPartitionId, list[LedgerEntry]] = defaultdict(list)
        for entry in entries:
            of_partition[entry.result.partition].append(entry)
        pieces: list[Pieces] = []
        keep: dict[SpanId, Keep | LastOfEachKey] = {}
        for _, of_it in sorted(of_partition.items()):
            life = _life(of_it[-1])
            piece = Pieces(change.window, tuple(e for e in of_it if _life(e) == life))
            pieces.append(piece)
            if change.what is Change.DROP:
                keep[piece.id] = Keep.NONE
            if change.what is Change.FOLD:
                need = needs.of_life(life)
                keep[piece.id] = LastOfEachKey(
                    undecided=need.undecided,
                    # Of what the log did not hold any more at the first point nobody needs any.
                    floor=need.floor,
                    without_deletions=change.without_deletions,
                )
        return cls(
            change,
            tuple(pieces),
            keep,
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
            keep = self.keep.get(one.id)
            if isinstance(keep, LastOfEachKey):
                undecided = need.undecided.clip(plan.start, plan.end) - keep.undecided
                if undecided or not need.allows(plan.start, plan.end) or need.floor < keep.floor:
                    return one.partition
        return None


def _life(entry: LedgerEntry) -> PartitionLife:
    plan = entry.result.plan
    return plan.partition.topic, plan.partition.partition, plan.topic_id


def _row(pieces: Pieces, merged: Merged, run_id: str) -> LedgerEntry:
    """The row that stands for the windows of one partition.

    Whatever a later look at it can find must be what it found in the rows before: holes, when they
    were read, when the windows were closed.
    """
    entries = pieces.entries
    read = [e.recorded_at_ms for e in entries if e.result.plan.start < e.result.plan.end]
    versions = [entry.ledger_version for _, entry in pieces.holes]
    versions = versions or [entry.ledger_version for entry in entries]
    last = max(entries, key=lambda e: e.result.plan.window)
    return LedgerEntry(
        application_id=entries[0].application_id,
        result=merged.results[pieces.id],
        recovery_point_id=last.recovery_point_id,
        delta_version=merged.version,
        run_id=run_id,
        recorded_at_ms=min(read, default=min(e.recorded_at_ms for e in entries)),
        ledger_version=None if None in versions else max(v for v in versions if v is not None),
    )


def first_index(sizes: Sequence[int], *, ratio: int) -> int:
    """From which of some neighbours on the last ones are put together.

    One is only written anew once those behind it together have a share of its size, so that what is
    written is bounded by a small multiple of what there is, however often it is done. Of those that
    stay, each is more than `ratio` times as large as all behind it: they are few.
    """
    first, behind = max(len(sizes) - 1, 0), 0
    for index in reversed(range(len(sizes))):
        if sizes[index] <= ratio * max(behind, 1):
            first = index
        behind += sizes[index]
    return first


class PointHarmedError(StoredDataError):
    """A recovery point would restore worse once windows of a topic were put together."""


@dataclass(frozen=True, slots=True)
class ExpireJob:
    """Drops what the policy does not keep, and puts together what lies between kept points.

    `now_ms` (epoch milliseconds) is the present time when left out. `check` is called now and then
    and may raise.
    """

    settings: ApplicationSettings
    run_id: str = ""
    now_ms: int | None = None
    log: Callable[[str], None] = _log.info
    check: Callable[[], None] = lambda: None

    def plan(self) -> ExpirePlan:
        """Plan it; reads only.

        Raises:
            WarehouseError: There is no warehouse, or it cannot be read.
        """
        self._repo.require_backup()
        return self._planner().plan()

    def run(self) -> ExpireResult:
        """Plan it again under the lock of those that put files together, and do it.

        Raises:
            StoredDataError: The plan has a blocker; nothing was changed then. Or a point would
                restore worse than before (PointHarmedError): then the windows of one topic are as
                they were, and all other work is done.
            WarehouseLockedError: Another run works on the application for too long.
        """
        began = time.monotonic()
        with self._repo.lock(Lock.MERGE, purpose=self._purpose, wait_s=self._wait_s):
            plan = self.plan()
            plan.require_allowed()
            self._drop_points(plan)
            topics = self._merge_windows()
        return ExpireResult(plan, tuple(topics), time.monotonic() - began)

    def _planner(self) -> _Planner:
        now_ms = time.time_ns() // 1_000_000 if self.now_ms is None else self.now_ms
        return _Planner(self.settings, now_ms)

    @property
    def _id(self) -> str:
        return self.settings.application_id

    @property
    def _records(self) -> StorePath:
        return self.settings.warehouse.records(self._id)

    @property
    def _repo(self) -> Repository:
        return Repository.open(self.settings)

    def _writing(self, lock: Lock) -> AbstractContextManager[LockHandle]:
        return self._repo.writing(lock, purpose=self._purpose, wait_s=self._wait_s)

    @property
    def _purpose(self) -> str:
        return f"expire run {self.run_id}"

    @property
    def _wait_s(self) -> float:
        return self.settings.backup.lock_wait_seconds

    def _drop_points(self, plan: ExpirePlan) -> None:
        """Take the points that go from every list, and the snapshots that were made at them."""
        with self._writing(Lock.APPLICATION) as lock:
            # Else they would count again once their window is part of another.
            drop_superseded(
                self._repo,
                self._records,
                self._repo.ledger.closed_with_increments(),
                writer=lock,
                provenance=self._provenance,
            )
            self._remove_leftovers(lock)
            self._drop_snapshots(plan.snapshots, lock)
        if not plan.going:
            return
        with self._writing(Lock.RECORDER) as lock:
            # A restore may have begun, or a point been pinned, since the plan was made.
            again = self._planner().going()
            going = {id_: at_ms for id_, at_ms in plan.going.items() if id_ in again}
            self._repo.points.drop(going, writer=lock)
            self._repo.points.tidy()
        self.log(f"{len(going):,} recovery points of {self._id} expired.")

    def _drop_snapshots(self, snapshots: Sequence[Snapshot], lock: LockHandle) -> None:
        self._repo.snapshots.drop(snapshots, writer=lock)
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
        return bool(self._repo.restores.writing())

    @property
    def _provenance(self) -> dict[str, object]:
        return {"run_id": self.run_id, "application_id": self._id, "expire": True}

    def _merge_windows(self) -> list[TopicResult]:
        """Topic by topic, so that a run that is stopped has done a part of it.

        Between all points that are there now, whatever was planned: what is listed is restorable.
        """
        changes = self._planner().changes()
        done: list[TopicResult] = []
        left_out: list[PointHarmedError] = []
        for lot in _lots(changes):
            try:
                done += self._put_together(lot)
            except PointHarmedError as error:
                self.log(f"{error}")
                left_out.append(error)
        with self._writing(Lock.APPLICATION) as lock:
            self._remove_leftovers(lock)
            tidy_records(self._records, keep_files=self._is_read)
        if left_out:
            raise left_out[0]
        return done

    def _needs(self, topic: str) -> tuple[list[RecoveryPoint], TopicNeeds]:
        """All points that are there now as far as the topic goes, and what they need of it."""
        points = self._repo.points.of_topic(topic)
        declared = next(one.roles for one in self.settings.topics if one.name == topic)
        needs = TopicNeeds.of(
            points,
            roles_of(declared, points),
            whole_logs=policy_of(self.settings).keeps_whole_logs,
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
        new = {(change.window.key, topic) for change in changes}
        with (
            merge(
                self._records,
                [one for work in works for one in work.pieces],
                {id_: keep for work in works for id_, keep in work.keep.items()},
                parts=new,
                settings=self.settings.backup,
                check=self.check,
                writing=lambda: self._writing(Lock.APPLICATION),
                require_unchanged=lambda: self._require_unchanged(topic, entries),
                provenance=self._provenance,
            ) as merged,
            # No point comes between the look at all of them and the change of the ledger.
            self._writing(Lock.RECORDER) as points,
        ):
            rows = [[_row(one, merged, self.run_id) for one in work.pieces] for work in works]
            every_row = [row for of_work in rows for row in of_work]
            self._require_as_before(topic, works, every_row)
            points.require_held()
            self._repo.ledger.put_together(every_row, {topic: windows}, writer=merged.lock)
            self._drop_records(merged.lock, {(window.key, topic) for window in windows} - new)
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
        for entry in self._repo.ledger.entries(windows={w.key for w in windows}, topics={topic}):
            found[entry.result.plan.window].append(entry)
        return {window: tuple(of_it) for window, of_it in found.items()}

    def _drop_records(self, lock: LockHandle, parts: Set[tuple[str, str]]) -> None:
        """Take the files of these windows (keys) and topics away."""
        commit(
            self._records,
            ensure_records(self._records),
            [],
            writer=lock,
            replaces=[{"window": key, "topic": topic} for key, topic in sorted(parts)],
            provenance=self._provenance,
        )

    def _require_unchanged(
        self, topic: str, entries: Mapping[Window, tuple[LedgerEntry, ...]]
    ) -> None:
        """The rows are still those of which the files were made, and no restore reads them."""
        if self._entries(topic, entries) != entries or self._is_read:
            raise StoredDataError(
                subject=f"The backup of {topic}",
                problem="was changed by another run while its windows were merged, or a restore has"
                " started to read it",
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
                    problem=f"has records in {work.change.window.key} that a recovery point needs,"
                    " which was taken while they were merged",
                    remedy="Nothing of the topic was changed. Run expire again.",
                )
        contents = Repository.open(self.settings).reading(self.settings)
        keys = {window.key for work in works for window in work.change.windows}
        spans = [s for s in self._repo.ledger.stored_spans({topic}) if s.window.key not in keys]
        after = contents.with_spans(topic, [*spans, *self._repo.ledger.as_spans(rows)])
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
        gone = leftovers(self._repo)
        if gone:
            self._drop_records(lock, gone)


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


def leftovers(repo: Repository) -> set[tuple[str, str]]:
    """Windows (keys) and topics of files that no row of the ledger has any more.

    Those that `expire` has put together, and what it wrote without getting to the ledger.
    """
    known = repo.ledger.keys()
    merged = [(topic, one) for (_, topic), one in known.items() if one.kind is SpanKind.MERGED]
    found: set[tuple[str, str]] = set()
    actions = repo.ledger.file_actions().select(["window", "topic"])
    actions = actions.group_by(["window", "topic"])
    for row in actions.aggregate([]).to_pylist():
        key, topic = row["window"], row["topic"]
        if (key, topic) in known:
            continue
        span = SpanKey.of(key)
        if span.kind is SpanKind.MERGED or any(
            topic == other and one.first_window <= span.first_window <= one.last_window
            for other, one in merged
        ):
            found.add((key, topic))
    return found
