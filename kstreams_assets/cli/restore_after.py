"""`kstreams-assets restore watch`, `finish`, `rollback`: from the start of the application on."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import click

from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.restore_options import chosen_restore, restore_option, target_option
from kstreams_assets.errors import RestoreStateError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.restore.abandon import abandon as abandon_restore
from kstreams_assets.restore.finish import FINISH_LIMITS, Finished, RetentionEffect
from kstreams_assets.restore.finish import finish as finish_restore
from kstreams_assets.restore.group_offsets import RolledBack
from kstreams_assets.restore.group_offsets import rollback as roll_back
from kstreams_assets.restore.steps import Step, blocker, require
from kstreams_assets.restore.target import open_stored_target
from kstreams_assets.restore.watch import (
    NOT_SEEN_FROM_OUTSIDE,
    Assessment,
    Health,
    Limits,
)
from kstreams_assets.restore.watch import watch as watch_restored
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.point import GroupOffset
from kstreams_assets.warehouse.restores import StoredRestore


@click.command()
@app_options
@restore_option
@target_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=Limits().timeout_s,
    show_default=True,
    help="Seconds after which it gives up.",
)
def watch(
    settings: ApplicationSettings,
    as_json: bool,
    restore_id: str | None,
    target: str | None,
    timeout_s: float,
) -> None:
    """Follow the started application until it is healthy; names what fails without a word.

    Exits 0 when it has read everything, 1 when something is wrong that does not pass, or when time
    is up.
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
            report=None if as_json else _tell,
        )
    if as_json:
        print_json({"restore_id": restore.restore_id, **_assessment(last)})
    elif last.health is Health.HEALTHY:
        click.echo(NOT_SEEN_FROM_OUTSIDE)
    if last.health is not Health.HEALTHY:
        sys.exit(exit_codes.CHECK_FAILED)


def _refuse(restore: StoredRestore, error: RestoreStateError, *, as_json: bool) -> NoReturn:
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


def _tell(assessment: Assessment) -> None:
    click.echo(f"{assessment.watched_s:6.0f} s  {assessment}")
    for trouble in assessment.troubles:
        click.echo(f"{trouble.subject.upper()} {trouble.text}", err=True)


def _assessment(seen: Assessment) -> dict[str, Any]:
    return {
        "health": seen.health.value,
        "watched_s": round(seen.watched_s, 3),
        "group": {
            "type": seen.observation.group_type,
            "state": seen.observation.group_state,
            "members": seen.observation.members,
        },
        "records_left": seen.records_left,
        "counted": seen.counted,
        "moved": seen.moved,
        "partitions": seen.partitions,
        "troubles": [
            {"sign": t.subject, "problem": t.found, "remedy": t.action} for t in seen.troubles
        ],
    }


@click.command()
@app_options
@restore_option
@target_option
@click.option("--force", is_flag=True, help="Do not look whether the application has caught up.")
def finish(
    settings: ApplicationSettings,
    as_json: bool,
    restore_id: str | None,
    target: str | None,
    force: bool,
) -> None:
    """Put the topics' own configs back, once the application has caught up.

    \f
    Raises NotCaughtUpError when it has not; nothing is changed then.
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
            report=None if as_json else _tell,
            warn=_warn,
        )
    if as_json:
        print_json(_finished(done))
        return
    if done.was_finished:
        click.echo(f"Restore {done.restore.restore_id} was finished before.")
        return
    print_table(
        f"Restore {done.restore.restore_id} is finished; these configs are the topics' own again",
        ["topic", "config", "value"],
        [
            [topic, name, "(default)" if value is None else value]
            for topic, configs in done.put_back.items()
            for name, value in configs.items()
        ],
    )
    if done.left_alone:
        click.echo(f"Deleted or made anew, left alone: {', '.join(done.left_alone)}.", err=True)


def _warn(effect: RetentionEffect) -> None:
    click.echo(f"NOTE {effect}", err=True)


def _finished(done: Finished) -> dict[str, Any]:
    put_back: Mapping[str, Mapping[str, str | None]] = done.put_back
    return {
        "restore_id": done.restore.restore_id,
        "state": done.restore.state.value,
        "was_finished": done.was_finished,
        "put_back": {topic: dict(configs) for topic, configs in put_back.items()},
        "retention": [str(effect) for effect in done.effects],
        "left_alone": list(done.left_alone),
        "seen": None if done.assessment is None else _assessment(done.assessment),
    }


@click.command()
@app_options
@restore_option
@target_option
def rollback(
    settings: ApplicationSettings, as_json: bool, restore_id: str | None, target: str | None
) -> None:
    """Put back the group offsets that the target had before the restore.

    Topics and records stay. The application must be stopped.

    \f
    Raises RestoreError, GroupNotEmptyError.
    """
    restore = chosen_restore(settings, restore_id)
    with (
        open_stored_target(settings, restore, target) as connection,
        KafkaCluster(connection) as cluster,
    ):
        done = roll_back(settings, restore, cluster)
    if as_json:
        print_json(_rolled_back(done))
        return
    print_table(
        f"Restore {restore.restore_id} is rolled back; group {restore.group} has these offsets",
        ["topic", "partition", "offset"],
        [[o.topic, o.partition, o.offset] for o in done.put_back],
    )
    if done.deleted:
        click.echo(f"Deleted, there were none before: {', '.join(map(str, done.deleted))}.")
    if done.moved:
        moved = ", ".join(map(str, done.moved))
        click.echo(f"NOTE The group had gone on since the restore: {moved}.", err=True)
    if done.absent:
        absent = ", ".join(f"{o.topic}-{o.partition}" for o in done.absent)
        click.echo(f"NOTE Not on the target any more, no offset put back: {absent}.", err=True)


@click.command()
@app_options
@restore_option
def abandon(settings: ApplicationSettings, as_json: bool, restore_id: str | None) -> None:
    """Give a restore up that nobody goes on with.

    Its recovery point may expire again, and expire no longer waits for it. Needs no broker: topics
    of the restore stay on the target, where you delete them.

    \f
    Raises RestoreStateError.
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
    click.echo(f"Restore {done.restore_id} is given up; recovery point {done.point_id} may expire.")
    if topics:
        click.echo(
            f"Its topics on {done.target_bootstrap_servers} stay until you delete them:"
            f" {', '.join(topics)}."
        )


def _rolled_back(done: RolledBack) -> dict[str, Any]:
    return {
        "restore_id": done.restore.restore_id,
        "state": done.restore.state.value,
        "put_back": [_offset(offset) for offset in done.put_back],
        "deleted": [{"topic": p.topic, "partition": p.partition} for p in done.deleted],
        "absent": [_offset(offset) for offset in done.absent],
        "moved": [{"topic": p.topic, "partition": p.partition} for p in done.moved],
    }


def _offset(found: GroupOffset) -> dict[str, Any]:
    return {"topic": found.topic, "partition": found.partition, "offset": found.offset}
