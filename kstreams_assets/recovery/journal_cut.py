"""Cuts a running at-least-once application at boundaries of its commit journal. Pure.

A boundary has the offsets of one commit of one thread, and the ends of all that the thread had
written for them. A cut takes the boundaries of readers first, then those of the writers of what
they read, as passive cuts do (`passive_commits`); it needs no sample close to a commit.

Nothing is concluded from an absence. A cut is exact if all of this is shown, else there is none:

1. Each boundary was made after the start of its level: the thread had written, or read, more than
   was written or committed by then, or it had received a request that was sent after the start. So
   what lies below the ends at the start is part of it.
2. The journal has all boundaries of the thread since the group's offsets were read. So the offsets
   of tasks that this commit left out are known.
3. The last record of each acknowledged end is in the log, at the end of a batch of the thread's own
   producer. So the ends belong to this topic incarnation and this thread.
4. Each batch between the ends of two threads belongs to a known thread, which decides about it; in
   an output it may be another application's.
5. No committed offset lies beyond the first record that the cut leaves out.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from kstreams_assets.kafka.journal import CommitBoundary
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.passive_commits import (
    Ambiguous,
    Assignment,
    Boundary,
    CutEvidence,
    Ends,
    PassiveCut,
)
from kstreams_assets.recovery.scene import NotTaken

Producers = Mapping[str, int]
"""The producer id of each thread that is known to have written a record."""


class LevelStart(NamedTuple):
    """Ends of all written partitions; read after all of these: the ends again, and offsets.

    One request reads the ends of partitions one after the other, so a commit may be later than the
    end of one partition and earlier than that of another. `request` was sent to the application
    after all of this; "" if none was.
    """

    ends: Ends
    later_ends: Ends
    committed: Mapping[TopicPartitionId, int]
    request: str = ""

    def precedes(self, boundary: CommitBoundary) -> bool:
        """Whether a thread committed a boundary after all `ends` were read."""
        if self.request and boundary.request == self.request:
            return True
        has_written = any(
            end > self.later_ends[p]
            for p, end in boundary.acknowledged.items()
            if p in self.later_ends
        )
        return has_written or any(
            offset > self.committed.get(p, -1) for p, offset in boundary.committed.items()
        )

    def written(self, boundary: CommitBoundary) -> dict[TopicPartitionId, int]:
        """Return the acknowledged ends beyond those at the start."""
        acknowledged = boundary.acknowledged.items()
        return {p: end for p, end in acknowledged if p in self.ends and end > self.ends[p]}


@dataclass(frozen=True, slots=True)
class ThreadBoundary:
    """The boundary that one thread (member of the group) contributes at one level.

    `offsets` are those of its tasks of this level; `written` the acknowledged ends beyond those at
    the start of the level; `ends` the exclusive ends of what it wrote, or the start's.
    """

    thread: str
    level: int
    source: CommitBoundary
    offsets: Mapping[TopicPartitionId, int]
    written: Mapping[TopicPartitionId, int]
    ends: Ends


@dataclass(frozen=True, slots=True)
class Journal:
    """Boundaries of an application, by run and number.

    `before` is the end of the journal before the group's offsets were read: these offsets contain
    the commits of all boundaries below it.
    """

    before: int
    runs: defaultdict[str, dict[int, CommitBoundary]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def add(self, boundaries: Iterable[CommitBoundary]) -> None:
        """Add boundaries; of one that was written twice, the first counts."""
        for one in boundaries:
            self.runs[one.run].setdefault(one.number, one)

    def interval_s(self) -> float | None:
        """Return the usual time between two commits of one thread; None: it is unknown."""
        gaps_ms = [
            later.timestamp_ms - one.timestamp_ms
            for numbers in self.runs.values()
            for one, later in pairwise(one for _, one in sorted(numbers.items()))
            if later.number == one.number + 1
        ]
        return median(gaps_ms) / 1000 if gaps_ms else None

    def behind(
        self, assignment: Assignment, committed: Mapping[TopicPartitionId, int]
    ) -> list[str]:
        """Return members that have committed offsets which no boundary contains yet."""
        journaled: dict[TopicPartitionId, int] = {}
        boundaries = (one for numbers in self.runs.values() for one in numbers.values())
        for one in sorted(boundaries, key=lambda one: one.record_offset):
            journaled |= one.committed
        found: list[str] = []
        for member, partitions in assignment.items():
            own = [p for p in partitions if p in committed]
            known = [p for p in own if p in journaled]
            if own and not (known and all(journaled[p] >= committed[p] for p in known)):
                found.append(member)
        return sorted(found)

    def first_after(
        self, start: LevelStart, assignment: Assignment
    ) -> Mapping[str, CommitBoundary] | NotTaken:
        """Return the first boundary of each member that is known to be later than a start."""
        owners = {p: member for member, partitions in assignment.items() for p in partitions}
        found: dict[str, CommitBoundary] = {}
        for numbers in self.runs.values():
            later = (
                one
                for _, one in sorted(numbers.items())
                if one.record_offset >= self.before and one.committed and start.precedes(one)
            )
            one = next(later, None)
            if one is None:
                continue
            members = {owners.get(p) for p in one.committed}
            member = members.pop()
            if members or member is None:
                return NotTaken(
                    f"{one.thread} committed offsets of partitions that are not assigned to one"
                    " member of the group",
                    again=True,
                )
            if member in found:
                return NotTaken(
                    f"{one.thread} and {found[member].thread} both commit for the member {member}",
                    again=True,
                )
            found[member] = one
        return found

    def offsets_at(
        self, boundary: CommitBoundary, base: Mapping[TopicPartitionId, int]
    ) -> Mapping[TopicPartitionId, int] | NotTaken:
        """Return the offsets after a commit, as far as its thread determines them.

        `base` are the offsets that were read when the journal ended at `before`, or later, but
        before this commit.
        """
        numbers = self.runs[boundary.run]
        offsets = dict(base)
        for number in range(boundary.number, 0, -1):
            one = numbers.get(number)
            if one is None:
                return NotTaken(
                    f"the journal does not contain commit {number} of {boundary.thread}"
                )
            if one.record_offset < self.before:
                break
            if not one.regular:
                return NotTaken(f"{one.thread} lost tasks during the cut", again=True)
            for p, offset in one.committed.items():
                offsets[p] = max(offset, offsets.get(p, offset))
        for p, offset in boundary.committed.items():
            if offsets[p] != offset:
                return NotTaken(f"the committed offset of {p} went back to {offset}", again=True)
        return offsets


@dataclass(slots=True)
class JournalCut:
    """Collects the boundaries of a cut, level by level, and proves that they are exact.

    `internal` are the topics that only the application writes.
    """

    evidence: CutEvidence
    chosen: list[ThreadBoundary] = field(default_factory=list)
    _batches: dict[TopicPartitionId, Sequence[RawBatch]] = field(default_factory=dict)
    _producers: dict[str, int] = field(default_factory=dict)
    _runs: dict[str, str] = field(default_factory=dict)

    def members(self, level: int) -> frozenset[str]:
        """Return the members that have tasks at a level."""
        of_level = self.evidence.levels[level]
        return frozenset(m for m, of in self.evidence.assignment.items() if of_level.tasks(of))

    def choose(
        self,
        level: int,
        member: str,
        boundary: CommitBoundary,
        start: LevelStart,
        offsets: Mapping[TopicPartitionId, int],
    ) -> ThreadBoundary | NotTaken:
        """Use a boundary for the tasks that a member has at a level."""
        if self._runs.setdefault(member, boundary.run) != boundary.run:
            return NotTaken(f"{boundary.thread} was started during the cut", again=True)
        tasks = self.evidence.levels[level].tasks(self.evidence.assignment[member])
        one = ThreadBoundary(
            member,
            level,
            boundary,
            {p: offsets[p] for p in tasks if p in offsets},
            start.written(boundary),
            {p: max(boundary.acknowledged.get(p, 0), end) for p, end in start.ends.items()},
        )
        self.chosen.append(one)
        return one

    def ranges(self, level: int) -> Mapping[TopicPartitionId, OffsetRange]:
        """Return the offsets whose batches prove the boundaries of a level."""
        found = dict(self._evidence(level).ranges())
        for one in self._of(level):
            for p, end in one.written.items():
                known = found.get(p, OffsetRange(end - 1, end))
                found[p] = OffsetRange(min(known.start, end - 1), max(known.end, end))
        return found

    def prove(
        self, level: int, batches: Mapping[TopicPartitionId, Sequence[RawBatch]]
    ) -> NotTaken | None:
        """Find the producers of threads in all batches of `ranges`; return what contradicts."""
        for one in self._of(level):
            for p, end in one.written.items():
                last = next(
                    (b for b in batches.get(p, ()) if b.base_offset < end <= b.last_offset + 1),
                    None,
                )
                if last is None:
                    return NotTaken(f"{p} no longer contains offset {end - 1}", again=True)
                if last.last_offset + 1 != end:
                    return NotTaken(f"offset {end} of {p} is not the end of a batch")
                if last.is_transactional or last.producer_id < 0:
                    kind = "in transactions" if last.is_transactional else "without idempotence"
                    return NotTaken(f"{p} is written {kind}: the writers are unknown")
                known = self._producers.setdefault(one.thread, last.producer_id)
                if known != last.producer_id:
                    return NotTaken(
                        f"{one.source.thread} writes as two producers: {known} and"
                        f" {last.producer_id} (in {p})"
                    )
        if len(set(self._producers.values())) < len(self._producers):
            return NotTaken("two threads write as the same producer")
        for p in self._evidence(level).spans():
            if p in self._batches:
                return NotTaken(f"two levels write {p}")
            self._batches[p] = batches.get(p, ())
        return None

    def cut(self, committed: Mapping[TopicPartitionId, CommittedOffset]) -> PassiveCut | NotTaken:
        """Return the cut once all levels are proven; `committed` are its offsets as committed."""
        evidence = self._evidence(None, committed)
        spans = evidence.spans()
        absent = sorted({p for one in self.chosen for p in one.ends} - spans.keys())
        if absent:
            return NotTaken(f"no member of the group writes {absent[0]}")
        contradiction = self._unattributed(evidence)
        if contradiction:
            return NotTaken(contradiction)
        cut = evidence.cut(self._batches)
        if isinstance(cut, Ambiguous):
            return NotTaken(cut.reason, again=True)
        for p, offset in cut.committed.items():
            first_out = next((one.start for one in cut.excluded.get(p, ())), cut.ends.get(p))
            if first_out is not None and offset.offset > first_out:
                return NotTaken(f"{p} was read beyond what its writers had committed", again=True)
        return cut

    def _unattributed(self, evidence: CutEvidence) -> str:
        """Return a batch between the ends of threads whose writer is not known."""
        threads = {producer: thread for thread, producer in self._producers.items()}
        for p, spans in evidence.spans().items():
            first, end = min(s.after for s in spans.values()), max(s.after for s in spans.values())
            for batch in self._batches[p]:
                thread = threads.get(batch.producer_id, "")
                span = spans.get(thread)
                where = f"producer {batch.producer_id} wrote {p} (offset {batch.base_offset})"
                if span and batch.base_offset < span.after <= batch.last_offset:
                    return f"the boundary of {thread} divides a batch of {p}"
                if span or batch.last_offset < first or batch.base_offset >= end:
                    continue
                if thread or p.topic in evidence.internal:
                    return f"{where}, but belongs to no member that may write it"
                if spans.keys() - self._producers.keys():
                    return f"{where}: whether a member of the group is unknown"
        return ""

    def _of(self, level: int | None) -> list[ThreadBoundary]:
        return [one for one in self.chosen if level is None or one.level == level]

    def _evidence(
        self,
        level: int | None,
        committed: Mapping[TopicPartitionId, CommittedOffset] | None = None,
    ) -> CutEvidence:
        """Return the evidence of one level, or of all."""
        known = self.evidence
        boundaries = tuple(
            Boundary(
                one.thread,
                one.level,
                one.source.record_offset,
                {p: committed[p] for p in one.offsets} if committed is not None else {},
                one.ends,
                one.ends,
            )
            for one in self._of(level)
        )
        producers = dict(self._producers)
        return CutEvidence(known.levels, known.assignment, boundaries, producers, known.internal)
