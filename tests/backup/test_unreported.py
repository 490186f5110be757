"""Windows that a run recorded and did not report, because it was killed or failed, are reported."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.test_utils import create_run_for_test

from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.result import TopicBackup, WindowBackup
from kstreams_assets.backup.run import back_up
from kstreams_assets.backup.unreported import ReportMarks, windows_of_run
from kstreams_assets.backup.verdicts import CHECKS, judge
from kstreams_assets.layout import Warehouse
from kstreams_assets.orchestration.backup import report_left_behind
from kstreams_assets.orchestration.backup_sensor import build_backup_sensor
from kstreams_assets.orchestration.keys import backup_key
from kstreams_assets.settings import ApplicationSettings, BackupSettings, WindowSchedule
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.ledger import Ledger
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.spans import Gap, GapCause, Window
from tests.backup import requesting
from tests.backup.requesting import Bench, key
from tests.backup.samples import APPLICATION_ID, backup, cut, point, result, span, window_backup
from tests.backup.writing import write
from tests.cli.application import Program, document
from tests.cli.conftest import program
from tests.e2e.test_dagster_run import run, settings_of
from tests.streams.workbench import Workbench

__all__ = ["program"]

DAYS = 3
FIRST = datetime.now(tz=UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(DAYS)
KEYS = [f"{FIRST + timedelta(day):%Y-%m-%d}" for day in range(DAYS)]
LIMIT_S = 400

_HELD_AFTER_THE_FIRST_COMMIT = """
import sys, time
from kstreams_assets.warehouse.ledger import Ledger
from kstreams_assets.cli.main import main

record = Ledger.record

def held(*arguments, **named):
    record(*arguments, **named)
    print("recorded", flush=True)
    time.sleep(120)

Ledger.record = held
sys.exit(main())
"""


class TestMarks:
    """A mark goes with a run that ends well, and stays of any other."""

    def test_of_a_run_that_ends_well(self, tmp_path: Path) -> None:
        marks = ReportMarks(Warehouse(tmp_path), "shop")
        assert marks.run_ids() == []
        with marks.of_run("r1"):
            assert marks.run_ids() == ["r1"]
            with marks.left_behind("r1") as mark:
                assert mark is None, "its process lives"
        assert marks.run_ids() == []

    def test_of_a_run_that_fails(self, tmp_path: Path) -> None:
        marks = ReportMarks(Warehouse(tmp_path), "shop")
        with contextlib.suppress(ZeroDivisionError), marks.of_run("r1"):
            raise ZeroDivisionError
        with marks.left_behind("r1") as mark:
            assert mark is not None
            mark.note("w0")
            mark.stays = True
        with contextlib.suppress(ZeroDivisionError), marks.left_behind("r1") as mark:
            assert mark is not None
            assert mark.reported == {"w0"}
            mark.note("w1")
            raise ZeroDivisionError
        with marks.left_behind("r1") as mark:
            assert mark is not None
            assert mark.reported == {"w0", "w1"}
        assert marks.run_ids() == []
        with marks.left_behind("r1") as mark:
            assert mark is None
        assert marks.run_ids() == []


_HOLDS_A_MARK = """
import sys, time
from pathlib import Path
from kstreams_assets.backup.unreported import ReportMarks
from kstreams_assets.layout import Warehouse

with ReportMarks(Warehouse(Path(sys.argv[1])), "shop").of_run(sys.argv[2]):
    print("marked", flush=True)
    time.sleep(120)
"""


def _killed_run(root: Path, run_id: str, windows: Sequence[WindowBackup]) -> None:
    """The ledger has windows of a run whose process was killed; while it lived it was let alone."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_A_MARK, str(root), run_id], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "marked\n"
        for window in windows:
            Ledger(Warehouse(root), APPLICATION_ID).record(window.topics, run_id=run_id)
        with ReportMarks(Warehouse(root), APPLICATION_ID).left_behind(run_id) as mark:
            assert mark is None
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def _stored(key: str, start: datetime, length: timedelta) -> WindowBackup:
    """A window of the topics `t`, which has lost four records, and `u`."""
    window = Window(
        round(start.timestamp() * 1000), round((start + length).timestamp() * 1000), key
    )
    lost = Gap(GapCause.RETENTION, 0, 4, 4)
    topics = tuple(
        replace(
            backup(result(replace(span(0, 9, topic=topic), window=window), *gaps), topic=topic),
            window=window,
        )
        for topic, gaps in (("t", [lost]), ("u", []))
    )
    return window_backup(*topics)


