"""The block `drill` of the YAML, and what becomes of it."""

from pathlib import Path
from typing import Any

import dagster as dg

from kstreams_assets.app_file.read import application_model
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.settings import ApplicationSettings
from tests.orchestration.project import attributes, specs_of

COMMAND = ["run", "{client_properties}", "{state_dir}"]


def _settings(folder: Path = Path("/yaml"), **block: Any) -> ApplicationSettings:
    component = application_model(attributes(drill=block))
    return component.settings(folder)


def test_the_program_starts_beside_the_yaml() -> None:
    found = _settings(command=COMMAND, working_directory="../app").drill
    assert found.working_directory == "/app"


def test_no_command_no_asset() -> None:
    found = build_application_definitions(_settings(objective_seconds=5))
    assert "shop/drill" not in specs_of(found)
    names = [schedule.name for schedule in found.schedules or ()]
    assert "shop_drill" not in names


def test_asset_check_pool_and_schedule() -> None:
    found = build_application_definitions(_settings(command=COMMAND, every="0 4 * * 0"))
    spec = specs_of(found)["shop/drill"]
    assert spec.group_name == "shop/drill"
    resources = {"spark": dg.ResourceDefinition.none_resource()}
    merged = dg.Definitions.merge(found, dg.Definitions(resources=resources))
    repository = merged.get_repository_def()
    schedule = repository.get_schedule_def("shop_drill")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 4 * * 0", "UTC")
    graph = merged.resolve_asset_graph()
    key = dg.AssetKey(["shop", "drill"])
    assert [check.name for check in graph.get_check_keys_for_assets({key})] == [
        "recovery_objective_met"
    ]
    assert graph.get(key).pools == {"kstreams_drills"}
