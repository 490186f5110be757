"""The continuation of an application: the restores of its warehouse, and their records."""

from collections.abc import Iterable, Mapping

from kstreams_assets.model.lineage import Continuation, Origins, OtherClusterError
from kstreams_assets.model.point import PointInstant, RecoveryPoint, in_order
from kstreams_assets.model.restored_ranges import RestoredRanges
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.restored_ranges import restored_onto


class Lineage:
    """Where one application continues, on its own cluster or on one to which it was restored."""

    def __init__(self, repo: Repository) -> None:
        self._repo, self._application_id = repo, repo.application_id
        self._points, self._restores = repo.points, repo.restores

    def restored_onto(self, cluster_id: str) -> RestoredRanges:
        """The records that restores of the warehouse, of any application, wrote on a cluster.

        Raises:
            StoredDataError: A table cannot be read, or contradicts itself.
            WarehouseError: The same.
        """
        return restored_onto(self._repo, cluster_id)

    def origins(self, clusters: Iterable[str] = ()) -> Origins:
        """The logs that restores wrote, on clusters with points, and on these."""
        found = {
            (one.target.topic, one.target.partition, one.target_topic_id): one
            for cluster_id in self._points.clusters() | {*clusters}
            for one in self.restored_onto(cluster_id).of_committed_restores.ranges
            if one.application_id == self._application_id and one.source == one.target
        }
        if not found:
            return Origins({})
        same = {
            restore.restore_id
            for restore in self._restores.all()
            if not any((restore.asked.get("original_headers") or {}).values())
        }
        return Origins({life: one for life, one in found.items() if one.restore_id in same})

    def continuation(self, *, cluster_id: str, topic_ids: Mapping[str, str]) -> Continuation | None:
        """The newest restore that wrote the current topics (ids by name) on a cluster.

        None if the application continues from no restore, or its recovery point was dropped.
        """
        origins = self.origins([cluster_id])
        ids = {one.restore_id for one in origins.written(topic_ids).values()}
        if not ids:
            return None
        continued = self._restores.continued()
        newest = next((one for one in continued if one.restore_id in ids), None)
        if newest is None or newest.target_cluster_id != cluster_id:
            return None
        loaded = self._points.load([newest.point_id], damaged_too=True)
        if not loaded or loaded[0].damaged:
            return None
        (point,) = loaded
        last = _last_before(self._points.instants(), point, cluster_id)
        before = point if last in (None, point.id) else self._points.load([last])[0]
        return Continuation(newest, point, before, origins)

    def require(
        self, newest: RecoveryPoint, *, cluster_id: str, topic_ids: Mapping[str, str]
    ) -> None:
        """Refuse a cluster that neither the backups nor a restore of them lead to.

        A restore leads to it if its group offsets were committed, its topics exist, and no recovery
        point was taken on them before the application moved to the cluster of the newest point.

        Args:
            newest: The newest recovery point of the application.
            cluster_id: The cluster that is about to be backed up.
            topic_ids: Ids of its topics, by name.

        Raises:
            OtherClusterError: The cluster is another one than that of the newest recovery point.
        """
        if newest.cluster_id == cluster_id:
            return
        written = self.origins([cluster_id]).written(topic_ids)
        left = self._topics_seen(cluster_id)
        if any(life_id not in left for life_id in {topic_ids[p.topic] for p in written}):
            return
        raise OtherClusterError(
            application_id=self._application_id, cluster_id=cluster_id, newest=newest
        )

    def _topics_seen(self, cluster_id: str) -> set[str]:
        """Ids of topics in the last point that was taken on a cluster."""
        there = [i for i in self._points.instants() if i.cluster_id == cluster_id]
        if not there:
            return set()
        last = max(there, key=in_order)
        loaded = self._points.load([last.id], damaged_too=True)
        return {cut.topic_id for point in loaded for cut in point.partitions}

    def needed_points(self) -> frozenset[str]:
        """Ids of points that must be kept: they are the source of unfinished restores, or logs with
        points continue their contents."""
        clusters = self._points.clusters()
        return self._restores.pinned() | {
            restore.point_id
            for restore in self._restores.continued()
            if restore.target_cluster_id in clusters and restore.point_id
        }


def _last_before(
    instants: Iterable[PointInstant], point: RecoveryPoint, cluster_id: str
) -> str | None:
    """The id of the last of the points, starting at one, that were taken on its own cluster before
    one was taken on the cluster to which it was restored."""
    last: str | None = None
    if point.cluster_id == cluster_id:  # topics were deleted and restored in place
        return None
    for instant in sorted(instants, key=in_order):
        if in_order(instant) < in_order(point):
            continue
        if instant.cluster_id != point.cluster_id:
            break
        last = instant.id
    return last
