"""Takes samples of the simulated application while it runs, and judges the cuts by brute force."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace

from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.cut import Blocker, Cut, Need, PartitionSample, Sample, decide
from kstreams_assets.recovery.group_commits import GroupLog
from kstreams_assets.recovery.segments import tail_of
from tests.recovery.simulated_application import WRITTEN, SimulatedApplication, Task
from tests.recovery.simulated_cluster import OFFSETS, Transaction

Offsets = dict[TopicPartitionId, int]
_TRIES = 20
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Order:
    """How samples are taken. The defaults are right; everything else makes wrong cuts.

    `lookback`: offsets of the offsets topic that are read before its end at the first step, None
    for from its last stable offset on. `wait_ms` lies between the two looks,
    up to `longest_pause` steps of the application between any two others.
    `offsets_before_ends`: offsets and the end of the offsets topic come so many steps before the
    looks at the last stable offsets. `offsets_lag`: what the coordinator tells is so many steps
    older than it should be. `require_stable`: whether undecided offsets are waited for.
    `late_lookback`: from the last stable offset on, just before the offsets are told.
    `first_ends_first`: the first high watermarks come before the first last stable offsets.
    """

    lookback: int | None = 300
    wait_ms: int = 120
    longest_pause: int = 3
    offsets_before_ends: int | None = None
    offsets_lag: int = 0
    require_stable: bool = True
    late_lookback: bool = False
    first_ends_first: bool = False


@dataclass(slots=True)
class Sampler:
    """One sample; `steps` yields how many steps the application does before it goes on."""

    application: SimulatedApplication
    order: Order
    decision: Cut | Blocker | None = None
    sample: Sample | None = None
    _stable: Offsets = field(default_factory=dict)
    _first_ends: Offsets = field(default_factory=dict)
    _early: Offsets = field(default_factory=dict)
    _told: dict[TopicPartitionId, CommittedOffset] = field(default_factory=dict)
    _group_end: int = 0
    _applied: int = 0

    def steps(self) -> Generator[int, None, None]:
        """All steps, in the order that design and code demand."""
        logs, order = self.application.cluster.logs, self.order
        end, start = logs[OFFSETS].end, logs[OFFSETS].last_stable
        if order.lookback is not None:
            start = max(0, end - order.lookback)
        yield self._pause()
        if order.offsets_before_ends is not None:
            yield from self._committed()
            yield order.offsets_before_ends
        first: Offsets = {}
        if order.first_ends_first:
            yield from self._ends(self._first_ends)
        yield from self._stable_offsets(first)
        if not order.first_ends_first:
            yield from self._ends(self._first_ends)
        until = self.application.cluster.now_ms + order.wait_ms
        while self.application.cluster.now_ms < until:
            yield self.application.rng.choice((1, 5))
        yield from self._stable_offsets(self._stable)
        if order.late_lookback:
            start = logs[OFFSETS].last_stable
        if order.offsets_before_ends is None:
            yield from self._committed()
        ends: Offsets = {}
        yield from self._ends(ends)
        self.sample = self._sample(start, first, ends)
        yield from self._decide()

    def _pause(self) -> int:
        return self.application.rng.choice((0, 0, 0, 0, 0, 1, 3, self.order.longest_pause))

    def _stable_offsets(self, found: Offsets) -> Generator[int, None, None]:
        for partition in WRITTEN:
            found[partition] = self.application.cluster.logs[partition].last_stable
            yield self._pause()

    def _ends(self, found: Offsets) -> Generator[int, None, None]:
        for partition in WRITTEN:
            found[partition] = self.application.cluster.logs[partition].end
            yield self._pause()

    def _committed(self) -> Generator[int, None, None]:
        """Offsets once they are stable, looking at the last stable offsets before each retry."""
        cluster = self.application.cluster
        older = cluster.group_offsets()
        if self.order.offsets_lag:
            yield self.order.offsets_lag
        self._applied = cluster.logs[OFFSETS].end
        yield self._pause()
        while self.order.require_stable and cluster.is_unstable():
            yield 1
            yield from self._stable_offsets(self._stable)
        self._told = older if self.order.offsets_lag else cluster.group_offsets()
        yield self._pause()
        yield from self._ends(self._early)
        self._group_end = cluster.logs[OFFSETS].end
        yield self._pause()

    def _sample(self, start: int, first: Offsets, ends: Offsets) -> Sample:
        cluster = self.application.cluster
        return Sample(
            partitions=[
                PartitionSample(
                    partition=partition,
                    written=written,
                    first_stable=first[partition],
                    first_high_watermark=self._first_ends[partition],
                    stable=self._stable[partition],
                    early_high_watermark=self._early[partition],
                    high_watermark=ends[partition],
                    batches=cluster.batches(partition, first[partition], ends[partition]),
                )
                for partition, written in WRITTEN.items()
            ],
            committed=self._told,
            group=GroupLog(
                OFFSETS,
                start,
                self._group_end,
                self._applied,
                cluster.group_batches(start, self._group_end),
            ),
        )

    def _decide(self) -> Generator[int, None, None]:
        for _ in range(_ROUNDS):
            sample = self.sample
            assert sample is not None
            self.decision = decide(sample)
            if not isinstance(self.decision, Blocker):
                return
            if self.decision.need is Need.PRODUCERS:
                self.sample = replace(sample, producers=self.application.producer_ids)
            elif self.decision.need is Need.HISTORY:
                yield from self._read_on(sample)
            elif self.decision.need is Need.ONGOING:
                yield from self._ask_for_ongoing(sample, self.decision.partitions)
            else:
                return

    def _ask_for_ongoing(
        self, sample: Sample, partitions: Iterable[TopicPartitionId]
    ) -> Generator[int, None, None]:
        """What is open now; then the partitions to their ends."""
        cluster = self.application.cluster
        yield self._pause()
        ongoing = cluster.ongoing()
        yield self._pause()
        read_on = set(partitions)
        self.sample = replace(
            sample,
            ongoing=ongoing,
            partitions=[
                replace(one, batches=self._to_end(one)) if one.partition in read_on else one
                for one in sample.partitions
            ],
        )

    def _to_end(self, one: PartitionSample) -> list[RawBatch]:
        cluster = self.application.cluster
        end = cluster.logs[one.partition].end
        return cluster.batches(one.partition, one.first_stable, end)

    def _read_on(self, sample: Sample) -> Generator[int, None, None]:
        """Read on until all is closed by a marker, for a while; then the history."""
        cluster = self.application.cluster
        for _ in range(_TRIES):
            if not _unclosed(sample):
                break
            yield 6
            sample = replace(
                sample,
                partitions=[replace(one, batches=self._to_end(one)) for one in sample.partitions],
                group=replace(
                    sample.group,
                    batches=cluster.group_batches(sample.group.start, cluster.logs[OFFSETS].end),
                ),
            )
        yield self._pause()
        self.sample = replace(sample, history=cluster.history(since_ms=0))


def _unclosed(sample: Sample) -> bool:
    tails = [sample.group.tail]
    tails += [tail_of(p.partition, p.batches, below=p.high_watermark) for p in sample.partitions]
    return any(segment.marker is None for tail in tails for segment in tail.segments)


def wrongs(application: SimulatedApplication, cut: Cut) -> list[str]:
    """What contradicts that a cut is exact, once everything was decided; empty if nothing does."""
    committed = [one for one in application.cluster.transactions if one.committed]
    found: list[str] = []
    taken: set[Transaction] = set()
    for one in committed:
        sides = {_is_in(cut, p, r) for p, ranges in one.data.items() for r in ranges}
        if len(sides) > 1:
            found.append(f"torn: {one}")
        if any(sides) or (not sides and _commits_are_in(cut, application.tasks, one)):
            taken.add(one)
    for one in taken:
        found += [f"{one} has read {w}, which is not taken" for w in one.reads - taken]
    orders = [task.order for task in application.tasks]
    by_producer: dict[int, list[Transaction]] = {}
    for one in committed:
        by_producer.setdefault(one.producer.producer_id, []).append(one)
    for order in [*orders, *by_producer.values()]:
        found += _no_prefix(order, taken)
    for task in application.tasks:
        last = [one for one in task.order if one in taken and task.source in one.commits][-1:]
        expected = {(one.commits[task.source], f"T{one.number}") for one in last}
        told = cut.committed.get(task.source)
        if ({(told.offset, told.metadata)} if told else set()) != expected:
            found.append(f"offset of {task.source} is {told}, should be {expected}")
    return found


def _is_in(cut: Cut, partition: TopicPartitionId, one: OffsetRange) -> bool | None:
    """Whether a batch belongs to the cut, None if a part of it does."""
    offsets = {_holds(cut, partition, offset) for offset in range(one.start, one.end)}
    return offsets.pop() if len(offsets) == 1 else None


def _holds(cut: Cut, partition: TopicPartitionId, offset: int) -> bool:
    excluded = cut.excluded.get(partition, ())
    return offset < cut.ends[partition] and not any(x.start <= offset < x.end for x in excluded)


def _commits_are_in(cut: Cut, tasks: Iterable[Task], one: Transaction) -> bool:
    """Whether a transaction without data is in the cut, told by the offsets' metadata."""
    for task in tasks:
        if one not in task.order or task.source not in one.commits:
            continue
        names = [f"T{other.number}" for other in task.order]
        told = cut.committed.get(task.source)
        if told is None or names.index(told.metadata) < task.order.index(one):
            return False
    return bool(one.commits)


def _no_prefix(order: Iterable[Transaction], taken: set[Transaction]) -> list[str]:
    missing: Transaction | None = None
    for one in order:
        if one not in taken:
            missing = missing or one
        elif missing is not None:
            return [f"{one} is taken without {missing} before it"]
    return []
