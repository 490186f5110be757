"""The table `completeness_results`: how rules came out, one row for each evaluation of each."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.backup.verdicts import Severity
from kstreams_assets.completeness.result import Outcome, RuleKind, RuleResult, Sample
from kstreams_assets.completeness.rule import Place
from kstreams_assets.warehouse.control_table import ControlTable, one_of
from kstreams_assets.warehouse.layout import Warehouse

SCHEMA = pa.schema(
    [
        pa.field("application_id", pa.string(), nullable=False),
        pa.field("rule", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("place", pa.string(), nullable=False),
        pa.field("point_id", pa.string(), nullable=False),
        pa.field("window", pa.string()),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("explanation", pa.string(), nullable=False),
        pa.field("severity", pa.string(), nullable=False),
        pa.field("blocking", pa.bool_(), nullable=False),
        pa.field("violations", pa.int64(), nullable=False),
        pa.field("sample_columns", pa.list_(pa.string())),
        pa.field("sample_rows", pa.list_(pa.list_(pa.string()))),
        pa.field("stores_from", pa.string(), nullable=False),
        pa.field("took_ms", pa.int64(), nullable=False),
        pa.field("evaluated_at_ms", pa.int64(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class RuleStanding:
    """How a rule stands at one place: its newest result, and how often it came out how."""

    newest: RuleResult
    evaluations: Mapping[Outcome, int]


class ResultsTable:
    """Results of all applications; a rule that is evaluated again gets another row."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = ControlTable(
            warehouse.control("completeness_results"),
            SCHEMA,
            grows_along="evaluated_at_ms",
            statistics=("evaluated_at_ms", "window", "point_id", "run_id"),
        )

    def record(self, results: Sequence[RuleResult]) -> None:
        """Store results, in one commit."""
        if not results:
            return
        self._table.append([_row(result) for result in results])

    def newest(self, application_id: str, count: int) -> list[RuleResult]:
        """The newest results of an application, newest first; what it costs does not grow."""
        rows = self._table.read_newest(application_id, count).to_pylist()
        return [_result(row) for row in _in_order(rows)[::-1][:count]]

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
        found = self._table.read(application_id=application_id, where=at_times).to_pylist()
        last = {(row["rule"], row["place"]): row for row in _in_order(found)}
        return [
            RuleStanding(
                _result(last[rule, place]),
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
        rows = self._table.read(application_id=application_id, where=where).to_pylist()
        return [_result(row) for row in _in_order(rows)]


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["evaluated_at_ms"])


def _row(result: RuleResult) -> dict[str, Any]:
    return {
        "application_id": result.application_id,
        "rule": result.rule,
        "kind": result.kind.value,
        "place": result.place.value,
        "point_id": result.point_id,
        "window": result.window,
        "outcome": result.outcome.value,
        "explanation": result.explanation,
        "severity": str(result.severity.value),
        "blocking": result.blocking,
        "violations": result.violations,
        "sample_columns": list(result.sample.columns),
        "sample_rows": [list(row) for row in result.sample.rows],
        "stores_from": result.stores_from,
        "took_ms": result.took_ms,
        "evaluated_at_ms": result.evaluated_at_ms,
        "run_id": result.run_id,
    }


def _result(row: Mapping[str, Any]) -> RuleResult:
    values = {name: row[name] for name in RuleResult.__dataclass_fields__ if name != "sample"}
    return RuleResult(
        **values
        | {
            "kind": RuleKind(row["kind"]),
            "place": Place(row["place"]),
            "outcome": Outcome(row["outcome"]),
            "severity": Severity(row["severity"]),
            "sample": Sample(
                tuple(row["sample_columns"] or ()),
                tuple(tuple(each) for each in row["sample_rows"] or ()),
            ),
        }
    )
