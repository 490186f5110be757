"""Deletes recovery points by policy, and the backups that kept points do not need.

Points are deleted first, so that every listed point has its records. Then windows between two kept
points are merged, topic by topic:

- A changelog of a store keeps the last record of each key with its offset, as Kafka's compaction
  does. A tombstone is kept while earlier records can contain its key.
- Inputs, outputs and records in flight are deleted below the lowest offset that a kept point needs.
  If Kafka compacts the topic, the last record of each key is kept.
- Merged windows have one row and one file per partition.

Backups continue while new files are written and verified. The job then takes the locks of the
application and of its recorder and reads the needs of all points again. Each point must have the
same restorability as before. One commit adds the files, a second one changes the ledger, and old
files are deleted last. The next run completes an interrupted one.
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
    PartitionIncarnation,
    PointInstant,
    RecoveryPoint,
    in_order,
    topic_id_of,
)
from kstreams_assets.model.recordings import LedgerEntry, StoredSize
from kstreams_assets.model.restorability import RANK, PointStatus, Restorability
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
"""Maximum size of merged windows in one step, which an interrupted run has to repeat."""
_LOT_ROWS = 50_000
"""Maximum number of ledger rows in memory."""

_log = logging.getLogger(__name__)


class Change(StrEnum):
    """Records that merged windows keep.

    `drop`: no records. `fold`: the last record of each key. `join`: all records.
    """

    DROP = "drop"
    COMPACT = "fold"
    JOIN = "join"


@dataclass(frozen=True, slots=True)
class TopicChange:
    """Windows of one topic to merge into one row per partition, and their present size.

    `without_deletions`: compaction can remove tombstones, because no earlier records exist.
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
        """The merged window."""
        return self.windows[0].merged_to(self.windows[-1])


@dataclass(frozen=True, slots=True)
class ExpirePlan:
    """Plan of `expire`.

    `kept` are ids of points with the lines of the policy that keep them. `expiring` are points to
    delete with their times (epoch milliseconds). `waits` is the reason why windows are not merged
    now, empty if they are. `notes` are for the operator. `blockers` prevent all changes.
    """

    application_id: str
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    expiring: Mapping[str, int] = field(default_factory=dict)
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
        """Number of points that each line of the policy keeps; several lines can keep a point."""
        found: dict[str, int] = defaultdict(int)
        for lines in self.kept.values():
            for line in lines:
                found[line] += 1
        return dict(found)


@dataclass(frozen=True, slots=True)
class TopicResult:
    """Result of a merge of windows of a topic; sizes are stored bytes."""

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
    """Result of a run."""

    plan: ExpirePlan
    topics: tuple[TopicResult, ...] = ()
    took_s: float = 0.0

    @property
    def bytes_freed(self) -> int:
        """Reduction of the backups (bytes); files on disk are deleted some hours later."""
        return sum(one.bytes_before - one.bytes_after for one in self.topics)


