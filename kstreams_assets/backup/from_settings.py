"""Runs and recorders of an application as it is configured."""

from collections.abc import Sequence

from kstreams_assets.app.model import AppTopic
from kstreams_assets.backup.partitions import WindowCalendar
from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.backup.retention import retention_of
from kstreams_assets.backup.run import BackupRun, Spark
from kstreams_assets.backup.windows import Window
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.ktables.schemas import try_to_save_schemas
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.presence import make_warehouse


def back_up(
    settings: ApplicationSettings,
    windows: Sequence[Window],
    *,
    topics: tuple[AppTopic, ...],
    newest_closed: Window | None,
    spark: Spark,
    run_id: str,
) -> list[WindowBackup]:
    """Back up windows of an application as it is configured; see `BackupRun.execute`.

    Schemas of its registry are stored at the end; if that fails, it is logged as a warning.
    """
    make_warehouse(settings.warehouse.root)
    first = WindowCalendar(settings.windows).first_closed()
    with KafkaCluster(settings.connection) as cluster:
        run = BackupRun(
            application=settings.application,
            topics=topics,
            cluster=cluster,
            warehouse=settings.warehouse,
            spark=spark,
            run_id=run_id,
            begins_ms=first.start_ms if first else 0,
            settings=settings.backup,
            recovery_points=settings.recovery_points,
        )
        backups = run.execute(windows, newest_closed=newest_closed)
    try_to_save_schemas(settings)
    return backups


def recorder_of(settings: ApplicationSettings, cluster: KafkaCluster) -> Recorder:
    """The recorder of a configured application, which also thins out its points."""
    return Recorder(
        application=settings.application,
        cluster=cluster,
        warehouse=settings.warehouse,
        settings=settings.recovery_points,
        retention=retention_of(settings),
    )
