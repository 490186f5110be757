"""`kstreams-assets expire`: drop recovery points by policy, and what no kept point needs."""

from typing import Any

import click

from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.spark_run import new_run_id
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import bytes_text
from kstreams_assets.upkeep.expire import Change, ExpirePlan, ExpireResult, plan_expire
from kstreams_assets.upkeep.expire import expire as run_expire

_WORDS = {
    Change.DROP: "no kept point needs them",
    Change.FOLD: "the last record of each key stays",
    Change.JOIN: "put together, every record stays",
}


@click.command()
@app_options
@click.option("--dry-run", is_flag=True, help="Say what would be done; nothing is changed.")
def expire(settings: ApplicationSettings, as_json: bool, dry_run: bool) -> None:
    """Drop recovery points by policy, and of the backups what no kept point needs.

    The policy is that of the YAML (keep). Points that stay restore as before. Needs no broker and
    no JVM.
    """
    if dry_run:
        plan = plan_expire(settings)
        if as_json:
            print_json(_plan(plan))
            return
        _show_points(plan)
        _show_plan(plan)
        return
    done = run_expire(settings, run_id=new_run_id())
    if as_json:
        print_json(_result(done))
        return
    _show_points(done.plan)
    _show_result(done)


def _show_points(plan: ExpirePlan) -> None:
    print_table(
        f"{plan.application_id}: {len(plan.kept):,} recovery points stay, {len(plan.going):,} go",
        ["kept by", "points"],
        [[line, count] for line, count in plan.by_line.items()],
    )


def _show_plan(plan: ExpirePlan) -> None:
    if plan.changes:
        print_table(
            "Windows that become one:",
            ["topic", "windows", "from", "to", "records", "bytes", "what becomes of them"],
            [
                [
                    change.topic,
                    len(change.windows),
                    change.windows[0].key,
                    change.windows[-1].key,
                    change.records,
                    change.bytes,
                    _WORDS[change.what],
                ]
                for change in plan.changes
            ],
        )
    dropped = sum(change.bytes for change in plan.changes if change.what is Change.DROP)
    folded = sum(change.bytes for change in plan.changes if change.what is Change.FOLD)
    snapshots = sum(snapshot.bytes for snapshot in plan.snapshots)
    _show_notes(plan)
    click.echo(
        f"{bytes_text(dropped)} would go, of {bytes_text(folded)} of changelogs what later records"
        f" of the same keys have overtaken, and {len(plan.snapshots)} KTable snapshots (about"
        f" {bytes_text(snapshots)} uncompressed). Nothing was changed."
    )


def _show_notes(plan: ExpirePlan) -> None:
    for note in (*plan.notes, plan.waits):
        if note:
            click.echo(f"NOTE {note}", err=True)


def _show_result(done: ExpireResult) -> None:
    if done.topics:
        print_table(
            "Windows that became one:",
            ["topic", "windows", "as", "records", "records left", "bytes", "bytes left"],
            [
                [
                    one.topic,
                    one.windows,
                    one.window,
                    one.records_before,
                    one.records_after,
                    one.bytes_before,
                    one.bytes_after,
                ]
                for one in done.topics
            ],
        )
    _show_notes(done.plan)
    click.echo(
        f"{bytes_text(done.bytes_freed)} less in {done.took_s:.1f} s; the files leave the disk some"
        " hours later, with the next run."
    )


def _plan(plan: ExpirePlan) -> dict[str, Any]:
    return {
        "application_id": plan.application_id,
        "kept": {point_id: list(lines) for point_id, lines in plan.kept.items()},
        "kept_by_line": plan.by_line,
        "going": sorted(plan.going),
        "snapshots_going": [
            {"store": one.store, "window": one.window.key} for one in plan.snapshots
        ],
        "windows": [
            {
                "topic": change.topic,
                "what": change.what.value,
                "from": change.windows[0].key,
                "to": change.windows[-1].key,
                "windows": len(change.windows),
                "records": change.records,
                "bytes": change.bytes,
            }
            for change in plan.changes
        ],
        "waits": plan.waits,
        "notes": list(plan.notes),
    }


def _result(done: ExpireResult) -> dict[str, Any]:
    return {
        "application_id": done.plan.application_id,
        "kept_by_line": done.plan.by_line,
        "points_kept": len(done.plan.kept),
        "points_gone": len(done.plan.going),
        "topics": [
            {
                "topic": one.topic,
                "what": one.what.value,
                "window": one.window,
                "windows": one.windows,
                "records_before": one.records_before,
                "records_after": one.records_after,
                "bytes_before": one.bytes_before,
                "bytes_after": one.bytes_after,
            }
            for one in done.topics
        ],
        "bytes_freed": done.bytes_freed,
        "waits": done.plan.waits,
        "notes": list(done.plan.notes),
        "took_s": round(done.took_s, 3),
    }
