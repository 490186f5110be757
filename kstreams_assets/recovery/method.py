"""What the methods of taking a recovery point have in common."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kstreams_assets.errors import (
    AuthorizationFailedError,
    CoordinatorRecordError,
    CorruptBatchError,
    OffsetOutOfRangeError,
    RawReadLimitError,
    RawReadTimeoutError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.point import Guarantee, Method
from kstreams_assets.recovery.standing import Standing

Offsets = Mapping[TopicPartitionId, int]

UNREADABLE = (
    AuthorizationFailedError,
    CoordinatorRecordError,
    CorruptBatchError,
    OffsetOutOfRangeError,
    RawReadLimitError,
    RawReadTimeoutError,
)
"""Why the raw log of a partition could not be read as a method needs it."""


def _go_on(_step: str) -> None:
    """No pause between the steps."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a method works on. `between` is called between its steps, with the name of the next.

    `group_log` is the group's partition of `__consumer_offsets`, None where that is not visible.
    `exact_ends` are the ends of the logs at an earlier point that is exact.
    """

    cluster: KafkaCluster
    reader: RawLogReader
    standing: Standing
    lookback_s: float = 60.0
    between: Callable[[str], None] = _go_on
    group_log: TopicPartitionId | None = None
    exact_ends: Offsets = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The application's consumer group."""
        return self.standing.application.application_id


@dataclass(frozen=True, slots=True)
class Positions:
    """What a method found: ends (exclusive) of all that the application writes, and offsets.

    `high_watermarks` bound a raw read in which every record below the ends is decided.
    """

    method: Method
    guarantee: Guarantee
    ends: Offsets
    committed: Mapping[TopicPartitionId, CommittedOffset]
    high_watermarks: Offsets
    excluded: Mapping[TopicPartitionId, tuple[OffsetRange, ...]] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Why a method gave no positions, and whether another try may."""

    reason: str
    again: bool = False


def committed_offsets(
    scene: Scene, before_retry: Callable[[], None] | None = None
) -> Mapping[TopicPartitionId, CommittedOffset]:
    """What the group has committed, also for topics that nobody declared; named ones last.

    The application's own are asked for by name: a partition whose very first offset is still in
    an open transaction would otherwise be left out without a word.
    """
    if scene.group_log is not None:
        scene.cluster.high_watermarks([scene.group_log])  # its leader's epoch is noted: it answers
    others = scene.cluster.group_offsets(scene.group, before_retry=before_retry)
    read = scene.standing.read
    if not read:
        return others
    named = scene.cluster.group_offsets(scene.group, partitions=read, before_retry=before_retry)
    asked = set(read)
    return {**{p: o for p, o in others.items() if p not in asked}, **named}
