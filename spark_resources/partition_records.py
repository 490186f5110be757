"""The records of one partition for Spark tasks of a restore: work, reading and results."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.raw_batch import header_name
from kstreams_assets.kafka.record_columns import HEADERS, header_name_column
from kstreams_assets.model.data_files import SpanFile, renumbered
from kstreams_assets.model.restores import OriginalHeaders
from kstreams_assets.offsets import OffsetRange, OffsetRuns, RangeSet, TopicPartitionId
from kstreams_assets.store import FileIdentity, StorePath, file_digest, store_at


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of the target from the backup, in the target's offsets.

    `offset` is None for a whole partition; the partition is -1 for a whole topic.
    """

    target: TopicPartitionId
    offset: int | None
    what: str

    def __str__(self) -> str:
        where = self.target.topic if self.target.partition < 0 else str(self.target)
        where += "" if self.offset is None else f" offset {self.offset}"
        return f"{where}: {self.what}"


@dataclass(frozen=True, slots=True)
class PartitionVerified:
    """One partition after reading it back; `compared` records were compared one by one.

    `differences` are the first few, `differing` counts all that were searched for.
    `replaced_timestamps` of the compared records have a timestamp of 0 or below in the backup,
    which was allowed to become the time of the restore.
    """

    target: TopicPartitionId
    records: int
    compared: int
    differing: int
    differences: tuple[Difference, ...]
    replaced_timestamps: int = 0


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """The records of one partition: their files, their offsets, and their target.

    `files` are span files in order of offsets; `saved_file` is a Parquet file with further records
    in order of offsets (those saved with recovery points), which may repeat offsets of the span
    files. Restored are the records whose source offset is in one of `ranges` (in order, disjoint),
    each once, in order of offsets: `records` of them. The first gets the target offset
    `base_offset` if nothing was restored before. `noted` are the files, by path, as their backups
    recorded them: a file that differs is not used. `sound` are those that were just found to match,
    with their identity. `runs` are those of files of an older log (see `SpanFile.runs`).
    """

    source: TopicPartitionId
    target: TopicPartitionId
    files: tuple[StorePath, ...]
    saved_file: StorePath | None
    ranges: Sequence[OffsetRange]
    base_offset: int
    records: int
    original_headers: OriginalHeaders = field(default_factory=OriginalHeaders)
    noted: Mapping[StorePath, SpanFile] = field(default_factory=dict)
    sound: Mapping[StorePath, FileIdentity] = field(default_factory=dict)
    runs: Mapping[StorePath, OffsetRuns] = field(default_factory=dict)


Offsets = npt.NDArray[np.int64]

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("headers", HEADERS),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""A record to restore: source offset, epoch milliseconds as stored, headers in order or null."""

_ALL = (OffsetRange(0, 2**63 - 1),)
_PARTITION = "partition"
_BATCH_RECORDS = 8_192
_BATCH_RECORDS_UNKNOWN = 256
_BATCH_BYTES = 8 * 1024 * 1024
_OFFSETS_AT_ONCE = 262_144


def work_records(work: PartitionWork, *, skip: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield the records to restore without the first `skip`, each once, in order of offsets.

    Batches of `SCHEMA`, none empty, of about 8 MiB; original headers are added after a record's
    own. Reads only the parts of the files with these records. Their number is checked at the end.

    Raises:
        KStreamsAssetsError: A file is missing or damaged, does not match its backup, or has
            another partition; offsets do not rise, or the number of records differs from the
            plan.
    """
    ranges = _from_record(work, skip) if skip else work.ranges
    count = skip
    for batch in _stream(work, ranges, SCHEMA.names, _BATCH_RECORDS):
        count += batch.num_rows
        yield _with_original_headers(batch, work.source.partition, work.original_headers)
    _require_count(work, count)


def not_restorable(partition: TopicPartitionId, reason: str) -> KStreamsAssetsError:
    """Return the error for a backup that does not have the planned records."""
    return KStreamsAssetsError(
        f"{partition} cannot be restored: {reason}.",
        remedy="Restore the file from a copy of the warehouse, or back up the window again"
        " if Kafka still has it, and run the restore again. Otherwise restore an earlier recovery"
        " point.",
    )


def work_offsets(work: PartitionWork, *, first: int | None = None) -> Iterator[Offsets]:
    """Yield the source offsets of the records to restore, of the `first` or all; never empty.

    Raises:
        KStreamsAssetsError: As `work_records`.
    """
    count = 0
    for batch in _stream(work, work.ranges, ["offset"], _OFFSETS_AT_ONCE):
        offsets = _offsets(batch)
        if first is not None and count + len(offsets) >= first:
            if first > count:
                yield offsets[: first - count]
            return
        count += len(offsets)
        yield offsets
    _require_count(work, count)


