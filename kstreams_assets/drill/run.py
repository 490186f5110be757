"""One restore drill from beginning to end; knows no Dagster."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.backup.run import Spark
from kstreams_assets.drill.attempt import DrillAttempt
from kstreams_assets.drill.command import require_command, require_machine
from kstreams_assets.drill.place import reports_folder
from kstreams_assets.drill.report import DrillReport
from kstreams_assets.drill.report_yaml import report_yaml
from kstreams_assets.drill.request import DrillRequest
from kstreams_assets.drill.table import DrillsTable
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.lock import warehouse_lock
from kstreams_assets.warehouse.presence import require_backup

_log = logging.getLogger(__name__)
_LOCK_WAIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class DrillRun:
    """Restores into a throwaway cluster, starts the application there, measures and judges.

    The source cluster is not needed, and never touched.
    """

    settings: ApplicationSettings
    spark: Spark
    run_id: str
    log: Callable[[str], None] = _log.info

    def execute(self, request: DrillRequest) -> DrillReport:
        """The drill's report, also written as YAML and into the table `drills`.

        Whatever goes wrong once the drill has begun is in the report. Everything is stopped and
        removed at the end, unless `request.keep`.

        Raises:
            DrillNotDeclaredError, DrillCommandNotFoundError, ConfigurationError: The application
                cannot be started; nothing was done.
            JavaNotFoundError, JarsMissingError: This machine cannot drill; nothing is recorded.
            WarehouseError: There is no warehouse, or its ledger is gone.
            WarehouseLockedError: Another drill of the application is going on.
        """
        settings = self.settings
        require_command(settings)
        require_machine()
        require_backup(settings.warehouse, settings.application_id)
        with warehouse_lock(
            settings.warehouse.lock_file(f"drill-{settings.application_id}"),
            purpose=f"drill run {self.run_id}",
            wait_s=_LOCK_WAIT_S,
        ):
            report = DrillAttempt(
                settings, request, spark=self.spark, run_id=self.run_id, log=self.log
            ).execute()
            _write(settings, report)
        self.log(f"Drill {report.drill_id} {'passed' if report.passed else 'failed'}.")
        return report


def report_file(settings: ApplicationSettings, drill_id: str) -> Path:
    """Where the report of a drill is."""
    return reports_folder(settings) / f"{drill_id}.yaml"


def _write(settings: ApplicationSettings, report: DrillReport) -> None:
    file = report_file(settings, report.drill_id)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(report_yaml(report), encoding="utf-8")
    DrillsTable(settings.warehouse).record(report)
