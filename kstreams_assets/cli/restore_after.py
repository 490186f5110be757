"""`kstreams-assets restore watch`, `finish`, `previous-offsets`: after the application started."""

import sys
from dataclasses import replace
from typing import NoReturn

import click

from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.help import Command, option
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.restore_options import (
    chosen_restore,
    live_restore_option,
    restore_option,
    target_option,
)
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.model.restores import StoredRestore
from kstreams_assets.restore.finish import FINISH_LIMITS, FINISHED, RetentionEffect
from kstreams_assets.restore.finish import abandon as abandon_restore
from kstreams_assets.restore.finish import finish as finish_restore
from kstreams_assets.restore.group_offsets import OFFSET, PREVIOUS_OFFSETS, restore_previous_offsets
from kstreams_assets.restore.steps import Step, blocker, require
from kstreams_assets.restore.target import open_stored_target
from kstreams_assets.restore.watch import (
    ASSESSMENT,
    NOT_SEEN_FROM_OUTSIDE,
    Assessment,
    Health,
    Limits,
)
from kstreams_assets.restore.watch import watch as watch_restored
from kstreams_assets.settings import ApplicationSettings


@click.command(cls=Command, epilog="kstreams-assets restore watch --app defs.yaml --timeout 300")
@app_options
@live_restore_option
@target_option
@option(
    "--timeout",
    "timeout_s",
    section="Limits",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=Limits().timeout_s,
    show_default=True,
    help="Maximum time to wait for a healthy application.",
)
def watch(
    settings: ApplicationSettings,
    as_json: bool,
    restore_id: str | None,
    target: str | None,
    timeout_s: float,
) -> None:
    """Wait until the application is healthy

    Start the application first. It is healthy when its group is stable and it has read all restored
    records. The command also reports failures that Kafka Streams does not log.

    Exit code 1: a permanent problem, or the timeout elapsed.
    """
    restore = chosen_restore(settings, restore_id, live=True)
    refused = blocker(restore, Step.WATCH)
    if refused is not None:
        _refuse(restore, refused, as_json=as_json)
    with (
        open_stored_target(settings, restore, target) as connection,
        KafkaCluster(connection) as cluster,
    ):
        last = watch_restored(
            settings,
            restore,
            cluster,
            limits=replace(Limits(), timeout_s=timeout_s),
            report=None if as_json else _print,
        )
    if as_json:
        print_json({"restore_id": restore.restore_id, **ASSESSMENT.document(last)})
    elif last.health is Health.HEALTHY:
        click.echo(NOT_SEEN_FROM_OUTSIDE)
    if last.health is not Health.HEALTHY:
        sys.exit(exit_codes.CHECK_FAILED)


def _refuse(restore: StoredRestore, error: KStreamsAssetsError, *, as_json: bool) -> NoReturn:
    """Report a restore whose application cannot be healthy yet, and exit."""
    if as_json:
        trouble = {"sign": "not_committed", "problem": error.problem, "remedy": error.remedy}
        print_json(
            {
                "restore_id": restore.restore_id,
                "state": restore.state.value,
                "health": Health.UNHEALTHY.value,
                "troubles": [trouble],
            }
        )
    else:
        click.echo(f"NOT_COMMITTED {error}", err=True)
    sys.exit(exit_codes.CHECK_FAILED)


def _print(assessment: Assessment) -> None:
    click.echo(f"{assessment.watched_s:6.0f} s  {assessment}")
    for trouble in assessment.troubles:
        click.echo(f"{trouble.subject.upper()} {trouble.text}", err=True)


@click.command(cls=Command, epilog="kstreams-assets restore finish --app defs.yaml")
@app_options
@live_restore_option
@target_option
@option(
    "--force",
    section="Checks",
    is_flag=True,
    help="Skip the check that the application has caught up.",
)
def finish(
    settings: ApplicationSettings,
    as_json: bool,
    restore_id: str | None,
    target: str | None,
    force: bool,
) -> None:
    """Last step: set original topic configs again

    A restore relaxes retention and other topic configs. This command sets the original values. Run
    it when the application has caught up; otherwise it fails and changes nothing. It first prints
    how many restored records the original retention will delete, and does not ask.
    """
    restore = chosen_restore(settings, restore_id, live=True)
    require(restore, Step.FINISH)
    with (
        open_stored_target(settings, restore, target) as connection,
        KafkaCluster(connection) as cluster,
    ):
        done = finish_restore(
            settings,
            restore,
            cluster,
            force=force,
            limits=FINISH_LIMITS,
            report=None if as_json else _print,
            warn=_warn,
        )
    if as_json:
        print_json(FINISHED.document(done))
        return
    if done.was_finished:
        click.echo(f"Restore {done.restore.restore_id} is already finished.")
        return
    print_table(
        f"Restore {done.restore.restore_id} is finished; these original configs are restored",
        ["topic", "config", "value"],
        [
            [topic, name, "(default)" if value is None else value]
            for topic, configs in done.put_back.items()
            for name, value in configs.items()
        ],
    )
    if done.left_alone:
        click.echo(
            "Not changed, because deleted or recreated since the restore:"
            f" {', '.join(done.left_alone)}.",
            err=True,
        )


