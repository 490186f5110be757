"""Reads spans of Kafka partitions and writes their files: tasks for Spark, or for this process.

Committed records only. A task reads with librdkafka and writes with pyarrow: nothing goes through a
JVM, which would take half as long again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.errors import StoredDataError
from kstreams_assets.kafka.clients import LibrdkafkaConfig
from kstreams_assets.layout import WrittenFile, first_changed
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.warehouse.spans import SpanPlan
from spark_resources.comparison import RecordColumns
from spark_resources.data_files import FILE, NewFolder, SpanEdges, SpanFiles
from spark_resources.kafka_reader import KafkaReader, no_cyclic_collection
from spark_resources.work import ReadRange

_SHORT: Final = 20_000
_TASK_STRETCHES: Final = 25
_AHEAD_KB: Final = 32_768
_AHEAD_OF_SHORT_KB: Final = 4_096
_THREADS: Final = 4
_FOLDED_RECORDS: Final = 8_192


@dataclass(frozen=True, slots=True)
class SpanTask:
    """Stretches of partitions, and the spans of which they consist; `config` holds secrets."""

    stretches: tuple[ReadRange, ...]
    spans: Mapping[tuple[str, int], SpanEdges]
    folder: NewFolder
    config: LibrdkafkaConfig = field(repr=False)
    idle_timeout_s: float

    def run(self, check: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """Read and write; `check` is called now and then, and may raise.

        Returns:
            A row of `data_files.WRITTEN` for each file; spans without a record have none.

        Raises:
            KafkaError: Its subclasses say why a stretch cannot be read to its end.
        """
        longest = max(stretch.end - stretch.start for stretch in self.stretches)
        reader = KafkaReader(
            self.config,
            idle_timeout_s=self.idle_timeout_s,
            # What is fetched behind a short stretch is fetched for nothing.
            read_ahead_kb=_AHEAD_KB if longest > _SHORT else _AHEAD_OF_SHORT_KB,
        )
        files = SpanFiles(self.folder, self.spans)
        with no_cyclic_collection(), reader:
            written = files.write(self._records(reader, check))
            return [row for batch in written for row in batch.to_pylist()]

    def _records(
        self, reader: KafkaReader, check: Callable[[], None]
    ) -> Iterator[tuple[TopicPartitionId, pa.RecordBatch]]:
        for stretch in self.stretches:
            read = reader.read(stretch.partition, stretch.start, stretch.end, to_the_end=True)
            for records in read:
                check()
                if records.offsets:
                    yield stretch.partition, _batch(stretch.partition.partition, records)


@dataclass(frozen=True, slots=True)
class FoldTask:
    """Files that become one: those of one partition's increments, in order of offsets."""

    partition: TopicPartitionId
    span: SpanEdges
    files: tuple[tuple[Path, WrittenFile], ...]
    folder: NewFolder

    def run(self, check: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """As `SpanTask.run`.

        Raises:
            StoredDataError: A file is not as its backup noted it.
        """
        changed = first_changed(self.files)
        if changed is not None:
            raise StoredDataError(
                subject=f"The backup of {self.partition}",
                problem=f"file {changed} is not the one that was written",
                remedy="Restore it from a copy of the warehouse.",
            )
        spans = {(self.partition.topic, self.partition.partition): self.span}
        written = SpanFiles(self.folder, spans).write(self._records(check))
        return [row for batch in written for row in batch.to_pylist()]

    def _records(
        self, check: Callable[[], None]
    ) -> Iterator[tuple[TopicPartitionId, pa.RecordBatch]]:
        for path, _ in self.files:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(_FOLDED_RECORDS, columns=FILE.names):
                    check()
                    yield self.partition, batch.cast(FILE)


def span_tasks(
    stretches: Sequence[ReadRange],
    edges: Mapping[tuple[str, int], SpanEdges],
    *,
    folder: NewFolder,
    config: LibrdkafkaConfig,
    idle_timeout_s: float,
) -> list[SpanTask]:
    """Tasks that read these stretches, cut into spans at `edges`: the largest first.

    Several small stretches make one task. `config` is that of the connection (see
    `librdkafka_config`).
    """
    bundles: list[list[ReadRange]] = []
    room = 0
    for stretch in sorted(stretches, key=lambda one: one.start - one.end):
        size = stretch.end - stretch.start
        if size > room or len(bundles[-1]) == _TASK_STRETCHES:
            bundles.append([])
            room = _SHORT
        bundles[-1].append(stretch)
        room -= size
    return [
        SpanTask(
            stretches=tuple(bundle),
            spans={
                key: edges[key]
                for key in ((one.partition.topic, one.partition.partition) for one in bundle)
            },
            folder=folder,
            config=config,
            idle_timeout_s=idle_timeout_s,
        )
        for bundle in bundles
    ]


def edges_of(spans: Sequence[SpanPlan]) -> dict[tuple[str, int], SpanEdges]:
    """Where the spans begin and end that have something to read, by topic and partition."""
    by_partition: dict[TopicPartitionId, list[SpanPlan]] = {}
    for span in sorted(spans, key=lambda span: span.read_start):
        if span.to_read:
            by_partition.setdefault(span.partition, []).append(span)
    return {
        (partition.topic, partition.partition): SpanEdges(
            tuple(span.window.key for span in of_it),
            tuple(span.read_start for span in of_it),
            tuple(span.end for span in of_it),
        )
        for partition, of_it in by_partition.items()
    }


def run_here(
    tasks: Sequence[SpanTask | FoldTask], check: Callable[[], None] = lambda: None
) -> list[list[dict[str, Any]]]:
    """Run tasks in this process, some at a time; results in order.

    Raises:
        KafkaError: See `SpanTask.run`; tasks that have not begun are left out. What `check` raises,
            which is called now and then.
    """
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="read") as pool:
        running = [pool.submit(task.run, check) for task in tasks]
        try:
            return [one.result() for one in running]
        finally:
            for one in running:
                one.cancel()


def run_on_spark(task: SpanTask) -> list[dict[str, Any]]:
    """One Spark task; it ends early when another one of its job has failed."""
    from spark_resources.partition_tasks import check_stop

    return task.run(check_stop)


def _batch(partition: int, records: RecordColumns) -> pa.RecordBatch:
    """Records with the columns of `FILE`."""
    count = len(records.offsets)
    kinds, times = zip(*records.times, strict=True)
    headers = records.headers
    columns = [
        pa.array(np.full(count, partition, np.int32)),
        pa.array(records.offsets, pa.int64()),
        pa.array(times, pa.int64()),
        # librdkafka numbers the types of timestamps from one, Kafka from zero.
        pa.array(np.array(kinds, np.int32) - 1),
        pa.array(headers, FILE.field("headers").type)
        if any(headers)
        else pa.nulls(count, FILE.field("headers").type),
        pa.array(records.keys, pa.binary()),
        pa.array(records.values, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FILE)
