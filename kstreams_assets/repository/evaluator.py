"""Evaluate which recovery points can be restored from the backups, and how exactly. Pure.

A point needs the records that its logs contained at the cut: of each partition those of `[log
start, end)`. It is *covered* if recorded spans contain them; for changelogs and records in flight,
records saved with points count as well.

An exact point is proved exact if it is sealed. If it is not, a changelog record below its end may
have been removed before it was read because its successor is at or above the end. Every span that
was read after the cut must therefore have been contiguous up to the end: a hole below it may be
caused by such a successor. Spans that were read before the cut are safe: the successors of records
removed then are below the end. The same hole would make a point lose state, so it also prevents
`at_least_once`.

If `expire` has kept only the last record of each key, a point that ends inside, or whose group has
yet to read records of it, is missing those that were overtaken later: it is not proved either.

Deletions have no successor. If one may have been removed before it was backed up
(`Chain.late_holes`) and was not saved with the point, no point is proved, sealed or not.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.model.chains import DELETE_RETENTION_MS, Chain, StoredSpan
from kstreams_assets.model.damage import NOTHING_DAMAGED, Damage, DamagedSpans
from kstreams_assets.model.point import Guarantee, PartitionCut, PartitionIncarnation, RecoveryPoint
from kstreams_assets.model.restorability import PointStatus, Restorability
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import RangeSet
from kstreams_assets.texts import few

_FEW = 3
_DEFAULTS: Mapping[str, int] = {}
_WRITTEN_ONLY = TopicRoles({TopicRole.OUTPUT})


@dataclass(frozen=True, slots=True)
class _Missing:
    """Offsets `[start, end)` of a partition that a restore needs but that are missing."""

    cut: PartitionCut
    start: int
    end: int
    chain: Chain | None
    lost: bool = False
    in_flight: bool = False
    damage: Damage | None = None

    @property
    def offsets(self) -> str:
        return f"{self.cut.topic}-{self.cut.partition}: offsets {self.start} to {self.end - 1}"


@dataclass(slots=True)
class _Findings:
    missing: list[_Missing] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Lost, but not needed to continue."""
    expired: list[str] = field(default_factory=list)
    """Dropped by `expire`, which keeps everything needed to continue."""
    not_judged: dict[str, None] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    """Topics that a restore needs and that the point does not contain, with the remedy."""


