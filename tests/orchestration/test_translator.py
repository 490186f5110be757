"""A translator changes keys and attributes, and everything that names an asset follows it."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kstreams_assets.components import AssetKind, KafkaStreamsAsset, KafkaStreamsTranslator
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.settings import ApplicationSettings
from tests.clock import freeze_time
from tests.orchestration import requesting
from tests.orchestration.project import TYPE, Project, attributes, edges
from tests.orchestration.requesting import record, settings_of, take_first_point
from tests.orchestration.restoring import NoSpark
from tests.restore.restored_app import RestoredApp

ROOT = Path(__file__).resolve().parents[2]
COMPONENT = """
import dagster as dg
from kstreams_assets.components import AssetKind, KafkaStreamsAppComponent

class Production(KafkaStreamsAppComponent):
    def get_asset_key(self, asset):
        return super().get_asset_key(asset).with_prefix("production")

    def get_asset_spec(self, asset, spec):
        spec = spec.replace_attributes(group_name="streams")
        if asset.kind is AssetKind.KTABLE:
            spec = spec.replace_attributes(automation_condition=dg.AutomationCondition.eager())
        return spec.merge_attributes(tags={"stage": "production"})
"""


class Production(KafkaStreamsTranslator):
    """All keys below `production`."""

    def get_asset_key(self, asset: KafkaStreamsAsset) -> dg.AssetKey:
        """The default key with a prefix."""
        return super().get_asset_key(asset).with_prefix("production")


def _yaml(project: Project, folder: str, component: str = "", **more: Any) -> None:
    path = project.write(folder, attributes(folder, **more))
    if component:
        path.write_text(path.read_text().replace(TYPE, f"{project.module}.components.{component}"))


def test_a_component_changes_keys_groups_tags_and_conditions(project: Project) -> None:
    more = {
        "completeness": [{"name": "kept", "sql": "SELECT * FROM s"}],
        "keep": {"hourly": "1d"},
        "second_copy": {"to": "/nowhere/copy", "every": "0 3 * * *"},
        "drill": {"command": ["run", "{client_properties}", "{state_dir}"]},
    }
    (project.root / project.module / "components.py").write_text(COMPONENT)
    for application_id in ("shop", "stock"):
        _yaml(project, application_id, **more)
    default = project.graph()
    for application_id in ("shop", "stock"):
        _yaml(project, application_id, "Production", **more)
    found = project.graph()

    assert {*found} == {f"production/{key}" for key in default}
    below = {(f"production/{above}", f"production/{key}") for above, key in edges(default)}
    assert edges(found) == below
    assert {spec.group_name for spec in found.values()} == {"streams"}
    assert {spec.tags["stage"] for spec in found.values()} == {"production"}
    conditions = {key for key, spec in found.items() if spec.automation_condition is not None}
    assert conditions == {"production/shop/ktable/s", "production/stock/ktable/s"}
    assert found["production/kafka/in"].metadata["topic"] == "in"  # one asset for both


def _definitions(settings: ApplicationSettings) -> dg.Definitions:
    resources = dg.Definitions(resources={"spark": NoSpark()}, executor=dg.in_process_executor)
    return dg.Definitions.merge(build_application_definitions(settings, Production()), resources)


def _sensor(definitions: dg.Definitions, name: str) -> dg.SensorDefinition:
    return next(
        found
        for found in definitions.sensors or ()
        if isinstance(found, dg.SensorDefinition) and found.name == name
    )


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster of the test's own."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def test_sensors_report_and_request_under_the_translated_keys(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    definitions = _definitions(settings_of(tmp_path))
    take_first_point(tmp_path)
    record(tmp_path, [0])
    backup = dg.AssetKey(["production", requesting.APPLICATION_ID, "backup", "t"])

    def requested(name: str) -> list[dg.RunRequest]:
        context = dg.build_sensor_context(instance=instance, sensor_name=name)
        with freeze_time(requesting.FIRST + timedelta(minutes=3)):
            return list(_sensor(definitions, name).evaluate_tick(context).run_requests or ())

    assert requested("shop_reports") == []
    assert instance.get_materialized_partitions(backup) == {requesting.key(0)}
    (request,) = requested("shop_backups")
    assert requesting.indices(request) == range(1, 3)
    assert backup in (request.asset_selection or ())


def test_assets_materialize_under_the_translated_keys(
    restored_app: RestoredApp, instance: dg.DagsterInstance
) -> None:
    settings = replace(restored_app.app.settings, warehouse=restored_app.warehouse)
    definitions = _definitions(settings)
    restorable = dg.AssetKey(["production", "shop", "restorable"])
    assets = [asset for asset in definitions.assets or () if isinstance(asset, dg.AssetsDefinition)]

    done = dg.materialize(
        assets, selection=[restorable], instance=instance, resources=definitions.resources
    )

    assert [e.asset_key for e in done.get_asset_materialization_events()] == [restorable]
    assert {e.asset_key for e in done.get_asset_check_evaluations()} == {restorable}


def test_a_key_for_two_assets_is_refused(tmp_path: Path) -> None:
    class Flat(KafkaStreamsTranslator):
        def get_asset_key(self, asset: KafkaStreamsAsset) -> dg.AssetKey:
            return dg.AssetKey([asset.kind.value])

    message = "Flat gives topic 't' of shop and topic 'u' of shop .* get_asset_key"
    with pytest.raises(ConfigurationError, match=message):
        build_application_definitions(settings_of(tmp_path), Flat())


def test_a_key_that_only_the_spec_has_is_refused(tmp_path: Path) -> None:
    class Elsewhere(KafkaStreamsTranslator):
        def get_asset_spec(self, asset: KafkaStreamsAsset, spec: dg.AssetSpec) -> dg.AssetSpec:
            return spec.replace_attributes(key=spec.key.with_prefix("x"))

    with pytest.raises(ConfigurationError, match="Change keys in get_asset_key only"):
        build_application_definitions(settings_of(tmp_path), Elsewhere())


def test_keys_are_made_in_one_place() -> None:
    made = {
        path.name
        for path in (ROOT / "kstreams_assets").rglob("*.py")
        if "dg.AssetKey(" in path.read_text(encoding="utf-8")
    }
    assert made == {"translator.py"}


def test_every_kind_has_a_default_key() -> None:
    translator = KafkaStreamsTranslator()
    keys = {translator.get_asset_key(KafkaStreamsAsset(kind, "shop", "x")) for kind in AssetKind}
    assert len(keys) == len(AssetKind)
