"""`kstreams-assets drill`: test a restore on a throwaway cluster."""

import logging
import sys

import click

from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.help import Command, option
from kstreams_assets.cli.options import app_options, as_of_option, point_option
from kstreams_assets.cli.output import print_json
from kstreams_assets.cli.spark_run import spark_run
from kstreams_assets.drill.report import DrillReport, objective_verdict, report_document, summary
from kstreams_assets.drill.run import DrillJob, DrillRequest, report_file
from kstreams_assets.model.drill import ObjectiveResult
from kstreams_assets.settings import ApplicationSettings

_log = logging.getLogger(__name__)
_RED = frozenset({ObjectiveResult.MISSED, ObjectiveResult.NOT_RECOVERED})


@click.command(cls=Command, epilog="kstreams-assets drill --app defs.yaml --keep")
@app_options
@as_of_option
@point_option
@option(
    "--keep",
    section="Output",
    is_flag=True,
    help="Keep cluster, state directory and log after the drill.",
)
def drill(
    settings: ApplicationSettings,
    as_json: bool,
    as_of: str | None,
    point_id: str | None,
    keep: bool,
) -> None:
    """Test a restore on a throwaway cluster

    The drill restores into a local cluster, starts the application there and measures the
    recovery. It does not need the source cluster. It writes a report (YAML) to the warehouse.

    drill.command in the YAML starts the application. With --keep, the drill prints a NAME. To
    delete the kept cluster and files later, run `restore serve NAME --remove`.

    Exit code 1: the application did not recover, its state is wrong, or the recovery took longer
    than drill.objective_seconds.
    """
    request = DrillRequest.of(as_of, point_id, keep=keep)
    with spark_run() as run:
        report = DrillJob(settings, run.spark, run.id, log=_log.info).run(request)
    if as_json:
        print_json(report_document(report))
    else:
        _print(settings, report)
    if objective_verdict(report).result in _RED:
        sys.exit(exit_codes.CHECK_FAILED)


def _print(settings: ApplicationSettings, report: DrillReport) -> None:
    for line in summary(report):
        click.echo(line)
    click.echo(f"Report: {report_file(settings, report.drill_id)}")
    if report.kept is not None:
        click.echo(
            f"The cluster is kept. kstreams-assets restore serve --app YAML {report.kept} starts"
            " it again; add --remove to delete it."
        )
