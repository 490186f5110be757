"""A window that was backed up outside of Dagster: reported, then its tables and rules are made."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from kstreams_assets.app.model import Store, TopicRole
from kstreams_assets.app.rules import CompletenessRule
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.orchestration.keys import follow_up_sensor, reports_sensor
from kstreams_assets.settings import WindowSchedule
from tests.e2e.test_dagster_run import produce, settings_of, take_point_in
from tests.orchestration.default_keys import backup_key, completeness_key, ktable_key
from tests.streams.workbench import Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e]


def test_tables_and_rules_follow_a_backup_of_the_command_line(
    workbench: Workbench, tmp_path: Path
) -> None:
    topic = workbench.topic("store-changelog", role=TopicRole.CHANGELOG)
    produce(workbench, topic, 3)
    yesterday = f"{datetime.now(tz=UTC) - timedelta(days=1):%Y-%m-%d}"
    take_point_in(workbench, f"{yesterday}-12:00")
    settings = settings_of(workbench)
    application_id = settings.application_id
    settings = replace(
        settings,
        application=replace(settings.application, stores=(Store("store", topic),)),
        windows=WindowSchedule.every("day", start=yesterday),
        completeness=(
            CompletenessRule(
                name="none", query=f"SELECT * FROM `{topic}` WHERE _offset > 9", views=(topic,)
            ),
        ),
    )
    definitions = dg.Definitions.merge(
        build_application_definitions(settings),
        dg.Definitions(resources={"spark": workbench.spark}, executor=dg.in_process_executor),
    )
    reports = definitions.resolve_sensor_def(reports_sensor(application_id))
    follow_up = definitions.resolve_sensor_def(follow_up_sensor(application_id))
    followed = [ktable_key(application_id, "store"), completeness_key(application_id)]

    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        before = follow_up.evaluate_tick(dg.build_sensor_context(instance=instance))
        assert not before.run_requests

        windows = WindowCalendar(settings.windows).windows([yesterday])
        BackupJob(settings, workbench.spark, "cli-1").run(windows)
        reports.evaluate_tick(dg.build_sensor_context(instance=instance))
        assert instance.get_materialized_partitions(backup_key(application_id, topic)) == {
            yesterday
        }

        cursor, evaluations = before.cursor, []
        for key in followed:
            context = dg.build_sensor_context(instance=instance, cursor=cursor)
            tick = follow_up.evaluate_tick(context)
            cursor = tick.cursor
            [request] = tick.run_requests or [None]
            assert request is not None
            assert request.asset_selection == [key]
            done = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
                instance=instance, asset_selection=[key], tags=dict(request.tags)
            )
            assert done.success
            assert instance.get_materialized_partitions(key) == {yesterday}
            evaluations = done.get_asset_check_evaluations()
        rules = {e.partition for e in evaluations if e.check_name == "none"}
        assert yesterday in rules
