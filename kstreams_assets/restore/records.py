"""Restores records up to their verification: topics, records, offset maps; no group offsets."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kstreams_assets.errors import AuthorizationFailedError, KafkaRequestError, KStreamsAssetsError
from kstreams_assets.kafka.admin import TopicDescription, TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import path_in_table
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restores import (
    DRILL,
    PartitionProduced,
    RestoreState,
    StoredRestore,
    StoredTopic,
)
from kstreams_assets.model.tables import Lock
from kstreams_assets.offsets import OffsetMap, TopicPartitionId, offsets_of_topic
from kstreams_assets.repository.table import refuse_newer_tables
from kstreams_assets.restore.context import RunContext
from kstreams_assets.restore.plan import (
    OTHER_WRITER,
    RestorePlan,
    TopicPlan,
    identity,
    restore_refused,
)
from kstreams_assets.restore.planner import plan_again
from kstreams_assets.restore.preconditions import changed_since
from kstreams_assets.restore.produce import produce, stage_snapshots, staged_saved_records
from kstreams_assets.restore.result import Phase, RestoredRecords
from kstreams_assets.restore.soundness import soundness
from kstreams_assets.restore.verify import verify
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import FileIdentity, StorePath
from kstreams_assets.store.locks import LockHandle
from kstreams_assets.texts import bytes_text, duration
from spark_resources.partition_records import PartitionWork

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_NEEDED: Final = ("WRITE", "READ")

Again = Callable[[ApplicationSettings, RestorePlan, KafkaConnection], RestorePlan]
"""Plans a restore again, for the same recovery point."""


def restore_records(
    ctx: RunContext,
    plan: RestorePlan,
    *,
    log: Callable[[str], None] = _log.info,
    started: Callable[[Phase], None] = lambda _phase: None,
    again: Again = plan_again,
    of_drill: bool = False,
) -> RestoredRecords:
    """Create topics, produce, verify; the state is in table `restores` after each phase.

    A process that waits for the lock waits for another restore or for the last writes of a killed
    one, so the restore is planned again under the lock, and that plan is run. A later run with the
    same plan continues where this one stopped. `of_drill` records that no application continues
    from it. `log` receives lines of text, `started` each phase when it starts.

    Raises:
        KStreamsAssetsError: The plan has blockers, or the target has changed since it was planned;
            no record was written.
            Its subclasses say what failed; run it again to continue.
    """
    plan.require_allowed()
    with (
        ctx.repo.writing(
            Lock.RESTORE,
            of=(plan.target_cluster_id, plan.group),
            purpose=f"restore run {ctx.run_id}",
            wait_s=ctx.settings.restore.lock_wait_seconds,
        ) as lock,
        KafkaCluster(ctx.target) as cluster,
    ):
        refuse_newer_tables(ctx.repo.warehouse)
        before = ctx.repo.restores.newest(plan.restore_id)
        now = again(ctx.settings, plan, ctx.target)
        point = now.require_allowed()
        changed = changed_since(plan, now, before)
        if changed:
            raise restore_refused(plan.application_id, map(str, changed))
        planned = _planned(now, point, before, ctx.run_id, of_drill=of_drill)
        run = _Run(ctx, now, point, before, planned, cluster, log, started)
        return run.execute(lock)


class _Run:
    """The state of one run; `before` is the stored restore, `restore` the one at the start."""

    def __init__(
        self,
        ctx: RunContext,
        plan: RestorePlan,
        point: RecoveryPoint,
        before: StoredRestore | None,
        restore: StoredRestore,
        cluster: KafkaCluster,
        log: Callable[[str], None],
        started: Callable[[Phase], None],
    ) -> None:
        self._ctx, self._settings, self._repo = ctx, ctx.settings, ctx.repo
        self._plan, self._point, self._before, self._cluster = plan, point, before, cluster
        self._log, self._started = log, started
        self._took_s: dict[str, float] = {}
        self._sound: Mapping[StorePath, FileIdentity] = {}
        self._restore = restore
        self._lock: LockHandle | None = None

    def prepare_topics(self) -> None:
        """Create and relax topics; record them before and after, so that a kill is recoverable."""
        with self._timed(Phase.TOPICS):
            intended = intended_topics(self._plan, self._before)
            self._pin_point(intended)
            self._store(topics=prepare_topics(self._plan, intended, self._cluster))
        self._log(f"{len(intended)} topics exist, with relaxed configs.")

    def _pin_point(self, intended: tuple[StoredTopic, ...]) -> None:
        """Record the restore while no recorder deletes points: from then on its point is kept."""
        application_id = self._plan.application_id
        repo = self._repo
        # Of a warehouse that is only read, there is no recorder to be fenced.
        holding = repo.writing if repo.warehouse.state_in is None else repo.lock
        with holding(
            Lock.RECORDER,
            purpose=f"restore run {self._restore.run_id}",
            wait_s=self._settings.restore.lock_wait_seconds,
        ) as lock:
            if not self._repo.points.load([self._point.id]):
                expired = f"Recovery point {self._point.id} expired just now."
                raise restore_refused(application_id, [expired])
            self._require_files()
            lock.require_held()
            self._store(topics=intended)

    def _require_files(self) -> None:
        """Check that the planned files exist; `expire` may have merged some just before.

        From now on it leaves them alone, so that a continued restore has the same records.
        """
        records = self._repo.warehouse.records(self._plan.application_id)
        files = self._repo.ledger.file_actions()
        there = {records / path_in_table(path) for path in files["path"].to_pylist()}
        for topic in self._plan.topics:
            planned = {file.path for one in topic.partitions for file in one.files}
            if topic.snapshot is None and not planned <= there:
                merged = (
                    f"topic {topic.source}: its backups were merged during the restore (backup or"
                    " expire). Run the restore again."
                )
                raise restore_refused(self._plan.application_id, [merged])

    def execute(self, lock: LockHandle) -> RestoredRecords:
        """Check that all files to read are intact, then create topics and write them."""
        plan, self._lock = self._plan, lock
        # A snapshot already includes the records saved with points.
        sources = [p.source for t in plan.topics if t.snapshot is None for p in t.partitions]
        self._require_unchanged()
        # Before the restore is recorded, and its point and files are kept for it: without Java or
        # an engine it never starts.
        session = self._ctx.spark.spark_session
        with staged_saved_records(self._repo, plan.restore_id, self._point, sources) as saved:
            staged = self._stage_snapshots(session)
            self.prepare_topics()
            return self._produce_and_verify(session, lock, saved, staged)

    def _require_unchanged(self) -> None:
        """Check before a topic is created: the files match their backups, byte for byte."""
        with self._timed(Phase.CHECK):
            found = soundness(self._plan)
        if found.blockers:
            raise restore_refused(self._plan.application_id, found.blockers)
        self._sound = found.sound

    def _produce_and_verify(
        self,
        session: "SparkSession",
        lock: LockHandle,
        saved: Mapping[TopicPartitionId, StorePath],
        staged: Mapping[TopicPartitionId, StorePath],
    ) -> RestoredRecords:
        """Write the records, record their offsets, read them back."""
        plan = self._plan
        works = self._works(saved, staged)
        self._announce()
        with self._timed(Phase.PRODUCE):
            produced = produce(
                session,
                works,
                self._cluster.connection,
                settings=self._settings.restore,
                log=self._log,
                tasks_lock=lock.tasks,
                throttle=self._settings.throttle_of_restores,
            )
            self._repo.offset_maps.record(plan.restore_id, produced, of=self._restore, writer=lock)
            to_commit = _to_commit(plan, produced)
            is_new = any(partition.resumed < partition.records for partition in produced)
            if not self._is_committed or is_new or to_commit != self._restore.to_commit:
                self._store(
                    state=RestoreState.PRODUCED, to_commit=to_commit, committed=None, problem=""
                )
        with self._timed(Phase.VERIFY):
            found = verify(
                session,
                works,
                produced,
                topics=plan.topics,
                stored=self._restore.topics,
                connection=self._cluster.connection,
                extent=plan.request.verify,
                log=self._log,
                accept_replaced_timestamps=plan.request.accept_replaced_timestamps,
                throttle=self._settings.throttle_of_restores,
                tasks=self._settings.restore.tasks,
            )
            verified = RestoreState.COMMITTED if self._is_committed else RestoreState.VERIFIED
            self._store(
                state=RestoreState.FAILED_VERIFICATION if found.problems else verified,
                committed=None if found.problems else self._restore.committed,
                verified_records=found.compared,
                problem="; ".join(str(problem) for problem in found.problems[:10]),
            )
        return RestoredRecords(
            self._restore, tuple(produced), found.partitions, found.problems, self._took_s
        )

    @property
    def _is_committed(self) -> bool:
        return self._restore.state is RestoreState.COMMITTED

    def _announce(self) -> None:
        """Report the minimum duration before the restore starts."""
        limit, size = self._settings.restore.bytes_per_second, self._plan.bytes
        if limit is not None:
            at_least = duration(round(1000 * size / limit))
            self._log(
                f"About {bytes_text(size)} are to be written at {bytes_text(limit)}/s (the"
                f" throttle): {at_least}, and reading them back takes as long."
            )

    def _stage_snapshots(self, session: "SparkSession") -> Mapping[TopicPartitionId, StorePath]:
        snapshots = self._plan.from_snapshots
        if not snapshots:
            return {}
        with self._timed(Phase.STAGE):
            staged = stage_snapshots(session, self._repo.warehouse, self._plan)
        rows = sum(topic.records for topic, _ in snapshots)
        self._log(f"{rows:,} rows of {len(snapshots)} KTable snapshots are staged.")
        return staged

    def _works(
        self,
        saved: Mapping[TopicPartitionId, StorePath],
        staged: Mapping[TopicPartitionId, StorePath],
    ) -> list[PartitionWork]:
        bases = {topic.target: topic.base_offsets for topic in self._restore.topics}
        works = []
        for partition in (p for topic in self._plan.topics for p in topic.partitions):
            source, target = partition.source, partition.target
            files = [file.path for file in partition.files]
            saved_file = saved.get(source)
            works.append(
                PartitionWork(
                    source=source,
                    target=target,
                    files=tuple([staged[source]] if source in staged else files),
                    saved_file=saved_file,
                    ranges=partition.ranges,
                    base_offset=bases[target.topic][target.partition],
                    records=partition.records,
                    original_headers=self._plan.request.original_headers,
                    noted={file.path: file for file in partition.files},
                    runs={f.path: f.runs for f in partition.files if f.runs is not None},
                    sound={
                        file.path: self._sound[file.path]
                        for file in partition.files
                        if file.path in self._sound
                    },
                )
            )
        return works

    def _store(self, **changes: Any) -> None:  # noqa: ANN401 (fields of StoredRestore)
        self._restore = self._repo.restores.change(self._restore, writer=self._lock, **changes)

    @contextmanager
    def _timed(self, phase: Phase) -> Iterator[None]:
        self._started(phase)
        began = time.monotonic()
        yield
        self._took_s[phase.value] = time.monotonic() - began


def _planned(
    plan: RestorePlan,
    point: RecoveryPoint,
    before: StoredRestore | None,
    run_id: str,
    *,
    of_drill: bool,
) -> StoredRestore:
    """Return the restore as it starts; facts that an earlier run has recorded are kept.

    A committed one whose topics all exist stays committed until this run finds otherwise: the
    application may continue from it, even if this run is killed.
    """
    now_ms = time.time_ns() // 1_000_000
    asked = plan.request.model_dump(mode="json", exclude={"target"})
    if of_drill:
        asked[DRILL] = True
    planned = StoredRestore(
        application_id=plan.application_id,
        restore_id=plan.restore_id,
        state=RestoreState.PLANNED,
        changed_at_ms=now_ms,
        created_at_ms=before.created_at_ms if before else now_ms,
        run_id=run_id,
        point_id=point.id,
        group=plan.group,
        target_cluster_id=plan.target_cluster_id,
        target_bootstrap_servers=plan.target_bootstrap_servers,
        mode=plan.request.mode,
        request=json.dumps(asked, sort_keys=True),
        topics=before.topics if before else (),
        former_offsets=before.former_offsets if before else None,
        placed=plan.placed,
    )
    if before is None or before.state is not RestoreState.COMMITTED:
        return planned
    if intended_topics(plan, before) != before.topics:
        return planned
    return replace(
        planned,
        state=before.state,
        to_commit=before.to_commit,
        committed=before.committed,
        verified_records=before.verified_records,
    )


def _to_commit(plan: RestorePlan, produced: Sequence[PartitionProduced]) -> tuple[GroupOffset, ...]:
    """Return the offsets to commit, in the target's offsets; metadata is kept."""
    maps = {p.source: OffsetMap(p.runs, p.end) for p in produced}
    mapped = (
        GroupOffset(
            topic=partition.target.topic,
            partition=partition.target.partition,
            offset=maps[partition.source].map(partition.committed.offset),
            metadata=partition.committed.metadata,
        )
        for topic in plan.topics
        for partition in topic.partitions
        if partition.committed is not None
    )
    return (*mapped, *(offset for topic in plan.placed for offset in topic.offsets))


