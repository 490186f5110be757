"""What a range of the raw log holds for a reader of committed records."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.offsets import OffsetRange


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


@dataclass(slots=True)
class RangeTally:
    """Accounts for every offset in [start, end), batch by batch; what it holds does not grow.

    Batches come in offset order, and may reach beyond the range. `holes` counts offsets that hold
    nothing, `unseen` those that nobody looked at; `first_absent` is the lowest of both, None
    without any. `position` is how far it has come.
    """

    start: int
    end: int
    visible: int = 0
    aborted: int = 0
    undecided: int = 0
    markers: int = 0
    holes: int = 0
    unseen: int = 0
    first_absent: int | None = None
    position: int = field(init=False)
    on_hole: Callable[[OffsetRange], None] | None = None

    def __post_init__(self) -> None:
        self.position = self.start

    def add(self, batch: RawBatch) -> None:
        """Account for the offsets up to the end of a batch."""
        for run in _runs(batch):
            first, last = max(run.start, self.position), min(run.end, self.end)
            if first >= last:
                continue
            self._hole(first)
            self.position, count = last, last - first
            if batch.is_control:
                self.markers += count
            elif batch.aborted is None:
                self.undecided += count
            elif batch.aborted:
                self.aborted += count
            else:
                self.visible += count

    def skip(self, to: int) -> None:
        """Leave offsets below `to` unseen, as far as they are not accounted for."""
        to = min(to, self.end)
        if to > self.position:
            self._note_absent()
            self.unseen += to - self.position
            self.position = to

    def finish(self) -> None:
        """Nothing is left in the rest of the range."""
        self._hole(self.end)
        self.position = self.end

    def _hole(self, to: int) -> None:
        if to > self.position:
            self._note_absent()
            self.holes += to - self.position
            if self.on_hole is not None:
                self.on_hole(OffsetRange(self.position, to))

    def _note_absent(self) -> None:
        if self.first_absent is None:
            self.first_absent = self.position


def content_of_range(batches: Iterable[RawBatch], start: int, end: int) -> RangeContent:
    """Account for every offset in [start, end), given all batches of the log in that range.

    Batches come in offset order, as `RawLogReader.scan` gives them, and may reach beyond the range.
    """
    holes: list[OffsetRange] = []
    tally = RangeTally(start, end, on_hole=holes.append)
    for batch in batches:
        tally.add(batch)
    tally.finish()
    return RangeContent(tally.visible, tally.aborted, tally.undecided, tally.markers, tuple(holes))


def _runs(batch: RawBatch) -> Iterable[OffsetRange]:
    if batch.record_offsets is None:
        return (OffsetRange(batch.base_offset, batch.last_offset + 1),)
    return (OffsetRange(offset, offset + 1) for offset in batch.record_offsets)
