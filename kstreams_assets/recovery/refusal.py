"""Why a sample gives no cut, and what would help. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.identity import ProducerEpoch
from kstreams_assets.recovery.segments import Segment


class Wanted(Enum):
    """What would help after a refusal."""

    ANOTHER_TRY = "another try"
    ANOTHER_METHOD = "another method"
    PRODUCERS = "producers"
    HISTORY = "history"
    CLOSING_MARKERS = "closing markers"
    ONGOING = "ongoing"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no cut, and what would help."""

    reason: str
    wanted: Wanted
    partitions: tuple[TopicPartitionId, ...] = ()
    producers: frozenset[ProducerEpoch] = frozenset()


def history_wanted(segments: Iterable[Segment]) -> Refusal:
    """Segments whose epoch stands for many transactions."""
    producers = frozenset(ProducerEpoch(s.producer_id, s.epoch) for s in segments)
    return Refusal(
        "the application's clients keep one producer epoch for many transactions (older than Kafka"
        " 4.0)",
        Wanted.HISTORY,
        producers=producers,
    )


def closing_wanted(segments: Iterable[Segment]) -> Refusal:
    """Segments that only their markers can identify."""
    partitions = tuple(sorted({segment.partition for segment in segments}))
    return Refusal(
        f"transactions in {', '.join(map(str, partitions))} did not end in time",
        Wanted.CLOSING_MARKERS,
        partitions=partitions,
    )


def ambiguous(segment: Segment) -> Refusal:
    """A segment that fits several transactions, or none."""
    return Refusal(
        f"the transaction of producer {segment.producer_id} that wrote {segment.partition} at"
        f" offset {segment.start} cannot be told from its neighbours in __transaction_state",
        Wanted.ANOTHER_TRY,
    )