class _Planner:
    """Plans from the present points and backups of an application."""

    def __init__(self, settings: ApplicationSettings, now_ms: int) -> None:
        self._settings, self._policy, self._now_ms = settings, policy_of(settings), now_ms
        self._id = settings.application_id
        self._repo = Repository.open(settings)
        self._points = self._repo.points
        self._contents = Repository.open(settings).reading(settings)
        self._statuses: dict[str, PointStatus | None] = {}
        self._notes: list[str] = []

    def expiring(self) -> set[str]:
        """Return the ids of the points to delete."""
        instants = self._points.instants()
        return {i.id for i in instants} - self._kept(instants).keys()

    def plan(self) -> ExpirePlan:
        damage = self._damage()
        if damage is not None:
            return ExpirePlan(self._id, blockers=(damage,))
        instants = self._points.instants()
        kept = self._kept(instants)
        expiring = {i.id: i.taken_at_ms for i in instants if i.id not in kept}
        restorable = any(
            (status := self._evaluate(id_)) is not None and status.covered for id_ in kept
        )
        changes = self.changes_of([i for i in instants if i.id in kept]) if restorable else ()
        return ExpirePlan(
            application_id=self._id,
            kept=kept,
            expiring=expiring,
            snapshots=tuple(self._snapshots(kept, changes)),
            changes=changes,
            waits=self._waits(),
            notes=tuple(dict.fromkeys(self._notes)),
            blockers=(self._nothing_restorable,) if expiring and not restorable else (),
        )

    @property
    def _nothing_restorable(self) -> Finding:
        return Finding(
            f"The warehouse of {self._id}",
            "contains no restorable recovery point, so nothing expires",
            action="See kstreams-assets recovery-points list for the reasons, back up the due"
            " windows, then run expire again.",
        )

    def _damage(self) -> Finding | None:
        """Return damage as a blocker: a repair may make points restorable that would expire now."""
        spans = (
            f"{span}"
            for span in self._repo.ledger.damaged()
            if (span.window, span.topic) not in self._given_up
        )
        findings = (
            f"{one.place}: {one.problem}"
            for one in self._verified.open
            if one.severity is Severity.ERROR
        )
        problem = next(chain(spans, findings), None)
        if problem is None:
            return None
        return Finding(
            f"The warehouse of {self._id}",
            f"is damaged, so nothing expires: {problem}",
            action="Repair it first (kstreams-assets verify --repair), or restore it from a second"
            " copy, then run kstreams-assets verify --full. Accept permanent damage with verify"
            " --full --accept REASON.",
        )

    @cached_property
    def _verified(self) -> Verified:
        return self._repo.verifications.verified()

    @cached_property
    def _given_up(self) -> frozenset[tuple[str | None, str | None]]:
        """Windows (keys) and topics of accepted damage."""
        return frozenset((one.window, one.topic) for one in self._verified.open if one.accepted)

    def _evaluate(self, point_id: str) -> PointStatus | None:
        if point_id not in self._statuses:
            (self._statuses[point_id],) = self._contents.statuses_of([point_id])
        return self._statuses[point_id]

    def _kept(self, instants: Sequence[PointInstant]) -> dict[str, tuple[str, ...]]:
        settings = self._settings
        due = [status.window for status in window_statuses(settings) if status.is_due]
        return kept_by_policy(
            settings,
            instants,
            self._evaluate,
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
            " Windows are merged after its verification. Run the restore again, or give it up with"
            f" kstreams-assets restore abandon --restore {writing[0].restore_id}."
        )

    def _snapshots(
        self, kept: Mapping[str, object], changes: Iterable[TopicChange]
    ) -> Iterator[Snapshot]:
        """Yield snapshots of expiring points, except the newest per store: later ones use it."""
        inside = {
            (change.topic, window.end_ms) for change in changes for window in change.windows[:-1]
        }
        found = self._repo.snapshots.of()
        newest = {s.store: s.window for s in found}
        for snapshot in found:
            if snapshot.point_id in kept:
                continue
            # Later snapshots cannot build on one that ends inside a merged window.
            if snapshot.window < newest[snapshot.store] or (
                (snapshot.topic, snapshot.window.end_ms) in inside
            ):
                yield snapshot

    def changes(self) -> tuple[TopicChange, ...]:
        """Return the windows to merge, given all present points."""
        return self.changes_of(self._points.instants())

    def changes_of(self, listed: Sequence[PointInstant]) -> tuple[TopicChange, ...]:
        """Return the windows to merge, given only these points."""
        bounds = self._bounds(listed)
        if not bounds or self._waits():
            return ()
        ids = {instant.id for instant in listed}
        found: list[TopicChange] = []
        facts = self._repo.topics
        topics = {topic.name: topic.roles for topic in self._settings.topics}
        retention, recorded = facts.delete_retention_ms(topics), facts.of_incarnations()
        newest = {topic: of_topic for (topic, _), of_topic in recorded.items()}
        sizes = self._repo.ledger.sizes()
        for name, declared in sorted(topics.items()):
            # Read one topic at a time, because there may be millions of spans.
            spans = [s for s in self._repo.ledger.stored_spans({name}) if not s.window.is_increment]
            points = [p for p in self._points.of_topic(name) if p.id in ids]
            roles = roles_of(declared, points)
            configs = newest[name].known_configs if name in newest else {}
            is_compacted = _is_compacted(name, spans, recorded, newest.get(name))
            below, between = self._changes_by_need(name, roles, configs, is_compacted)
            lag_ms = int(configs.get(_MIN_LAG, 0)) if is_compacted else 0
            topic = _Topic(
                name,
                spans,
                TopicNeeds.of(
                    points,
                    roles,
                    whole_logs=self._policy.keeps_whole_logs,
                    # Stores do not need history, but other readers of the topic may.
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
        """Return ids of the points before the period in which all points are kept.

        The first point of that period is included. Only windows before it are merged.
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
        """Return the changes for windows below the lowest need of all points, and above it."""
        if guesses := self._settings.application.guesses_about(topics=[name]):
            self._notes.append(f"All records of {name} are kept: {guesses[0]} {guesses[0].remedy}")
            return Change.JOIN, Change.JOIN
        if roles.rebuilds_store:  # the records below a point are its state
            compacts = self._may_compact(name, roles, configs, is_compacted)
            return (Change.COMPACT, Change.COMPACT) if compacts else (Change.JOIN, Change.JOIN)
        if roles.in_flight_only:
            return Change.DROP, Change.JOIN
        if is_compacted is None:
            self._notes.append(
                f"All records of {name} are kept: its cleanup.policy is unknown, or changed when"
                " the topic was recreated."
            )
            return Change.JOIN, Change.JOIN
        return (Change.COMPACT if is_compacted else Change.DROP), Change.JOIN

    def _may_compact(
        self,
        name: str,
        roles: TopicRoles,
        configs: Mapping[str, str],
        is_compacted: bool | None,
    ) -> bool:
        """Whether the last record of each key is sufficient."""
        if not (roles.changelog_only or is_compacted):
            return False  # other programs write the topic, and Kafka does not compact it
        settings = self._settings
        for store in settings.application.stores:
            if store.changelog != name:
                continue
            store_format = format_of(store.name, settings.store_formats)
            lag = int(configs.get(_MIN_LAG, 0)) > 0
            if store_format.kind is StoreKind.VERSIONED or (
                store_format.kind is StoreKind.KEY_VALUE and store_format.undeclared and lag
            ):
                self._notes.append(
                    f"All records of {name} are kept: its store {store.name} is versioned, or may"
                    f" be (its kind is not declared, and the topic has {_MIN_LAG} set)."
                )
                return False
        return True


_MIN_LAG = "min.compaction.lag.ms"


def _is_compacted(
    name: str,
    spans: Iterable[StoredSpan],
    recorded: Mapping[tuple[str, str], TopicFacts],
    newest: TopicFacts | None,
) -> bool | None:
    """Whether Kafka compacts a topic; None if unknown or different among its incarnations.

    The newest recorded configs apply to incarnations without recorded configs.
    """
    facts = {recorded.get((name, id_), newest) for id_ in {topic_id_of(s.topic_id) for s in spans}}
    found = {
        None if one is None else "compact" in one.known_configs.get("cleanup.policy", "")
        for one in facts
    }
    return found.pop() if len(found) == 1 else None


def _untouched(spans: Iterable[StoredSpan], lag_ms: int) -> Untouched:
    """Return a function for the first offset younger than `min.compaction.lag.ms` at a time."""
    by_life: dict[PartitionIncarnation, list[StoredSpan]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.window.end_ms):
        by_life[span.life].append(span)
    older = {
        life: (
            [span.window.end_ms for span in of_life],
            [0, *accumulate((span.end for span in of_life), max)],
        )
        for life, of_life in by_life.items()
    }

    def untouched(life: PartitionIncarnation, at_ms: int) -> int:
        ends_ms, reached = older.get(life, ([], [0]))
        return reached[bisect_right(ends_ms, at_ms - lag_ms)]

    return untouched


@dataclass(frozen=True, slots=True)
class _Piece:
    """Offsets of a partition, in one incarnation of its topic, to merge into one row."""

    life: PartitionIncarnation
    start: int
    end: int


class _Topic:
    """The windows of one topic and the needs of the listed points.

    Windows above `last` are not merged.
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
        # Windows are not merged across incomplete, unproven or damaged ones.
        self._breaks = {
            index
            for index, (window, rows) in enumerate(zip(self._windows, self._rows, strict=True))
            if window.key in late or window.key in given_up or not all(row.complete for row in rows)
        }

    def changes(self) -> list[TopicChange]:
        """Return the windows to merge."""
        below = 0 if self._below is self._between else self._below_need()
        found: list[TopicChange] = []
        if self._below is Change.DROP:
            if below and not self._is_dropped(below):
                found.append(self._change(Change.DROP, 0, below))
        else:
            found += self._merges(self._below, 0, below)
        return found + self._merges(self._between, below, self._top())

    def _merges(self, what: Change, low: int, high: int) -> list[TopicChange]:
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
        # The only window is already merged; a new row would have the same key.
        return count == 1 and self._windows[0].is_merged

    def _need(self, life: PartitionIncarnation) -> PartitionNeed:
        return self._needs.of_life(life)

    def _below_need(self) -> int:
        """Return the number of first windows in which no point needs every record."""
        lives: dict[TopicPartitionId, PartitionIncarnation] = {}
        for count, rows in enumerate(self._rows):
            for row in rows:
                before, need = lives.get(row.partition, row.life), self._need(row.life)
                is_later = row.start < row.end and row.window.end_ms > need.lacked_from_ms + 1
                if row.end > need.least or is_later or self._hides(before, row.life):
                    return count
                lives[row.partition] = row.life
        return len(self._rows)

    def _hides(self, before: PartitionIncarnation, life: PartitionIncarnation) -> bool:
        """Whether a merged row would hide an earlier incarnation that some point has."""
        return before != life and self._need(before).is_listed

    def _top(self) -> int:
        """Return the number of first windows that end before the last point."""
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
        """Yield ranges `[start, end)` of windows that can be merged, as long as possible."""
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
                begin = index + 1  # a point lies inside the window, or it must not change
            else:
                pieces |= joined
        yield begin, high

    def _joined(
        self, what: Change, index: int, before: Mapping[TopicPartitionId, _Piece]
    ) -> dict[TopicPartitionId, _Piece] | None:
        """Extend the pieces by a window; None if a point prevents the merge."""
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
            if what is Change.COMPACT:
                if not need.allows(piece.start, piece.end):
                    return None
            elif row.is_compacted or need.ends_inside(piece.start, piece.end):
                return None
            found[row.partition] = piece
        return found


@dataclass(frozen=True, slots=True)
class _Work:
    """A change with the ledger rows that it merges.

    `keep` selects the records to keep. `hidden` are incarnations without a row afterwards, because
    a later incarnation has their windows.
    """

    change: TopicChange
    pieces: tuple[Pieces, ...]
    keep: Mapping[SpanId, Keep | LastOfEachKey]
    hidden: frozenset[PartitionIncarnation]

    @classmethod
    def of(cls, change: TopicChange, entries: Sequence[LedgerEntry], needs: TopicNeeds) -> "_Work":
        """Prepare a change; `entries` are the ledger rows of its topic and windows, in order."""
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
            if change.what is Change.COMPACT:
                need = needs.of_life(life)
                keep[piece.id] = LastOfEachKey(
                    undecided=need.undecided,
                    # No point needs records below the lowest log start offset.
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
        """Return a partition of which a point, perhaps a new one, needs more than is kept."""
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


def _life(entry: LedgerEntry) -> PartitionIncarnation:
    plan = entry.result.plan
    return plan.partition.topic, plan.partition.partition, plan.topic_id


def _row(pieces: Pieces, merged: Merged, run_id: str) -> LedgerEntry:
    """Return the ledger row for the merged windows of one partition.

    Later evaluations must find the same holes, read times and closing times in it as in the
    original rows.
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
    """Return the index of the first of the adjacent windows to merge with all after it.

    A window is rewritten only if the windows after it have a share of its size. Therefore the total
    written volume is at most a small multiple of the backups. Each remaining window is more than
    `ratio` times as large as all windows after it, so that few remain.
    """
    first, behind = max(len(sizes) - 1, 0), 0
    for index in reversed(range(len(sizes))):
        if sizes[index] <= ratio * max(behind, 1):
            first = index
        behind += sizes[index]
    return first


class PointHarmedError(StoredDataError):
    """A merge of windows would reduce the restorability of a recovery point."""


@dataclass(frozen=True, slots=True)
class ExpireJob:
    """Deletes points by policy and merges the windows between kept points.

    `now_ms` (epoch milliseconds) defaults to the present time. `check` is called regularly and can
    raise to stop the job.
    """

    settings: ApplicationSettings
    run_id: str = ""
    now_ms: int | None = None
    log: Callable[[str], None] = _log.info
    check: Callable[[], None] = lambda: None

    def plan(self) -> ExpirePlan:
        """Plan without changing anything.

        Raises:
            WarehouseError: The warehouse does not exist or cannot be read.
        """
        self._repo.require_backup()
        return self._planner().plan()

    def run(self) -> ExpireResult:
        """Plan again under the lock for merges, and execute the plan.

        Raises:
            StoredDataError: The plan has a blocker, and nothing was changed.
            PointHarmedError: A merge would reduce the restorability of a point. The windows of this
                topic were not merged; everything else was done.
            WarehouseLockedError: Another run holds the lock for too long.
        """
        started = time.monotonic()
        with self._repo.lock(Lock.MERGE, purpose=self._purpose, wait_s=self._wait_s):
            plan = self.plan()
            plan.require_allowed()
            self._drop_points(plan)
            topics = self._merge_windows()
        return ExpireResult(plan, tuple(topics), time.monotonic() - started)

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
        """Delete expiring points and their snapshots."""
        with self._writing(Lock.APPLICATION) as lock:
            # Otherwise these increments would count again after their window is merged.
            drop_superseded(
                self._repo,
                self._records,
                self._repo.ledger.closed_with_increments(),
                writer=lock,
                provenance=self._provenance,
            )
            self._remove_leftovers(lock)
            self._drop_snapshots(plan.snapshots, lock)
        if not plan.expiring:
            return
        with self._writing(Lock.RECORDER) as lock:
            # A restore may have started, or a point may be pinned, since the plan.
            again = self._planner().expiring()
            expiring = {id_: at_ms for id_, at_ms in plan.expiring.items() if id_ in again}
            self._repo.points.drop(expiring, writer=lock)
            self._repo.points.tidy()
        self.log(f"{len(expiring):,} recovery points of {self._id} expired.")

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
        """Merge windows topic by topic, so that an interrupted run keeps its progress.

        The merge respects all points that are present now, not only those of the plan.
        """
        changes = self._planner().changes()
        done: list[TopicResult] = []
        left_out: list[PointHarmedError] = []
        for lot in _lots(changes):
            try:
                done += self._merge(lot)
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
        """Return the topic's part of all present points, and the records that they need."""
        points = self._repo.points.of_topic(topic)
        declared = next(one.roles for one in self.settings.topics if one.name == topic)
        needs = TopicNeeds.of(
            points,
            roles_of(declared, points),
            whole_logs=policy_of(self.settings).keeps_whole_logs,
        )
        return points, needs

    def _merge(self, changes: Sequence[TopicChange]) -> list[TopicResult]:
        """Apply changes of one topic, all of them or none."""
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
            # No point can be added between the check of all points and the change of the ledger.
            self._writing(Lock.RECORDER) as points,
        ):
            rows = [[_row(one, merged, self.run_id) for one in work.pieces] for work in works]
            every_row = [row for of_work in rows for row in of_work]
            self._require_as_before(topic, works, every_row)
            points.require_held()
            self._repo.ledger.put_together(every_row, {topic: windows}, writer=merged.lock)
            self._drop_records(merged.lock, {(window.key, topic) for window in windows} - new)
        return [self._report(one, of_one) for one, of_one in zip(changes, rows, strict=True)]

    def _report(self, change: TopicChange, rows: Sequence[LedgerEntry]) -> TopicResult:
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
            f"{result.topic}: merged {result.windows} windows into {result.window},"
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
        """Remove the files of these windows (keys) and topics from the records table."""
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
        """Raise if the merged rows changed meanwhile, or if a restore reads them."""
        if self._entries(topic, entries) != entries or self._is_read:
            raise StoredDataError(
                subject=f"The backup of {topic}",
                problem="was changed by another run while its windows were merged, or a restore has"
                " started to read it",
                remedy="Nothing was changed. Run expire again after the other run has ended.",
            )

    def _require_as_before(
        self, topic: str, works: Sequence[_Work], rows: Sequence[LedgerEntry]
    ) -> None:
        """Check that the restorability of all present points does not change.

        Raises:
            PointHarmedError: The restorability of a point would decrease.
        """
        points, needs = self._needs(topic)
        for work in works:
            partition = work.harms(needs)
            if partition is not None:
                raise PointHarmedError(
                    subject=f"The backup of {partition}",
                    problem=f"has records in {work.change.window.key} that a recovery point taken"
                    " during the merge needs",
                    remedy="Nothing of the topic was changed. Run expire again.",
                )
        contents = Repository.open(self.settings).reading(self.settings)
        keys = {window.key for work in works for window in work.change.windows}
        spans = [s for s in self._repo.ledger.stored_spans({topic}) if s.window.key not in keys]
        after = contents.with_spans(topic, [*spans, *self._repo.ledger.as_spans(rows)])
        statuses = {one.id: one for one in after.statuses(points)}
        # Exact is the best value, so only the other points can have been better before.
        others = [
            point for point in points if statuses[point.id].restorability is not Restorability.EXACT
        ]
        for before in contents.statuses(others):
            other = statuses[before.id]
            if RANK[other.restorability] < RANK[before.restorability]:
                raise PointHarmedError(
                    subject=f"Recovery point {before.id}",
                    problem=f"restores {topic} with restorability {before.restorability}, but a"
                    f" merge of its windows would reduce that to {other.restorability}:"
                    f" {other.reason}",
                    remedy="Nothing of the topic was changed. Report this. Until it is fixed, set"
                    " keep.logs: whole, or pin the point, to prevent the merge.",
                )

    def _remove_leftovers(self, lock: LockHandle) -> None:
        """Remove files of merged windows that a killed run left behind."""
        gone = leftovers(self._repo)
        if gone:
            self._drop_records(lock, gone)


def _lots(changes: Iterable[TopicChange]) -> Iterator[list[TopicChange]]:
    """Group changes of one topic that are applied together, to check all points only once."""
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
    """Return windows (keys) and topics of files that `expire` left behind.

    These are windows that it has merged, and merged windows that did not reach the ledger.
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
