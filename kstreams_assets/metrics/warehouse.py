"""What the warehouse tells of points, backups and snapshots. Needs no broker and no JVM."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.backup.due import WindowStatus
from kstreams_assets.backup.ledger import Ledger
from kstreams_assets.backup.plan import LOSSES, UNKNOWN, GapCause
from kstreams_assets.drill.evidence import Evidence
from kstreams_assets.ktables.snapshot import Snapshot
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.metrics import catalogue
from kstreams_assets.metrics.sample import Sample
from kstreams_assets.recovery.point import Guarantee
from kstreams_assets.recovery.table import RecoveryPointTable

TOLD_CAUSES: Final = tuple(cause.value for cause in GapCause if cause in LOSSES | UNKNOWN)
"""The causes of gaps that turn a check red."""

_COLUMNS: Final = [
    "window_end_ms",
    "topic",
    "partition",
    "end",
    "records",
    "stored_bytes",
    "gaps",
    "recorded_at_ms",
]


def point_samples(evidence: Evidence) -> Iterator[Sample]:
    """The newest recovery points, and what may be restored of them."""
    settings = evidence.settings
    objective_s = settings.recovery_points.objective_s
    if objective_s is not None:
        yield catalogue.POINT_OBJECTIVE.sample(objective_s)
    newest = RecoveryPointTable(settings.warehouse).newest(settings.application_id)
    if not newest:
        return
    (point,) = newest
    yield catalogue.POINT_TIME.sample(point.taken_at_ms / 1000, kind="newest")
    yield catalogue.POINT_EXACT.sample(point.guarantee is Guarantee.EXACT)
    yield catalogue.POINT_SECONDS.sample(point.took_ms / 1000)
    yield catalogue.POINT_IN_FLIGHT.sample(point.in_flight)
    restorable = evidence.restorable
    for kind, status in (("covered", restorable.covered), ("exact", restorable.exact)):
        if status is not None:
            yield catalogue.POINT_TIME.sample(status.taken_at_ms / 1000, kind=kind)


def backup_samples(evidence: Evidence) -> Iterator[Sample]:
    """What is backed up, what is due, what was lost."""
    settings, statuses = evidence.settings, evidence.windows
    yield catalogue.WINDOWS_DUE.sample(sum(status.is_due for status in statuses))
    topics = sorted(topic.name for topic in settings.topics)
    ledger = Ledger(settings.warehouse, settings.application_id)
    rows = ledger.span_rows(topics, columns=_COLUMNS)
    yield from _times(statuses, rows)
    yield from _ends(rows)
    sums = {
        row["topic"]: row
        for row in rows.group_by("topic")
        .aggregate([("records", "sum"), ("stored_bytes", "sum")])
        .to_pylist()
    }
    for topic, row in sorted(sums.items()):
        yield catalogue.BACKUP_RECORDS.sample(row["records_sum"], topic=topic)
        yield catalogue.BACKUP_BYTES.sample(row["stored_bytes_sum"], topic=topic)
    yield from _losses(rows, sorted(sums))


def _times(statuses: list[WindowStatus], rows: pa.Table) -> Iterator[Sample]:
    """Times of the newest backup, of whichever window, and of the newest window with all topics."""
    if rows.num_rows == 0:
        return
    yield catalogue.BACKUP_TIME.sample(_newest(rows["recorded_at_ms"]) / 1000)
    done = [status.window for status in statuses if not status.is_due]
    if not done:
        return
    end_ms = max(window.end_ms for window in done)
    yield catalogue.WINDOW_END.sample(end_ms / 1000)
    recorded = rows.filter(pc.field("window_end_ms") == end_ms)["recorded_at_ms"]
    if len(recorded):
        yield catalogue.BACKUP_DELAY.sample((_newest(recorded) - end_ms) / 1000)


def _newest(times_ms: pa.ChunkedArray) -> int:
    return max(times_ms.to_pylist())


def _ends(rows: pa.Table) -> Iterator[Sample]:
    ordered = rows.select(["topic", "partition", "window_end_ms", "end"]).sort_by("window_end_ms")
    newest = ordered.group_by(["topic", "partition"], use_threads=False).aggregate(
        [("end", "last")]
    )
    for row in newest.sort_by([("topic", "ascending"), ("partition", "ascending")]).to_pylist():
        yield catalogue.BACKUP_END.sample(
            row["end_last"], topic=row["topic"], partition=str(row["partition"])
        )


def _losses(rows: pa.Table, topics: list[str]) -> Iterator[Sample]:
    """Every cause of every topic, so that an alert sees a 0 become something else."""
    gaps = rows["gaps"].combine_chunks()
    told = pa.table(
        {
            "topic": rows["topic"].take(gaps.value_parent_indices()),
            "cause": gaps.flatten().field("cause"),
            "offsets": gaps.flatten().field("offsets"),
        }
    )
    summed = told.group_by(["topic", "cause"]).aggregate([("offsets", "sum"), ("cause", "count")])
    found = {(row["topic"], row["cause"]): row for row in summed.to_pylist()}
    for topic in topics:
        for cause in TOLD_CAUSES:
            row = found.get((topic, cause), {"offsets_sum": 0, "cause_count": 0})
            labels = {"topic": topic, "cause": cause}
            yield catalogue.LOST_OFFSETS.sample(row["offsets_sum"] or 0, **labels)
            yield catalogue.LOSSES.sample(row["cause_count"], **labels)


def store_samples(evidence: Evidence) -> Iterator[Sample]:
    """The newest snapshot of each store."""
    newest: dict[str, Snapshot] = {}
    settings = evidence.settings
    for snapshot in SnapshotsTable(settings.warehouse).of(settings.application_id):
        newest[snapshot.store] = snapshot  # in order of time
    for store, snapshot in newest.items():
        yield catalogue.STORE_ROWS.sample(snapshot.rows, store=store)
        yield catalogue.STORE_BYTES.sample(snapshot.bytes, store=store)
        yield catalogue.STORE_TIME.sample(snapshot.taken_at_ms / 1000, store=store)
        yield catalogue.STORE_PROVED.sample(snapshot.proved, store=store)
        yield catalogue.STORE_PROBLEMS.sample(snapshot.problem_rows, store=store)
        yield catalogue.STORE_SECONDS.sample(snapshot.took_ms / 1000, store=store)
