"""`kstreams-assets backup`: back up all due windows or selected ones."""

import contextlib
import sys
from collections.abc import Sequence
from typing import Final

import click

from kstreams_assets.app.model import AppTopic
from kstreams_assets.backup.amounts import Estimate, in_words
from kstreams_assets.backup.recorded import recorded_backups
from kstreams_assets.backup.report import (
    AMOUNT,
    BACKUP,
    ESTIMATE,
    TOPIC,
    BackupReport,
    WindowReport,
)
from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.backup.unreported import ReportMarks
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.checks import problem_lines
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.help import Command, option
from kstreams_assets.cli.options import limit_options, new_lineage_option, writing_app_options
from kstreams_assets.cli.outage import next_close, outage_now
from kstreams_assets.cli.output import print_json, print_table, say_guesses
from kstreams_assets.cli.spark_run import spark_run
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.spans import Window
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings

_COLUMNS: Final = (
    "window",
    "topic",
    "role",
    "records",
    "bytes",
    "tombstones",
    "missing_offsets",
    "executor",
    "verdict",
)


@click.command(cls=Command, epilog="kstreams-assets backup --app defs.yaml --dry-run")
@writing_app_options
@limit_options("backup")
@option(
    "--dry-run",
    section="Output",
    is_flag=True,
    help="Estimate volume and duration without reading records.",
)
@option(
    "--window",
    "keys",
    section="Selection",
    metavar="KEY",
    multiple=True,
    help="Window to back up (default: all due windows). Repeatable.",
)
@option(
    "--topic",
    "names",
    section="Selection",
    metavar="TOPIC",
    multiple=True,
    help="Topic to back up (default: all topics). Repeatable.",
)
@new_lineage_option
def backup(
    settings: ApplicationSettings,
    as_json: bool,
    dry_run: bool,
    keys: tuple[str, ...],
    names: tuple[str, ...],
    new_lineage: bool,
) -> None:
    """Back up all due windows or selected ones

    A backup window, for example an hour, is due when it has ended and at least one of its topics is
    not yet backed up. Windows that are already backed up are read again only if you name them.
    After it has backed up windows, the command also takes a recovery point.

    Exit code 1: the backup ran, but a check of a window failed. Example: Kafka had deleted records
    before they were read. The output names the check, the topic and the offsets.
    """
    topics = _topics(settings, names)
    say_guesses(settings)
    windows = WindowCalendar(settings.windows).windows(keys) if keys else _due(settings, topics)
    if dry_run:
        _estimate(settings, topics, windows, as_json=as_json)
        return
    with contextlib.ExitStack() as reported:
        done = _run(settings, topics, windows, reported, new_lineage=new_lineage) if windows else ()
        report = BackupReport(settings, _reports(settings, done), _left_behind(settings, reported))
        if as_json:
            print_json(BACKUP.document(report))
        else:
            _show(report)
    if not report.passed:
        sys.exit(exit_codes.CHECK_FAILED)


def _topics(settings: ApplicationSettings, names: Sequence[str]) -> tuple[AppTopic, ...]:
    unknown = sorted(set(names) - {topic.name for topic in settings.topics})
    if unknown:
        raise ConfigurationError(
            f"Not among the backed-up topics of {settings.application_id}: {', '.join(unknown)}.",
            remedy=f"They are: {', '.join(topic.name for topic in settings.topics)}.",
        )
    return tuple(t for t in settings.topics if not names or t.name in names)


def _due(settings: ApplicationSettings, topics: Sequence[AppTopic]) -> list[Window]:
    selected = {topic.name for topic in topics}
    return [s.window for s in window_statuses(settings) if s.missing & selected]


