"""Evaluates the completeness rules of an application as it is configured.

Rules see what belongs to a recovery point, so records in flight are no violation.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from kstreams_assets.backup.run import Spark
from kstreams_assets.closing import Closing
from kstreams_assets.completeness.cluster import ClusterContents, needed_topics
from kstreams_assets.completeness.content import Content, Moment, SnapshotRows, ViewPart
from kstreams_assets.completeness.planner import ContentPlanner, MomentPlanner, Staging
from kstreams_assets.completeness.result import ResultsTable, RuleKind, RuleResult, Sample
from kstreams_assets.completeness.rule import Place, Scope
from kstreams_assets.completeness.runnable import (
    Judged,
    Runnable,
    Standing,
    failed,
    judged,
    late_records,
    no_snapshot,
    not_run,
    runnables_of,
    window_not_backed_up,
    without_windows,
)
from kstreams_assets.completeness.view import ViewKind
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.schemas import RegisteredSchema, schemas_of
from kstreams_assets.warehouse.spans import Window

if TYPE_CHECKING:
    from spark_resources.rules import Views


class Contents(Protocol):
    """What there is at one point, in a backup or on a cluster."""

    @property
    def moment(self) -> Moment: ...

    def content(self, asked: ViewPart) -> Content:
        """The rows of a view."""
        ...

    def standings(self, views: Sequence[Sequence[ViewPart]]) -> list[Standing]:
        """What stands against judging each of some rules, given the views of each."""
        ...

    def lacking_snapshots(self, views: Sequence[ViewPart]) -> list[str]:
        """Stores among these that are to come from a snapshot, and have none."""
        ...

    def scrub(self, text: str) -> str:
        """A text without secrets."""
        ...

    def compacted(self, views: Sequence[ViewPart]) -> str:
        """Topics among these that lack records which compaction removed, in words."""
        ...


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation: rules over what there is at one point. `views` starts Spark on first use."""

    application_id: str
    run_id: str
    contents: Contents
    views: "Callable[[], Views]"
    log: Callable[[str], None]

    def run(self, rules: Sequence[tuple[Runnable, Place]]) -> list[RuleResult]:
        """The results of rules, each at a place."""
        moment = self.contents.moment
        named = [
            rule.parts(of_snapshot=place is Place.KTABLES, has_before=moment.before is not None)
            for rule, place in rules
        ]
        uses = Counter(part for of_rule in named for part in set(of_rule.values()))
        shared = {part for part, count in uses.items() if count > 1}
        standings = self.contents.standings([list(of_rule.values()) for of_rule in named])
        defined: dict[ViewPart, Content] = {}
        return [
            self._result(rule, place, parts, standing, shared, defined)
            for (rule, place), parts, standing in zip(rules, named, standings, strict=True)
        ]

    def _result(
        self,
        rule: Runnable,
        place: Place,
        parts: Mapping[str, ViewPart],
        standing: Standing,
        shared: set[ViewPart],
        defined: dict[ViewPart, Content],
    ) -> RuleResult:
        from spark_resources.failures import SparkJobError

        began = time.monotonic()
        violations, sample = 0, Sample()
        try:
            found = self._unrun(rule, parts, standing)
            if found is None:
                self._define(parts, shared, defined)
                found, violations, sample = self._ran(rule, parts, standing)
        except (SparkJobError, OSError) as error:
            found = failed(self.contents.scrub(str(error)))
        moment = self.contents.moment
        result = rule.result(
            found,
            place,
            application_id=self.application_id,
            run_id=self.run_id,
            point_id=moment.point.id,
            window=moment.window,
        )
        result = replace(
            result,
            violations=violations,
            sample=sample,
            took_ms=round(1000 * (time.monotonic() - began)),
        )
        self.log(_told(result))
        return result

    def _unrun(
        self, rule: Runnable, parts: Mapping[str, ViewPart], standing: Standing
    ) -> Judged | None:
        """How a rule comes out that need not be run; None if it must."""
        lacking = self.contents.lacking_snapshots(list(parts.values()))
        if lacking:
            return no_snapshot(lacking)
        if standing.keeps_from_judging(is_balance=rule.counts_all):
            return not_run(standing, rule.scope, is_recomputed=rule.kind is RuleKind.RECOMPUTE)
        return None

    def _define(
        self,
        parts: Mapping[str, ViewPart],
        shared: set[ViewPart],
        defined: dict[ViewPart, Content],
    ) -> None:
        from spark_resources.rules import define_view, tune

        for part in parts.values():
            if part not in defined:
                defined[part] = self.contents.content(part)
        # Before anything is defined: what is kept in memory is planned then.
        tune(self.views().session, sum(_records(defined[part]) for part in {*parts.values()}))
        for name, part in parts.items():
            define_view(self.views(), name, part, defined[part], is_shared=part in shared)

    def _ran(
        self, rule: Runnable, parts: Mapping[str, ViewPart], standing: Standing
    ) -> tuple[Judged, int, Sample]:
        from spark_resources.rules import run_number, run_rule

        session = self.views().session
        late = run_number(session, rule.late_sql, rule.timeout_s) if rule.late_sql else 0
        returned = run_rule(session, rule.sql, rule.timeout_s)
        if late:
            return late_records(late, returned.count), returned.count, returned.sample
        compacted = ""
        if returned.count and rule.counts_all:
            views = [part for part in parts.values() if part.view.kind is ViewKind.TOPIC]
            compacted = self.contents.compacted(views)
        found = judged(
            standing,
            returned.count,
            self.contents.moment.point.id,
            is_balance=rule.counts_all,
            compacted=compacted,
        )
        return found, returned.count, returned.sample


