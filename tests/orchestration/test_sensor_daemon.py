"""The backup sensor in Dagster's daemon: killed at any milestone, or twice at once, one run."""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.scheduler.instigation import InstigatorType, TickStatus
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
)

from kstreams_assets.backup.requests import RequestClaim, claim_file, read_claim, write_claim
from kstreams_assets.layout import Warehouse
from kstreams_assets.orchestration.keys import backups_sensor, pool, recovery_points_sensor
from kstreams_assets.repository.repository import Repository
from tests.backup.samples import APPLICATION_ID, cut, point
from tests.orchestration.requesting import ROOT, backup_keys, instance_at

pytestmark = pytest.mark.e2e

DAYS = 3
_PATIENCE_S = 180
_SCRIPT = Path(__file__).with_name("sensor_daemon.py")


class Daemons:
    """Daemons of one Dagster home, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.warehouse = Warehouse(folder / "warehouse")
        self.first = datetime.now(tz=UTC) - timedelta(days=DAYS)
        taken_at_ms = round(self.first.timestamp() * 1000)
        Repository(self.warehouse, APPLICATION_ID).points.append(point(taken_at_ms, cut(0, 5)))
        with instance_at(self.home):
            pass

    def start(self, *milestone: str) -> "subprocess.Popen[bytes]":
        """One round of a daemon."""
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", str(_SCRIPT), str(self.home), *milestone],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SENSOR_TEST_WAREHOUSE": str(self.warehouse.root),
                "SENSOR_TEST_START": f"{self.first:%Y-%m-%d}",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def run(self, *milestone: str) -> int:
        """One round, to its end."""
        return self.start(*milestone).wait(_PATIENCE_S)

    def expire_claim(self) -> None:
        """As if a minute had gone by."""
        path = claim_file(self.warehouse, APPLICATION_ID)
        if claim := read_claim(path):
            write_claim(path, RequestClaim(claim.run_key, claim.claimed_at_ms - 60_000))

    def forget_ticks(self) -> None:
        """As if the sensors' interval had gone by."""
        with instance_at(self.home) as instance:
            for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR):
                data = state.instigator_data
                assert data is not None
                instance.update_instigator_state(
                    state.with_data(
                        data._replace(last_tick_timestamp=None, last_tick_start_timestamp=None)
                    )
                )

    def runs(self) -> list[dg.DagsterRun]:
        """Every run there is."""
        with instance_at(self.home) as instance:
            return list(instance.get_runs())


@pytest.fixture
def daemons(tmp_path: Path) -> Daemons:
    """No daemon yet."""
    return Daemons(tmp_path)


def _assert_one_queued_run(daemons: Daemons) -> None:
    [run] = daemons.runs()
    assert run.status is dg.DagsterRunStatus.QUEUED
    assert run.asset_selection == backup_keys("t", "u")
    last = daemons.first + timedelta(days=DAYS - 1)
    assert run.tags[ASSET_PARTITION_RANGE_START_TAG] == f"{daemons.first:%Y-%m-%d}"
    assert run.tags[ASSET_PARTITION_RANGE_END_TAG] == f"{last:%Y-%m-%d}"
    assert run.run_op_concurrency is not None
    assert run.run_op_concurrency.all_pools == {pool(APPLICATION_ID)}


@pytest.mark.parametrize(
    "milestone",
    ["TICK_HELD", "RUN_IDS_RESERVED", "RUN_CREATED", "RUN_LAUNCHED"],
)
def test_killed_and_restarted(daemons: Daemons, milestone: str) -> None:
    assert daemons.run(milestone) == -signal.SIGKILL
    daemons.forget_ticks()
    daemons.expire_claim()
    assert daemons.run() == 0
    _assert_one_queued_run(daemons)


def test_two_daemons_at_once(daemons: Daemons) -> None:
    for _ in range(2):
        both = [daemons.start(), daemons.start()]
        assert [process.wait(_PATIENCE_S) for process in both] == [0, 0]
        daemons.forget_ticks()
    _assert_one_queued_run(daemons)


def test_a_broker_that_is_down_is_a_red_tick(daemons: Daemons) -> None:
    assert daemons.run() == 0
    with instance_at(daemons.home) as instance:
        ticks = {
            state.instigator_name: instance.get_ticks(
                state.instigator_origin_id, state.selector_id
            )[0]
            for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
        }
    red = ticks[recovery_points_sensor(APPLICATION_ID)]
    assert red.status is TickStatus.FAILURE
    assert red.error is not None
    assert "Kafka at 127.0.0.1:1 did not answer within 1 s" in red.error.to_string()
    assert red.end_timestamp is not None
    assert red.end_timestamp - red.timestamp < 30
    assert ticks[backups_sensor(APPLICATION_ID)].status is TickStatus.SUCCESS
