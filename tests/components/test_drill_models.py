"""The block `drill` of the YAML, and what becomes of it."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kstreams_assets.app_file.read import application_model
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.settings import ApplicationSettings, DrillSettings
from tests.components.project import attributes, specs_of

COMMAND = ["run", "{client_properties}", "{state_dir}"]


def _settings(folder: Path = Path("/yaml"), **block: Any) -> ApplicationSettings:
    component = application_model(attributes(drill=block))
    return component.settings(folder)


def test_defaults() -> None:
    component = application_model(attributes())
    assert component.settings(Path.cwd()).drill == DrillSettings() == _settings().drill


def test_everything() -> None:
    found = _settings(
        command=COMMAND,
        environment={"JAVA_OPTS": "-Xmx1g"},
        working_directory="../app",
        running_line="^UP$",
        start_timeout_seconds=1,
        catch_up_timeout_seconds=2,
        objective_seconds=3,
        every="0 4 * * 0",
    )
    assert found.drill == DrillSettings(
        command=tuple(COMMAND),
        environment={"JAVA_OPTS": "-Xmx1g"},
        working_directory="/app",
        running_line="^UP$",
        start_timeout_s=1,
        catch_up_timeout_s=2,
        objective_s=3,
        every="0 4 * * 0",
    )


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"objective_seconds": 0}, "drill.objective_seconds is 0."),
        ({"start_timeout_seconds": -1}, "drill.start_timeout_seconds is -1."),
        ({"catch_up_timeout_seconds": float("inf")}, "drill.catch_up_timeout_seconds is inf."),
        ({"running_line": "("}, "drill.running_line is '('"),
        ({"command": COMMAND, "every": "weekly"}, "drill.every is 'weekly'."),
        ({"every": "0 4 * * 0"}, "drill.every is given, but no drill.command."),
        ({"command": ["run", "{state_dir}"]}, "has {bootstrap_servers} or {client_properties}"),
        ({"command": [*COMMAND, "{port}"]}, "{port}, which is not known"),
    ],
)
def test_wrong_values(block: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        _settings(**block)
    assert text in str(caught.value)


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
