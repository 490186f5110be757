"""A month of recovery points every ten seconds: how small it stays, how fast it is to plan on."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from deltalake import DeltaTable

from bench.machine import write_result
from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import Guarantee, Method, PartitionCut, RecoveryPoint, new_point_id
from kstreams_assets.model.point_bounds import at_edges
from kstreams_assets.model.saved_records import SavedTail
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.maintenance import maintain
from kstreams_assets.recovery.retention import Retention
from kstreams_assets.repository.points import RecoveryPointTable, SavedRecordsTable
from kstreams_assets.repository.repository import Repository

_APPLICATION = "order-processor"
_START_MS = 1_795_000_000_000 // 3_600_000 * 3_600_000
_EVERY_MS, _HOUR_MS = 10_000, 3_600_000
_PER_HOUR = _HOUR_MS // _EVERY_MS
_HOURS = 30 * 24
_LOT = 12
"""Points of so many hours are stored at once, then a round of maintenance thins them out."""
_CHANGELOGS = [
    TopicPartitionId(f"order-processor-totals-{n // 4}-changelog", n % 4) for n in range(8)
]
_INPUTS = [TopicPartitionId(f"orders-{n // 4}", n % 4) for n in range(8)]
_RATE = 10
"""Records per point and changelog partition."""
_CHANGELOG = TopicRoles({TopicRole.CHANGELOG})
_INPUT = TopicRoles({TopicRole.INPUT})
_TOPIC_ID = "x7YkZq0aTmWbPc3nRs5uVw"
_AS_IT_COMES = 66
"""Points that are stored one by one at the end, as the recorder does."""


def _edges(low_ms: int, high_ms: int) -> Iterable[int]:
    return range(low_ms // _HOUR_MS * _HOUR_MS, high_ms + 1, _HOUR_MS)


@dataclass(slots=True)
class _Month:
    """A warehouse that is filled point by point."""

    folder: Path
    points: RecoveryPointTable = field(init=False)
    saved: SavedRecordsTable = field(init=False)
    warehouse: Warehouse = field(init=False)
    last_round_ms: float = 0

    def __post_init__(self) -> None:
        self.warehouse = Warehouse(self.folder)
        self.points = Repository(self.warehouse, _APPLICATION).points
        self.saved = Repository(self.warehouse, _APPLICATION).saved_records

    def store(self, numbers: Sequence[int]) -> None:
        """Points with the records that they save, in one commit of either table."""
        points = [_point(number) for number in numbers]
        first, last = numbers[0] * _RATE, (numbers[-1] + 1) * _RATE
        records = [
            RawRecord(o, _START_MS + o, 0, b"key-%d" % (o % 997), b"total-%d" % o, ())
            for o in range(first, last)
        ]
        tails = [SavedTail(partition, _TOPIC_ID, records) for partition in _CHANGELOGS]
        self.saved.append(points[0].id, tails)
        self.points.append_many(points)

    def maintain(self, number: int) -> None:
        """A round at the time of a point; backups hold the windows of the hours before."""
        hour = number // _PER_HOUR
        proven = {p: [(_TOPIC_ID, 0, (hour - 1) * _PER_HOUR * _RATE)] for p in _CHANGELOGS}
        began = time.process_time()
        result = maintain(
            self.warehouse,
            _APPLICATION,
            Retention(86_400, _edges, proven=lambda: proven),
            now_ms=_START_MS + number * _EVERY_MS,
            deadline_s=60,
        )
        self.last_round_ms = (time.process_time() - began) * 1000
        if not result.finished:
            message = "a round did not come to its end"
            raise RuntimeError(message)

    def an_hour_passes(self) -> None:
        """What the tables do after an hour happens now: old log entries and files go."""
        for name in ("recovery_points", "recovery_point_records"):
            path = self.warehouse.on_disk / name
            old = time.time() - 3700
            for file in path.glob("_delta_log/*"):
                os.utime(file, (old, old))
            DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def _point(number: int) -> RecoveryPoint:
    taken_at_ms = _START_MS + number * _EVERY_MS
    hour = number // _PER_HOUR
    changelogs = [
        PartitionCut(
            topic=p.topic,
            partition=p.partition,
            topic_id=_TOPIC_ID,
            log_start=0,
            end=(number + 1) * _RATE,
            roles=_CHANGELOG,
            saved_from=max(0, hour - 1) * _PER_HOUR * _RATE,
        )
        for p in _CHANGELOGS
    ]
    inputs = [
        PartitionCut(p.topic, p.partition, _TOPIC_ID, 0, number * 37, _INPUT) for p in _INPUTS
    ]
    return RecoveryPoint(
        id=new_point_id(taken_at_ms),
        application_id=_APPLICATION,
        cluster_id="MkU3OEVBNTcwNTJENDM2Qk",
        taken_at_ms=taken_at_ms,
        method=Method.TRANSACTIONS,
        guarantee=Guarantee.EXACT,
        reason="The committed transactions were told apart in the raw logs.",
        took_ms=310 + number % 50,
        partitions=(*changelogs, *inputs),
        group_offsets=tuple(
            GroupOffset(p.topic, p.partition, number * 37 - 5, "AgAAAZM0x1Y=") for p in _INPUTS
        ),
        sealed=True,
    )


def main() -> None:
    """Measure and write bench/results/points.md."""
    with TemporaryDirectory(prefix="kstreams-bench-") as folder:
        month = _Month(Path(folder))
        rows: list[list[object]] = []
        began = time.monotonic()
        for hours in range(_LOT, _HOURS + 1, _LOT):
            numbers = range((hours - _LOT) * _PER_HOUR, hours * _PER_HOUR)
            month.store(numbers)
            month.maintain(numbers[-1])
            month.an_hour_passes()
            if hours in (24, 7 * 24, _HOURS):
                rows.append(_measured(month, hours))
                print(rows[-1], flush=True)
        took_s = time.monotonic() - began
        last = _HOURS * _PER_HOUR
        single = [_ms(lambda n=n: month.store([n])) for n in range(last, last + _AS_IT_COMES)]
        rows.append(_measured(month, _HOURS))
        month.maintain(last + _AS_IT_COMES)
        rows.append(_measured(month, _HOURS))
    write_result(
        "points",
        title="A month of recovery points, one every ten seconds",
        command="python -m bench points",
        columns=_COLUMNS,
        rows=rows,
        notes=[
            f"{_HOURS * _PER_HOUR:,} points with 16 partitions each and {_RATE} saved records per"
            " point in each of 8 changelog partitions, kept for a day, then the last of each hour;"
            f" stored in lots of {_LOT} hours with a round of maintenance after each"
            f" ({took_s:.0f} s in all). Last two rows: after {_AS_IT_COMES} more points, stored one"
            f" by one, and after the next round, which took {month.last_round_ms:.0f} ms.",
            "Times are processor time.",
            "Storing one point with its records (two commits):"
            f" {_median(single[:10]):.0f} ms right after a round,"
            f" {_median(single[-10:]):.0f} ms with {_AS_IT_COMES} commits since.",
            "What is dropped is deleted an hour later; the measurement does that at once.",
        ],
    )


_COLUMNS = [
    "hours",
    "points kept",
    "files",
    "KB",
    "log KB",
    "saved rows",
    "saved files",
    "saved KB",
    "newest() ms",
    "instants() ms",
    "720 edges: choose and load ms",
    "of_point() ms",
]


def _measured(month: _Month, hours: int) -> list[object]:
    points = month.points
    instants = points.instants()
    edges = [_START_MS + hour * _HOUR_MS for hour in range(1, _HOURS + 1)]
    [newest] = points.newest()
    files, saved = points.files(), month.saved.files()
    return [
        hours,
        len(instants),
        len(files),
        sum(file.bytes for file in files) // 1024,
        _log_kb(month),
        sum(file.rows for file in saved),
        len(saved),
        sum(file.bytes for file in saved) // 1024,
        _median([_ms(lambda: points.newest()) for _ in range(5)]),
        _median([_ms(lambda: points.instants()) for _ in range(5)]),
        _ms(lambda: points.load(at_edges(points.instants(), edges))),
        _median([_ms(lambda: month.saved.of_point(newest)) for _ in range(5)]),
    ]


def _log_kb(month: _Month) -> int:
    logs = month.warehouse.control("recovery_points") / "_delta_log"
    return sum(file.stat().st_size for file in logs.iterdir()) // 1024


def _ms(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1000


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    main()
