"""The Dagster component: one YAML document becomes the definitions of an application."""

from collections.abc import Iterator
from typing import Any, Final, Self

import dagster as dg
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from kstreams_assets.app_file.model import ApplicationModel
from kstreams_assets.app_file.read import FILE, application_model
from kstreams_assets.ktables.stores import table_stores
from kstreams_assets.orchestration.backup import build_backup_assets
from kstreams_assets.orchestration.backup_sensor import build_backup_sensor
from kstreams_assets.orchestration.completeness import build_completeness_assets
from kstreams_assets.orchestration.drill import (
    build_drill_assets,
    build_drill_job,
    build_drill_schedules,
)
from kstreams_assets.orchestration.follow_up import build_follow_up_sensors
from kstreams_assets.orchestration.governance import (
    build_governance_asset,
    build_governance_schedules,
)
from kstreams_assets.orchestration.kafka_resource import kafka_resources
from kstreams_assets.orchestration.keys import RESTORED_COMPLETENESS
from kstreams_assets.orchestration.ktables import build_ktable_assets
from kstreams_assets.orchestration.object_store import store_resources
from kstreams_assets.orchestration.recovery_point_sensor import build_recovery_point_sensor
from kstreams_assets.orchestration.recovery_points import build_recovery_points_asset
from kstreams_assets.orchestration.reports import build_reports_sensor
from kstreams_assets.orchestration.restorable import (
    build_restorable_asset,
    build_restorable_sensor,
)
from kstreams_assets.orchestration.restore import (
    build_restore_assets,
    build_restore_job,
    restorable_topics,
    taken_names,
)
from kstreams_assets.orchestration.topics import topic_specs
from kstreams_assets.orchestration.translator import (
    AssetKind,
    DagsterSettings,
    KafkaStreamsAsset,
    KafkaStreamsTranslator,
    translated,
)
from kstreams_assets.orchestration.upkeep import (
    build_expire_assets,
    build_expire_schedules,
    build_second_copy_assets,
    build_second_copy_schedules,
    build_verification_asset,
    build_verification_schedules,
)
from kstreams_assets.settings import ApplicationSettings

_OF_A_VALUE: Final = frozenset(
    {"type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
)


def build_application_definitions(
    settings: ApplicationSettings, translator: KafkaStreamsTranslator | None = None
) -> dg.Definitions:
    """Topics, recovery points, backups, KTables and restores of one application, and the sensors.

    The resource `spark` (`spark_resources.resource.SparkSessionResource`) has to be bound by the
    code location; pass several applications through `orchestration.topics.share_topics`. The
    clusters (`orchestration.kafka_resource.KafkaResource`) and a warehouse in an object store
    (`dagster_aws.s3.S3Resource`) bring their own resources.

    Args:
        settings: Those of the application.
        translator: Gives the assets their keys and attributes.

    Raises:
        ConfigurationError: Names collide, or the windows are not understood.
    """
    settings = DagsterSettings.of(settings, translator)
    topics = topic_specs(settings)  # refuses colliding names
    restores = build_restore_assets(settings)
    assets = [
        *topics,
        build_recovery_points_asset(settings),
        build_backup_assets(settings),
        *build_ktable_assets(settings),
        *build_completeness_assets(settings),
        build_restorable_asset(settings),
        *restores,
        *build_drill_assets(settings),
        build_governance_asset(settings),
        *build_expire_assets(settings),
        build_verification_asset(settings),
        *build_second_copy_assets(settings),
    ]
    definitions = dg.Definitions(
        assets=translated(settings, _assets_of(settings), assets),
        schedules=[
            *build_governance_schedules(settings),
            *build_drill_schedules(settings),
            *build_expire_schedules(settings),
            *build_verification_schedules(settings),
            *build_second_copy_schedules(settings),
        ],
        sensors=[
            build_recovery_point_sensor(settings),
            build_backup_sensor(settings),
            build_reports_sensor(settings),
            build_restorable_sensor(settings),
            *build_follow_up_sensors(settings),
        ],
        resources={**store_resources(settings), **kafka_resources(settings)},
    )
    return dg.Definitions.merge(
        definitions, build_restore_job(settings, restores), build_drill_job(settings)
    )


def _assets_of(settings: ApplicationSettings) -> Iterator[KafkaStreamsAsset]:
    """Every asset that the application has; the kinds of which it has one may be undefined."""
    named = {
        AssetKind.TOPIC: [topic.name for topic in settings.application.topics],
        AssetKind.BACKUP: [topic.name for topic in settings.topics],
        AssetKind.KTABLE: [store.store for store in table_stores(settings)],
        AssetKind.RESTORE: [topic.name for topic in restorable_topics(settings)],
    }
    absent = {RESTORED_COMPLETENESS} - {*taken_names(settings)}  # a topic may have this name
    for kind in (kind for kind in AssetKind if kind not in absent):
        for name in named.get(kind, [""]):
            yield KafkaStreamsAsset(kind, settings.application_id, name)


class _Attributes(BaseModel):
    """What Dagster takes for the attributes: all that is a mapping; we say what is wrong in it."""

    model_config = ConfigDict(extra="allow")

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(ApplicationModel.__pydantic_core_schema__)

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - as pydantic has it
        """As for any model, but that a number may also be a template."""
        schema = super().model_json_schema(*args, **options)
        _allow_templates(schema)
        return schema


def _allow_templates(schema: object) -> None:
    if isinstance(schema, list):
        for inner in schema:
            _allow_templates(inner)
    elif isinstance(schema, dict):
        for inner in schema.values():
            _allow_templates(inner)
        if schema.get("type") in ("integer", "number", "boolean"):
            plain = {key: schema.pop(key) for key in [*schema] if key in _OF_A_VALUE}
            schema["anyOf"] = [plain, {"type": "string", "pattern": r"\{\{.*\}\}"}]


class KafkaStreamsAppComponent(KafkaStreamsTranslator, dg.Component):
    """One Kafka Streams application: topics with lineage, recovery points, backups and restores.

    Loads without a broker and without a JVM. What the YAML may say is `ApplicationModel`. The
    component is the translator of its assets: override `get_asset_key` and `get_asset_spec`.
    """

    def __init__(self, model: ApplicationModel) -> None:
        self._model = model

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """What the component catalogue says."""
        return dg.ComponentTypeSpec(
            description="Backups and restores of one Kafka Streams application",
            produces=["asset", "asset_check", "sensor"],
        )

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """What the YAML is checked with before `load`."""
        return _Attributes

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """The component; raises ConfigurationError and its kin for what the YAML says wrong."""
        said = {} if attributes is None else attributes.model_extra or {}
        return cls(application_model(dict(said), context.path / FILE))

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions; raises ConfigurationError and its kin for what the YAML says wrong."""
        return build_application_definitions(self._model.settings(context.path), self)
