"""`kstreams-assets restore`: plan and run restores, list them, look up offsets."""

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.completeness_output import result_document, tell_results
from kstreams_assets.cli.options import app_options, limit_options
from kstreams_assets.cli.output import print_json, print_markdown, print_table
from kstreams_assets.cli.restore_after import abandon, finish, rollback, watch
from kstreams_assets.cli.restore_groups import group_offsets
from kstreams_assets.cli.restore_local import serve
from kstreams_assets.cli.restore_map import map_offsets
from kstreams_assets.cli.restore_options import drilled, request_options
from kstreams_assets.cli.spark_run import spark_run
from kstreams_assets.completeness.on_restores import (
    evaluate_restore,
    require_complete,
    require_none_blocks,
)
from kstreams_assets.completeness.result import RuleResult
from kstreams_assets.errors import RestoreIncompleteError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.restore import report
from kstreams_assets.restore.after import age_s, outcome, steps_after
from kstreams_assets.restore.command_sources import asked_commands
from kstreams_assets.restore.commands import require_programs, run_after, run_before
from kstreams_assets.restore.deadline import within
from kstreams_assets.restore.group_offsets import commit_group_offsets
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.planner import LOOK_S, plan_restore
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.run import RestoreResult, run_restore
from kstreams_assets.restore.target import local_name_of, open_target
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import iso_time
from kstreams_assets.warehouse.restores import RestoresTable, StoredRestore

_log = logging.getLogger(__name__)


@click.group()
def restore() -> None:
    """Restore an application to another cluster, and hand it over."""


@restore.command()
@app_options
@request_options
def plan(settings: ApplicationSettings, as_json: bool, request: RestoreRequest) -> None:
    """Show what a restore would do and all that stands against it; writes nothing.

    Exits 1 when the restore would be refused.
    """
    with open_target(settings, request) as target:
        planned = plan_restore(settings, request, target, look_s=LOOK_S)
    if as_json:
        print_json(report.document(planned))
    else:
        print_markdown(report.markdown(planned))
    _exit_if_refused(planned)


@restore.command()
@app_options
@limit_options("restore")
@request_options
@click.option(
    "--deadline",
    "deadline_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End the restore if it is not verified so long after the before command, while the"
    " application is stopped; the commit of the offsets and the after command are never cut off.",
)
def run(
    settings: ApplicationSettings,
    as_json: bool,
    request: RestoreRequest,
    deadline_s: float | None,
) -> None:
    """Restore, verify, evaluate completeness rules, and commit the group offsets.

    The same command again continues a restore that was interrupted. Exits 1 when it is refused,
    the target differs from the backup, or a blocking rule is violated there; then no group offset
    is committed, and the after command is not run. Exits 2 when one of the commands fails.
    """
    require_programs(request)
    with open_target(settings, request) as target:
        planned = plan_restore(settings, request, target)
        if not as_json:
            print_markdown(report.markdown(planned))
        if not planned.refusals:
            planned = run_before(settings, planned, target, report=_command_line)
        done = None if planned.refusals else _restored(settings, planned, target, deadline_s)
    if as_json:
        print_json(_outcome(planned, done))
    elif done is not None:
        _tell(settings, planned, done)
    if done is not None:
        _tell_if_incomplete(done)
    if done is not None and done.committed is not None:
        run_after(done.committed, asked_commands(settings, request), report=_command_line)
        return
    if request.after_command is not None:
        click.echo("NOTE The after command is not run: no group offset is committed.", err=True)
    _exit_if_refused(planned)
    sys.exit(exit_codes.CHECK_FAILED)


