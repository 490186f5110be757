"""Both sensors with a real broker and real Spark: a point, a request, its run, nothing twice."""

from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG

from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.orchestration.keys import backups_sensor, recovery_points_sensor
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import WindowSchedule
from tests.e2e.test_dagster_run import produce, settings_of
from tests.orchestration.default_keys import recovery_points_key
from tests.streams.workbench import Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e]


def test_points_and_backups_by_sensor(workbench: Workbench, tmp_path: Path) -> None:
    orders = workbench.topic("orders")
    produce(workbench, orders, 10)
    # Of a day: a window that closes while its run starts is no longer the newest closed one, and
    # only that one gets a point on its behalf.
    settings = replace(
        settings_of(workbench), windows=WindowSchedule.every("day", start="2026-01-01")
    )
    definitions = dg.Definitions.merge(
        build_application_definitions(settings),
        dg.Definitions(resources={"spark": workbench.spark}),
    )
    recorder = definitions.resolve_sensor_def(recovery_points_sensor(settings.application_id))
    backups = definitions.resolve_sensor_def(backups_sensor(settings.application_id))

    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        tick = recorder.evaluate_tick(dg.build_sensor_context(instance=instance))

        [point] = Repository(settings.warehouse, settings.application_id).points.newest()
        assert tick.skip_message is not None
        assert point.id in tick.skip_message
        [event] = tick.asset_events
        assert isinstance(event, dg.AssetMaterialization)
        key = recovery_points_key(settings.application_id)
        assert event.asset_key == key
        # Reported before the point was taken, whatever becomes of that; nothing is covered yet.
        check = dg.AssetCheckKey(key, "recovery_point_is_recent")
        record = instance.get_latest_asset_check_evaluation_record(check)
        assert record is not None
        assert record.event is not None
        assert record.event.asset_check_evaluation is not None
        assert not record.event.asset_check_evaluation.passed
        assert event.metadata["recovery_point"].value == point.id

        [request] = backups.evaluate_tick(
            dg.build_sensor_context(instance=instance)
        ).run_requests or [None]
        assert request is not None
        job = definitions.resolve_implicit_global_asset_job_def()
        done = job.execute_in_process(
            instance=instance,
            asset_selection=list(request.asset_selection or ()),
            tags={**request.tags, "dagster/run_key": request.run_key or ""},
        )

        assert done.success
        last = request.tags[ASSET_PARTITION_RANGE_END_TAG]
        [entry] = Ledger(settings.warehouse, settings.application_id).entries(windows={last})
        assert entry.run_id == done.run_id
        again = backups.evaluate_tick(dg.build_sensor_context(instance=instance))
        # Another window may have closed meanwhile.
        for later in again.run_requests or ():
            assert later.tags[ASSET_PARTITION_RANGE_END_TAG] > last
            assert later.run_key != request.run_key
