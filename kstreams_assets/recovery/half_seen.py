"""Transactions that a sample may show only in part: a guard for cuts. Pure.

What was decided in a partition before the first look lies below its last stable offset: it is taken
unseen. If that transaction's marker in another partition is late (a leader election, say) by more
than the wait between the looks, and it has no offset commits, it would be left out there: torn.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.identity import Identities, ProducerEpoch, TransactionId
from kstreams_assets.recovery.refusal import Refusal, Wanted
from kstreams_assets.recovery.sample import Sample
from kstreams_assets.recovery.segments import Segment

Transactions = Mapping[TransactionId, Sequence[Segment]]


def half_seen(sample: Sample, identities: Identities, left_out: Transactions) -> Refusal | None:
    """Refuse when a transaction that is left out may lie below another first look; else None.

    `left_out` are neither taken nor pending in the offsets topic. Pending ones do no harm: offsets
    are told only when none is undecided, so theirs were written after that.

    One that wrote data after the first high watermarks were read had not been prepared at the first
    look, nor had one that is open later on. Where an epoch stands for many transactions, an open
    one with that epoch is this one only if no marker has followed, which would show that the epoch
    is shared; then their partitions are known, and one is whole if it is seen in all of them.
    Where nothing shows whether it does, early data may be of the transaction before the open one.
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
        return _ongoing_wanted(suspects, unproven)
    ended = [one for one in unproven if _producer(one) not in sample.ongoing]
    return _late_markers(suspects, ended) if ended else None


def _suspects(sample: Sample, identities: Identities, left_out: Transactions) -> Transactions:
    """Those that may have been prepared before the first look, and were not aborted."""
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
    """Whether one of the transactions that these may be wrote nothing after the first look.

    Without any marker an epoch may stand for two transactions: what is early is the first one, with
    a late marker here, and the rest is the next one, which began once that marker was written.
    """
    early = [s.end <= first[s.partition] for s in segments]
    is_one = any(s.marker is not None or s.producer_id in of_new_clients for s in segments)
    return all(early) if is_one else any(early)


def _is_missing(
    sample: Sample, identities: Identities, one: TransactionId, segments: Iterable[Segment]
) -> bool:
    """Whether it wrote to a partition that does not show it."""
    ended = identities.ended(one)
    if ended is None:
        return True
    group = sample.group
    if group.partition in ended.partitions:
        # its offsets lie beyond the end, or else before the part that was read
        times = (m.timestamp_ms for m in group.tail.markers if m.offset < group.end)
        return ended.prepared_ms <= max(times, default=ended.prepared_ms)
    sampled = {partition.partition for partition in sample.partitions}
    return bool(ended.partitions & sampled - {segment.partition for segment in segments})


def _producer(one: TransactionId) -> ProducerEpoch:
    return ProducerEpoch(one.producer_id, one.epoch)


def _ongoing_wanted(suspects: Transactions, wanted: Iterable[TransactionId]) -> Refusal:
    ids = list(wanted)
    partitions = {segment.partition for one in ids for segment in suspects[one]}
    return Refusal(
        f"transactions in {', '.join(map(str, sorted(partitions)))} may have ended before the first"
        " look",
        Wanted.ONGOING,
        partitions=tuple(sorted(partitions)),
        producers=frozenset(map(_producer, ids)),
    )


def _late_markers(suspects: Transactions, late: Iterable[TransactionId]) -> Refusal:
    partitions = {segment.partition for one in late for segment in suspects[one]}
    return Refusal(
        f"a transaction in {', '.join(map(str, sorted(partitions)))} may have ended in other"
        " partitions long before",
        Wanted.ANOTHER_TRY,
        partitions=tuple(sorted(partitions)),
    )
