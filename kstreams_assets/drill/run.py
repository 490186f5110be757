"""One restore drill from beginning to end; knows no Dagster."""

import json
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kstreams_assets.app.model import Store, TopicRole
from kstreams_assets.backup.run import Spark
from kstreams_assets.completeness.on_restores import evaluate_restore, require_complete
from kstreams_assets.completeness.result import Outcome, RuleResult
from kstreams_assets.drill.application import DrilledApplication, Follower, MachineUse, size_of
from kstreams_assets.drill.command import drill_command, require_command, require_machine
from kstreams_assets.drill.report import (
    ApplicationMeasure,
    DrillReport,
    DrillsTable,
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
    with_own_times,
)
from kstreams_assets.drill.settings import DrillRequest
from kstreams_assets.errors import (
    JarsMissingError,
    JavaNotFoundError,
    KafkaError,
    KStreamsAssetsError,
)
from kstreams_assets.kafka.clients import spark_options
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.target import (
    local_target,
    local_targets,
    remove_local_target,
    require_local_target,
)
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.finish import retention_effects
from kstreams_assets.restore.group_offsets import commit_group_offsets
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.restore.request import RestoreRequest, VerifyExtent
from kstreams_assets.restore.run import RestoreResult, run_restore
from kstreams_assets.restore.target import partitions_of, roles_of
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.layout import warehouse_lock
from kstreams_assets.warehouse.restores import (
    RestoresTable,
    RestoreState,
    StoredRestore,
    StoredTopic,
)
from kstreams_assets.warehouse.table import require_backup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_DRILL: Final = "drill-"
_KEPT: Final = "kept-drill-"
_APPLICATION: Final = "application"

_log = logging.getLogger(__name__)


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