class RestorabilityEvaluator:
    """Compares recovery points with the spans of the ledger.

    Args:
        chains: The chains of the ledger.
        roles: Roles of every declared topic, for points without roles; empty: unknown.
        backed_up: Topics that are selected for backup; the others are not evaluated, except
            repartition topics, whose records are saved with the point.
        closed: Closed windows in order, starting with the one in which the oldest point was taken.
        not_mine: Topics that are declared not to be the application's, whatever points contain.
        delete_retention_ms: `delete.retention.ms` of topics where it is not Kafka's default; None
            leaves deletions to the caller.
        damaged: Spans whose files do not match the ledger.
    """

    def __init__(
        self,
        chains: Mapping[PartitionIncarnation, Chain],
        *,
        roles: Mapping[str, TopicRoles],
        backed_up: Set[str],
        closed: Sequence[Window],
        not_mine: Set[str] = frozenset(),
        delete_retention_ms: Mapping[str, int] | None = _DEFAULTS,
        damaged: DamagedSpans = NOTHING_DAMAGED,
    ) -> None:
        self._chains = chains
        self._damaged_spans = damaged
        self._delete_retention_ms = delete_retention_ms
        self._roles = roles
        self._not_mine = not_mine
        self._backed_up = backed_up
        self._closed = closed
        self._closed_starts = [window.start_ms for window in closed]
        self._has_increments = any(
            chain.spans[-1].last_window.is_increment for chain in chains.values() if chain.spans
        )
        self._spans_of: dict[tuple[str, int], list[StoredSpan]] = {}
        for (topic, partition, _), chain in chains.items():
            self._spans_of.setdefault((topic, partition), []).extend(chain.spans)

    def evaluate(self, points: Iterable[RecoveryPoint]) -> list[PointStatus]:
        """The status of each point, in the given order."""
        return [self._status(point) for point in points]

    def _status(self, point: RecoveryPoint) -> PointStatus:
        found = self._findings(point)
        if point.damaged:
            restorability = Restorability.NOTHING
            reason = (
                "It cannot be used: its row does not match the digest that was recorded when it"
                " was taken. Restore the table recovery_points from a copy of the warehouse."
            )
        elif found.missing or found.absent:
            restorability, reason = Restorability.NOTHING, self._not_covered(point, found)
        elif found.doubts:
            why = point.unsealed_because.rstrip(".")
            restorability = Restorability.UNPROVEN
            reason = f"{few(found.doubts, by='; ')}.{f' Not sealed: {why}.' if why else ''}"
        elif point.guarantee_of_cut is Guarantee.AT_LEAST_ONCE:
            restorability, reason = Restorability.AT_LEAST_ONCE, point.reason
        elif point.sealed:
            restorability, reason = Restorability.EXACT, "Sealed."
        else:
            restorability = Restorability.EXACT
            reason = "Not sealed, but its changelogs were contiguous when they were backed up."
        return PointStatus(
            id=point.id,
            taken_at_ms=point.taken_at_ms,
            method=point.method,
            guarantee=point.guarantee,
            sealed=point.sealed,
            covered=restorability is not Restorability.NOTHING,
            restorability=restorability,
            reason=reason + _notes(found),
            repeats_at_most=point.most_repeats,
            damaged=point.damaged or any(missing.damage for missing in found.missing),
            is_pending=self._is_pending(point, found),
            has_increments=self._has_increments,
        )

    def _findings(self, point: RecoveryPoint) -> _Findings:
        found = _Findings()
        for cut in point.partitions:
            missing = None
            offset = point.group.offset_in(cut)
            if self._damaged_spans:
                missing = self._damaged(cut, offset)
            if missing is not None:
                found.missing.append(missing)
                continue
            roles = cut.roles or self._roles.get(cut.topic, TopicRoles())
            chain = self._chains.get((cut.topic, cut.partition, cut.topic_id))
            if roles.in_flight_only:
                missing = self._in_flight(cut, chain, offset)
            elif cut.topic not in self._backed_up:
                found.not_judged[cut.topic] = None
                continue
            elif roles.is_changelog:
                to = cut.end if cut.saved_from is None else min(cut.saved_from, cut.end)
                missing = _first_missing(cut, chain, cut.log_start, to)
                # A source topic that is also a changelog is not sealed: the recorder saves only
                # records that the application alone writes. Its unread records must be covered as
                # well.
                if missing is None and (roles.is_source or not point.sealed):
                    found.doubts += _doubts(cut, chain, cut.end, point.ledger_version)
                if missing is None and chain is not None:
                    found.doubts += self._deletion_doubts(cut, chain, sealed=point.sealed)
            else:
                needed_from = cut.end if roles.written_only else max(offset or 0, cut.log_start)
                missing = _first_missing(cut, chain, needed_from, cut.end)
                if missing is None and chain is not None:
                    found.lost += _lost(cut, chain)
                    found.expired += _expired(cut, chain)
            if missing is not None:
                found.missing.append(missing)
            elif chain is not None:
                found.doubts += _compacted(cut, chain, cut.whole_from(roles, offset))
        found.absent += absent_texts(point, self._roles)
        found.doubts += unknown_texts(point, self._not_mine)
        return found

    def _damaged(self, cut: PartitionCut, committed: int | None) -> _Missing | None:
        """The first span that a restore would read and whose files do not match the ledger."""
        chain = self._chains.get((cut.topic, cut.partition, cut.topic_id))
        roles = cut.roles or self._roles.get(cut.topic, TopicRoles())
        is_in_flight = roles.in_flight_only
        if not (is_in_flight or cut.topic in self._backed_up):
            return None
        start = max(cut.log_start, committed or 0) if is_in_flight else cut.log_start
        life = (cut.topic, cut.partition, cut.topic_id)
        damage = self._damaged_spans.inside(life, start, cut.end)
        if damage is None:
            return None
        return _Missing(cut, damage.offsets.start, damage.offsets.end, chain, damage=damage)

    def _deletion_doubts(self, cut: PartitionCut, chain: Chain, *, sealed: bool) -> list[str]:
        """The ranges where keys that the application has deleted might live on."""
        if self._delete_retention_ms is None:
            return []
        retention_ms = self._delete_retention_ms.get(cut.topic, DELETE_RETENTION_MS)
        saved = cut.saved if sealed else RangeSet()
        doubts = (
            hole.doubt(cut.id, cut.log_start, cut.end, saved, retention_ms)
            for hole in chain.late_holes(retention_ms)
        )
        return [doubt for doubt in doubts if doubt][:1]

    def _in_flight(
        self, cut: PartitionCut, chain: Chain | None, committed: int | None
    ) -> _Missing | None:
        """Records of a repartition topic that the application had not processed."""
        start = max(cut.log_start, committed or 0)
        if start >= cut.end or (cut.saved_from is not None and cut.saved_from <= start):
            return None
        reached = chain.stored.reach(start) if chain else start
        if reached >= cut.end:
            return None
        return _Missing(cut, reached, cut.end, chain, in_flight=True)

    def _not_covered(self, point: RecoveryPoint, found: _Findings) -> str:
        missing = sorted(found.missing, key=lambda m: m.damage is None)
        texts = [
            f"{m.damage}" if m.damage else f"{m.offsets} {self._why(point, m)}"
            for m in missing[:_FEW]
        ]
        if len(missing) > _FEW:
            texts.append(f"and {len(missing) - _FEW} more partitions")
        if found.absent:
            texts.append(few(found.absent, by="; "))
        return f"Not covered: {'; '.join(texts)}."

    def _is_pending(self, point: RecoveryPoint, found: _Findings) -> bool:
        return (
            bool(found.missing)
            and not (found.absent or point.damaged)
            and self._window_of(point.effective_at_ms) is None
            and all(self._is_to_come(missing) for missing in found.missing)
        )

    def _is_to_come(self, missing: _Missing) -> bool:
        """Whether the next backup reads it: it comes after everything that was read so far."""
        if missing.lost or missing.damage or missing.cut.topic not in self._backed_up:
            return False
        return missing.chain is None or missing.chain.neighbours(missing.start)[1] is None

    def _why(self, point: RecoveryPoint, missing: _Missing) -> str:
        if missing.in_flight:
            return "were in flight and were not saved with the point"
        if (
            missing.lost
            and missing.chain
            and missing.chain.expired.reach(missing.start) > missing.start
        ):
            return (
                "were dropped by kstreams-assets expire: no kept recovery point needed them"
                " (restore a kept point, or from a second copy that still has them)"
            )
        if missing.lost:
            return "could no longer be read when they were due for backup"
        before, after = missing.chain.neighbours(missing.start) if missing.chain else (None, None)
        if after is not None:
            key = after.window.key
            if before is None:
                return (
                    f"are not backed up: back up the windows before {key}, or, if it is the first,"
                    " set windows.start one window earlier and back up"
                )
            return (
                f"are not backed up: back up the windows between {before.last_window.key} and {key}"
            )
        window = self._window_of(point.effective_at_ms)
        if window is None:
            return "are not backed up: the window of the point is still open"
        of_partition = self._spans_of.get((missing.cut.topic, missing.cut.partition), [])
        if any(s.window <= window <= s.last_window for s in of_partition):
            return "were lost with the topic, which was deleted before they were read"
        if before is not None and before.last_window.end_ms < window.start_ms:
            windows = f"windows after {before.last_window.key} up to {window.key}"
        else:
            windows = f"window {window.key}"
        return f"are not backed up: back up {windows}"

    def _window_of(self, instant_ms: int) -> Window | None:
        """The closed window that contains a time."""
        index = bisect_right(self._closed_starts, instant_ms) - 1
        if index < 0 or self._closed[index].end_ms <= instant_ms:
            return None
        return self._closed[index]


