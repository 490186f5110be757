"""The recorder sensor: one point for each tick, few events, red ticks where the cluster is down."""

import itertools
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.errors import ClusterUnavailableError
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import POINT, Guarantee, PartitionCut, RecoveryPoint, input_lags
from kstreams_assets.orchestration import recovery_point_sensor as recorder_sensor
from kstreams_assets.orchestration.metadata import metadata
from kstreams_assets.orchestration.recovery_point_sensor import (
    RecorderCursor,
    build_recovery_point_sensor,
)
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import RecoveryPointSettings
from kstreams_assets.store.locks import WarehouseLockedError
from tests.backup.held_records import hold_records
from tests.backup.samples import APPLICATION_ID, backup, cut, point, result, span
from tests.orchestration.default_keys import recovery_points_key
from tests.orchestration.requesting import settings_of

KEY = recovery_points_key(APPLICATION_ID)
START_MS = 1_800_000_000_000


@dataclass
class Bench:
    """The sensor with a recorder that takes what the test says, at the bench's time."""

    root: Path
    instance: dg.DagsterInstance
    monkeypatch: pytest.MonkeyPatch
    now_ms: int = START_MS
    cursor: str | None = None
    guarantee: Guarantee = Guarantee.EXACT
    sealed: bool = True
    objective_s: int | None = None
    waits: list[float] = field(default_factory=list)
    wait: Mapping[str, Any] = field(default_factory=dict)
    timeouts: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        def take(recorder: Recorder, *, commit_wait_s: float) -> RecoveryPoint:
            self.waits.append(commit_wait_s)
            self.timeouts.append(recorder.cluster._wire.timeout_s)
            taken = replace(
                point(self.now_ms, cut(0, 5), cut(0, 5, topic="u")),
                guarantee=self.guarantee,
                sealed=self.sealed,
            )
            Repository(recorder.warehouse, taken.application_id).points.append(taken)
            return taken

        self.monkeypatch.setattr(Recorder, "take", take)
        self.monkeypatch.setattr(recorder_sensor.time, "time", lambda: self.now_ms / 1000)
        self.monkeypatch.setattr(recorder_sensor.time, "time_ns", lambda: self.now_ms * 1_000_000)

    def tick(self, after_s: float = 10.0) -> SensorExecutionData:
        """One tick, some time after the one before."""
        self.now_ms += round(after_s * 1000)
        settings = settings_of(self.root)
        changed = {"objective_seconds": self.objective_s, **self.wait}
        points = settings.recovery_points.model_copy(update=changed)
        sensor = build_recovery_point_sensor(replace(settings, recovery_points=points))
        data = sensor.evaluate_tick(
            dg.build_sensor_context(instance=self.instance, cursor=self.cursor)
        )
        self.cursor = data.cursor
        for event in data.asset_events or ():
            self.instance.report_runless_asset_event(event)
        return data

    @property
    def checks(self) -> list[dg.AssetCheckEvaluation]:
        """Every evaluation of the check, oldest first."""
        check = dg.AssetCheckKey(KEY, "recovery_point_is_recent")
        records = self.instance.event_log_storage.get_asset_check_execution_history(check, 100)
        found = [record.event and record.event.asset_check_evaluation for record in records]
        return [evaluation for evaluation in found[::-1] if evaluation]

    @property
    def points(self) -> int:
        """How many points there are."""
        return len(Repository(Warehouse(self.root), APPLICATION_ID).points.instants())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """No point yet."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield Bench(tmp_path, instance, monkeypatch)


def _kinds(data: SensorExecutionData) -> list[str]:
    return [type(event).__name__ for event in data.asset_events or ()]


EVENT = ["AssetMaterialization"]


class TestEvents:
    """At most one a minute, or when the guarantee changes."""

    def test_each_tick_takes_a_point_and_one_a_minute_is_an_event(self, bench: Bench) -> None:
        kinds = [_kinds(bench.tick()) for _ in range(13)]
        assert bench.points == 13
        assert [index for index, found in enumerate(kinds) if found] == [0, 6, 12]
        assert kinds[0] == EVENT
        assert len(bench.checks) == 3

    def test_a_change_of_guarantee_or_seal_is_told_at_once(self, bench: Bench) -> None:
        assert _kinds(bench.tick()) == EVENT
        bench.guarantee = Guarantee.AT_LEAST_ONCE
        assert _kinds(bench.tick()) == EVENT
        assert _kinds(bench.tick()) == []
        bench.sealed = False
        assert _kinds(bench.tick()) == EVENT
        assert _kinds(bench.tick()) == []

    def test_what_the_asset_shows(self, bench: Bench) -> None:
        data = bench.tick()
        assert "exact, sealed" in (data.skip_message or "")
        event = bench.instance.get_latest_materialization_event(KEY)
        assert event is not None
        assert event.asset_materialization is not None
        metadata = event.asset_materialization.metadata
        assert metadata["recovery_point"].value == f"point-{bench.now_ms}"
        assert metadata["guarantee"].value == "exact"
        [check] = bench.checks
        assert check.asset_key == KEY
        assert not check.passed
        assert "No objective is declared" in (check.description or "")

    def test_a_restart_says_nothing_twice(self, bench: Bench) -> None:
        bench.tick()
        data = bench.tick()
        assert (_kinds(data), data.cursor) == ([], bench.cursor)

    @pytest.mark.parametrize(
        "cursor", ["", "{", "null", "[]", '"x"', '{"version": 2}', '{"version": 1}']
    )
    def test_a_cursor_that_cannot_be_read_costs_one_event(self, bench: Bench, cursor: str) -> None:
        bench.cursor = cursor
        assert _kinds(bench.tick()) == EVENT
        assert _kinds(bench.tick()) == []

    def test_a_clock_that_was_set_back_does_not_silence_it(self, bench: Bench) -> None:
        bench.tick()
        assert _kinds(bench.tick(after_s=-86_400)) == EVENT
        assert bench.points == 2

    def test_cursor_round_trip(self) -> None:
        cursor = RecorderCursor(5, "exact", True)
        assert RecorderCursor.parse(cursor.dump()) == cursor
        assert json.loads(cursor.dump())["version"] == 1


@pytest.mark.parametrize(
    ("told", "waits_s"),
    [
        ({}, 0.0),
        ({"commit_wait_seconds": 15.0}, 15.0),
        ({"commit_wait_seconds": 90.0}, 20.0),
        ({"control_topic": "c"}, 3.0),
        ({"control_topic": "c", "commit_wait_seconds": 0.0}, 0.0),
        ({"control_urls": ("http://a:1",)}, 3.0),
    ],
)
def test_a_tick_waits_for_commits_as_configured_but_not_for_long(
    bench: Bench, told: Mapping[str, Any], waits_s: float
) -> None:
    bench.wait = told
    bench.tick()
    assert bench.waits == [waits_s]


class TestCheck:
    """Evaluated once a minute, whatever becomes of the point."""

    def _back_up(self, bench: Bench) -> None:
        """What the newest point holds."""
        backups = [backup(result(span(0, 5, topic=name)), topic=name) for name in ("t", "u")]
        Ledger(Warehouse(bench.root), APPLICATION_ID).record(backups, run_id="run")
        hold_records(Warehouse(bench.root), APPLICATION_ID)

    def _fail(self, bench: Bench, error: BaseException) -> None:
        def take(_: Recorder, **_wait: Any) -> RecoveryPoint:
            raise error

        bench.monkeypatch.setattr(Recorder, "take", take)

    def test_it_follows_the_newest_point(self, bench: Bench) -> None:
        bench.tick()
        self._back_up(bench)
        bench.tick(after_s=60)
        assert [check.passed for check in bench.checks] == [False, True]

    @pytest.mark.parametrize(
        "error",
        [
            ClusterUnavailableError(
                bootstrap_servers="broker:9092", operation="list", timeout_s=1, reason="no answer"
            ),
            OSError(28, "No space left on device"),
            KeyError("unforeseen"),
            SystemExit(1),
        ],
    )
    def test_it_grows_red_when_points_stop(self, bench: Bench, error: BaseException) -> None:
        bench.objective_s = 90
        bench.tick()
        self._back_up(bench)
        bench.tick(after_s=60)
        self._fail(bench, error)
        for _ in range(6):
            with pytest.raises(type(error)):
                bench.tick(after_s=20)
        assert [check.passed for check in bench.checks] == [False, True, True, False]
        assert "The objective is 90 s" in (bench.checks[-1].description or "")

    def test_it_grows_red_while_the_lock_is_held(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench.objective_s = 90
        bench.tick()
        self._back_up(bench)
        monkeypatch.setattr(recorder_sensor, "LOCK_WAIT_S", 0.0)
        lock = Warehouse(bench.root).lock_file(f"recorder-sensor/{APPLICATION_ID}")
        with warehouse_lock(lock, purpose="test", wait_s=1):
            for _ in range(2):
                with pytest.raises(WarehouseLockedError):
                    bench.tick(after_s=60)
        assert [check.passed for check in bench.checks] == [False, True, False]

    def test_a_ledger_that_cannot_be_read_is_red(self, bench: Bench) -> None:
        self._back_up(bench)
        log = Warehouse(bench.root).control("windows") / "_delta_log"
        for entry in log.glob("*.json"):
            entry.write_text("{", encoding="utf-8")
        bench.tick()
        [check] = bench.checks
        assert not check.passed
        assert "could not be evaluated" in (check.description or "")
        assert bench.points == 1

    def test_one_that_takes_long_is_evaluated_seldom(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ticking = itertools.count(0.0, 9.0)  # 9 s: due again after 180
        monkeypatch.setattr(recorder_sensor.time, "monotonic", lambda: next(ticking))
        found = [(_kinds(bench.tick(after_s=60)), len(bench.checks)) for _ in range(5)]
        assert found == [(EVENT, 1), (EVENT, 1), (EVENT, 1), (EVENT, 2), (EVENT, 2)]


class TestTwoDaemons:
    """They take turns, and the second sees the first's point."""

    def test_a_point_younger_than_half_the_interval_is_enough(self, bench: Bench) -> None:
        bench.tick()
        cursor = bench.cursor
        data = bench.tick(after_s=4.9)
        assert data.skip_message == "Another recovery point was taken 4.9 s ago."
        assert (bench.points, data.cursor) == (1, cursor)
        bench.tick(after_s=0.1)
        assert bench.points == 2

    def test_ticks_wait_for_each_other(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recorder_sensor, "LOCK_WAIT_S", 0.1)
        lock = Warehouse(bench.root).lock_file(f"recorder-sensor/{APPLICATION_ID}")
        with (
            warehouse_lock(lock, purpose="test", wait_s=1),
            pytest.raises(WarehouseLockedError),
        ):
            bench.tick()
        assert bench.points == 0