def header_lists(column: pa.Array) -> list[list[tuple[str, bytes | None]] | None]:
    """Return names and values of headers, None without any; see `header_name` for the names."""
    counts = header_counts(column)
    if not counts.any():
        return [None] * len(column)
    flat = column.flatten()
    names = [header_name(name) for name in header_name_column(flat).to_pylist()]
    values = flat.field("value").to_numpy(zero_copy_only=False).tolist()
    pairs = list(zip(names, values, strict=True))
    ends = np.cumsum(counts).tolist()
    lists: list[list[tuple[str, bytes | None]] | None] = []
    start = 0
    for end in ends:
        lists.append(pairs[start:end] if end > start else None)
        start = end
    return lists


def _stream(
    work: PartitionWork, ranges: Sequence[OffsetRange], columns: Sequence[str], most: int
) -> Iterator[pa.RecordBatch]:
    """Yield records of both sources in the ranges, each once, in order of offsets."""
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    saved = () if work.saved_file is None else (work.saved_file,)
    spans, extra = (
        _ascending(work.source, _read(work, files, ranges, schema, most))
        for files in (work.files, saved)
    )
    return _merged(spans, extra)


def _read(
    work: PartitionWork,
    files: Iterable[StorePath],
    ranges: Sequence[OffsetRange],
    schema: pa.Schema,
    most: int,
) -> Iterator[pa.RecordBatch]:
    for path in files:
        try:
            with store_at(path).fetched() as local:
                _require_noted(work, path, local)
                runs = work.runs.get(path)
                near = ranges if runs is None else _ALL
                for read in _file_batches(local, near, schema, most):
                    _require_partition(work.source, path, read)
                    batch = renumbered(read, runs)
                    inside = _inside(batch, ranges)
                    if inside.num_rows:
                        yield _as_schema(inside, schema)
        except (OSError, pa.ArrowException) as error:
            reason = f"file {_place(path)} cannot be read ({str(error).splitlines()[0]})"
            raise not_restorable(work.source, reason) from error


def _require_noted(work: PartitionWork, path: StorePath, local: Path) -> None:
    """Check before a record is used: the file matches its backup, byte for byte.

    Backups of earlier releases recorded no digest: then the number of records must be right.
    """
    noted = work.noted.get(path)
    if noted is None:
        return
    known = work.sound.get(path)
    if known is not None and known == store_at(local).identity():
        return
    if noted.written is not None:
        is_same = file_digest(local) == noted.written.digest
        wrong = "" if is_same else "does not match the SHA-256 that its backup recorded"
    else:
        found = pq.read_metadata(local).num_rows
        wrong = f"has {found:,} records, but its backup wrote {noted.records:,}"
        wrong = "" if found == noted.records else wrong
    if wrong:
        reason = (
            f"file {_place(path)} (offsets {noted.first_offset} to {noted.last_offset}) {wrong}"
        )
        raise not_restorable(work.source, reason)


def _require_partition(source: TopicPartitionId, path: StorePath, batch: pa.RecordBatch) -> None:
    """Check the partition; staged files do not have this column: they have one partition."""
    if _PARTITION not in batch.schema.names:
        return
    found = batch.column(_PARTITION).to_numpy()
    if (found != source.partition).any():
        reason = f"file {_place(path)} holds records of partition {found[0]}"
        raise not_restorable(source, reason)


def _place(path: StorePath) -> str:
    """Return window, topic and name of a file."""
    return "/".join(path.parts[-3:])


def _file_batches(
    path: Path, ranges: Sequence[OffsetRange], schema: pa.Schema, most: int
) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, memory_map=True, page_checksum_verification=True) as file:
        columns = [*schema.names]
        if _PARTITION in file.schema_arrow.names:
            columns.append(_PARTITION)
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            if group.num_rows and _may_hold(group, ranges):
                size = most if len(schema) == 1 else _batch_records(group)
                yield from file.iter_batches(
                    batch_size=size, row_groups=[number], columns=columns, use_threads=False
                )