def absent_texts(point: RecoveryPoint, roles: Mapping[str, TopicRoles]) -> list[str]:
    """Topics that a restore of the point needs and that were absent, with the remedy.

    They count as long as they are declared (`roles`; empty: unknown), backed up or not.
    """
    return [
        point.why_absent(topic)
        for topic in point.absent_topics
        if (topic in roles or not roles) and roles.get(topic) != _WRITTEN_ONLY
    ]


def unknown_texts(point: RecoveryPoint, not_mine: Set[str]) -> list[str]:
    """Undeclared topics, with the remedy: it is unknown whether they contain state."""
    return [point.why_unknown(topic) for topic in point.unknown_topics if topic not in not_mine]


def _first_missing(
    cut: PartitionCut, chain: Chain | None, needed_from: int, to: int
) -> _Missing | None:
    """The reason why `[log start, to)` of a partition is not covered.

    A window without backup counts wherever it is; records that Kafka had lost before they could be
    read count from `needed_from` on.
    """
    if cut.log_start >= to:
        return None
    if chain is None:
        return _Missing(cut, cut.log_start, to, None)
    if chain.stored.reach(cut.log_start) >= to:
        return None
    first = max(cut.log_start, min(chain.begin, to))
    reached = chain.recorded.reach(first)
    if reached < to:
        end = chain.recorded.next_start(reached)
        return _Missing(cut, reached, to if end is None else min(end, to), chain)
    reached = chain.stored.reach(needed_from)
    if reached < to:
        end = chain.stored.next_start(reached)
        return _Missing(cut, reached, to if end is None else min(end, to), chain, lost=True)
    return None