class TestBounds:
    """A tick stays well under Dagster's limit of a minute."""

    def test_a_broker_that_is_down_is_a_red_tick(self, bench: Bench, tmp_path: Path) -> None:
        bench.monkeypatch.undo()
        sensor = build_recovery_point_sensor(settings_of(tmp_path))
        began = time.monotonic()
        with pytest.raises(ClusterUnavailableError, match=r"did not answer within 1 s"):
            sensor.evaluate_tick(dg.build_sensor_context(instance=bench.instance, cursor=None))
        assert time.monotonic() - began < 20
        assert [check.passed for check in bench.checks] == [False]

    def test_a_long_request_timeout_is_cut_short(self, bench: Bench) -> None:
        settings = settings_of(bench.root)
        patient = settings.connection.model_copy(update={"request_timeout_seconds": 300.0})
        sensor = build_recovery_point_sensor(replace(settings, connection=patient))
        sensor.evaluate_tick(dg.build_sensor_context(instance=bench.instance, cursor=None))
        assert bench.timeouts == [recorder_sensor.CALL_TIMEOUT_S]
        bench.tick()
        assert bench.timeouts[-1] == 1

    @pytest.mark.parametrize("running", [True, False])
    def test_interval_and_default_status(self, tmp_path: Path, running: bool) -> None:
        settings = replace(
            settings_of(tmp_path),
            sensors_running=running,
            recovery_points=RecoveryPointSettings(every_seconds=25),
        )
        sensor = build_recovery_point_sensor(settings)
        assert sensor.minimum_interval_seconds == 24
        expected = dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED
        assert sensor.default_status is expected


