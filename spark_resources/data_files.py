"""Writes rows as Parquet files that no table refers to yet."""

import itertools
import json
import uuid
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.app.store_columns import HEADERS_TYPE
from kstreams_assets.kafka.record_columns import COLUMNS
from kstreams_assets.model.data_files import ExpectedFile
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.store import NewObject, StorePath, disk_name, duplicate, store_at

RECORD_COLUMNS: Final = (
    "window STRING NOT NULL, topic STRING NOT NULL, partition INT NOT NULL, "
    "offset BIGINT NOT NULL, timestamp_ms BIGINT, timestamp_type INT, "
    f"headers {HEADERS_TYPE}, key BINARY, value BINARY"
)
"""A record of a backup; `timestamp_ms` is epoch milliseconds exactly as Kafka stored it."""

FILE: Final = pa.schema([pa.field("partition", pa.int32()), *COLUMNS])
"""The columns of a file; window and topic are in Delta's log."""

WRITTEN: Final = pa.schema(
    [
        ("name", pa.string()),
        ("size", pa.int64()),
        ("digest", pa.string()),
        ("stats", pa.string()),
        ("payload_bytes", pa.int64()),
        ("values", pa.string()),
        ("about", pa.string()),
    ]
)
"""A row for each file: its name in its folder, SHA-256, and as JSON Delta's statistics, the values
of the table's partition columns, and further facts to record."""
WRITTEN_DDL: Final = (
    "name STRING, size BIGINT, digest STRING, stats STRING, payload_bytes BIGINT, values STRING,"
    " about STRING"
)

_ROW_GROUP_BYTES: Final = 32 * 1024**2
_NUMBERS: Final = ("partition", "offset", "timestamp_ms", "timestamp_type")
_PAYLOAD: Final = ("key", "value", "headers")
_READ_NEVER: Final = ("key", "value")
_NEIGHBOURS_ALIKE: Final = ("offset", "timestamp_ms")
"""Columns that are written as differences."""
# A dictionary of payloads never pays, and the attempt costs a third of the write.
_WITHOUT_DICTIONARY: Final = frozenset(
    {
        *_NEIGHBOURS_ALIKE,
        "key",
        "value",
        "headers.list.element.value",
        "decoded_key",
        "decoded_value",
    }
)
_LEVELS: Final = frozenset({"zstd", "gzip"})
_CODECS: Final = {"lz4_raw": "lz4"}


@dataclass(frozen=True, slots=True)
class SpanEdges:
    """The starts and ends of one partition's spans, in order; `ends` are exclusive."""

    windows: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NewFolder:
    """The folder of new files, and their compression."""

    path: StorePath
    compression: str
    compression_level: int


