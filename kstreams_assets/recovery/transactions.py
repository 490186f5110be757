"""The method `transactions`: an exact cut of a live exactly-once application.

The order of the samples matters; each was proved necessary on a real broker.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from kstreams_assets.errors import OffsetOutOfRangeError, RawReadLimitError, RawReadTimeoutError
from kstreams_assets.kafka.coordinator_log import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    TransactionStateRecord,
    TransactionStatus,
    coordinator_partition,
    transaction_states,
)
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.kafka.raw_log import UNREADABLE
from kstreams_assets.kafka.transactions import ONGOING, TransactionalId
from kstreams_assets.model.point import Guarantee, Method
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.cut import (
    Blocker,
    Cut,
    Need,
    PartitionSample,
    Sample,
    Written,
    decide,
)
from kstreams_assets.recovery.evidence import Processing, processing
from kstreams_assets.recovery.group_commits import GroupBatch, GroupLog, batches_of_group
from kstreams_assets.recovery.identity import EndedTransaction, ProducerEpoch
from kstreams_assets.recovery.scene import READ_S, NotTaken, Offsets, Positions, Scene
from kstreams_assets.recovery.segments import tail_of

_PREPARED = (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)
_COMPLETED = (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)


def ended_transactions(states: Iterable[TransactionStateRecord]) -> list[EndedTransaction]:
    """Pair Prepare with Complete, per transactional id and in log order.

    The times are those of the records: the one inside the value of Complete is taken before the
    markers are written.
    """
    by_name: defaultdict[str, list[TransactionStateRecord]] = defaultdict(list)
    for state in states:
        by_name[state.transactional_id].append(state)
    return [ended for of_name in by_name.values() for ended in _ended(of_name)]


def _ended(states: Sequence[TransactionStateRecord]) -> Iterable[EndedTransaction]:
    prepared: TransactionStateRecord | None = None
    for state in states:
        if state.status in _PREPARED:
            if prepared is not None:
                yield _transaction(prepared, None)
            prepared = state
        elif state.status in _COMPLETED and prepared is not None:
            yield _transaction(prepared, state.append_time_ms)
            prepared = None
    if prepared is not None:
        yield _transaction(prepared, None)


def _transaction(prepared: TransactionStateRecord, completed_ms: int | None) -> EndedTransaction:
    return EndedTransaction(
        producer=ProducerEpoch(prepared.producer_id, prepared.producer_epoch),
        committed=prepared.status is TransactionStatus.PREPARE_COMMIT,
        partitions=prepared.partitions,
        prepared_ms=prepared.append_time_ms,
        completed_ms=completed_ms,
    )


_WAIT_S = 0.25
"""Between the two reads of the last stable offsets, so that data tails span several commits."""
_READ_BYTES = 512 * 1024**2
"""For the undecided ends of all logs; a hanging transaction in an output makes them grow."""
_CLOSING_S = 3.0
"""How long to wait for the markers of older clients' transactions: some commit intervals."""
_POLL_S = 0.02
_HISTORY_MARGIN_S = 10.0
_ROUNDS = 5
_DATA_AND_MARKER = 2
_PASSING = (OffsetOutOfRangeError, RawReadTimeoutError)
_OUTPUTS_READ_S = 8.0
_MOST = 5
_FETCHED = (Need.PRODUCERS, Need.HISTORY, Need.ONGOING)


