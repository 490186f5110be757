"""Keeps the tables of recovery points small: prunes points, puts small files together.

It runs with the recorder, after a point was stored. Each step is one atomic commit that leaves the
tables whole, so a process may be killed anywhere; what one round does not get done is left to the
next.
"""

import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from deltalake.exceptions import DeltaError

from kstreams_assets.errors import KStreamsAssetsError, RecoveryPointNotFoundError
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import LockHandle
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath, store_time
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.ledger import Ledger
from kstreams_assets.warehouse.lineage import points_of_restores
from kstreams_assets.warehouse.point import in_force, in_order
from kstreams_assets.warehouse.points import (
    PinsTable,
    PointInstant,
    RecoveryPointTable,
    SavedRecordsTable,
    at_edges,
    points_locked,
)
from kstreams_assets.warehouse.table import FileRange, ranges_to_rewrite

_ROUND_S = 600.0
"""A round every ten minutes: at most sixty small files per table for points every ten seconds."""
_DEADLINE_S = 5.0
_HOUR_MS = 3_600_000
_ENOUGH_POINTS = 5_000
_ENOUGH_BYTES = 16 * 1024**2
_LOOKED_AT = 8
"""Files of saved records that a round looks through for rows that nobody needs any more."""
_UNCLAIMED_S = 3_600.0
"""Records whose point was never stored (its recorder was killed) go after this time."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retention:
    """What decides which points and records stay; the functions are asked once in a round.

    `edges_ms(low, high)` gives the instants at which windows begin or end in that time,
    `named()` the ids of points that must stay (those that the ledger names as closing a window,
    pinned ones), `proven()` the changelog offsets (topic id, start, end) that backups hold without
    a hole, and that therefore need not be kept a second time.
    """

    keep_all_s: float
    edges_ms: Callable[[int, int], Iterable[int]]
    named: Callable[[], Iterable[str]] = tuple
    proven: Callable[[], Mapping[TopicPartitionId, Sequence[tuple[str, int, int]]]] = dict


def maintain_if_due(
    warehouse: Warehouse,
    application_id: str,
    retention: Retention,
    *,
    writer: LockHandle | None = None,
) -> "MaintenanceRound | None":
    """A round of maintenance if the last one began ten minutes ago; None otherwise.

    To be called under `writer`, the lock of `points_locked`. A failure is logged and never raised:
    a point that was taken must not fail for what comes after it.
    """
    mark = warehouse.lock_file(f"maintenance/{application_id}")
    try:
        if mark.exists() and _is_recent(mark):
            return None
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()  # before the work: a round that fails does not burden each point after it
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
        _log.warning("Old recovery points of %s could not be dropped: %s", application_id, error)
        return None


def _is_recent(mark: StorePath) -> bool:
    """Whether the last round began ten minutes ago at most, by either clock."""
    changed = mark.stat().st_mtime
    return (
        abs(time.time() - changed) < _ROUND_S or abs(store_time(mark.parent) - changed) < _ROUND_S
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
    """Prune the points of an application and what was saved for them, and tidy the tables.

    To be called under `writer`, the lock of `points_locked`. Points taken before `pruned_to_ms`
    have been pruned and are left as they are, so that a round costs the same after years. No file
    is written anew once `deadline_s` seconds have passed.

    Raises:
        WarehouseLockedError: Another process writes one of the tables for too long.
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
    RecoveryPointTable(warehouse).tidy()
    SavedRecordsTable(warehouse).tidy()
    _log.info(
        "Recovery points of %s: %d dropped, with %d saved records; %d ranges of files rewritten in"
        " %.1f s%s.",
        application_id,
        done.points_dropped,
        done.records_dropped,
        done.ranges_rewritten,
        time.monotonic() - began,
        "" if done.finished else ", the rest is left to the next round",
    )
    return done


def kept(
    points: Sequence[PointInstant],
    *,
    edges_ms: Iterable[int],
    keep_all_from_ms: int,
    named: Collection[str] = (),
) -> set[str]:
    """Ids of the points that stay: all of them for a time, then the last of each window.

    Those taken at or after `keep_all_from_ms`, the last in force before each window edge, the late
    ones that close windows, the `named` (of the ledger, or pinned), the newest, the newest sealed
    and the newest exact one. Windows begin and end with the same points by what stays as by all of
    them, at these `edges_ms` and at any after the newest point.
    """
    if not points:
        return set()
    ordered = in_force(points)
    chosen = {*at_edges(ordered, edges_ms), ordered[-1].id}
    chosen |= {p.id for p in points if p.taken_at_ms >= keep_all_from_ms or p.closes_window}
    chosen |= {p.id for p in points if p.id in named}
    for some in ([p for p in points if p.sealed], [p for p in points if p.exact]):
        chosen |= {max(some, key=in_order).id} if some else set()
    # Points in force that keep others, which stay too, from being in force.
    in_force_ids = {point.id for point in ordered}
    keys = [(point.effective_at_ms, point.taken_at_ms) for point in ordered]
    return chosen | {
        ordered[bisect_right(keys, (point.effective_at_ms, point.taken_at_ms)) - 1].id
        for point in points
        if point.id in chosen and point.id not in in_force_ids
    }


