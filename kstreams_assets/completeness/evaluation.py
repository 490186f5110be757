"""Runs rules over the views of one recovery point, one after the other."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from kstreams_assets.completeness.content import Content, Moment, SnapshotRows, ViewPart
from kstreams_assets.completeness.result import RuleKind, RuleResult, Sample
from kstreams_assets.completeness.rule import Place
from kstreams_assets.completeness.runnable import Runnable
from kstreams_assets.completeness.standing import (
    Judged,
    Standing,
    failed,
    judged,
    late_records,
    no_snapshot,
    not_run,
)
from kstreams_assets.completeness.view import ViewKind

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
