"""Keeps the tables of recovery points small: thins them out, puts small files together.

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
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.ledger import Ledger
from kstreams_assets.warehouse.point import in_force, in_order
from kstreams_assets.warehouse.points import (
    OffsetRanges,
    PointInstant,
    RecoveryPointTable,
    SavedRecordsTable,
    at_edges,
)
from kstreams_assets.warehouse.restores import RestoresTable
from kstreams_assets.warehouse.table import FileRange, StoredFile, ranges_to_rewrite

_ROUND_S = 600.0
"""A round every ten minutes: at most sixty small files per table for points every ten seconds."""
_DEADLINE_S = 5.0
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


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What one round did. `finished` is False when its time was up before its work was."""

    points_dropped: int
    records_dropped: int
    ranges_rewritten: int
    took_ms: int
    finished: bool


def maintain_if_due(
    warehouse: Warehouse, application_id: str, retention: Retention
) -> MaintenanceResult | None:
    """A round of maintenance if the last one began ten minutes ago; None otherwise.

    To be called under the application's recorder lock. A failure is logged and never raised: a
    point that was taken must not fail for what comes after it.
    """
    mark = warehouse.lock_file(f"maintenance/{application_id}")
    try:
        if mark.exists() and abs(time.time() - mark.stat().st_mtime) < _ROUND_S:
            return None
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()  # before the work: a round that fails does not burden each point after it
        now_ms = time.time_ns() // 1_000_000
        result = maintain(
            warehouse, application_id, retention, now_ms=now_ms, thinned_to_ms=_noted(mark)
        )
        if result.finished:
            mark.write_text(str(_keep_all_from(retention, now_ms)), encoding="utf-8")
        return result
    except (KStreamsAssetsError, DeltaError, pa.ArrowException, OSError) as error:
        _log.warning("Recovery points of %s were not thinned out: %s", application_id, error)
        return None


