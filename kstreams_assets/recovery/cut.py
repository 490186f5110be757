"""Decides which committed transactions of a live application belong to one cut. Pure.

Kafka Streams with exactly_once_v2 commits changelogs, repartition records, outputs and offsets of
all tasks of a thread in one transaction. A cut consists of whole transactions: those whose offset
commits were committed when `__consumer_offsets` ended at a chosen offset, and the punctuation-only
ones (no offset commits) that depend on them.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.offsets import CommittedOffset, OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.recovery.group_commits import GroupLog
from kstreams_assets.recovery.identity import (
    EndedTransaction,
    Identities,
    ProducerEpoch,
    TransactionId,
    shared_epochs,
)
from kstreams_assets.recovery.segments import Segment, Tail, tail_of


class Need(Enum):
    """What would make a cut possible despite a blocker."""

    ANOTHER_TRY = "another try"
    ANOTHER_METHOD = "another method"
    PRODUCERS = "producers"
    HISTORY = "history"
    CLOSING_MARKERS = "closing markers"
    ONGOING = "ongoing"


@dataclass(frozen=True, slots=True)
class Blocker:
    """Why there is no cut, and what would make one possible."""

    reason: str
    need: Need
    partitions: tuple[TopicPartitionId, ...] = ()
    producers: frozenset[ProducerEpoch] = frozenset()


def need_history(segments: Iterable[Segment]) -> Blocker:
    """Return the blocker for segments with one producer epoch for many transactions."""
    producers = frozenset(ProducerEpoch(s.producer_id, s.epoch) for s in segments)
    return Blocker(
        "the application's clients keep one producer epoch for many transactions (older than Kafka"
        " 4.0)",
        Need.HISTORY,
        producers=producers,
    )


def need_closing_markers(segments: Iterable[Segment]) -> Blocker:
    """Return the blocker for segments that only their markers can identify."""
    partitions = tuple(sorted({segment.partition for segment in segments}))
    return Blocker(
        f"transactions in {', '.join(map(str, partitions))} did not end in time",
        Need.CLOSING_MARKERS,
        partitions=partitions,
    )


def ambiguous(segment: Segment) -> Blocker:
    """Return the blocker for a segment that fits several transactions, or none."""
    return Blocker(
        f"the transaction of producer {segment.producer_id} that wrote {segment.partition} at"
        f" offset {segment.start} cannot be identified in __transaction_state",
        Need.ANOTHER_TRY,
    )


class Written(StrEnum):
    """Who writes a topic: the application alone (its internal topics), or others too."""

    BY_APPLICATION = "by_application"
    BY_ANYBODY = "by_anybody"


@dataclass(frozen=True, slots=True)
class PartitionSample:
    """One changelog, repartition or output partition, sampled several times.

    `first_stable` and `stable` are last stable offsets: before the wait, and at the last sample
    before the committed offsets were reported. `first_high_watermark` was read once `first_stable`
    of all partitions was known: all data of transactions prepared by then is below it.
    `early_high_watermark` was read after the committed offsets and before `GroupLog.end`,
    `high_watermark` after it. Transactions decided at either sample have their marker below the
    early one, even if another open transaction held the last stable offset back.
    `batches` cover `first_stable` (or before) to `high_watermark` (or beyond, for markers).
    """

    partition: TopicPartitionId
    written: Written
    first_stable: int
    first_high_watermark: int
    stable: int
    early_high_watermark: int
    high_watermark: int
    batches: Sequence[RawBatch]


@dataclass(frozen=True, slots=True)
class Sample:
    """All observations, in the order that the method `transactions` requires.

    `producers` are the ids behind the application's transactional ids. `history` are its
    transactions as reported by `__transaction_state`. `ongoing` are its producers whose
    transactions were open at some time after the first sample. Each is None until requested. After
    `ongoing` was requested, the partitions named by the blocker are read on to their ends.
    """

    partitions: Sequence[PartitionSample]
    committed: Mapping[TopicPartitionId, CommittedOffset]
    group: GroupLog
    producers: frozenset[int] | None = None
    history: Sequence[EndedTransaction] | None = None
    ongoing: frozenset[ProducerEpoch] | None = None


Transactions = Mapping[TransactionId, Sequence[Segment]]


def torn_transaction(
    sample: Sample, identities: Identities, left_out: Transactions
) -> Blocker | None:
    """Return a blocker if an excluded transaction may be torn, else None.

    Torn means decided before the first sample of another partition.

    `left_out` are neither included nor pending in the offsets topic. Pending ones do no harm:
    offsets are reported only if none is undecided, so theirs were written after that.

    A transaction that wrote data after the first high watermarks were read had not been prepared
    at the first sample, nor had one that is open later on. If an epoch is shared by many
    transactions, an open one with that epoch is this one only if no marker has followed: a marker
    would show that the epoch is shared. Then their partitions are known, and a transaction is
    complete if it is seen in all of them. If nothing shows whether the epoch is shared, early data
    may belong to the transaction before the open one.
    """
    suspects = _suspects(sample, identities, left_out)
    torn = [
        one
        for one, segments in suspects.items()
        if identities.is_shared(segments[0]) and _is_missing(sample, identities, one, segments)
    ]
    if torn:
        return _late_markers(suspects, torn)
    unproven = [one for one, segments in suspects.items() if not identities.is_shared(segments[0])]
    if not unproven:
        return None
    if sample.ongoing is None:
        return _need_ongoing(suspects, unproven)
    ended = [one for one in unproven if _producer(one) not in sample.ongoing]
    return _late_markers(suspects, ended) if ended else None


def _suspects(sample: Sample, identities: Identities, left_out: Transactions) -> Transactions:
    """Return those that may have been prepared before the first sample and were not aborted."""
    first = {one.partition: one.first_high_watermark for one in sample.partitions}
    aborted = {
        ProducerEpoch(s.producer_id, s.epoch)
        for s in sample.group.tail.segments
        if s.marker is not None and not s.marker.committed and not identities.is_shared(s)
    }
    of_new_clients = {
        s.producer_id
        for s in sample.group.tail.segments
        if s.marker is not None and s.marker.epoch > s.epoch
    }
    return {
        one: segments
        for one, segments in left_out.items()
        if _producer(one) not in aborted
        and _may_be_early(segments, first, of_new_clients)
        and all(s.marker is None or s.marker.committed for s in segments)
    }


def _may_be_early(
    segments: Sequence[Segment],
    first: Mapping[TopicPartitionId, int],
    of_new_clients: Collection[int],
) -> bool:
    """Whether one of the possible transactions of these wrote nothing after the first sample.

    Without any marker an epoch may be shared by two transactions: early data is then the first
    one, with a late marker here. The rest is the next one, started after that marker.
    """
    early = [s.end <= first[s.partition] for s in segments]
    is_one = any(s.marker is not None or s.producer_id in of_new_clients for s in segments)
    return all(early) if is_one else any(early)


def _is_missing(
    sample: Sample, identities: Identities, one: TransactionId, segments: Iterable[Segment]
) -> bool:
    """Whether it wrote to a partition in which it is not visible."""
    ended = identities.ended(one)
    if ended is None:
        return True
    group = sample.group
    if group.partition in ended.partitions:
        # its offsets are beyond the end, or else before the part that was read
        times = (m.timestamp_ms for m in group.tail.markers if m.offset < group.end)
        return ended.prepared_ms <= max(times, default=ended.prepared_ms)
    sampled = {partition.partition for partition in sample.partitions}
    return bool(ended.partitions & sampled - {segment.partition for segment in segments})


def _producer(one: TransactionId) -> ProducerEpoch:
    return ProducerEpoch(one.producer_id, one.epoch)


def _need_ongoing(suspects: Transactions, unproven: Iterable[TransactionId]) -> Blocker:
    ids = list(unproven)
    partitions = {segment.partition for one in ids for segment in suspects[one]}
    return Blocker(
        f"transactions in {', '.join(map(str, sorted(partitions)))} may have ended before the first"
        " sample",
        Need.ONGOING,
        partitions=tuple(sorted(partitions)),
        producers=frozenset(map(_producer, ids)),
    )


def _late_markers(suspects: Transactions, late: Iterable[TransactionId]) -> Blocker:
    partitions = {segment.partition for one in late for segment in suspects[one]}
    return Blocker(
        f"a transaction in {', '.join(map(str, sorted(partitions)))} may have ended in other"
        " partitions long before",
        Need.ANOTHER_TRY,
        partitions=tuple(sorted(partitions)),
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """One consistent cut: ends (exclusive), excluded ranges, offsets."""

    ends: Mapping[TopicPartitionId, int]
    excluded: Mapping[TopicPartitionId, tuple[OffsetRange, ...]]
    committed: Mapping[TopicPartitionId, CommittedOffset]
    punctuations: int = 0
    """Included transactions without offset commits."""


def decide(sample: Sample) -> Cut | Blocker:
    """Return the cut of a sample, or the reason for having none."""
    return _Decision(sample).decide()


@dataclass(slots=True)
class _Decision:
    sample: Sample
    tails: dict[TopicPartitionId, Tail] = field(init=False)
    of_application: dict[TopicPartitionId, list[Segment]] = field(init=False)
    transactions: dict[TransactionId, list[Segment]] = field(init=False)

    def __post_init__(self) -> None:
        self.tails = {
            one.partition: tail_of(one.partition, one.batches, below=one.high_watermark)
            for one in self.sample.partitions
        }
        self.of_application = {}
        self.transactions = defaultdict(list)

    def decide(self) -> Cut | Blocker:
        blocker = self._refuse_plain() or self._find_own_segments()
        if blocker:
            return blocker
        group = self.sample.group
        own = [s for segments in self.of_application.values() for s in segments]
        every = [*own, *group.tail.segments]
        identities = Identities(shared_epochs(every), self.sample.history)
        blocker = self._identify(identities, own) or self._refuse_short_lookback(own)
        if blocker:
            return blocker
        with_offsets = self._ids(identities, group.committed)
        undecided = self._ids(identities, group.undecided)
        if isinstance(with_offsets, Blocker):
            return with_offsets
        if isinstance(undecided, Blocker):
            return undecided
        contradiction = self._refuse_aborted(with_offsets)
        if contradiction:
            return contradiction
        included = self._with_punctuations(with_offsets, undecided)
        cut = self._cut(included, len(included - with_offsets))
        if isinstance(cut, Blocker):
            return cut
        return self._refuse_torn(identities, included | undecided) or cut

    def _refuse_plain(self) -> Blocker | None:
        if self.sample.group.has_commit_outside_transaction():
            return Blocker("the group commits offsets outside of transactions", Need.ANOTHER_METHOD)
        for one in self.sample.partitions:
            tail = self.tails[one.partition]
            if one.written is Written.BY_APPLICATION and tail.plain:
                return Blocker(
                    f"{one.partition} has records outside of transactions at offset"
                    f" {tail.plain[0].start}",
                    Need.ANOTHER_METHOD,
                )
        return None

    def _find_own_segments(self) -> Blocker | None:
        """Leave out transactions of other applications in the outputs."""
        known = {segment.producer_id for segment in self.sample.group.tail.segments}
        for one in self.sample.partitions:
            if one.written is Written.BY_APPLICATION:
                known |= {s.producer_id for s in self.tails[one.partition].segments}
        if self.sample.producers is not None:
            known |= self.sample.producers
        for one in self.sample.partitions:
            segments = self.tails[one.partition].segments
            own = [s for s in segments if s.producer_id in known]
            if len(own) < len(segments) and self.sample.producers is None:
                return Blocker(
                    f"{one.partition} has transactions of unknown producers", Need.PRODUCERS
                )
            self.of_application[one.partition] = own
        return None

    def _identify(self, identities: Identities, own: Iterable[Segment]) -> Blocker | None:
        shared = [s for s in own if identities.is_shared(s)]
        if shared and identities.history is None:
            return need_history(shared)
        unclosed = [s for s in shared if s.marker is None]
        if unclosed:
            return need_closing_markers(unclosed)
        for segment in own:
            found = identities.of(segment)
            if found is None:
                return ambiguous(segment)
            self.transactions[found].append(segment)
        return None

    def _ids(
        self, identities: Identities, segments: Iterable[Segment]
    ) -> frozenset[TransactionId] | Blocker:
        """Return the transactions of offset commits; those older than all data need no ordinal."""
        relevant = {(t.producer_id, t.epoch) for t in self.transactions}
        found: set[TransactionId] = set()
        for segment in segments:
            if (segment.producer_id, segment.epoch) not in relevant:
                found.add(TransactionId(segment.producer_id, segment.epoch))
                continue
            if identities.is_shared(segment) and segment.marker is None:
                return need_closing_markers([segment])
            one = identities.of(segment)
            if one is None:
                if self._is_older_than_history(segment):
                    continue
                return ambiguous(segment)
            found.add(one)
        return frozenset(found)

    def _is_older_than_history(self, segment: Segment) -> bool:
        """Whether it ended before `__transaction_state` was read: all its data is stable then."""
        history = self.sample.history or ()
        began = min((ended.prepared_ms for ended in history), default=None)
        return (
            segment.marker is not None and began is not None and segment.marker.timestamp_ms < began
        )

    def _refuse_short_lookback(self, own: Iterable[Segment]) -> Blocker | None:
        """Refuse if commits before the lookback make a marker look punctuation-only."""
        group = self.sample.group
        closed = {s.marker for s in group.tail.segments}
        # segments closed by markers beyond the end were excluded from the tail, not missed
        orphans = {(m.producer_id, m.epoch) for m in group.tail.markers if m.offset < group.end} - {
            (m.producer_id, m.epoch) for m in closed if m
        }
        for segment in own:
            if {(segment.producer_id, segment.epoch + step) for step in (0, 1)} & orphans:
                return Blocker(
                    f"the offset commits of a transaction in {segment.partition} are before the"
                    f" part of {self.sample.group.partition} that was read",
                    Need.ANOTHER_TRY,
                )
        return None

    def _refuse_aborted(self, with_offsets: frozenset[TransactionId]) -> Blocker | None:
        for one in with_offsets:
            for segment in self.transactions.get(one, ()):
                if segment.marker is not None and not segment.marker.committed:
                    return Blocker(
                        f"{segment.partition} shows as aborted what"
                        f" {self.sample.group.partition} shows as committed (producer"
                        f" {one.producer_id}, epoch {one.epoch})",
                        Need.ANOTHER_TRY,
                    )
        return None

    def _with_punctuations(
        self, with_offsets: frozenset[TransactionId], undecided: frozenset[TransactionId]
    ) -> frozenset[TransactionId]:
        """Add committed transactions without offset commits on which the cut depends.

        Such a transaction is needed in three cases. A later transaction of its producer belongs to
        the cut. A marker of it is below an early high watermark: its data may then be below a
        sampled last stable offset, perhaps in another partition, and all that it depends on was
        committed before the end of the offsets topic. Or data of a transaction of the cut follows
        its marker in one partition.
        """
        included = set(with_offsets)
        candidates = {
            one: segments
            for one, segments in self.transactions.items()
            if one not in included and one not in undecided and _is_committed(segments)
        }
        early = {one.partition: one.early_high_watermark for one in self.sample.partitions}
        while True:
            newest: dict[int, TransactionId] = {}
            for one in included:
                newest[one.producer_id] = max(one, newest.get(one.producer_id, one))
            last = self._last_included(included)
            added = {
                one
                for one, segments in candidates.items()
                if one < newest.get(one.producer_id, one)
                or any(_is_needed(segment, early, last) for segment in segments)
            }
            if not added:
                return frozenset(included)
            included |= added
            candidates = {one: s for one, s in candidates.items() if one not in added}

    def _refuse_torn(
        self, identities: Identities, decided: frozenset[TransactionId]
    ) -> Blocker | None:
        """Refuse if an excluded transaction may have been decided before the first sample."""
        left_out = {one: s for one, s in self.transactions.items() if one not in decided}
        return torn_transaction(self.sample, identities, left_out)

    def _last_included(self, included: Iterable[TransactionId]) -> Mapping[TopicPartitionId, int]:
        """Return the end of the last data of included transactions in each partition."""
        last: dict[TopicPartitionId, int] = {}
        for one in included:
            for segment in self.transactions.get(one, ()):
                last[segment.partition] = max(last.get(segment.partition, 0), segment.end)
        return last

    def _cut(self, included: frozenset[TransactionId], punctuations: int) -> Cut | Blocker:
        committed = self.sample.group.offsets(self.sample.committed)
        last = self._last_included(included)
        outside: defaultdict[TopicPartitionId, list[Segment]] = defaultdict(list)
        for one, segments in self.transactions.items():
            if one not in included:
                for segment in segments:
                    outside[segment.partition].append(segment)
        ends: dict[TopicPartitionId, int] = {}
        excluded: dict[TopicPartitionId, tuple[OffsetRange, ...]] = {}
        for one in self.sample.partitions:
            partition = one.partition
            # an offset beyond the log belongs to truncated records or to a deleted topic
            read_to = committed[partition].offset if partition in committed else 0
            read_to = min(read_to, one.high_watermark)
            end = max(one.stable, last.get(partition, 0), read_to)
            # readers skip aborted records
            unread = RangeSet(_ranges(outside[partition], aborted=False)).clip(one.stable, read_to)
            if unread:
                return Blocker(
                    f"the application has read {partition} up to offset {read_to}, beyond records"
                    f" of a transaction that is not complete (offset {unread[0].start})",
                    Need.ANOTHER_TRY,
                )
            ends[partition] = end
            excluded[partition] = tuple(RangeSet(_ranges(outside[partition])).clip(one.stable, end))
        return Cut(ends, excluded, committed, punctuations)


def _ranges(segments: Iterable[Segment], *, aborted: bool = True) -> list[OffsetRange]:
    """Return all data of segments, optionally without aborted data, in order."""
    return sorted(
        one
        for segment in segments
        if aborted or segment.marker is None or segment.marker.committed
        for one in segment.ranges
    )


def _is_committed(segments: Iterable[Segment]) -> bool:
    return any(s.marker is not None and s.marker.committed for s in segments)


def _is_needed(
    segment: Segment, early: Mapping[TopicPartitionId, int], last: Mapping[TopicPartitionId, int]
) -> bool:
    marker = segment.marker
    if marker is None:
        return False
    partition = segment.partition
    return marker.offset < max(early.get(partition, 0), last.get(partition, 0))