def reports_folder(settings: ApplicationSettings) -> Path:
    """Where the reports of an application's drills are."""
    return settings.warehouse.root / "drill_reports" / settings.application_id


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

    Never raises: a drill's result must not be lost for what it leaves behind.
    """
    try:
        for found in local_targets(settings):
            if found.name.startswith(_DRILL):
                remove_local_target(settings, found.name)
    except (KStreamsAssetsError, OSError) as error:
        _log.warning("What a drill left behind stays for now: %s", error)


_SOURCES = frozenset({TopicRole.INPUT, TopicRole.GLOBAL})


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
        gives=plan.gives.value,
        records=plan.records,
        bytes=plan.bytes,
        input_records=sum(t.records for t in plan.topics if TopicRole.INPUT in t.roles),
        notes=plan.notes,
        retention=tuple(_retention(settings, restore, target)),
    )


def _retention(
    settings: ApplicationSettings, restore: StoredRestore, target: KafkaConnection
) -> Iterable[str]:
    try:
        with KafkaCluster(target) as cluster:
            effects = retention_effects(
                settings.warehouse, restore, cluster, now_ms=time.time_ns() // 1_000_000
            )
    except KStreamsAssetsError as error:
        return [f"What retention deletes of it could not be told: {error}"]
    return [str(effect) for effect in effects]


def changelogs_of(restore: StoredRestore) -> dict[str, int]:
    """Records of the changelogs that the application restores its stores from, by target topic.

    Source topics that serve as changelogs are not among them: how far they are read depends on
    their committed offsets.
    """
    return {
        topic.target: topic.records
        for topic in restore.topics
        if TopicRole.CHANGELOG in (roles := roles_of(topic)) and not roles & _SOURCES
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
    log = application.log
    if log.records and log.restoration_s is not None:
        records = sum(
            count
            for partition, count in log.records.items()
            if partition.rpartition("-")[0] in expected
        )
        # Less than one look of the log between the lines tells nothing about a rate.
        per_s = records / log.restoration_s if log.restoration_s > 0 else None
        if per_s is not None:
            return records, per_s, RateFrom.LOG
        return records, *_by_offsets(application, expected)
    return None, *_by_offsets(application, expected)


def _by_offsets(
    application: DrilledApplication, expected: dict[str, int]
) -> tuple[float | None, RateFrom | None]:
    running_s, records = application.running_s, sum(expected.values())
    if not running_s or not records:
        return None, None
    return records / running_s, RateFrom.OFFSETS


def has_rules(settings: ApplicationSettings) -> bool:
    """Whether there is anything to evaluate."""
    return bool(settings.completeness or settings.recomputed)


def rules_before_commit(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaConnection,
    *,
    spark: Spark,
    log: Callable[[str], None],
) -> tuple[RuleResult, ...]:
    """As a restore evaluates them: at the offsets that are to be committed."""
    return tuple(evaluate_restore(settings, restore, target, spark=spark, log=log))


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
    from kstreams_assets.completeness.evaluate import evaluate_cluster

    restored = {topic.target for topic in restore.topics}
    offsets = cluster.group_offsets(restore.group)
    return tuple(
        evaluate_cluster(
            settings,
            cluster,
            names={topic.source: topic.target for topic in restore.topics},
            committed={id_: o.offset for id_, o in offsets.items() if id_.topic in restored},
            point_id=restore.point_id,
            spark=spark,
            run_id=restore.run_id,
            rules=sorted(rules),
        )
    )


_SAMPLE: Final = 5


def compare_state(
    spark: "SparkSession",
    cluster: KafkaCluster,
    restore: StoredRestore,
    *,
    restored_ends: Mapping[TopicPartitionId, int],
    stores: Sequence[Store],
) -> tuple[StoreComparison, ...]:
    """Newest record of each key of every changelog: as it was restored, and as it is now.

    What was restored lies below `restored_ends` (exclusive, by target partition) and is as in the
    backup, record by record, since the restore was verified; the drill's topics delete and compact
    nothing, so that all of it must still be there. `stores` are those of the application.
    The application must be stopped. Raises what Spark raises when the cluster cannot be read.
    """
    topics = [topic for topic in restore.topics if TopicRole.CHANGELOG in roles_of(topic)]
    return tuple(
        _compared(
            spark,
            cluster,
            topic,
            restored_ends,
            tuple(store.name for store in stores if store.changelog == topic.source),
        )
        for topic in topics
    )


def _compared(
    spark: "SparkSession",
    cluster: KafkaCluster,
    topic: StoredTopic,
    restored_ends: Mapping[TopicPartitionId, int],
    stores: tuple[str, ...],
) -> StoreComparison:
    partitions = partitions_of(topic)
    starts = cluster.log_start_offsets(partitions)
    ends = cluster.last_stable_offsets(partitions)
    found: Mapping[str, Any] = {}
    sample: tuple[str, ...] = ()
    if any(ends[id_] > starts[id_] for id_ in partitions):
        keys = _keys(
            _records(spark, cluster, topic.target, starts, ends), restored_ends, topic.target
        ).cache()
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


def _records(
    spark: "SparkSession",
    cluster: KafkaCluster,
    topic: str,
    starts: Mapping[TopicPartitionId, int],
    ends: Mapping[TopicPartitionId, int],
) -> "DataFrame":
    def offsets(of: Mapping[TopicPartitionId, int]) -> str:
        return json.dumps({topic: {str(id_.partition): offset for id_, offset in of.items()}})

    return (
        spark.read.format("kafka")
        .options(**spark_options(cluster.connection))
        .option("kafka.isolation.level", "read_committed")
        .option("assign", json.dumps({topic: sorted(id_.partition for id_ in starts)}))
        .option("startingOffsets", offsets(starts))
        .option("endingOffsets", offsets(ends))
        .option("failOnDataLoss", "true")
        .load()
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


class _DrillEndedError(Exception):
    """A drill that does not go on; never leaves this module."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass(slots=True)
