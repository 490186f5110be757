"""The method `barrier`: stops each thread of a live at-least-once application at a commit.

The companion stops a thread inside of its commit, after the producer was flushed, and writes a
boundary to the journal. Once all threads have stopped, the ends of the logs and the committed
offsets belong together, whatever the topology: it may have a cycle, or a topic that two levels
write. A thread goes on when the recorder releases it, or by itself after half a second.

Nothing is concluded from an absence. There is a cut only if all of this is shown:

1. Each member of the group that has partitions has stopped: its boundary names this request, and
   the partitions that it committed belong to this member.
2. The offsets that were read are those of the boundaries, and internal topics did not grow between
   two reads of their ends.
3. Each thread says that it stopped until the recorder released it, which was after these reads.
4. The members are the same before and after.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kstreams_assets.errors import KafkaError, OffsetOutOfRangeError, TopicNotFoundError
from kstreams_assets.kafka.control import CommitControl
from kstreams_assets.kafka.journal import CommitBoundary, JournalReader
from kstreams_assets.kafka.raw_log import UNREADABLE, LoadedBatch
from kstreams_assets.model.point import CommitBoundary as StoredCommit
from kstreams_assets.model.point import Guarantee, Method
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.kept_records import KeptRecords
from kstreams_assets.recovery.passive_commits import Assignment
from kstreams_assets.recovery.scene import READ_S, NotTaken, Positions, Scene

_POLL_S: Final = 0.01
_HOLD_S: Final = 0.6
"""No thread stops for longer than half a second (`Control.LONGEST_HOLD_NS`)."""
_ANSWER_S: Final = 5.0
"""How long to wait for the answers of released threads."""


@dataclass
class Barrier:
    """Makes one exact cut of an application at one barrier, or none; it takes up to a second.

    `topic`: the journal's name, where it is not the default.
    """

    scene: Scene
    control: CommitControl
    topic: str | None = None
    sleep: Callable[[float], None] = time.sleep
    _journal: JournalReader = field(init=False)
    _boundaries: dict[str, CommitBoundary] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        scene = self.scene
        self._journal = JournalReader(scene.cluster, scene.group, self.topic, scene.reader, READ_S)

    def take(self) -> Positions | NotTaken:
        """Return the positions of the cut."""
        try:
            return self._take()
        except TopicNotFoundError as error:
            return NotTaken(error.problem.rstrip("."))
        except OffsetOutOfRangeError as error:
            return NotTaken(f"records were purged: {error.problem.rstrip('.')}", again=True)
        except UNREADABLE as error:
            return NotTaken(error.problem.rstrip("."))

    def _take(self) -> Positions | NotTaken:
        scene = self.scene
        members = scene.members()
        if isinstance(members, NotTaken):
            return members
        self._journal.next_offset = self._journal.end()
        try:
            request = self.control.send("hold")
            try:
                found = self._unstopped(request, members) or self._positions()
            finally:
                self.control.send("release", request)
        except KafkaError as error:
            return NotTaken(error.problem.rstrip("."))
        if isinstance(found, NotTaken):
            return found
        kept = self._kept(found)
        problem = self._released(request)
        if problem is not None:
            return problem
        if scene.members() != members:
            return NotTaken("the group rebalanced during the cut", again=True)
        return Positions(
            Method.BARRIER,
            Guarantee.EXACT,
            found.ends,
            found.committed,
            found.ends,
            note="Exact by proof: the application's companion stopped each thread at a commit while"
            " the ends were read.",
            kept=kept,
            repeats_bound=0,
            commits=tuple(
                StoredCommit(0, member, one.record_offset, 0)
                for member, one in sorted(self._boundaries.items())
            ),
        )

    def _unstopped(self, request: str, members: Assignment) -> NotTaken | None:
        """Wait until each member has stopped; return why one has not."""
        owners = {p: member for member, partitions in members.items() for p in partitions}
        deadline = time.monotonic() + _HOLD_S
        while True:
            for one in self._journal.read().boundaries:
                if one.held != request:
                    continue
                of = {owners.get(p) for p in one.committed}
                member = of.pop() if len(of) == 1 else None
                if member is None:
                    return NotTaken(
                        f"{one.thread} committed offsets of partitions that are not assigned to"
                        " one member of the group",
                        again=True,
                    )
                # A retry may write a boundary twice; another run is another thread.
                if self._boundaries.setdefault(member, one).run != one.run:
                    return NotTaken(f"two threads commit for the member {member}", again=True)
            missing = members.keys() - self._boundaries.keys()
            if not missing:
                return None
            if time.monotonic() > deadline:
                return NotTaken(
                    f"{len(missing)} of {len(members)} threads did not stop at a commit within"
                    f" {_HOLD_S:g} s: they may run without the companion's wrapper, have read no"
                    " record yet, or be busy",
                    again=bool(self._boundaries),
                )
            self.sleep(_POLL_S)

    def _positions(self) -> "_AtBarrier | NotTaken":
        """Read ends and offsets while the threads stop."""
        cluster = self.scene.cluster
        ends = cluster.high_watermarks(self.scene.written)
        committed = self.scene.committed_offsets()
        later = cluster.high_watermarks(self.scene.internal)
        grown = [p for p in self.scene.internal if later[p] != ends[p]]
        if grown:
            return NotTaken(f"{grown[0]} was written while all threads had stopped", again=True)
        for one in self._boundaries.values():
            for p, offset in one.committed.items():
                if p not in committed or committed[p].offset != offset:
                    return NotTaken(f"the committed offset of {p} is not {offset}", again=True)
            for p, end in one.acknowledged.items():
                if end > ends.get(p, end):
                    return NotTaken(f"{p} ends below offset {end}, which was written", again=True)
        return _AtBarrier(ends, committed)

    def _kept(self, found: "_AtBarrier") -> Mapping[TopicPartitionId, list[LoadedBatch]]:
        """Read the records in flight before the application can purge them."""
        kept = KeptRecords(self.scene, every_s=0.0)
        kept.start({p: one.offset for p, one in found.committed.items()})
        kept.extend(found.ends, at_once=True)
        return dict(kept.batches)

    def _released(self, request: str) -> NotTaken | None:
        """Return a thread that did not stop until it was released."""
        waiting = {one.run: one.thread for one in self._boundaries.values()}
        deadline = time.monotonic() + _ANSWER_S
        while True:
            for one in self._journal.read().releases:
                thread = waiting.pop(one.run, None) if one.held == request else None
                if thread is not None and not one.by_recorder:
                    return NotTaken(f"{thread} went on before it was released", again=True)
            if not waiting:
                return None
            if time.monotonic() > deadline:
                thread = next(iter(waiting.values()))
                return NotTaken(
                    f"{thread} did not say that it had stopped until it was released", again=True
                )
            self.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class _AtBarrier:
    """Ends of the logs and committed offsets while all threads stop."""

    ends: Mapping[TopicPartitionId, int]
    committed: Mapping[TopicPartitionId, CommittedOffset]
