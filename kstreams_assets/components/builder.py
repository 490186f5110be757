"""Settings of an application -> Dagster definitions, for the YAML and for Python users."""

import dagster as dg

from kstreams_assets.backup.assets import build_backup_assets
from kstreams_assets.backup.sensor import build_backup_sensor
from kstreams_assets.completeness.assets import build_completeness_assets
from kstreams_assets.components.topic_assets import topic_specs
from kstreams_assets.drill.assets import build_drill_assets, build_drill_schedules
from kstreams_assets.governance.assets import (
    build_governance_asset,
    build_governance_schedules,
)
from kstreams_assets.ktables.assets import build_ktable_assets
from kstreams_assets.recovery.assets import build_recovery_points_asset
from kstreams_assets.recovery.sensor import build_recovery_point_sensor
from kstreams_assets.restore.assets import build_restore_assets
from kstreams_assets.settings import ApplicationSettings


def build_application_definitions(settings: ApplicationSettings) -> dg.Definitions:
    """Topics, recovery points, backups, KTables and restores of one application, and the sensors.

    The resource `spark` (`spark_resources.session.SparkSessionResource`) has to be bound by the
    code location; pass several applications through `components.topic_assets.share_topics`.

    Raises:
        ConfigurationError: Names collide, or the windows are not understood.
    """
    return dg.Definitions(
        assets=[
            *topic_specs(settings),
            build_recovery_points_asset(settings),
            build_backup_assets(settings),
            *build_ktable_assets(settings),
            *build_completeness_assets(settings),
            *build_restore_assets(settings),
            *build_drill_assets(settings),
            build_governance_asset(settings),
        ],
        schedules=[*build_governance_schedules(settings), *build_drill_schedules(settings)],
        sensors=[build_recovery_point_sensor(settings), build_backup_sensor(settings)],
    )