class DrillAttempt:
    """One drill, and what it knows so far."""

    settings: ApplicationSettings
    request: DrillRequest
    spark: Spark
    run_id: str
    log: Callable[[str], None]
    drill_id: str = field(default_factory=lambda: _new_id())
    began_at_ms: int = field(default_factory=lambda: _now_ms())
    phase: Phase = Phase.RESTORE
    phases: list[PhaseMeasure] = field(default_factory=list)
    restore_id: str | None = None
    restored: Restored | None = None
    application: ApplicationMeasure | None = None
    follower: Follower | None = None
    comparisons: tuple[StoreComparison, ...] = ()
    rules: list[EvaluatedRules] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    failure: Failure | None = None
    kept: str | None = None

    def execute(self) -> DrillReport:
        """Drill and judge; what goes wrong is in the report."""
        try:
            with drill_place(self.settings, self.drill_id, keep=self.request.keep) as place:
                if self.request.keep:
                    self.kept = place.name
                self._take_place(place)
        except _DrillEndedError as ended:
            self.failure = ended.failure
        except (JarsMissingError, JavaNotFoundError):
            raise  # of this machine, not of the application: no drill took place
        except KStreamsAssetsError as error:
            self.failure = Failure(self.phase, str(error))
        finally:
            self._let_point_go()
        return self._report()

    def _take_place(self, place: DrillPlace) -> None:
        with self._measured(Phase.RESTORE):
            result = self._restore(place.connection)
        with KafkaCluster(place.connection) as cluster:
            if has_rules(self.settings):
                with self._measured(Phase.COMPLETENESS):
                    self._evaluate_before(result.restore, place.connection)
            with self._measured(Phase.COMMIT):
                restore = commit_group_offsets(
                    self.settings, result.restore, place.connection, gate=require_complete
                )
            self._run_application(place, cluster, restore)
            with self._measured(Phase.COMPARISON):
                self._compare(cluster, restore, result)

    def _restore(self, target: KafkaConnection) -> RestoreResult:
        request = RestoreRequest(
            point_id=self.request.point_id,
            as_of_ms=self.request.as_of_ms,
            replication_factor=1,
            verify=VerifyExtent.FULL,
        )
        plan = plan_restore(self.settings, request, target)
        plan.require_allowed()
        self.restore_id = plan.restore_id
        self.log(f"Restoring {plan.records:,} records: {plan.restore_id}.")
        result = run_restore(
            self.settings,
            plan,
            target,
            spark=self.spark,
            run_id=self.run_id,
            log=self.log,
        )
        self.restored = restored_of(self.settings, plan, result.restore, target)
        if not result.passed:
            first = "; ".join(str(problem) for problem in result.problems[:_FEW])
            self._end(
                f"The restored topics are not as the backup: {first}. See who else writes to the"
                " drill's cluster, and whether files of the backup were changed."
            )
        return result

    def _evaluate_before(self, restore: StoredRestore, target: KafkaConnection) -> None:
        results = rules_before_commit(
            self.settings, restore, target, spark=self.spark, log=self.log
        )
        rules = EvaluatedRules(after=False, results=results)
        self.rules.append(rules)
        if any(result.blocks for result in results):
            self._end(" ".join(rule_problems(rules)))

    def _evaluate_after(self, cluster: KafkaCluster, restore: StoredRestore) -> None:
        before = [result for rules in self.rules for result in rules.results]
        judged = [r.rule for r in before if r.outcome is not Outcome.NOT_VERIFIABLE]
        if not judged:
            return
        results = rules_after_catching_up(
            self.settings, cluster, restore, rules=judged, spark=self.spark
        )
        rules = EvaluatedRules(after=True, results=results)
        self.rules.append(rules)
        self.problems += rule_problems(rules)

    def _run_application(
        self, place: DrillPlace, cluster: KafkaCluster, restore: StoredRestore
    ) -> None:
        """Start it, wait until it has caught up, stop it."""
        command = drill_command(
            self.settings,
            connection=place.connection,
            client_properties=place.client_properties,
            state_dir=place.state_dir,
        )
        follower = Follower(self.settings, restore, cluster, self.log)
        self.follower = follower
        running_line = self.settings.drill.running_line
        with self._measured(Phase.START), ExitStack() as stack:
            follower.before_start()
            application = stack.enter_context(
                DrilledApplication(command, log_file=place.log_file, running_line=running_line)
            )
            self._require(follower.until_running, application, restore, place)
            running = stack.pop_all()
        with running:
            with self._measured(Phase.CATCH_UP):
                self._require(follower.until_caught_up, application, restore, place)
            self.application = measure_of(
                application,
                restore,
                caught_up_s=follower.caught_up_s,
                state_dir=place.state_dir,
                failed=False,
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
        if failure is None:
            return
        self.application = measure_of(
            application, restore, caught_up_s=None, state_dir=place.state_dir, failed=True
        )
        raise _DrillEndedError(failure)

    def _compare(
        self, cluster: KafkaCluster, restore: StoredRestore, result: RestoreResult
    ) -> None:
        self.comparisons = compare_state(
            self.spark.spark_session,
            cluster,
            restore,
            restored_ends={p.target: p.end for p in result.produced},
            stores=self.settings.application.stores,
        )
        waiting = self.follower.waiting if self.follower is not None else None
        self.problems += state_problems(
            self.comparisons, waiting=waiting or 0, application=self.application
        )
        self._evaluate_after(cluster, restore)

    def _end(self, reason: str) -> NoReturn:
        raise _DrillEndedError(Failure(self.phase, reason))

    @contextmanager
    def _measured(self, phase: Phase) -> Iterator[None]:
        self.phase = phase
        self.log(f"Phase {phase}.")
        began_s, before = time.monotonic(), MachineUse.now()
        try:
            yield
        finally:
            busy, waited = before.shares_until(MachineUse.now())
            took_s = time.monotonic() - began_s
            self.phases.append(PhaseMeasure(phase, took_s, busy, waited))

    def _let_point_go(self) -> None:
        """A restore that is not finished keeps its recovery point; a drill's cluster is gone."""
        if self.restore_id is None or self.kept is not None:
            return
        table = RestoresTable(self.settings.warehouse)
        restore = table.newest(self.settings.application_id, self.restore_id)
        if restore is not None and not restore.is_finished:
            table.append(replace(restore, state=RestoreState.FINISHED, changed_at_ms=_now_ms()))

    def _report(self) -> DrillReport:
        follower = self.follower
        return DrillReport(
            drill_id=self.drill_id,
            application_id=self.settings.application_id,
            run_id=self.run_id,
            began_at_ms=self.began_at_ms,
            ended_at_ms=_now_ms(),
            stores=tuple(sorted(store.name for store in self.settings.application.stores)),
            objective_s=self.settings.drill.objective_s,
            phases=with_own_times(self.phases, self.application),
            restored=self.restored,
            application=self.application,
            waiting_records=follower.waiting if follower else None,
            waiting_counted=follower.waiting_counted if follower else True,
            lag=tuple(follower.lag) if follower else (),
            comparisons=self.comparisons,
            rules=tuple(self.rules),
            problems=tuple(self.problems),
            failure=self.failure,
            kept=self.kept,
        )


def _new_id() -> str:
    return f"{datetime.now(tz=UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_LOCK_WAIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class DrillRun:
    """Restores into a throwaway cluster, starts the application there, measures and judges.

    The source cluster is not needed, and never touched.
    """

    settings: ApplicationSettings
    spark: Spark
    run_id: str
    log: Callable[[str], None] = _log.info

    def execute(self, request: DrillRequest) -> DrillReport:
        """The drill's report, also written as YAML and into the table `drills`.

        Whatever goes wrong once the drill has begun is in the report. Everything is stopped and
        removed at the end, unless `request.keep`.

        Raises:
            DrillNotDeclaredError, DrillCommandNotFoundError, ConfigurationError: The application
                cannot be started; nothing was done.
            JavaNotFoundError, JarsMissingError: This machine cannot drill; nothing is recorded.
            WarehouseError: There is no warehouse, or its ledger is gone.
            WarehouseLockedError: Another drill of the application is going on.
        """
        settings = self.settings
        require_command(settings)
        require_machine()
        require_backup(settings.warehouse, settings.application_id)
        with warehouse_lock(
            settings.warehouse.lock_file(f"drill-{settings.application_id}"),
            purpose=f"drill run {self.run_id}",
            wait_s=_LOCK_WAIT_S,
        ):
            report = DrillAttempt(
                settings, request, spark=self.spark, run_id=self.run_id, log=self.log
            ).execute()
            _write(settings, report)
        self.log(f"Drill {report.drill_id} {'passed' if report.passed else 'failed'}.")
        return report


def report_file(settings: ApplicationSettings, drill_id: str) -> Path:
    """Where the report of a drill is."""
    return reports_folder(settings) / f"{drill_id}.yaml"


def _write(settings: ApplicationSettings, report: DrillReport) -> None:
    file = report_file(settings, report.drill_id)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(report_yaml(report), encoding="utf-8")
    DrillsTable(settings.warehouse).record(report)