def _warn(effect: RetentionEffect) -> None:
    click.echo(f"NOTE {effect}", err=True)


@click.command(
    "previous-offsets",
    cls=Command,
    epilog="kstreams-assets restore previous-offsets --app defs.yaml",
)
@app_options
@restore_option
@target_option
def previous_offsets(
    settings: ApplicationSettings, as_json: bool, restore_id: str | None, target: str | None
) -> None:
    """Undo: restore the previous group offsets

    The group gets the offsets that it had on the target before the restore. Topics and records are
    not changed. Stop the application first.
    """
    _restore_previous_offsets(settings, restore_id, target, as_json=as_json)


@click.command(
    "rollback",
    cls=Command,
    hidden=True,
    epilog="kstreams-assets restore rollback --app defs.yaml --yes",
)
@app_options
@restore_option
@target_option
@option("--yes", section="Checks", is_flag=True, help="Restore the previous group offsets.")
def rollback(
    settings: ApplicationSettings,
    as_json: bool,
    restore_id: str | None,
    target: str | None,
    yes: bool,
) -> None:
    """Old name of `restore previous-offsets`

    The command changes group offsets only. It does not roll back topics or records.
    """
    if not yes:
        raise ConfigurationError(
            "restore rollback is the old name of restore previous-offsets: it restores the group"
            " offsets from before the restore, and no topics or records.",
            remedy="Run kstreams-assets restore previous-offsets, or add --yes.",
        )
    click.echo(
        "NOTE restore rollback is now restore previous-offsets: it restores group offsets only.",
        err=True,
    )
    _restore_previous_offsets(settings, restore_id, target, as_json=as_json)


def _restore_previous_offsets(
    settings: ApplicationSettings, restore_id: str | None, target: str | None, *, as_json: bool
) -> None:
    restore = chosen_restore(settings, restore_id)
    with (
        open_stored_target(settings, restore, target) as connection,
        KafkaCluster(connection) as cluster,
    ):
        done = restore_previous_offsets(settings, restore, cluster)
    if as_json:
        print_json(PREVIOUS_OFFSETS.document(done))
        return
    print_table(
        f"Restore {restore.restore_id}: group {restore.group} has its previous offsets",
        *OFFSET.table(done.put_back),
    )
    if done.deleted:
        click.echo(
            f"Deleted, because the group had no offset before: {', '.join(map(str, done.deleted))}."
        )
    if done.moved:
        moved = ", ".join(map(str, done.moved))
        click.echo(
            f"NOTE The group had committed other offsets since the restore: {moved}.", err=True
        )
    if done.absent:
        absent = ", ".join(f"{o.topic}-{o.partition}" for o in done.absent)
        click.echo(
            "NOTE No offset was restored for partitions that no longer exist on the target:"
            f" {absent}.",
            err=True,
        )


@click.command(cls=Command, epilog="kstreams-assets restore abandon --app defs.yaml")
@app_options
@restore_option
def abandon(settings: ApplicationSettings, as_json: bool, restore_id: str | None) -> None:
    """Give up an unfinished restore

    `expire` can then delete the recovery point of the restore. The command does not contact the
    target and deletes no topic there. It prints the topics that the restore created; delete them on
    the target.
    """
    restore = chosen_restore(settings, restore_id)
    done = abandon_restore(settings, restore)
    topics = sorted(topic.target for topic in done.topics if topic.created)
    if as_json:
        print_json(
            {
                "restore_id": done.restore_id,
                "state": done.state.value,
                "problem": done.problem,
                "topics": topics,
            }
        )
        return
    click.echo(f"Restore {done.restore_id} is given up; recovery point {done.point_id} can expire.")
    if topics:
        click.echo(
            f"Delete its topics on {done.target_bootstrap_servers} if you do not need them:"
            f" {', '.join(topics)}."
        )
