"""Evaluation of the completeness rules of an application.

Rules read the records of a recovery point, so that records in flight do not violate them.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from kstreams_assets.app.rules import Place, Scope
from kstreams_assets.closing import Closing
from kstreams_assets.completeness.content import EvaluationPoint, ViewPart
from kstreams_assets.completeness.planner import ContentPlanner, PointPlanner
from kstreams_assets.completeness.runnable import (
    RuleOutcome,
    Runnable,
    Verifiability,
    not_verifiable,
    runnables_of,
)
from kstreams_assets.errors import (
    KafkaError,
    RuleLimitError,
    SparkJobError,
    SparkLostError,
    TableVersionGoneError,
    TaskOutageError,
)
from kstreams_assets.home import home_failure
from kstreams_assets.model.rule_results import NO_SAMPLE, Outcome, RuleResult, Sample
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.staging import Staging
from kstreams_assets.rules.view import ViewKind
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import few
from spark_resources.outages import is_outage
from spark_resources.work import Content, Spark

if TYPE_CHECKING:
    from kstreams_assets.completeness.cluster import ClusterContents
    from kstreams_assets.kafka.cluster import KafkaCluster
    from spark_resources.rules import Views

_log = logging.getLogger(__name__)
_AT_WINDOWS = (Place.BACKUP, Place.KTABLES)
_WITHOUT_WINDOWS = not_verifiable(
    "The rule covers records since the previous window, but a restored cluster has no windows."
    " Evaluate it at a window of the backup, or remove restore from its option on."
)


class Evaluator(Closing):
    """Evaluates rules at points and windows; reads ledger and small topics only once.

    Later backups are not visible to it. Results are stored in `completeness_results`.
    `log` is called with lines about the progress. `rules` are names of rules, or
    `recompute_<store>` for a recomputed store; rules not declared for the place are skipped.
    """

    def __init__(
        self,
        settings: ApplicationSettings,
        *,
        spark: Spark,
        run_id: str,
        log: Callable[[str], None] = _log.info,
    ) -> None:
        self._settings, self._spark, self._log = settings, spark, log
        self._run_of = (settings.application_id, run_id)
        self._staging = Staging(settings.warehouse, f"completeness-{settings.application_id}")
        self._results = Repository.open(settings).results

    def window(
        self,
        window: Window,
        *,
        rules: Collection[str] | None = None,
        place: Place | None = None,
    ) -> list[RuleResult]:
        """Evaluate rules at the recovery point that ends a window.

        Stores are read from their KTable snapshots if all of them exist, otherwise from their
        changelogs; `place` selects one of both. If the window is not backed up, no rule is
        verifiable.

        Raises:
            ConfigurationError: A rule does not exist.
            NewerLayoutError: A newer release wrote the warehouse.
        """
        selected = runnables_of(self._settings, rules)
        evaluation_point = self._planner.points.of_window(window)
        if evaluation_point is not None:
            return self._at(evaluation_point, selected, place)
        found = not_verifiable(
            f"Window {window.key} is not backed up, or no recovery point was taken before it"
            " closed. Back it up, then evaluate again."
        )
        return self._recorded(
            [
                rule.result(found, where[0], *self._run_of, window=window.key)
                for rule in selected
                if (where := rule.places(place, _AT_WINDOWS))
            ]
        )

    def point(
        self,
        point_id: str,
        *,
        rules: Collection[str] | None = None,
        place: Place | None = None,
    ) -> list[RuleResult]:
        """Evaluate rules at any recovery point, otherwise as `window`.

        Rules with scope `window` cover the records after the last window that had ended.

        Raises:
            KStreamsAssetsError: The point does not exist.
            ConfigurationError, NewerLayoutError: As for `window`.
        """
        selected = runnables_of(self._settings, rules)
        return self._at(self._planner.points.of_point(point_id), selected, place)

    def cluster(
        self,
        cluster: "KafkaCluster",
        *,
        names: Mapping[str, str],
        committed: Mapping[TopicPartitionId, int],
        point_id: str,
        rules: Collection[str] | None = None,
    ) -> list[RuleResult]:
        """Evaluate rules with place `restore` on a cluster that was restored from a point.

        `names` maps source topics to target topics. `committed` are the offsets of the group on the
        target, committed or planned. Rules with scope `window` are not verifiable.

        Raises:
            KafkaError: The cluster did not answer; see the subclasses.
            ConfigurationError, NewerLayoutError: As for `window`.
        """
        from kstreams_assets.completeness.cluster import ClusterContents

        selected = [
            rule for rule in runnables_of(self._settings, rules) if Place.RESTORE in rule.rule.on
        ]
        with_windows = [rule for rule in selected if rule.rule.scope is Scope.WINDOW]
        without_windows = [rule for rule in selected if rule.rule.scope is not Scope.WINDOW]
        point = self._planner.points.point(point_id)
        contents = ClusterContents(
            self._settings,
            cluster,
            names=names,
            committed=committed,
            point_id=point_id,
            topics={
                view.topic: view.roles
                for rule in without_windows
                for view, _ in rule.views.values()
            },
            backup=None if point is None else self._planner.at(EvaluationPoint(point)),
            spark=self._spark,
            staging=self._staging,
        )
        skipped = [
            rule.result(_WITHOUT_WINDOWS, Place.RESTORE, *self._run_of, point_id=point_id)
            for rule in with_windows
        ]
        evaluated = self._run(contents, [(rule, Place.RESTORE) for rule in without_windows])
        return self._recorded([*evaluated, *skipped])

    def close(self) -> None:
        """Free the memory and remove staged files."""
        if "_views" in self.__dict__:
            self._views.close()
        self._staging.close()

    def _at(
        self, evaluation_point: EvaluationPoint, selected: Sequence[Runnable], place: Place | None
    ) -> list[RuleResult]:
        contents = self._planner.at(evaluation_point)
        placed = [(rule, where) for rule in selected if (where := _place(rule, place, contents))]
        return self._recorded(self._run(contents, placed))

    def _run(
        self, contents: "PointPlanner | ClusterContents", rules: Sequence[tuple[Runnable, Place]]
    ) -> list[RuleResult]:
        has_before = contents.evaluation_point.before is not None
        named = [
            rule.parts(of_snapshot=place is Place.KTABLES, has_before=has_before)
            for rule, place in rules
        ]
        uses = Counter(part for of_rule in named for part in set(of_rule.values()))
        shared = {part for part, count in uses.items() if count > 1}
        found = contents.verifiability_of([list(of_rule.values()) for of_rule in named])
        defined: dict[ViewPart, Content] = {}
        try:
            return [
                self._result(contents, rule, place, parts, verifiability, shared, defined)
                for (rule, place), parts, verifiability in zip(rules, named, found, strict=True)
            ]
        finally:
            if "_views" in self.__dict__:
                self._views.end_evaluation()
                self._views.forget(self._staging.root)
            self._staging.empty()

    def _result(
        self,
        contents: "PointPlanner | ClusterContents",
        rule: Runnable,
        place: Place,
        parts: Mapping[str, ViewPart],
        verifiability: Verifiability,
        shared: set[ViewPart],
        defined: dict[ViewPart, Content],
    ) -> RuleResult:
        started = time.monotonic()
        violations, sample = 0, NO_SAMPLE
        missing = contents.missing_snapshots(list(parts.values()))
        try:
            if missing:
                found = not_verifiable(
                    f"There is no KTable snapshot of {few(missing, by='; ')} at this recovery point"
                    " in the declared format. Create the snapshots of its window, or evaluate at"
                    " place backup."
                )
            elif (unrun := rule.why_not_run(verifiability)) is not None:
                found = unrun
            else:
                found, violations, sample = self._evaluated(
                    contents, rule, parts, verifiability, shared, defined
                )
        except SparkLostError:
            raise  # a lost Spark server is not a failure of the rule
        except RuleLimitError as error:
            found = RuleOutcome(Outcome.FAILED, f"Rule {rule.name} was stopped: {error}")
        except (SparkJobError, KafkaError, OSError) as error:
            if (homeless := home_failure(error)) is not None:
                raise homeless from error  # not a failure of the rule
            if is_outage(error):
                raise  # neither: the same rule may hold when the cluster or the store answers
            problem = str(error) if isinstance(error, OSError) else error.problem
            reason = contents.scrub(problem).rstrip(".")
            found = RuleOutcome(
                Outcome.FAILED,
                f"The rule could not be evaluated: {reason}. Correct the cause and evaluate again.",
            )
        evaluation_point = contents.evaluation_point
        result = rule.result(
            found,
            place,
            *self._run_of,
            point_id=evaluation_point.point.id,
            window=evaluation_point.window,
            violations=violations,
            sample=sample,
            took_s=time.monotonic() - started,
        )
        at = f"window {result.window}" if result.window else f"point {result.point_id}"
        self._log(
            f"Rule {result.rule} at {at} ({result.place}): {result.outcome},"
            f" {result.violations:,} rows in violation, {result.took_ms / 1000:.1f} s."
        )
        return result

    def _evaluated(
        self,
        contents: "PointPlanner | ClusterContents",
        rule: Runnable,
        parts: Mapping[str, ViewPart],
        verifiability: Verifiability,
        shared: set[ViewPart],
        defined: dict[ViewPart, Content],
    ) -> tuple[RuleOutcome, int, Sample]:
        """Run a rule; again from lists of files if a table version has gone meanwhile."""
        try:
            self._define(contents, parts, shared, defined)
            return self._ran(contents, rule, parts, verifiability)
        except TableVersionGoneError as error:
            _log.warning("%s Rule %s reads lists of files instead.", error.problem, rule.name)
            self._views.read_files()
            self._define(contents, parts, shared, defined)
            return self._ran(contents, rule, parts, verifiability)

    def _define(
        self,
        contents: "PointPlanner | ClusterContents",
        parts: Mapping[str, ViewPart],
        shared: set[ViewPart],
        defined: dict[ViewPart, Content],
    ) -> None:
        from spark_resources.rules import tune

        for part in parts.values():
            if part not in defined:
                defined[part] = contents.content(part)
        views = self._views
        # Tune first, because a definition plans which data is kept in memory.
        tune(views.session, sum(defined[part].records for part in {*parts.values()}))
        for name, part in parts.items():
            views.define(name, part, defined[part], is_shared=part in shared)

    def _ran(
        self,
        contents: "PointPlanner | ClusterContents",
        rule: Runnable,
        parts: Mapping[str, ViewPart],
        verifiability: Verifiability,
    ) -> tuple[RuleOutcome, int, Sample]:
        from spark_resources.rules import run_number, run_rule

        session, limits = self._views.session, rule.rule.limits
        try:
            late = run_number(session, rule.late_sql, limits) if rule.late_sql else 0
            returned = run_rule(session, rule.rule.query, limits)
        except TaskOutageError:
            raise
        except SparkLostError as error:
            raise SparkLostError(
                f"{error.problem.rstrip('.')}, while rule {rule.name} was evaluated.",
                remedy=f"{error.remedy} If the engine ends at this rule again, the query needs more"
                " memory than the engine has. Increase KSTREAMS_ASSETS_SPARK_DRIVER_MEMORY (2g), or"
                " let the query collect fewer rows.",
            ) from error
        if late:
            differ = f"{returned.count:,} differences were found"
            found = not_verifiable(
                f"{late:,} records may have arrived after their window had closed. Whether the"
                " application counted them depends on restarts and on the order of partitions;"
                f" {differ if returned.count else 'no key differs'}. Check these windows with a"
                " balance, or use a longer grace period."
            )
            return found, returned.count, returned.sample
        compacted = ""
        if returned.count and rule.counts_all:
            views = [part for part in parts.values() if part.view.kind is ViewKind.TOPIC]
            compacted = contents.compacted(views)
        point_id, unexplained = contents.evaluation_point.point.id, None
        allowance = rule.allowance(verifiability) if returned.count else None
        shown = returned
        if allowance is not None:
            beyond = run_rule(session, allowance.sql, limits)
            total = allowance.total_sql and run_number(session, allowance.total_sql, limits)
            if beyond.count:
                shown, unexplained = beyond, beyond.count
            elif total and total > allowance.most:
                unexplained = returned.count
            elif allowance.is_bounded:
                unexplained = 0
        found = rule.outcome(
            verifiability,
            returned.count,
            point_id,
            compacted=compacted,
            unexplained=unexplained,
            is_more=shown.is_more,
        )
        return found, shown.count, shown.sample

    def _recorded(self, results: list[RuleResult]) -> list[RuleResult]:
        self._results.record(results)
        return results

    @cached_property
    def _views(self) -> "Views":
        from spark_resources.rules import Views

        schemas = Repository.open(self._settings).schemas.all()
        return Views(self._spark.spark_session, schemas)

    @cached_property
    def _planner(self) -> ContentPlanner:
        return ContentPlanner(self._settings, self._staging)


def _place(rule: Runnable, asked: Place | None, contents: PointPlanner) -> Place | None:
    """Return the place of an evaluation at a point: snapshots, if all of them exist."""
    places = rule.places(asked, _AT_WINDOWS)
    if len(places) < 2:
        return places[0] if places else None
    has_before = contents.evaluation_point.before is not None
    parts = list(rule.parts(of_snapshot=True, has_before=has_before).values())
    if rule.has_stores and not contents.missing_snapshots(parts):
        return Place.KTABLES
    return Place.BACKUP
