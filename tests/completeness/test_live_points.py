"""Every rule of an example at points and windows under live load: no false alarm, no fault missed.

The same few tests run for a short run, and for a hundred points and twenty windows.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from examples.orders_created.orders import TOPIC as CREATED
from examples.orders_risk_scoring.application import CANDIDATES
from examples.orders_risk_scoring.application import STORE as SCORES
from kstreams_assets.app.rules import Place
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.model.rule_results import Outcome, RuleResult
from spark_resources.resource import SparkSessionResource
from tests.completeness.live_run import (
    ORDER_PROCESSOR,
    ORDERS_RISK_SCORING,
    LiveRun,
    evaluated,
    run_live,
)
from tests.completeness.seeding import Backup, Row, Seeded
from tests.restore.example_trial import ExampleTrial
from tests.streams.cluster import unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]


class Extent(NamedTuple):
    """How much is run: points, windows, seconds between points."""

    trial: ExampleTrial
    points: int
    windows: int
    between_s: float


class Fault(NamedTuple):
    """What is done to a copy of the backup, and the rules that are to show it, by what of it."""

    seed: Callable[[LiveRun, Backup], Seeded]
    caught_by: Mapping[str, Callable[[Seeded], str]]


EXTENTS: Final = {
    "order processor": Extent(ORDER_PROCESSOR, 10, 3, 0.3),
    "order processor, 100 points": Extent(ORDER_PROCESSOR, 100, 20, 0.2),
    "orders risk scoring, 20 windows": Extent(ORDERS_RISK_SCORING, 20, 20, 1.0),
}


def key_of(seeded: Seeded) -> str:
    return seeded.key


def customer_of(seeded: Seeded) -> str:
    return str(seeded.value["customer_id"])


def is_order(row: Row) -> bool:
    try:
        value = json.loads(row["value"] or b"")
    except ValueError:
        return False
    fields = value if isinstance(value, dict) else {}
    amount = fields.get("amount_cents")
    return bool(fields.get("customer_id")) and isinstance(amount, int) and amount > 0


def changelog(run: LiveRun, store: str) -> str:
    return f"{run.settings.application_id}-{store}-changelog"


def one_cent_more(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "total_cents": value["total_cents"] + 1}


def minus_one(_seeded: Seeded) -> str:
    return "-1"


ORDER_FAULTS: Final = {
    "an order dropped": Fault(
        lambda run, backup: backup.drop(f"{run.prefix}orders", is_order),
        {"every_order_counted_or_rejected": minus_one, "recompute_order-totals": customer_of},
    ),
    "a total sent twice": Fault(
        lambda run, backup: backup.double(f"{run.prefix}customer-totals", lambda _row: True),
        {"no_total_sent_twice": key_of},
    ),
    "a total altered": Fault(
        lambda run, backup: backup.alter(changelog(run, "order-totals"), one_cent_more),
        {
            "money_is_kept": minus_one,
            "newest_totals_are_out": key_of,
            "recompute_order-totals": key_of,
        },
    ),
}
RISK_FAULTS: Final = {
    "an order dropped": Fault(
        lambda run, backup: backup.drop(f"{run.prefix}{CREATED}", is_order),
        {"every_order_sorted": minus_one, "every_order_sorted_once": key_of},
    ),
    "a candidate doubled": Fault(
        lambda run, backup: backup.double(f"{run.prefix}{CANDIDATES}", lambda _row: True),
        {"every_order_sorted": minus_one, "every_order_sorted_once": key_of},
    ),
    "a score altered": Fault(
        lambda run, backup: backup.alter(changelog(run, SCORES), one_cent_more),
        {"every_candidate_scored": minus_one, f"recompute_{SCORES}": key_of},
    ),
}
_RUNS: dict[str, LiveRun] = {}


def run_of(
    name: str, tmp_path_factory: pytest.TempPathFactory, spark: SparkSessionResource
) -> LiveRun:
    """One run for all tests of an extent."""
    if name not in _RUNS:
        extent = EXTENTS[name]
        folder = tmp_path_factory.mktemp("live")
        _RUNS[name] = run_live(
            extent.trial,
            folder,
            spark,
            points=extent.points,
            windows=extent.windows,
            between_s=extent.between_s,
        )
    return _RUNS[name]


@pytest.fixture(
    scope="module",
    params=list(EXTENTS),
)
def named_run(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    spark: SparkSessionResource,
) -> tuple[str, LiveRun]:
    return request.param, run_of(request.param, tmp_path_factory, spark)


def not_passed(found: Mapping[str, list[RuleResult]]) -> list[str]:
    return [
        f"{at}: {result.rule} {result.outcome}: {result.explanation} {result.sample}"
        for at, results in found.items()
        for result in results
        if not result.passed
    ]


@pytest.mark.timeout(1_500)
def test_no_false_alarm_at_any_point_or_window(
    named_run: tuple[str, LiveRun], spark: SparkSessionResource
) -> None:
    name, run = named_run
    assert len({point.id for point in run.points}) == EXTENTS[name].points
    assert sum(point.in_flight > 0 for point in run.points) > len(run.points) // 2

    found = evaluated(run, run.settings, spark, points=run.points, windows=run.windows)

    assert not_passed(found) == []
    rules = len(run.settings.completeness) + len(run.settings.recomputed)
    assert {len(results) for results in found.values()} == {rules}
    assert len(found) == EXTENTS[name].points + EXTENTS[name].windows
    assert rules >= 5


@pytest.mark.parametrize("number", range(3))
def test_each_fault_in_the_backup_is_shown_by_the_rule_meant_for_it(
    number: int, named_run: tuple[str, LiveRun], spark: SparkSessionResource, tmp_path: Path
) -> None:
    name, run = named_run
    faults = RISK_FAULTS if "risk" in name else ORDER_FAULTS
    told, fault = list(faults.items())[number]
    backup = Backup(run.settings, run.points[-1]).copy(tmp_path / "warehouse")
    seeded = fault.seed(run, backup)

    [results] = evaluated(run, backup.settings, spark, windows=run.windows[-1:]).values()

    by_rule = {result.rule: result for result in results}
    for rule, shown in fault.caught_by.items():
        result = by_rule[rule]
        assert result.outcome is Outcome.VIOLATED, (told, result.explanation)
        # A recomputation has a row for each field; nothing else than the fault is shown.
        assert result.violations == len(result.sample.rows) <= 2, (told, result.sample)
        assert all(shown(seeded) in row for row in result.sample.rows), (told, result.sample)


def test_a_total_that_is_altered_in_a_snapshot_is_shown(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSessionResource, tmp_path: Path
) -> None:
    run = run_of("order processor", tmp_path_factory, spark)
    backup = Backup(run.settings, run.points[-1]).copy(tmp_path / "warehouse")
    window = run.windows[-1]
    make_snapshots(backup.settings, [window], spark=spark, run_id=unique_name("snapshots"))
    [clean] = evaluated(run, backup.settings, spark, windows=[window]).values()
    seeded = backup.alter_row("order-totals", "total_cents")

    [results] = evaluated(run, backup.settings, spark, windows=[window]).values()

    assert not_passed({window.key: clean}) == []
    with_store = [result for result in results if result.stores_from]
    assert {result.place for result in with_store} == {Place.KTABLES}
    bad = {result.rule: result for result in results if not result.passed}
    assert set(bad) == {"money_is_kept", "newest_totals_are_out", "recompute_order-totals"}
    for rule in ("newest_totals_are_out", "recompute_order-totals"):
        assert any(seeded.key in row for row in bad[rule].sample.rows)
