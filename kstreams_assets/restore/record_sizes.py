"""How large records are, counted from their columns `key`, `value` and `headers`."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kstreams_assets.offsets import OffsetRange
from kstreams_assets.warehouse.points import within_ranges
from kstreams_assets.warehouse.records import SpanFile
from kstreams_assets.warehouse.table import storage_failures

_Sizes = npt.NDArray[np.int64]
_PAYLOAD = ["key", "value", "headers"]
_BATCH_HEADER = 61
_ATTRIBUTES_AND_DELTAS = 3
"""One byte each of attributes, timestamp delta and offset delta in a batch of one record."""
_VARINT_STEPS = np.array([2**6, 2**13, 2**20, 2**27], np.int64)


def payload_bytes(records: pa.Table | pa.RecordBatch) -> _Sizes:
    """Bytes of key, value and headers of each record; null counts as none."""
    sizes = np.zeros(records.num_rows, np.int64)
    for name in ("key", "value"):
        sizes += np.maximum(_lengths(_array(records, name)), 0)
    return sizes + _of_headers(_array(records, "headers"), with_lengths=False)


def batch_bytes(records: pa.Table | pa.RecordBatch) -> _Sizes:
    """What each record is in a batch of its own, uncompressed: what `max.message.bytes` bounds.

    Source: record batch format version 2 (`DefaultRecord.sizeInBytes` of Kafka).
    """
    sizes = np.full(records.num_rows, _ATTRIBUTES_AND_DELTAS, np.int64)
    for name in ("key", "value"):
        lengths = _lengths(_array(records, name))
        sizes += np.maximum(lengths, 0) + _varint(np.maximum(lengths, 0))
    headers = _array(records, "headers")
    sizes += _of_headers(headers, with_lengths=True)
    sizes += _varint(_counts(headers))
    return sizes + _varint(sizes) + _BATCH_HEADER


def largest_batch(
    files: Iterable[SpanFile], ranges: Sequence[OffsetRange], *, above: int
) -> int | None:
    """Size of the largest record in the ranges in a batch of its own, None if not `above`.

    Row groups that are too small to hold such a record are not read.
    """
    largest = above
    for file in files:
        with storage_failures(file.path):
            parquet = pq.ParquetFile(file.path, page_checksum_verification=True)
            groups = [
                index
                for index in range(parquet.num_row_groups)
                if _group_bytes(parquet, index) + _BATCH_HEADER > largest
            ]
            for batch in parquet.iter_batches(
                batch_size=4096, row_groups=groups, columns=["offset", *_PAYLOAD]
            ):
                inside = within_ranges(batch["offset"].to_numpy(), ranges)
                sizes = batch_bytes(batch)[inside]
                largest = max(largest, int(sizes.max(initial=0)))
    return largest if largest > above else None


def _group_bytes(parquet: pq.ParquetFile, index: int) -> int:
    """What all its records take uncompressed; none of them can be larger."""
    return parquet.metadata.row_group(index).total_byte_size


def _array(records: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    column = records[name] if isinstance(records, pa.Table) else records.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _lengths(column: pa.Array) -> _Sizes:
    """Lengths in bytes, -1 for null."""
    return _numbers(pc.call_function("binary_length", [column]), -1)


def _of_headers(headers: pa.Array, *, with_lengths: bool) -> _Sizes:
    """Bytes of the headers of each record; `with_lengths` as a batch writes them."""
    pairs = headers.flatten()
    each = np.zeros(len(pairs), np.int64)
    for field in (0, 1):
        lengths = np.maximum(_lengths(pairs.field(field)), 0)
        each += lengths + (_varint(lengths) if with_lengths else 0)
    ends = np.concatenate(([0], np.cumsum(each)))
    counts = _counts(headers)
    edges = np.concatenate(([0], np.cumsum(counts)))
    return np.array([ends[b] - ends[a] for a, b in pairwise(edges)], np.int64)


def _varint(numbers: _Sizes) -> _Sizes:
    """Bytes of numbers from 0 up as zigzag varints; -1 (null) takes one as 0 does."""
    return 1 + np.searchsorted(_VARINT_STEPS, numbers, side="right").astype(np.int64)


def _counts(headers: pa.Array) -> _Sizes:
    """How many headers each record has."""
    return _numbers(pc.call_function("list_value_length", [headers]), 0)


def _numbers(column: pa.Array, null: int) -> _Sizes:
    return pc.fill_null(column, null).to_numpy(zero_copy_only=False).astype(np.int64)
