"""`kstreams-assets recovery-points`: take, list, show and pin cuts of an application."""

import math
from collections.abc import Sequence
from typing import Any

import click

from kstreams_assets.backup.follower_status import catching_up
from kstreams_assets.cli.options import app_options, new_lineage_option
from kstreams_assets.cli.outage import next_close, outage_now
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.errors import RecoveryPointNotFoundError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.recovery.maintenance import pin_point
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import iso_time
from kstreams_assets.warehouse.contents import Contents
from kstreams_assets.warehouse.judge import PointStatus
from kstreams_assets.warehouse.point import RecoveryPoint
from kstreams_assets.warehouse.points import PinsTable, RecoveryPointTable, row_of


@click.group("recovery-points")
def recovery_points() -> None:
    """Take, list, show and pin cuts of an application."""


@recovery_points.command()
@app_options
@new_lineage_option
def take(settings: ApplicationSettings, as_json: bool, new_lineage: bool) -> None:
    """Take a recovery point now and store it."""
    with KafkaCluster(settings.connection) as cluster:
        point = recorder_of(settings, cluster, new_lineage=new_lineage).take()
    _show(settings, point, as_json=as_json)
    if not as_json:
        click.echo(outage_now(settings))
        click.echo(
            f"{next_close(settings)} Back up then: kstreams-assets backup; until a point is backed"
            " up, a restore of it still needs the source cluster."
        )


@recovery_points.command("list")
@app_options
@click.option("--last", default=20, show_default=True, help="How many, newest first.")
def list_points(
    settings: ApplicationSettings,
    as_json: bool,
    last: int,
) -> None:
    """The newest recovery points, and what a restore of them from the backups gives now."""
    points = RecoveryPointTable(settings.warehouse).newest(
        settings.application_id, last, damaged_too=True
    )
    statuses = _statuses(settings, points)
    pins = _pins(settings)
    backlog = catching_up(settings.warehouse, settings.application_id)
    if as_json:
        documents = [
            {**_document(*pair), "pinned": pins.get(pair[0].id)}
            for pair in zip(points, statuses, strict=True)
        ]
        print_json({"recovery_points": documents, **({"catching_up": backlog} if backlog else {})})
        return
    print_table(
        f"Recovery points of {settings.application_id}, newest first",
        ["id", "taken at", "method", "guarantee", "sealed", "covered", "gives", "pinned", "reason"],
        [
            [
                status.id,
                iso_time(status.taken_at_ms),
                status.method.value,
                status.guarantee.value,
                _yes(status.sealed),
                _yes(status.covered),
                status.gives.value,
                pins.get(status.id, ""),
                status.reason,
            ]
            for status in statuses
        ],
    )
    if backlog:
        click.echo(f"The follower is at work. {backlog}")


@recovery_points.command()
@app_options
@click.argument("point_id")
def show(
    settings: ApplicationSettings,
    as_json: bool,
    point_id: str,
) -> None:
    """One recovery point with all its positions, and what a restore of it gives now.

    \f
    Raises RecoveryPointNotFoundError when there is none of this id.
    """
    found = RecoveryPointTable(settings.warehouse).load(
        settings.application_id, [point_id], damaged_too=True
    )
    if not found:
        raise RecoveryPointNotFoundError(point_id=point_id, application_id=settings.application_id)
    _show(settings, found[0], as_json=as_json)


@recovery_points.command()
@app_options
@click.argument("point_id")
@click.option("--reason", required=True, help="Why it stays; shown wherever points are listed.")
def pin(settings: ApplicationSettings, as_json: bool, point_id: str, reason: str) -> None:
    """Keep a recovery point, whatever the policy says, until it is unpinned.


    Raises RecoveryPointNotFoundError when there is none of this id.
    """
    pin_point(settings, point_id, reason)
    if as_json:
        print_json({"recovery_point": point_id, "pinned": reason})
        return
    click.echo(f"Recovery point {point_id} stays until it is unpinned: {reason}")


@recovery_points.command()
@app_options
@click.argument("point_id")
def unpin(settings: ApplicationSettings, as_json: bool, point_id: str) -> None:
    """Let the policy decide about a recovery point again."""
    there = PinsTable(settings.warehouse).unpin(settings.application_id, point_id)
    if as_json:
        print_json({"recovery_point": point_id, "unpinned": there})
        return
    click.echo(
        f"Recovery point {point_id} is not pinned any more."
        if there
        else f"Recovery point {point_id} was not pinned."
    )


def _pins(settings: ApplicationSettings) -> dict[str, str]:
    """The reasons by id."""
    pins = PinsTable(settings.warehouse).of(settings.application_id)
    return {pin.recovery_point_id: pin.reason for pin in pins}


def _show(settings: ApplicationSettings, point: RecoveryPoint, *, as_json: bool) -> None:
    (status,) = _statuses(settings, [point])
    if as_json:
        print_json(_document(point, status))
        return
    committed = {(o.topic, o.partition): o.offset for o in point.group_offsets}
    print_table(
        f"Recovery point {point.id} of {point.application_id}: {point.guarantee} by"
        f" {point.method}, {iso_time(point.taken_at_ms)}, {point.took_ms} ms. {point.reason}\n"
        f"{_sealing(point)} A restore from the backups gives: {status.gives}. {status.reason}",
        ["topic", "partition", "log start", "end", "committed", "saved from"],
        [
            [
                cut.topic,
                cut.partition,
                cut.log_start,
                cut.end,
                committed.get((cut.topic, cut.partition)),
                cut.saved_from,
            ]
            for cut in point.partitions
        ],
    )


def _sealing(point: RecoveryPoint) -> str:
    if point.sealed:
        return "Sealed."
    why = point.unsealed_because.rstrip(".")
    return f"Not sealed: {why}." if why else "Not sealed."


def _statuses(
    settings: ApplicationSettings, points: Sequence[RecoveryPoint]
) -> Sequence[PointStatus]:
    return Contents.of(settings, look_s=math.inf).statuses(points) if points else []


def _document(point: RecoveryPoint, status: PointStatus) -> dict[str, Any]:
    return {
        **row_of(point),
        "taken_at": iso_time(point.taken_at_ms),
        "covered": status.covered,
        "gives": status.gives.value,
        "gives_reason": status.reason,
        "repeats_at_most": dict(sorted(point.repeats_at_most.items())),
    }


def _yes(value: bool) -> str:
    return "yes" if value else "no"
