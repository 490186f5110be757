"""What a range of the raw log holds for a reader of committed records."""

from collections.abc import Iterable
from dataclasses import dataclass

from kstreams_assets.kafka.positions import OffsetRange
from kstreams_assets.kafka.raw_batch import RawBatch


@dataclass(frozen=True, slots=True)
class RangeContent:
    """Every offset of a range is exactly one of these.

    `visible` committed data, `aborted` data, `undecided` data of transactions open when read,
    `markers` control records; `holes` the offsets that hold nothing (removed by compaction), as
    merged ranges in order.
    """

    visible: int
    aborted: int
    undecided: int
    markers: int
    holes: tuple[OffsetRange, ...]

    @property
    def hole_offsets(self) -> int:
        """Number of offsets that hold nothing."""
        return sum(len(hole) for hole in self.holes)


def content_of_range(batches: Iterable[RawBatch], start: int, end: int) -> RangeContent:
    """Account for every offset in [start, end), given all batches of the log in that range.

    Batches come in offset order, as `RawLogReader.scan` gives them, and may reach beyond the range.
    """
    visible = aborted = undecided = markers = 0
    holes: list[OffsetRange] = []
    position = start
    for batch in batches:
        for run in _runs(batch):
            first, last = max(run.start, position), min(run.end, end)
            if first >= last:
                continue
            _add_hole(holes, position, first)
            position, count = last, last - first
            if batch.is_control:
                markers += count
            elif batch.aborted is None:
                undecided += count
            elif batch.aborted:
                aborted += count
            else:
                visible += count
    _add_hole(holes, position, end)
    return RangeContent(visible, aborted, undecided, markers, tuple(holes))


def _runs(batch: RawBatch) -> Iterable[OffsetRange]:
    if batch.record_offsets is None:
        return (OffsetRange(batch.base_offset, batch.last_offset + 1),)
    return (OffsetRange(offset, offset + 1) for offset in batch.record_offsets)


def _add_hole(holes: list[OffsetRange], start: int, end: int) -> None:
    if start < end:
        holes.append(OffsetRange(start, end))
