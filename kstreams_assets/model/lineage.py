"""Where an application continues after a restore: logs that a restore wrote, joined to older ones.

A restore writes the records of a recovery point into new topics. Those records are in the backups
already, under the offsets of the older logs; the offset map of the restore says which is which. So
the backups of the new logs start behind what the restore wrote.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.model.point import PartitionLife, RecoveryPoint
from kstreams_assets.model.restored_ranges import RestoredRange
from kstreams_assets.model.restores import StoredRestore
from kstreams_assets.offsets import OffsetRange, TopicPartitionId


class OtherClusterError(KStreamsAssetsError):
    """The cluster is not the one of the backups, and no restore of them leads to it."""

    def __init__(self, *, application_id: str, cluster_id: str, newest: RecoveryPoint) -> None:
        super().__init__(
            f"This connection leads to cluster {cluster_id}, but the newest recovery point of"
            f" {application_id} ({newest.id}) is of cluster {newest.cluster_id}, and no committed"
            " restore of this warehouse wrote the topics that are there now. Nothing was written.",
            remedy="Correct `connection` in the YAML. If the application now runs there without a"
            " restore from this warehouse, accept the cluster once with kstreams-assets"
            " recovery-points take --new-lineage.",
        )
        self.cluster_id = cluster_id


class Origins:
    """The logs of an application that restores of this warehouse wrote under the same names.

    Counted are restores whose group offsets are committed and that added no header to a record:
    then the records are those of the backups.
    """

    def __init__(self, by_life: Mapping[PartitionLife, RestoredRange]) -> None:
        self._by_life = by_life

    def get(self, life: PartitionLife) -> RestoredRange | None:
        """What a restore wrote of a log; None where no restore did."""
        return self._by_life.get(life)

    def items(self) -> Iterable[tuple[PartitionLife, RestoredRange]]:
        """The logs, and what a restore wrote of each."""
        return self._by_life.items()

    def written(self, topic_ids: Mapping[str, str]) -> Mapping[TopicPartitionId, RestoredRange]:
        """Of topics with these ids, by name, the partitions that a restore wrote."""
        return {
            one.target: one
            for (topic, _, topic_id), one in self._by_life.items()
            if topic_ids.get(topic) == topic_id
        }

    def __bool__(self) -> bool:
        return bool(self._by_life)


@dataclass(frozen=True, slots=True)
class Continuation:
    """The restore from which an application continues on its present cluster.

    `point` is the recovery point that was restored, `last` the last one that was taken before the
    application continued: what lies between them did not get into the restore.
    """

    restore: StoredRestore
    point: RecoveryPoint
    last: RecoveryPoint
    origins: Origins

    def is_left(self, life: PartitionLife) -> bool:
        """Whether a log is the one that the restore took the place of."""
        topic, partition, topic_id = life
        cut = self.point.cut(TopicPartitionId(topic, partition))
        return cut is not None and cut.topic_id == topic_id

    def not_restored(self, life: PartitionLife, backed_up: int) -> OffsetRange:
        """Offsets of a log that was left behind, from the restored point up to the last known one.

        `backed_up` is how far its backups reach. What came after that is not known to anybody.
        """
        topic, partition, topic_id = life
        id_ = TopicPartitionId(topic, partition)
        cut, last = self.point.cut(id_), self.last.cut(id_)
        start = cut.end if cut is not None else backed_up
        end = last.end if last is not None and last.topic_id == topic_id else backed_up
        return OffsetRange(start, max(start, end, backed_up))