@dataclass(slots=True)
class TransactionsMethod:
    """Identifies the committed transactions in the raw logs.

    Needs READ on all topics the application writes and on `__consumer_offsets`; DESCRIBE on its
    transactional ids if a transaction is open for long and writes little; for clients older than
    Kafka 4.0 also READ on `__transaction_state`.
    """

    scene: Scene
    _group_batches: list[GroupBatch] = field(init=False, default_factory=list)
    _stable: Offsets = field(init=False, default_factory=dict)
    _isolated: Offsets = field(init=False, default_factory=dict)
    """Ends of outputs that could not be read from their last stable offset on."""

    def take(self) -> Positions | NotTaken:
        """Return positions of the application now, or why there are none."""
        try:
            return self._take()
        except UNREADABLE as error:
            problem = error.problem.rstrip(".")
            if isinstance(error, RawReadLimitError):
                problem = f"a transaction is open for very long: {problem}"
            return NotTaken(problem, again=isinstance(error, _PASSING))

    def _take(self) -> Positions | NotTaken:
        if self.scene.group_log is None:
            return NotTaken(f"{CONSUMER_OFFSETS} is not visible (rights DESCRIBE and READ)")
        sample, watermarks = self._look(self.scene.group_log)
        shown = Processing()
        if not sample.group.committed:
            # an idle application shows no transaction: then its logs must show its guarantee
            shown = processing(self.scene, watermarks, sample.committed)
            if shown.uncertainty:
                return NotTaken(shown.uncertainty)
        cut = self._decide(sample)
        if isinstance(cut, Blocker):
            return NotTaken(cut.reason, again=cut.need is not Need.ANOTHER_METHOD)
        undeclared = self._undeclared_outputs(sample)
        return Positions(
            method=Method.TRANSACTIONS,
            guarantee=Guarantee.AT_LEAST_ONCE if undeclared else shown.guarantee,
            ends={**cut.ends, **self._isolated},
            committed=cut.committed,
            high_watermarks=watermarks,
            excluded=cut.excluded,
            note=" ".join(filter(None, [*map(_why_output, undeclared), self._note(), shown.note])),
            shows_transactions=bool(sample.group.committed),
        )

    def _undeclared_outputs(self, sample: Sample) -> Sequence[str]:
        """Return table sources, declared as inputs, whose newest records the application wrote.

        The point contains all records of inputs up to the last stable offset, including those of
        transactions that do not belong to it.
        """
        cluster = self.scene.cluster
        tables = [p for p in self.scene.inputs if self.scene.roles(p).is_changelog]
        if not tables:
            return ()
        starts, ends = cluster.log_start_offsets(tables), cluster.high_watermarks(tables)
        newest = self._read(
            {p: OffsetRange(ends[p] - 1, ends[p]) for p in tables if ends[p] > starts[p]}
        )
        ours = {segment.producer_id for segment in sample.group.tail.segments}
        ours |= {
            batch.producer_id
            for one in sample.partitions
            if one.written is Written.BY_APPLICATION
            for batch in one.batches
            if batch.is_transactional
        }
        return sorted(
            {p.topic for p, found in newest.items() if {b.producer_id for b in found} & ours}
        )

    def _note(self) -> str:
        """Name the isolated outputs, and what a restore makes of them."""
        if not self._isolated:
            return ""
        names = sorted(map(str, self._isolated))
        more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
        return (
            f"A transaction has been open for very long in {', '.join(names[:_MOST])}{more}, with"
            " more behind it than could be read: state, records in flight and offsets are exact,"
            " but of these outputs a restore loses nothing and may repeat up to one commit"
            " interval. Find its producer (kafka-transactions.sh --find-hanging) and abort it; the"
            " backup of these topics waits until it has ended."
        )

    def _look(self, group_log: TopicPartitionId) -> tuple[Sample, Offsets]:
        """Do steps 1 to 4: lookback, two reads of the last stable offsets, offsets, ends."""
        cluster, between, written = self.scene.cluster, self.scene.between, self.scene.written
        # A start at the last stable offset of the offsets topic would miss transactions whose
        # commits are before another one's that is still open.
        lookback = self._newest([group_log], self.scene.lookback_s)[group_log]
        between("first look at the last stable offsets")
        first_stable = cluster.last_stable_offsets(written)
        between("first ends")  # producers of data beyond these were unprepared at the first look
        first = cluster.high_watermarks(written)
        until = time.monotonic() + _WAIT_S
        self._read({group_log: lookback})
        time.sleep(max(0.0, until - time.monotonic()))
        between("second look at the last stable offsets")
        self._look_again()
        applied = cluster.high_watermarks([group_log])[group_log]
        between("committed offsets")
        committed = self._committed()
        between("early ends")
        early = cluster.high_watermarks(written)
        between("end of the offsets topic")
        group_end = cluster.high_watermarks([group_log])[group_log]
        between("ends")
        watermarks = cluster.high_watermarks(written)
        between("raw logs")
        read_from = self._read_from(first_stable, watermarks)
        ranges = {p: OffsetRange(read_from[p], watermarks[p]) for p in written}
        outputs = {p for p in written if self.scene.roles(p).written_only}
        batches = self._read(
            {
                **{p: wanted for p, wanted in ranges.items() if p not in outputs},
                group_log: OffsetRange(lookback.end, group_end),
            }
        )
        batches |= self._read_outputs({p: ranges[p] for p in outputs}, first_stable)
        sample = Sample(
            partitions=[
                PartitionSample(
                    partition=partition,
                    written=by,
                    first_stable=first_stable[partition],
                    first_high_watermark=first[partition],
                    stable=self._stable[partition],
                    early_high_watermark=early[partition],
                    high_watermark=watermarks[partition],
                    batches=[
                        batch
                        for batch in batches[partition]
                        if batch.last_offset >= first_stable[partition]
                        or not batch.is_transactional
                        if batch.is_transactional
                        or batch.last_offset
                        >= self.scene.restored_end(partition, watermarks[partition])
                    ],
                )
                for partition, by in written.items()
                if partition not in self._isolated
            ],
            committed=committed,
            group=GroupLog(
                group_log, lookback.start, group_end, applied, tuple(self._group_batches)
            ),
        )
        return sample, watermarks

    def _read_from(self, stable: Offsets, ends: Offsets) -> Offsets:
        """Return where reads of the logs start, so that each internal one shows its newest data.

        If all is stable, the newest data (a marker may follow it) shows whether the application
        still writes in transactions: as at_least_once it commits offsets long after its changelogs.
        Data that an exact point has inspected is not inspected again.
        """
        seen = self.scene.exact_ends
        quiet = [
            p
            for p in self.scene.internal
            if ends[p] - _DATA_AND_MARKER < stable[p] and seen.get(p, 0) < ends[p]
        ]
        starts = self.scene.cluster.log_start_offsets(quiet) if quiet else {}
        newest = {p: max(starts[p], seen.get(p, 0), ends[p] - _DATA_AND_MARKER) for p in quiet}
        return {**stable, **{p: min(stable[p], newest[p]) for p in quiet}}

    def _committed(self) -> Mapping[TopicPartitionId, CommittedOffset]:
        """Return offsets, with a new read of last stable offsets before each further attempt."""
        return self.scene.committed_offsets(self._look_again)

    def _look_again(self) -> None:
        self._stable = self.scene.cluster.last_stable_offsets(self.scene.written)

    def _read_outputs(
        self, ranges: Mapping[TopicPartitionId, OffsetRange], first_stable: Offsets
    ) -> dict[TopicPartitionId, list[RawBatch]]:
        """As `_read`, without outputs that a transaction holds up for too long to be read.

        Such a transaction belongs to another application: the application's own would hold up its
        changelogs or offsets too. No state is in these outputs, so the cut is decided without them.
        Each ends at its high watermark, so that no record of the cut is missing.
        """
        try:
            return self._read(ranges, deadline_s=_OUTPUTS_READ_S)
        except (RawReadLimitError, RawReadTimeoutError):
            held_up = {
                p: wanted.end
                for p, wanted in ranges.items()
                if self._stable[p] == first_stable[p] < wanted.end
            }
            if not held_up:
                raise
            self._isolated = held_up
            rest = {p: wanted for p, wanted in ranges.items() if p not in held_up}
            return self._read(rest, deadline_s=_OUTPUTS_READ_S)

    def _read(
        self, ranges: Mapping[TopicPartitionId, OffsetRange], *, deadline_s: float = READ_S
    ) -> dict[TopicPartitionId, list[RawBatch]]:
        """Read batch headers of data partitions; those of the offsets topic go to the group's."""
        found: dict[TopicPartitionId, list[RawBatch]] = {}
        read = self.scene.reader.read(ranges, deadline_s=deadline_s, limit_bytes=_READ_BYTES)
        for partition, batches in read.items():
            if partition.topic == CONSUMER_OFFSETS:
                known = self._group_batches[-1].header.last_offset if self._group_batches else -1
                fresh = (b for b in batches if b.header.base_offset > known)
                self._group_batches += [
                    batch
                    for batch in batches_of_group(fresh, self.scene.group)
                    if not self._is_of_restore(batch)
                ]
            else:
                found[partition] = [batch.header for batch in batches]
        return found

    def _is_of_restore(self, batch: GroupBatch) -> bool:
        """Whether a restore committed all offsets of a batch, outside of transactions."""
        if not self.scene.restored or batch.header.is_control or batch.header.is_transactional:
            return False
        committed = [commit for commit in batch.read() if commit.offset is not None]
        return bool(committed) and all(
            self.scene.is_restored_offset(
                TopicPartitionId(commit.topic, commit.partition),
                commit.offset or 0,
                commit.metadata,
            )
            for commit in committed
        )

    def _decide(self, sample: Sample) -> Cut | Blocker:
        """Decide, and fetch what the decision turns out to need."""
        decision = decide(sample)
        for _ in range(_ROUNDS):
            if not isinstance(decision, Blocker) or decision.need not in _FETCHED:
                return decision
            ids = self.scene.cluster.transactional_ids(self.scene.group)
            hidden = self._hidden(decision, ids)
            if hidden:
                reason = f"{decision.reason}{hidden}"
                return replace(decision, reason=reason, need=Need.ANOTHER_METHOD)
            if decision.need is Need.PRODUCERS:
                sample = replace(sample, producers=frozenset(one.producer_id for one in ids))
            elif decision.need is Need.ONGOING:
                sample = self._with_ongoing(sample, decision.partitions, ids)
            else:
                sample = self._with_history(self._with_closing_markers(sample), ids)
            decision = decide(sample)
        return decision

    def _hidden(self, decision: Blocker, ids: Sequence[TransactionalId]) -> str:
        """Return why the data that a decision needs is invisible, empty if it is visible."""
        if decision.need is Need.HISTORY and TRANSACTION_STATE not in self.scene.present:
            return f": {TRANSACTION_STATE} is not visible (rights DESCRIBE and READ)"
        if ids:
            return ""
        return (
            ", and no transactional id is visible (right DESCRIBE on transactional ids"
            f" {self.scene.group}-*)"
        )

    def _with_ongoing(
        self,
        sample: Sample,
        partitions: Sequence[TopicPartitionId],
        ids: Sequence[TransactionalId],
    ) -> Sample:
        """Add open transactions; read on only then, so that no earlier marker is missed."""
        names = [one.name for one in ids if one.state == ONGOING]
        found = self.scene.cluster.ongoing_producers(names)
        ends = self.scene.cluster.high_watermarks(partitions)
        read_to = {one.partition: one.high_watermark for one in sample.partitions}
        sample = self._read_on(sample, {p: OffsetRange(read_to[p], ends[p]) for p in partitions})
        return replace(sample, ongoing=frozenset(ProducerEpoch(*one) for one in found))

    def _with_closing_markers(self, sample: Sample) -> Sample:
        """Read on until a marker closes every started transaction, or for 3 s.

        Without its marker the transaction of an older client cannot be separated from the next one.
        """
        read_to = {one.partition: one.high_watermark for one in sample.partitions}
        read_to[sample.group.partition] = sample.group.end
        deadline = time.monotonic() + _CLOSING_S
        while opened := _unclosed(sample):
            ends = self.scene.cluster.high_watermarks(opened)
            sample = self._read_on(sample, {p: OffsetRange(read_to[p], ends[p]) for p in opened})
            read_to.update(ends)
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        return sample

    def _read_on(self, sample: Sample, ranges: Mapping[TopicPartitionId, OffsetRange]) -> Sample:
        """Return the sample with the contents of these ranges beyond its ends."""
        more = self._read(ranges)

        def batches(one: PartitionSample) -> tuple[RawBatch, ...]:
            known = one.batches[-1].last_offset if one.batches else -1
            return (*one.batches, *(b for b in more[one.partition] if b.base_offset > known))

        return replace(
            sample,
            partitions=[
                replace(one, batches=batches(one)) if one.partition in more else one
                for one in sample.partitions
            ],
            group=replace(sample.group, batches=tuple(self._group_batches)),
        )

    def _with_history(self, sample: Sample, ids: Sequence[TransactionalId]) -> Sample:
        """Add the application's transactions in `__transaction_state`."""
        names = {one.name for one in ids}
        count = self.scene.present[TRANSACTION_STATE].partitions
        partitions = {
            TopicPartitionId(TRANSACTION_STATE, coordinator_partition(name, count))
            for name in names
        }
        read = self.scene.reader.read(
            self._newest(sorted(partitions), self.scene.lookback_s + _HISTORY_MARGIN_S),
            deadline_s=READ_S,
        )
        states = transaction_states(chain.from_iterable(read.values()), names)
        return replace(sample, history=ended_transactions(states))

    def _newest(
        self, partitions: Sequence[TopicPartitionId], lookback_s: float
    ) -> dict[TopicPartitionId, OffsetRange]:
        return self.scene.reader.newest(partitions, lookback_s, deadline_s=READ_S)


def _why_output(topic: str) -> str:
    return (
        f"The application writes topic {topic}, as its newest records show, but it is declared as"
        " an input: the point may have records of it that do not belong to its transactions."
        " Give it the role output too (topics.<topic>.roles)."
    )


def _unclosed(sample: Sample) -> Sequence[TopicPartitionId]:
    """Return partitions with a started transaction that no marker closes."""
    tails = [
        tail_of(one.partition, one.batches, below=one.high_watermark) for one in sample.partitions
    ]
    return sorted(
        tail.partition
        for tail in [*tails, sample.group.tail]
        if any(segment.marker is None for segment in tail.segments)
    )