def _batch_records(group: pq.RowGroupMetaData) -> int:
    """Return how many records of a row group make a batch of bounded size."""
    chunks = [group.column(index) for index in range(group.num_columns)]
    if any(c.has_dictionary_page and c.path_in_schema in ("key", "value") for c in chunks):
        return _BATCH_RECORDS_UNKNOWN  # the same large value may occur many times
    mean = 1 + group.total_byte_size // group.num_rows
    return max(1, min(_BATCH_RECORDS, _BATCH_BYTES // mean))


def _may_hold(group: pq.RowGroupMetaData, ranges: Sequence[OffsetRange]) -> bool:
    """Whether some offset of a row group may be in the ranges, by its statistics."""
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == "offset":
            statistics = column.statistics
            if statistics is None or not statistics.has_min_max:
                return True
            low, high = statistics.min, statistics.max
            return any(r.start <= high and low < r.end for r in ranges)
    return True


def _inside(batch: pa.RecordBatch, ranges: Sequence[OffsetRange]) -> pa.RecordBatch:
    offsets = _offsets(batch)
    if not len(offsets):
        return batch
    first, last = int(offsets[0]), int(offsets[-1])
    wanted = RangeSet(ranges)
    if wanted.covers(first, last + 1):
        return batch
    return batch.filter(pa.array(wanted.mask(offsets)))


def _as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the same columns in one order, with one name of the list's elements."""
    arrays = [batch.column(name).cast(schema.field(name).type) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _ascending(
    source: TopicPartitionId, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    last = -1
    for batch in batches:
        offsets = _offsets(batch)
        rising = np.diff(offsets, prepend=last) > 0
        if not rising.all():
            wrong = int(offsets[int(rising.argmin())])
            reason = f"offset {wrong} of its backup does not follow the one before it"
            raise not_restorable(source, reason)
        last = int(offsets[-1])
        yield batch


def _merged(
    left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Merge two streams; of an offset in both, take the left one's record."""
    a, b = next(left, None), next(right, None)
    while a is not None and b is not None:
        of_a, of_b = _offsets(a), _offsets(b)
        if of_a[-1] < of_b[0]:
            yield a
            a = next(left, None)
            continue
        limit = min(of_a[-1], of_b[-1])
        taken_a = int(np.searchsorted(of_a, limit, side="right"))
        taken_b = int(np.searchsorted(of_b, limit, side="right"))
        only_b = b[:taken_b].filter(pa.array(~np.isin(of_b[:taken_b], of_a[:taken_a])))
        both = pa.concat_batches([a[:taken_a], only_b])
        yield both.take(pa.array(np.argsort(_offsets(both), kind="stable")))
        a = a[taken_a:] if taken_a < len(of_a) else next(left, None)
        b = b[taken_b:] if taken_b < len(of_b) else next(right, None)
    for batch in (a, b):
        if batch is not None:
            yield batch
    yield from left
    yield from right


def _from_record(work: PartitionWork, skip: int) -> tuple[OffsetRange, ...]:
    """Return the ranges without the first `skip` records."""
    last = -1
    for offsets in work_offsets(work, first=skip):
        last = int(offsets[-1])
    return tuple(
        OffsetRange(max(r.start, last + 1), r.end) for r in work.ranges if last + 1 < r.end
    )


def _with_original_headers(
    batch: pa.RecordBatch, partition: int, wanted: OriginalHeaders
) -> pa.RecordBatch:
    added: list[tuple[str, pa.Array]] = []
    if wanted.offset:
        added.append(("x-original-offset", _as_text(batch.column("offset"))))
    if wanted.timestamp:
        added.append(("x-original-timestamp", _as_text(batch.column("timestamp_ms"))))
    if wanted.partition:
        text = pa.scalar(str(partition).encode(), pa.binary())
        added.append(("x-source-partition", pa.repeat(text, batch.num_rows)))
    if not added:
        return batch
    index = batch.schema.get_field_index("headers")
    headers = _appended(batch.column(index), added)
    return batch.set_column(index, SCHEMA.field("headers"), headers)


def _as_text(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.string()).cast(pa.binary())


def _appended(headers: pa.Array, added: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    """Return each record's headers, then the added ones."""
    counts = header_counts(headers)
    own = headers.flatten()
    names = [own.field("key"), *(pa.repeat(pa.scalar(n), len(headers)) for n, _ in added)]
    values = [own.field("value"), *(values for _, values in added)]
    as_bytes = [own.field("key_bytes"), *(pa.nulls(len(headers), pa.binary()) for _ in added)]
    ends = np.cumsum(counts + len(added))
    order = np.empty(int(ends[-1]), np.int64)
    record = np.repeat(np.arange(len(counts)), counts)
    order[np.arange(len(own)) + record * len(added)] = np.arange(len(own))
    for number in range(len(added)):
        first = len(own) + number * len(counts)
        order[ends - len(added) + number] = np.arange(first, first + len(counts))
    places = pa.array(order)
    pairs = pa.StructArray.from_arrays(
        [pa.concat_arrays(parts).take(places) for parts in (names, values, as_bytes)],
        fields=list(HEADERS.value_type),
    )
    starts = pa.array(np.concatenate(([0], ends)).astype(np.int32))
    return pa.ListArray.from_arrays(starts, pairs, type=HEADERS)


def header_counts(headers: pa.Array) -> Offsets:
    """Return how many headers each record has."""
    lengths = pc.list_value_length(headers)  # pyright: ignore[reportAttributeAccessIssue]
    return lengths.fill_null(0).to_numpy().astype(np.int64)


def _offsets(batch: pa.RecordBatch) -> Offsets:
    return batch.column("offset").to_numpy()


def _require_count(work: PartitionWork, count: int) -> None:
    if count != work.records:
        reason = f"its backup has {count:,} records, the plan {work.records:,}"
        raise not_restorable(work.source, reason)