def maintain(
    warehouse: Warehouse,
    application_id: str,
    retention: Retention,
    *,
    now_ms: int | None = None,
    thinned_to_ms: int = 0,
    deadline_s: float = _DEADLINE_S,
) -> MaintenanceResult:
    """Thin out the points of an application and what was saved for them, and tidy the tables.

    To be called under the application's recorder lock. Points taken before `thinned_to_ms` have
    been thinned out and are left as they are, so that a round costs the same after years. No file
    is written anew once `deadline_s` seconds have passed.

    Raises:
        WarehouseLockedError: Another process writes one of the tables for too long.
        DeltaError: A table could not be written; nothing is lost.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    began = time.monotonic()
    step = _Round(warehouse, application_id, retention, now_ms, began + deadline_s)
    points_dropped = step.thin_points(thinned_to_ms)
    records_dropped = step.thin_records()
    step.points.tidy()
    step.records.tidy()
    result = MaintenanceResult(
        points_dropped=points_dropped,
        records_dropped=records_dropped,
        ranges_rewritten=step.rewritten,
        took_ms=round((time.monotonic() - began) * 1000),
        finished=not step.was_cut_short,
    )
    _log.info("Recovery points of %s: %s", application_id, result)
    return result


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


class _Round:
    """One round of maintenance."""

    def __init__(
        self,
        warehouse: Warehouse,
        application_id: str,
        retention: Retention,
        now_ms: int,
        deadline: float,
    ) -> None:
        self.points = RecoveryPointTable(warehouse)
        self.records = SavedRecordsTable(warehouse)
        self.rewritten = 0
        self.was_cut_short = False
        self._application_id = application_id
        self._retention = retention
        self._now_ms = now_ms
        self._deadline = deadline

    def has_time(self) -> bool:
        """Whether another step may begin."""
        if time.monotonic() < self._deadline:
            return True
        self.was_cut_short = True
        return False

    def thin_points(self, thinned_to_ms: int) -> int:
        """Drop the points that nobody needs; how many went."""
        doomed = self._doomed(thinned_to_ms)
        files = [FileRange(f.rows, f.low, f.high) for f in self.points.files(self._application_id)]
        times = sorted(doomed.values())
        dropped = 0
        for low, high in ranges_to_rewrite(
            files, lambda file: _any_in(times, file.low, file.high), enough=_ENOUGH_POINTS
        ):
            if not self.has_time():
                break
            going = {point_id for point_id, at_ms in doomed.items() if low <= at_ms <= high}
            self.points.drop(self._application_id, low, high, going)
            dropped += len(going)
            self.rewritten += 1
        return dropped

    def _doomed(self, thinned_to_ms: int) -> dict[str, int]:
        """Points to drop, with the time they were taken."""
        instants = self.points.instants(self._application_id)
        low_ms = min((i.effective_at_ms for i in instants), default=0)
        judged = {i.id for i in instants if min(i.taken_at_ms, i.effective_at_ms) < thinned_to_ms}
        stays = kept(
            instants,
            # A point is only the last before an edge that lies behind it.
            edges_ms=self._retention.edges_ms(max(low_ms, thinned_to_ms), self._now_ms),
            keep_all_from_ms=_keep_all_from(self._retention, self._now_ms),
            named=judged.union(self._retention.named()),
        )
        return {i.id: i.taken_at_ms for i in instants if i.id not in stays}

    def thin_records(self) -> int:
        """Drop the saved records that no stored point refers to; how many went."""
        files = self.records.files(self._application_id)
        if not files or not self.has_time():
            return 0
        # Read after the points were thinned out: what is stored then is what is needed.
        needed = self.points.saved(self._application_id, self._retention.proven())
        fresh_from = _id_of(self._now_ms - round(_UNCLAIMED_S * 1000))
        ranges = [FileRange(file.bytes, file.low, file.high) for file in files]
        settled = _outside(files, ranges_to_rewrite(ranges, _never, enough=_ENOUGH_BYTES))
        dead = {f.low for f in self._in_turn(settled) if self._is_dead(f, needed, fresh_from)}
        dropped = 0
        for low, high in ranges_to_rewrite(
            ranges, lambda file: file.low in dead, enough=_ENOUGH_BYTES
        ):
            if not self.has_time():
                break
            dropped += self.records.drop_unneeded(
                self._application_id, low, high, needed, fresh_from
            )
            self.rewritten += 1
        return dropped

    def _in_turn(self, files: Sequence[StoredFile]) -> list[StoredFile]:
        """A few of the files, others in each round."""
        begin = int(self._now_ms // (_ROUND_S * 1000)) * _LOOKED_AT
        return [files[(begin + i) % len(files)] for i in range(min(_LOOKED_AT, len(files)))]

    def _is_dead(self, file: StoredFile, needed: OffsetRanges, fresh_from: str) -> bool:
        """Whether a file is worth writing anew for the rows that would go."""
        if not self.has_time():
            return False
        left = self.records.needed_rows(self._application_id, file, needed, fresh_from)
        return left < file.rows and (2 * left <= file.rows or file.bytes < _ENOUGH_BYTES)


def _never(_: FileRange) -> bool:
    return False


def _outside(files: Sequence[StoredFile], ranges: Sequence[tuple[Any, Any]]) -> list[StoredFile]:
    """Files that lie in none of these ranges, which are in order and apart."""
    lows = [low for low, _ in ranges]
    found = ((file, bisect_right(lows, file.low) - 1) for file in files)
    return [file for file, i in found if i < 0 or file.low > ranges[i][1]]


def _keep_all_from(retention: Retention, now_ms: int) -> int:
    return now_ms - round(retention.keep_all_s * 1000)


def _noted(mark: Path) -> int:
    """Up to which time an earlier round has thinned out the points."""
    text = mark.read_text(encoding="utf-8").strip()
    return int(text) if text.isdigit() else 0


def _any_in(times: Sequence[int], low: int, high: int) -> bool:
    index = bisect_left(times, low)
    return index < len(times) and times[index] <= high


def _id_of(at_ms: int) -> str:
    """A text that sorts before the ids of points taken at this time or later."""
    return f"{datetime.fromtimestamp(at_ms / 1000, tz=UTC):%Y%m%dT%H%M%S}"


def retention_of(settings: ApplicationSettings, *, pinned: Collection[str] = ()) -> Retention:
    """How the points of an application are thinned out.

    The last of each window stays, and those that the ledger names, that unfinished restores are
    made from, or that are `pinned`; what backups hold without holes is not kept a second time.
    """
    calendar = WindowCalendar(settings.windows)
    ledger = Ledger(settings.warehouse, settings.application_id)
    restores = RestoresTable(settings.warehouse)

    def edges(low_ms: int, _high_ms: int) -> Iterable[int]:
        windows = calendar.closed_since(low_ms)
        return {edge for window in windows for edge in (window.start_ms, window.end_ms)}

    return Retention(
        keep_all_s=settings.recovery_points.keep_all_s,
        edges_ms=edges,
        named=lambda: {
            *pinned,
            *ledger.closing_point_ids(),
            *restores.pinned(settings.application_id),
        },
        proven=lambda: ledger.proven_ranges(settings.application),
    )
