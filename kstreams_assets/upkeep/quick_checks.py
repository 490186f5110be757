"""Integrity checks that read tables and file listings of an application, but no file contents."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.checks import Severity
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.layout import NewerLayoutError
from kstreams_assets.model.chains import StoredSpan, chains_of
from kstreams_assets.model.damage import MOST_POINTS, Damage, DamageKind, Head
from kstreams_assets.model.numbered import distinct, numbered_spans
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.spans import window_of
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import snapshot_damage
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import subfolders
from kstreams_assets.upkeep.contents import unsound_points
from kstreams_assets.upkeep.expire import leftovers

_NEWEST_POINTS: Final = 100
"""Number of points whose rows a quick verification reads; a full one reads all rows."""
_BATCH: Final = 16
_SPAN: Final = ["window", "topic", "partition", "topic_id"]

_FROM_COPY: Final = "Restore the table from a second copy"
_UNKNOWN: Final = (
    f"{_FROM_COPY} (windows), or back up the window again (kstreams-assets backup --window"
    " {window}) while Kafka has its records."
)


def quick_damages(
    settings: ApplicationSettings,
    seen: Mapping[str, Head] | None,
    *,
    public_key: Path | None = None,
) -> list[Damage]:
    """Return damages that are visible without reading data files.

    `seen` are the newest versions of the control tables at an earlier verification.

    Raises:
        NewerLayoutError: A newer release wrote a table.
    """
    found = Repository.open(settings).control_tables.damaged(seen, public_key=public_key)
    known = {one.table for one in found}
    for part, needs, place in _PARTS:
        try:
            found += part(settings)
        except NewerLayoutError:
            raise
        except KStreamsAssetsError as error:
            # A part that needs a damaged table cannot be checked; that damage is listed already.
            if known.isdisjoint((*needs, place)):
                where = f"{place}/{settings.application_id}" if place == "records" else place
                found.append(
                    Damage(DamageKind.TABLE, where, error.problem.rstrip("."), error.remedy)
                )
                known.add(place)
    return found


def _files(settings: ApplicationSettings) -> Iterator[Damage]:
    """Yield spans whose files differ from those in the ledger."""
    for span in Repository.open(settings).ledger.damaged(inspect_timeout_s=math.inf):
        yield replace(span, place=span.table, window=window_of(span.window or ""))


def _rows(settings: ApplicationSettings) -> list[Damage]:
    """Return duplicate and missing rows of the ledger, and gaps between spans."""
    ledger = Repository.open(settings).ledger
    rows = ledger.all_span_rows([*_SPAN, "start", "end", "written", "delta_version"])
    unknown = list(_unknown_files(settings, rows))
    found = [*_doubles(rows), *unknown, *_behind(settings, rows)]
    chains = chains_of(ledger.merged_spans(rows["topic"].unique().to_pylist(), holes_matter=()))
    without_row = {(one.topic, one.partition) for one in unknown}
    for chain in chains.values():
        for before, after in pairwise(s for s in chain.spans if s.start < s.end):
            found += _edge(before, after, without_row)
    return found


def _doubles(rows: pa.Table) -> Iterator[Damage]:
    _, of_row = distinct(rows, _SPAN)
    doubles = rows.select([*_SPAN, "start", "end"])
    doubles = doubles.filter(pa.array(np.bincount(of_row)[of_row] > 1))
    counted = doubles.group_by(_SPAN).aggregate(
        [("start", "count"), ("start", "min"), ("end", "max")]
    )
    for row in counted.to_pylist():
        yield _of_row(
            row,
            f"the ledger has {row['start_count']} rows for it",
            f"{_FROM_COPY} (windows), or back up the window again (kstreams-assets backup --window"
            f" {row['window']}).",
            start=row["start_min"],
            end=row["end_max"],
        )


def _edge(
    before: StoredSpan, after: StoredSpan, without_row: set[tuple[Any, Any]]
) -> Iterator[Damage]:
    """Yield an overlap or a gap between two consecutive spans of a log."""
    life = before.partition
    adjacent = before.last_window.end_ms >= after.window.start_ms
    place = {"topic": life.topic, "partition": life.partition, "topic_id": before.topic_id}
    if after.start < before.end and before.window != after.window:  # else it is a duplicate row
        yield Damage(
            DamageKind.LEDGER,
            "windows",
            f"the ledger has offsets {after.start} to {min(before.end, after.end) - 1} in windows"
            f" {before.last_window.key} and {after.window.key}",
            f"{_FROM_COPY} (windows), or back up both windows again (kstreams-assets backup"
            " --window).",
            window=after.window.key,
            start=after.start,
            end=min(before.end, after.end),
            **place,
        )
    elif after.start > before.end and (after.continues or not after.begins_life):
        gap = (
            f"no window contains them: {before.last_window.key} ends at {before.end},"
            f" {after.window.key} starts at {after.start}"
        )
        is_row = adjacent or (life.topic, life.partition) in without_row
        yield Damage(
            DamageKind.LEDGER,
            "windows",
            gap if is_row else f"{gap}, and a window between them is not backed up",
            f"{_FROM_COPY} (windows), or back up the windows again (kstreams-assets backup"
            f" --window {after.window.key}) while Kafka has their records."
            if is_row
            else "Back up the due windows with kstreams-assets backup.",
            window=after.window.key,
            start=before.end,
            end=after.start,
            severity=Severity.ERROR if is_row else Severity.WARN,
            **place,
        )


def _unknown_files(settings: ApplicationSettings, rows: pa.Table) -> Iterator[Damage]:
    """Yield files of the records table without a row in the ledger: a row was deleted.

    A running or interrupted backup has also committed records before its rows.
    """
    repo = Repository.open(settings)
    actions = repo.ledger.file_actions()
    if actions.num_rows == 0:
        return
    numbers, of_files = numbered_spans(rows, actions)
    unlisted = actions.filter(pa.array(~np.isin(of_files, numbers)))
    if unlisted.num_rows == 0:
        return
    # Increments of a closed window remain until the same or the next run deletes them.
    expected = repo.ledger.expected_files(superseded=True)
    _, recorded = numbered_spans(expected.of_spans(["window", "topic", "partition"]), unlisted)
    unlisted = unlisted.filter(pa.array(recorded < 0))
    left = leftovers(repo)
    with_rows = {*zip(rows["window"].to_pylist(), rows["topic"].to_pylist(), strict=True)}
    ends: dict[str, int] = {}
    for topic, number, end in zip(
        *(rows[name].to_pylist() for name in ("topic", "partition", "end")), strict=True
    ):
        key = f"{topic}-{number}"
        ends[key] = max(ends.get(key, 0), end)
    grouped = unlisted.group_by(["window", "topic", "partition"]).aggregate(
        [("first", "min"), ("last", "max"), ("first", "count")]
    )
    for row in grouped.to_pylist():
        if (row["window"], row["topic"]) in left:
            yield _of_row(
                {**row, "topic_id": None},
                f"the records table has {row['first_count']} file(s) of it that an interrupted"
                " kstreams-assets expire left behind",
                "These files are not needed. The next expire deletes them.",
                start=row["first_min"],
                end=row["last_max"] + 1,
                severity=Severity.WARN,
            )
            continue
        window = window_of(row["window"])
        later = ends.get(f"{row['topic']}-{row['partition']}", 0) > row["last_max"]
        certain = later or (row["window"], row["topic"]) in with_rows
        what = f"the records table has {row['first_count']} file(s) of it that the ledger does not"
        yield _of_row(
            {**row, "window": window, "topic_id": None},
            f"{what} list: a row of the ledger is missing"
            if certain
            else f"{what} list: a backup was interrupted before it recorded them, or rows of the"
            " ledger are missing",
            _UNKNOWN.format(window=window),
            start=row["first_min"],
            end=row["last_max"] + 1,
            severity=Severity.ERROR if certain else Severity.WARN,
        )


def _behind(settings: ApplicationSettings, rows: pa.Table) -> Iterator[Damage]:
    """Yield a damage if the records table lost commits to which rows of the ledger refer."""
    version = Repository.open(settings).ledger.records_version()
    recorded = pc.call_function("max", [rows["delta_version"]]).as_py()
    if recorded is not None and recorded > version:
        yield Damage(
            DamageKind.TABLE,
            f"records/{settings.application_id}",
            f"it has version {version}, but a row of the ledger refers to version {recorded}: its"
            " last commits are missing",
            f"{_FROM_COPY}, or back up the newest windows again while Kafka has their records.",
        )


def _of_row(
    row: Mapping[str, Any],
    problem: str,
    remedy: str,
    *,
    start: int,
    end: int,
    severity: Severity = Severity.ERROR,
) -> Damage:
    return Damage(
        DamageKind.LEDGER,
        "windows",
        problem,
        remedy,
        window=window_of(row["window"]),
        topic=row["topic"],
        partition=row["partition"],
        topic_id=row["topic_id"],
        start=start,
        end=end,
        severity=severity,
    )


def _points(settings: ApplicationSettings) -> list[Damage]:
    """Return changed points, duplicate numbers of points, and tables older than the points."""
    repo = Repository.open(settings)
    # Read points before the tables to which they refer, because those only grow.
    points = repo.points.versions()
    found = unsound_points(settings, newest=_NEWEST_POINTS)
    by_number: dict[int, list[str]] = defaultdict(list)
    for point in points:
        if point.sequence is not None:
            by_number[point.sequence].append(point.id)
    found += [
        Damage(
            DamageKind.POINT,
            f"recovery_points/{ids[1]}",
            f"{len(ids)} recovery points have the number {number}: {', '.join(sorted(ids))}",
            f"{_FROM_COPY} (recovery_points).",
            points=tuple(sorted(ids, reverse=True)[:MOST_POINTS]),
            points_lost=len(ids),
        )
        for number, ids in by_number.items()
        if len(ids) > 1
    ]
    for name, version, recorded in (
        (
            "windows",
            repo.ledger.version(),
            max(
                ((p.ledger_version, p.id) for p in points if p.ledger_version is not None),
                default=None,
            ),
        ),
        (
            "recovery_point_records",
            repo.saved_records.version(),
            max(
                ((p.saved_version, p.id) for p in points if p.saved_version is not None),
                default=None,
            ),
        ),
    ):
        if recorded is not None and recorded[0] > version:
            found.append(
                Damage(
                    DamageKind.TABLE,
                    name,
                    f"it has version {version}, but recovery point {recorded[1]} refers to version"
                    f" {recorded[0]}: its last commits are missing",
                    f"{_FROM_COPY}.",
                )
            )
    if not points and repo.ledger.version() >= 0 and repo.ledger.closing_point_ids():
        found.append(
            Damage(
                DamageKind.TABLE,
                "recovery_points",
                "the ledger refers to recovery points, but the table is empty",
                f"{_FROM_COPY}.",
            )
        )
    return found


def _snapshots(settings: ApplicationSettings) -> list[Damage]:
    table = Repository.open(settings).snapshots
    snapshots = table.of()
    found = table.damaged()
    found += [
        snapshot_damage(
            settings.warehouse.ktable(settings.application_id, snapshot.store),
            snapshot.window.key,
            snapshot.topic,
            f"its entry in ktable_snapshots lists {snapshot.rows:,} rows, but its files contain"
            f" {written:,}",
        )
        for snapshot in snapshots
        if snapshot.written
        and (written := sum(file.records for file in snapshot.written)) != snapshot.rows
    ]
    stores = {
        path.name
        for path in subfolders(settings.warehouse.root / "ktables" / settings.application_id)
    }
    if stores and not snapshots and table.version() < 0:
        found.append(
            Damage(
                DamageKind.TABLE,
                "ktable_snapshots",
                f"it is missing, but tables of {len(stores)} store(s) exist",
                f"{_FROM_COPY}, or create the snapshots again (kstreams-assets ktables make).",
            )
        )
    return found


_Part = Callable[[ApplicationSettings], Sequence[Damage] | Iterator[Damage]]
_PARTS: Final[Sequence[tuple[_Part, Sequence[str], str]]] = (
    (_files, ("windows", "increments"), "records"),
    (_rows, ("windows", "increments"), "records"),
    (_points, ("recovery_point_records", "windows", "increments"), "recovery_points"),
    (_snapshots, (), "ktable_snapshots"),
)
"""Each check, the other tables that it reads, and the table that it checks."""

_ALL_POINTS: Final = frozenset({"recovery_points", "windows", "increments"})
_NO_POINT: Final = frozenset({DamageKind.SNAPSHOT, DamageKind.OFFSET_MAP, DamageKind.POINT})


def with_lost_points(settings: ApplicationSettings, damages: Sequence[Damage]) -> list[Damage]:
    """Add to each damage the recovery points that need the damaged part, newest first.

    Points are read in small batches, and only if a damage can affect them.
    """
    asked = [one for one in damages if one.kind not in _NO_POINT]
    if not asked:
        return list(damages)
    table = Repository.open(settings).points
    lost: dict[tuple[object, ...], list[str]] = {one.identity: [] for one in asked}
    try:
        ids = [instant.id for instant in reversed(table.instants())]
        for begin in range(0, len(ids), _BATCH):
            batch = table.load(ids[begin : begin + _BATCH], damaged_too=True)
            for point in reversed(batch):
                for one in asked:
                    if _needs(point, one):
                        lost[one.identity].append(point.id)
    except KStreamsAssetsError:
        return list(damages)  # the table of points is damaged itself
    return [
        replace(one, points=tuple(mine[:MOST_POINTS]), points_lost=len(mine))
        if (mine := lost.get(one.identity))
        else one
        for one in damages
    ]


def _needs(point: RecoveryPoint, damage: Damage) -> bool:
    if damage.topic is None or damage.partition is None:
        if damage.kind is DamageKind.WAREHOUSE:
            return False
        table = damage.table
        if table == "recovery_point_records":
            return any(cut.saved_from is not None for cut in point.partitions)
        return table in _ALL_POINTS or table.startswith("records/")
    start, end = damage.offsets.start, damage.offsets.end
    for cut in point.partitions:
        if (cut.topic, cut.partition) != (damage.topic, damage.partition):
            continue
        if damage.topic_id is not None and damage.topic_id != cut.topic_id:
            continue
        if damage.kind is DamageKind.SAVED_RECORDS:
            return any(one.start < end and start < one.end for one in cut.saved)
        return cut.log_start < end and start < cut.end
    return False


def with_remedies(settings: ApplicationSettings, damages: Sequence[Damage]) -> list[Damage]:
    """Add remedies for damaged files: read from Kafka again, use a second copy or another point."""
    if not any(one.kind is DamageKind.FILE for one in damages):
        return list(damages)
    try:
        ids = [instant.id for instant in reversed(Repository.open(settings).points.instants())]
    except KStreamsAssetsError:
        ids = []
    taken = {point for one in damages for point in one.points}
    most = max((one.points_lost for one in damages), default=0)
    older = next((i for i in ids[most:] if i not in taken), None)
    else_ = (
        f"Otherwise restore recovery point {older} or an older one; they do not need damaged files"
        if older
        else "Every recovery point needs a damaged file"
    )
    return [
        replace(
            one,
            remedy="Read the window again while Kafka has its records (kstreams-assets verify"
            f" --repair, or kstreams-assets backup --window {one.window}), or restore the file from"
            f" a second copy. {else_}.",
        )
        if one.kind is DamageKind.FILE
        else one
        for one in damages
    ]