@dataclass(slots=True)
class MaintenanceRound:
    """One round, and what it did. `finished` is False when its time was up before its work was."""

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
        """Every point taken from then on stays."""
        return self.now_ms - round(self.retention.keep_all_s * 1000)

    def _has_time(self) -> bool:
        """Whether another step may begin."""
        self.finished = self.finished and time.monotonic() < self.deadline
        return self.finished

    def prune_points(self, pruned_to_ms: int) -> None:
        """Drop the points that nobody needs."""
        table = RecoveryPointTable(self.warehouse)
        doomed = self._doomed(table.instants(self.application_id), pruned_to_ms)
        files = [FileRange(f.rows, f.low, f.high) for f in table.files(self.application_id)]
        times = sorted(doomed.values())
        for low, high in ranges_to_rewrite(
            files,
            lambda file: bisect_left(times, file.low) < bisect_right(times, file.high),
            enough=_ENOUGH_POINTS,
        ):
            if not self._has_time():
                break
            going = {point_id for point_id, at_ms in doomed.items() if low <= at_ms <= high}
            table.drop(self.application_id, low, high, going, writer=self.writer)
            self.points_dropped += len(going)
            self.ranges_rewritten += 1

    def _doomed(self, instants: Sequence[PointInstant], pruned_to_ms: int) -> dict[str, int]:
        """Points to drop, with the time they were taken."""
        low_ms = min((i.effective_at_ms for i in instants), default=0)
        judged = {i.id for i in instants if min(i.taken_at_ms, i.effective_at_ms) < pruned_to_ms}
        stays = kept(
            instants,
            # A point is only the last before an edge that lies behind it.
            edges_ms=self.retention.edges_ms(max(low_ms, pruned_to_ms), self.now_ms),
            keep_all_from_ms=self.keep_all_from_ms,
            named=judged.union(self.retention.named()),
        )
        return {i.id: i.taken_at_ms for i in instants if i.id not in stays}

    def prune_records(self) -> None:
        """Drop the saved records that no stored point refers to."""
        table = SavedRecordsTable(self.warehouse)
        files = table.files(self.application_id)
        if not files or not self._has_time():
            return
        # Read after the points were pruned: what is stored then is what is needed.
        points = RecoveryPointTable(self.warehouse)
        needed = points.saved(self.application_id, self.retention.proven())
        # It sorts before the ids of points taken at that time or later.
        unclaimed = datetime.fromtimestamp(self.now_ms / 1000 - _UNCLAIMED_S, tz=UTC)
        fresh_from = f"{unclaimed:%Y%m%dT%H%M%S}"
        ranges = [FileRange(file.bytes, file.low, file.high) for file in files]
        small = ranges_to_rewrite(ranges, lambda _: False, enough=_ENOUGH_BYTES)
        settled = [f for f in files if not any(low <= f.low <= high for low, high in small)]
        # A few of them, others in each round.
        begin = int(self.now_ms // (_ROUND_S * 1000)) * _LOOKED_AT
        dead: set[object] = set()
        for number in range(min(_LOOKED_AT, len(settled))):
            file = settled[(begin + number) % len(settled)]
            if not self._has_time():
                break
            left = table.needed_rows(self.application_id, file, needed, fresh_from)
            if left < file.rows and (2 * left <= file.rows or file.bytes < _ENOUGH_BYTES):
                dead.add(file.low)
        for low, high in ranges_to_rewrite(
            ranges, lambda file: file.low in dead, enough=_ENOUGH_BYTES
        ):
            if not self._has_time():
                break
            self.records_dropped += table.drop_unneeded(
                self.application_id, low, high, needed, fresh_from, writer=self.writer
            )
            self.ranges_rewritten += 1


def pin_point(
    settings: ApplicationSettings, point_id: str, reason: str, *, wait_s: float = 30.0
) -> None:
    """Keep a point, whatever maintenance and `expire` would do, until it is unpinned.

    Raises:
        RecoveryPointNotFoundError: There is none of this id (any more).
        WarehouseLockedError: Points are being dropped for too long.
    """
    application_id = settings.application_id
    # While no one drops points: from then on this one stays.
    with points_locked(
        settings.warehouse,
        application_id,
        purpose=f"pin recovery point {point_id}",
        wait_s=wait_s,
    ) as lock:
        table = RecoveryPointTable(settings.warehouse)
        if not table.load(application_id, [point_id], damaged_too=True):
            raise RecoveryPointNotFoundError(point_id=point_id, application_id=application_id)
        PinsTable(settings.warehouse).pin(application_id, point_id, reason, writer=lock)


def retention_of(settings: ApplicationSettings) -> Retention:
    """How the points of an application are pruned.

    The last of each window stays, and those that the ledger names or that unfinished restores are
    made from; what backups hold without holes is not kept a second time.
    """
    calendar = WindowCalendar(settings.windows)
    ledger = Ledger(settings.warehouse, settings.application_id)
    pins, keep = PinsTable(settings.warehouse), settings.keep
    hourly = keep is not None and any(line.name == "hourly" for line in keep.lines)

    def edges_ms(low_ms: int, high_ms: int) -> set[int]:
        windows = calendar.closed_since(low_ms)
        edges = {edge for window in windows for edge in (window.start_ms, window.end_ms)}
        # The policy may ask for more points than there are windows.
        hours = range(low_ms // _HOUR_MS * _HOUR_MS, high_ms, _HOUR_MS) if hourly else ()
        return edges.union(hours)

    return Retention(
        keep_all_s=max(settings.recovery_points.keep_all_s, keep.all_s if keep else 0),
        edges_ms=edges_ms,
        named=lambda: {
            *ledger.closing_point_ids(),
            *points_of_restores(settings.warehouse, settings.application_id),
            *(pin.recovery_point_id for pin in pins.of(settings.application_id)),
        },
        proven=lambda: ledger.proven_ranges(settings.application),
    )
