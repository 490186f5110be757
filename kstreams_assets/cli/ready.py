"""`kstreams-assets ready`: could the application be recovered right now?"""

import sys

import click

from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.drill.readiness import readiness
from kstreams_assets.settings import ApplicationSettings


@click.command()
@app_options
def ready(settings: ApplicationSettings, as_json: bool) -> None:
    """Whether the application could be recovered right now, and why. Needs no broker and no JVM.

    Looks at the newest recovery point that is backed up and gives what the application guarantees,
    at windows that are due, at completeness rules, governance findings and the last drill. Exits 1
    when it could not.
    """
    found = readiness(settings, ask_cluster=True)
    if as_json:
        print_json(
            {
                "application_id": settings.application_id,
                "ready": found.ready,
                "why": found.why,
                "statements": [
                    {
                        "subject": statement.subject,
                        "speaks_against": statement in found.against,
                        "text": statement.text,
                    }
                    for statement in found.statements
                ],
            }
        )
    else:
        print_table(
            f"ready: {'yes' if found.ready else 'no'} ({settings.application_id})",
            ["subject", "against", "what was found"],
            [
                [statement.subject, "yes" if statement in found.against else "", statement.text]
                for statement in found.statements
            ],
        )
    if not found.ready:
        sys.exit(exit_codes.CHECK_FAILED)