class TestMetadata:
    """What is shown of a point."""

    def test_lag_of_inputs_only(self) -> None:
        taken = replace(
            point(START_MS),
            partitions=(
                _cut("in", 0, 100, TopicRole.INPUT),
                _cut("in", 1, 50, TopicRole.INPUT, log_start=20),
                _cut("twice", 0, 10, TopicRole.INPUT, TopicRole.CHANGELOG),
                _cut("repartition", 0, 99, TopicRole.REPARTITION),
                _cut("changelog", 0, 99, TopicRole.CHANGELOG),
            ),
            group_offsets=(
                GroupOffset("in", 0, 70, ""),
                GroupOffset("twice", 0, 12, ""),
                GroupOffset("repartition", 0, 1, ""),
            ),
        )
        assert input_lags(taken) == {"in": 60, "twice": 0}
        values = metadata(POINT, taken)
        assert values["offset_lag"].value == 60
        table = values["input_lag"]
        assert isinstance(table, dg.TableMetadataValue)
        assert [record.data for record in table.records] == [
            {"topic": "in", "offset_lag": 60},
            {"topic": "twice", "offset_lag": 0},
        ]

    def test_points_that_do_not_say_roles_count_what_was_committed(self) -> None:
        taken = replace(
            point(START_MS),
            partitions=(_cut("in", 0, 100), _cut("out", 0, 99)),
            group_offsets=(GroupOffset("in", 0, 70, ""),),
        )
        assert input_lags(taken) == {"in": 30}

    def test_why_a_point_is_not_sealed(self) -> None:
        taken = point(START_MS)
        assert "unsealed_because" not in metadata(POINT, taken)
        because = metadata(POINT, replace(taken, unsealed_because="Too much."))
        assert because["unsealed_because"].value == "Too much."


def _cut(
    topic: str, partition: int, end: int, *roles: TopicRole, log_start: int = 0
) -> PartitionCut:
    return PartitionCut(topic, partition, "life", log_start, end, TopicRoles(roles))
