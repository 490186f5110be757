"""What a restore has done. Pure; what goes between its parts, into tables and reports."""

from collections.abc import Sequence
from dataclasses import dataclass

from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.offset_map import OffsetRun


@dataclass(frozen=True, slots=True)
class PartitionProduced:
    """One partition after producing.

    `runs` map source to target offsets, of all its records; `records` is their number, of which
    `resumed` were there from an earlier attempt. `end` is the target's end behind the last one.
    """

    source: TopicPartitionId
    target: TopicPartitionId
    runs: Sequence[OffsetRun]
    records: int
    resumed: int
    end: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Something on the target that is not as in the backup, in the target's offsets.

    `offset` is None where a whole partition is meant, the partition -1 where it is a whole topic.
    """

    target: TopicPartitionId
    offset: int | None
    what: str

    def __str__(self) -> str:
        where = self.target.topic if self.target.partition < 0 else str(self.target)
        where += "" if self.offset is None else f" offset {self.offset}"
        return f"{where}: {self.what}"


@dataclass(frozen=True, slots=True)
class PartitionVerified:
    """One partition after reading it back; `compared` records were compared one by one.

    `differences` are the first few, `differing` counts them all as far as they were looked for.
    `replaced_timestamps` of the compared records have a timestamp of 0 or below in the backup,
    which was allowed to become the time of the restore.
    """

    target: TopicPartitionId
    records: int
    compared: int
    differing: int
    differences: tuple[Difference, ...]
    replaced_timestamps: int = 0

    @property
    def passed(self) -> bool:
        """Whether the partition is as in the backup."""
        return self.differing == 0