def _estimate(
    settings: ApplicationSettings,
    topics: tuple[AppTopic, ...],
    windows: Sequence[Window],
    *,
    as_json: bool,
) -> None:
    """Show how much a backup would read, without writing anything."""
    found = Estimate(settings.application_id)
    if windows:
        with spark_run() as run:
            found = BackupJob(settings, run.spark, "estimate", topics).plan(windows)
    if as_json:
        print_json(ESTIMATE.document(found))
        return
    if not windows:
        click.echo(f"Nothing is due for {settings.application_id}. {next_close(settings)}")
        return
    title = f"{settings.application_id}: {_windows(found.windows)} would be backed up"
    print_table(title, *AMOUNT.table(found.topics))
    words = in_words(found.bytes, found.offsets, found.pace)
    click.echo(f"Estimate: {words} to read. Nothing was written.")


def _run(
    settings: ApplicationSettings,
    topics: tuple[AppTopic, ...],
    windows: Sequence[Window],
    reported: contextlib.ExitStack,
    *,
    new_lineage: bool,
) -> Sequence[WindowBackup]:
    """Back up; the run counts as reported once `reported` is closed without an error."""
    with spark_run() as run:
        marks = ReportMarks(settings.warehouse, settings.application_id)
        reported.enter_context(marks.of_run(run.id))
        job = BackupJob(settings, run.spark, run.id, topics, new_lineage=new_lineage)
        return job.run(windows).windows


def _left_behind(
    settings: ApplicationSettings, reported: contextlib.ExitStack
) -> dict[str, list[WindowReport]]:
    """Return windows of earlier runs that ended before they reported them, by run."""
    marks = ReportMarks(settings.warehouse, settings.application_id)
    ledger = Repository.open(settings).ledger
    return {
        run_id: _reports(settings, windows)
        for run_id in marks.run_ids()
        if reported.enter_context(marks.left_behind(run_id))
        and (windows := recorded_backups(settings, ledger.of_run(run_id)))
    }


def _reports(settings: ApplicationSettings, windows: Sequence[WindowBackup]) -> list[WindowReport]:
    return [WindowReport.of(window, settings.application) for window in windows]


def _show(report: BackupReport) -> None:
    settings, every_window = report.settings, report.every_window
    if not every_window:
        click.echo(f"Nothing is due for {settings.application_id}. {next_close(settings)}")
        click.echo(outage_now(settings))
        return
    for run_id, windows in report.late.items():
        keys = _windows([one.window.window.key for one in windows])
        click.echo(
            f"NOTE Run {run_id} ended before it reported its backups: {keys}. Its checks are"
            " included below.",
            err=True,
        )
    done = len({one.window.window for one in report.windows if one.window.has_point})
    title = f"{settings.application_id}: {done} windows backed up to {settings.warehouse.root}"
    headings, rows = TOPIC.table(
        (topic for one in every_window if not one.is_empty for topic in one.topics), *_COLUMNS
    )
    rows += [
        [unread.window.key, unread.topic, *("-" for _ in _COLUMNS[3:]), "RED: not backed up"]
        for one in report.windows
        for unread in one.window.unread
    ]
    if rows:
        print_table(title, headings, rows)
    else:
        click.echo(title)
    unread = {one.window.window.key for one in report.windows if one.window.unread}
    keys = [one.window.window.key for one in every_window if one.is_empty]
    if empty := [key for key in keys if key not in unread]:
        click.echo(f"Windows without records: {_windows(empty)}.")
    notes: dict[str, list[str]] = {}
    for one in every_window:
        if one.window.note:
            notes.setdefault(one.window.note, []).append(one.window.window.key)
    for note, keys in notes.items():
        click.echo(f"NOTE {_windows(keys)}: {note}", err=True)
    for line in problem_lines(report.checks):
        click.echo(line, err=True)
    click.echo(f"{outage_now(settings)} {next_close(settings)}")
    click.echo(
        "Next: list restorable points with kstreams-assets recovery-points list, and plan a"
        " restore with kstreams-assets restore plan."
    )


def _windows(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{len(keys)} windows, {min(keys)} to {max(keys)}"
