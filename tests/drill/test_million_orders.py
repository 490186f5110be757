"""The drill of the order processor with a million orders."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bench.drill import ORDERS, drill_orders
from kstreams_assets.drill.report import objective_verdict
from kstreams_assets.drill.run import report_file
from kstreams_assets.model.drill import ObjectiveResult
from kstreams_assets.model.rule_results import Outcome
from spark_resources.resource import SparkSessionResource

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]


@pytest.mark.timeout(3_000)
def test_a_million_orders(spark: SparkSessionResource, tmp_path: Path) -> None:
    done = drill_orders(tmp_path, spark)
    report = done.report
    assert (report.failure, report.problems) == (None, ())
    assert done.found == done.expected
    assert report.restored is not None
    assert report.restored.input_records == ORDERS
    assert {r.outcome for rules in report.rules for r in rules.results} == {Outcome.PASSED}
    assert "recompute_order-totals" in {r.rule for r in report.rules[-1].results}
    (comparison,) = report.comparisons
    assert comparison.records_at_point == comparison.records_restored

    assert report.total_s is not None
    declared = report.objective_s
    assert declared is not None
    met = objective_verdict(report).result is ObjectiveResult.MET
    assert met == (report.total_s <= declared)
    in_one_second = replace(report, objective_s=1.0)
    assert objective_verdict(in_one_second).result is ObjectiveResult.MISSED

    written = yaml.safe_load(report_file(done.settings, report.drill_id).read_text())
    drill = written["restoreDrill"]
    assert drill["inputRecords"] == ORDERS
    assert drill["correctnessCheck"] == "passed"
    assert drill["recoveryObjective"] == ("met" if met else "missed")
