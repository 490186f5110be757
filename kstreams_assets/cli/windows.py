"""`kstreams-assets windows`: what is backed up, what is due."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from kstreams_assets.backup.follower_status import catching_up
from kstreams_assets.backup.requests import WindowStatus, window_statuses
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.outage import next_close, outage_loss_ms, outage_now
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.ledger import Ledger, LedgerEntry
from kstreams_assets.warehouse.records import SpanDamage


@click.command()
@app_options
@click.option("--last", default=20, show_default=True, help="How many windows, newest first.")
def windows(
    settings: ApplicationSettings,
    as_json: bool,
    last: int,
) -> None:
    """Closed windows, newest first: which are backed up, due or damaged. Needs no broker.

    Exit code 1 when the files of a window shown do not match the ledger.
    """
    statuses = window_statuses(settings)
    due = sum(status.is_due for status in statuses)
    shown = statuses[::-1][:last]
    ledger = Ledger(settings.warehouse, settings.application_id)
    entries: dict[str, list[LedgerEntry]] = {}
    for entry in ledger.entries(windows={status.window.key for status in shown}):
        entries.setdefault(entry.result.plan.window.key, []).append(entry)
    damaged: dict[str, list[SpanDamage]] = {}
    for damage in ledger.damaged(windows={status.window.key for status in shown}):
        damaged.setdefault(damage.window, []).append(damage)
    documents = [
        _document(status, entries.get(status.window.key, []), damaged.get(status.window.key, []))
        for status in shown
    ]
    backlog = catching_up(settings.warehouse, settings.application_id)
    if as_json:
        print_json(
            {
                "application_id": settings.application_id,
                "due": due,
                "outage_loss_ms": outage_loss_ms(settings),
                **({"catching_up": backlog} if backlog else {}),
                "windows": documents,
            }
        )
        _exit(damaged)
        return
    columns = ["window", "state", "points", "topics", "records", "bytes", "lost"]
    print_table(
        f"Windows of {settings.application_id}: {len(statuses)} closed, {due} due",
        columns,
        [[document[column] for column in columns] for document in documents],
    )
    click.echo(outage_now(settings))
    if backlog:
        click.echo(f"The follower is at work. {backlog}")
    click.echo(next_close(settings))
    if empty := sum(status.without_point for status in statuses):
        click.echo(
            f"{empty} windows have no recovery point: nothing was backed up with them. Their"
            " records are in the next window with a point."
        )
    for of_window in damaged.values():
        more = f" ({len(of_window) - 1} more spans of this window)" if of_window[1:] else ""
        click.echo(f"Damaged: {of_window[0]}{more}. {of_window[0].remedy}")
    _exit(damaged)


def _exit(damaged: Mapping[str, Sequence[SpanDamage]]) -> None:
    if damaged:
        sys.exit(exit_codes.CHECK_FAILED)


def _state(status: WindowStatus, damaged: Sequence[SpanDamage]) -> str:
    if damaged:
        return "damaged"
    if status.is_due:
        return "due"
    return "no point" if status.without_point else "done"


def _document(
    status: WindowStatus, entries: list[LedgerEntry], damaged: Sequence[SpanDamage]
) -> dict[str, Any]:
    return {
        "window": status.window.key,
        "state": _state(status, damaged),
        "points": status.points,
        "topics": len(status.done),
        "records": sum(entry.result.content.records for entry in entries),
        "bytes": sum(entry.result.content.bytes for entry in entries),
        "lost": sum(len(entry.result.losses) for entry in entries),
        "missing_topics": sorted(status.missing),
        "damaged": [str(damage) for damage in damaged],
    }
