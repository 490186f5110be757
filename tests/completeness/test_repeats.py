"""What repeated records explain of a rule that does not hold, and what they never do."""

from typing import Any

import pytest

from kstreams_assets.app.rules import Recomputation, RepeatEffect, Scope, WindowedBy
from kstreams_assets.completeness.repeats import Repeats, of_balance, of_recomputation
from kstreams_assets.rules.balance import balance_sql
from spark_resources.resource import SparkSessionResource
from tests.rules.rule_samples import known


@pytest.mark.parametrize(
    ("balance", "sign", "counts"),
    [
        # What the application writes grows: the right side.
        ("orders.created.v1 == orders-rejected + totals + in_flight(steps)", -1, True),
        ("orders.created.v1 - orders-rejected == totals", -1, True),
        ("totals <= orders.created.v1", 1, True),
        # Both sides are written.
        ("totals == orders-rejected", 0, True),
        ("sum(orders.created.v1.cents) == 5 + orders-rejected", -1, True),
        ("sum(orders.created.v1.cents) == 5", 0, False),
    ],
)
def test_in_what_direction_repeats_change_a_balance(balance: str, sign: int, counts: bool) -> None:
    made = balance_sql(balance, per=None, known=known(), scope=Scope.EVERYTHING)
    assert made.repeats == RepeatEffect(sign, counts)


def _sides(*differences: int) -> str:
    rows = ", ".join(f"('k{n}', {one})" for n, one in enumerate(differences))
    return f"SELECT * FROM VALUES {rows} AS t(per_key, difference)"


def _rows(spark: SparkSessionResource, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.spark_session.sql(sql).collect()]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("sign", "repeats", "unexplained"),
    [
        (-1, Repeats(5), [-6, 1, 6]),
        (1, Repeats(5), [-6, -5, -1, 6]),
        (0, Repeats(5), [-6, 6]),
        # Since the window before, what was repeated then is missing.
        (-1, Repeats(5, before=1), [-6, 6]),
    ],
)
def test_rows_of_a_balance_that_repeats_do_not_explain(
    spark: SparkSessionResource, sign: int, repeats: Repeats, unexplained: list[int]
) -> None:
    sql = _sides(-6, -5, -1, 1, 6)
    allowance = of_balance(sql, RepeatEffect(sign, counts=True), repeats)
    assert sorted(row[1] for row in _rows(spark, allowance.sql)) == unexplained
    assert allowance.total_sql is not None
    assert _rows(spark, allowance.total_sql) == [(19,)]
    assert (allowance.most, allowance.is_bounded) == (repeats.most, True)


@pytest.mark.spark
def test_a_side_that_has_no_value_is_never_explained(spark: SparkSessionResource) -> None:
    sql = "SELECT 'k' AS per_key, CAST(NULL AS BIGINT) AS difference"
    allowance = of_balance(sql, RepeatEffect(-1, counts=True), Repeats(5))
    assert len(_rows(spark, allowance.sql)) == 1


@pytest.mark.spark
def test_sums_are_told_apart_by_their_direction_alone(spark: SparkSessionResource) -> None:
    allowance = of_balance(_sides(-900, 3), RepeatEffect(-1, counts=False), Repeats(5))
    assert [row[1] for row in _rows(spark, allowance.sql)] == [3]
    assert not allowance.is_bounded


def _store(windowed_by: WindowedBy | None = None, **values: str) -> Recomputation:
    return Recomputation(
        store="totals", source="orders", key="`_key`", values=values, windowed_by=windowed_by
    )


def _found(*rows: str) -> str:
    return f"SELECT * FROM VALUES {', '.join(rows)} AS t(key, field, expected, found)"


@pytest.mark.spark
def test_keys_of_a_recomputed_store_that_repeats_do_not_explain(
    spark: SparkSessionResource,
) -> None:
    sql = _found(
        "('more', 'n', '10', '13')",
        "('more', 'cents', '100', '170')",
        "('lost', 'n', '10', '9')",
        "('lost', 'cents', '100', '90')",
        "('gone', 'n', '10', NULL)",
        "('new', 'n', NULL, '2')",
        "('new in flight', 'n', '-1', NULL)",
        "('new in flight', 'cents', '-44', NULL)",
        "('far', 'n', '10', '16')",
        "('sum', 'cents', '100', '101')",
    )
    store = _store(n="count(*)", cents="sum(cents)")
    allowance = of_recomputation(sql, store, Repeats(5))
    left = sorted({row[0] for row in _rows(spark, allowance.sql)})
    assert left == ["far", "gone", "lost", "sum"]
    assert allowance.total_sql is not None
    assert int(_rows(spark, allowance.total_sql)[0][0]) == 3 + 1 + 10 + 2 + 1 + 6
    assert allowance.most == 5


@pytest.mark.spark
def test_a_record_counts_once_in_each_window_that_it_is_in(spark: SparkSessionResource) -> None:
    sql = (
        "SELECT * FROM VALUES ('k', 0L, 'n', '1', '4'), ('k', 10L, 'n', '5', '4')"
        " AS t(key, window_start_ms, field, expected, found)"
    )
    store = _store(WindowedBy(size_ms=30, advance_ms=10, grace_ms=0), n="count(*)")
    allowance = of_recomputation(sql, store, Repeats(1))
    assert [row[1] for row in _rows(spark, allowance.sql)] == [10]
    assert allowance.most == 3


def test_without_a_count_nothing_bounds_a_sum() -> None:
    allowance = of_recomputation("SELECT 1", _store(cents="sum(cents)"), Repeats(5))
    assert not allowance.is_bounded
