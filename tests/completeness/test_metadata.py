"""completeness/metadata.py: the rows in violation and the numbers, as Dagster shows them."""

from typing import Any

import dagster as dg

from kstreams_assets.completeness.result import Outcome
from kstreams_assets.orchestration.completeness import evaluation_metadata, rule_metadata
from tests.completeness.outcomes import result


def _plain(values: dict[str, dg.MetadataValue]) -> dict[str, Any]:
    return {name: value.value for name, value in values.items()}


def test_rows_in_violation_are_a_table() -> None:
    values = rule_metadata(result(Outcome.VIOLATED))
    table = values["rows_in_violation"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [column.name for column in table.schema.columns] == ["customer", "difference"]
    assert [record.data for record in table.records] == [
        {"customer": "anna", "difference": "2"},
        {"customer": "null", "difference": "-1"},
    ]
    plain = _plain(values)
    assert (plain["outcome"], plain["violations"], plain["took_s"]) == ("violated", 2, 1.5)
    assert (plain["recovery_point"], plain["stores_from"]) == ("point-1", "KTable snapshots")


def test_without_a_violation_there_is_no_table() -> None:
    assert "rows_in_violation" not in rule_metadata(result())


def test_all_rules_of_an_evaluation() -> None:
    made = [result(), result(Outcome.VIOLATED, rule="b"), result(Outcome.NOT_VERIFIABLE, rule="c")]
    values = _plain(evaluation_metadata(made))
    assert (values["rules"], values["passed"], values["violated"]) == (3, 1, 1)
    assert (values["not_verifiable"], values["failed"], values["violations"]) == (1, 0, 2)
    assert values["took_s"] == 4.5
    rows = [record.data for record in values["evaluations"].records]
    assert [(row["rule"], row["outcome"]) for row in rows] == [
        ("nothing_lost", "passed"),
        ("b", "violated"),
        ("c", "not_verifiable"),
    ]
    assert rows[2]["explanation"].startswith("Not verifiable exactly: ")
    assert values["recovery_point"] == "point-1"


def test_nothing_was_evaluated() -> None:
    values = _plain(evaluation_metadata([]))
    assert (values["rules"], values["passed"]) == (0, 0)
    assert "evaluations" not in values