def intended_topics(plan: RestorePlan, stored: StoredRestore | None) -> tuple[StoredTopic, ...]:
    """Return the topics to create, as they must be recorded before anything is created.

    A topic of an earlier attempt keeps its record: its configs are relaxed already, so the
    original values can no longer be read from it.
    """
    return tuple(_intent(topic, stored) for topic in plan.topics)


def _intent(topic: TopicPlan, stored: StoredRestore | None) -> StoredTopic:
    if stored is not None and topic.target_topic_id is not None:
        known = stored.own_topic(topic.target, topic.target_topic_id)
        if known is not None:
            return known
    return StoredTopic(
        source=topic.source,
        target=topic.target,
        target_topic_id=topic.target_topic_id or "",
        base_offsets=(),
        records=topic.records,
        roles=tuple(sorted(role.value for role in topic.roles)),
        put_back=dict(topic.put_back),
        created=not topic.exists,
    )


def prepare_topics(
    plan: RestorePlan, intended: Sequence[StoredTopic], cluster: KafkaCluster
) -> tuple[StoredTopic, ...]:
    """Create missing topics, relax the others; return the topics with their ids and bases.

    Relaxed configs prevent that restored records are deleted at once.

    Raises:
        KStreamsAssetsError: Topics differ from the plan: another process has created, recreated,
            deleted or written one since.
        AuthorizationFailedError: They could not be written or read afterwards.
    """
    found = cluster.metadata().topics
    wanted = {topic.target for topic in plan.topics}
    _require_as_planned(plan, {n: one.topic_id for n, one in found.items() if n in wanted})
    try:
        cluster.create_topics(
            TopicSpec(t.target, len(t.partitions), t.replication_factor, t.configs)
            for t in plan.topics
            if not t.exists
        )
    except KafkaRequestError as error:
        # Brokers create a topic once: it belongs to the first process.
        name = error.resource.removeprefix("topic ")
        if name in cluster.metadata().topics:
            raise _changed_topics(plan, {name: "It was created after that"}) from error
        raise
    cluster.alter_topic_configs({t.target: t.configs for t in plan.topics if t.exists})
    described = cluster.describe_topics(wanted)
    _require_rights(described)
    created = {topic.target for topic in plan.topics if not topic.exists}
    _require_as_planned(plan, {n: one.topic_id for n, one in described.items() if n not in created})
    return _with_bases(plan, intended, described, cluster)


