"""Drills of the order processor from beginning to end."""

import sys
from collections.abc import Iterator

import dagster as dg
import psutil
import pytest
import yaml

from kstreams_assets.drill.report import DrillReport, Phase, RateFrom, objective_verdict
from kstreams_assets.drill.run import DrillJob, DrillRequest, report_file
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.local.target import local_target, local_targets, remove_local_target
from kstreams_assets.model.drill import ObjectiveResult
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.model.rule_results import Outcome
from kstreams_assets.orchestration.drill import build_drill_assets
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from spark_resources.engine import engines
from spark_resources.resource import SparkSessionResource
from tests.drill.order_source import OrderSource, make_order_source, totals_on
from tests.streams.cluster import unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e]

PROCESSED = 3_000
WAITING = 400


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, spark: SparkSessionResource) -> OrderSource:
    folder = tmp_path_factory.mktemp("orders")
    return make_order_source(folder, spark, processed=PROCESSED, waiting=WAITING)


@pytest.fixture(autouse=True)
def _nothing_left(source: OrderSource) -> Iterator[None]:
    """No process, cluster or folder is there afterwards that was not there before."""
    children = {process.pid for process in psutil.Process().children(recursive=True)}
    yield
    children |= {engine.pid for engine in engines()}  # outlives the drill that started it
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in children]
    names = [p.name() for p in left if p.is_running() and "pyspark" not in " ".join(p.cmdline())]
    assert names == []
    assert local_targets(source.settings) == []
    assert list(source.settings.warehouse.root.glob("local_clusters/*/*")) == []


def drill(
    settings: ApplicationSettings, spark: SparkSessionResource, request: DrillRequest
) -> DrillReport:
    return DrillJob(settings, spark, unique_name("drill")).run(request)


def test_the_application_comes_back(source: OrderSource, spark: SparkSessionResource) -> None:
    settings = source.settings
    report = drill(settings, spark, DrillRequest(point_id=source.waiting.id, keep=True))
    assert report.kept is not None
    with local_target(settings, report.kept) as connection:
        found = totals_on(connection, source.topics)
    folder = remove_local_target(settings, report.kept).directory
    assert not folder.exists()
    assert (report.failure, report.problems) == (None, ())
    assert found == source.all_
    assert found != source.seen

    restored, application = report.restored, report.application
    assert restored is not None
    assert application is not None
    assert restored.point_id == source.waiting.id
    assert restored.input_records == PROCESSED + WAITING
    assert (report.waiting_records, report.waiting_counted) == (WAITING, True)
    assert (report.lag[0].records, report.lag[-1].records) == (WAITING, 0)
    assert application.changelog_records == application.changelog_records_expected > 0
    assert application.rate_from is RateFrom.LOG
    assert application.cpu_s > 1
    assert application.peak_memory_bytes > 50 * 1024**2
    assert application.state_bytes > 0

    (comparison,) = report.comparisons
    assert comparison.stores == ("order-totals",)
    assert comparison.records_at_point == comparison.records_restored > 0
    assert comparison.keys_at_point == len(source.seen)
    assert comparison.keys_now == len(source.all_)
    changed = [key for key, total in source.seen.items() if source.all_[key] != total]
    assert comparison.changed == len(changed) > 0
    assert comparison.deleted == 0

    before, after = report.rules
    assert {r.rule: r.outcome for r in before.results} == dict.fromkeys(
        [r.rule for r in after.results], Outcome.PASSED
    )
    assert {r.outcome for r in after.results} == {Outcome.PASSED}
    assert "recompute_order-totals" in {r.rule for r in after.results}

    assert [m.phase for m in report.phases] == list(Phase)
    assert objective_verdict(report).result is ObjectiveResult.MET
    written = yaml.safe_load(report_file(settings, report.drill_id).read_text())["restoreDrill"]
    assert written["app"] == "order-processor"
    assert written["inputRecords"] == PROCESSED + WAITING
    assert written["stateStore"] == "order-totals"
    assert written["localStateDeleted"] is True
    assert written["correctnessCheck"] == "passed"
    assert written["bottleneck"].split(":")[0] in ("cpu", "disk", "waiting")
    stored = Repository(settings.warehouse, settings.application_id).drills.newest()
    assert stored is not None
    assert (stored.drill_id, stored.passed) == (report.drill_id, True)
    assert stored.total_s == report.total_s


