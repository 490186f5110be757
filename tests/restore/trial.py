"""Restores for real: what a source run leaves behind, and an application restored from it."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kstreams_assets.app.model import Store, StreamsApplication, TopicRole
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.completeness.on_restores import (
    evaluate_restore,
    require_complete,
    results_of_restore,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import Guarantee, RecoveryPoint
from kstreams_assets.model.restores import RestoreState, StoredRestore
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.restore.context import RunContext
from kstreams_assets.restore.group_offsets import commit_group_offsets
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.planner import plan_again, plan_restore
from kstreams_assets.restore.records import restore_records
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from spark_resources.work import Spark
from tests.restore.control import await_drained, read
from tests.store.place import warehouse_at
from tests.streams.cluster import connection_to, unique_name
from tests.streams.feed import Record, produce

_ATTEMPTS = 6


def settings_of(
    application: StreamsApplication, bootstrap_servers: str, folder: Path
) -> ApplicationSettings:
    """The application with all its topics, and a warehouse of its own."""
    return ApplicationSettings(
        application=application,
        topics=application.topics,
        connection=connection_to(bootstrap_servers),
        warehouse=warehouse_at(folder / "warehouse"),
        windows=WindowSchedule.every("minute", start=time.strftime("%Y-%m-%d", time.gmtime())),
    )


def named(application: StreamsApplication, *roles: TopicRole) -> list[str]:
    """The topics that have exactly these roles."""
    return [topic.name for topic in application.topics if topic.roles == frozenset(roles)]


@dataclass(slots=True)
class Source:
    """An application while it runs on its own cluster."""

    settings: ApplicationSettings
    cluster: KafkaCluster
    began_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def take(
        self,
        *,
        guarantee: Guarantee = Guarantee.EXACT,
        fits: Callable[[RecoveryPoint], bool] = lambda _point: True,
    ) -> RecoveryPoint:
        """Take points until one has the guarantee and fits; a few times at most."""
        recorder = recorder_of(self.settings, self.cluster)
        seen: list[str] = []
        for _ in range(_ATTEMPTS):
            point = recorder.take()
            if point.guarantee is guarantee and fits(point):
                return point
            seen.append(f"{point.guarantee} by {point.method}, {point.in_flight} in flight")
        raise AssertionError(f"no such point: {seen}")

    def back_up(self, newest: RecoveryPoint, spark: Spark) -> None:
        """Back up everything up to a point, as one window that ends just after it."""
        window = Window(self.began_ms, newest.taken_at_ms + 1, "w0000")
        assert BackupJob(self.settings, spark, unique_name("backup")).run([window]).records > 0

    def drain(self) -> None:
        """Wait until the application has processed all there is."""
        _drain(self.settings, self.settings.connection, {}, self.settings.application_id)

    def ended(self, points: Mapping[str, RecoveryPoint]) -> "SourceRun":
        """What is kept of the run once it has come to its end."""
        application = self.settings.application
        bootstrap_servers = self.settings.connection.bootstrap_servers
        rewritten = [t.name for t in application.topics if TopicRole.REPARTITION not in t.roles]
        return SourceRun(self.settings, dict(points), read(bootstrap_servers, rewritten))


@dataclass(frozen=True, slots=True)
class SourceRun:
    """A run from its first to its last record, without a restore: the control of every restore.

    `written` holds all committed records of every topic but repartition topics, which are purged.
    """

    settings: ApplicationSettings
    points: Mapping[str, RecoveryPoint]
    written: Mapping[str, Sequence[Record]]

    def after(self, point: RecoveryPoint) -> dict[str, list[Record]]:
        """The input records that a point does not hold, by topic."""
        inputs = [t.name for t in self.settings.application.topics if t.roles.is_recomputed_from]
        return {
            topic: [r for r in self.written[topic] if r.offset >= end_of(point, topic, r.partition)]
            for topic in inputs
        }


def end_of(point: RecoveryPoint, topic: str, partition: int) -> int:
    """The end of a partition in a point."""
    cut = point.cut(TopicPartitionId(topic, partition))
    assert cut is not None
    return cut.end


@dataclass(frozen=True, slots=True)
class Restored:
    """An application whose topics are restored and verified; its offsets not yet committed.

    `spark` evaluates the completeness rules of the application, if it has any.
    """

    run: SourceRun
    plan: RestorePlan
    restore: StoredRestore
    target: KafkaConnection
    spark: Spark

    @property
    def point(self) -> RecoveryPoint:
        """What was restored."""
        assert self.plan.point is not None
        return self.plan.point

    @property
    def names(self) -> Mapping[str, str]:
        """Topics by their names in the source."""
        return {topic.source: topic.target for topic in self.plan.topics}

    def commit(self) -> None:
        """Evaluate the rules if that was not done yet, and commit the group's offsets."""
        settings = self.run.settings
        skips = self.restore.skips_completeness
        if not skips and not results_of_restore(settings, self.restore):
            evaluate_restore(settings, self.restore, self.target, spark=self.spark)
        done = commit_group_offsets(
            self.run.settings, self.restore, self.target, gate=require_complete
        )
        assert done.state is RestoreState.COMMITTED

    def commit_instead(self, offsets: Sequence[GroupOffset]) -> None:
        """Commit other offsets (of the target), as somebody might by mistake."""
        with KafkaCluster(self.target) as cluster:
            cluster.commit_group_offsets(
                self.plan.group,
                {
                    TopicPartitionId(o.topic, o.partition): CommittedOffset(o.offset, o.metadata)
                    for o in offsets
                },
            )

    def replay(self) -> int:
        """Produce the input that the point does not hold, as its producers would; how much."""
        return sum(
            produce(self.target.bootstrap_servers, self.names[topic], records)
            for topic, records in self.run.after(self.point).items()
        )

    def drain(self) -> None:
        """Wait until the started application has processed all there is."""
        _drain(self.run.settings, self.target, self.names, self.plan.group)

    def written(self, *topics: str, uncommitted: bool = False) -> dict[str, list[Record]]:
        """What these topics (by their names in the source) hold now."""
        names = [self.names[topic] for topic in topics]
        found = read(self.target.bootstrap_servers, names, uncommitted=uncommitted)
        return {topic: found[self.names[topic]] for topic in topics}


