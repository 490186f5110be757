"""Proves why offsets of a span hold no record: from the raw log, never from a guess."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.content import SpanId
from kstreams_assets.backup.plan import Gap, GapCause, SpanPlan
from kstreams_assets.backup.planner import TopicPlan
from kstreams_assets.backup.result import SpanContent, SpanResult
from kstreams_assets.closing import Closing
from kstreams_assets.errors import OffsetOutOfRangeError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.positions import TopicPartitionId
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.visible import RangeContent, content_of_range

_NOTHING = SpanContent()


@dataclass(frozen=True, slots=True)
class _Scan:
    """What the log still held of a span after it was read; `began` further on than it: unseen."""

    began: int
    log: RangeContent


@dataclass(slots=True)
class Accountant(Closing):
    """Compares what a backup holds with the headers of the record batches in Kafka's log.

    Only partitions with offsets that no stored record has are read again, and of those only the
    batch headers are looked at. `deadline_s` bounds the reading of one partition.
    """

    connection: KafkaConnection
    deadline_s: float
    _reader: RawLogReader = field(init=False)

    def __post_init__(self) -> None:
        self._reader = RawLogReader(self.connection)

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()

    def can_be_read_again(self, topic: TopicPlan) -> bool:
        """Whether Kafka still holds all that the backup was made from, for a topic and window.

        Where the log now begins further on, not even the proof of what the missing offsets were
        can be given again, so the earlier backup stays also if no record of it is concerned.
        """
        spans = {span.partition: span for span in topic.spans}
        for entry in topic.earlier:
            had = entry.result.content.records
            span = spans.get(entry.result.partition)
            if span is None or span.read_start > entry.result.plan.read_start:
                return False
            if had == 0:
                continue
            try:
                batches = self._scan(span.partition, span.read_start, span.end)
            except OffsetOutOfRangeError:
                return False
            if content_of_range(batches, span.read_start, span.end).visible < had:
                return False
        return True

    def results(
        self, topics: Sequence[TopicPlan], contents: Mapping[SpanId, SpanContent]
    ) -> dict[tuple[str, str], tuple[SpanResult, ...]]:
        """What became of each span, with every missing offset explained or told as unexplained.

        Keyed by (window key, topic).
        """
        spans = [span for topic in topics for span in topic.spans]
        scans = self._scans(spans, contents)
        carried = {
            (entry.result.plan.window.key, entry.result.partition): [
                gap for gap in entry.result.gaps if gap.end is None
            ]
            for topic in topics
            for entry in topic.earlier
        }
        return {
            topic.id: tuple(
                _result(
                    span,
                    contents.get(_id(span), _NOTHING),
                    scans.get(_id(span)),
                    carried.get((span.window.key, span.partition), []),
                    is_changelog=TopicRole.CHANGELOG in topic.topic.roles,
                )
                for span in topic.spans
            )
            for topic in topics
        }

    def _scans(
        self, spans: Sequence[SpanPlan], contents: Mapping[SpanId, SpanContent]
    ) -> dict[SpanId, _Scan]:
        """Look at the log of every span that has offsets without a stored record."""
        incomplete: dict[TopicPartitionId, list[SpanPlan]] = defaultdict(list)
        for span in spans:
            if contents.get(_id(span), _NOTHING).records != span.to_read:
                incomplete[span.partition].append(span)
        found: dict[SpanId, _Scan] = {}
        for partition, of_partition in incomplete.items():
            start = min(span.read_start for span in of_partition)
            end = max(span.end for span in of_partition)
            scanned_from, batches = self._scan_what_is_left(partition, start, end)
            lasts = [batch.last_offset for batch in batches]
            for span in of_partition:
                first = bisect_left(lasts, span.read_start)
                last = bisect_left(lasts, span.end) + 1
                content = content_of_range(batches[first:last], span.read_start, span.end)
                found[_id(span)] = _Scan(scanned_from, content)
        return found

    def _scan(self, partition: TopicPartitionId, start: int, end: int) -> list[RawBatch]:
        if start >= end:
            return []
        return list(self._reader.scan(partition, start, end, deadline_s=self.deadline_s))

    def _scan_what_is_left(
        self, partition: TopicPartitionId, start: int, end: int
    ) -> tuple[int, list[RawBatch]]:
        """Scan from the log start offset on, should it have passed `start` since the read.

        Returns where the scan began, and the batches.
        """
        while True:
            try:
                return start, self._scan(partition, start, end)
            except OffsetOutOfRangeError as error:
                if error.log_start <= start:
                    raise
                start = min(error.log_start, end)


def _result(
    span: SpanPlan,
    content: SpanContent,
    scan: _Scan | None,
    carried: Sequence[Gap],
    *,
    is_changelog: bool,
) -> SpanResult:
    explained = explain(span, content.records, scan.log, scanned_from=scan.began) if scan else []
    hole = first_hole(span, scan.log if scan else None, scan.began if scan else span.read_start)
    return SpanResult(
        plan=span,
        content=content,
        gaps=_distinct([*carried, *span.gaps, *explained]),
        first_hole=hole if is_changelog else None,
        contiguity_known=is_changelog,
    )


def first_hole(span: SpanPlan, log: RangeContent | None, scanned_from: int) -> int | None:
    """The lowest offset of a span that the log did not hold any more after it was read.

    `log` is None where every offset is a stored record: then the log held them all. What was
    deleted before the log could be looked at (below `scanned_from`, retention) counts as a hole.
    """
    if span.read_start > span.start:
        return span.start
    if log is None:
        return None
    if scanned_from > span.read_start:
        return span.read_start
    return log.holes[0].start if log.holes else None


def explain(
    span: SpanPlan, stored: int, log: RangeContent, *, scanned_from: int | None = None
) -> list[Gap]:
    """Name the cause of every offset of a span that no stored record has.

    Transaction markers and aborted records are seen in the log. Offsets that the log does not hold
    were removed by compaction; it may have removed records between the read and the scan, so the
    log may hold fewer than were stored, never more. Markers and aborted records are not cut down
    to what is missing: a record stored twice would hide behind them. Below `scanned_from` the log
    was deleted before it could be looked at: what is missing there stays unexplained.
    """
    missing = span.to_read - stored
    unread = max(log.visible + log.undecided - stored, 0)
    absent = max(missing - log.markers - log.aborted - unread, 0)
    compacted = min(absent, _hole_offsets(log, scanned_from or span.read_start))
    return [
        Gap(cause, span.read_start, span.end, offsets)
        for cause, offsets in (
            (GapCause.TRANSACTION_MARKER, log.markers),
            (GapCause.ABORTED, log.aborted),
            (GapCause.COMPACTED, compacted),
            (GapCause.UNEXPLAINED, unread + absent - compacted),
        )
        if offsets
    ]


def _hole_offsets(log: RangeContent, scanned_from: int) -> int:
    """Offsets that the scanned part of the log does not hold."""
    return sum(max(hole.end - max(hole.start, scanned_from), 0) for hole in log.holes)


def _id(span: SpanPlan) -> SpanId:
    return SpanId(span.window.key, span.partition)


def _distinct(gaps: list[Gap]) -> tuple[Gap, ...]:
    return tuple(dict.fromkeys(gaps))
