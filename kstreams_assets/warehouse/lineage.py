"""Where an application continues after a restore: logs that a restore wrote, joined to older ones.

A restore writes the records of a recovery point into new topics. Those records are in the backups
already, under the offsets of the older logs; the offset map of the restore says which is which. So
the backups of the new logs start behind what the restore wrote.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.layout import Warehouse
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.warehouse.point import PartitionLife, RecoveryPoint, in_order
from kstreams_assets.warehouse.points import PointInstant, RecoveryPointTable
from kstreams_assets.warehouse.restored_ranges import RestoredRange, restored_onto
from kstreams_assets.warehouse.restores import RestoresTable, RestoreState, StoredRestore

_CONTINUED = frozenset({RestoreState.COMMITTED, RestoreState.FINISHED})
"""States of a restore from which its application continues: its group offsets are committed."""


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

    @classmethod
    def of(
        cls, warehouse: Warehouse, application_id: str, *, clusters: Iterable[str] = ()
    ) -> "Origins":
        """Those on clusters of which there are recovery points, and on these `clusters`."""
        wanted = RecoveryPointTable(warehouse).clusters(application_id) | {*clusters}
        found = {
            (one.target.topic, one.target.partition, one.target_topic_id): one
            for cluster_id in wanted
            for one in restored_onto(warehouse, cluster_id).of_committed_restores.ranges
            if one.application_id == application_id and one.source == one.target
        }
        if not found:
            return cls({})
        same = {
            restore.restore_id
            for restore in RestoresTable(warehouse).all(application_id)
            if not any((restore.asked.get("original_headers") or {}).values())
        }
        return cls({life: one for life, one in found.items() if one.restore_id in same})

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


def continued_restores(warehouse: Warehouse, application_id: str) -> list[StoredRestore]:
    """Restores from which an application can have continued, the one started last first."""
    restores = RestoresTable(warehouse).all(application_id)
    return [restore for restore in restores if is_continued_by(restore, application_id)]


def is_continued_by(restore: StoredRestore, application_id: str) -> bool:
    """Whether an application of this id can continue on what a restore wrote."""
    continues = restore.state in _CONTINUED and restore.matches_backup
    return continues and restore.group == application_id and not restore.is_of_drill


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


def continuation(
    warehouse: Warehouse,
    application_id: str,
    *,
    cluster_id: str,
    topic_ids: Mapping[str, str],
) -> Continuation | None:
    """The newest restore that wrote topics (ids by name) as they are on a cluster now.

    None where the application continues from no restore, or its recovery point is gone.
    """
    origins = Origins.of(warehouse, application_id, clusters=[cluster_id])
    ids = {one.restore_id for one in origins.written(topic_ids).values()}
    if not ids:
        return None
    continued = continued_restores(warehouse, application_id)
    newest = next((one for one in continued if one.restore_id in ids), None)
    if newest is None or newest.target_cluster_id != cluster_id:
        return None
    table = RecoveryPointTable(warehouse)
    loaded = table.load(application_id, [newest.point_id], damaged_too=True)
    if not loaded or loaded[0].damaged:
        return None
    (point,) = loaded
    last = _last_before(table.instants(application_id), point, cluster_id)
    before = point if last in (None, point.id) else table.load(application_id, [last])[0]
    return Continuation(newest, point, before, origins)


def _last_before(
    instants: Iterable[PointInstant], point: RecoveryPoint, cluster_id: str
) -> str | None:
    """The id of the last of the points from one on that were taken on its own cluster, before one
    was taken on the cluster to which it was restored."""
    last: str | None = None
    if point.cluster_id == cluster_id:  # topics were deleted and restored where they were
        return None
    for instant in sorted(instants, key=in_order):
        if in_order(instant) < in_order(point):
            continue
        if instant.cluster_id != point.cluster_id:
            break
        last = instant.id
    return last


def require_lineage(
    warehouse: Warehouse,
    application_id: str,
    *,
    newest: RecoveryPoint,
    cluster_id: str,
    topic_ids: Mapping[str, str],
) -> None:
    """Refuse a cluster to which neither the backups nor a restore of them lead.

    A restore leads to it if its group offsets were committed, topics that it wrote are there, and
    no recovery point was taken on them before the application went to the cluster of the newest
    point.

    Args:
        warehouse: With the backups.
        application_id: Whose they are.
        newest: Its newest recovery point.
        cluster_id: The cluster that is about to be backed up.
        topic_ids: Ids of its topics, by name.

    Raises:
        OtherClusterError: The cluster is another one than that of the newest recovery point.
    """
    if newest.cluster_id == cluster_id:
        return
    table = RecoveryPointTable(warehouse)
    origins = Origins.of(warehouse, application_id, clusters=[cluster_id])
    written = origins.written(topic_ids)
    left = _topics_seen(table, application_id, cluster_id)
    if any(life_id not in left for life_id in {topic_ids[p.topic] for p in written}):
        return
    raise OtherClusterError(application_id=application_id, cluster_id=cluster_id, newest=newest)


def _topics_seen(table: RecoveryPointTable, application_id: str, cluster_id: str) -> set[str]:
    """Ids of topics in the last point that was taken on a cluster."""
    there = [i for i in table.instants(application_id) if i.cluster_id == cluster_id]
    if not there:
        return set()
    last = max(there, key=in_order)
    loaded = table.load(application_id, [last.id], damaged_too=True)
    return {cut.topic_id for point in loaded for cut in point.partitions}


def points_of_restores(warehouse: Warehouse, application_id: str) -> frozenset[str]:
    """Ids of points that have to stay: unfinished restores are made from them, or logs of which
    there are points continue what they hold."""
    clusters = RecoveryPointTable(warehouse).clusters(application_id)
    return RestoresTable(warehouse).pinned(application_id) | {
        restore.point_id
        for restore in continued_restores(warehouse, application_id)
        if restore.target_cluster_id in clusters and restore.point_id
    }
