"""What the ledger has and Dagster has not is reported, once each time it is recorded."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.recorded import recorded_backups
from kstreams_assets.backup.result import TopicBackup
from kstreams_assets.backup.run import BackupJob, BackupResult
from kstreams_assets.backup.verdicts import CHECKS, evaluate
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.model.spans import Window
from kstreams_assets.orchestration import backup as assets
from kstreams_assets.orchestration.reports import Position, Report, Reporter, build_reports_sensor
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.settings import ApplicationSettings, BackupSettings, WindowSchedule
from spark_resources.resource import SparkSessionResource
from tests.backup.samples import APPLICATION_ID
from tests.backup.test_unreported import KEYS, bench
from tests.clock import freeze_time
from tests.e2e.test_dagster_run import run
from tests.e2e.test_dagster_run import settings_of as settings_of_workbench
from tests.orchestration import requesting
from tests.orchestration.default_keys import backup_key
from tests.orchestration.requesting import key, settings_of, take_first_point
from tests.streams.workbench import Workbench

__all__ = ["bench"]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield instance


def _materialised(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, int]:
    """How often each window has an event, in the order of the first ones."""
    found: dict[str, int] = {}
    for one in instance.fetch_materializations(key, limit=1_000, ascending=True).records:
        found[one.partition_key or ""] = found.get(one.partition_key or "", 0) + 1
    return found


def _evaluations(
    instance: dg.DagsterInstance, key: dg.AssetKey, check: str
) -> list[tuple[str | None, bool]]:
    history = instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(key, check), limit=1_000
    )
    return [
        (evaluation.partition, evaluation.passed)
        for record in history
        if record.event is not None
        and record.event.dagster_event is not None
        and isinstance(
            evaluation := record.event.dagster_event.event_specific_data, dg.AssetCheckEvaluation
        )
    ]


def _tick(
    settings: ApplicationSettings, instance: dg.DagsterInstance, cursor: str | None = None
) -> str:
    """One tick of the sensor; its cursor."""
    sensor = build_reports_sensor(settings)
    context = dg.build_sensor_context(instance=instance, sensor_name=sensor.name, cursor=cursor)
    found = sensor.evaluate_tick(context).cursor
    assert found
    return found


@dataclass
class Reported:
    """An application whose windows are recorded by hand, and what Dagster has of them."""

    root: Path
    instance: dg.DagsterInstance
    cursor: str | None = None

    def record(self, windows: Iterable[int], **named: Any) -> None:
        requesting.record(self.root, windows, **named)

    def tick(self) -> None:
        """One tick of the sensor an hour after the first window began."""
        with freeze_time(requesting.FIRST + timedelta(hours=1)):
            self.cursor = _tick(settings_of(self.root), self.instance, self.cursor)

    def call(self, position: Position | None, limit_s: float) -> Report:
        with freeze_time(requesting.FIRST + timedelta(hours=1)):
            return Reporter(settings_of(self.root), self.instance).report(position, limit_s=limit_s)

    def counts(self, topic: str = "t") -> dict[str, int]:
        """How often each window has an event; each check was evaluated just as often."""
        asset = backup_key(APPLICATION_ID, topic)
        found = _materialised(self.instance, asset)
        for check in CHECKS:
            evaluated = [window for window, _ in _evaluations(self.instance, asset, check)]
            assert {window: evaluated.count(window) for window in evaluated} == found, check
        return found


@pytest.fixture
def reported(tmp_path: Path) -> Iterator[Reported]:
    with (
        dg.DagsterInstance.ephemeral() as instance,
        freeze_time(requesting.FIRST + timedelta(hours=1)),
    ):
        take_first_point(tmp_path / "warehouse")
        yield Reported(tmp_path / "warehouse", instance)


def _times(count: int, *windows: int) -> dict[str, int]:
    return dict.fromkeys(map(key, windows), count)


class TestWhatIsReported:
    """Each recording once, whoever made it."""

    def test_windows_of_the_command_line_with_their_checks(self, reported: Reported) -> None:
        reported.record([0, 1], run_id="cli-1", lost=[1])
        for _ in range(2):
            reported.tick()
            assert reported.counts("t") == reported.counts("u") == _times(1, 0, 1)
        losses = {
            topic: set(
                _evaluations(reported.instance, backup_key(APPLICATION_ID, topic), "no_source_loss")
            )
            for topic in "tu"
        }
        assert losses["t"] == {(key(0), True), (key(1), False)}
        assert losses["u"] == {(key(0), True), (key(1), True)}
        [event] = reported.instance.fetch_materializations(
            dg.AssetRecordsFilter(backup_key(APPLICATION_ID, "t"), asset_partitions=[key(1)]), 9
        ).records
        assert event.asset_materialization is not None
        metadata = event.asset_materialization.metadata
        assert metadata["backed_up_by_run"].value == "cli-1"
        assert metadata["records"].value == 1
        assert event.run_id == ""

    def test_a_window_without_a_point_is_observed_once_and_is_not_green(
        self, reported: Reported
    ) -> None:
        reported.record([0, 5], run_id="cli-1", empty=[5])
        asset = backup_key(APPLICATION_ID, "t")
        for _ in range(2):
            reported.tick()
            assert reported.instance.get_materialized_partitions(asset) == {key(0)}
            (told,) = reported.instance.fetch_observations(asset, 9).records
            assert told.partition_key == key(5)
            assert told.asset_observation is not None
            assert "No recovery point" in str(told.asset_observation.metadata["note"].value)
            checks = _evaluations(reported.instance, asset, "every_offset_accounted")
            assert sorted(checks) == [(key(0), True), (key(5), False)]

    def test_windows_that_come_later(self, reported: Reported) -> None:
        reported.record([3], run_id="cli-1")
        reported.tick()
        reported.record([1], run_id="cli-2")
        reported.tick()
        reported.record([4], run_id="cli-3")
        reported.tick()
        assert reported.counts() == _times(1, 3, 1, 4)

    @pytest.mark.parametrize("run_id", ["cli-1", "cli-2"])
    def test_a_window_that_was_read_again(self, reported: Reported, run_id: str) -> None:
        reported.record([0, 1], run_id="cli-1")
        reported.tick()
        with freeze_time(requesting.FIRST + timedelta(hours=1)):
            reported.record([0], run_id=run_id)
        for _ in range(2):
            reported.tick()
            assert reported.counts() == _times(2, 0) | _times(1, 1)

    @pytest.mark.parametrize("cursor", [None, "", "{", "[]", '{"version": 1}', '{"version": 9}'])
    def test_the_cursor_may_be_lost(self, reported: Reported, cursor: str | None) -> None:
        reported.record([0, 1])
        reported.tick()
        reported.cursor = cursor
        reported.tick()
        assert reported.counts() == _times(1, 0, 1)

    def test_topics_that_are_not_backed_up_are_no_assets(self, reported: Reported) -> None:
        reported.record([0], topics=["t", "u", "v"])
        reported.tick()
        assert not _materialised(reported.instance, backup_key(APPLICATION_ID, "v"))

    def test_without_a_warehouse_none_is_made(self, reported: Reported, tmp_path: Path) -> None:
        settings = settings_of(tmp_path / "none")
        sensor = build_reports_sensor(settings)
        context = dg.build_sensor_context(instance=reported.instance, sensor_name=sensor.name)
        assert sensor.evaluate_tick(context).skip_message == "Nothing is backed up yet."
        assert not (tmp_path / "none").exists()

    def test_it_is_on_from_the_start(self, tmp_path: Path) -> None:
        settings = replace(settings_of(tmp_path), sensors_running=False)
        status = build_reports_sensor(settings).default_status
        assert status is dg.DefaultSensorStatus.RUNNING


class TestRuns:
    """Runs of this Dagster report for themselves, unless they are killed."""

    def test_a_run_that_goes_on_is_left_alone_until_it_has_ended(self, reported: Reported) -> None:
        run = create_run_for_test(reported.instance, status=dg.DagsterRunStatus.STARTED)
        reported.record([0, 1], run_id=run.run_id)
        reported.record([2], run_id="cli-1")
        reported.tick()
        assert reported.counts() == _times(1, 2)
        reported.record([3], run_id="cli-1")
        reported.tick()
        assert reported.counts() == _times(1, 2, 3)
        reported.instance.report_run_failed(run)
        for _ in range(2):
            reported.tick()
            assert reported.counts() == _times(1, 2, 3, 0, 1)

    def test_what_runs_reported_is_not_reported_again(
        self, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not even what a later run found gone from Kafka, and kept as it was recorded."""
        settings = settings_of(reported.root)
        kept = False

        def recording(job: BackupJob, windows: Sequence[Window]) -> BackupResult:
            if not kept:
                reported.record([0, 1, 2], run_id=job.run_id)
            rows = Ledger(settings.warehouse, APPLICATION_ID).of_windows({w.key for w in windows})
            return BackupResult(tuple(recorded_backups(settings, rows)))

        monkeypatch.setattr(BackupJob, "run", recording)
        job = dg.Definitions(
            assets=[assets.build_backup_assets(settings)],
            jobs=[dg.define_asset_job("job")],
            resources={"spark": SparkSessionResource()},
        ).resolve_job_def("job")
        tags = {
            "dagster/asset_partition_range_start": key(0),
            "dagster/asset_partition_range_end": key(2),
        }
        for count in (1, 2):
            kept = count == 2
            assert job.execute_in_process(instance=reported.instance, tags=tags).success
            reported.cursor = None
            reported.tick()
            asset = backup_key(APPLICATION_ID, "t")
            assert _materialised(reported.instance, asset) == _times(count, 0, 1, 2)

    def test_a_window_of_a_run_that_the_command_line_reads_again(self, reported: Reported) -> None:
        """Its checks are evaluated for each recording, with and without a run."""
        run = create_run_for_test(reported.instance, status=dg.DagsterRunStatus.STARTED)
        reported.record([0], run_id=run.run_id)
        reported.instance.report_run_failed(run)
        for count, run_id in enumerate((run.run_id, "cli-1", "cli-2"), 1):
            with freeze_time(requesting.FIRST + timedelta(hours=1)):
                reported.record([0], run_id=run_id)
            reported.tick()
            assert reported.counts() == _times(count, 0)


