"""Keeps the tables of recovery points small: prunes points and merges small files.

Maintenance runs with the recorder, after a point was stored. Each step is one atomic commit that
leaves the tables consistent, so a process may be killed at any time. The next round continues
unfinished work.
"""

import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from deltalake.exceptions import DeltaError

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.file_ranges import FileRange, ranges_to_rewrite
from kstreams_assets.model.point import no_point
from kstreams_assets.model.tables import Lock
from kstreams_assets.recovery.retention import Retention, leaving_points
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath, store_at
from kstreams_assets.store.locks import LockHandle

_ROUND_S = 600.0
"""One round in ten minutes: at most sixty small files per table for points every ten seconds."""
_DEADLINE_S = 5.0
_ENOUGH_BYTES = 16 * 1024**2
_LOOKED_AT = 8
"""Files of saved records that one round searches for rows of deleted points."""
_UNCLAIMED_S = 3_600.0
"""Records whose point was never stored (a killed recorder) are deleted after this time."""

_log = logging.getLogger(__name__)


def maintain_if_due(
    warehouse: Warehouse,
    application_id: str,
    retention: Retention,
    *,
    writer: LockHandle | None = None,
) -> "MaintenanceRound | None":
    """Run maintenance if the last round started ten minutes ago or earlier; else return None.

    Call it under `writer`, the lock of the recorder. A failure is logged and never raised: it
    must not make the taking of a point fail.
    """
    mark = warehouse.lock_file(f"maintenance/{application_id}")
    try:
        if mark.exists() and _is_recent(mark):
            return None
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()  # before the work: a failing round must not delay each point after it
        noted = mark.read_text(encoding="utf-8").strip()
        done = maintain(
            warehouse,
            application_id,
            retention,
            pruned_to_ms=int(noted) if noted.isdigit() else 0,
            writer=writer,
        )
        if done.finished:
            mark.write_text(str(done.keep_all_from_ms), encoding="utf-8")
        return done
    except (KStreamsAssetsError, DeltaError, pa.ArrowException, OSError) as error:
        _log.warning("Old recovery points of %s could not be deleted: %s", application_id, error)
        return None


def _is_recent(mark: StorePath) -> bool:
    """Whether the last round started less than ten minutes ago, by either clock."""
    changed = mark.stat().st_mtime
    return (
        abs(time.time() - changed) < _ROUND_S
        or abs(store_at(mark.parent).now() - changed) < _ROUND_S
    )


def maintain(
    warehouse: Warehouse,
    application_id: str,
    retention: Retention,
    *,
    now_ms: int | None = None,
    pruned_to_ms: int = 0,
    deadline_s: float = _DEADLINE_S,
    writer: LockHandle | None = None,
) -> "MaintenanceRound":
    """Prune the points of an application and their saved records, and merge small files.

    Call it under `writer`, the lock of the recorder. Points taken before `pruned_to_ms` have
    been pruned and are skipped, so a round costs the same after years. No file is rewritten
    after `deadline_s` seconds.

    Raises:
        WarehouseLockedError: Another process held the lock of a table for too long.
        DeltaError: A table could not be written; nothing is lost.
    """
    began = time.monotonic()
    done = MaintenanceRound(
        warehouse,
        application_id,
        retention,
        time.time_ns() // 1_000_000 if now_ms is None else now_ms,
        began + deadline_s,
        writer,
    )
    done.prune_points(pruned_to_ms)
    done.prune_records()
    repo = Repository.of(warehouse, application_id)
    repo.points.tidy()
    repo.saved_records.tidy()
    _log.info(
        "Recovery points of %s: %d deleted, with %d saved records; %d ranges of files rewritten in"
        " %.1f s%s.",
        application_id,
        done.points_dropped,
        done.records_dropped,
        done.ranges_rewritten,
        time.monotonic() - began,
        "" if done.finished else "; the next round continues",
    )
    return done


@dataclass(slots=True)
class MaintenanceRound:
    """One round and its results. `finished` is False if its time was up before its work."""

    warehouse: Warehouse
    application_id: str
    retention: Retention
    now_ms: int
    deadline: float
    writer: LockHandle | None = None
    points_dropped: int = 0
    records_dropped: int = 0
    ranges_rewritten: int = 0
    finished: bool = True

    @property
    def keep_all_from_ms(self) -> int:
        """Every point taken from then on is kept."""
        return self.retention.keep_all_from_ms(self.now_ms)

    def _has_time(self) -> bool:
        """Whether another step may start."""
        self.finished = self.finished and time.monotonic() < self.deadline
        return self.finished

    def prune_points(self, pruned_to_ms: int) -> None:
        """Delete the points that no rule keeps."""
        table = Repository.of(self.warehouse, self.application_id).points
        instants = table.instants()
        lines = self.retention.lines(instants, now_ms=self.now_ms, pruned_to_ms=pruned_to_ms)
        dropped = table.drop(
            leaving_points(instants, lines), writer=self.writer, goes_on=self._has_time
        )
        self.points_dropped += sum(dropped)
        self.ranges_rewritten += len(dropped)

    def prune_records(self) -> None:
        """Delete the saved records that no stored point refers to."""
        repo = Repository.of(self.warehouse, self.application_id)
        table = repo.saved_records
        files = table.files()
        if not files or not self._has_time():
            return
        # Read after the points were pruned: the stored points are now the needed ones.
        points = repo.points
        needed = points.saved(self.retention.proven())
        # It sorts before the ids of points taken at that time or later.
        unclaimed = datetime.fromtimestamp(self.now_ms / 1000 - _UNCLAIMED_S, tz=UTC)
        fresh_from = f"{unclaimed:%Y%m%dT%H%M%S}"
        ranges = [FileRange(file.bytes, file.low, file.high) for file in files]
        small = ranges_to_rewrite(ranges, lambda _: False, enough=_ENOUGH_BYTES)
        settled = [f for f in files if not any(low <= f.low <= high for low, high in small)]
        # Some files, different ones in each round.
        begin = int(self.now_ms // (_ROUND_S * 1000)) * _LOOKED_AT
        dead: set[object] = set()
        for number in range(min(_LOOKED_AT, len(settled))):
            file = settled[(begin + number) % len(settled)]
            if not self._has_time():
                break
            left = table.needed_rows(file, needed, fresh_from)
            if left < file.rows and (2 * left <= file.rows or file.bytes < _ENOUGH_BYTES):
                dead.add(file.low)
        for low, high in ranges_to_rewrite(
            ranges, lambda file: file.low in dead, enough=_ENOUGH_BYTES
        ):
            if not self._has_time():
                break
            self.records_dropped += table.drop_unneeded(
                low, high, needed, fresh_from, writer=self.writer
            )
            self.ranges_rewritten += 1


def pin_point(
    settings: ApplicationSettings, point_id: str, reason: str, *, wait_s: float = 30.0
) -> None:
    """Keep a point until it is unpinned, regardless of maintenance and `expire`.

    Raises:
        KStreamsAssetsError: There is no point with this id (any more).
        WarehouseLockedError: Points are being deleted for too long.
    """
    application_id = settings.application_id
    # Under this lock no points are deleted; afterwards the pin keeps this one.
    repo = Repository.open(settings)
    with repo.writing(
        Lock.RECORDER,
        purpose=f"pin recovery point {point_id}",
        wait_s=wait_s,
    ) as lock:
        table = repo.points
        if not table.load([point_id], damaged_too=True):
            raise no_point(application_id, point_id)
        repo.pins.pin(point_id, reason, writer=lock)
