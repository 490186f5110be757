"""Evaluates the completeness rules of an application as it is configured.

Rules see what belongs to a recovery point, so records in flight are no violation.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from kstreams_assets.app.rules import Place, Scope
from kstreams_assets.closing import Closing
from kstreams_assets.completeness.content import Moment, ViewPart
from kstreams_assets.completeness.planner import ContentPlanner, MomentPlanner
from kstreams_assets.completeness.runnable import (
    Judged,
    Runnable,
    Standing,
    not_verifiable,
    runnables_of,
)
from kstreams_assets.errors import KafkaError, RuleLimitError, SparkJobError, SparkLostError
from kstreams_assets.home import home_failure
from kstreams_assets.model.rule_results import NO_SAMPLE, Outcome, RuleResult, Sample
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.staging import Staging
from kstreams_assets.rules.view import ViewKind
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import few
from spark_resources.work import Content, Spark

if TYPE_CHECKING:
    from kstreams_assets.completeness.cluster import ClusterContents
    from kstreams_assets.kafka.cluster import KafkaCluster
    from spark_resources.rules import Views

_log = logging.getLogger(__name__)
_AT_WINDOWS = (Place.BACKUP, Place.KTABLES)
_WITHOUT_WINDOWS = not_verifiable(
    "It is about what is new since the window before, and a restored cluster has no windows."
    " Evaluate it at the window of the backup, or leave restore out of its on."
)


class Evaluator(Closing):
    """Evaluates at any number of points and windows; reads ledger and small topics only once.

    Backups that are made later do not show in it. Results are stored in `completeness_results`.
    `log` takes lines on the progress. Everywhere `rules` are names, of a recomputed store
    `recompute_<store>`; rules that are not declared for the place are left out.
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

        Stores come from their KTable snapshots where a rule finds all of them, else from their
        changelogs; `place` forces one. A window that is not backed up makes every rule not
        verifiable.

        Raises:
            ConfigurationError: There is no rule of a name.
            NewerLayoutError: A newer release wrote the warehouse.
        """
        wanted = runnables_of(self._settings, rules)
        moment = self._planner.moments.of_window(window)
        if moment is not None:
            return self._at(moment, wanted, place)
        found = not_verifiable(
            f"Window {window.key} is not backed up, or no recovery point was taken before it"
            " closed. Back it up, then evaluate again."
        )
        return self._recorded(
            [
                rule.result(found, where[0], *self._run_of, window=window.key)
                for rule in wanted
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

        For rules with scope `window` what is new is what came after the last window that had ended.

        Raises:
            KStreamsAssetsError: There is no point with this id.
            ConfigurationError, NewerLayoutError.
        """
        wanted = runnables_of(self._settings, rules)
        return self._at(self._planner.moments.of_point(point_id), wanted, place)

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

        `names` are the target's topics by those of the source, `committed` the offsets of the group
        on the target, committed or about to be. Rules with scope `window` are not verifiable.

        Raises:
            KafkaError: Its subclasses say why the cluster could not be asked.
            ConfigurationError, NewerLayoutError.
        """
        from kstreams_assets.completeness.cluster import ClusterContents

        wanted = [
            rule for rule in runnables_of(self._settings, rules) if Place.RESTORE in rule.rule.on
        ]
        with_windows = [rule for rule in wanted if rule.rule.scope is Scope.WINDOW]
        rest = [rule for rule in wanted if rule.rule.scope is not Scope.WINDOW]
        point = self._planner.moments.point(point_id)
        contents = ClusterContents(
            self._settings,
            cluster,
            names=names,
            committed=committed,
            point_id=point_id,
            topics={view.topic: view.roles for rule in rest for view, _ in rule.views.values()},
            backup=None if point is None else self._planner.at(Moment(point)),
            spark=self._spark,
            staging=self._staging,
        )
        told = [
            rule.result(_WITHOUT_WINDOWS, Place.RESTORE, *self._run_of, point_id=point_id)
            for rule in with_windows
        ]
        found = self._run(contents, [(rule, Place.RESTORE) for rule in rest])
        return self._recorded([*found, *told])

    def close(self) -> None:
        """Free the memory and remove staged files."""
        if "_views" in self.__dict__:
            self._views.close()
        self._staging.close()

    def _at(
        self, moment: Moment, wanted: Sequence[Runnable], place: Place | None
    ) -> list[RuleResult]:
        contents = self._planner.at(moment)
        placed = [(rule, where) for rule in wanted if (where := _place(rule, place, contents))]
        return self._recorded(self._run(contents, placed))

    def _run(
        self, contents: "MomentPlanner | ClusterContents", rules: Sequence[tuple[Runnable, Place]]
    ) -> list[RuleResult]:
        has_before = contents.moment.before is not None
        named = [
            rule.parts(of_snapshot=place is Place.KTABLES, has_before=has_before)
            for rule, place in rules
        ]
        uses = Counter(part for of_rule in named for part in set(of_rule.values()))
        shared = {part for part, count in uses.items() if count > 1}
        standings = contents.standings([list(of_rule.values()) for of_rule in named])
        defined: dict[ViewPart, Content] = {}
        try:
            return [
                self._result(contents, rule, place, parts, standing, shared, defined)
                for (rule, place), parts, standing in zip(rules, named, standings, strict=True)
            ]
        finally:
            if "_views" in self.__dict__:
                self._views.end_evaluation()
                self._views.forget(self._staging.root)
            self._staging.empty()

    def _result(
        self,
        contents: "MomentPlanner | ClusterContents",
        rule: Runnable,
        place: Place,
        parts: Mapping[str, ViewPart],
        standing: Standing,
        shared: set[ViewPart],
        defined: dict[ViewPart, Content],
    ) -> RuleResult:
        began = time.monotonic()
        violations, sample = 0, NO_SAMPLE
        lacking = contents.lacking_snapshots(list(parts.values()))
        try:
            if lacking:
                found = not_verifiable(
                    f"There is no KTable snapshot of {few(lacking, by='; ')} at this recovery point"
                    " in the format that is declared now. Make the snapshots of its window, or"
                    " evaluate at place backup."
                )
            elif (unrun := rule.why_not_run(standing)) is not None:
                found = unrun
            else:
                self._define(contents, parts, shared, defined)
                found, violations, sample = self._ran(contents, rule, parts, standing)
        except SparkLostError:
            raise  # no rule fails for want of a server
        except RuleLimitError as error:
            found = Judged(Outcome.FAILED, f"Rule {rule.name} was ended: {error}")
        except (SparkJobError, KafkaError, OSError) as error:
            if (homeless := home_failure(error)) is not None:
                raise homeless from error  # no fault of the rule
            told = str(error) if isinstance(error, OSError) else error.problem
            reason = contents.scrub(told).rstrip(".")
            found = Judged(
                Outcome.FAILED,
                f"It could not be evaluated: {reason}. Correct the rule, or what the reason names,"
                " and evaluate again.",
            )
        moment = contents.moment
        result = rule.result(
            found,
            place,
            *self._run_of,
            point_id=moment.point.id,
            window=moment.window,
            violations=violations,
            sample=sample,
            took_s=time.monotonic() - began,
        )
        at = f"window {result.window}" if result.window else f"point {result.point_id}"
        self._log(
            f"Rule {result.rule} at {at} ({result.place}): {result.outcome},"
            f" {result.violations:,} rows in violation, {result.took_ms / 1000:.1f} s."
        )
        return result

    def _define(
        self,
        contents: "MomentPlanner | ClusterContents",
        parts: Mapping[str, ViewPart],
        shared: set[ViewPart],
        defined: dict[ViewPart, Content],
    ) -> None:
        from spark_resources.rules import tune

        for part in parts.values():
            if part not in defined:
                defined[part] = contents.content(part)
        views = self._views
        # Before anything is defined: what is kept in memory is planned then.
        tune(views.session, sum(defined[part].records for part in {*parts.values()}))
        for name, part in parts.items():
            views.define(name, part, defined[part], is_shared=part in shared)

    def _ran(
        self,
        contents: "MomentPlanner | ClusterContents",
        rule: Runnable,
        parts: Mapping[str, ViewPart],
        standing: Standing,
    ) -> tuple[Judged, int, Sample]:
        from spark_resources.rules import run_number, run_rule

        session, limits = self._views.session, rule.rule.limits
        try:
            late = run_number(session, rule.late_sql, limits) if rule.late_sql else 0
            returned = run_rule(session, rule.rule.query, limits)
        except SparkLostError as error:
            raise SparkLostError(
                f"{error.problem.rstrip('.')}, while rule {rule.name} was evaluated.",
                remedy=f"{error.remedy} If it ends at this rule again, the query of the rule needs"
                " more memory than the engine has (KSTREAMS_ASSETS_SPARK_DRIVER_MEMORY, 2g): raise"
                " that, or have the rule collect less.",
            ) from error
        if late:
            differ = f"{returned.count:,} differences were found"
            found = not_verifiable(
                f"{late:,} records may have come after their window had closed: whether they were"
                " counted depends on restarts and on the order of partitions;"
                f" {differ if returned.count else 'no key differs'}. Check these windows with a"
                " balance, or lengthen the grace period."
            )
            return found, returned.count, returned.sample
        compacted = ""
        if returned.count and rule.counts_all:
            views = [part for part in parts.values() if part.view.kind is ViewKind.TOPIC]
            compacted = contents.compacted(views)
        point_id, unexplained = contents.moment.point.id, None
        allowance = rule.allowance(standing) if returned.count else None
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
        found = rule.judged(
            standing,
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


def _place(rule: Runnable, asked: Place | None, contents: MomentPlanner) -> Place | None:
    """Where a rule is evaluated at a point: stores from snapshots if it has all of them."""
    places = rule.places(asked, _AT_WINDOWS)
    if len(places) < 2:
        return places[0] if places else None
    has_before = contents.moment.before is not None
    parts = list(rule.parts(of_snapshot=True, has_before=has_before).values())
    if rule.has_stores and not contents.lacking_snapshots(parts):
        return Place.KTABLES
    return Place.BACKUP
