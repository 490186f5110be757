"""A Kafka Streams application with exactly_once_v2 on the simulated cluster, step by random step.

Upstream tasks read inputs and write to all partitions of a repartition topic; downstream tasks read
one of those and write changelog and output. Both punctuate. Threads die, lose tasks, go on as
zombies, abort.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.cut import Written
from tests.recovery.simulated_cluster import OFFSETS, Producer, SimulatedCluster, Transaction

SIZE = 2
"""Partitions of every topic."""


def _partitions(topic: str) -> tuple[TopicPartitionId, ...]:
    return tuple(TopicPartitionId(topic, number) for number in range(SIZE))


INPUTS, REPARTITIONS = _partitions("input"), _partitions("app-by-key-repartition")
CHANGELOGS, TICKS = _partitions("app-totals-changelog"), _partitions("app-ticks-changelog")
OUTPUTS = _partitions("output")
WRITTEN = {
    **dict.fromkeys((*REPARTITIONS, *CHANGELOGS, *TICKS), Written.BY_APPLICATION),
    **dict.fromkeys(OUTPUTS, Written.BY_ANYBODY),
}
_FOREIGN = 999
_MARKERS_WITHIN_MS = 20
"""Markers come sooner than the samplers' wait between two looks at the last stable offsets, unless
a partition has no leader: what comes later is rarely decided."""
_LEADERLESS_MS = (40, 200, 400)


@dataclass(frozen=True, slots=True)
class Habits:
    """How the simulated application behaves; shares are probabilities per step.

    `old_clients` of the threads keep one epoch for many transactions. With `leaderless` a partition
    loses its leader: its markers wait, some far longer than the samplers do.
    """

    threads: int = 2
    old_clients: float = 0.0
    punctuation: float = 0.15
    commit: float = 0.25
    prompt_markers: float = 0.7
    leaderless: float = 0.0
    trouble: float = 0.02
    foreign: bool = True


@dataclass(slots=True, eq=False)
class Task:
    """One task; `order` are the committed transactions that it took part in."""

    source: TopicPartitionId
    always: tuple[TopicPartitionId, ...]
    scattered: tuple[TopicPartitionId, ...]
    ticks: tuple[TopicPartitionId, ...]
    position: int = 0
    order: list[Transaction] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Thread:
    """A stream thread with its producer; `zombie` once its tasks were given to others."""

    producer: Producer
    tasks: list[Task] = field(default_factory=list)
    transaction: Transaction | None = None
    touched: list[Task] = field(default_factory=list)
    sent: bool = False
    zombie: bool = False


@dataclass(slots=True)
class SimulatedApplication:
    """Everything that goes on while recovery points are taken."""

    rng: random.Random
    habits: Habits
    cluster: SimulatedCluster = field(default_factory=SimulatedCluster)
    tasks: list[Task] = field(init=False)
    threads: list[Thread] = field(init=False, default_factory=list)
    orphans: list[Transaction] = field(init=False, default_factory=list)
    _waiting: list[Task] = field(init=False)
    _leaderless: dict[TopicPartitionId, int] = field(init=False, default_factory=dict)
    """Until when."""
    _producers: int = 0

    def __post_init__(self) -> None:
        upstream = [Task(one, (), REPARTITIONS, ()) for one in INPUTS]
        downstream = [
            Task(REPARTITIONS[n], (CHANGELOGS[n], OUTPUTS[n]), (), (TICKS[n], OUTPUTS[n]))
            for n in range(SIZE)
        ]
        self.tasks = [*upstream, *downstream]
        self._waiting = list(self.tasks)
        self.threads = [self._new_thread() for _ in range(self.habits.threads)]

    @property
    def producer_ids(self) -> frozenset[int]:
        """Of all its transactional ids."""
        return frozenset(range(self._producers))

    def step(self) -> None:
        """Let one thing happen."""
        rng = self.rng
        self.cluster.now_ms += rng.choice((0, 0, 1, 2, 4))
        if self.habits.leaderless and rng.random() < self.habits.leaderless:
            partition = rng.choice((*WRITTEN, OFFSETS))
            self._leaderless[partition] = self.cluster.now_ms + rng.choice(_LEADERLESS_MS)
        recent = self.cluster.transactions[-150:]
        ended = [one for one in recent if one.is_being_ended and self._goes_on(one)]
        if ended and self.cluster.now_ms - ended[0].prepared_ms > _MARKERS_WITHIN_MS:
            self._marker(ended[0])
        elif ended and rng.random() < self.habits.prompt_markers:
            self._marker(rng.choice(ended))
        elif self.orphans and rng.random() < 0.06:
            orphan = self.orphans.pop(rng.randrange(len(self.orphans)))
            self.cluster.end(orphan, commit=False, fence=True)
        elif self._waiting and rng.random() < 0.3:
            self._take(rng.choice(self._waiting))
        elif self.habits.foreign and rng.random() < 0.03:
            control = rng.choice((None, None, True, False))
            where = rng.choice((*OUTPUTS, OFFSETS)) if control is not None else OUTPUTS[0]
            foreign = _FOREIGN if control is not None else rng.choice((-1, _FOREIGN))
            self.cluster.append_foreign(where, foreign, control=control)
        else:
            self._thread(rng.choice(self.threads))

    def drain(self) -> None:
        """Decide everything that is open."""
        self._leaderless = {}
        for transaction in self.cluster.transactions:
            if transaction.committed is None:
                self.cluster.end(transaction, commit=False, fence=True)
            while not transaction.is_complete:
                self._marker(transaction)

    def _writable(self, transaction: Transaction) -> list[TopicPartitionId]:
        now = self.cluster.now_ms
        return sorted(p for p in transaction.waiting if self._leaderless.get(p, 0) <= now)

    def _goes_on(self, transaction: Transaction) -> bool:
        return not transaction.waiting or bool(self._writable(transaction))

    def _marker(self, transaction: Transaction) -> None:
        if transaction.waiting:
            partition = self.rng.choice(self._writable(transaction))
            self.cluster.write_marker(transaction, partition)
        else:
            self.cluster.complete(transaction)

    def _new_thread(self) -> Thread:
        self._producers += 1
        bumps = self.rng.random() >= self.habits.old_clients
        return Thread(Producer(self._producers - 1, bumps, self.rng.choice((0, 5))))

    def _take(self, task: Task) -> None:
        """Give a task to a thread, once its offsets and its state are decided."""
        for one in self.cluster.transactions[-150:]:
            if task.source in one.commits and not one.is_complete:
                return
            if one.is_being_ended and any(p in one.waiting for p in (*task.always, *task.ticks)):
                return
        alive = [thread for thread in self.threads if not thread.zombie]
        self.rng.choice(alive).tasks.append(task)
        self._waiting.remove(task)
        task.position = self._committed(task)

    def _committed(self, task: Task) -> int:
        told = self.cluster.group_offsets().get(task.source)
        return told.offset if told else 0

    def _thread(self, thread: Thread) -> None:
        rng, transaction = self.rng, thread.transaction
        if transaction is not None and transaction.committed is not None:
            if not transaction.is_complete:
                return
            self._after(thread, transaction)
        elif rng.random() < self.habits.trouble:
            self._trouble(thread)
        elif transaction is not None and (thread.sent or rng.random() < self.habits.commit):
            self._commit(thread, transaction)
        elif thread.tasks:
            self._work(thread, rng.choice(thread.tasks))

    def _after(self, thread: Thread, transaction: Transaction) -> None:
        thread.transaction, thread.sent, thread.touched = None, False, []
        if not transaction.committed:
            for task in thread.tasks:
                task.position = self._committed(task)
        if thread.zombie:
            self.threads.remove(thread)
            self.threads.append(self._new_thread())

    def _trouble(self, thread: Thread) -> None:
        """Killed, out of the group without knowing it, a task given back, or an abort."""
        kind, transaction = self.rng.choice(("kill", "zombie", "move", "abort")), thread.transaction
        if kind == "kill" or (kind == "zombie" and transaction is None):
            if transaction is not None:
                self.orphans.append(transaction)
            self._free(thread)
            self.threads.remove(thread)
            self.threads.append(self._new_thread())
        elif kind == "zombie" and not thread.zombie:
            self._free(thread)
            thread.zombie, thread.tasks = True, [*thread.touched]
            self.threads.append(self._new_thread())
        elif kind == "move" and transaction is None and thread.tasks:
            task = self.rng.choice(thread.tasks)
            thread.tasks.remove(task)
            self._waiting.append(task)
        elif kind == "abort" and transaction is not None:
            self.cluster.end(transaction, commit=False, fence=self.rng.random() < 0.5)

    def _free(self, thread: Thread) -> None:
        if not thread.zombie:
            self._waiting += thread.tasks

    def _commit(self, thread: Thread, transaction: Transaction) -> None:
        """The next step of a commit: offsets, then the end."""
        if thread.zombie:
            whole = all(task.source in transaction.commits for task in thread.touched)
            commit = thread.sent and whole and self.rng.random() < 0.5
            self._end(thread, transaction, commit=commit)
        elif transaction.commits and not thread.sent:
            self.cluster.send_offsets(transaction, batches=self.rng.choice((1, 1, 2)))
            thread.sent = True
        else:
            self._end(thread, transaction, commit=True)

    def _end(self, thread: Thread, transaction: Transaction, *, commit: bool) -> None:
        self.cluster.end(transaction, commit=commit, fence=thread.zombie and not commit)
        if commit:
            for task in thread.touched:
                task.order.append(transaction)

    def _work(self, thread: Thread, task: Task) -> None:
        if thread.transaction is None:
            if thread.zombie:
                return
            if self.rng.random() >= self.habits.punctuation and not self._readable(task):
                return
            thread.transaction = self.cluster.begin(thread.producer)
        transaction = thread.transaction
        if task not in thread.touched:
            thread.touched.append(task)
        if thread.zombie:
            self._write(transaction, (*task.always, *task.scattered))
        elif self.rng.random() < self.habits.punctuation or not self._readable(task):
            self._write(transaction, task.ticks or task.scattered)
        else:
            self._read(transaction, task)
            if self.rng.random() < 0.95:
                self._write(transaction, (*task.always, *task.scattered))

    def _write(self, transaction: Transaction, partitions: Sequence[TopicPartitionId]) -> None:
        if partitions == REPARTITIONS:
            partitions = self.rng.sample(REPARTITIONS, self.rng.choice((1, 2)))
        for partition in partitions:
            self.cluster.append(transaction, partition, self.rng.choice((1, 2, 3)))

    def _readable(self, task: Task) -> bool:
        return task.source in INPUTS or task.position < self.cluster.logs[task.source].last_stable

    def _read(self, transaction: Transaction, task: Task) -> None:
        if task.source in INPUTS:
            task.position += self.rng.choice((1, 3))
        else:
            log = self.cluster.logs[task.source]
            left = self.rng.choice((1, 2, 5))
            past_markers = self.rng.random() < 0.5
            for entry in log.entries:
                base = entry.batch.base_offset
                if base < task.position or base >= log.last_stable:
                    continue
                writer = entry.transaction
                visible = not entry.batch.is_control and writer is not None and writer.committed
                if not visible and not past_markers:
                    continue
                if left == 0 and visible:
                    break
                if visible and writer is not None:
                    transaction.reads.add(writer)
                    left -= 1
                task.position = entry.batch.last_offset + 1
        transaction.commits[task.source] = task.position
