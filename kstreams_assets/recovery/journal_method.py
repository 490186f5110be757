"""The method `journal`: cuts a live at-least-once application whose companion records commits."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from kstreams_assets.errors import KafkaError, OffsetOutOfRangeError, TopicNotFoundError
from kstreams_assets.kafka.control import CommitControl
from kstreams_assets.kafka.journal import JournalReader, journal_partition
from kstreams_assets.kafka.raw_log import UNREADABLE
from kstreams_assets.model.point import CommitBoundary, Guarantee, Method
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.commit_pace import DEFAULT_COMMIT_S, LATER
from kstreams_assets.recovery.journal_cut import Journal, JournalCut, LevelStart
from kstreams_assets.recovery.kept_records import KeptRecords, headers_of
from kstreams_assets.recovery.levels import Level, NoOrder, levels_of, offsets_of_others
from kstreams_assets.recovery.passive_commits import (
    Ambiguous,
    Assignment,
    CutEvidence,
    ThreadCommit,
    commits_of_threads,
)
from kstreams_assets.recovery.scene import READ_S, NotTaken, Positions, Scene

_POLL_S: Final = 0.1
_POLL_ON_DEMAND_S: Final = 0.02
_KEEP_EVERY_S: Final = 0.2
_CHECK_EVERY_S: Final = 1.0
_JOURNAL_LAG_S: Final = 10.0
"""A boundary that the companion could not write within 10 s is dropped."""
_HISTORY: Final = 2_000
"""Boundaries before the cut that are read: each thread needs its newest one."""
_PATIENCE_S: Final = 10.0
"""How much longer than a commit interval a thread may commit nothing."""

_log = logging.getLogger(__name__)


@dataclass
class JournalCommits:
    """Makes one exact cut of an application within `wait_s`, or none.

    It waits for one commit of each thread and level. The journal must contain it; see `journal_cut`
    for what is proven. Any change of the group's members ends the cut. It does not wait for a
    journal without the newest commits, nor for a thread that commits nothing: another method may
    need the time. `topic`: the journal's name, where it is not the default; `levels`: default from
    the topology. With a `control`, each level asks the application for its commits and does not
    need to wait for them; without an answer it waits as without a control.
    """

    scene: Scene
    wait_s: float
    topic: str | None = None
    levels: Sequence[Level] | None = None
    sleep: Callable[[float], None] = time.sleep
    control: CommitControl | None = None
    _log: "_GroupWatch" = field(init=False)
    _journal: Journal = field(init=False)
    _reader: JournalReader = field(init=False)
    _kept: KeptRecords = field(init=False)

    def __post_init__(self) -> None:
        scene = self.scene
        self._kept = KeptRecords(scene, _KEEP_EVERY_S)
        self._reader = JournalReader(scene.cluster, scene.group, self.topic, scene.reader, READ_S)

    def take(self) -> Positions | NotTaken:
        """Return the positions of the cut."""
        deadline = time.monotonic() + self.wait_s
        try:
            return self._take(deadline)
        except TopicNotFoundError as error:
            problem = error.problem.rstrip(".")
            if journal_partition(self.scene.group, self.topic).topic in error.topics:
                return NotTaken(f"there is no commit journal: {problem}")
            return NotTaken(problem, again=True)
        except OffsetOutOfRangeError as error:
            return NotTaken(f"records were purged: {error.problem.rstrip('.')}", again=True)
        except UNREADABLE as error:
            return NotTaken(error.problem.rstrip("."))

    def _take(self, deadline: float) -> Positions | NotTaken:
        scene = self.scene
        levels = levels_of(scene.application) if self.levels is None else self.levels
        if isinstance(levels, NoOrder):
            return NotTaken(levels.reason)
        if scene.group_log is None:
            return NotTaken("__consumer_offsets is not visible: give the recorder DESCRIBE on it")
        started = scene.cluster.high_watermarks([scene.group_log])[scene.group_log]
        members = scene.members()
        if isinstance(members, NotTaken):
            return members
        self._log = _GroupWatch(scene, scene.group_log, members, started)
        # The offsets contain the commits of all boundaries that the journal has by now.
        before = self._reader.end()
        self._journal = Journal(before)
        self._reader.next_offset = max(0, before - _HISTORY)
        base = scene.committed_offsets()
        problem = self._catch_up(members, base)
        if problem is not None:
            return problem
        internal = frozenset(p.topic for p in scene.internal)
        progress = JournalCut(CutEvidence(levels, members, (), {}, internal))
        for level in range(len(levels)):
            problem = self._level(progress, level, base, deadline)
            if problem is not None:
                return problem
        self._kept.extend(at_once=True)
        problem = self._log.read()
        if problem is not None:
            return problem
        committed = self._log.as_committed(
            {p: offset for one in progress.chosen for p, offset in one.offsets.items()}, base
        )
        if isinstance(committed, NotTaken):
            return committed
        cut = progress.cut(committed)
        if isinstance(cut, NotTaken):
            return cut
        if scene.members() != members:
            return NotTaken("the group rebalanced during the cut", again=True)
        return Positions(
            Method.JOURNAL,
            Guarantee.EXACT,
            cut.ends,
            {**offsets_of_others(levels, base), **cut.committed},
            cut.ends,
            cut.excluded,
            note="Exact by proof: the application's companion recorded what each thread had written"
            " at its commits.",
            kept=dict(self._kept.batches),
            repeats_bound=0,
            commits=tuple(
                CommitBoundary(one.level, one.thread, one.source.record_offset, 0)
                for one in progress.chosen
            ),
        )

    def _catch_up(
        self, members: Assignment, base: Mapping[TopicPartitionId, CommittedOffset]
    ) -> NotTaken | None:
        """Read the journal until it contains the newest commits: it is written after them."""
        started = time.monotonic()
        committed = {p: one.offset for p, one in base.items()}
        asked = False
        while True:
            self._read_journal()
            behind = self._journal.behind(members, committed)
            if not behind:
                return None
            if not asked:
                asked = True
                self._ask()
            if time.monotonic() - started > min(_JOURNAL_LAG_S, self.wait_s):
                return NotTaken(
                    f"the journal does not contain the newest commits of {len(behind)} of"
                    f" {len(members)} members: they may run without the companion, or have"
                    " committed nothing for long"
                )
            self.sleep(self._poll_s)

    def _level(
        self,
        progress: JournalCut,
        level: int,
        base: Mapping[TopicPartitionId, CommittedOffset],
        deadline: float,
    ) -> NotTaken | None:
        """Choose a boundary of each member with tasks at a level, and prove them."""
        start = self._start(progress.evidence.assignment)
        offsets_before = {p: one.offset for p, one in base.items()}
        missing = set(progress.members(level))
        started = time.monotonic()
        patience_s = LATER * (self._journal.interval_s() or DEFAULT_COMMIT_S) + _PATIENCE_S
        while True:
            self._read_journal()
            found = self._journal.first_after(start, progress.evidence.assignment)
            if isinstance(found, NotTaken):
                return found
            for member in sorted(missing & found.keys()):
                offsets = self._journal.offsets_at(found[member], offsets_before)
                if isinstance(offsets, NotTaken):
                    return offsets
                one = progress.choose(level, member, found[member], start, offsets)
                if isinstance(one, NotTaken):
                    return one
                missing.discard(member)
                self._kept.start(one.offsets)
            if not missing:
                break
            now = time.monotonic()
            is_patient = now - started < patience_s or any(self._log.later(start, missing))
            if now > deadline or not is_patient:
                return NotTaken(
                    f"the journal has no new commit of {len(missing)} of"
                    f" {len(progress.members(level))} threads at level {level + 1} of"
                    f" {len(progress.evidence.levels)} within {now - started:.0f} s: threads"
                    " without records commit nothing, and members without the companion write no"
                    " journal"
                )
            problem = self._log.check(start, missing)
            if problem is not None:
                return problem
            self.sleep(self._poll_s)
            self._kept.extend()
        read = self._kept.read(progress.ranges(level))
        return progress.prove(level, headers_of(read))

    def _start(self, members: Assignment) -> LevelStart:
        cluster = self.scene.cluster
        ends = cluster.high_watermarks(self.scene.written)
        later_ends = cluster.high_watermarks(self.scene.written)
        read = sorted({*self.scene.read, *(p for of in members.values() for p in of)})
        committed = cluster.group_offsets(self.scene.group, partitions=read)
        offsets = {p: one.offset for p, one in committed.items()}
        return LevelStart(ends, later_ends, offsets, self._ask())

    def _ask(self) -> str:
        """Ask for a commit of each thread; return the request, "" if it was not sent."""
        if self.control is None:
            return ""
        try:
            return self.control.send("commit")
        except KafkaError as error:
            _log.warning("No commit on demand: %s", error)
            self.control = None
            return ""

    @property
    def _poll_s(self) -> float:
        return _POLL_S if self.control is None else _POLL_ON_DEMAND_S

    def _read_journal(self) -> None:
        self._journal.add(self._reader.read().boundaries)


@dataclass
class _GroupWatch:
    """Reads the group's partition of `__consumer_offsets` from the start of a cut on."""

    scene: Scene
    partition: TopicPartitionId
    members: Assignment
    read_to: int
    commits: list[ThreadCommit] = field(default_factory=list)
    _checked_at: float = field(default_factory=time.monotonic)
    _seen_at: dict[int, float] = field(default_factory=dict)
    """When commits were first seen, by the offset of their last record."""

    def read(self) -> NotTaken | None:
        """Read to the end; return a rebalance, or a commit of another program."""
        end = self.scene.cluster.high_watermarks([self.partition])[self.partition]
        found = self.scene.commits_between(self.partition, self.read_to, end)
        if isinstance(found, NotTaken):
            return found
        commits = commits_of_threads(found, self.members)
        if isinstance(commits, Ambiguous):
            return NotTaken(commits.reason)
        self.read_to = max(self.read_to, end)
        self.commits += commits
        self._seen_at.update((one.last, time.monotonic()) for one in commits)
        return None

    def later(self, start: LevelStart, members: Set[str]) -> Iterator[ThreadCommit]:
        """Yield the commits of members that are later than a start, as read so far."""
        for commit in self.commits:
            if commit.thread in members and any(
                one.offset is not None and one.offset > start.committed.get(p, -1)
                for p, one in commit.offsets.items()
            ):
                yield commit

    def check(self, start: LevelStart, missing: Set[str]) -> NotTaken | None:
        """Return a member that commits, but writes no journal; looks once a second."""
        now = time.monotonic()
        if now - self._checked_at < _CHECK_EVERY_S:
            return None
        self._checked_at = now
        problem = self.read()
        if problem is not None:
            return problem
        for commit in self.later(start, missing):
            age_s = now - self._seen_at[commit.last]
            if age_s > _JOURNAL_LAG_S:
                return NotTaken(
                    f"the member {commit.thread} committed {age_s:.0f} s ago, and the journal does"
                    " not contain it: it may run without the companion"
                )
        return None

    def as_committed(
        self,
        offsets: Mapping[TopicPartitionId, int],
        base: Mapping[TopicPartitionId, CommittedOffset],
    ) -> Mapping[TopicPartitionId, CommittedOffset] | NotTaken:
        """Return offsets of boundaries with their metadata, exactly as they were committed."""
        found: dict[TopicPartitionId, CommittedOffset] = {}
        for p, offset in offsets.items():
            known = [base[p]] if p in base and base[p].offset == offset else []
            known += [
                CommittedOffset(offset, one.metadata, one.leader_epoch)
                for commit in self.commits
                for q, one in commit.offsets.items()
                if q == p and one.offset == offset
            ]
            if not known:
                return NotTaken(f"no commit of offset {offset} of {p} is in __consumer_offsets")
            if len({one.metadata for one in known}) > 1:
                return NotTaken(f"offset {offset} of {p} was committed twice", again=True)
            found[p] = known[-1]
        return found