def _command_line(line: str) -> None:
    """What a command before or after the restore says; standard output is the report's."""
    click.echo(line, err=True)


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of a restore.

    `committed` is None when it is not as the backup, or a blocking rule of `rules` is violated.
    """

    result: RestoreResult
    rules: Sequence[RuleResult]
    committed: StoredRestore | None
    took_s: float


def _restored(
    settings: ApplicationSettings,
    planned: RestorePlan,
    target: KafkaConnection,
    deadline_s: float | None,
) -> _Done:
    began = time.monotonic()
    result, rules = within(
        deadline_s,
        lambda: _verified(settings, planned, target),
        restore_id=planned.restore_id,
    )
    committed = None
    if result.passed and not any(rule.blocks for rule in rules):
        committed = commit_group_offsets(settings, result.restore, target, gate=require_complete)
    return _Done(result, rules, committed, time.monotonic() - began)


def _verified(
    settings: ApplicationSettings, planned: RestorePlan, target: KafkaConnection
) -> tuple[RestoreResult, Sequence[RuleResult]]:
    rules: Sequence[RuleResult] = ()
    with spark_run() as run:
        result = run_restore(
            settings,
            planned,
            target,
            spark=run.spark,
            run_id=run.id,
            log=_log.info,
        )
        if result.passed and not planned.request.skip_completeness:
            rules = evaluate_restore(
                settings, result.restore, target, spark=run.spark, log=_log.info
            )
    return result, rules


def _exit_if_refused(planned: RestorePlan) -> None:
    if planned.refusals:
        for refusal in planned.refusals:
            click.echo(f"REFUSED {refusal}", err=True)
        sys.exit(exit_codes.CHECK_FAILED)


def _tell_if_incomplete(done: _Done) -> None:
    try:
        require_none_blocks(done.result.restore, done.rules)
    except RestoreIncompleteError as error:
        click.echo(f"ERROR {error}", err=True)


def _tell(settings: ApplicationSettings, planned: RestorePlan, done: _Done) -> None:
    print_markdown(f"## Outcome\n\n{outcome(planned, done.result)}")
    if done.rules:
        tell_results("Completeness on the target", done.rules)
    if done.committed is not None:
        count = len(done.committed.committed or ())
        local = local_name_of(settings, done.committed)
        steps = steps_after(settings, done.committed, local=local)
        print_markdown(
            f"{count} offsets of group `{done.committed.group}` committed and read back.\n\n{steps}"
        )


def _outcome(planned: RestorePlan, done: _Done | None) -> dict[str, Any]:
    document: dict[str, Any] = {"plan": report.document(planned)}
    if done is None:
        return {**document, "state": "refused"}
    restored = done.committed or done.result.restore
    return {
        **document,
        **_document(restored),
        "recovery_point_age_s": age_s(planned),
        "took_s": {**done.result.took_s, "all": done.took_s},
        "from_snapshots": [
            {
                "topic": topic.target,
                "store": snapshot.store,
                "window": snapshot.window,
                "records": topic.records,
                "bytes": topic.bytes,
                "raw_log_records": snapshot.raw_records,
                "raw_log_bytes": snapshot.raw_bytes,
            }
            for topic, snapshot in planned.from_snapshots
        ],
        "completeness": [result_document(rule) for rule in done.rules],
        "compared_records": sum(p.compared for p in done.result.verified),
        "differences": [
            {
                "topic": difference.target.topic,
                "partition": difference.target.partition,
                "offset": difference.offset,
                "what": difference.what,
            }
            for difference in done.result.problems
        ],
    }


@restore.command("list")
@app_options
def list_restores(settings: ApplicationSettings, as_json: bool) -> None:
    """Every restore of the application, the one begun last first; drills apart. Needs no broker."""
    restores = RestoresTable(settings.warehouse).all(settings.application_id)
    is_drill = drilled(settings)
    if as_json:
        documents = [{**_document(found), "drill": is_drill(found)} for found in restores]
        print_json({"restores": documents})
        return
    _list(f"Restores of {settings.application_id}", [r for r in restores if not is_drill(r)])
    drills = [restore for restore in restores if is_drill(restore)]
    if drills:
        _list(f"Drills of {settings.application_id}", drills)


def _list(title: str, restores: Sequence[StoredRestore]) -> None:
    print_table(
        title,
        ["restore", "state", "changed at", "point", "mode", "target", "group", "records"],
        [
            [
                found.restore_id,
                found.state.value,
                iso_time(found.changed_at_ms),
                found.point_id,
                found.mode.value,
                found.target_bootstrap_servers,
                found.group,
                sum(topic.records for topic in found.topics),
            ]
            for found in restores
        ],
    )
    for found in restores:
        if found.problem:
            click.echo(f"{found.restore_id}: {found.problem}", err=True)


def _document(found: StoredRestore) -> dict[str, Any]:
    return {
        "restore_id": found.restore_id,
        "application_id": found.application_id,
        "state": found.state.value,
        "created_at": iso_time(found.created_at_ms),
        "changed_at": iso_time(found.changed_at_ms),
        "run_id": found.run_id,
        "point_id": found.point_id,
        "mode": found.mode.value,
        "group": found.group,
        "target": found.target_bootstrap_servers,
        "target_cluster_id": found.target_cluster_id,
        "topics": [
            {"source": topic.source, "target": topic.target, "records": topic.records}
            for topic in found.topics
        ],
        "committed": [
            {"topic": o.topic, "partition": o.partition, "offset": o.offset}
            for o in found.committed or ()
        ],
        "verified_records": found.verified_records,
        "completeness_skipped": found.skips_completeness,
        "problem": found.problem,
    }


restore.add_command(abandon)
restore.add_command(finish)
restore.add_command(group_offsets)
restore.add_command(map_offsets)
restore.add_command(rollback)
restore.add_command(serve)
restore.add_command(watch)
