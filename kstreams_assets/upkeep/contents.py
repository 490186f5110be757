"""Integrity checks that read contents: rows of points, saved records, offset maps, files."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kstreams_assets.errors import KStreamsAssetsError, OffsetMapError, StoredDataError
from kstreams_assets.kafka.throttle import Throttle
from kstreams_assets.model.damage import Damage, DamageKind
from kstreams_assets.model.data_files import By, ExpectedFile
from kstreams_assets.model.point import CHANGED
from kstreams_assets.repository.inspection import inspect
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import store_at
from kstreams_assets.texts import bytes_text, duration
from spark_resources.work import Spark

_BATCH: Final = 16
"""Maximum number of points in memory."""
_BUNDLE_BYTES: Final = 64 * 1024**2
_BUNDLE_FILES: Final = 256
_STORE_THREADS: Final = 16
"""Requests to a store take long, so that many run in parallel."""
_PROGRESS_S: Final = 10.0


def unsound_points(settings: ApplicationSettings, newest: int | None = None) -> list[Damage]:
    """Return damaged points: their row changed since it was stored. `newest` limits the check."""
    table = Repository.open(settings).points
    found: list[Damage] = []
    try:
        ids = [instant.id for instant in table.instants()]
        ids = ids if newest is None else ids[-newest:]
        for begin in range(0, len(ids), _BATCH):
            loaded = table.load(ids[begin : begin + _BATCH], damaged_too=True)
            found += [
                Damage(
                    DamageKind.POINT,
                    f"recovery_points/{point.id}",
                    f"recovery point {point.id} cannot be used: {CHANGED}",
                    "Restore the table recovery_points from a second copy, or use another recovery"
                    " point.",
                    points=(point.id,),
                    points_lost=1,
                    by_reading=newest is None,
                )
                for point in loaded
                if point.damaged
            ]
    except KStreamsAssetsError:
        return found  # the checks of the tables report it
    return found


def unsound_records(settings: ApplicationSettings) -> list[Damage]:
    """Return saved records that do not match their digests, one damage per partition."""
    by_life: dict[tuple[str, int, str], dict[str, Any]] = {}
    try:
        for source, life, offset, point_id in Repository.open(settings).saved_records.changed():
            seen = by_life.setdefault(
                (source.topic, source.partition, life),
                {"start": offset, "end": offset + 1, "count": 0, "point": point_id},
            )
            seen["start"] = min(seen["start"], offset)
            seen["end"] = max(seen["end"], offset + 1)
            seen["count"] += 1
    except KStreamsAssetsError:
        return []  # the checks of the tables report it
    return [
        Damage(
            DamageKind.SAVED_RECORDS,
            "recovery_point_records",
            f"{seen['count']:,} record(s) do not match the digest that was recorded when they were"
            f" saved, the first with recovery point {seen['point']}",
            "Restore the table recovery_point_records from a second copy, or restore a recovery"
            " point that does not need these records.",
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
    """Return offset maps of restores that changed since they were stored."""
    repo = Repository.open(settings)
    maps, found = repo.offset_maps, []
    try:
        restores = repo.restores.all()
    except KStreamsAssetsError:
        return []  # the checks of the tables report it
    for restore in restores:
        try:
            maps.load(restore.restore_id)
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


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Files that one task reads sequentially."""

    files: Sequence[ExpectedFile]
    throttle: Throttle | None


def read_files(
    files: Sequence[ExpectedFile],
    *,
    throttle: Throttle | None,
    spark: Spark | None,
    log: Callable[[str], None],
) -> list[Damage]:
    """Read files and return those that differ from the written ones in any byte.

    With `spark`, its tasks read the files. Otherwise threads of this process do, and the progress
    is logged every 10 s.
    """
    if spark is not None:
        from spark_resources.partition_tasks import run_partition_tasks

        bundles = list(_bundles(files, throttle))
        found = run_partition_tasks(spark.spark_session, bundles, _read)
        return [damage for of_bundle in found for damage in of_bundle]
    on_disk = not files or store_at(files[0].table).on_disk
    threads = max(2, os.cpu_count() or 2) if on_disk else _STORE_THREADS
    progress = _Progress(len(files), sum(file.size for file in files), log)
    pay = paying(throttle)
    return [*inspect(files, By.DIGEST, pay=pay, threads=threads, progress=progress.add)]


def _bundles(files: Sequence[ExpectedFile], throttle: Throttle | None) -> Iterator[_Bundle]:
    first, size = 0, 0
    for number, file in enumerate(files):
        if number > first and (size + file.size > _BUNDLE_BYTES or number - first == _BUNDLE_FILES):
            yield _Bundle(files[first:number], throttle)
            first, size = number, 0
        size += file.size
    if files:
        yield _Bundle(files[first:], throttle)


def _read(bundle: _Bundle) -> list[Damage]:
    return [*inspect(bundle.files, By.DIGEST, pay=paying(bundle.throttle), threads=1)]


def paying(throttle: Throttle | None) -> Callable[[int], None] | None:
    """Return a function that waits before a number of bytes are read; None without a limit."""
    return None if throttle is None else lambda size: throttle.wait(size, 0)


class _Progress:
    """Counts what was read and logs it every 10 s."""

    def __init__(self, files: int, size: int, log: Callable[[str], None]) -> None:
        self._files, self._bytes, self._log = files, size, log
        self._read_files = self._read_bytes = 0
        self._started = self._logged = time.monotonic()

    def add(self, size: int) -> None:
        """Count a file of this size (bytes)."""
        self._read_files += 1
        self._read_bytes += size
        now = time.monotonic()
        if now - self._logged < _PROGRESS_S or not self._read_bytes:
            return
        self._logged = now
        rate = self._read_bytes / (now - self._started)
        left = round(1000 * (self._bytes - self._read_bytes) / rate)
        self._log(
            f"Read {self._read_files:,} of {self._files:,} files, {bytes_text(self._read_bytes)} of"
            f" {bytes_text(self._bytes)} ({bytes_text(round(rate))}/s); {duration(left)} left."
        )
