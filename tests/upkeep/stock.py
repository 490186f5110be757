"""A warehouse with windows, points and saved records, as backups make it, without a broker."""

import functools
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.data_files import By
from kstreams_assets.model.files import NewFile
from kstreams_assets.model.saved_records import SavedTail
from kstreams_assets.model.spans import SpanResult
from kstreams_assets.model.tables import Lock
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.committer import commit, fence, uncommitted
from kstreams_assets.repository.fences import put_in_order
from kstreams_assets.repository.inspection import inspect
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.records import RECORDS, contents_of, ensure_records, tidy_records
from kstreams_assets.repository.repository import Repository
from kstreams_assets.store import NewObject, StorePath
from tests.backup.samples import APPLICATION_ID, application, backup, cut, point, span, window

RECORDS_PER_SPAN = 100
TOPIC = "t"
LIFE = "life-1"


class Stock:
    """An application with one topic of some partitions; window n holds 100 records of each."""

    def __init__(self, root: StorePath, partitions: int = 2, application_id: str = "shop") -> None:
        self.warehouse, self.partitions = Warehouse(root), partitions
        self.application_id = application_id
        self.path = self.warehouse.records(application_id)

    @property
    def application(self) -> StreamsApplication:
        """The application."""
        return (
            application()
            if self.application_id == APPLICATION_ID
            else replace(application(), application_id=self.application_id)
        )

    def back_up(self, index: int, *, value: bytes = b"v" * 50) -> None:
        """Write a window, or write it again, in one commit; then its rows in the ledger."""
        key = window(index).key
        lock = self.warehouse.lock_file(self.application_id)
        with warehouse_lock(lock, purpose="test", wait_s=30) as held:
            table = fence(self.path, ensure_records(self.path), held)
            assert table is not None
            put_in_order(
                Repository(self.warehouse, self.application_id), Lock.APPLICATION, held, ()
            )
            with uncommitted(self.path) as folder:
                files = [self._file(folder, index, p, value) for p in range(self.partitions)]
            commit(
                self.path,
                table,
                files,
                writer=held,
                replaces=[{"window": key, "topic": TOPIC}],
                provenance={},
            )
            found = contents_of(self.path, files)
            spans = []
            for span_id, content in found.items():
                number = span_id.partition.partition
                first = index * RECORDS_PER_SPAN
                plan = span(
                    first, first + RECORDS_PER_SPAN, index=index, topic=TOPIC, partition=number
                )
                spans.append(SpanResult(plan, content, ()))
            row = backup(*spans, index=index, topic=TOPIC)
            ledger = Ledger(self.warehouse, self.application_id)
            ledger.record([row], run_id=f"run-{index}", writer=held)

    def _file(self, folder: StorePath, index: int, partition: int, value: bytes) -> NewFile:
        first = index * RECORDS_PER_SPAN
        offsets = range(first, first + RECORDS_PER_SPAN)
        rows = pa.Table.from_pylist(
            [
                {
                    "window": window(index).key,
                    "topic": TOPIC,
                    "partition": partition,
                    "offset": offset,
                    "timestamp_ms": 1_000 + offset,
                    "timestamp_type": 0,
                    "headers": [],
                    "key": b"%d" % offset,
                    "value": value,
                }
                for offset in offsets
            ],
            schema=RECORDS,
        ).drop_columns(["window", "topic"])
        name = f"{index:04d}-{partition}.parquet"
        written = NewObject(folder / name)
        pq.write_table(rows, written, use_dictionary=False, compression="none")
        digest = written.finish()
        stats = {
            "numRecords": RECORDS_PER_SPAN,
            "minValues": {"partition": partition, "offset": first, "timestamp_ms": 1_000 + first},
            "maxValues": {
                "partition": partition,
                "offset": offsets[-1],
                "timestamp_ms": 1_000 + offsets[-1],
            },
            "nullCount": {"value": 0, "key": 0},
        }
        return NewFile(
            path=f"{folder.name}/{name}",
            size=written.size,
            digest=digest,
            stats=stats,
            payload_bytes=RECORDS_PER_SPAN * (len(value) + 3),
            values={"window": window(index).key, "topic": TOPIC},
            about={"partition": partition, "odd_timestamps": 0},
        )

    def take_point(self, index: int) -> None:
        """The point with which window `index` ends; its last record is saved with it."""
        end = (index + 1) * RECORDS_PER_SPAN
        saved = [
            RawRecord(end - 1, 1_000, 0, b"k", b"saved", ()),
        ]
        tails = [SavedTail(TopicPartitionId(TOPIC, p), LIFE, saved) for p in range(self.partitions)]
        point_id = f"point-{index:04d}"
        saved_records = Repository(self.warehouse, self.application_id).saved_records
        saved_records.append(point_id, tails)
        cuts = [
            replace(cut(p, end, topic=TOPIC), saved_from=end - 1) for p in range(self.partitions)
        ]
        taken = point(
            window(index).end_ms - 1, *cuts, point_id=point_id, application_id=self.application_id
        )
        Repository(self.warehouse, self.application_id).points.append(
            replace(taken, saved_version=saved_records.version())
        )

    def tidy(self) -> None:
        """As after a backup."""
        tidy_records(self.path)

    def grow(self, windows: Sequence[int]) -> None:
        """Take the point of each window and back it up."""
        for index in windows:
            self.take_point(index)
            self.back_up(index)


def stocked(root: StorePath) -> Stock:
    """A warehouse with three windows; on a disk it is made once in a process, then copied."""
    stock = Stock(root)
    if isinstance(root, Path):
        shutil.copytree(_three_windows().name, root)
    else:
        stock.grow(range(3))
    return stock


@functools.cache
def _three_windows() -> "tempfile.TemporaryDirectory[str]":
    folder = tempfile.TemporaryDirectory(prefix="kstreams-stock-")
    Stock(Path(folder.name)).grow(range(3))
    return folder


def seen(warehouse: Warehouse, app: StreamsApplication) -> str:
    """All that restores see of an application: points with what each would give, files, rows."""
    points = Repository(warehouse, app.application_id).points.newest(1000)
    contents = Repository.of(warehouse, app.application_id).reading(app)
    told = []
    for one, status in zip(points, contents.statuses(points), strict=True):
        saved = Repository(warehouse, app.application_id).saved_records.of_point(one)
        told.append([one.id, status.restorability.value, status.reason, saved.num_rows])
    ledger = Ledger(warehouse, app.application_id)
    files = ledger.expected_files(superseded=True)
    problems = {found.place: found.problem for found in inspect(files, By.SIZE)}
    rows = [
        {name: getattr(file, name) for name in ("place", "digest", "window", "topic", "start")}
        | {"problem": problems.get(file.place)}
        for file in files
    ]
    damaged = [str(found) for found in ledger.damaged()]
    return json.dumps([told, rows, damaged], default=str)