def test_an_objective_of_one_second_is_missed(
    source: OrderSource, spark: SparkSessionResource
) -> None:
    del spark  # the asset finds the session that is there
    settings = source.with_drill(objective_seconds=1.0)
    (asset,) = build_drill_assets(settings)
    config = {"ops": {asset.op.name: {"config": {"point": source.quiet.id, "dry_run": False}}}}
    done = dg.materialize([asset], resources={"spark": SparkSessionResource()}, run_config=config)
    (check,) = done.get_asset_check_evaluations()
    assert check.check_name == "recovery_objective_met"
    assert not check.passed
    assert check.severity is dg.AssetCheckSeverity.ERROR
    assert "more than the 1 s allowed" in (check.description or "")
    (materialization,) = done.asset_materializations_for_node(asset.op.name)
    values = {name: value.value for name, value in materialization.metadata.items()}
    assert values["result"] == "passed"
    assert values["waiting_records"] == 0
    assert values["recovery_objective"] == "missed"
    assert values["ready"] == "no"
    assert "more than the objective of 1 s" in str(values["ready_why"])
    # the drill's restore does not keep its recovery point for ever
    restores = Repository(settings.warehouse, settings.application_id).restores.all()
    newest = max(restores, key=lambda r: r.created_at_ms)
    assert newest.point_id == source.quiet.id
    assert newest.state is RestoreState.FINISHED


def test_an_application_that_never_runs(source: OrderSource, spark: SparkSessionResource) -> None:
    sleeping = "import sys, time; print('waiting for', sys.argv[1], flush=True); time.sleep(600)"
    settings = source.with_drill(command=_python(sleeping), start_timeout_seconds=3.0)
    report = drill(settings, spark, DrillRequest(point_id=source.quiet.id))
    assert report.failure is not None
    assert report.failure.phase is Phase.START
    assert "was not RUNNING within 3 s" in report.failure.reason
    start = report.measure(Phase.START)
    assert start is not None
    assert start.took_s < 60
    assert report.application is not None
    assert report.application.last_lines[0].endswith("client.properties")
    assert objective_verdict(report).result is ObjectiveResult.NOT_RECOVERED
    written = yaml.safe_load(report_file(settings, report.drill_id).read_text())["restoreDrill"]
    assert written["correctnessCheck"] == "failed"
    assert written["failedPhase"] == "start"
    assert "was not RUNNING within 3 s" in written["reason"]
    stored = Repository(settings.warehouse, settings.application_id).drills.newest()
    assert stored is not None
    assert (stored.passed, stored.failed_phase) == (False, "start")


def test_a_point_that_is_not_there(source: OrderSource, spark: SparkSessionResource) -> None:
    settings = source.with_drill()
    report = drill(settings, spark, DrillRequest(point_id="no-such-point"))
    assert report.failure is not None
    assert report.failure.phase is Phase.RESTORE
    assert "no-such-point" in report.failure.reason
    assert (report.restored, report.application) == (None, None)
    assert report_file(settings, report.drill_id).exists()


def test_a_command_that_is_not_there(source: OrderSource, spark: SparkSessionResource) -> None:
    command = ("no-such-program", "{client_properties}", "{state_dir}")
    settings = source.with_drill(command=command)
    before = Repository(settings.warehouse, settings.application_id).drills.all()
    with pytest.raises(ConfigurationError, match="the program is missing"):
        drill(settings, spark, DrillRequest(point_id=source.quiet.id))
    assert Repository(settings.warehouse, settings.application_id).drills.all() == before


def _python(text: str) -> tuple[str, ...]:
    """A command that runs a line of Python, and gets what a drill has to hand over."""
    return (sys.executable, "-c", text, "{client_properties}", "{state_dir}")
