"""Cuts a running at-least-once application along its commits; nobody stops. Pure.

A stream thread flushes its producer, waits for the acknowledgements, commits the offsets of all its
tasks in one request, and only then continues. So what it had written when a commit became visible
is what belongs to the committed offsets, or slightly more.

Readers come first, then the writers of what they read, at strictly later commits: no reader may
have processed a record that its writer's part of the cut does not contain.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kstreams_assets.kafka.coordinator_log import GroupCommit
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.offsets import CommittedOffset, OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.recovery.group_commits import GroupBatch
from kstreams_assets.recovery.levels import Level

Ends = Mapping[TopicPartitionId, int]
Assignment = Mapping[str, frozenset[TopicPartitionId]]
"""The partitions of each thread (member of the group) that reads any."""


class Ambiguous(NamedTuple):
    """Why the observations do not make a cut."""

    reason: str


class EndsSample(NamedTuple):
    """Ends of data partitions, and the end of the group's commits, which was read after them."""

    ends: Ends
    group_end: int


@dataclass(frozen=True, slots=True)
class ThreadCommit:
    """One commit request of one thread; `first` and `last` are offsets of its records."""

    thread: str
    first: int
    last: int
    offsets: Mapping[TopicPartitionId, GroupCommit]


@dataclass(frozen=True, slots=True)
class Boundary:
    """The part of a cut that one thread contributes at one level.

    `before` are ends that were read before the commit, `after` such that were read after it: all
    the thread had written for the commit is below `after`. `last` is the offset of the commit.
    """

    thread: str
    level: int
    last: int
    committed: Mapping[TopicPartitionId, CommittedOffset]
    before: Ends
    after: Ends

    def grown(self, partitions: Iterable[TopicPartitionId]) -> dict[TopicPartitionId, OffsetRange]:
        """Return what was appended to partitions between the two samples, if anything."""
        return {
            p: OffsetRange(self.before[p], self.after[p])
            for p in partitions
            if self.before[p] < self.after[p]
        }


def commits_of_threads(
    batches: Iterable[GroupBatch], assignment: Assignment
) -> list[ThreadCommit] | Ambiguous:
    """Split batches of the offsets topic into the requests of threads, in the order of the log.

    The coordinator may gather the requests of several threads in one batch.
    """
    owner = {p: thread for thread, partitions in assignment.items() for p in partitions}
    found: list[ThreadCommit] = []
    for batch in batches:
        if batch.header.is_control:
            continue
        open_ones: dict[str, dict[TopicPartitionId, GroupCommit]] = {}
        for commit in batch.read():
            target = TopicPartitionId(commit.topic, commit.partition)
            thread = owner.get(target)
            if batch.header.is_transactional:
                return Ambiguous("the group commits offsets in transactions")
            if thread is None:
                return Ambiguous(f"an offset of {target} was committed, which no member reads")
            if target in open_ones.get(thread, {}):
                found.append(_request(thread, open_ones.pop(thread)))
            open_ones.setdefault(thread, {})[target] = commit
        found += (_request(thread, commits) for thread, commits in open_ones.items())
    return sorted(found, key=lambda one: one.last)


def _request(thread: str, commits: Mapping[TopicPartitionId, GroupCommit]) -> ThreadCommit:
    positions = [commit.record_offset for commit in commits.values()]
    return ThreadCommit(thread, min(positions), max(positions), dict(commits))


