"""A cluster in memory: logs of batches, transactions whose markers are written one by one.

Pure. What happens when is left to the caller; the rules are Kafka's: a producer waits for all
markers of a transaction before its next one, the offsets of a group count once their marker is
written, and of two commits the one with the higher record offset wins.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from kstreams_assets.kafka.coordinator_log import GroupCommit
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.group_commits import GroupBatch
from kstreams_assets.recovery.identity import EndedTransaction, ProducerEpoch

GROUP = "simulated"
OFFSETS = TopicPartitionId("__consumer_offsets", 7)


@dataclass(slots=True)
class Producer:
    """A producer id; `bumps` when every transaction gets an epoch of its own (KIP-890)."""

    producer_id: int
    bumps: bool
    epoch: int = 0


@dataclass(slots=True, eq=False)
class Transaction:
    """What one transaction did; `committed` None while it is open.

    `reads` are the transactions whose records it has processed, `commits` the offsets it sends.
    """

    number: int
    producer: Producer
    epoch: int
    data: defaultdict[TopicPartitionId, list[OffsetRange]] = field(
        default_factory=lambda: defaultdict(list)
    )
    reads: set["Transaction"] = field(default_factory=set)
    commits: dict[TopicPartitionId, int] = field(default_factory=dict)
    committed: bool | None = None
    waiting: set[TopicPartitionId] = field(default_factory=set)
    marker_epoch: int = 0
    prepared_ms: int = 0
    completed_ms: int | None = None
    joined: set[TopicPartitionId] = field(default_factory=set)
    """Its partitions, that of the group's offsets included."""

    @property
    def is_complete(self) -> bool:
        """Whether its producer may go on."""
        return self.completed_ms is not None

    @property
    def is_being_ended(self) -> bool:
        """Whether its outcome is decided and its markers are still being written."""
        return self.committed is not None and not self.is_complete

    def __str__(self) -> str:
        outcome = {None: "open", True: "committed", False: "aborted"}[self.committed]
        data = {str(p): [(r.start, r.end) for r in ranges] for p, ranges in self.data.items()}
        commits = {str(p): o for p, o in self.commits.items()}
        return (
            f"T{self.number} {outcome} ({self.producer.producer_id}, {self.epoch}) {data} {commits}"
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """A batch in a log, with the transaction that wrote it (None: others)."""

    batch: RawBatch
    transaction: Transaction | None
    commits: tuple[GroupCommit, ...] = ()


@dataclass(slots=True)
class Log:
    """One partition; offsets are never missing."""

    entries: list[Entry] = field(default_factory=list)
    end: int = 0
    opened: dict[int, int] = field(default_factory=dict)
    """Producer ids with undecided data, and its first offset."""

    @property
    def last_stable(self) -> int:
        """The last stable offset."""
        return min(self.opened.values(), default=self.end)


@dataclass(slots=True)
class SimulatedCluster:
    """Logs by partition, and the group's coordinator; `now_ms` is every broker's clock."""

    now_ms: int = 1_000
    logs: defaultdict[TopicPartitionId, Log] = field(default_factory=lambda: defaultdict(Log))
    transactions: list[Transaction] = field(default_factory=list)
    _told: dict[TopicPartitionId, GroupCommit] = field(default_factory=dict)

    def begin(self, producer: Producer) -> Transaction:
        """A new transaction, without anything in it."""
        transaction = Transaction(len(self.transactions), producer, producer.epoch)
        self.transactions.append(transaction)
        return transaction

    def append(self, transaction: Transaction, partition: TopicPartitionId, count: int) -> None:
        """Write one batch of data."""
        self._write(partition, transaction, count)
        end = self.logs[partition].end
        transaction.data[partition].append(OffsetRange(end - count, end))

    def append_foreign(
        self, partition: TopicPartitionId, producer_id: int, *, control: bool | None = None
    ) -> None:
        """Write a batch of somebody else: plain (producer id -1), transactional, or a marker."""
        log = self.logs[partition]
        log.entries.append(
            Entry(self._batch(log.end, 1, producer_id, 0, control=control), transaction=None)
        )
        if control is not None:
            log.opened.pop(producer_id, None)
        elif producer_id >= 0:
            log.opened.setdefault(producer_id, log.end)
        log.end += 1

    def send_offsets(self, transaction: Transaction, *, batches: int) -> None:
        """TxnOffsetCommit, in one batch or several."""
        wanted = sorted(transaction.commits.items())
        size = -(-len(wanted) // batches)
        for first in range(0, len(wanted), size):
            start = self.logs[OFFSETS].end
            commits = tuple(
                GroupCommit(GROUP, p.topic, p.partition, o, f"T{transaction.number}", start + step)
                for step, (p, o) in enumerate(wanted[first : first + size])
            )
            self._write(OFFSETS, transaction, len(commits), commits)

    def end(self, transaction: Transaction, *, commit: bool, fence: bool = False) -> None:
        """EndTxn: the outcome is decided, the markers are to be written."""
        producer = transaction.producer
        transaction.committed = commit
        transaction.waiting = set(transaction.joined)
        transaction.prepared_ms = self.now_ms
        raised = producer.bumps or fence
        transaction.marker_epoch = transaction.epoch + (1 if raised else 0)
        producer.epoch = transaction.marker_epoch

    def write_marker(self, transaction: Transaction, partition: TopicPartitionId) -> None:
        """Write one of the markers of a transaction that is being ended."""
        transaction.waiting.remove(partition)
        log, producer_id = self.logs[partition], transaction.producer.producer_id
        marker = self._batch(
            log.end, 1, producer_id, transaction.marker_epoch, control=transaction.committed
        )
        log.entries.append(Entry(marker, transaction))
        log.opened.pop(producer_id, None)
        log.end += 1
        if partition == OFFSETS and transaction.committed:
            self._apply(transaction)

    def complete(self, transaction: Transaction) -> None:
        """All markers are written: the coordinator logs it."""
        transaction.completed_ms = self.now_ms

    def is_unstable(self) -> bool:
        """Whether offsets of the group are undecided."""
        return any(
            OFFSETS in one.joined and (one.committed is None or OFFSETS in one.waiting)
            for one in self.transactions
        )

    def group_offsets(self) -> dict[TopicPartitionId, CommittedOffset]:
        """What the coordinator tells of the group."""
        return {p: CommittedOffset(c.offset or 0, c.metadata) for p, c in self._told.items()}

    def history(self, since_ms: int) -> list[EndedTransaction]:
        """What `__transaction_state` tells."""
        return [
            EndedTransaction(
                ProducerEpoch(one.producer.producer_id, one.marker_epoch),
                one.committed,
                frozenset(one.joined),
                one.prepared_ms,
                one.completed_ms,
            )
            for one in self.transactions
            if one.committed is not None and one.prepared_ms >= since_ms
        ]

    def ongoing(self) -> frozenset[ProducerEpoch]:
        """The producers whose transaction is open, as their coordinators tell."""
        return frozenset(
            ProducerEpoch(one.producer.producer_id, one.epoch)
            for one in self.transactions
            if one.committed is None and one.joined
        )

    def batches(self, partition: TopicPartitionId, start: int, end: int) -> list[RawBatch]:
        """Every batch with an offset in [start, end)."""
        return [entry.batch for entry in self._entries(partition, start, end)]

    def group_batches(self, start: int, end: int) -> list[GroupBatch]:
        """The same of the offsets topic, as they bear on the group."""
        return [
            GroupBatch(entry.batch, lambda commits=entry.commits: commits)
            for entry in self._entries(OFFSETS, start, end)
            if entry.batch.is_control or entry.transaction is not None
        ]

    def _entries(self, partition: TopicPartitionId, start: int, end: int) -> list[Entry]:
        found = []
        for entry in reversed(self.logs[partition].entries):
            if entry.batch.last_offset < start:
                break
            if entry.batch.base_offset < end:
                found.append(entry)
        return found[::-1]

    def _write(
        self,
        partition: TopicPartitionId,
        transaction: Transaction,
        count: int,
        commits: tuple[GroupCommit, ...] = (),
    ) -> None:
        log, producer_id = self.logs[partition], transaction.producer.producer_id
        batch = self._batch(log.end, count, producer_id, transaction.epoch)
        log.entries.append(Entry(batch, transaction, commits))
        log.opened.setdefault(producer_id, log.end)
        log.end += count
        transaction.joined.add(partition)

    def _batch(
        self, base: int, count: int, producer_id: int, epoch: int, *, control: bool | None = None
    ) -> RawBatch:
        return RawBatch(
            base,
            base + count - 1,
            count,
            producer_id,
            epoch,
            is_transactional=producer_id >= 0,
            is_control=control is not None,
            control_type=None if control is None else "commit" if control else "abort",
            max_timestamp=self.now_ms,
            aborted=None,
        )

    def _apply(self, transaction: Transaction) -> None:
        for entry in self.logs[OFFSETS].entries:
            if entry.transaction is not transaction:
                continue
            for commit in entry.commits:
                target = TopicPartitionId(commit.topic, commit.partition)
                known = self._told.get(target)
                if known is None or known.record_offset < commit.record_offset:
                    self._told[target] = commit
