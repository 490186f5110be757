"""Plans a restore from the warehouse and the target cluster. Writes nothing."""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kstreams_assets.app.model import Store
from kstreams_assets.app.names import name_problem
from kstreams_assets.app.store_format import StoreFormat, StoreKind, format_of
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.checks import Finding
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.data_files import SpanFile
from kstreams_assets.model.point import RecoveryPoint, WantedPartition, topic_id_of
from kstreams_assets.model.restorability import PointStatus, Restorability
from kstreams_assets.model.restores import (
    InputsAt,
    PlacedTopic,
    RestoreMode,
    RestoreState,
    StoredRestore,
    StoredTopic,
    writers_of,
)
from kstreams_assets.model.spans import NotedFacts
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.repository.contents import PartitionContents
from kstreams_assets.repository.records import largest_batch
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import StoredSnapshots
from kstreams_assets.restore import soundness
from kstreams_assets.restore.command_sources import command_notes
from kstreams_assets.restore.plan import PartitionPlan, RestorePlan, TopicPlan
from kstreams_assets.restore.preconditions import Facts, blockers
from kstreams_assets.restore.request import ChangelogSource, RestoreRequest
from kstreams_assets.restore.selection import (
    Choice,
    OfWindow,
    WantedTopic,
    choose,
    excluded_with_offsets,
    reduced,
    roles_at,
    select,
)
from kstreams_assets.restore.snapshots import SnapshotState, from_snapshots, snapshot_state
from kstreams_assets.restore.target import TargetTopic, inspect_target, refused_topics
from kstreams_assets.restore.target_topics import (
    LARGEST_BATCH,
    MAX_MESSAGE_BYTES,
    REPARTITION_CONFIGS,
    RestoredConfigs,
    TargetNames,
    excluded_topic,
    of_existing_topic,
    of_new_topic,
    placed,
    target_names,
)
from kstreams_assets.restore.topic_configs import (
    Validate,
    differences,
    own_configs,
    without_refused,
)
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import few

_FEW = 5


def restore_id(
    application_id: str, point_id: str, target_cluster_id: str, request: RestoreRequest
) -> str:
    """Return the id of a restore: the same request for the same point and target has one id."""
    headers = request.original_headers
    parts = [
        application_id,
        point_id,
        request.mode.value,
        request.inputs.value,
        target_cluster_id,
        [request.application_id or application_id, request.prefix, sorted(request.topics.items())],
        sorted(set(request.exclude)),
        [headers.offset, headers.timestamp, headers.partition],
    ]
    if request.changelog_source is not ChangelogSource.RAW:
        # Only then: a restore that an earlier release has started keeps its id.
        parts.append(request.changelog_source.value)
    if request.inputs_are_at is not None:
        parts.append(f"inputs {request.inputs_are_at}")
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return f"{point_id}-{digest[:8]}"


def plan_topics(found: Facts) -> tuple[tuple[TopicPlan, ...], tuple[str, ...]]:
    """Return the topics to restore, by source name, and notes on them."""
    topics, notes = [], []
    for wanted in found.selection.topics:
        topic, of_topic = _topic_plan(found, wanted)
        topics.append(topic)
        notes += of_topic
    lowered = [t.source for t in topics if not t.exists and t.replication_factor < _asked(found, t)]
    if lowered and found.request.replication_factor is None:
        notes.append(
            f"The target has {found.target.brokers} broker(s): {few(lowered, _FEW)} get(s) fewer"
            " replicas than on the source."
        )
    return tuple(topics), tuple(notes)


def make_plan(
    found: Facts, topics: Sequence[TopicPlan], *, blockers: Iterable[Finding] = ()
) -> RestorePlan:
    """Return the plan with its blockers, each of them once."""
    point_id = found.point.id if found.point else ""
    identity = restore_id(found.application_id, point_id, found.target.cluster_id, found.request)
    every = (*found.blockers, *found.names.blockers, *found.selection.blockers, *blockers)
    return RestorePlan(
        restore_id=identity if found.point else "",
        application_id=found.application_id,
        group=found.names.group,
        target_cluster_id=found.target.cluster_id,
        target_bootstrap_servers=found.target.bootstrap_servers,
        request=found.request,
        point=found.point,
        restorability=_restorability(found),
        topics=tuple(topics),
        blockers=tuple(dict.fromkeys(every)),
        notes=tuple(dict.fromkeys((*found.notes, *found.selection.notes, *_notes(found, topics)))),
        group_offsets=dict(found.target.group_offsets),
        placed=found.placed,
    )


