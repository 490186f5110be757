"""Reads spans of Kafka partitions and writes their files: tasks for Spark, or for this process.

A task fetches raw batches, turns the committed ones into columns and writes them with pyarrow. So
other contents of the log (markers, aborted records, holes) are accounted for during the read.
Nothing goes through a JVM.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kstreams_assets.errors import (
    ClusterUnavailableError,
    CorruptBatchError,
    KafkaError,
    KafkaRequestError,
    OffsetOutOfRangeError,
    RawReadTimeoutError,
    StoredDataError,
)
from kstreams_assets.kafka.connection import CarriedConnection
from kstreams_assets.kafka.raw_batch import RangeTally, Tallies
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.record_columns import columns_of
from kstreams_assets.kafka.throttle import Throttle
from kstreams_assets.model.data_files import By, ExpectedFile
from kstreams_assets.model.spans import SpanPlan
from kstreams_assets.offsets import RangeSet, TopicPartitionId
from kstreams_assets.repository.inspection import inspect
from kstreams_assets.store import StorePath, store_at
from spark_resources.data_files import FILE, NewFolder, SpanEdges, SpanFiles, kept_file
from spark_resources.work import ReadRange

_SHORT: Final = 20_000
_TASK_STRETCHES: Final = 25
_THREADS: Final = 4
_BATCH_RECORDS: Final = 8_192
_CHOSEN_AT_ONCE: Final = 500_000
"""At most this many keys are collected before they are merged with earlier ones."""
_MOST_KEYS: Final = 2_000_000
"""Keys of a partition whose last records are held in memory: about 200 MB. With more keys, all
records are read several times."""
_DIGESTS: Final = 2**64
_LARGE_FILE: Final = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a task: a row of `data_files.WRITTEN` for each file.

    Spans without a record have none. `tallies` account for the offsets that were read, by window,
    topic and partition. `unread` says why spans could not be read to their ends: they have no file.
    """

    rows: list[dict[str, Any]]
    tallies: dict[tuple[str, str, int], RangeTally] = field(default_factory=dict)
    unread: dict[tuple[str, str, int], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanTask:
    """Offset ranges of partitions, and the spans that they consist of."""

    stretches: tuple[ReadRange, ...]
    spans: Mapping[tuple[str, int], SpanEdges]
    folder: NewFolder
    connection: CarriedConnection
    idle_timeout_s: float
    throttle: Throttle | None = None

    def run(self, check: Callable[[], None] = lambda: None) -> Written:
        """Read and write; `check` is called regularly, and may raise.

        Unreadable records affect only their own spans (`Written.unread`).

        Raises:
            KafkaError: Its subclasses say why nothing more can be read.
        """
        files = SpanFiles(self.folder, self.spans)
        done = Written([], {}, {})
        with RawLogReader(self.connection.opened(), throttle=self.throttle) as reader:
            written = files.write(self._records(reader, check, done.tallies, done.unread))
            rows = [row for batch in written for row in batch.to_pylist()]
        return replace(done, rows=[row for row in rows if _span_of(row) not in done.unread])

    def _records(
        self,
        reader: RawLogReader,
        check: Callable[[], None],
        tallies: dict[tuple[str, str, int], RangeTally],
        unread: dict[tuple[str, str, int], str],
    ) -> Iterator[tuple[TopicPartitionId, pa.RecordBatch]]:
        for stretch in self.stretches:
            topic, number = stretch.partition.topic, stretch.partition.partition
            edges = self.spans[topic, number]
            of_it = [
                RangeTally(start, end)
                for start, end in zip(edges.starts, edges.ends, strict=True)
                if stretch.start <= start < stretch.end
            ]
            read = committed(reader, stretch, Tallies(of_it), idle_timeout_s=self.idle_timeout_s)
            whole_below, reason = stretch.end, ""
            try:
                for records in read:
                    check()
                    yield stretch.partition, _with_partition(number, records)
            except (CorruptBatchError, KafkaRequestError, RawReadTimeoutError) as error:
                whole_below, reason = _read_below(error, of_it), error.problem
            for tally in of_it:
                span = edges.windows[edges.starts.index(tally.start)], topic, number
                if tally.end <= whole_below:
                    tallies[span] = tally
                else:
                    unread[span] = reason


def _read_below(error: KafkaError, tallies: Sequence[RangeTally]) -> int:
    """Return the end of the complete offsets before the unreadable ones."""
    reached = next((t.position for t in tallies if t.position < t.end), tallies[-1].end)
    return min(reached, error.offset) if isinstance(error, CorruptBatchError) else reached


def _span_of(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return window, topic and partition of a row of `data_files.WRITTEN`."""
    values = json.loads(row["values"])
    return values["window"], values["topic"], json.loads(row["about"])["partition"]


def committed(
    reader: RawLogReader, stretch: ReadRange, seen: Tallies, *, idle_timeout_s: float
) -> Iterator[pa.RecordBatch]:
    """Yield the committed records of a range, with the columns of `record_columns.COLUMNS`.

    `seen` accounts for all of its offsets.

    Raises:
        OffsetOutOfRangeError: The log does not have its start, or is undecided below its end.
        ClusterUnavailableError: No answer arrived for too long.
        RawReadTimeoutError: Answers were empty for too long.
        KafkaError: Others say why it cannot be read.
    """
    partition, start, end = stretch.partition, stretch.start, stretch.end
    last = -1
    stream = reader.stream(partition, start, end, deadline_s=idle_timeout_s, by_progress=True)
    try:
        for batches in stream:
            data: list[memoryview] = []
            for batch in batches:
                header = batch.header
                seen.add(header)
                if header.aborted is None:
                    raise OffsetOutOfRangeError(
                        partition=str(partition),
                        offset=end - 1,
                        log_start=start,
                        log_end=header.base_offset,
                    )
                if not (header.is_control or header.aborted):
                    data.append(batch.data)
            for records in columns_of(data, partition=str(partition)):
                inside = _between(records, start, end)
                if inside.num_rows:
                    last = _require_rising(partition, inside, last)
                    yield inside
    except RawReadTimeoutError as error:
        if error.answered:
            raise
        raise ClusterUnavailableError(
            bootstrap_servers=reader.bootstrap_servers,
            operation=f"fetch {partition} from offset {error.reached}",
            timeout_s=error.timeout_s,
            reason=error.reason,
        ) from None
    seen.finish()


def _require_rising(partition: TopicPartitionId, records: pa.RecordBatch, last: int) -> int:
    """Return the last offset. Raise CorruptBatchError if offsets do not rise."""
    offsets = records.column("offset").to_numpy()
    if offsets[0] <= last or (np.diff(offsets) <= 0).any():
        offset = int(offsets[0])
        raise CorruptBatchError(
            partition=str(partition), offset=offset, reason="offsets do not rise"
        )
    return int(offsets[-1])


def _between(records: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    offsets = records.column("offset").to_numpy()
    first, last = np.searchsorted(offsets, (start, end))
    return records.slice(int(first), int(last - first))


@dataclass(frozen=True, slots=True)
class LastOfEachKey:
    """The records of a changelog that define its state, like Kafka's compaction.

    All records with `undecided` offsets stay, and do not replace others: some recovery points have
    them, others do not. Records below `floor` are removed. `without_deletions` removes deletions at
    the start of the log, where they have nothing to delete.
    """

    undecided: RangeSet
    floor: int
    without_deletions: bool


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Files to merge: those of a partition's increments or windows, in order of offsets.

    Large ones are kept: files of a part of a large window are not written again. With `keeps`
    only some of the records are written.
    """

    partition: TopicPartitionId
    span: SpanEdges
    files: tuple[ExpectedFile, ...]
    folder: NewFolder
    keeps: LastOfEachKey | None = None

    def run(self, check: Callable[[], None] = lambda: None) -> Written:
        """As `SpanTask.run`; nothing is accounted for.

        Raises:
            StoredDataError: A file does not match the record of its backup.
        """
        inspect(self.files, By.DIGEST).require_intact()
        spans = {(self.partition.topic, self.partition.partition): self.span}
        if self.keeps is not None:
            return self._kept(self.keeps, SpanFiles(self.folder, spans), check)
        rows: list[dict[str, Any]] = []
        values = {"window": self.span.windows[0], "topic": self.partition.topic}
        for is_large, group in groupby(self.files, lambda file: file.size >= _LARGE_FILE):
            files = [*group]
            written = (
                (kept_file(self.folder, file, values, self.partition.partition) for file in files)
                if is_large
                else SpanFiles(self.folder, spans).write(self._records(files, check))
            )
            rows += [row for batch in written for row in batch.to_pylist()]
        return Written(rows)

    def _records(
        self, files: Iterable[ExpectedFile], check: Callable[[], None]
    ) -> Iterator[tuple[TopicPartitionId, pa.RecordBatch]]:
        for file in files:
            for batch in _batches(file.location, FILE.names, check):
                yield self.partition, batch.cast(FILE)

    def _kept(self, keeps: LastOfEachKey, files: SpanFiles, check: Callable[[], None]) -> Written:
        """Write the kept records, then check that exactly those were written."""
        choice = _Choice(keeps)
        while not choice.is_complete:
            for file in self.files:
                for batch in _batches(file.location, ["offset", "key"], check):
                    choice.see(batch)
            choice.decide()
        expected, there = blake2b(), blake2b()

        def kept() -> Iterator[tuple[TopicPartitionId, pa.RecordBatch]]:
            for partition, batch in self._records(self.files, check):
                stays = batch.filter(pa.array(choice.stays(batch)))
                if stays.num_rows:
                    expected.update(stays["offset"].to_numpy())
                    yield partition, stays

        rows = [row for batch in files.write(kept()) for row in batch.to_pylist()]
        for row in rows:
            for batch in _batches(self.folder.path / row["name"], ["offset"], check):
                there.update(batch["offset"].to_numpy())
        if there.digest() != expected.digest():
            raise StoredDataError(
                subject=f"The merged file of {self.partition}",
                problem="it does not have the records to keep",
                remedy="Nothing was changed. Check the disk and its log, then run it again.",
            )
        return Written(rows)


def _batches(
    path: StorePath, columns: list[str], check: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    with (
        store_at(path).fetched() as local,
        pq.ParquetFile(local, page_checksum_verification=True) as file,
    ):
        for batch in file.iter_batches(_BATCH_RECORDS, columns=columns):
            check()
            yield batch


class _Choice:
    """Selects the records of a changelog to keep, see `LastOfEachKey`.

    Keys are identified by 128 bits of BLAKE2, whatever their length. At most `_MOST_KEYS` last
    records are held at a time. With more keys, those with the lowest digests are first, and all
    records are read again for the others, until `is_complete`. The result is one bit for each
    record.
    """

    def __init__(self, keeps: LastOfEachKey) -> None:
        self._keeps = keeps
        self._salt = secrets.token_bytes(16)
        self.is_complete = False
        self._low, self._high = 0, _DIGESTS
        """The range of digests (first 64 bits) of the keys that this pass decides; the end is
        exclusive."""
        self._row = 0
        """How many records were seen, or requested in `stays`: each is identified by its number."""
        self._last = self._none = _Seen.none()
        self._waiting: list[_Seen] = []
        self._undecided: list[pa.Array] = []
        self._undecided_keys = pa.array([], pa.binary())
        self._stays: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def see(self, batch: pa.RecordBatch) -> None:
        """Add the keys and offsets of records, in the order of their offsets."""
        rows = np.arange(self._row, self._row + batch.num_rows)
        self._row += batch.num_rows
        keys = batch["key"]
        undecided = self._keeps.undecided.mask(batch["offset"].to_numpy())
        if undecided.any() and not self._low:
            self._undecided.append(keys.filter(pa.array(undecided)))
        counts = ~undecided & keys.is_valid().to_numpy(zero_copy_only=False)
        seen = _Seen.of(keys.filter(pa.array(counts)), rows[counts], self._salt)
        self._waiting.append(seen.inside(self._low, self._high))
        if sum(len(one.rows) for one in self._waiting) >= _CHOSEN_AT_ONCE:
            self._gather()

    def _gather(self) -> None:
        self._last = _Seen.last_of_each([self._last, *self._waiting])
        self._waiting = []
        while len(self._last.rows) > _MOST_KEYS:
            self._high = self._low + (self._high - self._low) // 2
            self._last = self._last.inside(self._low, self._high)

    def decide(self) -> None:
        """Decide after all were seen; start another pass unless it is complete."""
        self._gather()
        if not self._low:
            self._stays = np.zeros(self._row // 8 + 1, np.uint8)
            if self._undecided:
                self._undecided_keys = pa.chunked_array(self._undecided).combine_chunks().unique()
        rows = self._last.rows
        np.bitwise_or.at(self._stays, rows >> 3, (1 << (rows & 7)).astype(np.uint8))
        self._last, self._row = self._none, 0
        width = self._high - self._low
        if 2 * len(rows) <= _MOST_KEYS:
            width *= 2
        self.is_complete = self._high == _DIGESTS
        self._low, self._high = self._high, min(self._high + width, _DIGESTS)

    def stays(self, batch: pa.RecordBatch) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Return which records of a batch of `FILE` stay; called in the order of `see`."""
        offsets = batch["offset"].to_numpy()
        undecided = self._keeps.undecided.mask(offsets)
        rows = np.arange(self._row, self._row + batch.num_rows)
        self._row += batch.num_rows
        is_last = (self._stays[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).astype(np.bool_)
        no_key = batch["key"].is_null().to_numpy(zero_copy_only=False)
        if self._keeps.without_deletions:
            deletes = batch["value"].is_null().to_numpy(zero_copy_only=False)
            # After it some points have a record of the key that it deletes.
            matters = pc.call_function(
                "is_in", [batch["key"]], pc.SetLookupOptions(self._undecided_keys)
            )
            is_last &= ~deletes | matters.to_numpy(zero_copy_only=False)
        return (undecided | is_last | no_key) & (offsets >= self._keeps.floor)


class _Seen(NamedTuple):
    """Digests of keys in two halves, and the number of a record of each."""

    first: npt.NDArray[np.uint64]
    second: npt.NDArray[np.uint64]
    rows: npt.NDArray[np.int64]

    @classmethod
    def none(cls) -> "_Seen":
        return cls(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))

    @classmethod
    def of(cls, keys: pa.Array, rows: npt.NDArray[np.int64], salt: bytes) -> "_Seen":
        digests = b"".join(
            [blake2b(key, digest_size=16, key=salt).digest() for key in keys.to_pylist()]
        )
        halves = np.frombuffer(digests, np.uint64).reshape(-1, 2)
        return cls(halves[:, 0].copy(), halves[:, 1].copy(), rows)

    def inside(self, low: int, high: int) -> "_Seen":
        """Return those whose first half is in `[low, high)`."""
        if (low, high) == (0, _DIGESTS):
            return self
        chosen = (self.first >= np.uint64(low)) & (self.first <= np.uint64(high - 1))
        return _Seen(self.first[chosen], self.second[chosen], self.rows[chosen])

    @classmethod
    def last_of_each(cls, parts: "Sequence[_Seen]") -> "_Seen":
        """Return the last record of each key; the numbers of records rise from part to part."""
        first = np.concatenate([part.first for part in parts])
        second = np.concatenate([part.second for part in parts])
        rows = np.concatenate([part.rows for part in parts])
        order = np.lexsort((second, first))  # stable: records of a key stay in their order
        is_last = np.ones(len(order), np.bool_)
        for_one, for_other = first[order], second[order]
        is_last[:-1] = (for_one[1:] != for_one[:-1]) | (for_other[1:] != for_other[:-1])
        del for_one, for_other
        chosen = order[is_last]
        return cls(first[chosen], second[chosen], rows[chosen])


def span_tasks(
    stretches: Sequence[ReadRange],
    edges: Mapping[tuple[str, int], SpanEdges],
    *,
    folder: NewFolder,
    connection: CarriedConnection,
    idle_timeout_s: float,
    throttle: Throttle | None = None,
) -> list[SpanTask]:
    """Return tasks that read these ranges, split into spans at `edges`: the largest first.

    Several small ranges make one task.
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
            connection=connection,
            idle_timeout_s=idle_timeout_s,
            throttle=throttle,
        )
        for bundle in bundles
    ]


def edges_of(spans: Sequence[SpanPlan]) -> dict[tuple[str, int], SpanEdges]:
    """Return the starts and ends of spans that are to be read, by topic and partition."""
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
    tasks: Sequence[SpanTask | MergeTask],
    check: Callable[[], None] = lambda: None,
    *,
    at_a_time: int | None = None,
) -> list[Written]:
    """Run tasks in this process, some at a time (4 by default); results in order.

    Raises:
        KafkaError: See `SpanTask.run`; tasks that have not started are skipped. What `check`
            raises, which is called regularly.
    """
    with ThreadPoolExecutor(at_a_time or _THREADS, thread_name_prefix="read") as pool:
        running = [pool.submit(task.run, check) for task in tasks]
        try:
            return [one.result() for one in running]
        finally:
            for one in running:
                one.cancel()


def run_on_spark(task: SpanTask) -> Written:
    """Run one Spark task; it ends early if another one of its job has failed."""
    from spark_resources.partition_tasks import check_stop

    return task.run(check_stop)


def _with_partition(partition: int, records: pa.RecordBatch) -> pa.RecordBatch:
    """Return records with the columns of `FILE`."""
    numbers = pa.array(np.full(records.num_rows, partition, np.int32))
    return pa.RecordBatch.from_arrays([numbers, *records.columns], schema=FILE)