def restore(
    run: SourceRun,
    target: KafkaConnection,
    spark: Spark,
    request: RestoreRequest,
    *,
    change: Callable[[RestorePlan], RestorePlan] = lambda plan: plan,
) -> Restored:
    """Plan a restore and run it up to its verification; `change` spoils what is planned."""
    plan = plan_restore(run.settings, request, target)
    blockers = [str(blocker) for blocker in plan.blockers]
    assert blockers == [], blockers
    result = restore_records(
        RunContext(run.settings, target, spark, unique_name("restore")),
        change(plan),
        again=lambda *planned: change(plan_again(*planned)),
    )
    assert [str(problem) for problem in result.problems] == []
    assert result.restore.state is RestoreState.VERIFIED
    return Restored(run, plan, result.restore, target, spark)


def with_snapshots(run: SourceRun, stores: Iterable[Store], spark: Spark) -> SourceRun:
    """The run with these stores declared, and KTable snapshots of all that is backed up."""
    application = replace(run.settings.application, stores=tuple(stores))
    settings = replace(run.settings, application=application)
    topics = {topic.name for topic in settings.topics}
    windows = sorted(Ledger(settings.warehouse, settings.application_id).done(topics))
    made = make_snapshots(settings, windows, spark=spark, run_id=unique_name("snapshots"))
    assert [snapshot.reason for snapshot in made if not snapshot.proved] == []
    assert {snapshot.store for snapshot in made} == {store.name for store in application.stores}
    return replace(run, settings=settings)


def without(plan: RestorePlan, role: TopicRole) -> RestorePlan:
    """A plan that restores no record of topics with this role."""
    return replace(
        plan,
        topics=tuple(
            replace(
                topic,
                partitions=tuple(
                    replace(p, ranges=(), files=(), records=0, bytes=0, saved_records=0)
                    for p in topic.partitions
                ),
            )
            if role in topic.roles
            else topic
            for topic in plan.topics
        ),
    )


def own_names(label: str, point: RecoveryPoint, **asked: Any) -> RestoreRequest:
    """A request for a point under names that nothing else has."""
    name = unique_name(label)
    return RestoreRequest(point_id=point.id, application_id=name, prefix=f"{name}.", **asked)


def restored(settings: ApplicationSettings, plan: RestorePlan, spark: Spark) -> RestoreState:
    """What becomes of a restore of this plan to the cluster that the application is on."""
    run = restore_records(
        RunContext(settings, settings.connection, spark, unique_name("restore")),
        plan,
        log=lambda _line: None,
    )
    return run.restore.state


def _drain(
    settings: ApplicationSettings, where: KafkaConnection, names: Mapping[str, str], group: str
) -> None:
    reading, writing = {TopicRole.INPUT, TopicRole.REPARTITION}, {TopicRole.OUTPUT}
    topics = settings.application.topics
    await_drained(
        where,
        group,
        reads=[names.get(t.name, t.name) for t in topics if t.roles & reading],
        writes=[names.get(t.name, t.name) for t in topics if t.roles & writing],
    )