def _restorability(found: Facts) -> Restorability:
    if found.status is None:
        return Restorability.NOTHING
    if any(topic.inputs_are_at is InputsAt.LATEST for topic in found.placed):
        return Restorability.UNPROVEN
    return found.status.restorability


def _topic_plan(found: Facts, wanted: WantedTopic) -> tuple[TopicPlan, tuple[str, ...]]:
    target = found.names.targets[wanted.source]
    there = found.target.topics.get(target)
    mine = found.of_this_restore(target)
    noted = found.facts.get(wanted.source)
    replicas = there.replication_factor if there else _replicas(found, noted)
    notes: tuple[str, ...] = ()
    if there is None:
        defaults = found.target.topic_defaults
        source, notes = _source_configs(wanted, noted, defaults)
        configs = of_new_topic(wanted.source, source, replication_factor=replicas, known=defaults)
        notes += configs.notes
    else:
        configs = of_existing_topic(there.explicit_configs, there.effective_configs)
        if noted is not None and mine is None:
            notes = differences(target, noted.facts, there.effective_configs, configs.put_back)
    if mine is not None:
        # They are relaxed already, so only the recorded values are the original ones.
        configs = RestoredConfigs(configs.configs, mine.put_back)
    held = [found.holdings.get(p.cut.id, PartitionContents()) for p in wanted.partitions]
    topic = TopicPlan(
        source=wanted.source,
        target=target,
        roles=wanted.roles,
        partitions=tuple(
            _partition(target, partition, holding, _base(there, mine, partition.cut.partition))
            for partition, holding in zip(wanted.partitions, held, strict=True)
        ),
        replication_factor=replicas,
        target_topic_id=None if there is None else there.topic_id,
        configs=configs.configs,
        put_back=configs.put_back,
        windows=len(frozenset[str]().union(*(holding.windows for holding in held))),
        snapshot=found.snapshots.get(wanted.source),
    )
    return topic, notes


def _partition(
    target: str, wanted: WantedPartition, held: PartitionContents, base: int
) -> PartitionPlan:
    return PartitionPlan(
        source=wanted.cut.id,
        target=TopicPartitionId(target, wanted.cut.partition),
        topic_id=wanted.cut.topic_id,
        ranges=wanted.ranges,
        files=held.files,
        records=held.records,
        bytes=held.bytes,
        saved_records=held.saved_records,
        committed=wanted.committed,
        base_offset=base,
    )


def _base(there: TargetTopic | None, mine: StoredTopic | None, partition: int) -> int:
    if mine is not None and partition < len(mine.base_offsets):
        return mine.base_offsets[partition]
    return there.ends[partition] if there is not None and partition < there.partitions else 0


