"""`kstreams-assets backup`: back up all due windows, or the given ones, in one process."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from kstreams_assets.app.model import AppTopic
from kstreams_assets.backup.amounts import Estimate, in_words
from kstreams_assets.backup.recorded import recorded_backups
from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.backup.run import back_up, estimate_backup
from kstreams_assets.backup.unreported import ReportMarks
from kstreams_assets.backup.verdicts import judge
from kstreams_assets.checks import Evaluation, Severity, problem_lines, short_text
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.options import app_options, limit_options, new_lineage_option
from kstreams_assets.cli.outage import next_close, outage_now
from kstreams_assets.cli.output import print_json, print_table, say_guesses
from kstreams_assets.cli.spark_run import spark_run
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.ledger import Ledger
from kstreams_assets.warehouse.spans import Window


@click.command()
@app_options
@limit_options("backup")
@click.option(
    "--dry-run", is_flag=True, help="Say how much would be read, and how long that takes."
)
@click.option("--window", "keys", multiple=True, help="A window to back up; repeat for more.")
@click.option("--topic", "names", multiple=True, help="Only this topic; repeat for more.")
@new_lineage_option
def backup(
    settings: ApplicationSettings,
    as_json: bool,
    dry_run: bool,
    keys: tuple[str, ...],
    names: tuple[str, ...],
    new_lineage: bool,
) -> None:
    """Back up all due windows, or the given ones. Exits 0 only if every check passed.

    \f
    Raises ConfigurationError for an unknown topic or window.
    """
    topics = _topics(settings, names)
    say_guesses(settings)
    calendar = WindowCalendar(settings.windows)
    windows = calendar.windows(keys) if keys else _due(settings, topics)
    if dry_run:
        _estimate(settings, topics, windows, calendar, as_json=as_json)
        return
    with contextlib.ExitStack() as reported:
        backups = (
            _run(settings, topics, windows, calendar, reported, new_lineage=new_lineage)
            if windows
            else []
        )
        late = _left_behind(settings, reported)
        everything = [*(window for of_run in late.values() for window in of_run), *backups]
        verdicts = [v for window in everything for v in judge(window, settings.application)]
        _report(settings, backups, late, verdicts, as_json=as_json)
    if any(v.is_red for v in verdicts):
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
    wanted = {topic.name for topic in topics}
    return [s.window for s in window_statuses(settings) if s.missing & wanted]


def _estimate(
    settings: ApplicationSettings,
    topics: tuple[AppTopic, ...],
    windows: Sequence[Window],
    calendar: WindowCalendar,
    *,
    as_json: bool,
) -> None:
    """Show what a backup would read; writes nothing."""
    found = Estimate((), (), None)
    if windows:
        with spark_run() as run:
            found = estimate_backup(
                settings,
                windows,
                topics=topics,
                newest_closed=calendar.newest_closed(),
                spark=run.spark,
            )
    if as_json:
        pace = None if found.pace is None else found.pace.bytes_per_s
        print_json(
            {
                "application_id": settings.application_id,
                "windows": list(found.windows),
                "offsets": found.offsets,
                "bytes": found.bytes,
                "bytes_per_second": pace,
                "seconds": found.takes_s,
                "topics": [
                    {"topic": one.topic, "offsets": one.offsets, "bytes": one.bytes}
                    for one in found.topics
                ],
            }
        )
        return
    if not windows:
        click.echo(f"Nothing is due for {settings.application_id}. {next_close(settings)}")
        return
    title = f"{settings.application_id}: {_windows(found.windows)} would be backed up"
    rows = [[one.topic, one.offsets, one.bytes] for one in found.topics]
    print_table(title, ["topic", "offsets to read", "bytes, as Kafka stores them"], rows)
    words = in_words(found.bytes, found.offsets, found.pace)
    click.echo(f"To be read: {words}. Nothing was written.")


def _run(
    settings: ApplicationSettings,
    topics: tuple[AppTopic, ...],
    windows: Sequence[Window],
    calendar: WindowCalendar,
    reported: contextlib.ExitStack,
    *,
    new_lineage: bool,
) -> list[WindowBackup]:
    """Back up; the run counts as reported once `reported` is closed without an error."""
    with spark_run() as run:
        marks = ReportMarks(settings.warehouse, settings.application_id)
        reported.enter_context(marks.of_run(run.id))
        return back_up(
            settings,
            windows,
            topics=topics,
            newest_closed=calendar.newest_closed(),
            spark=run.spark,
            run_id=run.id,
            new_lineage=new_lineage,
        )


def _left_behind(
    settings: ApplicationSettings, reported: contextlib.ExitStack
) -> dict[str, list[WindowBackup]]:
    """Windows of commands that ended before they could show them, by run."""
    marks = ReportMarks(settings.warehouse, settings.application_id)
    ledger = Ledger(settings.warehouse, settings.application_id)
    return {
        run_id: windows
        for run_id in marks.run_ids()
        if reported.enter_context(marks.left_behind(run_id))
        and (windows := recorded_backups(settings, ledger.of_run(run_id)))
    }


def _report(
    settings: ApplicationSettings,
    backups: Sequence[WindowBackup],
    late: Mapping[str, Sequence[WindowBackup]],
    verdicts: Sequence[Evaluation],
    *,
    as_json: bool,
) -> None:
    documents = [_document(window, verdicts) for window in backups]
    passed = not any(v.is_red for v in verdicts)
    if as_json:
        print_json(
            {
                "application_id": settings.application_id,
                "warehouse": str(settings.warehouse.root),
                "passed": passed,
                "windows": documents,
                "ended_early": [
                    {"run": run_id, "windows": [_document(w, verdicts) for w in windows]}
                    for run_id, windows in late.items()
                ],
            }
        )
        return
    if not backups and not late:
        click.echo(f"Nothing is due for {settings.application_id}. {next_close(settings)}")
        click.echo(outage_now(settings))
        return
    for run_id, windows in late.items():
        keys = _windows([window.window.key for window in windows])
        click.echo(
            f"NOTE Run {run_id} ended before it could report what it had backed up: {keys}."
            " Its checks are among those below.",
            err=True,
        )
    documents = [_document(w, verdicts) for of_run in late.values() for w in of_run] + documents
    columns = ["topic", "role", "records", "bytes", "tombstones", "missing_offsets"]
    done = len({window.window for window in backups if window.has_point})
    title = f"{settings.application_id}: {done} windows backed up to {settings.warehouse.root}"
    rows = [
        [
            document["window"],
            *(topic[c] for c in columns),
            short_text(_of(verdicts, document["window"], topic["topic"])),
        ]
        for document in documents
        if not _is_empty(document)
        for topic in document["topics"]
    ] + [
        [one.window.key, one.topic, *("-" for _ in columns[1:]), "RED: not backed up"]
        for window in backups
        for one in window.unread
    ]
    if rows:
        names = (column.replace("_", " ") for column in columns)
        print_table(title, ["window", *names, "checks"], rows)
    else:
        click.echo(title)
    unread = {window.window.key for window in backups if window.unread}
    empty = [d["window"] for d in documents if _is_empty(d) and d["window"] not in unread]
    if empty:
        click.echo(f"Without records: {_windows(empty)}.")
    notes: dict[str, list[str]] = {}
    for window in [*(w for windows in late.values() for w in windows), *backups]:
        if window.note:
            notes.setdefault(window.note, []).append(window.window.key)
    for note, keys in notes.items():
        click.echo(f"NOTE {_windows(keys)}: {note}", err=True)
    for line in problem_lines(verdicts):
        click.echo(line, err=True)
    click.echo(f"{outage_now(settings)} {next_close(settings)}")
    click.echo(
        "Next: kstreams-assets recovery-points list says what can be restored, kstreams-assets"
        " restore plan how."
    )


def _is_empty(document: dict[str, Any]) -> bool:
    """Whether there is nothing to say of a window but that it has no records."""
    return not any(
        topic["records"]
        or topic["missing_offsets"]
        or any(not c["passed"] and c["severity"] == Severity.ERROR for c in topic["checks"])
        for topic in document["topics"]
    )


def _windows(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{len(keys)} windows, {min(keys)} to {max(keys)}"


def _of(verdicts: Sequence[Evaluation], window: str, topic: str) -> list[Evaluation]:
    return [each for each in verdicts if (each.window, each.subject) == (window, topic)]


def _document(window: WindowBackup, verdicts: Sequence[Evaluation]) -> dict[str, Any]:
    return {
        "window": window.window.key,
        "recovery_point": window.recovery_point_id,
        "backed_up": window.has_point and not window.unread,
        "note": window.note,
        "not_backed_up": [{"topic": one.topic, "explanation": one.reason} for one in window.unread],
        "topics": [
            {
                "topic": topic.topic,
                "role": topic.role,
                "records": topic.records,
                "bytes": topic.bytes,
                "stored_bytes": topic.stored_bytes,
                "tombstones": topic.tombstones,
                "missing_offsets": topic.missing_offsets,
                "delta_version": topic.delta_version,
                "spans": [
                    {
                        "partition": span.partition.partition,
                        "start": span.plan.start,
                        "end": span.plan.end,
                        "records": span.content.records,
                        "kept": span.kept,
                        "gaps": [
                            {
                                "cause": gap.cause.value,
                                "start": gap.start,
                                "end": gap.end,
                                "offsets": gap.offsets,
                            }
                            for gap in span.gaps
                        ],
                    }
                    for span in topic.spans
                ],
                "checks": [
                    {
                        "check": verdict.check,
                        "passed": verdict.passed,
                        "severity": verdict.severity.value,
                        "explanation": verdict.explanation,
                    }
                    for verdict in _of(verdicts, window.window.key, topic.topic)
                ],
            }
            for topic in window.topics
        ],
    }
