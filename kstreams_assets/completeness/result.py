"""How rules and recomputations of stores came out: stored results, and what they are checks of."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import pyarrow.compute as pc

from kstreams_assets.app.names import folded
from kstreams_assets.app.rules import CompletenessRule, Place, Scope
from kstreams_assets.checks import Severity
from kstreams_assets.completeness.recompute import RULE_PREFIX
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.layout import Warehouse
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.column import ApplicationId, Column, Columns
from kstreams_assets.warehouse.table import Table, one_of
from spark_resources.work import NO_SAMPLE, Sample


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
    ] = NO_SAMPLE
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


NULL: Final = "null"
"""How a null is shown; an empty text is another value."""
AT_WINDOWS: Final = frozenset({Place.BACKUP, Place.KTABLES})
ON_RESTORES: Final = frozenset({Place.RESTORE})

_NOT_VERIFIABLE: Final = "Not verifiable exactly: "


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """The asset check of a rule or of a recomputed store.

    `rule` is the name in results, `name` that of the check (Dagster takes letters, digits and
    underscores). `blocking`: where it does not hold, a restore stops before the group offsets.
    """

    rule: str
    name: str
    claim: str
    blocking: bool


def rule_checks(settings: ApplicationSettings, places: frozenset[Place]) -> tuple[RuleCheck, ...]:
    """The checks of the rules that hold at one of these places, and of every recomputed store.

    Raises:
        ConfigurationError: Dagster would take two of the rules for one.
    """
    checks = [
        *(_of_rule(rule) for rule in settings.completeness if rule.on & places),
        *(_of_store(each.store, each.source) for each in settings.recomputed),
    ]
    seen: dict[str, RuleCheck] = {}
    for check in checks:
        other = seen.setdefault(check.name, check)
        if other is not check:
            raise ConfigurationError(
                f"Dagster cannot tell the completeness rules {other.rule!r} and {check.rule!r}"
                " apart: it folds names to letters, digits and underscores.",
                remedy="Rename one of them.",
            )
    return tuple(checks)


def severity_of(result: RuleResult) -> Severity:
    """How bad a result is that did not pass.

    A rule that could not be evaluated is as bad as it gets, one that cannot be judged is a warning.
    """
    if result.outcome is Outcome.VIOLATED:
        return result.severity
    return Severity.WARN if result.outcome is Outcome.NOT_VERIFIABLE else Severity.ERROR


def is_red(result: RuleResult) -> bool:
    """Whether the result is an error: neither passed nor a mere warning."""
    return not result.passed and severity_of(result) is Severity.ERROR


def explanation_of(result: RuleResult) -> str:
    """What was found, and when it did not pass, what to do."""
    is_judged = result.outcome is not Outcome.NOT_VERIFIABLE
    if is_judged or result.explanation.startswith(_NOT_VERIFIABLE):
        return result.explanation
    return f"{_NOT_VERIFIABLE}{result.explanation}"


def declared_rules(settings: ApplicationSettings) -> frozenset[str]:
    """The names that results may have: of the rules, and of the recomputed stores."""
    recomputed = {f"{RULE_PREFIX}{each.store}" for each in settings.recomputed}
    return frozenset({rule.name for rule in settings.completeness} | recomputed)


def counts(results: Iterable[RuleResult]) -> dict[Outcome, int]:
    """How many results have which outcome."""
    found = dict.fromkeys(Outcome, 0)
    for result in results:
        found[result.outcome] += 1
    return found


def _of_rule(rule: CompletenessRule) -> RuleCheck:
    parts = [rule.description.strip(), f"Balance: `{rule.balance}`." if rule.balance else ""]
    if not any(parts):
        parts.append(f"No row comes out of:\n\n```sql\n{rule.sql.strip()}\n```\n")
    if rule.scope is Scope.WINDOW:
        parts.append("Of what is new since the window before.")
    parts.append(
        "Red: the rows in violation are with the evaluation."
        if rule.severity is Severity.ERROR
        else "A violation is a warning; the rows are with the evaluation."
    )
    return RuleCheck(
        rule=rule.name,
        name=folded(rule.name),
        claim=" ".join(part for part in parts if part),
        blocking=rule.blocking and rule.severity is Severity.ERROR,
    )


def _of_store(store: str, source: str) -> RuleCheck:
    rule = f"{RULE_PREFIX}{store}"
    return RuleCheck(
        rule=rule,
        name=folded(rule),
        claim=(
            f"Store `{store}`, computed anew from `{source}`, is what the snapshot or changelog"
            " holds. Red: the keys that differ are with the evaluation. Where late records or a"
            " restart may have changed what counts, it is a warning: not verifiable exactly."
        ),
        blocking=True,
    )
