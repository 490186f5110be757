"""`kstreams-assets recovery-points`: take, list and show cuts of an application."""

from datetime import UTC, datetime
from typing import Any

import click

from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.recovery.point import RecoveryPoint
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.recovery.table import RecoveryPointTable, row_of
from kstreams_assets.settings import ApplicationSettings


class RecoveryPointNotFoundError(KStreamsAssetsError):
    """There is no recovery point of this id."""

    def __init__(self, *, point_id: str, application_id: str) -> None:
        super().__init__(
            f"{application_id} has no recovery point {point_id!r}.",
            remedy="See kstreams-assets recovery-points list.",
        )
        self.point_id = point_id
        self.application_id = application_id


@click.group("recovery-points")
def recovery_points() -> None:
    """Take, list and show cuts of an application."""


@recovery_points.command()
@app_options
def take(settings: ApplicationSettings, as_json: bool) -> None:
    """Take a recovery point now and store it."""
    with KafkaCluster(settings.connection) as cluster:
        point = Recorder(settings.application, cluster, settings.warehouse).take()
    _show(point, as_json=as_json)


@recovery_points.command("list")
@app_options
@click.option("--last", default=20, show_default=True, help="How many, newest first.")
def list_points(
    settings: ApplicationSettings,
    as_json: bool,
    last: int,
) -> None:
    """The newest recovery points."""
    points = RecoveryPointTable(settings.warehouse).newest(settings.application_id, last)
    if as_json:
        print_json({"recovery_points": [_document(point) for point in points]})
        return
    print_table(
        f"Recovery points of {settings.application_id}, newest first",
        ["id", "taken at", "method", "guarantee", "took ms", "partitions", "offsets"],
        [
            [
                point.id,
                _time(point.taken_at_ms),
                point.method.value,
                point.guarantee.value,
                point.took_ms,
                len(point.partitions),
                len(point.group_offsets),
            ]
            for point in points
        ],
    )


@recovery_points.command()
@app_options
@click.argument("point_id")
def show(
    settings: ApplicationSettings,
    as_json: bool,
    point_id: str,
) -> None:
    """One recovery point with all its positions.

    \f
    Raises RecoveryPointNotFoundError when there is none of this id.
    """
    found = RecoveryPointTable(settings.warehouse).load(settings.application_id, [point_id])
    if not found:
        raise RecoveryPointNotFoundError(point_id=point_id, application_id=settings.application_id)
    _show(found[0], as_json=as_json)


def _show(point: RecoveryPoint, *, as_json: bool) -> None:
    if as_json:
        print_json(_document(point))
        return
    committed = {(o.topic, o.partition): o.offset for o in point.group_offsets}
    print_table(
        f"Recovery point {point.id} of {point.application_id}: {point.guarantee} by"
        f" {point.method}, {_time(point.taken_at_ms)}, {point.took_ms} ms. {point.reason}",
        ["topic", "partition", "log start", "end", "committed"],
        [
            [c.topic, c.partition, c.log_start, c.end, committed.get((c.topic, c.partition))]
            for c in point.partitions
        ],
    )


def _document(point: RecoveryPoint) -> dict[str, Any]:
    return {**row_of(point), "taken_at": _time(point.taken_at_ms)}


def _time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
