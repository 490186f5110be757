"""`kstreams-assets ready`: check if the application is restorable now."""

import sys

import click

from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.help import Command
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.drill.readiness import READINESS, STATEMENT, readiness
from kstreams_assets.settings import ApplicationSettings


@click.command(cls=Command, epilog="kstreams-assets ready --app defs.yaml")
@app_options
def ready(settings: ApplicationSettings, as_json: bool) -> None:
    """Check if the application is restorable now

    The answer is yes if all of this is true:

    - A recovery point is restorable. For an exactly-once application, the point must be exact.

    - The newest restorable point is not older than recovery_points.objective_seconds, if this key
    is set.

    - The newest recovery point contains all topics of the application.

    - Every closed backup window is backed up. The newest closed one is ignored: its backup may
    still be running.

    - The stored files are intact.

    - The completeness rules, if any, were evaluated. Every rule with `severity: error` passed.

    - The last governance check, if any, found no error.

    - A drill has run in the last 30 days. The last drill passed, and met drill.objective_seconds
    if this key is set.

    The result depends on the warehouse only. The command also contacts the source cluster and
    reports whether it answers, but this does not change the result.

    Exit code 1: the application is not restorable.
    """
    found = readiness(settings, ask_cluster=True)
    if as_json:
        print_json({"application_id": settings.application_id, **READINESS.document(found)})
    else:
        print_table(
            f"ready: {'yes' if found.ready else 'no'} ({settings.application_id})",
            *STATEMENT.table(found.statements, "subject", "against", "text"),
        )
    if not found.ready:
        sys.exit(exit_codes.CHECK_FAILED)