def _with_bases(
    plan: RestorePlan,
    intended: Sequence[StoredTopic],
    described: Mapping[str, TopicDescription],
    cluster: KafkaCluster,
) -> tuple[StoredTopic, ...]:
    """Return the topics with their ids, and their ends in the plan: only these count as the
    start of a restore."""
    fresh = {topic.target for topic in intended if not topic.base_offsets}
    bases = {
        topic.target: tuple(partition.base_offset for partition in topic.partitions)
        for topic in plan.topics
        if topic.target in fresh
    }
    ends = cluster.high_watermarks(
        TopicPartitionId(name, number)
        for name in bases
        for number in range(described[name].partitions)
    )
    changed = {
        name: f"It ends at {_listed(offsets_of_topic(ends, name))} instead of {_listed(base)}"
        for name, base in bases.items()
        if offsets_of_topic(ends, name) != base
    }
    if changed:
        raise _changed_topics(plan, changed)
    return tuple(
        replace(
            topic,
            target_topic_id=described[topic.target].topic_id,
            base_offsets=topic.base_offsets or bases[topic.target],
        )
        for topic in intended
    )


def _require_as_planned(plan: RestorePlan, ids: Mapping[str, str]) -> None:
    """Raise for topics that others have created, deleted or recreated since the plan.

    `ids` are those of existing topics; a topic that the plan is to create must be absent.
    """
    changed = {
        topic.target: f"It {identity(ids.get(topic.target))} now,"
        f" then it {identity(topic.target_topic_id)}"
        for topic in plan.topics
        if ids.get(topic.target) != topic.target_topic_id
    }
    if changed:
        raise _changed_topics(plan, changed)


def _changed_topics(plan: RestorePlan, changed: Mapping[str, str]) -> KStreamsAssetsError:
    return restore_refused(
        plan.application_id,
        (
            f"topic {name}: It differs from the plan made a moment ago. {what}. {OTHER_WRITER}"
            for name, what in sorted(changed.items())
        ),
    )


def _listed(offsets: Sequence[int]) -> str:
    return ", ".join(map(str, offsets))


def _require_rights(described: Mapping[str, TopicDescription]) -> None:
    for needed in _NEEDED:
        denied = sorted(
            name
            for name, topic in described.items()
            if not topic.authorized_operations & {needed, "ALL"}
        )
        if denied:
            raise AuthorizationFailedError(
                operation="restore", resource=f"topic {', '.join(denied)}", needed=needed
            )
