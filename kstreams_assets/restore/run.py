"""Runs a restore up to its verification: topics, records, offset maps. Commits no group offsets."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kstreams_assets.backup.run import Spark
from kstreams_assets.errors import AuthorizationFailedError, KafkaRequestError, RestoreRefusedError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.topics import TopicDescription, TopicSpec
from kstreams_assets.offsets import TopicPartitionId, offsets_of_topic
from kstreams_assets.restore.offset_map import OffsetMap
from kstreams_assets.restore.plan import (
    SOMEBODY_ELSE,
    PartitionPlan,
    RestorePlan,
    TopicPlan,
    identity,
)
from kstreams_assets.restore.preconditions import changed_since
from kstreams_assets.restore.produce import produce, stage_snapshots, staged_saved_records
from kstreams_assets.restore.target import restore_lock
from kstreams_assets.restore.verify import verify
from kstreams_assets.settings import RestoreSettings
from kstreams_assets.warehouse.layout import Warehouse, warehouse_lock
from kstreams_assets.warehouse.point import GroupOffset, RecoveryPoint
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.restores import (
    OffsetMapsTable,
    RestoresTable,
    RestoreState,
    StoredRestore,
    StoredTopic,
)
from kstreams_assets.warehouse.table import refuse_newer_tables
from spark_resources.partition_records import (
    Difference,
    PartitionProduced,
    PartitionVerified,
    PartitionWork,
)

_NEEDED = ("WRITE", "READ")


@dataclass(frozen=True, slots=True)
class TargetTopics:
    """Makes the topics of a restore and relaxes those that are there."""

    cluster: KafkaCluster

    def intended(self, plan: RestorePlan, stored: StoredRestore | None) -> tuple[StoredTopic, ...]:
        """What is about to be made, as it must be noted before anything is.

        A topic of an earlier attempt keeps what was noted then: its configs are relaxed already, so
        that the values to put back can no longer be read from it.
        """
        return tuple(_intent(topic, stored) for topic in plan.topics)

    def prepare(
        self, plan: RestorePlan, intended: Sequence[StoredTopic]
    ) -> tuple[StoredTopic, ...]:
        """Create what the plan has not seen, relax the rest; the topics with their ids and bases.

        Raises:
            RestoreRefusedError: Topics are not as the plan saw them: somebody else has created,
                recreated, deleted or written one since.
            AuthorizationFailedError: They could not be written or read afterwards.
        """
        found = self.cluster.metadata().topics
        ids = {
            topic.target: found[topic.target].topic_id
            for topic in plan.topics
            if topic.target in found
        }
        _require_as_planned(plan, ids)
        try:
            self.cluster.create_topics(
                TopicSpec(t.target, len(t.partitions), t.replication_factor, t.configs)
                for t in plan.topics
                if not t.exists
            )
        except KafkaRequestError as error:
            # Brokers create a topic once: whoever came first has it.
            name = error.resource.removeprefix("topic ")
            if name in self.cluster.metadata().topics:
                raise _refused(plan, {name: "It was created after that"}) from error
            raise
        self.cluster.alter_topic_configs(
            {topic.target: topic.configs for topic in plan.topics if topic.exists}
        )
        described = self.cluster.describe_topics(topic.target for topic in plan.topics)
        _require_rights(described)
        created = {topic.target for topic in plan.topics if not topic.exists}
        _require_as_planned(
            plan, {n: one.topic_id for n, one in described.items() if n not in created}
        )
        return self._with_bases(plan, intended, described)

    def _with_bases(
        self,
        plan: RestorePlan,
        intended: Sequence[StoredTopic],
        described: Mapping[str, TopicDescription],
    ) -> tuple[StoredTopic, ...]:
        """The topics with their ids, and the ends at which the plan saw them: nothing else counts
        as the beginning of a restore."""
        planned = {topic.target: topic for topic in plan.topics}
        fresh = [topic.target for topic in intended if not topic.base_offsets]
        ends = self.cluster.high_watermarks(
            TopicPartitionId(name, number)
            for name in fresh
            for number in range(described[name].partitions)
        )
        bases = {
            name: tuple(partition.base_offset for partition in planned[name].partitions)
            for name in fresh
        }
        changed = {
            name: f"It ends at {_listed(offsets_of_topic(ends, name))} instead of"
            f" {_listed(bases[name])}"
            for name in fresh
            if offsets_of_topic(ends, name) != bases[name]
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


_log = logging.getLogger(__name__)

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """A run that came to its end; `took_s` by phase (topics, produce, verify) in seconds."""

    restore: StoredRestore
    produced: tuple[PartitionProduced, ...]
    verified: tuple[PartitionVerified, ...]
    problems: tuple[Difference, ...]
    took_s: Mapping[str, float]

    @property
    def passed(self) -> bool:
        """Whether the target is as the backup."""
        return self.restore.state is not RestoreState.FAILED_VERIFICATION


@dataclass(frozen=True, slots=True)
class RestoreRun:
    """One attempt at a restore; a later one with the same plan goes on where this one stopped."""

    warehouse: Warehouse
    settings: RestoreSettings
    target: KafkaConnection
    spark: Spark
    run_id: str
    again: Callable[[RestorePlan], RestorePlan]
    """Plans a planned restore once more, of the same recovery point."""
    log: Log = _log.info

    def execute(self, plan: RestorePlan) -> RestoreResult:
        """Create topics, produce, verify; the state is in table `restores` after each step.

        Whoever waits for the lock waits for another restore or for a killed one's last writes: so
        it is planned again under the lock. That plan is the one that is run.

        Raises:
            RestoreRefusedError: Something stands against it, or the target is not as it was when
                it was planned; no record was written.
            KStreamsAssetsError: Its subclasses say what stood in the way; run it again to go on.
        """
        plan.require_allowed()
        with (
            restore_lock(
                self.warehouse,
                cluster_id=plan.target_cluster_id,
                group=plan.group,
                purpose=f"restore run {self.run_id}",
                wait_s=self.settings.lock_wait_s,
            ) as lock,
            KafkaCluster(self.target) as cluster,
        ):
            refuse_newer_tables(self.warehouse)
            plan = self._planned_again(plan)
            point = plan.point
            assert point is not None  # noqa: S101 (else it is not allowed)
            attempt = _Attempt(self, plan, point, cluster)
            attempt.prepare_topics()
            _ = self.spark.spark_session
            lock.note_writer(self.spark.jvm_pid())
            return attempt.run()

    def _planned_again(self, plan: RestorePlan) -> RestorePlan:
        now = self.again(plan)
        now.require_allowed()
        own = RestoresTable(self.warehouse).newest(plan.application_id, plan.restore_id)
        changed = changed_since(plan, now, own)
        if changed:
            raise RestoreRefusedError(
                application_id=plan.application_id, refusals=[str(found) for found in changed]
            )
        return now


class _Attempt:
    """What one attempt knows while it runs."""

    def __init__(
        self, run: RestoreRun, plan: RestorePlan, point: RecoveryPoint, cluster: KafkaCluster
    ) -> None:
        self._run, self._plan, self._point, self._cluster = run, plan, point, cluster
        self._table = RestoresTable(run.warehouse)
        self._before = self._table.newest(plan.application_id, plan.restore_id)
        self._took_s: dict[str, float] = {}
        self._restore = self._planned()

    def prepare_topics(self) -> None:
        """Create and relax topics; noted before and after, so that a kill between is no riddle."""
        began = time.monotonic()
        topics = TargetTopics(self._cluster)
        intended = topics.intended(self._plan, self._before)
        self._pin_point(intended)
        self._store(topics=topics.prepare(self._plan, intended))
        self._took_s["topics"] = time.monotonic() - began
        self._run.log(f"{len(intended)} topics are there, with relaxed configs.")

    def _pin_point(self, intended: tuple[StoredTopic, ...]) -> None:
        """Note the restore, while no recorder thins points out: from then on its point stays."""
        warehouse, application_id = self._run.warehouse, self._plan.application_id
        with warehouse_lock(
            warehouse.lock_file(f"recorder/{application_id}"),
            purpose=f"restore run {self._run.run_id}",
            wait_s=self._run.settings.lock_wait_s,
        ):
            if not RecoveryPointTable(warehouse).load(application_id, [self._point.id]):
                raise RestoreRefusedError(
                    application_id=application_id,
                    refusals=[f"Recovery point {self._point.id} was thinned out just now."],
                )
            self._store(topics=intended)

    def run(self) -> RestoreResult:
        """Produce and verify."""
        with staged_saved_records(
            self._run.warehouse, self._plan.restore_id, self._point, self._sources()
        ) as saved:
            works = self._works(saved, self._stage_snapshots())
            produced = self._produce(works)
            return self._verify(works, produced)

    def _stage_snapshots(self) -> Mapping[TopicPartitionId, Path]:
        if not self._plan.from_snapshots:
            return {}
        began = time.monotonic()
        run = self._run
        staged = stage_snapshots(run.spark.spark_session, run.warehouse, self._plan)
        self._took_s["stage"] = time.monotonic() - began
        rows = sum(topic.records for topic, _ in self._plan.from_snapshots)
        run.log(f"{rows:,} rows of {len(self._plan.from_snapshots)} KTable snapshots are staged.")
        return staged

    def _produce(self, works: Sequence[PartitionWork]) -> list[PartitionProduced]:
        began = time.monotonic()
        run = self._run
        produced = produce(
            run.spark.spark_session, works, run.target, settings=run.settings, log=run.log
        )
        OffsetMapsTable(run.warehouse).record(
            self._plan.application_id, self._plan.restore_id, produced
        )
        self._store(
            state=RestoreState.PRODUCED,
            to_commit=(*_mapped(self._plan, produced), *_placed(self._plan)),
            problem="",
        )
        self._took_s["produce"] = time.monotonic() - began
        return produced

    def _verify(
        self, works: Sequence[PartitionWork], produced: Sequence[PartitionProduced]
    ) -> RestoreResult:
        began = time.monotonic()
        run = self._run
        found = verify(
            run.spark.spark_session,
            works,
            produced,
            topics=self._plan.topics,
            stored=self._restore.topics,
            connection=run.target,
            extent=self._plan.request.verify,
            log=run.log,
            accept_replaced_timestamps=self._plan.request.accept_replaced_timestamps,
        )
        problems = found.problems
        self._store(
            state=RestoreState.FAILED_VERIFICATION if problems else RestoreState.VERIFIED,
            verified_records=sum(p.compared for p in found.partitions),
            problem="; ".join(str(problem) for problem in problems[:10]),
        )
        self._took_s["verify"] = time.monotonic() - began
        return RestoreResult(
            self._restore, tuple(produced), found.partitions, problems, dict(self._took_s)
        )

    def _planned(self) -> StoredRestore:
        plan, before, now_ms = self._plan, self._before, _now_ms()
        return StoredRestore(
            application_id=plan.application_id,
            restore_id=plan.restore_id,
            state=RestoreState.PLANNED,
            changed_at_ms=now_ms,
            created_at_ms=before.created_at_ms if before else now_ms,
            run_id=self._run.run_id,
            point_id=self._point.id,
            group=plan.group,
            target_cluster_id=plan.target_cluster_id,
            target_bootstrap_servers=plan.target_bootstrap_servers,
            mode=plan.request.mode,
            request=json.dumps(asdict(plan.request), sort_keys=True),
            topics=before.topics if before else (),
            former_offsets=before.former_offsets if before else None,
            committed=None,
            to_commit=(),
            verified_records=None,
            problem="",
            placed=plan.placed,
        )

    def _store(self, **changes: object) -> None:
        changed = {"changed_at_ms": _now_ms(), **changes}
        self._restore = replace(self._restore, **changed)  # pyright: ignore[reportArgumentType]
        self._table.append(self._restore)

    def _sources(self) -> list[TopicPartitionId]:
        """Those of which saved records count: a snapshot has them already."""
        topics = [topic for topic in self._plan.topics if topic.snapshot is None]
        return [p.source for topic in topics for p in topic.partitions]

    def _works(
        self, saved: Mapping[TopicPartitionId, Path], staged: Mapping[TopicPartitionId, Path]
    ) -> list[PartitionWork]:
        topics = {topic.target: topic for topic in self._restore.topics}
        return [
            self._work(
                partition,
                topics[topic.target],
                saved.get(partition.source),
                staged.get(partition.source),
            )
            for topic in self._plan.topics
            for partition in topic.partitions
        ]

    def _work(
        self,
        partition: PartitionPlan,
        topic: StoredTopic,
        saved: Path | None,
        staged: Path | None,
    ) -> PartitionWork:
        files = [file.path for file in partition.files] if staged is None else [staged]
        return PartitionWork(
            source=partition.source,
            target=partition.target,
            files=tuple(map(str, files)),
            saved_file=None if saved is None else str(saved),
            ranges=partition.ranges,
            base_offset=topic.base_offsets[partition.target.partition],
            records=partition.records,
            original_headers=self._plan.request.original_headers,
            noted={str(file.path): file for file in partition.files},
        )


def _mapped(plan: RestorePlan, produced: Sequence[PartitionProduced]) -> tuple[GroupOffset, ...]:
    """The offsets to commit, in the target's offsets; metadata stays as it is."""
    found = {p.source: p for p in produced}
    return tuple(
        GroupOffset(
            topic=partition.target.topic,
            partition=partition.target.partition,
            offset=_map_of(found[partition.source]).map(partition.committed.offset),
            metadata=partition.committed.metadata,
        )
        for topic in plan.topics
        for partition in topic.partitions
        if partition.committed is not None
    )


def _placed(plan: RestorePlan) -> tuple[GroupOffset, ...]:
    """The offsets to commit in topics that are left as they are."""
    return tuple(offset for topic in plan.placed for offset in topic.offsets)


def _map_of(partition: PartitionProduced) -> OffsetMap:
    return OffsetMap(partition.runs, partition.end)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
