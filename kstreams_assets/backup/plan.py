"""What a backup run will read for each window, and what Kafka can no longer give. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kstreams_assets.backup.windows import Edges
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.warehouse.point import topic_id_of
from kstreams_assets.warehouse.spans import Gap, GapCause, SpanPlan, Window
from spark_resources.work import ReadRange


@dataclass(frozen=True, slots=True)
class LogState:
    """What a partition's log holds now; `topic_id` (its incarnation) is None if it is gone."""

    topic_id: str | None
    log_start: int
    committed: int | None = None
    """Committed offset of the application's group, known for repartition topics only."""


def plan_span(window: Window, edges: Edges, log: LogState, *, repartition: bool) -> SpanPlan:
    """Lay a window's edges on what the log still holds.

    Of a repartition topic only records from the committed offset on are read: the application may
    delete the ones below at any moment (`repartition.purge.interval.ms`) and no restore needs them.
    """
    continues = edges.start is not None and edges.start.topic_id == edges.end.topic_id
    start = edges.start.offset if edges.start and continues else edges.first_log_start
    end = max(edges.end.offset, start)
    gaps: list[Gap] = []
    gone_by = _gone_by(edges.end.topic_id, log.topic_id)
    if edges.start and edges.vanished:
        gaps.append(Gap(gone_by, edges.start.offset, None, None))
    elif edges.start and not continues:
        cause = _gone_by(edges.start.topic_id, edges.end.topic_id)
        gaps.append(Gap(cause, edges.start.offset, None, None))
    read_start = start
    if log.topic_id != edges.end.topic_id:
        gaps += _range(gone_by, start, end)
        read_start = end
    else:
        processed = min(log.committed or 0, end) if repartition else start
        gaps += _range(GapCause.PURGED, start, processed)
        read_start = max(start, processed)
        gone = min(max(log.log_start, read_start), end)
        gaps += _range(GapCause.RETENTION, read_start, gone)
        read_start = max(read_start, gone)
    return SpanPlan(
        window=window,
        partition=edges.partition,
        topic_id=edges.end.topic_id,
        start=start,
        end=end,
        read_start=read_start,
        continues=continues,
        gaps=tuple(gaps),
        log_start=log.log_start,
    )


def _gone_by(before: str, now: str | None) -> GapCause:
    """What became of an incarnation of a log, given that of today."""
    if now is None:
        return GapCause.TOPIC_DELETED
    same_topic = topic_id_of(before) == topic_id_of(now)
    return GapCause.LOG_TRUNCATED if same_topic else GapCause.TOPIC_RECREATED


def _range(cause: GapCause, start: int, end: int) -> list[Gap]:
    return [Gap(cause, start, end, end - start)] if end > start else []


def read_ranges(spans: Iterable[SpanPlan]) -> list[tuple[ReadRange, ...]]:
    """The stretches to read, as few Kafka reads as possible.

    A Kafka read takes one stretch per partition; spans of a partition that follow each other
    (nothing but offsets that need not be read between them) are one stretch. The first read takes
    the first stretch of each partition, and so on: normally there is one read.
    """
    stretches: dict[TopicPartitionId, list[ReadRange]] = {}
    for span in sorted(spans, key=lambda s: (s.partition, s.read_start)):
        if span.to_read == 0:
            continue
        of_partition = stretches.setdefault(span.partition, [])
        if of_partition and of_partition[-1].end == span.read_start:
            last = of_partition.pop()
            of_partition.append(ReadRange(span.partition, last.start, span.end))
        else:
            of_partition.append(ReadRange(span.partition, span.read_start, span.end))
    depth = max((len(s) for s in stretches.values()), default=0)
    return [tuple(s[level] for s in stretches.values() if level < len(s)) for level in range(depth)]


def commit_groups(
    windows: Sequence[Window],
    bytes_of_window: Mapping[Window, int],
    *,
    limit_bytes: int,
) -> list[tuple[Window, ...]]:
    """Windows in order, cut into groups of at most `limit_bytes` (one window at least).

    Each group becomes one commit, so that a failure keeps what is done.
    """
    groups: list[list[Window]] = []
    filled = 0
    for window in sorted(windows):
        size = bytes_of_window.get(window, 0)
        if not groups or (groups[-1] and filled + size > limit_bytes):
            groups.append([])
            filled = 0
        groups[-1].append(window)
        filled += size
    return [tuple(group) for group in groups]
