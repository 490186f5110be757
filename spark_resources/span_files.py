"""Writes the records of spans as Parquet files, in Spark tasks; nothing refers to them yet."""

import hashlib
import itertools
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILE: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("timestamp_type", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""The columns of a file; window and topic are in Delta's log."""

WRITTEN: Final = pa.schema(
    [
        ("window", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("name", pa.string()),
        ("size", pa.int64()),
        ("digest", pa.string()),
        ("stats", pa.string()),
        ("payload_bytes", pa.int64()),
        ("odd_timestamps", pa.int64()),
    ]
)
"""A row for each file: `name` in its folder, SHA-256, Delta's statistics as JSON."""
WRITTEN_DDL: Final = (
    "window STRING, topic STRING, partition INT, name STRING, size BIGINT, digest STRING,"
    " stats STRING, payload_bytes BIGINT, odd_timestamps BIGINT"
)

_ROW_GROUP_BYTES: Final = 32 * 1024**2
_NUMBERS: Final = ("partition", "offset", "timestamp_ms", "timestamp_type")
_PAYLOAD: Final = ("key", "value", "headers")
# A dictionary of payloads never pays, and the attempt costs a third of the write.
_DICTIONARIES: Final = ["partition", "timestamp_type", "headers.list.element.key"]
# Neighbours differ by little.
_ENCODINGS: Final = dict.fromkeys(("offset", "timestamp_ms"), "DELTA_BINARY_PACKED")
_LEVELS: Final = frozenset({"zstd", "gzip"})
_CODECS: Final = {"lz4_raw": "lz4"}


@dataclass(frozen=True, slots=True)
class SpanEdges:
    """Where the spans of one partition begin and end, in order; `ends` are exclusive."""

    windows: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpanFiles:
    """A task: cuts records into spans, and writes a file of each.

    `spans` are those of each topic and partition.
    """

    folder: str
    spans: Mapping[tuple[str, int], SpanEdges]
    compression: str
    compression_level: int

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: columns of `FILE` and `topic`, in order, to rows of `WRITTEN`.

        Raises ValueError for a record that was not asked for, or comes out of order.
        """
        file: _File | None = None
        for batch in batches:
            for topic, partition, records in _by_partition(batch):
                for window, rows in self._by_window(topic, partition, records):
                    if file is None or file.span != (window, topic, partition):
                        if file is not None:
                            yield file.close()
                        file = _File(self, (window, topic, partition))
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
                    f"offset {offsets[start]} of {topic}-{partition} was not asked for"
                )
            yield edges.windows[number], records.slice(start, end - start)


class _File:
    """One file of a span; records are gathered until they make a row group."""

    def __init__(self, task: SpanFiles, span: tuple[str, str, int]) -> None:
        self.span = span
        _, topic, partition = span
        self._name = f"{topic}-{partition}-{uuid.uuid4().hex[:12]}.parquet"
        self._path = Path(task.folder, self._name)
        level = task.compression_level if task.compression in _LEVELS else None
        self._writer = pq.ParquetWriter(
            self._path,
            FILE,
            compression=_CODECS.get(task.compression, task.compression),
            compression_level=level,
            use_dictionary=_DICTIONARIES,  # pyright: ignore[reportArgumentType]
            column_encoding=_ENCODINGS,
            write_page_checksum=True,
        )
        self._last = -1
        self._records = 0
        self._odd = 0
        self._nulls = dict.fromkeys(FILE.names, 0)
        self._least: dict[str, int] = {}
        self._greatest: dict[str, int] = {}
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Append records. Raises ValueError when they are not in order of offsets."""
        offsets = rows["offset"].to_numpy()
        if offsets[0] <= self._last or (np.diff(offsets) <= 0).any():
            raise ValueError(f"records of {self.span} came out of order at offset {offsets[0]}")
        self._last = int(offsets[-1])
        self._records += rows.num_rows
        for name in FILE.names:
            self._nulls[name] += rows[name].null_count
        for name in _NUMBERS:
            values = rows[name].drop_null().to_numpy()
            if len(values):
                least, greatest = int(values.min()), int(values.max())
                self._least[name] = min(least, self._least.get(name, least))
                self._greatest[name] = max(greatest, self._greatest.get(name, greatest))
            if name == "timestamp_ms":
                self._odd += int(np.count_nonzero(values <= 0))
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        rows = pa.Table.from_batches(self._waiting)
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._waiting, self._bytes = [], 0

    def close(self) -> pa.RecordBatch:
        """End the file, and say what is in it."""
        if self._waiting:
            self._write()
        self._writer.close()
        stats = {
            "numRecords": self._records,
            "minValues": self._least,
            "maxValues": self._greatest,
            "nullCount": self._nulls,
        }
        with self._path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        window, topic, partition = self.span
        row = {
            "window": window,
            "topic": topic,
            "partition": partition,
            "name": self._name,
            "size": self._path.stat().st_size,
            "digest": digest,
            "stats": json.dumps(stats),
            "payload_bytes": _payload_bytes(pq.read_metadata(self._path)),
            "odd_timestamps": self._odd,
        }
        return pa.RecordBatch.from_pylist([row], schema=WRITTEN)


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """The records of each partition, with the columns of `FILE`."""
    if batch.num_rows == 0:
        return
    topics = batch["topic"].dictionary_encode()
    numbers = batch["partition"].to_numpy().astype(np.int64) * len(topics.dictionary)
    records = pa.RecordBatch.from_arrays(
        [batch[name].cast(FILE.field(name).type) for name in FILE.names], schema=FILE
    )
    for start, end in _runs(numbers + topics.indices.to_numpy()):
        topic, partition = topics[start].as_py(), batch["partition"][start].as_py()
        yield topic, partition, records.slice(start, end - start)


def _runs(values: "np.ndarray[Any, Any]") -> Sequence[tuple[int, int]]:
    """Begin and end of each run of equal values."""
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
