"""Plans a restore from the warehouse and the target cluster; writes nothing anywhere."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from kstreams_assets.app.model import Store, TopicRole, TopicRoles
from kstreams_assets.checks import Finding
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.ktables.store_format import StoreFormat, StoreKind, format_of
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.restore.choice import Choice, Unfinished, choose
from kstreams_assets.restore.placed_inputs import excluded_topic, placed
from kstreams_assets.restore.plan import PlacedTopic, RestorePlan, TopicPlan
from kstreams_assets.restore.planning import Findings, make_plan, plan_topics, restore_id
from kstreams_assets.restore.preconditions import refusals
from kstreams_assets.restore.request import ChangelogSource, RestoreMode, RestoreRequest
from kstreams_assets.restore.selection import excluded_with_offsets, reduced, roles_at, select
from kstreams_assets.restore.snapshots import (
    SnapshotState,
    begun_otherwise,
    from_snapshots,
    snapshot_files,
    snapshot_state,
)
from kstreams_assets.restore.target import inspect_target, refused_topics
from kstreams_assets.restore.target_topics import (
    LARGEST_BATCH,
    MAX_MESSAGE_BYTES,
    TargetNames,
    target_names,
)
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.contents import Contents
from kstreams_assets.warehouse.judge import PointStatus
from kstreams_assets.warehouse.point import RecoveryPoint
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.records import SpanFile, largest_batch
from kstreams_assets.warehouse.restores import (
    RestoresTable,
    RestoreState,
    StoredRestore,
    writers_of,
)
from kstreams_assets.warehouse.table import require_backup


def misread_buffers(
    stores: Iterable[Store], formats: Mapping[str, StoreFormat], restored: Collection[str]
) -> Iterable[str]:
    """Notes on the join buffers whose changelogs are among the `restored` source topics."""
    for store in stores:
        if store.changelog not in restored:
            continue
        if format_of(store.name, formats).kind is StoreKind.JOIN_BUFFER:
            yield (
                f"Store {store.name} buffers a stream-table join with a grace period. Its log is"
                " restored as it was, but Kafka Streams (4.3.1) misreads such a log whenever it"
                " reads it back, also on the source after a lost state directory: records that"
                " waited at the point are never joined, later ones are joined without waiting."
                f" With {store.changelog} excluded, later ones wait as they should; what waited"
                " must then be sent again, before anything new: the store's KTable has it."
            )


_INTERNAL = TopicRoles({TopicRole.REPARTITION, TopicRole.CHANGELOG})
_ALL = (OffsetRange(0, 2**63 - 1),)
_ENDED = frozenset({RestoreState.FINISHED, RestoreState.ROLLED_BACK})


def plan_restore(
    settings: ApplicationSettings, request: RestoreRequest, target: KafkaConnection
) -> RestorePlan:
    """What a restore would do, and everything that stands against it, listed together.

    The three strategies of restoring a Kafka Streams application are each a mode: full restore
    with its state is `state`; rebuild from the input is `rebuild`; rebuild from the input up to a
    point in time is `inputs_until` with `as_of`. What a user does wrong, what is missing and what
    the target refuses are refusals of the plan. Whether topics that are not on the target yet may
    be written and read shows only once they are there.

    Raises:
        ClusterUnavailableError: The target did not answer in time.
        AuthenticationFailedError: The target refused the credentials.
        NewerLayoutError: A newer release wrote the warehouse.
        WarehouseError: There is no warehouse, or its ledger is gone.
    """
    require_backup(settings.warehouse, settings.application_id)
    with KafkaCluster(target) as cluster:
        return _Planner(settings, request, cluster).plan()


def plan_again(
    settings: ApplicationSettings, plan: RestorePlan, target: KafkaConnection
) -> RestorePlan:
    """A plan as it is now: the same request for the same recovery point.

    Raises what `plan_restore` raises.
    """
    if plan.point is None:
        return plan
    request = plan.request.model_copy(update={"point_id": plan.point.id, "as_of_ms": None})
    return replace(plan_restore(settings, request, target), request=plan.request)


class _Planner:
    """One plan."""

    def __init__(
        self, settings: ApplicationSettings, request: RestoreRequest, cluster: KafkaCluster
    ) -> None:
        self._settings, self._request, self._cluster = settings, request, cluster
        self._application_id = settings.application_id
        self._backed_up = {topic.name for topic in settings.topics}
        self._points = RecoveryPointTable(settings.warehouse)
        self._contents = Contents.of(settings, look_s=math.inf)
        self._cluster_id = cluster.cluster_id()
        self._there = RestoresTable(settings.warehouse).onto(self._cluster_id)
        self._restores = [r for r in self._there if r.application_id == self._application_id]

    def plan(self) -> RestorePlan:
        cluster_id = self._cluster_id
        snapshots = self._snapshots()
        choice = choose(
            self._points.instants(self._application_id),
            self._judge(),
            self._request,
            unfinished=self._unfinished(cluster_id),
            snapshots=snapshots,
        )
        point = self._load(choice)
        names = self._names(point)
        found = Findings(
            application_id=self._application_id,
            request=self._request,
            names=names,
            target=inspect_target(
                self._cluster, [*names.targets.values(), *names.placed.values()], names.group
            ),
            point=point,
            status=choice.status if point else None,
            stored=self._stored(point, cluster_id),
            refusals=choice.refusals,
            notes=choice.notes,
        )
        if point is not None:
            found = self._with_placed(self._with_holdings(found, point), point)
            if snapshots is not None:
                found = self._with_snapshots(found, point, snapshots)
        topics, notes = plan_topics(found)
        found = replace(found, notes=(*found.notes, *notes))
        against = refusals(
            found,
            topics,
            largest=self._too_large(found, topics),
            writers=writers_of(self._there),
        )
        against += begun_otherwise(found, topics)
        against += refused_topics(self._cluster, found.target, topics)
        return make_plan(found, topics, refusals=against)

    def _with_holdings(self, found: Findings, point: RecoveryPoint) -> Findings:
        selection = select(
            self._settings.application,
            self._backed_up,
            point,
            self._request,
            found.names.excluded,
        )
        holdings = self._contents.at(
            point, (p for topic in selection.topics for p in topic.partitions)
        )
        lives = {t.source: t.partitions[0].cut.topic_id for t in selection.topics}
        facts = self._contents.facts(point, lives)
        notes = misread_buffers(
            self._settings.application.stores,
            self._settings.store_formats,
            {topic.source for topic in selection.topics},
        )
        return replace(
            found,
            selection=selection,
            holdings=holdings,
            facts=facts,
            notes=(*found.notes, *notes),
        )

    def _with_placed(self, found: Findings, point: RecoveryPoint) -> Findings:
        """Where the group goes on in topics that are excluded."""
        inputs_are_at = self._request.inputs_are_at
        if inputs_are_at is None:
            return found
        against: list[Finding] = []
        topics: list[PlacedTopic] = []
        excluded = excluded_with_offsets(point, self._request, found.names.excluded)
        for source in excluded:
            topic, refused = placed(
                excluded_topic(
                    self._settings.warehouse,
                    self._cluster,
                    source,
                    found.names.placed[source],
                    found.target.topics,
                    writers_of(self._there),
                ),
                point,
                roles_at(self._settings.application, point),
                inputs_are_at=inputs_are_at,
                target_cluster_id=self._cluster_id,
            )
            against += refused
            topics += [topic] if topic is not None else []
        return replace(found, placed=tuple(topics), refusals=(*found.refusals, *against))

    def _with_snapshots(
        self, found: Findings, point: RecoveryPoint, state: SnapshotState
    ) -> Findings:
        """Snapshots in place of the raw logs of changelogs."""
        given = from_snapshots(
            self._settings,
            state,
            point,
            found.selection.topics,
            raw=found.holdings,
            facts=found.facts,
        )
        return replace(
            found,
            holdings={**found.holdings, **given.holdings},
            snapshots=given.sources,
            refusals=(*found.refusals, *given.refusals),
            notes=(*found.notes, *given.notes),
        )

    def _snapshots(self) -> SnapshotState | None:
        """The snapshots there are, None where changelogs come from the raw log."""
        request = self._request
        if request.changelog_source is ChangelogSource.RAW or request.mode is not RestoreMode.STATE:
            return None
        return snapshot_state(
            self._settings, excluded=self._names(None).excluded, topics_at=self._topics_at
        )

    def _topics_at(self, ids: Collection[str]) -> dict[str, set[str]]:
        points = self._points.load(self._application_id, sorted(ids))
        return {point.id: {cut.topic for cut in point.partitions} for point in points}

    def _judge(self) -> Callable[[Sequence[str]], Sequence[PointStatus]]:
        """Judges points by what this mode needs of them."""

        def judge(ids: Sequence[str]) -> list[PointStatus]:
            loaded = {
                p.id: p for p in self._points.load(self._application_id, ids, damaged_too=True)
            }
            points = [loaded[point_id] for point_id in ids if point_id in loaded]
            return self._contents.statuses([self._reduced(point) for point in points])

        return judge

    def _reduced(self, point: RecoveryPoint) -> RecoveryPoint:
        roles = roles_at(self._settings.application, point)
        return reduced(point, roles, self._request, self._names(point).excluded)

    def _load(self, choice: Choice) -> RecoveryPoint | None:
        if choice.status is None:
            return None
        return next(iter(self._points.load(self._application_id, [choice.status.id])), None)

    def _names(self, point: RecoveryPoint | None) -> TargetNames:
        roles = roles_at(self._settings.application, point)
        internal = {name for name, of_topic in roles.items() if of_topic and of_topic <= _INTERNAL}
        return target_names(self._application_id, roles, internal, self._request)

    def _restore_id(self, point_id: str, cluster_id: str) -> str:
        return restore_id(self._application_id, point_id, cluster_id, self._request)

    def _stored(self, point: RecoveryPoint | None, cluster_id: str) -> StoredRestore | None:
        if point is None:
            return None
        wanted = self._restore_id(point.id, cluster_id)
        return next((r for r in self._restores if r.restore_id == wanted), None)

    def _unfinished(self, cluster_id: str) -> Unfinished | None:
        """The newest restore of this request to this target that has left topics there."""
        there = {topic.topic_id for topic in self._cluster.metadata().topics.values()}
        for restore in self._restores:
            same = self._restore_id(restore.point_id, cluster_id) == restore.restore_id
            left = any(topic.target_topic_id in there for topic in restore.topics)
            if same and left and restore.state not in _ENDED:
                return Unfinished(restore.restore_id, restore.point_id)
        return None

    def _too_large(self, found: Findings, topics: Sequence[TopicPlan]) -> dict[str, int]:
        """The largest record of topics that are there and would not take it."""
        sizes: dict[str, int] = {}
        for topic in topics:
            there = found.target.topics.get(topic.target)
            limit = int(there.effective_configs.get(MAX_MESSAGE_BYTES, 0)) if there else 0
            if not 0 < limit < LARGEST_BATCH:
                continue
            for files, ranges in self._records_of(topic):
                largest = largest_batch(files, ranges, above=limit)
                if largest is not None:
                    sizes[topic.source] = max(largest, sizes.get(topic.source, 0))
        return sizes

    def _records_of(
        self, topic: TopicPlan
    ) -> Iterable[tuple[Sequence[SpanFile], Sequence[OffsetRange]]]:
        """Where the records to restore are."""
        if topic.snapshot is None:
            return [(partition.files, partition.ranges) for partition in topic.partitions]
        table = self._settings.warehouse.ktable(self._application_id, topic.snapshot.store)
        return [(snapshot_files(table, topic.snapshot.window), _ALL)]
