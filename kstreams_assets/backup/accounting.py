"""Proves from the raw log why offsets of a span have no record. Nothing is guessed."""

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from types import MappingProxyType

from kstreams_assets.backup.planner import TopicPlan
from kstreams_assets.closing import Closing
from kstreams_assets.errors import KafkaError, OffsetOutOfRangeError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.raw_batch import RangeTally, Tallies
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.throttle import Throttle
from kstreams_assets.model.spans import Gap, GapCause, SpanContent, SpanId, SpanPlan, SpanResult
from kstreams_assets.offsets import TopicPartitionId

_log = logging.getLogger(__name__)

_SEEN_IN_THE_LOG = frozenset(
    {
        GapCause.TRANSACTION_MARKER,
        GapCause.ABORTED,
        GapCause.COMPACTED,
        GapCause.UNEXPLAINED,
        GapCause.NOT_EXAMINED,
    }
)
"""Causes found by inspecting the log; all others were known before the records were read."""


@dataclass(frozen=True, slots=True)
class LogInspection:
    """What the log still contained of a span after the span was read.

    `because` says why the rest was not inspected. It is empty if everything present was.
    """

    log: RangeTally
    because: str = ""


@dataclass(slots=True)
class Accountant(Closing):
    """Compares the records of a backup with the batch headers in Kafka's log.

    Only partitions in which offsets have no stored record are inspected. Only batch headers are
    read, one at a time, so memory does not grow with the log. `stall_s` bounds the time without
    progress in one partition; `connections` partitions are inspected in parallel.
    """

    connection: KafkaConnection
    stall_s: float
    connections: int = 4
    throttle: Throttle | None = None
    _readers: list[RawLogReader] = field(init=False)

    def __post_init__(self) -> None:
        self._readers = [
            RawLogReader(self.connection, throttle=self.throttle) for _ in range(self.connections)
        ]

    def close(self) -> None:
        """Close the connections."""
        for reader in self._readers:
            reader.close()

    def gone_since(self, topic: TopicPlan) -> frozenset[TopicPartitionId]:
        """Return the partitions of which Kafka no longer has everything that was backed up.

        If the log start has moved up, the causes of missing offsets cannot be proved again. The
        earlier backup is then kept even if no record is affected.
        """
        spans = {span.partition: span for span in topic.spans}
        gone: set[TopicPartitionId] = set()
        for entry in topic.held:
            partition = entry.result.partition
            if partition not in gone and not self._is_there(spans.get(partition), entry.result):
                gone.add(partition)
        return frozenset(gone)

    def _is_there(self, span: SpanPlan | None, held: SpanResult) -> bool:
        """Whether Kafka still has as many records of a span as were stored."""
        plan, had = held.plan, held.content.records
        if span is None or span.read_start > plan.read_start or span.end < plan.end:
            return False
        if had == 0:
            return True
        tally = RangeTally(plan.read_start, plan.end)
        try:
            self._follow(self._readers[0], span, plan.read_start, plan.end, [tally])
        except OffsetOutOfRangeError:
            return False
        return tally.visible >= had

    def results(
        self,
        topics: Sequence[TopicPlan],
        contents: Mapping[SpanId, SpanContent],
        seen: Mapping[SpanId, LogInspection] = MappingProxyType({}),
        compacted: Container[str] | None = None,
    ) -> dict[tuple[str, str], tuple[SpanResult, ...]]:
        """Return the result of each span, with a cause for every offset that has no record.

        Keyed by (window key, topic). Compaction makes holes in the logs of the topics in
        `compacted`, or of all topics if it is None. `seen` has the inspections of spans that were
        just read; only other spans are inspected here. Offsets that could not be inspected in time
        are reported as not examined. If only the inspection is missing, the stored records stay.
        """
        accounts = {topic.id: _accounts(topic, contents) for topic in topics}
        inspections = self._inspect_all(
            (account.plan, account.visible_from)
            for of_topic in accounts.values()
            for account in of_topic
            if account.needs_inspection and SpanId.of(account.plan) not in seen
        )
        inspections |= seen
        return {
            topic.id: tuple(
                account.result(
                    inspections,
                    is_changelog=topic.topic.roles.is_changelog,
                    is_compacted=compacted is None or topic.topic.name in compacted,
                )
                for account in accounts[topic.id]
            )
            for topic in topics
        }

    def _inspect_all(self, spans: Iterable[tuple[SpanPlan, int]]) -> dict[SpanId, LogInspection]:
        """Inspect the log of these spans, each from an offset on; the log below it is gone."""
        runs: list[list[tuple[SpanPlan, int]]] = []
        for span, visible_from in sorted(spans, key=lambda s: (s[0].partition, s[0].read_start)):
            last = runs[-1][-1][0] if runs else None
            if last and last.partition == span.partition and last.end == span.read_start:
                runs[-1].append((span, visible_from))
            else:
                runs.append([(span, visible_from)])
        if not runs:
            return {}
        free: SimpleQueue[RawLogReader] = SimpleQueue()
        for reader in self._readers:
            free.put(reader)

        def inspect(run: list[tuple[SpanPlan, int]]) -> dict[SpanId, LogInspection]:
            reader = free.get()
            try:
                return self._inspect(reader, run)
            finally:
                free.put(reader)

        with ThreadPoolExecutor(self.connections, thread_name_prefix="inspect") as pool:
            found = list(pool.map(inspect, runs))
        return {span: seen for of_run in found for span, seen in of_run.items()}

    def _inspect(
        self, reader: RawLogReader, run: Sequence[tuple[SpanPlan, int]]
    ) -> dict[SpanId, LogInspection]:
        """Inspect the log of adjacent spans."""
        spans = [span for span, _ in run]
        tallies = [RangeTally(span.read_start, span.end) for span in spans]
        for tally, (_, visible_from) in zip(tallies, run, strict=True):
            tally.skip(visible_from)
        position, end = tallies[0].position, spans[-1].end
        because = ""
        while position < end and not because:
            try:
                self._follow(reader, spans[0], position, end, tallies)
                position = end
            except OffsetOutOfRangeError as error:
                # Retention or DeleteRecords removed batches during this inspection.
                if error.log_start <= position:
                    because = error.problem
                position = max(position, min(error.log_start, end))
            except KafkaError as error:
                because = error.problem
            for tally in tallies:
                tally.skip(end if because else position)
        if because:
            _log.warning(
                "%s cannot be inspected to its end: %s The next run inspects it again.",
                spans[0].partition,
                because,
            )
        return {
            SpanId.of(span): LogInspection(tally, because if tally.unseen else "")
            for span, tally in zip(spans, tallies, strict=True)
        }

    def _follow(
        self,
        reader: RawLogReader,
        of: SpanPlan,
        start: int,
        end: int,
        tallies: Sequence[RangeTally],
    ) -> None:
        """Pass each batch of the log to the tallies (in order of offsets) that contain it."""
        if start >= end:
            return
        followed = Tallies(tallies)
        for batch in reader.scan(
            of.partition, start, end, deadline_s=self.stall_s, by_progress=True
        ):
            followed.add(batch)
        followed.finish()