def _doubts(
    cut: PartitionCut, chain: Chain | None, end: int, ledger_version: int | None
) -> list[str]:
    """Why the content of a changelog below an end is not proved to be that of the cut."""
    if cut.log_start >= end:
        return []
    if chain is None or chain.stored.reach(cut.log_start) < end:
        return [f"{cut.topic}-{cut.partition}: not all of its records were saved with the point"]
    hole = chain.hole_read_after(cut.log_start, end, ledger_version)
    if hole is None:
        return []
    return [
        f"{cut.topic}-{cut.partition}: compaction may have removed records of the point before they"
        f" were read; the log no longer had offset {hole}"
    ]


def _compacted(cut: PartitionCut, chain: Chain, whole_from: int) -> list[str]:
    """Why records of the cut may be missing that `expire` considered overtaken."""
    if cut.log_start >= cut.end:
        return []
    span = chain.compacted_inside(whole_from, cut.end)
    if span is None:
        return []
    return [
        f"{cut.topic}-{cut.partition}: of offsets {span.start} to {span.end - 1} kstreams-assets"
        " expire kept only the last record of each key, but the point needs every one from offset"
        f" {whole_from} on"
        if whole_from < cut.end
        else f"{cut.topic}-{cut.partition}: the point ends at offset {cut.end}, but of offsets"
        f" {span.start} to {span.end - 1} kstreams-assets expire kept only the last record of"
        " each key"
    ]


def _lost(cut: PartitionCut, chain: Chain) -> list[str]:
    reached = (chain.stored | chain.expired).reach(cut.log_start)
    return [f"{cut.topic}-{cut.partition} from offset {reached} on"] if reached < cut.end else []


def _expired(cut: PartitionCut, chain: Chain) -> list[str]:
    dropped = chain.expired.clip(cut.log_start, cut.end)
    return [f"{cut.topic}-{cut.partition} below offset {dropped[-1].end}"] if dropped else []


def _notes(found: _Findings) -> str:
    notes = ""
    if found.expired:
        notes += f" Expired by policy, and not needed to continue: {few(found.expired, by='; ')}."
    if found.lost:
        notes += f" Lost, but not needed to continue: {few(found.lost, by='; ')}."
    if found.not_judged:
        notes += f" Not backed up, so not evaluated: {', '.join(found.not_judged)}."
    return notes
