"""Continuation after a restore: logs that a restore wrote, joined to older ones.

A restore writes the records of a recovery point into new topics. Those records are already in the
backups, under the offsets of the older logs; the offset map of the restore relates both. The
backups of the new logs therefore start after the restored records.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.model.point import PartitionIncarnation, RecoveryPoint
from kstreams_assets.model.restored_ranges import RestoredRange
from kstreams_assets.model.restores import StoredRestore
from kstreams_assets.offsets import OffsetRange, TopicPartitionId


class OtherClusterError(KStreamsAssetsError):
    """The cluster is not that of the backups, and no restore of them leads to it."""

    def __init__(self, *, application_id: str, cluster_id: str, newest: RecoveryPoint) -> None:
        super().__init__(
            f"This connection leads to cluster {cluster_id}, but the newest recovery point of"
            f" {application_id} ({newest.id}) is of cluster {newest.cluster_id}, and no committed"
            " restore of this warehouse wrote the current topics. Nothing was written.",
            remedy="Correct `connection` in the YAML. If you moved the application there by other"
            " means than a restore from this warehouse, accept the cluster once with"
            " kstreams-assets recovery-points take --new-lineage.",
        )
        self.cluster_id = cluster_id


class Origins:
    """The logs of an application that restores of this warehouse wrote under the same names.

    Only restores with committed group offsets and without added headers count: their records are
    those of the backups.
    """

    def __init__(self, by_life: Mapping[PartitionIncarnation, RestoredRange]) -> None:
        self._by_life = by_life

    def get(self, life: PartitionIncarnation) -> RestoredRange | None:
        """The restored range of a log; None if no restore wrote it."""
        return self._by_life.get(life)

    def items(self) -> Iterable[tuple[PartitionIncarnation, RestoredRange]]:
        """The logs, and the restored range of each."""
        return self._by_life.items()

    def written(self, topic_ids: Mapping[str, str]) -> Mapping[TopicPartitionId, RestoredRange]:
        """The partitions that a restore wrote, for topics with these ids, by name."""
        return {
            one.target: one
            for (topic, _, topic_id), one in self._by_life.items()
            if topic_ids.get(topic) == topic_id
        }

    def __bool__(self) -> bool:
        return bool(self._by_life)


@dataclass(frozen=True, slots=True)
class Continuation:
    """The restore from which an application continues on its current cluster.

    `point` is the restored recovery point, `last` the last one that was taken before the
    application continued: records between them were not restored.
    """

    restore: StoredRestore
    point: RecoveryPoint
    last: RecoveryPoint
    origins: Origins

    def is_left(self, life: PartitionIncarnation) -> bool:
        """Whether a log is the one that the restore replaced."""
        topic, partition, topic_id = life
        cut = self.point.cut(TopicPartitionId(topic, partition))
        return cut is not None and cut.topic_id == topic_id

    def not_restored(self, life: PartitionIncarnation, backed_up: int) -> OffsetRange:
        """Offsets of a replaced log, from the restored point up to the last known one.

        `backed_up` is the end of its backups. Later offsets are unknown.
        """
        topic, partition, topic_id = life
        id_ = TopicPartitionId(topic, partition)
        cut, last = self.point.cut(id_), self.last.cut(id_)
        start = cut.end if cut is not None else backed_up
        end = last.end if last is not None and last.topic_id == topic_id else backed_up
        return OffsetRange(start, max(start, end, backed_up))
