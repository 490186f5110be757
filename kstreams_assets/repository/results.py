"""The table of results of completeness rules."""

from collections.abc import Collection, Sequence

import pyarrow.compute as pc

from kstreams_assets.app.rules import Place
from kstreams_assets.model.rule_results import Outcome, RuleResult, RuleStanding
from kstreams_assets.model.tables import RESULTS
from kstreams_assets.repository.table import ApplicationTable, one_of


class ResultsTable(ApplicationTable[RuleResult], spec=RESULTS):
    """Results of one application; another evaluation of a rule adds another row."""

    def record(self, results: Sequence[RuleResult]) -> None:
        """Store results, in one commit."""
        if not results:
            return
        self._table.append(results)

    def newest(self, count: int) -> list[RuleResult]:
        """The newest results, newest first, at constant cost."""
        return _in_order(self._table.newest_rows(count))[::-1][:count]

    def standings(self, rules: Collection[str]) -> list[RuleStanding]:
        """The state of these rules at each place where they were evaluated, by rule and place."""
        where = one_of("rule", rules)
        names = ["rule", "place", "outcome", "evaluated_at_ms"]
        slim = self._table.read(columns=names, where=where)
        by_outcome = slim.group_by(names[:3]).aggregate([(names[3], "count")])
        counts = {
            (row["rule"], row["place"], Outcome(row["outcome"])): row["evaluated_at_ms_count"]
            for row in by_outcome.to_pylist()
        }
        times = slim.group_by(names[:2]).aggregate([(names[3], "max")])["evaluated_at_ms_max"]
        at_times = where & pc.field("evaluated_at_ms").isin(times.combine_chunks())
        found = self._table.rows(at_times)
        last = {(result.rule, result.place): result for result in _in_order(found)}
        return [
            RuleStanding(
                last[rule, place],
                {outcome: counts.get((rule, place, outcome), 0) for outcome in Outcome},
            )
            for rule, place in sorted(last)
        ]

    def of(
        self,
        *,
        rules: Collection[str] | None = None,
        windows: Collection[str] | None = None,
        points: Collection[str] | None = None,
        places: Collection[Place] | None = None,
        run_id: str | None = None,
    ) -> list[RuleResult]:
        """The results of these rules, windows (keys), recovery points, places; the newest last."""
        where = pc.scalar(True)
        for column, values in (
            ("rule", rules),
            ("window", windows),
            ("point_id", points),
            ("place", places),
            ("run_id", None if run_id is None else [run_id]),
        ):
            if values is not None:
                where &= one_of(column, map(str, values))
        return _in_order(self._table.rows(where))


def _in_order(results: list[RuleResult]) -> list[RuleResult]:
    return sorted(results, key=lambda result: result.evaluated_at_ms)
