"""`kstreams-assets restore`: plan, run and list restores."""

import logging
import sys
from collections.abc import Sequence

import click

from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.completeness import print_results
from kstreams_assets.cli.help import Group, option
from kstreams_assets.cli.options import app_options, limit_options
from kstreams_assets.cli.output import print_json, print_markdown, print_table
from kstreams_assets.cli.restore_after import abandon, finish, previous_offsets, rollback, watch
from kstreams_assets.cli.restore_local import serve
from kstreams_assets.cli.restore_offsets import group_offsets, map_offsets
from kstreams_assets.cli.restore_options import request_options
from kstreams_assets.cli.spark_run import spark_run
from kstreams_assets.completeness.on_restores import (
    evaluate_restore,
    require_complete,
    require_none_blocks,
)
from kstreams_assets.errors import RestoreIncompleteError
from kstreams_assets.model.restores import StoredRestore
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore import report
from kstreams_assets.restore.after import outcome, steps_after
from kstreams_assets.restore.commands import require_programs
from kstreams_assets.restore.context import RunContext
from kstreams_assets.restore.deadline import Deadline
from kstreams_assets.restore.job import RestoreJob
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.planner import INSPECT_TIMEOUT_S
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.result import Phase, Progress, RestoreResult
from kstreams_assets.restore.target import local_name_of, open_target
from kstreams_assets.settings import ApplicationSettings

_log = logging.getLogger(__name__)


@click.group(cls=Group, epilog="kstreams-assets restore plan --app defs.yaml --target kafka-b:9092")
def restore() -> None:
    """Restore an application to another cluster

    Usual order: stop the application, plan, run, delete state.dir on all instances, start the
    application, watch, finish.
    """


@restore.command(epilog="kstreams-assets restore plan --app defs.yaml --target kafka-b:9092")
@app_options
@request_options
def plan(settings: ApplicationSettings, as_json: bool, request: RestoreRequest) -> None:
    """Show the plan of a restore and its blockers

    The plan lists the recovery point, topics, records and configs. The command writes nothing.

    Exit code 1: the restore has a blocker.
    """
    with open_target(settings, request) as target:
        planned = RestoreJob(evaluate_restore, require_complete).plan(
            settings, request, target, inspect_timeout_s=INSPECT_TIMEOUT_S
        )
    if as_json:
        print_json(report.document(planned))
    else:
        print_markdown(report.markdown(planned))
    _exit_if_refused(planned)


@restore.command(epilog="kstreams-assets restore run --app defs.yaml --target kafka-b:9092")
@app_options
@limit_options("restore")
@request_options
@option(
    "--deadline",
    "deadline_s",
    section="Limits",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Maximum time from the end of --before-command until all records are verified and all"
    " completeness rules are evaluated.",
)
def run(
    settings: ApplicationSettings,
    as_json: bool,
    request: RestoreRequest,
    deadline_s: float | None,
) -> None:
    """Restore topics, verify them, commit offsets

    The restore creates the topics, writes the records, reads them back and evaluates completeness
    rules. It then commits the group offsets. At the end it runs the command that starts the
    application, if the options or the YAML give one. To continue an interrupted restore, run the
    same command again.

    Exit code 1: the plan has a blocker, the target differs from the backup, or a completeness rule
    did not pass. No group offset is committed. Only rules with `severity: error` and without
    `blocking: false` count.

    Exit code 2: an error, for example if --before-command or --after-command fails.
    """
    require_programs(request)

    def show(progress: Progress) -> None:
        if progress.phase is Phase.AFTER and not progress.line:
            _report(settings, progress.result, as_json=as_json)
        elif progress.phase in (Phase.BEFORE, Phase.AFTER) and progress.line:
            click.echo(progress.line, err=True)  # standard output contains the report only
        elif progress.line:
            _log.info(progress.line)

    with open_target(settings, request) as target, spark_run() as spark:
        deadline = None if deadline_s is None else Deadline(deadline_s, spark.interrupt)
        job = RestoreJob(evaluate_restore, require_complete, deadline=deadline)
        planned = job.plan(settings, request, target)
        if not as_json:
            print_markdown(report.markdown(planned))
        result = job.run(RunContext(settings, target, spark.spark, spark.id), planned, show)
    if result.committed is not None:
        return
    _report(settings, result, as_json=as_json)
    if request.after_command is not None:
        click.echo(
            "NOTE The after command was not run because no group offset was committed.", err=True
        )
    _exit_if_refused(result.plan)
    sys.exit(exit_codes.CHECK_FAILED)


def _exit_if_refused(planned: RestorePlan) -> None:
    if planned.blockers:
        for blocker in planned.blockers:
            click.echo(f"REFUSED {blocker}", err=True)
        sys.exit(exit_codes.CHECK_FAILED)


def _report(settings: ApplicationSettings, result: RestoreResult, *, as_json: bool) -> None:
    """Print a result: the whole of it as JSON, or the part after the plan as text."""
    if as_json:
        print_json(report.result_document(result))
    elif result.records is not None:
        print_markdown(f"## Outcome\n\n{outcome(result.plan, result.records)}")
        if result.rules:
            print_results("Completeness on the target", result.rules)
        if result.committed is not None:
            local = local_name_of(settings, result.committed)
            print_markdown(
                f"{len(result.committed.committed or ())} offsets of group"
                f" `{result.committed.group}` committed and read back.\n\n"
                f"{steps_after(settings, result.committed, local=local)}"
            )
    if result.records is not None:
        try:
            require_none_blocks(result.records.restore, result.rules)
        except RestoreIncompleteError as error:
            click.echo(f"ERROR {error}", err=True)


@restore.command("list", epilog="kstreams-assets restore list --app defs.yaml")
@app_options
def list_restores(settings: ApplicationSettings, as_json: bool) -> None:
    """List restores and drills of the application

    The newest restore comes first. The command reads the warehouse only.
    """
    repo = Repository.open(settings)
    restores = repo.restores.all()
    is_drill = repo.drills.are_drills()
    if as_json:
        documents = [
            {**report.RESTORE.document(found), "drill": is_drill(found)} for found in restores
        ]
        print_json({"restores": documents})
        return
    _list(f"Restores of {settings.application_id}", [r for r in restores if not is_drill(r)])
    drills = [restore for restore in restores if is_drill(restore)]
    if drills:
        _list(f"Drills of {settings.application_id}", drills)


def _list(title: str, restores: Sequence[StoredRestore]) -> None:
    columns = (
        "restore_id",
        "state",
        "changed_at",
        "point_id",
        "mode",
        "target",
        "group",
        "records",
    )
    print_table(title, *report.RESTORE.table(restores, *columns))
    for found in restores:
        if found.problem:
            click.echo(f"{found.restore_id}: {found.problem}", err=True)


restore.add_command(abandon)
restore.add_command(finish)
restore.add_command(group_offsets)
restore.add_command(map_offsets)
restore.add_command(previous_offsets)
restore.add_command(rollback)
restore.add_command(serve)
restore.add_command(watch)
