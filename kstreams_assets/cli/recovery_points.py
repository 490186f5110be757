"""`kstreams-assets recovery-points`: take, list, show and pin recovery points."""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

import click

from kstreams_assets.cli.help import Group, option
from kstreams_assets.cli.options import (
    app_options,
    last_option,
    new_lineage_option,
    writing_app_options,
)
from kstreams_assets.cli.outage import next_close, outage_now
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.model.point import POSITION, RecoveryPoint, no_point, positions
from kstreams_assets.model.restorability import PointStatus
from kstreams_assets.recovery.maintenance import pin_point
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import iso_time

_ID: Final = "20261121T114003.250Z-9f3a1c"
"""Id of a recovery point in the examples of the help."""
_LONGEST_WAIT_S: Final = 600


@click.group(
    "recovery-points",
    cls=Group,
    epilog="kstreams-assets recovery-points list --app defs.yaml",
)
def recovery_points() -> None:
    """Take, list, show and pin recovery points

    A recovery point is a consistent cut through all topics and group offsets of an application.
    """


@recovery_points.command(epilog="kstreams-assets recovery-points take --app defs.yaml")
@writing_app_options
@new_lineage_option
@option(
    "--wait",
    "wait_s",
    section="Checks",
    metavar="SECONDS",
    callback=lambda _context, _parameter, text: _seconds(text),
    help="Wait up to this long (such as 90s) for commits of a running at-least-once application"
    " (default: recovery_points.commit_wait_seconds).",
)
def take(
    settings: ApplicationSettings, as_json: bool, new_lineage: bool, wait_s: float | None
) -> None:
    """Take a recovery point now

    To make the point restorable, run `kstreams-assets backup` when the backup window with the
    point has closed. To make points restorable within seconds, run
    `kstreams-assets follow` instead.
    """
    from kstreams_assets.kafka.cluster import KafkaCluster
    from kstreams_assets.recovery.recorder import recorder_of

    if wait_s is None:
        wait_s = settings.recovery_points.wait_s()
    with KafkaCluster(settings.connection) as cluster:
        point = recorder_of(settings, cluster, new_lineage=new_lineage).take(commit_wait_s=wait_s)
    _show(settings, point, as_json=as_json)
    if not as_json:
        click.echo(outage_now(settings))
        click.echo(
            f"{next_close(settings)} Then run kstreams-assets backup. Until the point is backed"
            " up, restoring it requires the source cluster."
        )


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,4})s?", text)
    if found is None or int(found[1]) > _LONGEST_WAIT_S:
        raise click.BadParameter(f"{text} is not a time up to {_LONGEST_WAIT_S}s, such as 90s.")
    return float(found[1])


@recovery_points.command(
    "list", epilog="kstreams-assets recovery-points list --app defs.yaml --last 5"
)
@app_options
@last_option("recovery points")
def list_points(
    settings: ApplicationSettings,
    as_json: bool,
    last: int,
) -> None:
    """List recovery points and their restorability

    The command reads the warehouse only.
    """
    from kstreams_assets.backup.follower_status import catching_up

    points = Repository.open(settings).points.newest(last, damaged_too=True)
    statuses = _statuses(settings, points)
    pins = _pins(settings)
    backlog = catching_up(settings.warehouse, settings.application_id)
    if as_json:
        documents = [
            {**_document(settings, *pair), "pinned": pins.get(pair[0].id)}
            for pair in zip(points, statuses, strict=True)
        ]
        print_json({"recovery_points": documents, **({"catching_up": backlog} if backlog else {})})
        return
    print_table(
        f"Recovery points of {settings.application_id}, newest first",
        [
            "id",
            "taken at",
            "method",
            "guarantee",
            "sealed",
            "covered",
            "restorability",
            "pinned",
            "reason",
        ],
        [
            [
                status.id,
                iso_time(status.taken_at_ms),
                status.method.value,
                status.guarantee.value,
                _yes(status.sealed),
                _yes(status.covered),
                status.restorability.value,
                pins.get(status.id, ""),
                status.reason,
            ]
            for status in statuses
        ],
    )
    if backlog:
        click.echo(f"The follower is running. {backlog}")


