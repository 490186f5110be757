"""Logs that no longer hold what an earlier recovery point saw: truncated by an unclean election.

A replica that had not copied everything became the leader, and what it lacked is gone; new records
take the same offsets. The topic id stays, so the leader epoch decides (KIP-101, KIP-320): each
point notes in which epoch its ends were reported, and the leader knows where its log stops being
that of an epoch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.point import PartitionCut, topic_id_of, truncated_incarnation


@dataclass(frozen=True, slots=True)
class Truncation:
    """A log that had reached `end` at a recovery point, and keeps of that what lies below `at`."""

    partition: TopicPartitionId
    at: int
    end: int

    def __str__(self) -> str:
        return (
            f"the log of {self.partition} was truncated: it had reached offset {self.end}, and of"
            f" that only what lies below offset {self.at} is left (unclean leader election)"
        )


@dataclass(frozen=True, slots=True)
class Incarnations:
    """The incarnation of each partition's log now, and the logs truncated since the point."""

    now: Mapping[TopicPartitionId, str]
    truncated: tuple[Truncation, ...] = ()


def incarnations(
    cluster: KafkaCluster, topic_ids: Mapping[str, str], known: Iterable[PartitionCut]
) -> Incarnations:
    """The incarnation of each partition that earlier cuts know, of topics that still have their id.

    Only as good as the leaders that answer: `KafkaCluster.leader_doubt` has to find nothing
    afterwards. A cut without a leader epoch shows a truncation only while the log ends below it.
    """
    cuts = {cut.id: cut for cut in known if topic_ids.get(cut.topic) == topic_id_of(cut.topic_id)}
    if not cuts:
        return Incarnations({})
    reached = dict(cluster.high_watermarks(cuts))
    epochs = {p: cut.leader_epoch for p, cut in cuts.items() if cut.leader_epoch is not None}
    reached |= cluster.epoch_ends(epochs)
    truncated = {
        p: Truncation(p, max(reached[p], 0), cut.end)
        for p, cut in cuts.items()
        if reached[p] < cut.end
    }
    now = {
        p: truncated_incarnation(cut.topic_id, cluster.reported_epoch(p) or 0)
        if p in truncated
        else cut.topic_id
        for p, cut in cuts.items()
    }
    return Incarnations(now, tuple(truncated.values()))
