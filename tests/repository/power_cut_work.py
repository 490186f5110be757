"""Work in a warehouse that is killed at any moment: points, backups, copies, in this process.

    python -m tests.repository.power_cut_work FOLDER REPORT FIRST END [--no-sync]

The warehouse and its copy lie in the folder. What is done is told in a line of the report.
"""

import os
import sys
from pathlib import Path

import pyarrow as pa

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.files import NewFile
from kstreams_assets.model.tables import Lock
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.store import StorePath
from kstreams_assets.upkeep.copy import CopyJob
from spark_resources.data_files import FILE, NewFolder, SpanEdges, SpanFiles
from tests.backup.samples import window
from tests.upkeep.stock import RECORDS_PER_SPAN, TOPIC, Stock


class Work(Stock):
    """Its files are written by the tasks of real backups."""

    def _file(self, folder: StorePath, index: int, partition: int, value: bytes) -> NewFile:
        first = index * RECORDS_PER_SPAN
        end = first + RECORDS_PER_SPAN
        rows = [
            {
                "partition": partition,
                "offset": offset,
                "timestamp_ms": 1_000 + offset,
                "timestamp_type": 0,
                "headers": [],
                "key": b"%d" % offset,
                "value": value,
            }
            for offset in range(first, end)
        ]
        edges = SpanEdges((window(index).key,), (first,), (end,))
        spans = SpanFiles(NewFolder(folder, "zstd", 1), {(TOPIC, partition): edges})
        batch = pa.RecordBatch.from_pylist(rows, schema=FILE)
        (row,) = spans.write([(TopicPartitionId(TOPIC, partition), batch)])
        return NewFile.from_task_row(folder, row.to_pylist()[0])


def main(folder: Path, report: Path, first: int, end: int) -> None:
    """Points and backups of the windows that are not done yet, and a copy after each."""

    def tell(line: str) -> None:
        with report.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    Warehouse(folder / "warehouse").make()
    work = Work(folder / "warehouse")
    ledger = Ledger(work.warehouse, work.application_id)
    repo = Repository(work.warehouse, work.application_id)
    with repo.writing(Lock.APPLICATION, purpose="after a loss of power", wait_s=30):
        done = ledger.done([TOPIC])
    for index in range(first, end):
        if window(index) in done:
            continue
        work.take_point(index)
        tell(f"point {index}")
        work.back_up(index)
        tell(f"window {index}")
        if index % 2:
            CopyJob(Warehouse(folder / "warehouse"), folder / "copy").run()
            tell(f"copy {index}")
    work.tidy()
    tell("tidied")


if __name__ == "__main__":
    if "--no-sync" in sys.argv:
        os.fsync = os.fdatasync = lambda _: None
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