class TestAfterAKill:
    """The ledger is there, the process is gone."""

    def test_a_tick_of_the_sensor_gives_dagster_the_events(self, tmp_path: Path) -> None:
        with dg.DagsterInstance.ephemeral() as instance:
            bench = Bench(tmp_path / "warehouse", instance, minutes=2.5)
            minute = timedelta(minutes=1)
            stored = [_stored(key(i), requesting.FIRST + i * minute, minute) for i in range(2)]
            _killed_run(bench.root, "killed", stored)
            for _ in range(2):
                bench.tick()
                for topic in "tu":
                    found = _materialised(instance, backup_key(APPLICATION_ID, topic))
                    assert found == {key(0): 1, key(1): 1}
                    passed = topic == "u"
                    losses = _evaluated(
                        instance, backup_key(APPLICATION_ID, topic), "no_source_loss"
                    )
                    assert losses == {key(0): passed, key(1): passed}

    def test_runs_of_earlier_releases_left_no_mark(self, tmp_path: Path) -> None:
        """One died before its second event, one goes on at first, one is of another Dagster."""
        with dg.DagsterInstance.ephemeral() as instance:
            bench = Bench(tmp_path / "warehouse", instance, minutes=4.5)
            minute, ledger = timedelta(minutes=1), Ledger(Warehouse(bench.root), APPLICATION_ID)
            died, alive = (
                create_run_for_test(instance, status=status)
                for status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED)
            )
            for index, run_id in enumerate([died.run_id, died.run_id, alive.run_id, "elsewhere"]):
                stored = _stored(key(index), requesting.FIRST + index * minute, minute)
                ledger.record(stored.topics, run_id=run_id)
            for topic in "tu":
                instance.report_runless_asset_event(
                    dg.AssetMaterialization(backup_key(APPLICATION_ID, topic), partition=key(0))
                )
            for reported in (2, 2, 3, 3):
                if reported == 3:
                    instance.report_run_failed(instance.get_run_by_id(alive.run_id) or alive)
                bench.tick()
                for topic in "tu":
                    found = _materialised(instance, backup_key(APPLICATION_ID, topic))
                    assert found == {key(index): 1 for index in range(reported)}

    def test_the_next_command_shows_its_checks_once(self, tmp_path: Path, program: Program) -> None:
        root = tmp_path / "warehouse"
        file = tmp_path / "defs.yaml"
        file.write_text(
            yaml.safe_dump(
                document(warehouse=str(root), windows={"every": "day", "start": KEYS[2]})
            )
        )
        RecoveryPointTable(Warehouse(root)).append(
            point(round(FIRST.timestamp() * 1000) + 2 * 86_400_000 + 1, cut(0, 9))
        )
        day = _stored(KEYS[2], FIRST + timedelta(2), timedelta(1))
        _killed_run(root, "cli-killed", [day])
        shown = program("backup", "--app", file, "--json")
        assert shown.exit_code == 1, shown.err
        (ended,) = json.loads(shown.out)["ended_early"]
        assert (ended["run"], ended["windows"][0]["window"]) == ("cli-killed", KEYS[2])
        again = program("backup", "--app", file, "--json")
        assert again.exit_code == 0
        assert json.loads(again.out)["ended_early"] == []
        _killed_run(root, "dagster", [day])
        for _ in range(2):  # Dagster still lacks its events
            shown = program("backup", "--app", file)
            assert shown.exit_code == 1
            assert "Run dagster ended before" in shown.err
            assert "offsets 0 to 3 (retention)" in shown.err


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    """Three days with records and a point each; of the first, Kafka has lost ten records."""
    topics = [workbench.topic("orders", partitions=2), workbench.topic("gone")]
    table = RecoveryPointTable(workbench.warehouse)
    for day in range(DAYS):
        for topic in topics:
            write(workbench, topic, 20)
        point = workbench.take_point()
        noon_ms = round((FIRST + timedelta(day, hours=12)).timestamp() * 1000)
        table.append(replace(point, id=f"day-{day}", taken_at_ms=noon_ms))
        table.drop(workbench.application_id, point.taken_at_ms, point.taken_at_ms, [point.id])
    workbench.delete_records(topics[0], 10)
    return workbench


def _settings(bench: Workbench) -> ApplicationSettings:
    schedule = WindowSchedule.every("day", start=KEYS[0])
    settings = replace(settings_of(bench), windows=schedule)
    return replace(settings, backup=BackupSettings(commit_bytes=1))


def _fail_at_the_second_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    record, calls = Ledger.record, []

    def failing(*arguments, **named):
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError
        record(*arguments, **named)

    monkeypatch.setattr(Ledger, "record", failing)


@pytest.mark.kafka
@pytest.mark.spark
def _recorded(topic: TopicBackup) -> TopicBackup:
    """What the ledger keeps: gaps that were known before the read are among those of the result."""
    spans = [replace(span, plan=replace(span.plan, gaps=())) for span in topic.spans]
    return replace(topic, spans=tuple(spans), duration_s=None)


def test_from_the_ledger_come_the_checks_that_the_run_would_have_given(bench: Workbench) -> None:
    bench.topic("store", role=TopicRole.CHANGELOG)  # no point knows it
    settings = _settings(bench)
    windows = WindowCalendar(settings.windows).windows(KEYS)
    backups = back_up(
        settings, windows, topics=settings.topics, newest_closed=None, spark=bench.spark, run_id="r"
    )
    found = windows_of_run(settings, "r")
    assert [judge(window, settings.application) for window in found] == [
        judge(window, settings.application) for window in backups
    ]
    assert [_recorded(topic) for window in backups for topic in window.topics] == [
        topic for window in found for topic in window.topics
    ]
    assert [window.note for window in found] == [window.note for window in backups]
    back_up(
        settings,
        windows[:1],
        topics=settings.topics,
        newest_closed=None,
        spark=bench.spark,
        run_id="later",
    )
    assert [window.window.key for window in windows_of_run(settings, "r")] == KEYS[1:]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield instance