@dataclass(slots=True)
class CutInProgress:
    """Collects the boundaries of a cut from samples and commits, in the order of observation.

    `committed` were the group's offsets when watching started; commits before `starts_at` are
    known, but not used. A level is complete when `accept` was called for each of its threads.
    """

    levels: Sequence[Level]
    assignment: Assignment
    committed: dict[TopicPartitionId, CommittedOffset]
    starts_at: int
    rest_s: float = 30.0
    """How long a thread must have had nothing to do before its state counts as committed."""
    level: int = 0
    boundaries: list[Boundary] = field(default_factory=list)
    _shown: list[Boundary] = field(default_factory=list)
    """Commits that the last sample has shown: the next sample is their `after`."""
    _previous: EndsSample | None = None
    _rests_since: dict[str, tuple[float, Ends]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether every level has a boundary of each thread."""
        return self.level >= len(self.levels)

    @property
    def waiting(self) -> frozenset[str]:
        """The threads whose boundary of this level is missing."""
        if self.is_complete:
            return frozenset()
        done = {one.thread for one in self.boundaries if one.level == self.level}
        return frozenset(t for t in self.assignment if t not in done and self._tasks(t))

    @property
    def needs_sample(self) -> bool:
        """Whether a commit was shown whose `after` must be read before its thread writes again."""
        return bool(self._shown)

    def observe(
        self, sample: EndsSample, commits: Sequence[ThreadCommit], now_s: float
    ) -> list[Boundary]:
        """Take a sample and the commits below its `group_end`; return the boundaries it offers.

        The sample that first shows a commit may have been read before the flush of the commit had
        ended: of its request, the end of the commits was read last. The next sample was not.
        """
        offered = [
            Boundary(b.thread, b.level, b.last, b.committed, b.before, sample.ends)
            for b in self._shown
        ]
        offered += self._resting(sample, now_s) if not commits else []
        self._shown = []
        for commit in commits:
            self._apply(commit)
            self._rests_since.pop(commit.thread, None)
            if (
                commit.thread in self.waiting
                and commit.first >= self.starts_at
                and self._previous is not None
            ):
                self._shown.append(self._boundary(commit.thread, commit.last, self._previous.ends))
        self._previous = sample
        return offered

    def accept(self, boundary: Boundary) -> None:
        """Use a boundary; the next level starts after the last commit of this one."""
        self.boundaries.append(boundary)
        self._shown = [one for one in self._shown if one.thread != boundary.thread]
        while not self.is_complete and not self.waiting:
            of_level = [one.last for one in self.boundaries if one.level == self.level]
            self.starts_at = max([self.starts_at, *(last + 1 for last in of_level)])
            self.level += 1
            self._shown = []
            self._rests_since = {}

    def _tasks(self, thread: str) -> list[TopicPartitionId]:
        return self.levels[self.level].tasks(self.assignment[thread])

    def _apply(self, commit: ThreadCommit) -> None:
        for target, one in commit.offsets.items():
            if one.offset is None:
                self.committed.pop(target, None)
            else:
                self.committed[target] = CommittedOffset(one.offset, one.metadata, one.leader_epoch)

    def _boundary(self, thread: str, last: int, before: Ends) -> Boundary:
        committed = {p: self.committed[p] for p in self._tasks(thread) if p in self.committed}
        return Boundary(thread, self.level, last, committed, before, before)

    def _resting(self, sample: EndsSample, now_s: float) -> list[Boundary]:
        """Offer the boundaries of threads without work: they commit nothing.

        All that they read was committed, for longer than the commit interval, so that the writes of
        punctuators were committed as well. Nothing was read when the previous sample was taken.
        """
        previous, offered = self._previous, []
        for thread in self.waiting:
            own = writable_by(
                self.levels[self.level], self.assignment[thread], sample.ends, own_only=True
            )
            reads_all = all(
                sample.ends[p] <= (self.committed[p].offset if p in self.committed else 0)
                for p in self._tasks(thread)
            )
            ends = {p: sample.ends[p] for p in own}
            since, earlier = self._rests_since.get(thread, (now_s, ends))
            if not reads_all or previous is None or previous.group_end < self.starts_at:
                self._rests_since.pop(thread, None)
            elif earlier != ends or thread not in self._rests_since:
                self._rests_since[thread] = (now_s, ends)
            elif now_s - since >= self.rest_s:
                offered.append(self._boundary(thread, previous.group_end - 1, previous.ends))
        return offered


def writable_by(
    level: Level,
    partitions: Iterable[TopicPartitionId],
    written: Iterable[TopicPartitionId],
    *,
    own_only: bool = False,
) -> list[TopicPartitionId]:
    """Return partitions that a thread with these tasks may write at a level.

    A changelog partition belongs to the one task with its number. Every task may write every
    partition of the other topics, which `own_only` leaves out.
    """
    tasks = {*partitions}
    found: list[TopicPartitionId] = []
    for p in written:
        sources = level.changelogs.get(p.topic)
        if sources is None:
            if p.topic in level.writes and not own_only:
                found.append(p)
        elif any(TopicPartitionId(topic, p.partition) in tasks for topic in sources):
            found.append(p)
    return found


class Span(NamedTuple):
    """What one thread wrote of a partition around its commit: ends before and after it."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class PassiveCut:
    """A cut: exclusive ends, ranges below them that do not belong to it, committed offsets.

    `repeats_at_most` records may have been written after a commit of the cut; 0 is a proof that
    the cut is exact.
    """

    ends: Ends
    excluded: Mapping[TopicPartitionId, tuple[OffsetRange, ...]]
    committed: Mapping[TopicPartitionId, CommittedOffset]
    repeats_at_most: int


@dataclass(frozen=True, slots=True)
class CutEvidence:
    """All that was observed for one cut.

    `producers` is the producer id of each thread that is known to have written a changelog.
    `internal` are the topics that only the application writes.
    """

    levels: Sequence[Level]
    assignment: Assignment
    boundaries: Sequence[Boundary]
    producers: Mapping[str, int]
    internal: frozenset[str]

    def spans(self) -> Mapping[TopicPartitionId, Mapping[str, Span]]:
        """Return, for each written partition, the spans of its threads."""
        found: defaultdict[TopicPartitionId, dict[str, Span]] = defaultdict(dict)
        for one in self.boundaries:
            level = self.levels[one.level]
            tasks = level.tasks(self.assignment[one.thread])
            for p in writable_by(level, tasks, one.after):
                found[p][one.thread] = Span(one.before[p], one.after[p])
        return found

    def ranges(self) -> Mapping[TopicPartitionId, OffsetRange]:
        """Return the offsets whose batches decide: where threads, or samples, differ."""
        found = {
            p: OffsetRange(min(s.before for s in of.values()), max(s.after for s in of.values()))
            for p, of in self.spans().items()
        }
        return {p: one for p, one in found.items() if one.start < one.end}

    def cut(self, batches: Mapping[TopicPartitionId, Sequence[RawBatch]]) -> PassiveCut | Ambiguous:
        """Return the cut, given all batches in `ranges`."""
        ends: dict[TopicPartitionId, int] = {}
        excluded: dict[TopicPartitionId, tuple[OffsetRange, ...]] = {}
        repeats = 0
        for p, spans in self.spans().items():
            ends[p] = max(span.after for span in spans.values())
            left_out: list[OffsetRange] = []
            for batch in batches.get(p, ()):
                if batch.base_offset >= ends[p]:
                    break
                span = self._span_of(p, batch, spans)
                if isinstance(span, Ambiguous):
                    return span
                if span is None:
                    continue
                if batch.base_offset >= span.after:
                    left_out.append(OffsetRange(batch.base_offset, batch.last_offset + 1))
                elif batch.base_offset >= span.before:
                    repeats += batch.record_count
            excluded[p] = tuple(RangeSet(left_out))
            if excluded[p] and excluded[p][-1].end >= ends[p]:
                ends[p] = excluded[p][-1].start
                excluded[p] = excluded[p][:-1]
        committed = {p: o for one in self.boundaries for p, o in one.committed.items()}
        for p, offset in committed.items():
            if excluded.get(p) and excluded[p][0].start < offset.offset:
                return Ambiguous(f"{p} was read beyond what its writers had committed")
        return PassiveCut(ends, excluded, dict(sorted(committed.items())), repeats)

    def _span_of(
        self, p: TopicPartitionId, batch: RawBatch, spans: Mapping[str, Span]
    ) -> Span | Ambiguous | None:
        """Return the span that applies to a batch; None for another application's batch.

        A producer without a known thread may be that of any thread without a known producer: the
        widest span loses nothing.
        """
        internal = p.topic in self.internal
        if internal and (batch.is_transactional or batch.producer_id < 0):
            kind = "in transactions" if batch.is_transactional else "without idempotence"
            return Ambiguous(f"{p} is written {kind}, so the writers of its records are unknown")
        for thread, span in spans.items():
            if self.producers.get(thread) == batch.producer_id:
                return span
        unknown = [span for thread, span in spans.items() if thread not in self.producers]
        if unknown:
            return Span(min(s.before for s in unknown), max(s.after for s in unknown))
        if internal:
            return Ambiguous(
                f"producer {batch.producer_id} wrote {p} (offset {batch.base_offset}), but belongs"
                " to no member of the group that may write it"
            )
        return None


def unproven(
    boundary: Boundary,
    level: Level,
    tasks: Iterable[TopicPartitionId],
    producers: Mapping[str, int],
    batches: Mapping[TopicPartitionId, Sequence[RawBatch]],
) -> int:
    """Return how many records a thread may have written after the commit of a boundary.

    `batches` are those in `boundary.grown` of what the thread may write.
    """
    producer = producers.get(boundary.thread)
    others = {one for thread, one in producers.items() if thread != boundary.thread}
    count = 0
    for p, grown in boundary.grown(writable_by(level, tasks, boundary.after)).items():
        for batch in batches.get(p, ()):
            is_its = (
                batch.producer_id not in others
                if producer is None
                else (batch.producer_id == producer)
            )
            if is_its and batch.base_offset in grown:
                count += batch.record_count
    return count