class TestALotToReport:
    """After Dagster's database was lost, or when somebody starts Dagster later."""

    def test_another_instance_gets_everything(self, reported: Reported) -> None:
        reported.record(range(12))
        reported.tick()
        with dg.DagsterInstance.ephemeral() as empty:
            other = replace(reported, instance=empty, cursor=None)
            other.tick()
            assert other.counts() == _times(1, *range(12))
            assert list(other.counts()) == [key(index) for index in range(12)], "oldest first"

    def test_a_bounded_call_goes_on_where_it_stopped(
        self, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kstreams_assets.orchestration.reports._WINDOWS_AT_ONCE", 2)
        monkeypatch.setattr("kstreams_assets.orchestration.reports._EVENTS_AT_ONCE", 1)
        reported.record(range(5))
        position: Position | None = None
        for expected in (0, 1, 2, 0, 3, 4, 7):
            found: list[str] = []
            for _ in range(4):  # a call may do no more than compare
                report = reported.call(position, 0)
                position, found = report.position, [*found, *report.reported]
                if found:
                    break
            assert found == [key(expected)]
            if expected == 2:
                reported.record([0, 7], run_id="cli-late")
        assert reported.counts() == _times(1, 1, 2, 3, 4, 7) | _times(2, 0)
        assert not reported.call(None, 60).reported

    def test_killed_between_event_and_checks(
        self, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reported.record([0])
        report, done = reported.instance.report_runless_asset_event, []

        def killed(event: dg.AssetMaterialization | dg.AssetCheckEvaluation) -> None:
            if len(done) == 3:
                raise ZeroDivisionError
            done.append(event)
            report(event)

        with monkeypatch.context() as patched:
            patched.setattr(reported.instance, "report_runless_asset_event", killed)
            with pytest.raises(ZeroDivisionError):
                reported.call(None, 0)
        reported.tick()
        for topic in "tu":
            for check in CHECKS:
                asset = backup_key(APPLICATION_ID, topic)
                found = {window for window, _ in _evaluations(reported.instance, asset, check)}
                assert found == {key(0)}, (topic, check)
        assert not reported.call(None, 0).reported


def _settings(bench: Workbench) -> ApplicationSettings:
    schedule = WindowSchedule.every("day", start=KEYS[0])
    settings = replace(settings_of_workbench(bench), windows=schedule)
    return replace(settings, backup=BackupSettings(commit_bytes=1))


def _fail_at_the_second_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    record, calls = Ledger.record, []

    def failing(*arguments, **named):
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError
        record(*arguments, **named)

    monkeypatch.setattr(Ledger, "record", failing)


def _recorded(topic: TopicBackup) -> TopicBackup:
    """What the ledger keeps: no executor, and gaps known before the read are among the result's."""
    spans = [replace(span, plan=replace(span.plan, gaps=())) for span in topic.spans]
    return replace(topic, spans=tuple(spans), duration_s=None, executor=None)


@pytest.mark.kafka
@pytest.mark.spark
def test_from_the_ledger_come_the_checks_that_the_run_would_have_given(bench: Workbench) -> None:
    bench.topic("store", role=TopicRole.CHANGELOG)  # no point knows it
    settings = _settings(bench)
    windows = WindowCalendar(settings.windows).windows(KEYS)
    backups = BackupJob(settings, bench.spark, "r").run(windows).windows
    ledger = Ledger(settings.warehouse, settings.application_id)
    found = recorded_backups(settings, ledger.of_run("r"))
    assert [evaluate(window, settings.application) for window in found] == [
        evaluate(window, settings.application) for window in backups
    ]
    assert [_recorded(topic) for window in backups for topic in window.topics] == [
        topic for window in found for topic in window.topics
    ]
    assert [window.note for window in found] == [window.note for window in backups]
    BackupJob(settings, bench.spark, "later").run(windows[:1])
    later = recorded_backups(settings, ledger.of_run("r"))
    assert [window.window.key for window in later] == KEYS[1:]


@pytest.mark.kafka
@pytest.mark.spark
def test_dagster_gets_the_events_of_a_run_that_failed_between_two_commits(
    bench: Workbench, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(bench)
    orders, gone = (backup_key(settings.application_id, t.name) for t in settings.topics)
    orders, gone = sorted((orders, gone), key=lambda key: "gone" in key.path[-1])
    with monkeypatch.context() as patched:
        _fail_at_the_second_commit(patched)
        done = run(
            settings, instance, bench.spark, keys=[orders, gone], first=KEYS[0], last=KEYS[2]
        )
        assert not done.success
    assert _materialised(instance, orders) == {}

    for _ in range(2):
        _tick(settings, instance)
        for asset in (orders, gone):
            assert _materialised(instance, asset) == {KEYS[0]: 1}
        for check in CHECKS:
            assert _evaluations(instance, gone, check) == [(KEYS[0], True)]
        assert _evaluations(instance, orders, "no_source_loss") == [(KEYS[0], False)]