def _materialised(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, int]:
    """How often each window has an event."""
    found: dict[str, int] = {}
    for one in instance.fetch_materializations(key, limit=100).records:
        found[one.partition_key or ""] = found.get(one.partition_key or "", 0) + 1
    return found


def _evaluated(
    instance: dg.DagsterInstance, key: dg.AssetKey, check: str
) -> dict[str | None, bool]:
    history = instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(key, check), limit=100
    )
    return {
        evaluation.partition: evaluation.passed
        for record in history
        if record.event is not None
        and record.event.dagster_event is not None
        and isinstance(
            evaluation := record.event.dagster_event.event_specific_data, dg.AssetCheckEvaluation
        )
    }


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("by", ["sensor", "run"])
def test_dagster_gets_the_events_of_a_run_that_failed_between_two_commits(
    bench: Workbench, instance: dg.DagsterInstance, by: str, monkeypatch: pytest.MonkeyPatch
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
        if by == "sensor":
            sensor = build_backup_sensor(settings)
            context = dg.build_sensor_context(instance=instance, sensor_name=sensor.name)
            sensor.evaluate_tick(context)
            expected = KEYS[:1]
        else:
            done = run(
                settings, instance, bench.spark, keys=[orders, gone], first=KEYS[1], last=KEYS[1]
            )
            assert done.success
            expected = KEYS[:2]
        assert set(_materialised(instance, orders)) == set(expected)
        assert set(_materialised(instance, gone)) == set(expected)
        assert _materialised(instance, orders)[KEYS[0]] == 1
        for check in CHECKS:
            assert _evaluated(instance, gone, check)[KEYS[0]]
        assert _evaluated(instance, orders, "no_source_loss")[KEYS[0]] is False


@pytest.mark.kafka
@pytest.mark.spark
def test_a_long_report_goes_on_where_it_stopped(
    bench: Workbench, instance: dg.DagsterInstance
) -> None:
    settings = _settings(bench)
    marks = ReportMarks(settings.warehouse, settings.application_id)
    with contextlib.suppress(ZeroDivisionError), marks.of_run("r"):
        back_up(
            settings,
            WindowCalendar(settings.windows).windows(KEYS),
            topics=settings.topics,
            newest_closed=None,
            spark=bench.spark,
            run_id="r",
        )
        raise ZeroDivisionError
    key = backup_key(settings.application_id, settings.topics[0].name)
    for reported in (1, 2, 3, 3):
        report_left_behind(settings, instance, log=str, limit_s=0)
        assert _materialised(instance, key) == dict.fromkeys(KEYS[:reported], 1)
    assert marks.run_ids() == []


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.drill
def test_the_next_command_shows_the_checks_of_a_killed_one(
    bench: Workbench, tmp_path: Path
) -> None:
    file = tmp_path / "defs.yaml"
    attributes = {
        "application_id": bench.application_id,
        "topics": {topic: {"roles": ["input"]} for topic in bench.roles},
        "connection": {"bootstrap_servers": bench.bootstrap_servers},
        "warehouse": str(bench.warehouse.root),
        "windows": {"every": "day", "start": KEYS[0]},
        "backup": {"commit_bytes": 1},
    }
    component = "kstreams_assets.components.KafkaStreamsAppComponent"
    file.write_text(yaml.safe_dump({"type": component, "attributes": attributes}), "utf-8")
    command = ["backup", "--app", str(file), "--json"]
    killed = subprocess.Popen(
        [sys.executable, "-c", _HELD_AFTER_THE_FIRST_COMMIT, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ,
        text=True,
    )
    try:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "recorded\n"
        killed.send_signal(signal.SIGKILL)
        assert killed.wait(10) == -signal.SIGKILL
    finally:
        killed.kill()
        killed.wait(10)

    def again() -> tuple[int, dict]:
        done = subprocess.run(
            [sys.executable, "-m", "kstreams_assets.cli.main", *command],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    code, shown = again()
    assert code == 1, "a check of the killed run is red"
    assert not shown["passed"]
    assert [window["window"] for window in shown["windows"]] == KEYS[1:]
    (ended,) = shown["ended_early"]
    (first,) = ended["windows"]
    assert first["window"] == KEYS[0]
    red = {
        (topic["topic"], check["check"])
        for topic in first["topics"]
        for check in topic["checks"]
        if not check["passed"]
    }
    orders = next(topic for topic in bench.roles if topic.startswith("orders"))
    assert red == {(orders, "no_source_loss")}

    code, shown = again()
    assert code == 0
    assert (shown["windows"], shown["ended_early"]) == ([], [])
