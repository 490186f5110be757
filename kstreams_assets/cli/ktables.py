"""`kstreams-assets ktables`: create and list snapshots of state stores."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.checks import EVALUATION, Evaluation, problem_lines, short_text
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.help import Group, option
from kstreams_assets.cli.options import app_options, last_option, writing_app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.spark_run import spark_run
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.ktables.checks import evaluate_all
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.ktables.stores import require_store, table_stores, why_unconfirmed
from kstreams_assets.model.snapshot import SNAPSHOT, Snapshot, TableStore
from kstreams_assets.model.spans import Window
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings

store_option = option(
    "--store",
    "names",
    section="Selection",
    metavar="STORE",
    multiple=True,
    help="State store to include (default: all stores). Repeatable.",
)


@click.group("ktables", cls=Group, epilog="kstreams-assets ktables make --app defs.yaml")
def ktables() -> None:
    """Create snapshots of stores, one row per key

    A snapshot is the content of a state store at the end of a backup window, as rows of a Delta
    table.
    """


@ktables.command(epilog="kstreams-assets ktables make --app defs.yaml --store order-totals")
@writing_app_options
@store_option
@option(
    "--window",
    "keys",
    section="Selection",
    metavar="KEY",
    multiple=True,
    help="Window to snapshot (default: see --last). Repeatable.",
)
@last_option("backed-up windows", default=1)
def make(
    settings: ApplicationSettings,
    as_json: bool,
    names: tuple[str, ...],
    keys: tuple[str, ...],
    last: int,
) -> None:
    """Create snapshots of state stores

    Snapshots are computed from backups. The command does not contact the cluster.

    Exit code 1: a row could not be decoded, or compaction may have removed records.
    """
    stores = _stores(settings, names)
    calendar = WindowCalendar(settings.windows)
    windows = calendar.windows(keys) if keys else _newest(settings, stores, last)
    snapshots = _run(settings, stores, windows) if stores and windows else []
    evaluations = evaluate_all(settings, snapshots)
    _report(settings, snapshots, evaluations, as_json=as_json)
    if not windows:
        click.echo("NOTE No window is backed up yet: run kstreams-assets backup first.", err=True)
    if any(found.is_red for found in evaluations):
        sys.exit(exit_codes.CHECK_FAILED)


@ktables.command("list", epilog="kstreams-assets ktables list --app defs.yaml --last 5")
@app_options
@store_option
@last_option("snapshots")
def list_snapshots(
    settings: ApplicationSettings, as_json: bool, names: tuple[str, ...], last: int
) -> None:
    """List snapshots of state stores

    The command reads the warehouse only.
    """
    for name in names:
        require_store(settings, name)
    found = Repository.open(settings).snapshots.of(stores=names or None)
    found = sorted(found, key=lambda s: (-s.window.start_ms, s.store))[:last]
    evaluations = evaluate_all(settings, found)
    if as_json:
        print_json({"snapshots": [_document(s, evaluations) for s in found]})
        return
    _print(f"KTables of {settings.application_id}, newest windows first", found, evaluations)


def _stores(settings: ApplicationSettings, names: Sequence[str]) -> list[TableStore]:
    for name in names:
        require_store(settings, name)
    stores = table_stores(settings)
    for store in settings.application.stores:
        if not names and (why := why_unconfirmed(settings, store.name)):
            click.echo(f"NOTE Store {store.name} gets no table: {why}.", err=True)
    unknown = sorted(set(names) - {store.store for store in stores})
    if unknown:
        raise ConfigurationError(
            f"The changelog of store {', '.join(unknown)} is not backed up.",
            remedy=f"Stores with a backup: {', '.join(s.store for s in stores) or 'none'}; see"
            " include and exclude in the YAML.",
        )
    return [store for store in stores if not names or store.store in names]


def _newest(
    settings: ApplicationSettings, stores: Sequence[TableStore], count: int
) -> list[Window]:
    topics = {store.topic for store in stores}
    done = [status.window for status in window_statuses(settings) if topics <= status.done]
    return done[-count:] if count > 0 else []


def _run(
    settings: ApplicationSettings, stores: Sequence[TableStore], windows: Sequence[Window]
) -> list[Snapshot]:
    with spark_run() as run:
        return make_snapshots(
            settings,
            windows,
            stores=[store.store for store in stores],
            spark=run.spark,
            run_id=run.id,
        )


def _report(
    settings: ApplicationSettings,
    snapshots: Sequence[Snapshot],
    evaluations: Sequence[Evaluation],
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(
            {
                "application_id": settings.application_id,
                "warehouse": str(settings.warehouse.root),
                "passed": not any(found.is_red for found in evaluations),
                "snapshots": [_document(snapshot, evaluations) for snapshot in snapshots],
            }
        )
        return
    title = f"{settings.application_id}: {len(snapshots)} snapshots in {settings.warehouse.root}"
    _print(title, snapshots, evaluations)
    for line in problem_lines(evaluations):
        click.echo(line, err=True)


def _print(title: str, snapshots: Sequence[Snapshot], evaluations: Sequence[Evaluation]) -> None:
    columns, rows = SNAPSHOT.table(
        snapshots, "window", "store", "rows", "bytes", "taken_at", "base_window", "records_read"
    )
    checks = [short_text(_of(snapshot, evaluations)) for snapshot in snapshots]
    print_table(
        title,
        [*columns, "checks"],
        [[*row, cell] for row, cell in zip(rows, checks, strict=True)],
    )


def _of(snapshot: Snapshot, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    of_it = (snapshot.window.key, snapshot.store)
    return [found for found in evaluations if (found.window, found.subject) == of_it]


def _document(snapshot: Snapshot, evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    checks = EVALUATION.documents(_of(snapshot, evaluations))
    return {**SNAPSHOT.document(snapshot), "checks": checks}
