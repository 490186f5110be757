"""`kstreams-assets drill`: restore into a throwaway cluster, start the application, judge."""

import logging
import sys

import click

from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json
from kstreams_assets.cli.spark_run import spark_run
from kstreams_assets.drill.command import require_command, require_machine
from kstreams_assets.drill.report import (
    DrillReport,
    ObjectiveResult,
    objective_verdict,
    report_document,
    summary,
)
from kstreams_assets.drill.run import DrillRequest, DrillRun, report_file
from kstreams_assets.settings import ApplicationSettings

_log = logging.getLogger(__name__)
_RED = frozenset({ObjectiveResult.MISSED, ObjectiveResult.NOT_RECOVERED})


@click.command()
@app_options
@click.option("--as-of", help="The newest point complete at this time, as 2026-11-21T14:30:00Z.")
@click.option("--point", "point_id", help="This recovery point.")
@click.option("--keep", is_flag=True, help="Keep the cluster, the state and the log afterwards.")
def drill(
    settings: ApplicationSettings,
    as_json: bool,
    as_of: str | None,
    point_id: str | None,
    keep: bool,
) -> None:
    """Restore into a throwaway cluster, start the application there, measure and judge.

    Prints a summary; the report `restoreDrill` is a YAML file in the warehouse. Exits 1 when the
    application did not come back with the right state, or not within the declared objective. The
    source cluster is neither needed nor touched.

    \f
    Raises ConfigurationError.
    """
    request = DrillRequest.of(as_of, point_id, keep=keep)
    require_command(settings)  # before a JVM is started
    require_machine()
    with spark_run() as run:
        report = DrillRun(settings, run.spark, run.id, log=_log.info).execute(request)
    if as_json:
        print_json(report_document(report))
    else:
        _tell(settings, report)
    if objective_verdict(report).result in _RED:
        sys.exit(exit_codes.CHECK_FAILED)


def _tell(settings: ApplicationSettings, report: DrillReport) -> None:
    for line in summary(report):
        click.echo(line)
    click.echo(f"Report: {report_file(settings, report.drill_id)}")
    if report.kept is not None:
        click.echo(
            f"Kept: kstreams-assets restore serve --app YAML {report.kept} starts its cluster"
            " again, with --remove it is deleted."
        )
