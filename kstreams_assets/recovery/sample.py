"""What is looked at to find a cut of a live application. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.group_commits import GroupLog
from kstreams_assets.recovery.identity import EndedTransaction, ProducerEpoch


class Written(StrEnum):
    """Who writes a topic besides the application: nobody (its internal topics), or anybody."""

    BY_APPLICATION = "by_application"
    BY_ANYBODY = "by_anybody"


@dataclass(frozen=True, slots=True)
class PartitionSample:
    """One changelog, repartition or output partition, looked at several times.

    `first_stable` and `stable` are last stable offsets: before the wait, and at the last look
    before the committed offsets were told. `first_high_watermark` was read once `first_stable` of
    all partitions was known: all data of what had been prepared by then lies below it.
    `early_high_watermark` was read after the committed offsets and before `GroupLog.end`,
    `high_watermark` after it. What had been decided at either look has its marker below the early
    one, also where another open transaction held the last stable offset back.
    `batches` hold all from `first_stable` (or before) to `high_watermark` (or beyond, for markers).
    """

    partition: TopicPartitionId
    written: Written
    first_stable: int
    first_high_watermark: int
    stable: int
    early_high_watermark: int
    high_watermark: int
    batches: Sequence[RawBatch]


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything that was looked at, in the order that the method `transactions` demands.

    `producers` are the ids behind the application's transactional ids, `history` its transactions
    as `__transaction_state` tells them, `ongoing` its producers in transactions that were open at
    some time after the first look; each None until it was asked for. After `ongoing` was, the
    partitions that the refusal named are read on to their ends.
    """

    partitions: Sequence[PartitionSample]
    committed: Mapping[TopicPartitionId, CommittedOffset]
    group: GroupLog
    producers: frozenset[int] | None = None
    history: Sequence[EndedTransaction] | None = None
    ongoing: frozenset[ProducerEpoch] | None = None
