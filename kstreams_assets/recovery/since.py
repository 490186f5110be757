"""Where the newest part of a log begins, by the brokers' own clocks."""

from collections.abc import Iterable

from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.recovery.method import Scene

_READ_S = 15.0


def since(
    scene: Scene, partitions: Iterable[TopicPartitionId], lookback_s: float
) -> dict[TopicPartitionId, tuple[int, int]]:
    """For each partition, from which offset on its newest `lookback_s` lie, and its end.

    Counted back from the newest record: it was written by a broker's clock, as the ones looked for,
    so that a wrong clock here does no harm.
    """
    wanted = list(partitions)
    starts = scene.cluster.log_start_offsets(wanted)
    ends = scene.cluster.high_watermarks(wanted)
    newest = scene.reader.read(
        {p: OffsetRange(max(starts[p], ends[p] - 1), ends[p]) for p in wanted}, deadline_s=_READ_S
    )
    times = {
        p: raw.batches[-1].header.max_timestamp - round(lookback_s * 1000)
        for p, raw in newest.items()
        if raw.batches
    }
    found = scene.cluster.offsets_for_times(times)
    return {p: (found.get(p) or starts[p], ends[p]) for p in wanted}
