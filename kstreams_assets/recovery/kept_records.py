"""Repartition records of a cut in progress, read before the application can purge them."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.kafka.raw_log import LoadedBatch
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.recovery.scene import READ_BYTES, READ_S, Offsets, Scene


def headers_of(
    batches: Mapping[TopicPartitionId, Sequence[LoadedBatch]],
) -> Mapping[TopicPartitionId, list[RawBatch]]:
    """Return the headers of batches."""
    return {p: [one.header for one in of_it] for p, of_it in batches.items()}


@dataclass(slots=True)
class KeptRecords:
    """Batches of repartition topics, from the offsets of their readers in the cut on.

    They are read at most once in `every_s`.
    """

    scene: Scene
    every_s: float
    batches: defaultdict[TopicPartitionId, list[LoadedBatch]] = field(
        init=False, default_factory=lambda: defaultdict(list)
    )
    _to: dict[TopicPartitionId, int] = field(init=False, default_factory=dict)
    _read_at: float = field(init=False, default=0.0)

    def start(self, committed: Offsets) -> None:
        """Keep the records of repartition topics from these offsets on."""
        for p in self.scene.repartitions:
            if p in committed:
                self._to[p] = committed[p]
                self.batches[p] = []

    def extend(self, ends: Offsets | None = None, *, at_once: bool = False) -> None:
        """Read up to the ends of the logs, which default to the current ones."""
        now = time.monotonic()
        if not self._to or (now - self._read_at < self.every_s and not at_once):
            return
        self._read_at = now
        if ends is None:
            ends = self.scene.cluster.high_watermarks(self._to)
        asked = {p: OffsetRange(start, ends[p]) for p, start in self._to.items() if start < ends[p]}
        kept_bytes = sum(len(one.data) for of_it in self.batches.values() for one in of_it)
        limit_bytes = max(1, READ_BYTES - kept_bytes)
        read = self.scene.reader.read(asked, deadline_s=READ_S, limit_bytes=limit_bytes)
        for p, batches in read.items():
            self.batches[p] += batches
            self._to[p] = asked[p].end

    def read(
        self, asked: Mapping[TopicPartitionId, OffsetRange]
    ) -> Mapping[TopicPartitionId, Sequence[LoadedBatch]]:
        """Return the batches of ranges; what was kept of them is not read again."""
        kept: dict[TopicPartitionId, list[LoadedBatch]] = {}
        missing = dict(asked)
        for p, batches in self.batches.items():
            if p not in asked or not batches or batches[0].header.base_offset > asked[p].start:
                continue
            start, end = asked[p].start, asked[p].end
            of_range = [one for one in batches if one.header.base_offset < end]
            kept[p] = [one for one in of_range if one.header.last_offset >= start]
            missing[p] = OffsetRange(min(max(start, batches[-1].header.last_offset + 1), end), end)
        read = self.scene.reader.read(missing, deadline_s=READ_S, limit_bytes=READ_BYTES)
        return {p: [*kept.get(p, ()), *read[p]] for p in asked}
