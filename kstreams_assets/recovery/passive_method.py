"""The method `passive_commits`: watches the commits of a live at-least-once application."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kstreams_assets.errors import KafkaError, OffsetOutOfRangeError
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.kafka.raw_log import UNREADABLE, LoadedBatch
from kstreams_assets.model.point import CommitBoundary, Guarantee, Method
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.commit_pace import DEFAULT_COMMIT_S, LATER, CommitPace
from kstreams_assets.recovery.group_commits import GroupBatch, batches_of_group
from kstreams_assets.recovery.kept_records import KeptRecords, headers_of
from kstreams_assets.recovery.levels import Level, NoOrder, levels_of, offsets_of_others
from kstreams_assets.recovery.passive_commits import (
    Ambiguous,
    Assignment,
    Boundary,
    CutEvidence,
    CutInProgress,
    EndsSample,
    PassiveCut,
    commits_of_threads,
    unproven,
    writable_by,
)
from kstreams_assets.recovery.scene import READ_BYTES, READ_S, NotTaken, Positions, Scene

_HISTORY: Final = 2_000
"""Records of the offsets topic that show the commit intervals of the last minutes."""
_HISTORY_BYTES: Final = 4 * 1024**2
_KEEP_EVERY_S: Final = 0.05
_SKEW_S: Final = 5.0
"""A shorter delay of the newest commit says nothing about the clocks."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen for one cut, and the repartition records that were kept meanwhile."""

    evidence: CutEvidence
    headers: Mapping[TopicPartitionId, Sequence[RawBatch]]
    kept: Mapping[TopicPartitionId, Sequence[LoadedBatch]]
    samples: int
    is_bounded: bool = True
    """Whether no commit was seen so late that a cache may have been written after it."""

    def commits(self) -> tuple[CommitBoundary, ...]:
        """Return the commit of each thread and level, with the records that it does not cover."""
        found: list[CommitBoundary] = []
        for one in self.evidence.boundaries:
            level = self.evidence.levels[one.level]
            tasks = level.tasks(self.evidence.assignment[one.thread])
            count = unproven(one, level, tasks, self.evidence.producers, self.headers)
            found.append(CommitBoundary(one.level, one.thread, one.last, count))
        return tuple(found)

    def cut(self) -> PassiveCut | Ambiguous:
        """Return the cut that the evidence makes."""
        return self.evidence.cut(self.headers)


class _Quality(NamedTuple):
    """How good a boundary is, the lowest is best."""

    is_late: bool
    unproven: int


@dataclass
class CommitHistory:
    """What is known of the threads of an application; kept from one cut to the next.

    `producers` is the producer id of each member of the group. `lag_s`: the shortest time between
    a commit, by the broker's clock, and its sample.
    """

    pace: CommitPace = field(default_factory=CommitPace)
    producers: dict[str, int] = field(default_factory=dict)
    members: frozenset[str] = frozenset()
    read_to: int = 0
    """End of what was read of the offsets topic for these members."""
    lag_s: float = math.inf