def _records(content: Content) -> int:
    return content.rows if isinstance(content, SnapshotRows) else content.records


def _told(result: RuleResult) -> str:
    at = f"window {result.window}" if result.window else f"point {result.point_id}"
    return (
        f"Rule {result.rule} at {at} ({result.place}): {result.outcome},"
        f" {result.violations:,} rows in violation, {result.took_ms / 1000:.1f} s."
    )


_log = logging.getLogger(__name__)
_AT_WINDOWS = (Place.BACKUP, Place.KTABLES)


class Evaluator(Closing):
    """Evaluates at any number of points and windows; reads ledger and small topics only once.

    Backups that are made later do not show in it. Results are stored in `completeness_results`.
    `log` takes lines on the progress.
    """

    def __init__(
        self,
        settings: ApplicationSettings,
        *,
        spark: Spark,
        run_id: str,
        log: Callable[[str], None] = _log.info,
    ) -> None:
        self._settings, self._spark, self._run_id, self._log = settings, spark, run_id, log
        self._staging = Staging(settings.warehouse, settings.application_id)
        self._results = ResultsTable(settings.warehouse)
        self._views: Views | None = None

    def window(
        self,
        window: Window,
        *,
        rules: Collection[str] | None = None,
        place: Place | None = None,
    ) -> list[RuleResult]:
        """The rules at the recovery point that ends a window; see `evaluate_window`."""
        wanted = runnables_of(self._settings, rules)
        moment = self._planner.moments.of_window(window)
        if moment is not None:
            return self._at(moment, wanted, place)
        judged = window_not_backed_up(window.key)
        return self._record(
            [
                self._unrun(rule, judged, where[0], window=window.key)
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
        """The rules at a recovery point; see `evaluate_point`."""
        wanted = runnables_of(self._settings, rules)
        return self._at(self._planner.moments.of_point(point_id), wanted, place)

    def cluster(
        self,
        cluster: KafkaCluster,
        *,
        names: Mapping[str, str],
        committed: Mapping[TopicPartitionId, int],
        point_id: str,
        rules: Collection[str] | None = None,
        place: Place = Place.RESTORE,
    ) -> list[RuleResult]:
        """The rules on a cluster; see `evaluate_cluster`."""
        wanted = [r for r in runnables_of(self._settings, rules) if place in r.on]
        with_windows = [rule for rule in wanted if rule.scope is Scope.WINDOW]
        wanted = [rule for rule in wanted if rule.scope is not Scope.WINDOW]
        point = self._planner.moments.point(point_id)
        contents = ClusterContents(
            self._settings,
            cluster,
            names=names,
            committed=committed,
            point_id=point_id,
            topics=needed_topics(wanted),
            backup=None if point is None else self._planner.at(Moment(point)),
        )
        told = [
            self._unrun(rule, without_windows(), place, point_id=point_id) for rule in with_windows
        ]
        try:
            found = self._run(
                contents, [(rule, place) for rule in wanted], lambda: self._cluster_views(contents)
            )
        finally:
            if self._views is not None:
                self._views.forget_cluster()
        return self._record([*found, *told])

    def close(self) -> None:
        """Free the memory and remove staged files."""
        if self._views is not None:
            self._views.close()
        self._staging.close()

    def _at(
        self, moment: Moment, wanted: Sequence[Runnable], place: Place | None
    ) -> list[RuleResult]:
        contents = self._planner.at(moment)
        placed = [(rule, where) for rule in wanted if (where := self._place(rule, place, contents))]
        return self._record(self._run(contents, placed, self._get_views))

    def _place(self, rule: Runnable, asked: Place | None, contents: MomentPlanner) -> Place | None:
        """Where a rule is evaluated at a point: stores from snapshots if it has all of them."""
        places = rule.places(asked, _AT_WINDOWS)
        if len(places) < 2:
            return places[0] if places else None
        has_before = contents.moment.before is not None
        parts = list(rule.parts(of_snapshot=True, has_before=has_before).values())
        if rule.has_stores and not contents.lacking_snapshots(parts):
            return Place.KTABLES
        return Place.BACKUP

    def _run(
        self,
        contents: Contents,
        rules: Sequence[tuple[Runnable, Place]],
        views: "Callable[[], Views]",
    ) -> list[RuleResult]:
        name = self._settings.application_id
        try:
            return Evaluation(name, self._run_id, contents, views, self._log).run(rules)
        finally:
            if self._views is not None:
                self._views.end_evaluation()
            self._staging.empty()

    def _unrun(
        self,
        rule: Runnable,
        judged: Judged,
        place: Place,
        *,
        window: str | None = None,
        point_id: str = "",
    ) -> RuleResult:
        return rule.result(
            judged,
            place,
            application_id=self._settings.application_id,
            run_id=self._run_id,
            window=window,
            point_id=point_id,
        )

    def _record(self, results: list[RuleResult]) -> list[RuleResult]:
        self._results.record(results)
        return results

    def _cluster_views(self, contents: ClusterContents) -> "Views":
        views = self._get_views()
        if views.cluster is None:
            views.cluster = contents.read(views.session)
        return views

    def _get_views(self) -> "Views":
        if self._views is None:
            from spark_resources.rules import Views

            self._views = Views(self._spark.spark_session, self._schemas)
        return self._views

    @cached_property
    def _planner(self) -> ContentPlanner:
        return ContentPlanner(self._settings, self._staging)

    @cached_property
    def _schemas(self) -> Mapping[int, RegisteredSchema]:
        return schemas_of(self._settings.warehouse, self._settings.application_id)


def evaluate_window(
    settings: ApplicationSettings,
    window: Window,
    *,
    spark: Spark,
    run_id: str,
    rules: Collection[str] | None = None,
    place: Place | None = None,
    log: Callable[[str], None] = _log.info,
) -> list[RuleResult]:
    """Evaluate rules at the recovery point that ends a window, and store the results.

    Stores come from their KTable snapshots where a rule finds all of them, else from their
    changelogs; `place` forces one. Rules that are not declared for the place are left out. `rules`
    are names, of a recomputed store `recompute_<store>`. A window that is not backed up makes every
    rule not verifiable.

    Raises:
        ConfigurationError: There is no rule of a name.
        NewerLayoutError: A newer release wrote the warehouse.
    """
    with Evaluator(settings, spark=spark, run_id=run_id, log=log) as evaluator:
        return evaluator.window(window, rules=rules, place=place)


def evaluate_point(
    settings: ApplicationSettings,
    point_id: str,
    *,
    spark: Spark,
    run_id: str,
    rules: Collection[str] | None = None,
    place: Place | None = None,
    log: Callable[[str], None] = _log.info,
) -> list[RuleResult]:
    """Evaluate rules at any recovery point, and store the results; see `evaluate_window`.

    For rules with scope `window` what is new is what came after the last window that had ended.

    Raises:
        RecoveryPointNotFoundError: There is no point with this id.
        ConfigurationError, NewerLayoutError.
    """
    with Evaluator(settings, spark=spark, run_id=run_id, log=log) as evaluator:
        return evaluator.point(point_id, rules=rules, place=place)


def evaluate_cluster(
    settings: ApplicationSettings,
    cluster: KafkaCluster,
    *,
    names: Mapping[str, str],
    committed: Mapping[TopicPartitionId, int],
    point_id: str,
    spark: Spark,
    run_id: str,
    rules: Collection[str] | None = None,
    place: Place = Place.RESTORE,
    log: Callable[[str], None] = _log.info,
) -> list[RuleResult]:
    """Evaluate rules on a cluster that was restored from a point, and store the results.

    `names` are the target's topics by those of the source, `committed` the offsets of the group on
    the target, committed or about to be. Rules that are not declared for the place are left out;
    those with scope `window` are not verifiable.

    Raises:
        KafkaError: Its subclasses say why the cluster could not be asked.
        ConfigurationError, NewerLayoutError.
    """
    with Evaluator(settings, spark=spark, run_id=run_id, log=log) as evaluator:
        return evaluator.cluster(
            cluster, names=names, committed=committed, point_id=point_id, rules=rules, place=place
        )
