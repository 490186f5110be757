"""The backup sensor on a real Dagster instance: no window twice, none forgotten."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.execution.asset_backfill import AssetBackfillData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.storage.tags import RUN_KEY_TAG
from dagster._core.test_utils import create_run_for_test

from kstreams_assets.app.model import AppTopic, Store, TopicRole, TopicRoles
from kstreams_assets.backup.requests import CLAIM_S, FIRST_PAUSE_S, MAX_WINDOWS, claim_file
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.orchestration.backup_sensor import build_backup_sensor
from kstreams_assets.orchestration.keys import pool
from kstreams_assets.orchestration.ktables import build_ktable_assets
from kstreams_assets.store.locks import WarehouseLockedError
from spark_resources.resource import SparkSessionResource
from tests.backup.samples import APPLICATION_ID
from tests.orchestration.default_keys import ktable_key
from tests.orchestration.requesting import (
    TOPICS,
    Bench,
    backup_keys,
    indices,
    queue,
    record,
    settings_of,
)

SECOND = 1 / 60


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Window 0 is open and has a recovery point."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield Bench(tmp_path / "warehouse", instance)


class TestWhatIsRequested:
    """One run for what is due."""

    def test_closed_windows_are_one_run_of_all_backups(self, bench: Bench) -> None:
        bench.minutes = 3.5
        request = bench.request()
        assert indices(request) == range(3)
        assert set(request.asset_selection or ()) == backup_keys("t", "u")
        assert request.tags["kstreams/app"] == APPLICATION_ID
        assert request.partition_key is None

    def test_nothing_before_the_first_window_has_closed(self, bench: Bench) -> None:
        assert bench.reason() == "Every closed window is backed up."

    def test_the_ledger_says_what_is_due(self, bench: Bench) -> None:
        bench.minutes = 6.5
        record(bench.root, [0, 1, 3, 4, 5])
        assert indices(bench.request()) == range(2, 3)

    def test_a_topic_that_was_selected_later_is_backed_up_alone(self, bench: Bench) -> None:
        bench.minutes = 2.5
        bench.back_up(bench.request())
        assert bench.reason() == "Every closed window is backed up."
        bench.topics = (*TOPICS, AppTopic("v", TopicRoles({TopicRole.INPUT})))
        assert "ended a short while ago" in bench.reason()
        bench.minutes += 2 * FIRST_PAUSE_S * SECOND
        record(bench.root, [2, 3], topics=["t", "u", "v"])
        request = bench.request()
        assert indices(request) == range(2)
        assert set(request.asset_selection or ()) == backup_keys("v")

    def test_five_hundred_windows_each_exactly_once(self, bench: Bench) -> None:
        bench.minutes = 500.5
        requested: list[range] = []
        while not isinstance(request := bench.tick(), str):
            requested.append(indices(request))
            bench.minutes += SECOND
            bench.back_up(request)
        assert request == "Every closed window is backed up."
        assert [len(windows) for windows in requested] == [MAX_WINDOWS, MAX_WINDOWS, 100]
        assert Counter(i for windows in requested for i in windows) == Counter(range(500))


class TestRunsUnderWay:
    """Nothing is requested beside them."""

    @pytest.mark.parametrize(
        "status",
        [
            dg.DagsterRunStatus.NOT_STARTED,
            dg.DagsterRunStatus.STARTING,
            dg.DagsterRunStatus.STARTED,
            dg.DagsterRunStatus.CANCELING,
        ],
    )
    def test_no_second_run_while_one_has_not_ended(
        self, bench: Bench, status: dg.DagsterRunStatus
    ) -> None:
        bench.minutes = 1.5
        run = bench.start(bench.request(), status)
        bench.minutes = 2.5
        assert (
            bench.reason() == f"Run {run.run_id} of these backups has not ended ({status.value})."
        )

    def test_a_run_that_was_started_by_hand(self, bench: Bench) -> None:
        bench.minutes = 1.5
        create_run_for_test(
            bench.instance,
            status=dg.DagsterRunStatus.STARTED,
            asset_selection=frozenset(backup_keys("u")),
        )
        assert "has not ended" in bench.reason()

    def test_a_job_of_the_user_by_its_pool(self, bench: Bench) -> None:
        bench.minutes = 1.5
        settings = settings_of(bench.root)

        @dg.op(pool=pool(settings.application_id))
        def back_up() -> None: ...

        @dg.job
        def by_hand() -> None:
            back_up()

        bench.instance.create_run_for_job(by_hand, status=dg.DagsterRunStatus.STARTED)
        assert "has not ended" in bench.reason()

    @pytest.mark.parametrize(
        ("status", "waits"),
        [(dg.DagsterRunStatus.QUEUED, False), (dg.DagsterRunStatus.STARTED, True)],
    )
    def test_a_run_of_tables_delays_backups_only_once_it_has_started(
        self, bench: Bench, status: dg.DagsterRunStatus, waits: bool
    ) -> None:
        """Then it holds the lock of the warehouse."""
        bench.minutes = 1.5
        bench.topics = (*TOPICS, AppTopic("log", TopicRoles({TopicRole.CHANGELOG})))
        bench.stores = (Store("store", "log"),)

        key = ktable_key(APPLICATION_ID, "store")
        settings = settings_of(bench.root, topics=bench.topics, stores=bench.stores)
        tables = dg.Definitions(
            assets=build_ktable_assets(settings), resources={"spark": SparkSessionResource()}
        )
        queue(bench.instance, tables, dg.RunRequest(asset_selection=[key]), status)
        if waits:
            assert "has not ended" in bench.reason()
        else:
            assert indices(bench.request()) == range(1)

    def test_a_backfill_that_was_started_by_hand(self, bench: Bench) -> None:
        bench.minutes = 1.5
        by_hand = self._backfill(bench, "by-hand", "t")
        self._backfill(bench, "of-another", "x", BulkActionStatus.COMPLETED_SUCCESS)
        assert bench.reason() == "Backfill by-hand of these backups goes on."
        bench.instance.update_backfill(by_hand.with_status(BulkActionStatus.CANCELED))
        assert indices(bench.request()) == range(1)

    def _backfill(
        self,
        bench: Bench,
        name: str,
        topic: str,
        status: BulkActionStatus = BulkActionStatus.REQUESTED,
    ) -> PartitionBackfill:
        backfill = PartitionBackfill(
            backfill_id=name,
            status=status,
            from_failure=False,
            tags={},
            backfill_timestamp=bench.now.timestamp(),
            asset_selection=sorted(backup_keys(topic)),
            asset_backfill_data=AssetBackfillData.empty(
                AssetGraphSubset(), bench.now.timestamp(), bench.instance
            ),
        )
        bench.instance.add_backfill(backfill)
        return backfill

    def test_runs_of_other_applications_do_not_matter(self, bench: Bench) -> None:
        bench.minutes = 1.5
        other = frozenset({dg.AssetKey(["other", "backup", "t"])})
        create_run_for_test(
            bench.instance, status=dg.DagsterRunStatus.STARTED, asset_selection=other
        )
        assert indices(bench.request()) == range(1)

    def test_a_run_that_dagster_is_about_to_retry(self, bench: Bench) -> None:
        bench.minutes = 1.5
        run = bench.start(bench.request())
        bench.instance.add_run_tags(run.run_id, {"dagster/will_retry": "true"})
        bench.end(run, succeeded=False)
        bench.minutes += 3
        assert bench.reason() == f"Dagster is about to retry run {run.run_id}."
        bench.minutes += 10
        assert 0 in indices(bench.request())

    def test_a_run_that_was_never_submitted_is_submitted_again(self, bench: Bench) -> None:
        bench.minutes = 1.5
        request = bench.request()
        run = bench.start(request, dg.DagsterRunStatus.NOT_STARTED)
        bench.minutes += 3
        again = bench.request()
        assert again.run_key == request.run_key == run.tags[RUN_KEY_TAG]
        assert again.tags == request.tags
        assert set(again.asset_selection or ()) == backup_keys("t", "u")


class TestFailures:
    """Requested again, after a pause, under another key."""

    @pytest.mark.parametrize("canceled", [False, True])
    def test_failed_windows_come_back(self, bench: Bench, canceled: bool) -> None:
        bench.minutes = 1.5
        request = bench.request()
        run = bench.start(request)
        if canceled:
            with bench.clock():
                bench.instance.report_run_canceled(run)
        else:
            bench.end(run, succeeded=False)
        bench.minutes += 0.4
        assert "Windows that failed: 1" in bench.reason()
        bench.minutes += FIRST_PAUSE_S * SECOND
        again = bench.request()
        assert indices(again)[0] == 0
        assert again.run_key != request.run_key

    def test_fresh_windows_do_not_wait_for_failed_ones(self, bench: Bench) -> None:
        bench.minutes = 3.9
        bench.end(bench.start(bench.request()), succeeded=False)
        bench.minutes = 4.1
        assert indices(bench.request()) == range(3, 4)

    def test_what_a_failed_run_has_done_is_not_requested_again(self, bench: Bench) -> None:
        bench.minutes = 3.5
        run = bench.start(bench.request())
        record(bench.root, [0, 1])
        bench.end(run, succeeded=False)
        bench.minutes = 6.5
        record(bench.root, [3, 4, 5])
        assert indices(bench.request()) == range(2, 3)

    def test_a_run_that_succeeds_and_backs_up_nothing_does_not_go_round(self, bench: Bench) -> None:
        bench.minutes = 1.1
        bench.end(bench.start(bench.request()), succeeded=True)
        bench.minutes += 0.5
        assert "ended a short while ago" in bench.reason()


class TestTwoDaemons:
    """Dagster looks for a run of the same key before it creates one; two look at once."""

    def test_two_ticks_before_the_run_exists(self, bench: Bench) -> None:
        bench.minutes = 1.5
        request = bench.request()
        other = replace(bench, cursor=None)
        assert other.reason() == f"Dagster is about to start the run {request.run_key}."
        bench.start(request)
        assert "has not ended" in other.reason()

    def test_a_window_that_closes_in_between(self, bench: Bench) -> None:
        bench.minutes = 1.99
        request = bench.request()
        bench.minutes = 2.01
        assert "about to start" in bench.reason()
        bench.back_up(request)
        assert indices(bench.request()) == range(1, 2)

    def test_a_daemon_that_died_before_it_created_the_run(self, bench: Bench) -> None:
        bench.minutes = 1.5
        request = bench.request()
        bench.cursor = None
        bench.minutes += CLAIM_S * SECOND
        record(bench.root, [1])
        assert bench.request().run_key == request.run_key

    def test_ticks_take_turns(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kstreams_assets.orchestration.backup_sensor._LOCK_WAIT_S", 0.1)
        bench.minutes = 1.5
        lock = Warehouse(bench.root).lock_file(f"backup-requests/{APPLICATION_ID}")
        with (
            warehouse_lock(lock, purpose="test", wait_s=1),
            pytest.raises(WarehouseLockedError),
        ):
            bench.tick()


class TestCursorAndClaim:
    """Lost or garbled, they cost a look or a minute."""

    def test_nothing_is_looked_up_until_a_window_closes(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench.minutes = 1.1
        bench.back_up(bench.request())
        assert bench.reason() == "Every closed window is backed up."
        with monkeypatch.context() as patched:
            patched.setattr("kstreams_assets.orchestration.backup_sensor.window_statuses", None)
            bench.minutes = 1.9
            assert bench.reason() == "No window has closed since the last look."
        bench.minutes = 2.1
        assert indices(bench.request()) == range(1, 2)

    @pytest.mark.parametrize("cursor", ["", "{", "null", '{"version": 99}', "[]", "0"])
    def test_any_cursor_will_do(self, bench: Bench, cursor: str) -> None:
        bench.minutes = 1.5
        bench.cursor = cursor
        assert indices(bench.request()) == range(1)
        assert json.loads(bench.cursor)["version"] == 1

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"run_key": "x"}', "\x00"])
    def test_any_claim_will_do(self, bench: Bench, text: str) -> None:
        path = claim_file(Warehouse(bench.root), APPLICATION_ID)
        path.parent.mkdir(parents=True)
        path.write_text(text)
        bench.minutes = 1.5
        assert indices(bench.request()) == range(1)

    def test_a_claim_of_the_future_does_not_count(self, bench: Bench) -> None:
        bench.minutes = 61.5
        bench.request()
        bench.minutes = 1.5
        assert indices(bench.request()) == range(1)


@pytest.mark.parametrize("running", [True, False])
def test_default_status(tmp_path: Path, running: bool) -> None:
    sensor = build_backup_sensor(replace(settings_of(tmp_path), sensors_running=running))
    expected = dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED
    assert sensor.default_status is expected
    assert sensor.minimum_interval_seconds is not None
    assert timedelta(seconds=sensor.minimum_interval_seconds) <= timedelta(minutes=1)
