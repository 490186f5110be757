"""`kstreams-assets expire`: delete recovery points and backups by policy."""

import click

from kstreams_assets.cli.help import Command, option
from kstreams_assets.cli.options import writing_app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.spark_run import new_run_id
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import bytes_text
from kstreams_assets.upkeep.expire import Change, ExpireJob, ExpirePlan, ExpireResult
from kstreams_assets.upkeep.public import (
    EXPIRE_PLAN,
    EXPIRE_RESULT,
    LINE,
    TOPIC_CHANGE,
    TOPIC_RESULT,
)

_SIZES = ("records_before", "records_after", "bytes_before", "bytes_after")


@click.command(cls=Command, epilog="kstreams-assets expire --app defs.yaml --dry-run")
@writing_app_options
@option(
    "--dry-run", section="Output", is_flag=True, help="Print the plan without changing anything."
)
def expire(settings: ApplicationSettings, as_json: bool, dry_run: bool) -> None:
    """Delete recovery points and backups by policy

    `keep` in the YAML is the policy. Without it, all points of the last 24 hours
    (recovery_points.keep_all_hours) and the last point of each older window are kept. Backups that
    no kept point needs are deleted. Kept points remain restorable. The command reads and writes the
    warehouse only.
    """
    if dry_run:
        plan = ExpireJob(settings).plan()
        plan.require_allowed()
        if as_json:
            print_json(EXPIRE_PLAN.document(plan))
            return
        _show_points(plan)
        _show_plan(plan)
        return
    done = ExpireJob(settings, run_id=new_run_id()).run()
    if as_json:
        print_json(EXPIRE_RESULT.document(done))
        return
    _show_points(done.plan)
    _show_result(done)


def _show_points(plan: ExpirePlan) -> None:
    print_table(
        f"{plan.application_id}: {len(plan.kept):,} recovery points to keep,"
        f" {len(plan.expiring):,} to delete",
        *LINE.table(plan.by_line.items()),
    )


def _show_plan(plan: ExpirePlan) -> None:
    if plan.changes:
        print_table(
            "Windows to merge:",
            *TOPIC_CHANGE.table(
                plan.changes, "topic", "windows", "from", "to", "records", "bytes", "meaning"
            ),
        )
    dropped = sum(change.bytes for change in plan.changes if change.what is Change.DROP)
    folded = sum(change.bytes for change in plan.changes if change.what is Change.COMPACT)
    snapshots = sum(snapshot.bytes for snapshot in plan.snapshots)
    _show_notes(plan)
    click.echo(
        f"Would delete {bytes_text(dropped)} of records and {len(plan.snapshots)} KTable snapshots"
        f" (about {bytes_text(snapshots)} uncompressed), and compact {bytes_text(folded)} of"
        " changelogs to the last record of each key. Nothing was changed."
    )


def _show_notes(plan: ExpirePlan) -> None:
    for note in (*plan.notes, plan.waits):
        if note:
            click.echo(f"NOTE {note}", err=True)


def _show_result(done: ExpireResult) -> None:
    if done.topics:
        print_table(
            "Merged windows:",
            *TOPIC_RESULT.table(done.topics, "topic", "windows", "window", *_SIZES),
        )
    _show_notes(done.plan)
    click.echo(
        f"Removed {bytes_text(done.bytes_freed)} in {done.took_s:.1f} s. The next run after some"
        " hours deletes the files from disk."
    )
