"""A complete restore drill, independent of Dagster."""

import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kstreams_assets.app.model import TopicRole
from kstreams_assets.completeness.on_restores import evaluate_restore, require_complete
from kstreams_assets.drill.application import DrilledApplication, Follower, MachineUse, size_of
from kstreams_assets.drill.command import drill_command, require_command, require_machine
from kstreams_assets.drill.report import (
    ApplicationMeasure,
    DrillReport,
    EvaluatedRules,
    Failure,
    Phase,
    PhaseMeasure,
    RateFrom,
    Restored,
    StoreComparison,
    report_yaml,
    rule_problems,
    state_problems,
    stored_drill,
    with_own_times,
)
from kstreams_assets.errors import (
    ConfigurationError,
    EngineError,
    JarsMissingError,
    JavaNotFoundError,
    KafkaError,
    KStreamsAssetsError,
    SparkLostError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.target import (
    local_target,
    local_targets,
    remove_local_target,
    require_local_target,
)
from kstreams_assets.model.restores import RestoreState, StoredRestore, StoredTopic
from kstreams_assets.model.rule_results import Outcome, RuleResult
from kstreams_assets.model.tables import Lock
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.staging import Staging
from kstreams_assets.restore.context import RunContext
from kstreams_assets.restore.finish import retention_effects
from kstreams_assets.restore.job import RestoreJob
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.request import RestoreRequest, parse_instant
from kstreams_assets.restore.result import Phase as RestorePhase
from kstreams_assets.restore.result import Progress, RestoredRecords, RestoreResult
from kstreams_assets.restore.target import partitions_of, roles_of
from kstreams_assets.settings import ApplicationSettings, VerifyExtent
from kstreams_assets.store import StorePath, store_at
from spark_resources.stored_files import read_files
from spark_resources.work import ReadRange, Spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_resources.cluster_source import TopicFiles


_DRILL: Final = "drill-"
_KEPT: Final = "kept-drill-"
_APPLICATION: Final = "application"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DrillRequest:
    """The recovery point to restore, and whether the cluster is kept afterwards.

    By default the newest sufficient point is restored. `point_id` or `as_of_ms` (epoch
    milliseconds; the newest point complete at that time) select another one. `keep` keeps the local
    cluster, the state directory and the log of the application.
    """

    point_id: str | None = None
    as_of_ms: int | None = None
    keep: bool = False

    @classmethod
    def of(cls, as_of: str | None, point_id: str | None, *, keep: bool) -> "DrillRequest":
        """As it is asked for; `as_of` is ISO 8601 with a time zone.

        Raises ConfigurationError where these contradict each other.
        """
        if as_of is not None and point_id is not None:
            raise ConfigurationError(
                f"Both as_of ({as_of}) and point_id ({point_id}) are given.",
                remedy="Give one of them, or neither for the newest point.",
            )
        return cls(point_id, None if as_of is None else parse_instant(as_of), keep)


@dataclass(frozen=True, slots=True)
class DrillPlace:
    """The cluster's name and connection; the state directory is empty at first.

    State directory and log lie in the cluster's folder, and go with it.
    """

    name: str
    connection: KafkaConnection
    client_properties: Path
    state_dir: Path
    log_file: Path


@contextmanager
def drill_place(
    settings: ApplicationSettings, drill_id: str, *, keep: bool
) -> Iterator[DrillPlace]:
    """A cluster of this drill alone for the block; with `keep` it stays, stopped.

    What an earlier drill left whose process was killed is removed first: to be used by one process
    at a time. Raises what `local_target` raises.
    """
    _remove_leftovers(settings)
    name = f"{_KEPT if keep else _DRILL}{drill_id}"
    try:
        protected = not settings.drill.open_cluster
        with local_target(settings, name, protected=protected) as connection:
            target = require_local_target(settings, name)
            folder = target.directory / _APPLICATION
            state_dir = folder / "state"
            state_dir.mkdir(parents=True)
            log_file = folder / "application.log"
            yield DrillPlace(name, connection, target.client_properties, state_dir, log_file)
    finally:
        if not keep:
            _remove_leftovers(settings)


def _remove_leftovers(settings: ApplicationSettings) -> None:
    """Remove clusters of drills that have ended, or were killed; kept ones stay.

    Never raises, so that the result of a drill is not lost.
    """
    try:
        for found in local_targets(settings):
            if found.name.startswith(_DRILL):
                remove_local_target(settings, found.name)
    except (KStreamsAssetsError, OSError) as error:
        _log.warning("The cluster of an earlier drill could not be removed: %s", error)


def restored_of(
    settings: ApplicationSettings,
    plan: RestorePlan,
    restore: StoredRestore,
    target: KafkaConnection,
) -> Restored:
    """What was restored, with what the original topic configs would delete of it."""
    point = plan.point
    assert point is not None  # noqa: S101 (else nothing was restored)
    return Restored(
        point_id=point.id,
        point_taken_at_ms=point.taken_at_ms,
        restorability=plan.restorability.value,
        records=plan.records,
        bytes=plan.bytes,
        input_records=sum(t.records for t in plan.topics if t.roles.is_input),
        notes=plan.notes,
        retention=tuple(_retention(settings, restore, target)),
    )


def _retention(
    settings: ApplicationSettings, restore: StoredRestore, target: KafkaConnection
) -> Iterable[str]:
    try:
        with KafkaCluster(target) as cluster:
            effects = retention_effects(
                Repository.open(settings), restore, cluster, now_ms=time.time_ns() // 1_000_000
            )
    except KStreamsAssetsError as error:
        return [f"Could not determine which records retention will delete: {error}"]
    return [str(effect) for effect in effects]


def changelogs_of(restore: StoredRestore) -> dict[str, int]:
    """Records of the changelogs that the application restores its stores from, by target topic.

    Source topics that serve as changelogs are not among them: how far they are read depends on
    their committed offsets.
    """
    return {
        topic.target: topic.records
        for topic in restore.topics
        if TopicRole.CHANGELOG in (roles := roles_of(topic)) and not roles.is_source
    }


def measure_of(
    application: DrilledApplication,
    restore: StoredRestore,
    *,
    caught_up_s: float | None,
    state_dir: Path,
    failed: bool,
) -> ApplicationMeasure:
    """What was measured of an application; to be asked before it is stopped.

    `failed`: it did not come to its end, so that its last lines matter.
    """
    expected = changelogs_of(restore)
    records, per_s, source = _restoration(application, expected)
    use, at_running = application.use, application.use_at_running
    start_s = at_running.cpu_s if at_running is not None else use.cpu_s
    return ApplicationMeasure(
        to_running_s=application.running_s,
        to_caught_up_s=caught_up_s,
        changelog_records=records,
        changelog_records_expected=sum(expected.values()),
        changelog_records_per_s=per_s,
        rate_from=source,
        cpu_s=use.cpu_s,
        cpu_start_s=start_s,
        cpu_catch_up_s=use.cpu_s - start_s,
        peak_memory_bytes=use.peak_memory_bytes,
        disk_written_bytes=use.disk_written_bytes,
        disk_read_bytes=use.disk_read_bytes,
        state_bytes=size_of(state_dir),
        exit_code=application.exit_code,
        last_lines=application.last_lines() if failed else (),
    )


def _restoration(
    application: DrilledApplication, expected: dict[str, int]
) -> tuple[int | None, float | None, RateFrom | None]:
    """Changelog records that were restored and how many a second, as far as either is known."""
    log, running_s, in_all = application.log, application.running_s, sum(expected.values())
    records = None
    if log.records and log.restoration_s is not None:
        records = sum(
            count
            for partition, count in log.records.items()
            if partition.rpartition("-")[0] in expected
        )
        # Lines within one poll of the log have no usable time difference.
        if log.restoration_s > 0:
            return records, records / log.restoration_s, RateFrom.LOG
    if not running_s or not in_all:
        return records, None, None
    return records, in_all / running_s, RateFrom.OFFSETS


def rules_after_catching_up(
    settings: ApplicationSettings,
    cluster: KafkaCluster,
    restore: StoredRestore,
    *,
    rules: Collection[str],
    spark: Spark,
) -> tuple[RuleResult, ...]:
    """At the offsets that the application has committed; it is stopped.

    Not by the way of restores, which asks for a group without members: a closed application may
    stay one until its session timeout.
    """
    from kstreams_assets.completeness.evaluate import Evaluator

    restored = {topic.target for topic in restore.topics}
    offsets = cluster.group_offsets(restore.group)
    with Evaluator(settings, spark=spark, run_id=restore.run_id) as evaluator:
        found = evaluator.cluster(
            cluster,
            names={topic.source: topic.target for topic in restore.topics},
            committed={id_: o.offset for id_, o in offsets.items() if id_.topic in restored},
            point_id=restore.point_id,
            rules=sorted(rules),
        )
    return tuple(found)


_SAMPLE: Final = 5


def compare_state(
    settings: ApplicationSettings,
    cluster: KafkaCluster,
    restore: StoredRestore,
    *,
    spark: Spark,
    restored_ends: Mapping[TopicPartitionId, int],
) -> tuple[StoreComparison, ...]:
    """Newest record of each key of every changelog: as it was restored, and as it is now.

    What was restored lies below `restored_ends` (exclusive, by target partition) and is as in the
    backup, record by record, since the restore was verified; the drill's topics delete and compact
    nothing, so that all of it must still be there. The application must be stopped.

    Raises:
        KafkaError, SparkJobError: The changelogs cannot be read.
    """
    from spark_resources.cluster_source import TopicFiles, read_topics
    from spark_resources.failures import spark_failures

    topics = [topic for topic in restore.topics if roles_of(topic).is_changelog]
    partitions = [id_ for topic in topics for id_ in partitions_of(topic)]
    starts = cluster.log_start_offsets(partitions)
    ends = cluster.last_stable_offsets(partitions)
    with (
        Staging(settings.warehouse, f"drill-{settings.application_id}") as staging,
        spark_failures(),
    ):
        found = read_topics(
            [
                ReadRange(id_, starts[id_], ends[id_])
                for id_ in partitions
                if starts[id_] < ends[id_]
            ],
            staging.folder(),
            connection=cluster.connection,
            settings=settings,
            spark=lambda: spark.spark_session,
        )
        return tuple(
            _compared(
                spark,
                found.get(topic.target, TopicFiles()),
                topic,
                restored_ends,
                tuple(
                    store.name
                    for store in settings.application.stores
                    if store.changelog == topic.source
                ),
            )
            for topic in topics
        )


def _compared(
    spark: Spark,
    records: "TopicFiles",
    topic: StoredTopic,
    restored_ends: Mapping[TopicPartitionId, int],
    stores: tuple[str, ...],
) -> StoreComparison:
    found: Mapping[str, Any] = {}
    sample: tuple[str, ...] = ()
    if records.files:
        rows = read_files(spark.spark_session, records.files)
        keys = _keys(rows, restored_ends, topic.target).cache()
        found = _counts(keys)
        sample = _sample(keys)
        keys.unpersist()

    def count(name: str) -> int:
        return int(found.get(name) or 0)

    return StoreComparison(
        topic=topic.target,
        stores=stores,
        records_restored=topic.records,
        records_at_point=count("records_at_point"),
        records_since=count("records") - count("records_at_point"),
        keys_at_point=count("keys_at_point"),
        keys_now=count("keys_now"),
        changed=count("changed"),
        rewritten=count("rewritten"),
        added=count("added"),
        deleted=count("deleted"),
        sample=sample,
    )


def _keys(
    records: "DataFrame", restored_ends: Mapping[TopicPartitionId, int], topic: str
) -> "DataFrame":
    """One row for each key: its newest record at the point (`before`) and now (`now`)."""
    from pyspark.sql import functions as f

    ends = {id_.partition: end for id_, end in restored_ends.items() if id_.topic == topic}
    end = f.lit(0)
    for partition, offset in ends.items():
        end = f.when(f.col("partition") == partition, offset).otherwise(end)
    at_point = f.col("offset") < end
    # The greatest struct is that of the greatest offset: no two records of a key share one.
    record = f.struct("offset", "value")
    return records.groupBy("partition", "key").agg(
        f.max(f.when(at_point, record)).alias("before"),
        f.max(record).alias("now"),
        f.count("*").alias("records"),
        f.count(f.when(at_point, 1)).alias("records_at_point"),
    )


def _counts(keys: "DataFrame") -> Mapping[str, Any]:
    from pyspark.sql import functions as f

    was, is_ = f.col("before.value").isNotNull(), f.col("now.value").isNotNull()
    both, newer = was & is_, f.col("now.offset") > f.col("before.offset")
    same = f.col("now.value") == f.col("before.value")
    row = keys.agg(
        f.sum("records").alias("records"),
        f.sum("records_at_point").alias("records_at_point"),
        f.count_if(was).alias("keys_at_point"),
        f.count_if(is_).alias("keys_now"),
        f.count_if(both & newer & ~same).alias("changed"),
        f.count_if(both & newer & same).alias("rewritten"),
        f.count_if(~was & is_).alias("added"),
        f.count_if(was & ~is_).alias("deleted"),
    ).first()
    return {} if row is None else row.asDict()


def _sample(keys: "DataFrame") -> tuple[str, ...]:
    from pyspark.sql import functions as f

    before, now = f.col("before.value"), f.col("now.value")
    rows = keys.where(~before.eqNullSafe(now)).select("key").limit(_SAMPLE).collect()
    return tuple(sorted(bytes(row["key"]).hex() for row in rows if row["key"] is not None))


_FEW: Final = 3
_PHASES: Final = {
    RestorePhase.RULES: Phase.COMPLETENESS,
    RestorePhase.OFFSETS: Phase.COMMIT,
}
"""The phases of a restore with which one of the drill starts."""
_LOCK_WAIT_S: Final = 5.0


class _DrillEndedError(Exception):
    """A drill that does not go on; never leaves this module."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class DrillJob:
    """Restores into a throwaway cluster, starts the application there, measures and judges.

    The source cluster is not needed, and never touched.
    """

    settings: ApplicationSettings
    spark: Spark
    run_id: str
    log: Callable[[str], None] = _log.info

    def require_possible(self) -> None:
        """Raise what `run` raises where no drill can take place."""
        require_command(self.settings)
        require_machine()
        Repository.open(self.settings).require_backup()

    def run(self, request: DrillRequest) -> DrillReport:
        """The drill's report, also written as YAML and into the table `drills`.

        Whatever goes wrong once the drill has begun is in the report. Everything is stopped and
        removed at the end, unless `request.keep`.

        Raises:
            ConfigurationError: The application cannot be started; nothing was done.
            JavaNotFoundError, JarsMissingError, EngineError, SparkLostError: This machine cannot
                drill; nothing is recorded.
            WarehouseError: There is no warehouse, or its ledger is gone.
            WarehouseLockedError: Another drill of the application is going on.
        """
        settings = self.settings
        self.require_possible()
        repo = Repository.open(settings)
        with repo.lock(Lock.DRILL, purpose=f"drill run {self.run_id}", wait_s=_LOCK_WAIT_S):
            report = _Attempt(self, request, _begun(self)).execute()
            file = report_file(settings, report.drill_id)
            store_at(file).put_text(report_yaml(report))
            repo.drills.record(stored_drill(report))
        self.log(f"Drill {report.drill_id} {'passed' if report.passed else 'failed'}.")
        return report


def report_file(settings: ApplicationSettings, drill_id: str) -> StorePath:
    """Where the report of a drill is."""
    folder = settings.warehouse.noted / "drill_reports" / settings.application_id
    return folder / f"{drill_id}.yaml"


def _begun(job: DrillJob) -> DrillReport:
    began_at_ms = _now_ms()
    settings = job.settings
    return DrillReport(
        drill_id=f"{datetime.now(tz=UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
        application_id=settings.application_id,
        run_id=job.run_id,
        began_at_ms=began_at_ms,
        ended_at_ms=began_at_ms,
        stores=tuple(sorted(store.name for store in settings.application.stores)),
        objective_s=settings.drill.objective_seconds,
        phases=(),
    )


@dataclass(slots=True)
class _Attempt:
    """One drill; `report` has what it knows so far."""

    job: DrillJob
    request: DrillRequest
    report: DrillReport
    phase: Phase = Phase.RESTORE
    restore_id: str | None = None

    def execute(self) -> DrillReport:
        """Run the drill and evaluate it; failures are in the report."""
        settings, drill_id = self.job.settings, self.report.drill_id
        try:
            with drill_place(settings, drill_id, keep=self.request.keep) as place:
                if self.request.keep:
                    self._update(kept=place.name)
                self._take_place(place)
        except _DrillEndedError as ended:
            self._update(failure=ended.failure)
        except (JarsMissingError, JavaNotFoundError, EngineError, SparkLostError):
            raise  # a problem of this machine, not of the application: no drill took place
        except KStreamsAssetsError as error:
            self._update(failure=Failure(self.phase, str(error)))
        finally:
            self._let_point_go()
        phases = with_own_times(self.report.phases, self.report.application)
        return replace(self.report, phases=phases, ended_at_ms=_now_ms())

    def _take_place(self, place: DrillPlace) -> None:
        records, restore = self._restore(place.connection)
        with KafkaCluster(place.connection) as cluster:
            self._run_application(place, cluster, restore)
            with self._measured(Phase.COMPARISON):
                self._compare(cluster, restore, records)
                self._evaluate_after(cluster, restore)

    def _restore(self, target: KafkaConnection) -> tuple[RestoredRecords, StoredRestore]:
        """Restore, and measure it by the phases of a drill."""
        job = self.job
        request = RestoreRequest(
            point_id=self.request.point_id,
            as_of_ms=self.request.as_of_ms,
            replication_factor=1,
            verify=VerifyExtent.FULL,
        )
        restores = RestoreJob(evaluate_restore, require_complete, of_drill=True)
        with ExitStack() as measured:

            def on_phase(progress: Progress) -> None:
                if progress.line:
                    job.log(progress.line)
                elif progress.phase in _PHASES:
                    self._note_restored(progress.result, target)
                    measured.close()
                    measured.enter_context(self._measured(_PHASES[progress.phase]))

            measured.enter_context(self._measured(Phase.RESTORE))
            plan = restores.plan(job.settings, request, target)
            plan.require_allowed()
            self.restore_id = plan.restore_id
            job.log(f"Restoring {plan.records:,} records: {plan.restore_id}.")
            ctx = RunContext(job.settings, target, job.spark, job.run_id)
            result = restores.run(ctx, plan, on_phase)
            records = self._note_restored(result, target)
            if not records.passed:
                first = "; ".join(str(problem) for problem in records.problems[:_FEW])
                self._end(
                    f"The restored topics do not match the backup: {first}. Check whether another"
                    " program writes to the cluster of the drill, and verify the backup."
                )
            if result.committed is None:
                problems = [line for rules in self.report.rules for line in rule_problems(rules)]
                self._end(" ".join(problems))
        return records, result.committed

    def _note_restored(self, result: RestoreResult, target: KafkaConnection) -> RestoredRecords:
        """Report what was restored, and the rules at the offsets that are to be committed."""
        records = result.records
        assert records is not None  # noqa: S101 (the plan has no blockers)
        if self.report.restored is None:
            restored = restored_of(self.job.settings, result.plan, records.restore, target)
            self._update(restored=restored)
        if result.rules:
            rules = EvaluatedRules(after=False, results=tuple(result.rules))
            self._update(rules=(rules,))
        return records

    def _evaluate_after(self, cluster: KafkaCluster, restore: StoredRestore) -> None:
        before = [result for rules in self.report.rules for result in rules.results]
        evaluated = [r.rule for r in before if r.outcome is not Outcome.NOT_VERIFIABLE]
        if not evaluated:
            return
        results = rules_after_catching_up(
            self.job.settings, cluster, restore, rules=evaluated, spark=self.job.spark
        )
        rules = EvaluatedRules(after=True, results=results)
        self._update(
            rules=(*self.report.rules, rules),
            problems=(*self.report.problems, *rule_problems(rules)),
        )

    def _run_application(
        self, place: DrillPlace, cluster: KafkaCluster, restore: StoredRestore
    ) -> None:
        """Start it, wait until it has caught up, stop it."""
        settings = self.job.settings
        command = drill_command(
            settings,
            connection=place.connection,
            client_properties=place.client_properties,
            state_dir=place.state_dir,
        )
        follower = Follower(settings, restore, cluster, self.job.log)
        try:
            with self._measured(Phase.START), ExitStack() as stack:
                follower.before_start()
                application = stack.enter_context(
                    DrilledApplication(
                        command, log_file=place.log_file, running_line=settings.drill.running_line
                    )
                )
                self._require(follower.until_running, application, restore, place)
                running = stack.pop_all()
            with running:
                with self._measured(Phase.CATCH_UP):
                    self._require(follower.until_caught_up, application, restore, place)
                self._note(application, restore, place, caught_up_s=follower.caught_up_s)
        finally:
            self._update(
                waiting_records=follower.waiting,
                waiting_counted=follower.waiting_counted,
                lag=tuple(follower.lag),
            )

    def _require(
        self,
        wait: Callable[[DrilledApplication], Failure | None],
        application: DrilledApplication,
        restore: StoredRestore,
        place: DrillPlace,
    ) -> None:
        try:
            failure = wait(application)
        except KafkaError as error:
            failure = Failure(self.phase, str(error))
        if failure is not None:
            self._note(application, restore, place, failed=True)
            raise _DrillEndedError(failure)

    def _note(
        self,
        application: DrilledApplication,
        restore: StoredRestore,
        place: DrillPlace,
        *,
        caught_up_s: float | None = None,
        failed: bool = False,
    ) -> None:
        measure = measure_of(
            application,
            restore,
            caught_up_s=caught_up_s,
            state_dir=place.state_dir,
            failed=failed,
        )
        self._update(application=measure)

    def _compare(
        self, cluster: KafkaCluster, restore: StoredRestore, result: RestoredRecords
    ) -> None:
        comparisons = compare_state(
            self.job.settings,
            cluster,
            restore,
            spark=self.job.spark,
            restored_ends={p.target: p.end for p in result.produced},
        )
        problems = state_problems(
            comparisons,
            waiting=self.report.waiting_records or 0,
            application=self.report.application,
        )
        self._update(comparisons=comparisons, problems=problems)

    def _update(self, **known: Any) -> None:  # noqa: ANN401 (fields of DrillReport)
        self.report = replace(self.report, **known)

    def _end(self, reason: str) -> NoReturn:
        raise _DrillEndedError(Failure(self.phase, reason))

    @contextmanager
    def _measured(self, phase: Phase) -> Iterator[None]:
        self.phase = phase
        self.job.log(f"Phase {phase}.")
        began_s, before = time.monotonic(), MachineUse.now()
        try:
            yield
        finally:
            busy, waited = before.shares_until(MachineUse.now())
            measure = PhaseMeasure(phase, time.monotonic() - began_s, busy, waited)
            self._update(phases=(*self.report.phases, measure))

    def _let_point_go(self) -> None:
        """Finish the restore of a removed cluster, so that its recovery point can expire."""
        if self.restore_id is None or self.report.kept is not None:
            return
        settings = self.job.settings
        table = Repository.open(settings).restores
        restore = table.newest(self.restore_id)
        if restore is not None and not restore.is_finished:
            table.append(replace(restore, state=RestoreState.FINISHED, changed_at_ms=_now_ms()))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
