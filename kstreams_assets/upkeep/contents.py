"""What has to be read before one knows whether it is as it was written: files, rows, maps."""

from collections.abc import Iterator
from typing import Any, Final

from kstreams_assets.errors import KStreamsAssetsError, OffsetMapError, StoredDataError
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.layout import path_in_table
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.upkeep.reading import NotedFile
from kstreams_assets.warehouse.ledger import INCREMENT, Ledger
from kstreams_assets.warehouse.points import CHANGED, RecoveryPointTable, SavedRecordsTable
from kstreams_assets.warehouse.restores import OffsetMapsTable, RestoresTable
from kstreams_assets.warehouse.verifications import Damage, DamageKind

_SPAN: Final = ["window", "topic", "partition", "topic_id", "start", "end", "written"]
_BATCH: Final = 16
"""So many points are in memory at a time."""

MAKE_AGAIN: Final = (
    "Make it again from the backups (kstreams-assets ktables make --window {window}), or bring the"
    " file back from a second copy."
)


def noted_files(settings: ApplicationSettings) -> list[NotedFile]:
    """Every data file whose digest was noted: of records, then of KTable snapshots.

    Tables that cannot be read have none: another look tells of them.
    """
    found: list[NotedFile] = []
    for look in (_of_records, _of_snapshots):
        try:
            found += look(settings)
        except KStreamsAssetsError:
            continue
    return found


def _of_records(settings: ApplicationSettings) -> Iterator[NotedFile]:
    application_id = settings.application_id
    root = settings.warehouse.records(application_id)
    rows = Ledger(settings.warehouse, application_id).all_span_rows(_SPAN)
    for window, topic, number, life, start, end, written in zip(
        *(rows[name].to_pylist() for name in _SPAN), strict=True
    ):
        for file in written or ():
            place = path_in_table(file["path"])
            yield NotedFile(
                root / place,
                file["size"],
                file["digest"],
                Damage(
                    DamageKind.FILE,
                    f"records/{application_id}/{place}",
                    "",
                    "",
                    window=window.partition(INCREMENT)[0],
                    topic=topic,
                    partition=number,
                    topic_id=life,
                    start=start,
                    end=end,
                    by_reading=True,
                ),
            )


def _of_snapshots(settings: ApplicationSettings) -> Iterator[NotedFile]:
    application_id = settings.application_id
    for snapshot in SnapshotsTable(settings.warehouse).of(application_id):
        root = settings.warehouse.ktable(application_id, snapshot.store)
        for file in snapshot.written:
            place = path_in_table(file.path)
            yield NotedFile(
                root / place,
                file.size,
                file.digest,
                Damage(
                    DamageKind.SNAPSHOT,
                    f"ktables/{application_id}/{snapshot.store}/{place}",
                    "",
                    MAKE_AGAIN.format(window=snapshot.window.key),
                    window=snapshot.window.key,
                    topic=snapshot.topic,
                    store=snapshot.store,
                    by_reading=True,
                ),
            )


def unsound_points(settings: ApplicationSettings, newest: int | None = None) -> list[Damage]:
    """Points whose row was changed since it was stored; of all, or of so many newest ones."""
    table, application_id = RecoveryPointTable(settings.warehouse), settings.application_id
    found: list[Damage] = []
    try:
        ids = [instant.id for instant in table.instants(application_id)]
        ids = ids if newest is None else ids[-newest:]
        for begin in range(0, len(ids), _BATCH):
            loaded = table.load(application_id, ids[begin : begin + _BATCH], damaged_too=True)
            found += [
                Damage(
                    DamageKind.POINT,
                    f"recovery_points/{point.id}",
                    f"recovery point {point.id} cannot be used: {CHANGED}",
                    "Bring the table recovery_points back from a second copy, or use another"
                    " recovery point.",
                    points=(point.id,),
                    points_lost=1,
                    by_reading=newest is None,
                )
                for point in loaded
                if point.damaged
            ]
    except KStreamsAssetsError:
        return found  # the look at the tables tells of it
    return found


def unsound_records(settings: ApplicationSettings) -> list[Damage]:
    """Records saved with points that do not match their digests, the first of each partition."""
    by_life: dict[tuple[str, int, str], dict[str, Any]] = {}
    try:
        for source, life, offset, point_id in SavedRecordsTable(settings.warehouse).changed(
            settings.application_id
        ):
            seen = by_life.setdefault(
                (source.topic, source.partition, life),
                {"start": offset, "end": offset + 1, "count": 0, "point": point_id},
            )
            seen["start"] = min(seen["start"], offset)
            seen["end"] = max(seen["end"], offset + 1)
            seen["count"] += 1
    except KStreamsAssetsError:
        return []  # the look at the tables tells of it
    return [
        Damage(
            DamageKind.SAVED_RECORDS,
            "recovery_point_records",
            f"{seen['count']:,} record(s) do not match the digest that was noted when they were"
            f" saved, the first with recovery point {seen['point']}",
            "Bring the table recovery_point_records back from a second copy, or restore a recovery"
            " point that does not need them.",
            topic=topic,
            partition=number,
            topic_id=life,
            start=seen["start"],
            end=seen["end"],
            by_reading=True,
        )
        for (topic, number, life), seen in by_life.items()
    ]


def unsound_maps(settings: ApplicationSettings) -> list[Damage]:
    """Offset maps of restores that are not those that were stored."""
    maps, found = OffsetMapsTable(settings.warehouse), []
    try:
        restores = RestoresTable(settings.warehouse).all(settings.application_id)
    except KStreamsAssetsError:
        return []  # the look at the tables tells of it
    for restore in restores:
        try:
            maps.load(settings.application_id, restore.restore_id)
        except (StoredDataError, OffsetMapError) as error:
            found.append(
                Damage(
                    DamageKind.OFFSET_MAP,
                    f"offset_maps/{restore.restore_id}",
                    error.problem.rstrip("."),
                    error.remedy,
                    by_reading=True,
                )
            )
        except KStreamsAssetsError:
            return found
    return found