@dataclass(frozen=True, slots=True)
class _Account:
    """One span with its stored contents; `settled` if its result needs no inspection.

    The log below `visible_from` is gone. `carried` are gaps that only an earlier run could see.
    """

    plan: SpanPlan
    content: SpanContent
    visible_from: int
    carried: Sequence[Gap] = ()
    settled: SpanResult | None = None

    @property
    def needs_inspection(self) -> bool:
        return self.settled is None and self.content.records != self.plan.to_read

    def result(
        self, inspections: Mapping[SpanId, LogInspection], *, is_changelog: bool, is_compacted: bool
    ) -> SpanResult:
        if self.settled is not None:
            return self.settled
        inspection = inspections.get(SpanId.of(self.plan)) if self.needs_inspection else None
        records = self.content.records
        explained = (
            explain(self.plan, records, inspection, is_compacted=is_compacted) if inspection else []
        )
        return SpanResult(
            plan=self.plan,
            content=self.content,
            gaps=tuple(dict.fromkeys([*self.carried, *self.plan.gaps, *explained])),
            first_hole=first_hole(self.plan, inspection) if is_changelog else None,
            contiguity_known=is_changelog,
            not_examined_because=inspection.because if inspection else "",
        )


def _accounts(topic: TopicPlan, contents: Mapping[SpanId, SpanContent]) -> list[_Account]:
    if not topic.needs_only_inspection:
        carried: dict[SpanId, list[Gap]] = {}
        for entry in topic.earlier:
            of_before = [gap for gap in entry.result.gaps if not gap.is_of_this_log]
            carried.setdefault(SpanId.of(entry.result.plan), []).extend(of_before)
        return [
            _Account(
                span,
                contents.get(SpanId.of(span), SpanContent()),
                span.read_start,
                carried.get(SpanId.of(span), ()),
            )
            for span in topic.spans
        ]
    visible_from = {SpanId.of(span): span.read_start for span in topic.spans}
    found: list[_Account] = []
    for entry in topic.earlier:
        result, plan = entry.result, entry.result.plan
        known = tuple(gap for gap in result.gaps if gap.cause not in _SEEN_IN_THE_LOG)
        found.append(
            _Account(
                replace(plan, gaps=known),
                result.content,
                visible_from.get(SpanId.of(plan), plan.end),
                settled=result if result.is_examined else None,
            )
        )
    return found


