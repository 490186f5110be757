"""Runs a restore up to its verification: topics, records, offset maps. Commits no group offsets."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kstreams_assets.errors import AuthorizationFailedError, KafkaRequestError, RestoreRefusedError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.topics import TopicDescription, TopicSpec
from kstreams_assets.layout import path_in_table
from kstreams_assets.lease import LockHandle
from kstreams_assets.offsets import OffsetMap, TopicPartitionId, offsets_of_topic
from kstreams_assets.restore.plan import SOMEBODY_ELSE, RestorePlan, TopicPlan, identity
from kstreams_assets.restore.planner import plan_again
from kstreams_assets.restore.preconditions import changed_since
from kstreams_assets.restore.produce import produce, stage_snapshots, staged_saved_records
from kstreams_assets.restore.soundness import soundness
from kstreams_assets.restore.target import restore_lock
from kstreams_assets.restore.verify import verify
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import FileIdentity, StorePath
from kstreams_assets.texts import bytes_text, duration
from kstreams_assets.warehouse.point import GroupOffset, RecoveryPoint
from kstreams_assets.warehouse.points import RecoveryPointTable, points_locked
from kstreams_assets.warehouse.records import file_actions
from kstreams_assets.warehouse.restores import (
    DRILL,
    OffsetMapsTable,
    PartitionProduced,
    RestoresTable,
    RestoreState,
    StoredRestore,
    StoredTopic,
)
from kstreams_assets.warehouse.table import refuse_newer_tables
from spark_resources.partition_records import Difference, PartitionVerified, PartitionWork
from spark_resources.work import Spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_NEEDED: Final = ("WRITE", "READ")

Again = Callable[[ApplicationSettings, RestorePlan, KafkaConnection], RestorePlan]
"""Plans a planned restore once more, of the same recovery point."""


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """A run that came to its end; `took_s` by phase (check, topics, produce, verify) in seconds."""

    restore: StoredRestore
    produced: tuple[PartitionProduced, ...]
    verified: tuple[PartitionVerified, ...]
    problems: tuple[Difference, ...]
    took_s: Mapping[str, float]

    @property
    def passed(self) -> bool:
        """Whether the target matches the backup."""
        return self.restore.state is not RestoreState.FAILED_VERIFICATION


def run_restore(
    settings: ApplicationSettings,
    plan: RestorePlan,
    target: KafkaConnection,
    *,
    spark: Spark,
    run_id: str,
    log: Callable[[str], None] = _log.info,
    again: Again = plan_again,
    of_drill: bool = False,
) -> RestoreResult:
    """Create topics, produce, verify; the state is in table `restores` after each step.

    Whoever waits for the lock waits for another restore or for a killed one's last writes: so it is
    planned again under the lock. That plan is the one that is run. A later run with the same plan
    goes on where this one stopped. `of_drill` records that nobody continues from it.

    Raises:
        RestoreRefusedError: Something stands against it, or the target is not as it was when it was
            planned; no record was written.
        KStreamsAssetsError: Its subclasses say what stood in the way; run it again to go on.
    """
    plan.require_allowed()
    warehouse = settings.warehouse
    with (
        restore_lock(
            warehouse,
            cluster_id=plan.target_cluster_id,
            group=plan.group,
            purpose=f"restore run {run_id}",
            wait_s=settings.restore.lock_wait_s,
        ) as lock,
        KafkaCluster(target) as cluster,
    ):
        refuse_newer_tables(warehouse)
        before = RestoresTable(warehouse).newest(plan.application_id, plan.restore_id)
        now = again(settings, plan, target)
        point = now.require_allowed()
        changed = changed_since(plan, now, before)
        if changed:
            raise RestoreRefusedError(
                application_id=plan.application_id, refusals=[str(found) for found in changed]
            )
        planned = _planned(now, point, before, run_id, of_drill=of_drill)
        run = _Run(settings, now, point, before, planned, cluster, spark, log)
        return run.execute(lock)


class _Run:
    """What one run knows; `before` is how the restore stood, `restore` how it begins."""

    def __init__(
        self,
        settings: ApplicationSettings,
        plan: RestorePlan,
        point: RecoveryPoint,
        before: StoredRestore | None,
        restore: StoredRestore,
        cluster: KafkaCluster,
        spark: Spark,
        log: Callable[[str], None],
    ) -> None:
        self._settings, self._plan, self._point = settings, plan, point
        self._before, self._cluster, self._spark, self._log = before, cluster, spark, log
        self._warehouse = settings.warehouse
        self._took_s: dict[str, float] = {}
        self._sound: Mapping[StorePath, FileIdentity] = {}
        self._restore = restore
        self._lock: LockHandle | None = None

    def prepare_topics(self) -> None:
        """Create and relax topics; noted before and after, so that a kill between is no riddle."""
        with self._timed("topics"):
            intended = intended_topics(self._plan, self._before)
            self._pin_point(intended)
            self._store(topics=prepare_topics(self._plan, intended, self._cluster))
        self._log(f"{len(intended)} topics are there, with relaxed configs.")

    def _pin_point(self, intended: tuple[StoredTopic, ...]) -> None:
        """Note the restore, while no recorder thins points out: from then on its point stays."""
        application_id = self._plan.application_id
        with points_locked(
            self._warehouse,
            application_id,
            purpose=f"restore run {self._restore.run_id}",
            wait_s=self._settings.restore.lock_wait_s,
        ) as lock:
            if not RecoveryPointTable(self._warehouse).load(application_id, [self._point.id]):
                raise RestoreRefusedError(
                    application_id=application_id,
                    refusals=[f"Recovery point {self._point.id} expired just now."],
                )
            self._require_files()
            lock.require_held()
            self._store(topics=intended)

    def _require_files(self) -> None:
        """From now on `expire` leaves the files alone; it may have put some together just before.

        What is restored must be the same if it is gone on with later.
        """
        records = self._warehouse.records(self._plan.application_id)
        there = {
            records / path_in_table(path) for path in file_actions(records)["path"].to_pylist()
        }
        for topic in self._plan.topics:
            planned = {file.path for one in topic.partitions for file in one.files}
            if topic.snapshot is None and not planned <= there:
                raise RestoreRefusedError(
                    application_id=self._plan.application_id,
                    refusals=[
                        f"topic {topic.source}: its backups were put together just now (backup or"
                        " expire). Run the restore again."
                    ],
                )

    def execute(self, lock: LockHandle) -> RestoreResult:
        """Look whether all that is read is as it was written, then make topics and write them."""
        plan, self._lock = self._plan, lock
        # A snapshot holds what was saved with points already.
        sources = [p.source for t in plan.topics if t.snapshot is None for p in t.partitions]
        self._require_unchanged()
        # Before the restore is noted, and its point and files are kept for it: without Java or an
        # engine it never begins.
        session = self._spark.spark_session
        with staged_saved_records(self._warehouse, plan.restore_id, self._point, sources) as saved:
            staged = self._stage_snapshots(session)
            self.prepare_topics()
            return self._produce_and_verify(session, lock, saved, staged)

    def _require_unchanged(self) -> None:
        """Before a topic is made: the files are those that their backups wrote, byte for byte."""
        with self._timed("check"):
            found = soundness(self._plan)
        if found.refusals:
            raise RestoreRefusedError(
                application_id=self._plan.application_id, refusals=found.refusals
            )
        self._sound = found.sound

    def _produce_and_verify(
        self,
        session: "SparkSession",
        lock: LockHandle,
        saved: Mapping[TopicPartitionId, StorePath],
        staged: Mapping[TopicPartitionId, StorePath],
    ) -> RestoreResult:
        """Write the records, note where they went, read them back."""
        plan, warehouse = self._plan, self._warehouse
        works = self._works(saved, staged)
        self._announce()
        with self._timed("produce"):
            produced = produce(
                session,
                works,
                self._cluster.connection,
                settings=self._settings.restore,
                log=self._log,
                tasks_lock=lock.tasks,
                throttle=self._settings.throttle_of_restores,
            )
            OffsetMapsTable(warehouse).record(
                plan.application_id,
                plan.restore_id,
                produced,
                of=self._restore,
                writer=lock,
            )
            self._store(
                state=RestoreState.PRODUCED,
                to_commit=_to_commit(plan, produced),
                problem="",
            )
        with self._timed("verify"):
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
            failed, verified = RestoreState.FAILED_VERIFICATION, RestoreState.VERIFIED
            self._store(
                state=failed if found.problems else verified,
                verified_records=found.compared,
                problem="; ".join(str(problem) for problem in found.problems[:10]),
            )
        return RestoreResult(
            self._restore, tuple(produced), found.partitions, found.problems, self._took_s
        )

    def _announce(self) -> None:
        """Say before it begins how long it takes at least."""
        limit, size = self._settings.restore.bytes_per_s, self._plan.bytes
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
        with self._timed("stage"):
            staged = stage_snapshots(session, self._warehouse, self._plan)
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
        table = RestoresTable(self._warehouse)
        self._restore = table.change(self._restore, writer=self._lock, **changes)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._took_s[phase] = time.monotonic() - began


def _planned(
    plan: RestorePlan,
    point: RecoveryPoint,
    before: StoredRestore | None,
    run_id: str,
    *,
    of_drill: bool,
) -> StoredRestore:
    """The restore as it begins; what an earlier run has noted of it stays."""
    now_ms = time.time_ns() // 1_000_000
    asked = plan.request.model_dump(mode="json", exclude={"target"})
    if of_drill:
        asked[DRILL] = True
    return StoredRestore(
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


def _to_commit(plan: RestorePlan, produced: Sequence[PartitionProduced]) -> tuple[GroupOffset, ...]:
    """The offsets to commit, in the target's offsets; metadata stays as it is."""
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
    """The topics that are about to be made, as they must be noted before anything is.

    A topic of an earlier attempt keeps what was noted then: its configs are relaxed already, so
    that the values to put back can no longer be read from it.
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
    """Create what the plan has not seen, relax the rest; the topics with their ids and bases.

    Relaxed configs keep what is restored from being deleted at once.

    Raises:
        RestoreRefusedError: Topics are not as the plan saw them: somebody else has created,
            recreated, deleted or written one since.
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
        # Brokers create a topic once: whoever came first has it.
        name = error.resource.removeprefix("topic ")
        if name in cluster.metadata().topics:
            raise _refused(plan, {name: "It was created after that"}) from error
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
    """The topics with their ids, and the ends at which the plan saw them: nothing else counts as
    the beginning of a restore."""
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
        raise _refused(plan, changed)
    return tuple(
        replace(
            topic,
            target_topic_id=described[topic.target].topic_id,
            base_offsets=topic.base_offsets or bases[topic.target],
        )
        for topic in intended
    )


def _require_as_planned(plan: RestorePlan, ids: Mapping[str, str]) -> None:
    """Refuse topics that others have created, deleted or recreated since the plan.

    `ids` are those of the topics that are there; a topic that the plan is to create must be absent.
    """
    changed = {
        topic.target: f"It {identity(ids.get(topic.target))} now,"
        f" then it {identity(topic.target_topic_id)}"
        for topic in plan.topics
        if ids.get(topic.target) != topic.target_topic_id
    }
    if changed:
        raise _refused(plan, changed)


def _refused(plan: RestorePlan, changed: Mapping[str, str]) -> RestoreRefusedError:
    return RestoreRefusedError(
        application_id=plan.application_id,
        refusals=[
            f"topic {name}: It is not as the plan saw it a moment ago. {what}. {SOMEBODY_ELSE}"
            for name, what in sorted(changed.items())
        ],
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
