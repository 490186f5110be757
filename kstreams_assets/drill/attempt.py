"""What happens in a drill, phase by phase."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, NoReturn

from kstreams_assets.backup.run import Spark
from kstreams_assets.completeness.result import Outcome
from kstreams_assets.drill.command import drill_command
from kstreams_assets.drill.comparison import compare_state
from kstreams_assets.drill.facts import measure_of, restored_of
from kstreams_assets.drill.follow import Follower
from kstreams_assets.drill.judgement import rule_problems, state_problems
from kstreams_assets.drill.measure import MachineUse
from kstreams_assets.drill.place import DrillPlace, drill_place
from kstreams_assets.drill.process import DrilledApplication
from kstreams_assets.drill.report import (
    ApplicationMeasure,
    DrillReport,
    EvaluatedRules,
    Failure,
    Phase,
    PhaseMeasure,
    Restored,
    StoreComparison,
    with_own_times,
)
from kstreams_assets.drill.request import DrillRequest
from kstreams_assets.drill.rules import (
    has_rules,
    rules_after_catching_up,
    rules_before_commit,
)
from kstreams_assets.errors import (
    JarsMissingError,
    JavaNotFoundError,
    KafkaError,
    KStreamsAssetsError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.restore.from_settings import commit_group_offsets, plan_restore, run_restore
from kstreams_assets.restore.request import RestoreRequest, VerifyExtent
from kstreams_assets.restore.restores_table import RestoresTable, RestoreState, StoredRestore
from kstreams_assets.restore.run import RestoreResult
from kstreams_assets.settings import ApplicationSettings

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
                restore = commit_group_offsets(self.settings, result.restore, place.connection)
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