@dataclass
class PassiveCommits:
    """Makes one cut of an application within `wait_s`.

    It waits for one commit of each thread and level; if a commit is not proven to be the exact end
    of what the thread had written, it waits for the next one, as long as the time allows. Any
    change of the group's members ends the cut. `levels`: default from the topology.
    """

    scene: Scene
    wait_s: float
    retry_s: float | None = None
    """How long to look for a proof; default: as long as the wait allows."""
    levels: Sequence[Level] | None = None
    sleep: Callable[[float], None] = time.sleep
    history: CommitHistory = field(default_factory=CommitHistory)
    _kept: KeptRecords = field(init=False)
    _started: float = field(init=False, default=0.0)
    _samples: int = field(init=False, default=0)
    _base: dict[TopicPartitionId, CommittedOffset] = field(init=False, default_factory=dict)
    _best: dict[str, tuple[_Quality, Boundary]] = field(init=False, default_factory=dict)
    _sampled_at: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=3))
    _is_bounded: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        self._kept = KeptRecords(self.scene, _KEEP_EVERY_S)

    def take(self) -> Positions | NotTaken:
        """Return the positions of the cut."""
        watched = self.watch()
        if isinstance(watched, NotTaken):
            return watched
        cut = watched.cut()
        if isinstance(cut, Ambiguous):
            return NotTaken(cut.reason)
        count = cut.repeats_at_most
        note = (
            "Exact by proof: each thread had written nothing between the samples before and after"
            " its commit."
            if count == 0
            else f"Not proven exact: {count} records were written close to a commit, before or"
            " after it."
        )
        return Positions(
            Method.PASSIVE_COMMITS,
            Guarantee.AT_LEAST_ONCE if count else Guarantee.EXACT,
            cut.ends,
            {**offsets_of_others(watched.evidence.levels, self._base), **cut.committed},
            cut.ends,
            cut.excluded,
            note=note,
            kept=watched.kept,
            repeats_bound=count if watched.is_bounded or not count else None,
            commits=watched.commits(),
        )

    def takes_s(self) -> float | None:
        """Return how long a cut takes, by the commits of the last minutes; None if unknown."""
        scene, levels, members = self.scene, levels_of(self.scene.application), self.scene.members()
        log = scene.group_log
        if isinstance(levels, NoOrder) or isinstance(members, NotTaken) or log is None:
            return None
        self._learn_history(log, scene.cluster.high_watermarks([log])[log], members)
        interval_s = self.history.pace.interval_s(members)
        return None if interval_s is None else LATER * interval_s * len(levels)

    def watch(self) -> Watched | NotTaken:
        """Watch the application until each thread and level has a commit, or the time is over."""
        try:
            self._started = time.monotonic()
            return self._watch(self._started + self.wait_s)
        except OffsetOutOfRangeError as error:
            return NotTaken(f"records in flight were purged: {error.problem.rstrip('.')}", True)
        except UNREADABLE as error:
            return NotTaken(error.problem.rstrip("."))

    def _watch(self, deadline: float) -> Watched | NotTaken:
        scene = self.scene
        levels = levels_of(scene.application) if self.levels is None else self.levels
        if isinstance(levels, NoOrder):
            return NotTaken(levels.reason)
        members = scene.members()
        if isinstance(members, NotTaken):
            return members
        log = scene.group_log
        if log is None:
            return NotTaken("__consumer_offsets is not visible: give the recorder DESCRIBE on it")
        read_to = scene.cluster.high_watermarks([log])[log]
        self._base = dict(scene.committed_offsets())
        sample = self._sample(log)
        self._learn_history(log, read_to, members)
        rest_s = self.history.pace.interval_s(members) or DEFAULT_COMMIT_S
        progress = CutInProgress(
            levels, members, dict(self._base), sample.group_end, rest_s=LATER * rest_s
        )
        first = sample.ends
        while not progress.is_complete:
            if time.monotonic() > deadline:
                return self._too_late(progress)
            if self._samples > 1 and not progress.needs_sample:
                self.sleep(self.history.pace.pause_s(self._broker_s(), progress.waiting))
            sample = self._sample(log)
            found = scene.commits_between(log, read_to, sample.group_end)
            if isinstance(found, NotTaken):
                return found
            commits = commits_of_threads(found, members)
            if isinstance(commits, Ambiguous):
                return NotTaken(commits.reason)
            read_to = max(read_to, sample.group_end)
            self._learn(found, members)
            self.history.read_to = read_to
            for boundary in progress.observe(sample, commits, time.monotonic()):
                self._consider(progress, boundary, first, deadline)
            self._kept.extend(sample.ends, at_once=progress.is_complete)
        if scene.members() != members:
            return NotTaken("the group rebalanced during the cut", again=True)
        evidence = CutEvidence(
            levels,
            members,
            tuple(progress.boundaries),
            dict(self.history.producers),
            frozenset(p.topic for p in scene.internal),
        )
        headers = headers_of(self._kept.read(evidence.ranges()))
        return Watched(evidence, headers, dict(self._kept.batches), self._samples, self._is_bounded)

    def _sample(self, log: TopicPartitionId) -> EndsSample:
        wanted = [*dict.fromkeys([*self.scene.written, *self.scene.read])]
        ends, group_end = self.scene.cluster.high_watermarks_before(wanted, log)
        self._samples += 1
        self._sampled_at.append(time.monotonic())
        self.history.pace.spend(self._broker_s())
        return EndsSample(ends, group_end)

    def _learn_history(self, log: TopicPartitionId, end: int, members: Assignment) -> None:
        """Learn commit intervals from the log; other members have other producers."""
        history = self.history
        if history.members != members.keys():
            history.members, history.read_to = frozenset(members), 0
            history.producers = {m: one for m, one in history.producers.items() if m in members}
        start = max(self.scene.cluster.log_start_offsets([log])[log], end - _HISTORY)
        asked = {log: OffsetRange(max(start, min(history.read_to, end)), end)}
        try:
            read = self._read(asked, limit_bytes=_HISTORY_BYTES)
        except KafkaError:
            return  # then the pace is learned while watching
        self._learn(batches_of_group(read[log], self.scene.group), members)

    def _learn(self, batches: Sequence[GroupBatch], members: Assignment) -> None:
        """Learn when threads commit, by the broker's clock: samples may be late."""
        for batch in batches:
            commits = commits_of_threads([batch], members)
            if isinstance(commits, Ambiguous):
                continue
            at_s = batch.header.max_timestamp / 1000
            self.history.lag_s = min(self.history.lag_s, time.time() - at_s)
            for commit in commits:
                self.history.pace.committed(commit.thread, at_s)

    def _broker_s(self) -> float:
        """Return the time by the broker's clock, as far as its commits show that it differs."""
        lag_s = self.history.lag_s
        return time.time() - (lag_s if lag_s < 0 or _SKEW_S < lag_s < math.inf else 0.0)

    def _consider(
        self,
        progress: CutInProgress,
        boundary: Boundary,
        first: Mapping[TopicPartitionId, int],
        deadline: float,
    ) -> None:
        """Accept a proven boundary, or the best one once no time is left for another try."""
        level = progress.levels[progress.level]
        if boundary.level != progress.level or boundary.thread not in progress.waiting:
            return
        tasks = level.tasks(progress.assignment[boundary.thread])
        self._find_producer(progress, boundary, first)
        grown = boundary.grown(writable_by(level, tasks, self.scene.written))
        headers = headers_of(self._read(grown))
        count = unproven(boundary, level, tasks, self.history.producers, headers)
        interval = self.history.pace.interval_s(progress.assignment) or DEFAULT_COMMIT_S
        # Within half an interval no thread writes its caches for the next commit.
        is_late = count > 0 and self._sampled_at[-1] - self._sampled_at[0] > interval / 2
        quality = _Quality(is_late, count)
        best = self._best.get(boundary.thread)
        if best is None or quality <= best[0]:
            self._best[boundary.thread] = best = (quality, boundary)
        missing = len(progress.levels) - progress.level
        now = time.monotonic()
        is_over = self.retry_s is not None and now - self._started > self.retry_s
        if count == 0 or is_over or now + LATER * interval * missing > deadline:
            self._is_bounded &= not best[0].is_late
            self._accept(progress, best[1])

    def _accept(self, progress: CutInProgress, boundary: Boundary) -> None:
        level = progress.level
        progress.accept(boundary)
        self._kept.start({p: one.offset for p, one in boundary.committed.items()})
        if progress.level != level:
            self._best.clear()

    def _find_producer(
        self, progress: CutInProgress, boundary: Boundary, first: Mapping[TopicPartitionId, int]
    ) -> None:
        """Find a thread's producer: the one that wrote its changelogs since the cut started."""
        partitions = progress.assignment[boundary.thread]
        own = [
            p
            for level in progress.levels
            for p in writable_by(level, partitions, self.scene.changelogs, own_only=True)
        ]
        newest = {
            p: OffsetRange(boundary.after[p] - 1, boundary.after[p])
            for p in own
            if boundary.after[p] > first[p]
        }
        read = self._read(newest)
        found = {one.header.producer_id for of_it in read.values() for one in of_it[-1:]}
        # A thread may have got another producer id since an earlier cut.
        if len(found) == 1:
            self.history.producers[boundary.thread] = found.pop()
        elif found:
            self.history.producers.pop(boundary.thread, None)

    def _read(
        self, asked: Mapping[TopicPartitionId, OffsetRange], *, limit_bytes: int = READ_BYTES
    ) -> Mapping[TopicPartitionId, Sequence[LoadedBatch]]:
        return self.scene.reader.read(asked, deadline_s=READ_S, limit_bytes=limit_bytes)

    def _too_late(self, progress: CutInProgress) -> NotTaken:
        return NotTaken(
            f"{len(progress.waiting)} of {len(progress.assignment)} threads did not commit at level"
            f" {progress.level + 1} of {len(progress.levels)} within {self.wait_s:g} s"
        )
