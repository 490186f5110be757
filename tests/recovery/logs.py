"""Logs made by hand, for tests of cuts: batches, markers, offset commits, and looks at them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kstreams_assets.kafka.coordinator_log import GroupCommit
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.cut import PartitionSample, Sample, Written
from kstreams_assets.recovery.group_commits import GroupBatch, GroupLog
from kstreams_assets.recovery.identity import EndedTransaction, ProducerEpoch

GROUP = "app"
OFFSETS = TopicPartitionId("__consumer_offsets", 7)
INPUT = TopicPartitionId("orders", 0)
REPARTITION = TopicPartitionId("app-by-key-repartition", 0)
CHANGELOG = TopicPartitionId("app-totals-changelog", 0)
OUTPUT = TopicPartitionId("totals", 0)


class Tx(NamedTuple):
    """A transaction by its data's producer id and epoch.

    Its markers carry the next epoch, or, of clients `older` than Kafka 4.0, the same one.
    """

    producer_id: int
    epoch: int = 0
    older: bool = False

    @property
    def marker_epoch(self) -> int:
        """The epoch in its markers."""
        return self.epoch if self.older else self.epoch + 1

    def ended(
        self,
        *partitions: TopicPartitionId,
        prepared_ms: int,
        completed_ms: int | None,
        committed: bool = True,
    ) -> EndedTransaction:
        """The same as `__transaction_state` tells it."""
        producer = ProducerEpoch(self.producer_id, self.marker_epoch)
        return EndedTransaction(
            producer, committed, frozenset(partitions), prepared_ms, completed_ms
        )


def older(producer_id: int) -> Tx:
    """Any transaction of a producer that keeps its epoch."""
    return Tx(producer_id, 0, older=True)


@dataclass(slots=True)
class Log:
    """One partition, written from offset `end` on."""

    partition: TopicPartitionId
    end: int = 0
    batches: list[RawBatch] = field(default_factory=list)
    commits: dict[int, list[GroupCommit]] = field(default_factory=dict)
    """Offset commits by the base offset of their batch."""

    def data(self, tx: Tx, count: int = 1) -> OffsetRange:
        """A batch of a transaction."""
        return self._add(tx.producer_id, tx.epoch, count)

    def plain(self, count: int = 1) -> OffsetRange:
        """A batch that no transaction wrote."""
        return self._add(-1, -1, count, is_transactional=False)

    def commit(self, tx: Tx, at_ms: int = 0) -> int:
        """A commit marker; its offset."""
        return self._marker(tx.producer_id, tx.marker_epoch, at_ms, committed=True)

    def abort(self, tx: Tx, at_ms: int = 0, *, fence: bool = False) -> int:
        """An abort marker, with a `fence` by the coordinator; its offset."""
        epoch = tx.epoch + 1 if fence else tx.marker_epoch
        return self._marker(tx.producer_id, epoch, at_ms, committed=False)

    def offsets(
        self, tx: Tx | None, committed: Mapping[TopicPartitionId, int | None], metadata: str = "m"
    ) -> OffsetRange:
        """Offset commits of the group, as a batch of a transaction or of none (None: deleted)."""
        base = self.end
        self.commits[base] = [
            GroupCommit(GROUP, p.topic, p.partition, o, "" if o is None else metadata, base + step)
            for step, (p, o) in enumerate(committed.items())
        ]
        return self.data(tx, len(committed)) if tx else self.plain(len(committed))

    def group_log(self, *, start: int = 0, end: int | None = None, applied: int = 0) -> GroupLog:
        """The log as the group's partition of `__consumer_offsets`."""
        batches = [
            GroupBatch(batch, partial(self.commits.get, batch.base_offset, ()))
            for batch in self.batches
            if batch.last_offset >= start
        ]
        return GroupLog(self.partition, start, self.end if end is None else end, applied, batches)

    def _marker(self, producer_id: int, epoch: int, at_ms: int, *, committed: bool) -> int:
        kind = "commit" if committed else "abort"
        return self._add(
            producer_id, epoch, 1, is_control=True, control_type=kind, max_timestamp=at_ms
        ).start

    def _add(self, producer_id: int, epoch: int, count: int, **more) -> OffsetRange:
        start, self.end = self.end, self.end + count
        fields = {
            "is_transactional": True, "is_control": False, "control_type": None, "max_timestamp": 0
        }  # fmt: skip
        self.batches.append(
            RawBatch(start, self.end - 1, count, producer_id, epoch, **{**fields, **more})
        )
        return OffsetRange(start, self.end)


def told(**offsets: int) -> dict[TopicPartitionId, CommittedOffset]:
    """Committed offsets as the coordinator tells them: `input` and `repartition`."""
    names = {"input": INPUT, "repartition": REPARTITION}
    return {names[name]: CommittedOffset(offset, "told") for name, offset in offsets.items()}


@dataclass(slots=True)
class Logs:
    """The logs of an application with one partition of each role."""

    offsets: Log = field(default_factory=lambda: Log(OFFSETS))
    changelog: Log = field(default_factory=lambda: Log(CHANGELOG))
    repartition: Log = field(default_factory=lambda: Log(REPARTITION))
    output: Log = field(default_factory=lambda: Log(OUTPUT))

    def sample(
        self,
        *,
        first_stable: Mapping[TopicPartitionId, int] | None = None,
        first_ends: Mapping[TopicPartitionId, int] | None = None,
        stable: Mapping[TopicPartitionId, int] | None = None,
        early: Mapping[TopicPartitionId, int] | None = None,
        ends: Mapping[TopicPartitionId, int] | None = None,
        group: GroupLog | None = None,
        committed: Mapping[TopicPartitionId, CommittedOffset] | None = None,
        producers: frozenset[int] | None = frozenset(),
        history: Sequence[EndedTransaction] | None = None,
        ongoing: frozenset[ProducerEpoch] | None = None,
    ) -> Sample:
        """A sample of them: both looks found `stable` (0), and `early` (the same) as ends.

        So did the first look, unless told.
        """
        stable = stable or {}
        first = stable if first_stable is None else first_stable
        early = early or stable
        logs = (self.changelog, self.repartition, self.output)
        return Sample(
            partitions=[
                PartitionSample(
                    partition=log.partition,
                    written=(Written.BY_ANYBODY if log is self.output else Written.BY_APPLICATION),
                    first_stable=first.get(log.partition, 0),
                    first_high_watermark=(first_ends or first).get(log.partition, 0),
                    stable=stable.get(log.partition, 0),
                    early_high_watermark=early.get(log.partition, 0),
                    high_watermark=(ends or {}).get(log.partition, log.end),
                    batches=[
                        b for b in log.batches if b.last_offset >= first.get(log.partition, 0)
                    ],
                )
                for log in logs
            ],
            committed=committed or {},
            group=group or self.offsets.group_log(),
            producers=producers,
            history=history,
            ongoing=ongoing,
        )