def first_hole(span: SpanPlan, inspection: LogInspection | None) -> int | None:
    """Return the lowest offset of a span that was missing from the log after the read.

    `inspection` is None if every offset is a stored record: then the log had them all. Offsets that
    retention deleted before the inspection, or that were not inspected in time, count as holes.
    Offsets written by a restore do not: the backups of the older log contain them.
    """
    if span.read_start > span.restored_end:
        return span.restored_end
    return inspection.log.first_absent if inspection else None


def explain(
    span: SpanPlan, stored: int, inspection: LogInspection, *, is_compacted: bool = True
) -> list[Gap]:
    """Return the cause of every offset of a span that has no stored record.

    Transaction markers and aborted records are visible in the log. Offsets absent from the log
    were removed by compaction if the topic `is_compacted`: nothing else makes holes. Compaction
    may remove records between read and inspection, so the log may have fewer records than were
    stored, never more. Markers and aborted records are not reduced to the missing offsets: that
    would hide a record that was stored twice. Offsets that could not be inspected stay
    unexplained, or are reported as not examined if the next run may inspect them.
    """
    log = inspection.log
    missing = span.to_read - stored
    unread = max(log.visible + log.undecided - stored, 0)
    absent = max(missing - log.markers - log.aborted - unread, 0)
    compacted = min(absent, log.holes) if is_compacted else 0
    rest = absent - compacted
    not_examined = rest if inspection.because else 0
    return [
        Gap(cause, span.read_start, span.end, offsets)
        for cause, offsets in (
            (GapCause.TRANSACTION_MARKER, log.markers),
            (GapCause.ABORTED, log.aborted),
            (GapCause.COMPACTED, compacted),
            (GapCause.UNEXPLAINED, unread + rest - not_examined),
            (GapCause.NOT_EXAMINED, not_examined),
        )
        if offsets
    ]


def uninspected(span: SpanPlan, because: str) -> LogInspection:
    """Return the inspection of a span whose records could not be read."""
    tally = RangeTally(span.read_start, span.end)
    tally.skip(span.end)
    return LogInspection(tally, because)
