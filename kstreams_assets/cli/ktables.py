"""`kstreams-assets ktables`: state stores as tables, one snapshot for each window."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.checks import Evaluation, problem_lines, short_text
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.spark_run import spark_run
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.ktables.checks import judge_all
from kstreams_assets.ktables.run import make_snapshots, table_stores
from kstreams_assets.ktables.snapshot import Snapshot, TableStore
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.ktables.state import require_store, why_unconfirmed
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import iso_time
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.spans import Window


@click.group("ktables")
def ktables() -> None:
    """Make and list snapshots of state stores: Delta tables, one for each window."""


@ktables.command()
@app_options
@click.option("--store", "names", multiple=True, help="Only this store; repeat for more.")
@click.option("--window", "keys", multiple=True, help="A window; repeat for more.")
@click.option(
    "--last",
    default=1,
    show_default=True,
    help="Without --window: of how many backed-up windows, newest first.",
)
def make(
    settings: ApplicationSettings,
    as_json: bool,
    names: tuple[str, ...],
    keys: tuple[str, ...],
    last: int,
) -> None:
    """Make tables of the state stores of windows that are backed up. Needs no broker.

    Exits 1 when a check failed: a row cannot be decoded, or compaction may have taken records.

    \f
    Raises ConfigurationError for an unknown store or window.
    """
    stores = _stores(settings, names)
    calendar = WindowCalendar(settings.windows)
    windows = calendar.windows(keys) if keys else _newest(settings, stores, last)
    snapshots = _run(settings, stores, windows) if stores and windows else []
    evaluations = judge_all(settings, snapshots)
    _report(settings, snapshots, evaluations, as_json=as_json)
    if not windows:
        click.echo("NOTE No window is backed up yet: run kstreams-assets backup first.", err=True)
    if any(found.is_red for found in evaluations):
        sys.exit(exit_codes.CHECK_FAILED)


@ktables.command("list")
@app_options
@click.option("--store", "names", multiple=True, help="Only this store; repeat for more.")
@click.option("--last", default=20, show_default=True, help="How many, newest first.")
def list_snapshots(
    settings: ApplicationSettings, as_json: bool, names: tuple[str, ...], last: int
) -> None:
    """The snapshots that there are, newest windows first. Needs no broker.

    \f
    Raises UnknownStoreError.
    """
    for name in names:
        require_store(settings, name)
    found = SnapshotsTable(settings.warehouse).of(settings.application_id, stores=names or None)
    found = sorted(found, key=lambda s: (-s.window.start_ms, s.store))[:last]
    evaluations = judge_all(settings, found)
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
            click.echo(f"NOTE No table of store {store.name}: {why}.", err=True)
    unknown = sorted(set(names) - {store.store for store in stores})
    if unknown:
        raise ConfigurationError(
            f"The log of store {', '.join(unknown)} is not backed up.",
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
    print_table(
        title,
        ["window", "store", "rows", "bytes", "recovery point", "base", "read", "checks"],
        [
            [
                snapshot.window.key,
                snapshot.store,
                snapshot.rows,
                snapshot.bytes,
                iso_time(snapshot.taken_at_ms),
                snapshot.base_window or "",
                snapshot.records,
                short_text(_of(snapshot, evaluations)),
            ]
            for snapshot in snapshots
        ],
    )


def _of(snapshot: Snapshot, evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    of_it = (snapshot.window.key, snapshot.store)
    return [found for found in evaluations if (found.window, found.subject) == of_it]


def _document(snapshot: Snapshot, evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    return {
        "window": snapshot.window.key,
        "store": snapshot.store,
        "topic": snapshot.topic,
        "recovery_point": snapshot.point_id,
        "taken_at": iso_time(snapshot.taken_at_ms),
        "proved": snapshot.proved,
        "reason": snapshot.reason,
        "rows": snapshot.rows,
        "bytes": snapshot.bytes,
        "base_window": snapshot.base_window,
        "records_read": snapshot.records,
        "problem_rows": snapshot.problem_rows,
        "delta_version": snapshot.delta_version,
        "took_ms": snapshot.took_ms,
        "checks": _checks(_of(snapshot, evaluations)),
    }


def _checks(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    return [
        {
            "check": found.check,
            "passed": found.passed,
            "severity": found.severity.value,
            "explanation": found.explanation,
        }
        for found in evaluations
    ]
