"""How completeness rules, and recomputations of stores, came out, and the table that keeps it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import pyarrow.compute as pc

from kstreams_assets.checks import Severity
from kstreams_assets.completeness.rule import Place
from kstreams_assets.warehouse.column import ApplicationId, Column, Columns
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.table import Table, one_of


class Outcome(StrEnum):
    """What an evaluation found.

    `not_verifiable`: it can neither be said to hold nor to be violated, never counted as passed.
    `failed`: it could not be evaluated.
    """

    PASSED = "passed"
    VIOLATED = "violated"
    NOT_VERIFIABLE = "not_verifiable"
    FAILED = "failed"


class RuleKind(StrEnum):
    """Whether a user wrote the rule, or a declared store was recomputed from its inputs."""

    RULE = "rule"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class Sample:
    """The first rows in violation, as text; null is None."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One evaluation of one rule, a row of the table `completeness_results`."""

    application_id: ApplicationId
    rule: Annotated[str, Column("Name of the rule; `recompute_<store>` of a recomputed store.")]
    kind: Annotated[RuleKind, Column("`rule` or `recompute`.")]
    place: Annotated[Place, Column("Where it was evaluated: `backup`, `ktables` or `restore`.")]
    point_id: Annotated[str, Column("The recovery point; of a restore the one it was made from.")]
    window: Annotated[
        str | None,
        Column("The window that the point ends; null at other points and on restores."),
    ]
    outcome: Annotated[Outcome, Column("`passed`, `violated`, `not_verifiable` or `failed`.")]
    explanation: Annotated[str, Column("What was found, and what to do when it did not pass.")]
    severity: Annotated[Severity, Column("As declared: `error` or `warn`.")]
    blocking: Annotated[
        bool, Column("Whether a violation keeps group offsets from being committed.")
    ]
    violations: Annotated[int, Column("Number of rows in violation.")] = 0
    sample: Annotated[
        Sample,
        Columns(
            columns=Column("Columns of the first rows in violation.", name="sample_columns"),
            rows=Column("These rows, at most 20, as text; null is null.", name="sample_rows"),
        ),
    ] = Sample()
    stores_from: Annotated[
        str,
        Column("Where the content of stores came from; empty where no store was looked at."),
    ] = ""
    took_ms: Annotated[int, Column("How long it took.")] = 0
    evaluated_at_ms: Annotated[
        int, Column("When, epoch milliseconds; the newest of a rule, place and point counts.")
    ] = 0
    run_id: Annotated[
        str, Column("Dagster run, or `cli-...`; of a restore the run that made it.")
    ] = ""

    @property
    def passed(self) -> bool:
        """Whether the rule was seen to hold."""
        return self.outcome is Outcome.PASSED

    @property
    def blocks(self) -> bool:
        """Whether a restore must not go on: a blocking rule did not pass."""
        if not self.blocking or self.severity is not Severity.ERROR:
            return False
        return self.outcome in (Outcome.VIOLATED, Outcome.FAILED)


@dataclass(frozen=True, slots=True)
class RuleStanding:
    """How a rule stands at one place: its newest result, and how often it came out how."""

    newest: RuleResult
    evaluations: Mapping[Outcome, int]


class ResultsTable:
    """Results of all applications; a rule that is evaluated again gets another row."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = Table(
            warehouse.control("completeness_results"),
            RuleResult,
            grows_along="evaluated_at_ms",
            statistics=("evaluated_at_ms", "window", "point_id", "run_id"),
        )

    def record(self, results: Sequence[RuleResult]) -> None:
        """Store results, in one commit."""
        if not results:
            return
        self._table.append(results)

    def newest(self, application_id: str, count: int) -> list[RuleResult]:
        """The newest results of an application, newest first; what it costs does not grow."""
        return _in_order(self._table.newest_rows(application_id, count))[::-1][:count]

    def standings(self, application_id: str, rules: Collection[str]) -> list[RuleStanding]:
        """How these rules stand at each place where they were evaluated, by rule and place."""
        where = one_of("rule", rules)
        names = ["rule", "place", "outcome", "evaluated_at_ms"]
        slim = self._table.read(application_id=application_id, columns=names, where=where)
        by_outcome = slim.group_by(names[:3]).aggregate([(names[3], "count")])
        counts = {
            (row["rule"], row["place"], Outcome(row["outcome"])): row["evaluated_at_ms_count"]
            for row in by_outcome.to_pylist()
        }
        times = slim.group_by(names[:2]).aggregate([(names[3], "max")])["evaluated_at_ms_max"]
        at_times = where & pc.field("evaluated_at_ms").isin(times.combine_chunks())
        found = self._table.rows(application_id, at_times)
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
        application_id: str,
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
        return _in_order(self._table.rows(application_id, where))


def _in_order(results: list[RuleResult]) -> list[RuleResult]:
    return sorted(results, key=lambda result: result.evaluated_at_ms)
