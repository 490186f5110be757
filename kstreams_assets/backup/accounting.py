"""Proves why offsets of a span hold no record: from the raw log, never from a guess."""

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
"""Causes that the look at the log gives; the others were known before the records were read."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the log still held of a span after it was read.

    `because` says why the rest of it was not looked at, empty when all that is there was.
    """

    log: RangeTally
    because: str = ""


@dataclass(slots=True)
class Accountant(Closing):
    """Compares what a backup holds with the headers of the record batches in Kafka's log.

    Only partitions with offsets that no stored record has are looked at, and of those only the
    batch headers: one after the other, so that memory does not grow with the log. `stall_s` bounds
    the time without progress in one partition; `connections` partitions are looked at side by side.
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
        """Partitions of which Kafka no longer holds all that the backup was made from.

        Where the log now begins further on, not even the proof of what the missing offsets were
        can be given again, so the earlier backup stays also if no record of it is concerned.
        """
        spans = {span.partition: span for span in topic.spans}
        gone: set[TopicPartitionId] = set()
        for entry in topic.held:
            partition = entry.result.partition
            if partition not in gone and not self._is_there(spans.get(partition), entry.result):
                gone.add(partition)
        return frozenset(gone)

    def _is_there(self, span: SpanPlan | None, held: SpanResult) -> bool:
        """Whether Kafka holds as many records of a stored span as were stored of it."""
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
        seen: Mapping[SpanId, Look] = MappingProxyType({}),
        compacted: Container[str] | None = None,
    ) -> dict[tuple[str, str], tuple[SpanResult, ...]]:
        """What became of each span, with every missing offset explained or told as unexplained.

        Keyed by (window key, topic). `compacted` are the topics in whose logs compaction makes
        holes, None for all. `seen` is what the log held where records were read just now:
        only other spans are looked at. What could not be looked at in time is told as such. Where
        only the look is lacking, the records stay as they are stored.
        """
        accounts = {topic.id: _accounts(topic, contents) for topic in topics}
        looks = self._looks(
            (account.plan, account.visible_from)
            for of_topic in accounts.values()
            for account in of_topic
            if account.needs_look and SpanId.of(account.plan) not in seen
        )
        looks |= seen
        return {
            topic.id: tuple(
                account.result(
                    looks,
                    is_changelog=topic.topic.roles.is_changelog,
                    is_compacted=compacted is None or topic.topic.name in compacted,
                )
                for account in accounts[topic.id]
            )
            for topic in topics
        }

    def _looks(self, spans: Iterable[tuple[SpanPlan, int]]) -> dict[SpanId, Look]:
        """Look at the log of these spans, each from an offset on; below it the log is gone."""
        stretches: list[list[tuple[SpanPlan, int]]] = []
        for span, visible_from in sorted(spans, key=lambda s: (s[0].partition, s[0].read_start)):
            last = stretches[-1][-1][0] if stretches else None
            if last and last.partition == span.partition and last.end == span.read_start:
                stretches[-1].append((span, visible_from))
            else:
                stretches.append([(span, visible_from)])
        if not stretches:
            return {}
        free: SimpleQueue[RawLogReader] = SimpleQueue()
        for reader in self._readers:
            free.put(reader)

        def look(stretch: list[tuple[SpanPlan, int]]) -> dict[SpanId, Look]:
            reader = free.get()
            try:
                return self._look(reader, stretch)
            finally:
                free.put(reader)

        with ThreadPoolExecutor(self.connections, thread_name_prefix="look") as pool:
            found = list(pool.map(look, stretches))
        return {span: seen for of_stretch in found for span, seen in of_stretch.items()}

    def _look(
        self, reader: RawLogReader, stretch: Sequence[tuple[SpanPlan, int]]
    ) -> dict[SpanId, Look]:
        """Follow the log through spans that adjoin each other."""
        spans = [span for span, _ in stretch]
        tallies = [RangeTally(span.read_start, span.end) for span in spans]
        for tally, (_, visible_from) in zip(tallies, stretch, strict=True):
            tally.skip(visible_from)
        position, end = tallies[0].position, spans[-1].end
        because = ""
        while position < end and not because:
            try:
                self._follow(reader, spans[0], position, end, tallies)
                position = end
            except OffsetOutOfRangeError as error:
                # Retention or DeleteRecords was faster than this look.
                if error.log_start <= position:
                    because = error.problem
                position = max(position, min(error.log_start, end))
            except KafkaError as error:
                because = error.problem
            for tally in tallies:
                tally.skip(end if because else position)
        if because:
            _log.warning(
                "%s cannot be looked at to its end: %s The next run looks again.",
                spans[0].partition,
                because,
            )
        return {
            SpanId.of(span): Look(tally, because if tally.unseen else "")
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
        """Hand each batch of the log to the tallies (in order of offsets) that it belongs to."""
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
    """One span with what is stored of it; `settled` if nothing about it is in question.

    Below `visible_from` the log is gone. `carried` are gaps that only an earlier run could see.
    """

    plan: SpanPlan
    content: SpanContent
    visible_from: int
    carried: Sequence[Gap] = ()
    settled: SpanResult | None = None

    @property
    def needs_look(self) -> bool:
        return self.settled is None and self.content.records != self.plan.to_read

    def result(
        self, looks: Mapping[SpanId, Look], *, is_changelog: bool, is_compacted: bool
    ) -> SpanResult:
        if self.settled is not None:
            return self.settled
        look = looks.get(SpanId.of(self.plan)) if self.needs_look else None
        records = self.content.records
        explained = explain(self.plan, records, look, is_compacted=is_compacted) if look else []
        return SpanResult(
            plan=self.plan,
            content=self.content,
            gaps=tuple(dict.fromkeys([*self.carried, *self.plan.gaps, *explained])),
            first_hole=first_hole(self.plan, look) if is_changelog else None,
            contiguity_known=is_changelog,
            not_examined_because=look.because if look else "",
        )


def _accounts(topic: TopicPlan, contents: Mapping[SpanId, SpanContent]) -> list[_Account]:
    if not topic.lacks_only_the_look:
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


def first_hole(span: SpanPlan, look: Look | None) -> int | None:
    """The lowest offset of a span that the log did not hold any more after it was read.

    `look` is None where every offset is a stored record: then the log held them all. What was
    deleted before the log could be looked at (retention), or could not be looked at in time,
    counts as a hole. What a restore wrote is none: the backups of the older log hold it.
    """
    if span.read_start > span.restored_end:
        return span.restored_end
    return look.log.first_absent if look else None


def explain(span: SpanPlan, stored: int, look: Look, *, is_compacted: bool = True) -> list[Gap]:
    """Name the cause of every offset of a span that no stored record has.

    Transaction markers and aborted records are seen in the log. Offsets that the log does not hold
    were removed by compaction, where the topic `is_compacted`: nothing else makes holes. It may
    have removed records between the read and the look, so the log may hold fewer than were stored,
    never more. Markers and aborted records are not cut down to what is missing: a record stored
    twice would hide behind them. What is missing where nobody could look stays unexplained, or is
    told as not examined if the next run may still look.
    """
    log = look.log
    missing = span.to_read - stored
    unread = max(log.visible + log.undecided - stored, 0)
    absent = max(missing - log.markers - log.aborted - unread, 0)
    compacted = min(absent, log.holes) if is_compacted else 0
    rest = absent - compacted
    not_examined = rest if look.because else 0
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


def nothing_seen(span: SpanPlan, because: str) -> Look:
    """Nothing was seen of a span: its records could not be read."""
    tally = RangeTally(span.read_start, span.end)
    tally.skip(span.end)
    return Look(tally, because)
