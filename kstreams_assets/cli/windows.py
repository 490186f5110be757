"""`kstreams-assets windows`: list closed windows and their backup state."""

import sys
from collections import defaultdict
from collections.abc import Sequence

import click

from kstreams_assets.backup.follower_status import catching_up
from kstreams_assets.backup.report import LISTED, ListedWindow
from kstreams_assets.backup.requests import WindowStatus, window_statuses
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.help import Command
from kstreams_assets.cli.options import app_options, last_option
from kstreams_assets.cli.outage import next_close, outage_loss_ms, outage_now
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.model.damage import Damage
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings


@click.command(cls=Command, epilog="kstreams-assets windows --app defs.yaml --last 5")
@app_options
@last_option("windows")
def windows(
    settings: ApplicationSettings,
    as_json: bool,
    last: int,
) -> None:
    """List closed windows and their backup state

    States: done, due (not backed up yet), damaged, or no point. No point means that no recovery
    point was taken in the window; the next window with a point contains its records.

    The command reads the warehouse only.

    Exit code 1: files of a listed window do not match the ledger (the list of backed-up windows).
    """
    statuses = window_statuses(settings)
    due = sum(status.is_due for status in statuses)
    listed = _listed(settings, statuses[::-1][:last])
    damaged = [one for one in listed if one.damages]
    backlog = catching_up(settings.warehouse, settings.application_id)
    if as_json:
        print_json(
            {
                "application_id": settings.application_id,
                "due": due,
                "outage_loss_ms": outage_loss_ms(settings),
                **({"catching_up": backlog} if backlog else {}),
                "windows": LISTED.documents(listed),
            }
        )
        _exit(damaged)
        return
    print_table(
        f"Windows of {settings.application_id}: {len(statuses)} closed, {due} due",
        *LISTED.table(listed, "window", "state", "points", "topics", "records", "bytes", "lost"),
    )
    click.echo(outage_now(settings))
    if backlog:
        click.echo(f"The follower is running. {backlog}")
    click.echo(next_close(settings))
    if empty := sum(status.without_point for status in statuses):
        click.echo(
            f"{empty} windows have no recovery point and no backup. The next window with a point"
            " contains their records."
        )
    for one in damaged:
        first, others = one.damages[0], len(one.damages) - 1
        more = f" ({others} more damaged spans in this window)" if others else ""
        click.echo(f"Damaged: {first}{more}. {first.remedy}")
    _exit(damaged)


def _exit(damaged: Sequence[ListedWindow]) -> None:
    if damaged:
        sys.exit(exit_codes.CHECK_FAILED)


def _listed(settings: ApplicationSettings, statuses: Sequence[WindowStatus]) -> list[ListedWindow]:
    """Combine windows with their entries and damages in the ledger."""
    ledger, keys = Repository.open(settings).ledger, {status.window.key for status in statuses}
    entries: defaultdict[str, list[LedgerEntry]] = defaultdict(list)
    for entry in ledger.entries(windows=keys):
        entries[entry.result.plan.window.key].append(entry)
    damaged: defaultdict[str, list[Damage]] = defaultdict(list)
    for damage in ledger.damaged(windows=keys):
        damaged[damage.window or ""].append(damage)
    return [
        ListedWindow(status, entries[status.window.key], damaged[status.window.key])
        for status in statuses
    ]
