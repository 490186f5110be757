"""How far the backups of changelogs reach: a point cut now need not save what lies below."""

from collections.abc import Mapping, Sequence

from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.backup.chains import Chain, chains_of
from kstreams_assets.backup.damage import DamagedSpans
from kstreams_assets.backup.ledger import Ledger
from kstreams_assets.offsets import TopicPartitionId, outside
from kstreams_assets.recovery.held import HeldPosition


def held_positions(
    ledger: Ledger, application: StreamsApplication
) -> Mapping[TopicPartitionId, HeldPosition]:
    """Of each changelog partition, how far the recorded spans reach without a missing window.

    Counted from the begin of the newest life of the topic; a partition whose begin was never backed
    up is left out. Everything below the position was read before this is asked for.
    """
    topics = {topic.name for topic in application.with_role(TopicRole.CHANGELOG)}
    newest: dict[TopicPartitionId, Chain] = {}
    for chain in chains_of(ledger.folded_spans(topics, holes_matter=topics)).values():
        partition = chain.spans[0].partition
        other = newest.get(partition)
        if other is None or _last_window(other) < _last_window(chain):
            newest[partition] = chain
    damaged = ledger.damaged(topics, look_s=0)
    return {
        partition: HeldPosition(chain.spans[0].topic_id, _sound_end(chain, end, damaged))
        for partition, chain in newest.items()
        if (end := chain.unbroken_end) is not None
    }


def _sound_end(chain: Chain, end: int, damaged: DamagedSpans) -> int:
    """The end, or where the first span begins whose files do not match the ledger."""
    first = chain.spans[0]
    life = (first.partition.topic, first.partition.partition, first.topic_id)
    found = damaged.inside(life, 0, end)
    return end if found is None else min(end, found.start)


def proven_ranges(
    ledger: Ledger, application: StreamsApplication
) -> Mapping[TopicPartitionId, Sequence[tuple[str, int, int]]]:
    """Offsets of changelogs, as (topic id, start, end), that backups hold without a hole.

    What was saved of them with recovery points is there a second time.
    """
    topics = {topic.name for topic in application.with_role(TopicRole.CHANGELOG)}
    found: dict[TopicPartitionId, list[tuple[str, int, int]]] = {}
    damaged = ledger.damaged(topics, look_s=0)
    for span in ledger.folded_spans(topics, holes_matter=topics):
        end = span.end if span.first_hole is None else span.first_hole
        if span.complete and span.read_start < end:
            life = (span.partition.topic, span.partition.partition, span.topic_id)
            bad = damaged.ranges(life, span.read_start, end)
            found.setdefault(span.partition, []).extend(
                (span.topic_id, sound.start, sound.end)
                for sound in outside(span.read_start, end, bad)
            )
    return {partition: sorted(ranges) for partition, ranges in found.items()}


def _last_window(chain: Chain) -> int:
    return max(span.last_window.end_ms for span in chain.spans)