@dataclass(frozen=True, slots=True)
class SpanFiles:
    """A task: splits records into spans, and writes a file of each.

    `spans` are those of each topic and partition.
    """

    folder: NewFolder
    spans: Mapping[tuple[str, int], SpanEdges]

    def write(
        self, batches: Iterable[tuple[TopicPartitionId, pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        """Turn batches of `FILE` (of one partition each, by offset) into rows of `WRITTEN`.

        Raises ValueError for a record that was not requested, or is out of order.
        """
        file: _SpanFile | None = None
        for partition, records in batches:
            for window, rows in self._by_window(partition.topic, partition.partition, records):
                span = (window, partition.topic, partition.partition)
                if file is None or file.span != span:
                    if file is not None:
                        yield file.close()
                    file = _SpanFile(self.folder, span)
                file.add(rows)
        if file is not None:
            yield file.close()

    def _by_window(
        self, topic: str, partition: int, records: pa.RecordBatch
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        edges = self.spans[topic, partition]
        offsets = records["offset"].to_numpy()
        numbers = np.searchsorted(np.array(edges.ends), offsets, side="right")
        for start, end in _runs(numbers):
            number = int(numbers[start])
            if number == len(edges.ends) or offsets[start] < edges.starts[number]:
                raise ValueError(
                    f"offset {offsets[start]} of {topic}-{partition} was not requested"
                )
            yield edges.windows[number], records.slice(start, end - start)


class _SpanFile:
    """The file of a span, whose records arrive in order of offsets."""

    def __init__(self, folder: NewFolder, span: tuple[str, str, int]) -> None:
        self.span = span
        _, topic, partition = span
        self._file = _File(folder, _span_name(topic, partition), FILE)
        self._last = -1
        self._odd = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Append records. Raises ValueError if they are not in order of offsets."""
        offsets = rows["offset"].to_numpy()
        if offsets[0] <= self._last or (np.diff(offsets) <= 0).any():
            raise ValueError(f"records of {self.span} were out of order at offset {offsets[0]}")
        self._last = int(offsets[-1])
        self._odd += int(np.count_nonzero(rows["timestamp_ms"].drop_null().to_numpy() <= 0))
        self._file.add(rows)

    def close(self) -> pa.RecordBatch:
        window, topic, partition = self.span
        about = {"partition": partition, "odd_timestamps": self._odd}
        return self._file.close({"window": window, "topic": topic}, about)


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A task: writes rows of one window of a KTable as one file.

    Records how many rows each partition has, how many could not be decoded, and the first
    `most_problems` of these.
    """

    folder: NewFolder
    window: str
    most_problems: int

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: turn the table's columns without `window` into a row of `WRITTEN`."""
        file: _File | None = None
        rows: Counter[int] = Counter()
        problems: list[tuple[int, int, str]] = []
        count = 0
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if file is None:
                file = _File(self.folder, "rows", batch.schema)
            file.add(batch)
            rows.update(batch["partition"].to_pylist())
            found = batch.filter(batch["decode_error"].is_valid())
            count += found.num_rows
            columns = (found[name].to_pylist() for name in ("partition", "offset", "decode_error"))
            problems = sorted([*problems, *zip(*columns, strict=True)])[: self.most_problems]
        if file is not None:
            about = {"rows": rows, "problem_rows": count, "problems": problems}
            yield file.close({"window": self.window}, about)


def _span_name(topic: str, partition: int) -> str:
    """Return the prefix of the name of a file with records of a partition."""
    return disk_name(f"{topic}-{partition}")


def _new_name(begin: str) -> str:
    """Return a unique name."""
    return f"{begin}-{uuid.uuid4().hex[:12]}.parquet"


class _File:
    """One file; rows are collected until they fill a row group."""

    def __init__(self, folder: NewFolder, name: str, schema: pa.Schema) -> None:
        self._name = _new_name(name)
        self._metadata: list[pq.FileMetaData] = []
        self._sink = NewObject(folder.path / self._name)
        level = folder.compression_level if folder.compression in _LEVELS else None
        dictionaries = [leaf for leaf in _leaves(schema) if leaf not in _WITHOUT_DICTIONARY]
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=_CODECS.get(folder.compression, folder.compression),
            compression_level=level,
            use_dictionary=dictionaries,  # pyright: ignore[reportArgumentType]
            column_encoding=dict.fromkeys(_NEIGHBOURS_ALIKE, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
            metadata_collector=self._metadata,
        )
        self._records = 0
        # Delta requires separate statistics for fields of a structure.
        plain = [field.name for field in schema if not pa.types.is_struct(field.type)]
        self._nulls = dict.fromkeys(plain, 0)
        self._least: dict[str, int] = {}
        self._greatest: dict[str, int] = {}
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Append rows."""
        self._records += rows.num_rows
        for name in self._nulls:
            self._nulls[name] += rows[name].null_count
        for name in [name for name in _NUMBERS if name in self._nulls]:
            values = rows[name].drop_null().to_numpy()
            if len(values):
                least, greatest = int(values.min()), int(values.max())
                self._least[name] = min(least, self._least.get(name, least))
                self._greatest[name] = max(greatest, self._greatest.get(name, greatest))
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        rows = pa.Table.from_batches(self._waiting)
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._waiting, self._bytes = [], 0

    def close(self, values: Mapping[str, str], about: Mapping[str, Any]) -> pa.RecordBatch:
        """End the file, and describe its contents."""
        if self._waiting:
            self._write()
        self._writer.close()
        digest = self._sink.finish(durable=True)
        stats = {
            "numRecords": self._records,
            "minValues": self._least,
            "maxValues": self._greatest,
            "nullCount": self._nulls,
        }
        row = {
            "name": self._name,
            "size": self._sink.size,
            "digest": digest,
            "stats": json.dumps(stats),
            "payload_bytes": _payload_bytes(self._metadata[0]),
            "values": json.dumps(values),
            "about": json.dumps(about),
        }
        return pa.RecordBatch.from_pylist([row], schema=WRITTEN)


def kept_file(
    folder: NewFolder, kept: ExpectedFile, values: Mapping[str, str], partition: int
) -> pa.RecordBatch:
    """Add an unchanged file of records with a new name and other values; return a row of `WRITTEN`.

    It is a hard link if the disk supports them, else a copy (which a store makes). Keys and values
    are not read: the file is known to be intact.
    """
    path = kept.location
    name = _new_name(_span_name(values["topic"], partition))
    new = folder.path / name
    duplicate(path, new)
    store_at(new).sync_content()
    footer = pq.read_metadata(store_at(path).readable())
    nulls = dict.fromkeys(FILE.names, 0)
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            column = footer.row_group(group).column(index)
            if column.path_in_schema in _READ_NEVER:
                nulls[column.path_in_schema] += column.statistics.null_count
    least: dict[str, int] = {}
    greatest: dict[str, int] = {}
    odd = 0
    with pq.ParquetFile(store_at(path).readable(), page_checksum_verification=True) as file:
        read = [column for column in FILE.names if column not in _READ_NEVER]
        for rows in file.iter_batches(columns=read):
            for column in read:
                nulls[column] += rows[column].null_count
            for column in _NUMBERS:
                numbers = rows[column].drop_null().to_numpy()
                if len(numbers):
                    low, high = int(numbers.min()), int(numbers.max())
                    least[column] = min(low, least.get(column, low))
                    greatest[column] = max(high, greatest.get(column, high))
            odd += int(np.count_nonzero(rows["timestamp_ms"].drop_null().to_numpy() <= 0))
    stats = {
        "numRecords": footer.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    }
    row = {
        "name": name,
        "size": new.stat().st_size,
        "digest": kept.digest,
        "stats": json.dumps(stats),
        "payload_bytes": _payload_bytes(footer),
        "values": json.dumps(values),
        "about": json.dumps({"partition": partition, "odd_timestamps": odd}),
    }
    return pa.RecordBatch.from_pylist([row], schema=WRITTEN)


def remove_unreported(folder: StorePath, names: Container[str]) -> None:
    """Delete the files of a folder that no successful task has reported.

    The task of a lost executor leaves some, and Spark runs it again. If the lost one still writes,
    files that it completes later stay: nothing ever refers to them.
    """
    for file in folder.glob("*.parquet"):
        if file.name not in names:
            file.unlink(missing_ok=True)


def _leaves(schema: pa.Schema) -> list[str]:
    """Return the columns of a Parquet file with this schema, as Parquet names them."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    columns = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [columns.column(index).path for index in range(len(columns))]


def _runs(values: "np.ndarray[Any, Any]") -> Sequence[tuple[int, int]]:
    """Return start and end of each run of equal values."""
    changes = np.flatnonzero(np.diff(values)) + 1
    edges = [0, *changes.tolist(), len(values)]
    return list(itertools.pairwise(edges)) if len(values) else []


def _payload_bytes(footer: pq.FileMetaData) -> int:
    total = 0
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            if column.path_in_schema.split(".")[0] in _PAYLOAD:
                total += column.total_uncompressed_size
    return total