def _source_configs(
    wanted: WantedTopic, noted: NotedFacts | None, defaults: Mapping[str, str]
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    topic = wanted.source
    if noted is None and wanted.roles.in_flight_only:
        return REPARTITION_CONFIGS, (
            f"The configs of {topic} were never backed up. It gets the configs of a Kafka Streams"
            " repartition topic.",
        )
    if noted is None:
        return {}, ()  # the plan has a blocker, see `preconditions`
    if noted.facts.topic_id != topic_id_of(wanted.partitions[0].cut.topic_id):
        note = (
            f"The configs of {topic} come from another topic of this name, because it was"
            " recreated."
        )
    else:
        note = ""
    configs, notes = own_configs(topic, noted.facts, defaults)
    return configs, (note, *notes) if note else notes


def _replicas(found: Facts, noted: NotedFacts | None) -> int:
    asked = found.request.replication_factor
    if asked is None:
        asked = noted.facts.replication_factor if noted else 1
    return max(1, min(asked, found.target.brokers))


def _asked(found: Facts, topic: TopicPlan) -> int:
    noted = found.facts.get(topic.source)
    return noted.facts.replication_factor if noted else 1


def _repeats(point: RecoveryPoint | None) -> str:
    """Return how much a restore of an at_least_once point processes twice."""
    most = {} if point is None else point.repeats_at_most
    of_each = ", ".join(f"{count:,} of {topic}" for topic, count in sorted(most.items()) if count)
    if not of_each:
        return "The point is at_least_once, but no record will be processed again."
    return (
        "The point is at_least_once: no record is lost, and some records are processed twice, at"
        f" most {of_each}."
    )


def _notes(found: Facts, topics: Sequence[TopicPlan]) -> Iterable[str]:
    request, status = found.request, found.status
    if status is not None and request.mode is RestoreMode.STATE:
        if status.restorability is Restorability.AT_LEAST_ONCE:
            yield _repeats(found.point)
        elif status.restorability is Restorability.UNPROVEN:
            yield f"The state is possibly incomplete. {status.reason}"
    yield from map(_about_placed, found.placed)
    later = [t.source for t in topics if not t.exists and _is_later(found.facts.get(t.source))]
    if later:
        yield f"Configs were recorded at the end of a window after the point: {few(later, _FEW)}."
    for topic in topics:
        held = [
            found.holdings.get(partition.source, PartitionContents())
            for partition in topic.partitions
        ]
        if lost := sum(holding.lost for holding in held):
            yield f"Kafka had lost {lost:,} offset(s) of {topic.source} before they were backed up."
        if expired := sum(holding.expired for holding in held):
            yield (
                f"{expired:,} offset(s) of {topic.source} are not restored, because they expired"
                " by policy (`keep`). The application does not need them to continue."
                + (
                    " A rebuild from the remaining records results in a different state."
                    if request.mode.recomputes
                    else ""
                )
            )
    if found.names.group != found.application_id:
        yield (
            f"The application continues as {found.names.group}. Set its application.id, and grant"
            " its user the rights on the group, topics and transactional ids with that prefix."
            " Schema registry subjects of internal topics change as well."
        )
    group = found.target.group
    if request.before_command is not None and group is not None and not group.is_empty:
        yield (
            f"Group {found.names.group} is in use on the target (state {group.state}). The before"
            " command must stop the application. If its members do not leave within"
            f" {request.command_timeout_s:g} s, the restore is refused."
        )
    headers = request.original_headers
    if topics and (headers.offset or headers.timestamp or headers.partition):
        yield (
            "Headers are added to every record. They are visible to applications that read headers."
        )
    if topics and found.target.group_offsets and not (found.stored and found.stored.committed):
        count = len(found.target.group_offsets)
        yield (
            f"Group {found.names.group} has {count} committed offset(s) on the target. They are"
            " saved for `restore previous-offsets` and then replaced."
        )


def _about_placed(topic: PlacedTopic) -> str:
    where = f"Topic {topic.target} is not changed on the target"
    if topic.inputs_are_at is InputsAt.LATEST:
        return (
            f"{where}: the group continues at its current end ({len(topic.offsets)} partition(s))."
            " Its existing records are never read, so records that the application had not read"
            " are lost."
        )
    by = f", by the offset map of restore {topic.written_by} of {topic.writer_application_id}"
    return (
        f"{where}: the group continues at the same records ({len(topic.offsets)}"
        f" partition(s){by if topic.written_by else ''})."
    )


def _is_later(noted: NotedFacts | None) -> bool:
    return noted is not None and noted.later


def misread_buffers(
    stores: Iterable[Store], formats: Mapping[str, StoreFormat], restored: Collection[str]
) -> Iterable[str]:
    """Yield notes on the join buffers whose changelogs are among the `restored` source topics."""
    for store in stores:
        if store.changelog not in restored:
            continue
        if format_of(store.name, formats).kind is StoreKind.JOIN_BUFFER:
            yield (
                f"Store {store.name} buffers a stream-table join with a grace period. Its log is"
                " restored unchanged, but Kafka Streams (4.3.1, 4.4.0) misreads such a log whenever"
                " it reads it back, also on the source after a lost state directory: records that"
                " waited at the point are never joined, later ones are joined without waiting."
                f" With {store.changelog} excluded, later records wait as they should. Records that"
                " waited must then be sent again, before anything new: the store's KTable has them."
            )


_ALL = (OffsetRange(0, 2**63 - 1),)
_ENDED = frozenset({RestoreState.FINISHED, RestoreState.ROLLED_BACK})


INSPECT_TIMEOUT_S: Final = 0.2
"""How long a plan that is only shown inspects the files that it needs."""


def plan_restore(
    settings: ApplicationSettings,
    request: RestoreRequest,
    target: KafkaConnection,
    *,
    inspect_timeout_s: float = math.inf,
) -> RestorePlan:
    """Plan a restore, with all blockers listed together.

    Each strategy for restoring a Kafka Streams application is a mode. `state` is a full restore
    with its state. `rebuild` rebuilds from the input. `inputs_until` with `as_of` rebuilds from
    the input up to a point in time. A fourth mode, `logs`, restores inputs and outputs for other
    readers. Invalid requests, missing data and refusals of the target are blockers of the plan.
    Whether missing topics may be written and read is known only once they exist.

    Args:
        settings: The application, with its warehouse.
        request: The options of the restore.
        target: The cluster to write to.
        inspect_timeout_s: How long needed files on a disk are inspected for existence and size.
            The plan reports how many were not inspected.

    Raises:
        ClusterUnavailableError: The target did not answer in time.
        AuthenticationFailedError: The target refused the credentials.
        NewerLayoutError: A newer release wrote the warehouse.
        WarehouseError: There is no warehouse, or its ledger is gone.
        ConfigurationError: The schedule has no started window with this key.
    """
    Repository.open(settings).require_backup()
    with KafkaCluster(target) as cluster:
        return _Planner(settings, request, cluster, inspect_timeout_s).plan()


def plan_again(
    settings: ApplicationSettings, plan: RestorePlan, target: KafkaConnection
) -> RestorePlan:
    """Plan the same request for the same recovery point again, with the present state.

    Raises what `plan_restore` raises.
    """
    if plan.point is None:
        return plan
    request = plan.request.model_copy(
        update={"point_id": plan.point.id, "as_of_ms": None, "window": None}
    )
    return replace(plan_restore(settings, request, target), request=plan.request)


class _Planner:
    """One plan."""

    def __init__(
        self,
        settings: ApplicationSettings,
        request: RestoreRequest,
        cluster: KafkaCluster,
        inspect_timeout_s: float,
    ) -> None:
        if request.accept is None:
            least = Repository.open(settings).points.yardstick(settings.guarantee).least
            request = request.model_copy(update={"accept": least})
        self._settings, self._request, self._cluster = settings, request, cluster
        self._application_id = settings.application_id
        self._backed_up = {topic.name for topic in settings.topics}
        self._view = Repository.open(settings).reading(
            settings, inspect_timeout_s=0, requested_inspect_timeout_s=inspect_timeout_s
        )
        self._cluster_id = cluster.cluster_id()
        self._there = self._view.restores.onto(self._cluster_id)
        self._restores = [r for r in self._there if r.application_id == self._application_id]

    def plan(self) -> RestorePlan:
        plan = self._plan()
        if self._view.files_damaged:
            # Other damage affects the messages about this point and others.
            self._view = Repository.open(self._settings).reading(
                self._settings, inspect_timeout_s=math.inf
            )
            plan = self._plan()
        return plan

    def _of_window(self) -> OfWindow | None:
        if self._request.window is None:
            return None
        calendar = WindowCalendar(self._settings.windows)
        return OfWindow(calendar.started(self._request.window), calendar.key_at)

    def _is_followed(self) -> bool:
        from kstreams_assets.backup.follow import trouble_of

        return not trouble_of(self._settings)

    def _plan(self) -> RestorePlan:
        snapshots = self._snapshots()
        choice = choose(
            self._view.points.instants(),
            self._statuses,
            self._request,
            unfinished=self._unfinished(),
            snapshots=snapshots,
            beyond=self._beyond,
            is_followed=self._is_followed,
            of_window=self._of_window(),
        )
        point = self._load(choice)
        names = self._names(point)
        found = Facts(
            application_id=self._application_id,
            request=self._request,
            names=names,
            target=inspect_target(
                self._cluster, [*names.targets.values(), *names.placed.values()], names.group
            ),
            point=point,
            status=choice.status if point else None,
            stored=self._stored(point),
            blockers=choice.blockers,
            notes=choice.notes,
        )
        if point is not None:
            found = self._with_placed(self._with_holdings(found, point), point)
            if snapshots is not None:
                found = self._with_snapshots(found, point, snapshots)
        topics, notes = plan_topics(found)
        topics, of_configs = without_refused(topics, self._validate(found))
        notes = (*notes, *of_configs)
        if unseen := self._view.files_unseen:
            notes = (
                *notes,
                f"{unseen:,} required files were not inspected within the time limit. A restore"
                " inspects all files before it creates topics.",
            )
        of_commands = command_notes(
            self._settings, self._request, group=names.group, stored=found.stored
        )
        notes = (*notes, *of_commands)
        found = replace(found, notes=(*found.notes, *notes))
        against = blockers(
            found,
            topics,
            largest=self._too_large(found, topics),
            writers=writers_of(self._there),
        )
        against += refused_topics(self._cluster, found.target, topics)
        against += self._unsound(topics, point)
        return make_plan(found, topics, blockers=against)

    def _validate(self, found: Facts) -> Validate:
        """Ask the target which of these topics it would create; see `refused_topics`."""

        def validate(specs: Sequence[TopicSpec]) -> Mapping[str, KStreamsAssetsError]:
            legal = [
                spec
                for spec in specs
                if spec.name not in found.target.unseen and name_problem(spec.name) is None
            ]
            return self._cluster.validate_topics(legal)

        return validate

    def _unsound(self, topics: Sequence[TopicPlan], point: RecoveryPoint | None) -> list[Finding]:
        """Return damage of the warehouse that is found without reading files."""
        repo = Repository.open(self._settings)
        verified = soundness.stored_verdict(repo)
        return [
            *soundness.of_tables(repo, verified),
            *soundness.of_plan(repo.warehouse, verified, topics, point.id if point else None),
        ]

    def _with_holdings(self, found: Facts, point: RecoveryPoint) -> Facts:
        selection = select(
            self._settings.application,
            self._backed_up,
            point,
            self._request,
            found.names.excluded,
        )
        holdings = self._view.contents(
            point, (p for topic in selection.topics for p in topic.partitions)
        )
        lives = {t.source: t.partitions[0].cut.topic_id for t in selection.topics}
        facts = self._view.facts(point, lives)
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

    def _with_placed(self, found: Facts, point: RecoveryPoint) -> Facts:
        """Add the positions of the group in excluded topics."""
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
        return replace(found, placed=tuple(topics), blockers=(*found.blockers, *against))

    def _with_snapshots(self, found: Facts, point: RecoveryPoint, state: SnapshotState) -> Facts:
        """Add snapshots that replace the raw logs of changelogs."""
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
            blockers=(*found.blockers, *given.blockers),
            notes=(*found.notes, *given.notes),
        )

    def _snapshots(self) -> SnapshotState | None:
        """Return the existing snapshots, None if changelogs come from the raw log."""
        request = self._request
        if request.changelog_source is ChangelogSource.RAW or request.mode is not RestoreMode.STATE:
            return None
        return snapshot_state(
            self._settings, excluded=self._names(None).excluded, topics_at=self._topics_at
        )

    def _topics_at(self, ids: Collection[str]) -> dict[str, set[str]]:
        points = self._view.points.load(sorted(ids))
        return {point.id: {cut.topic for cut in point.partitions} for point in points}

    def _statuses(self, ids: Sequence[str]) -> list[PointStatus]:
        """Return the restorability of points, by what this mode needs of them."""
        loaded = {p.id: p for p in self._view.points.load(ids, damaged_too=True)}
        return self._view.statuses(
            [
                reduced(
                    point,
                    roles_at(self._settings.application, point),
                    self._request,
                    self._names(point).excluded,
                )
                for point_id in ids
                if (point := loaded.get(point_id)) is not None
            ]
        )

    def _beyond(self, ids: Sequence[str]) -> frozenset[str]:
        """Return the points that need offsets beyond all backups."""
        excluded = self._names(None).excluded
        writes = self._request.mode.writes
        return self._view.beyond(ids, lambda topic, roles: topic not in excluded and writes(roles))

    def _load(self, choice: Choice) -> RecoveryPoint | None:
        if choice.status is None:
            return None
        return next(iter(self._view.points.load([choice.status.id])), None)

    def _names(self, point: RecoveryPoint | None) -> TargetNames:
        roles = roles_at(self._settings.application, point)
        internal = {name for name, of_topic in roles.items() if of_topic and of_topic.is_internal}
        return target_names(self._application_id, roles, internal, self._request)

    def _restore_id(self, point_id: str) -> str:
        return restore_id(self._application_id, point_id, self._cluster_id, self._request)

    def _stored(self, point: RecoveryPoint | None) -> StoredRestore | None:
        wanted = self._restore_id(point.id) if point else None
        return next((r for r in self._restores if r.restore_id == wanted), None)

    def _unfinished(self) -> StoredRestore | None:
        """Return the newest restore of this request to this target that has left topics there."""
        there = {topic.topic_id for topic in self._cluster.metadata().topics.values()}
        for restore in self._restores:
            same = self._restore_id(restore.point_id) == restore.restore_id
            left = any(topic.target_topic_id in there for topic in restore.topics)
            if same and left and restore.state not in _ENDED:
                return restore
        return None

    def _too_large(self, found: Facts, topics: Sequence[TopicPlan]) -> dict[str, int]:
        """Return the largest record of existing topics that would refuse it."""
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
        """Yield the files and ranges of the records to restore."""
        if topic.snapshot is None:
            return [(partition.files, partition.ranges) for partition in topic.partitions]
        stored = StoredSnapshots(self._view)
        return [(stored.files_in(topic.snapshot.store, topic.snapshot.window), _ALL)]
