"""Rules at points and windows of a warehouse made by hand: no broker, but Spark."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app.rules import CompletenessRule, Place, Recomputation, Scope, WindowedBy
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat, StoreKind
from kstreams_assets.completeness.evaluate import Evaluator
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError, SparkLostError
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.model.rule_results import Outcome, RuleKind, RuleResult
from kstreams_assets.model.spans import Window
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from spark_resources import rules
from spark_resources.resource import SparkSessionResource
from tests.completeness.stored_topics import (
    CHANGELOG,
    HOUR_MS,
    JOINED,
    MOVED,
    ORDERS,
    TOTALS,
    Kept,
    StoredTopics,
    order,
    total,
    window_of,
)
from tests.store.place import warehouse_at

pytestmark = [pytest.mark.spark, pytest.mark.on_store]

BALANCE = CompletenessRule(
    name="money_is_kept",
    query=(
        "SELECT o.s AS ordered, s.s AS summed, m.s AS moved FROM (SELECT sum(amount) AS s FROM"
        " orders) o, (SELECT sum(total) AS s FROM sums) s, (SELECT coalesce(sum(amount), 0) AS s"
        " FROM `moved-repartition`) m WHERE o.s <> s.s + m.s"
    ),
    views=("orders", "sums", "moved-repartition"),
    balance="sum(orders.amount) == sum(sums.total) + sum(moved-repartition.amount)",
)
POSITIVE = CompletenessRule(
    name="no_debts",
    query="SELECT _key, total, _offset FROM totals WHERE total < 0 ORDER BY _offset",
    views=("totals",),
)
NEW = CompletenessRule(
    name="new_money",
    query=(
        "SELECT o.s AS ordered, now.s AS now, before.s AS before FROM"
        " (SELECT coalesce(sum(amount), 0) AS s FROM orders) o,"
        " (SELECT (SELECT sum(total) FROM sums) + coalesce(sum(amount), 0) AS s"
        " FROM `moved-repartition`) now,"
        " (SELECT coalesce((SELECT sum(total) FROM `sums@before`), 0) + coalesce(sum(amount), 0)"
        " AS s FROM `moved-repartition@before`) before WHERE o.s <> now.s - before.s"
    ),
    views=("orders", "sums", "sums@before", "moved-repartition", "moved-repartition@before"),
    balance="sum(orders.amount) == sum(sums.total) + sum(moved-repartition.amount)",
    scope=Scope.WINDOW,
)
WRONG = CompletenessRule(name="wrong", query="SELECT no_such_column FROM totals", views=("totals",))
RULES = (BALANCE, POSITIVE, NEW, WRONG)
RECOMPUTED = Recomputation(
    store="sums",
    source=ORDERS,
    key="customer",
    values={"count": "count(*)", "total": "sum(amount)"},
    through="moved-repartition",
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ApplicationSettings:
    """Two windows: at the end of each, one order of anna is in flight."""
    stored = StoredTopics(warehouse_at(tmp_path_factory.mktemp("evaluate")), RULES)
    for index in range(2):
        begin = 4 * index
        orders = [order(begin + n, name, 10) for n, name in enumerate(["anna", "bo", "bo", "anna"])]
        counts = {"bo": 2 * index + 2, "anna": 2 * index + 1}
        sums = [total(2 * index + n, k, c, 10 * c) for n, (k, c) in enumerate(counts.items())]
        stored.close(
            index,
            {
                ORDERS: [*orders, order(begin + 4, "late", 99)][: 5 if index else 4],
                MOVED: [order(begin + 3, "anna", 10)],
                CHANGELOG: sums,
                TOTALS: sums,
            },
            {ORDERS: begin + 4, MOVED: begin + 3, JOINED: 0},
        )
    return replace(stored.settings, recomputed=(RECOMPUTED,))


def at_window(
    settings: ApplicationSettings,
    window: Window,
    *,
    spark: SparkSessionResource,
    run_id: str = "run",
    **asked: Any,
) -> list[RuleResult]:
    with Evaluator(settings, spark=spark, run_id=run_id) as evaluator:
        return evaluator.window(window, **asked)


def at_point(
    settings: ApplicationSettings, point_id: str, *, spark: SparkSessionResource, **asked: Any
) -> list[RuleResult]:
    with Evaluator(settings, spark=spark, run_id="run") as evaluator:
        return evaluator.point(point_id, **asked)


def by_rule(results: Sequence[RuleResult]) -> dict[str, RuleResult]:
    return {result.rule: result for result in results}


def copied(settings: ApplicationSettings, *rules: CompletenessRule) -> ApplicationSettings:
    return replace(settings, completeness=rules)


def test_rules_hold_at_a_window_with_records_in_flight(
    settings: ApplicationSettings, spark: SparkSessionResource
) -> None:
    for index in range(2):
        found = by_rule(at_window(settings, window_of(index), spark=spark, run_id=f"run-{index}"))
        outcomes = {name: result.outcome for name, result in found.items()}
        passed = dict.fromkeys(
            ("money_is_kept", "no_debts", "new_money", "recompute_sums"), Outcome.PASSED
        )
        assert outcomes == {**passed, "wrong": Outcome.FAILED}, found
        assert "no_such_column" in found["wrong"].explanation
        assert found["wrong"].blocks
        assert {result.window for result in found.values()} == {f"w000{index}"}
        assert {result.point_id for result in found.values()} == {f"point-{index}"}
        assert found["recompute_sums"].kind is RuleKind.RECOMPUTE
        assert found["money_is_kept"].stores_from == "changelogs in the backup"
        assert found["no_debts"].stores_from == ""
        stored = Repository(settings.warehouse, "app").results.of(run_id=f"run-{index}")
        assert sorted(stored, key=lambda r: r.rule) == sorted(found.values(), key=lambda r: r.rule)


LIMITED = (
    CompletenessRule(
        name="slow",
        query="SELECT count(*) AS n FROM totals, range(1000000000000) r WHERE r.id % 7 = 3",
        views=("totals",),
        timeout_seconds=2,
    ),
    CompletenessRule(
        name="large",
        query="SELECT repeat('x', 2097152) AS text FROM totals",
        views=("totals",),
        max_memory_mib=21,
    ),
    CompletenessRule(
        name="many",
        query="SELECT _key, r.id FROM totals, range(1000000) r",
        views=("totals",),
        max_rows=1000,
    ),
)


def test_a_rule_that_reaches_a_limit_is_named_with_it_and_the_others_run(
    settings: ApplicationSettings, spark: SparkSessionResource
) -> None:
    limited = replace(copied(settings, *LIMITED, POSITIVE), recomputed=())
    slow, large, many, positive = at_point(limited, "point-1", spark=spark)
    assert (slow.outcome, large.outcome) == (Outcome.FAILED, Outcome.FAILED)
    assert slow.explanation.startswith("Rule slow was stopped: its query took longer than 2 s")
    assert slow.explanation.endswith("raise timeout_seconds.")
    assert large.explanation.startswith("Rule large was stopped: a row that it returns takes 2 MiB")
    assert large.explanation.endswith("raise max_memory_mib.")
    assert (many.outcome, many.violations) == (Outcome.VIOLATED, 1000)
    assert many.explanation.startswith(
        "More than 1,000 rows in violation (counting ends at max_rows of rule many)"
    )
    assert "increase max_rows" in many.explanation
    assert len(many.sample.rows) == 20
    assert positive.passed


def test_an_engine_that_ends_in_a_rule_names_the_rule_and_its_memory(
    settings: ApplicationSettings, spark: SparkSessionResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> None:
        raise SparkLostError("The Spark server does not answer", remedy="Run it again.")

    monkeypatch.setattr(rules, "run_rule", lost)
    with pytest.raises(SparkLostError) as raised:
        at_point(replace(copied(settings, POSITIVE), recomputed=()), "point-1", spark=spark)
    text = str(raised.value)
    assert "does not answer, while rule no_debts was evaluated." in text
    assert "Run it again." in text
    assert "KSTREAMS_ASSETS_SPARK_DRIVER_MEMORY" in text


def test_a_violation_shows_its_rows(
    tmp_path: Path, settings: ApplicationSettings, spark: SparkSessionResource
) -> None:
    stored = StoredTopics(warehouse_at(tmp_path), (BALANCE, POSITIVE))
    sums = [total(0, "anna", 1, 10), total(1, "bo", 1, -5)]
    stored.close(
        0,
        {ORDERS: [order(0, "anna", 10), order(1, "bo", 10)], CHANGELOG: sums, TOTALS: sums},
        {ORDERS: 2},
    )
    spoilt = replace(stored.settings, recomputed=(RECOMPUTED,))
    found = by_rule(at_window(spoilt, window_of(0), spark=spark))
    assert {r.outcome for r in found.values()} == {Outcome.VIOLATED}
    money, debts = found["money_is_kept"], found["no_debts"]
    assert (money.violations, money.sample.columns) == (1, ("ordered", "summed", "moved"))
    assert money.sample.rows == (("20", "5", "0"),)
    assert debts.sample.rows == (("bo", "-5", "1"),)
    assert found["recompute_sums"].sample.rows == (("bo", "total", "10", "-5"),)


def test_points_between_windows_are_judged_by_saved_records(
    tmp_path: Path, spark: SparkSessionResource
) -> None:
    stored = StoredTopics(warehouse_at(tmp_path), (BALANCE, NEW))
    first = [total(0, "anna", 1, 10)]
    stored.close(0, {ORDERS: [order(0, "anna", 10)], CHANGELOG: first}, {ORDERS: 1, MOVED: 0})
    ends = {ORDERS: 3, MOVED: 1, CHANGELOG: 2}
    stored.point(
        "between",
        HOUR_MS + 5_000,
        ends,
        {ORDERS: 3, MOVED: 0},
        saved_from={CHANGELOG: 1, MOVED: 0},
    )
    stored.save("between", CHANGELOG, [total(1, "bo", 1, 20)])
    stored.save("between", MOVED, [order(0, "bo", 30)])
    later = [order(1, "bo", 20), order(2, "bo", 30)]
    stored.close(
        1,
        {ORDERS: later, MOVED: [], CHANGELOG: [total(2, "bo", 2, 50)]},
        {ORDERS: 3, MOVED: 1},
        ends={MOVED: 1},
    )
    with Evaluator(stored.settings, spark=spark, run_id="run") as evaluator:
        for point_id in ("point-0", "between", "point-1", "between"):
            found = evaluator.point(point_id)
            assert [r.outcome for r in found] == [Outcome.PASSED] * 2, (point_id, found)
    assert not list((stored.warehouse.root / ".staging").rglob("*.parquet"))


def test_stores_come_from_snapshots_where_a_rule_finds_all(
    tmp_path: Path, spark: SparkSessionResource
) -> None:
    stored = StoredTopics(warehouse_at(tmp_path), (BALANCE, POSITIVE))
    sums = [total(0, "anna", 1, 10)]
    stored.close(0, {ORDERS: [order(0, "anna", 10)], CHANGELOG: sums}, {ORDERS: 1})
    settings = stored.settings
    [forced] = at_window(
        settings, window_of(0), spark=spark, rules=[BALANCE.name], place=Place.KTABLES
    )
    assert forced.outcome is Outcome.NOT_VERIFIABLE
    assert "no KTable snapshot of sums" in forced.explanation
    make_snapshots(settings, [window_of(0)], spark=spark, run_id="snapshots")

    chosen = by_rule(at_window(settings, window_of(0), spark=spark))
    backup = by_rule(at_window(settings, window_of(0), spark=spark, place=Place.BACKUP))

    assert {r.outcome for r in (*chosen.values(), *backup.values())} == {Outcome.PASSED}
    assert (chosen["money_is_kept"].place, chosen["money_is_kept"].stores_from) == (
        Place.KTABLES,
        "KTable snapshots",
    )
    assert chosen["no_debts"].place is Place.BACKUP
    assert backup["money_is_kept"].stores_from == "changelogs in the backup"


def test_rules_are_left_out_where_they_do_not_hold(
    settings: ApplicationSettings, spark: SparkSessionResource
) -> None:
    rules = copied(
        settings,
        POSITIVE.model_copy(update={"on": frozenset({Place.RESTORE})}),
        POSITIVE.model_copy(update={"name": "tables", "on": frozenset({Place.KTABLES})}),
    )
    found = at_window(replace(rules, recomputed=()), window_of(0), spark=spark)
    assert [(r.rule, r.place, r.outcome) for r in found] == [
        ("tables", Place.KTABLES, Outcome.PASSED)
    ]


def test_a_window_that_is_not_backed_up_verifies_nothing(
    settings: ApplicationSettings, spark: SparkSessionResource
) -> None:
    found = at_window(settings, window_of(9), spark=spark)
    assert {r.outcome for r in found} == {Outcome.NOT_VERIFIABLE}
    assert {r.window for r in found} == {"w0009"}
    assert len(found) == 5


def test_unknown_names_are_refused(
    settings: ApplicationSettings, spark: SparkSessionResource
) -> None:
    with pytest.raises(ConfigurationError, match="money_is_kept"):
        at_point(settings, "point-0", spark=spark, rules=["money_is_lost"])
    with pytest.raises(KStreamsAssetsError, match="point-9"):
        at_point(settings, "point-9", spark=spark)


def test_what_begins_late_is_judged_by_windows_only(
    tmp_path: Path, spark: SparkSessionResource
) -> None:
    stored = StoredTopics(warehouse_at(tmp_path), (BALANCE, NEW, POSITIVE))
    starts = {ORDERS: 100, TOTALS: 7}
    for index in range(2):
        at, sums = 100 + index, [total(index, "anna", 8 + index, 80 + 10 * index)]
        about = {"begins": starts} if index == 0 else {}
        stored.close(
            index,
            {
                ORDERS: [order(at, "anna", 10)],
                CHANGELOG: sums,
                TOTALS: [total(7 + index, "anna", 8 + index, 80 + 10 * index)],
            },
            {ORDERS: at + 1},
            log_starts=starts,
            **about,
        )
    settings = replace(stored.settings, recomputed=(RECOMPUTED,))
    found = by_rule(at_window(settings, window_of(1), spark=spark))
    assert {name: r.outcome for name, r in found.items()} == {
        "money_is_kept": Outcome.NOT_VERIFIABLE,
        "new_money": Outcome.PASSED,
        "no_debts": Outcome.PASSED,
        "recompute_sums": Outcome.NOT_VERIFIABLE,
    }, found
    for name in ("money_is_kept", "recompute_sums"):
        assert "orders-0 starts at offset 100 in the backup" in found[name].explanation
    assert found["money_is_kept"].explanation.endswith("Use scope: window.")
    assert "totals-0 starts at offset 7" in found["no_debts"].explanation


def test_windows_that_records_may_have_missed_are_not_verifiable(
    tmp_path: Path, spark: SparkSessionResource
) -> None:
    stored = StoredTopics(warehouse_at(tmp_path))
    times = {"in time": [1_000, 1_500, 2_000], "late": [1_000, 9_000, 1_500]}
    window = StoreFormat(
        StoreKind.WINDOW,
        key=Format(Encoding.STRING),
        value=Format(Encoding.JSON, "count BIGINT"),
        window_size_ms=1_000,
        retention_ms=3_600_000,
    )
    per_second = Recomputation(
        store="sums",
        source=ORDERS,
        values={"count": "count(*)"},
        windowed_by=WindowedBy(size_ms=1_000),
    )
    explanations = []
    for index, (name, stamps) in enumerate(times.items()):
        stored = StoredTopics(warehouse_at(tmp_path / name))
        orders = [
            replace(order(n, "anna", 1), timestamp_ms=stamp) for n, stamp in enumerate(stamps)
        ]
        counts = Counter(stamp // 1_000 * 1_000 for stamp in stamps)
        if index:
            counts[1_000] -= 1  # the application had closed the window
        sums = [
            Kept(n, b"anna" + start.to_bytes(8) + bytes(4), {"count": count})
            for n, (start, count) in enumerate(counts.items())
        ]
        stored.close(0, {ORDERS: orders, CHANGELOG: sums}, {ORDERS: 3})
        settings = replace(
            stored.settings, store_formats={"sums": window}, recomputed=(per_second,)
        )
        [found] = at_window(settings, window_of(0), spark=spark)
        assert found.outcome is (Outcome.NOT_VERIFIABLE if index else Outcome.PASSED), found
        explanations.append(found.explanation)
    assert "may have arrived after their window had closed" in explanations[1]