@recovery_points.command(epilog=f"kstreams-assets recovery-points show --app defs.yaml \\\n  {_ID}")
@app_options
@click.argument("point_id")
def show(
    settings: ApplicationSettings,
    as_json: bool,
    point_id: str,
) -> None:
    """Show the positions of a recovery point

    The command reads the warehouse only.
    """
    found = Repository.open(settings).points.load([point_id], damaged_too=True)
    if not found:
        raise no_point(settings.application_id, point_id)
    _show(settings, found[0], as_json=as_json)


@recovery_points.command(
    epilog=f"kstreams-assets recovery-points pin --app defs.yaml \\\n  {_ID} --reason audit"
)
@writing_app_options
@click.argument("point_id")
@option(
    "--reason",
    section="Selection",
    metavar="TEXT",
    required=True,
    help="Reason for the pin, shown in lists of recovery points.",
)
def pin(settings: ApplicationSettings, as_json: bool, point_id: str, reason: str) -> None:
    """Protect a recovery point from expiry

    A pinned point is kept until you unpin it, regardless of the policy.
    """
    pin_point(settings, point_id, reason)
    if as_json:
        print_json({"recovery_point": point_id, "pinned": reason})
        return
    click.echo(f"Recovery point {point_id} is kept until you unpin it: {reason}")


@recovery_points.command(
    epilog=f"kstreams-assets recovery-points unpin --app defs.yaml \\\n  {_ID}"
)
@writing_app_options
@click.argument("point_id")
def unpin(settings: ApplicationSettings, as_json: bool, point_id: str) -> None:
    """Remove the pin of a recovery point

    The policy then applies to the point again.
    """
    there = Repository.open(settings).pins.unpin(point_id)
    if as_json:
        print_json({"recovery_point": point_id, "unpinned": there})
        return
    click.echo(
        f"Recovery point {point_id} is unpinned."
        if there
        else f"Recovery point {point_id} was not pinned."
    )


def _pins(settings: ApplicationSettings) -> dict[str, str]:
    """Return the reason of each pin by recovery point id."""
    pins = Repository.open(settings).pins.all()
    return {pin.recovery_point_id: pin.reason for pin in pins}


def _show(settings: ApplicationSettings, point: RecoveryPoint, *, as_json: bool) -> None:
    (status,) = _statuses(settings, [point])
    if as_json:
        print_json(_document(settings, point, status))
        return
    print_table(
        f"Recovery point {point.id} of {point.application_id}: {point.guarantee} by"
        f" {point.method}, {iso_time(point.taken_at_ms)}, {point.took_ms} ms."
        f" {point.reason}{_repeats(point)}\n{_sealing(point)} Restorability from the backups:"
        f" {status.restorability}. {status.reason}",
        *POSITION.table(positions(point)),
    )
    if point.other_groups:
        print_table(
            "Other groups:",
            ["group", "topic", "partition", "committed"],
            [
                [group.id, one.topic, one.partition, one.offset]
                for group in point.other_groups
                for one in group.offsets
            ],
        )


def _repeats(point: RecoveryPoint) -> str:
    if not point.repeats_at_most:
        return ""
    return f" A restore processes at most {point.most_repeats:,} records again."


def _sealing(point: RecoveryPoint) -> str:
    if point.sealed:
        return "Sealed."
    why = point.unsealed_because.rstrip(".")
    return f"Not sealed: {why}." if why else "Not sealed."


def _statuses(
    settings: ApplicationSettings, points: Sequence[RecoveryPoint]
) -> Sequence[PointStatus]:
    return (
        Repository.open(settings).reading(settings, inspect_timeout_s=math.inf).statuses(points)
        if points
        else []
    )


def _document(
    settings: ApplicationSettings, point: RecoveryPoint, status: PointStatus
) -> dict[str, Any]:
    return {
        **Repository.open(settings).points.plain(point),
        "taken_at": iso_time(point.taken_at_ms),
        "covered": status.covered,
        "gives": status.restorability.value,
        "gives_reason": status.reason,
        "repeats_at_most": dict(sorted(point.repeats_at_most.items())),
    }


def _yes(value: bool) -> str:
    return "yes" if value else "no"
