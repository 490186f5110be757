"""Span files as a backup holds them, written without Spark."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.model.restores import OriginalHeaders
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.store import StorePath
from spark_resources.partition_records import PartitionWork

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
# as Spark writes it: other columns beside, other names of a list's elements
_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("timestamp_type", pa.int32()),
        ("headers", pa.list_(pa.field("element", _HEADER))),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


@dataclass(frozen=True)
class Stored:
    """A record of a backup."""

    offset: int
    value: bytes | None = b"value"
    key: bytes | None = b"key"
    timestamp_ms: int = 1_700_000_000_000
    headers: Sequence[tuple[str, bytes | None]] | None = None


NO_HEADERS = OriginalHeaders()


def span_file(
    path: Path,
    records: Iterable[Stored],
    *,
    group: int = 50_000,
    dictionary: bool = False,
    partition: int = 0,
) -> Path:
    """Write a span file and return its path; `group` records in each row group."""
    rows = [
        {
            "partition": partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "timestamp_type": 0,
            "headers": None
            if record.headers is None
            else [{"key": key, "value": value} for key, value in record.headers],
            "key": record.key,
            "value": record.value,
        }
        for record in records
    ]
    table = pa.Table.from_pylist(rows, _SCHEMA)
    pq.write_table(table, path, row_group_size=group, use_dictionary=dictionary)
    return path


def work_of(
    target: TopicPartitionId,
    files: Sequence[StorePath],
    ranges: Sequence[tuple[int, int]],
    records: int,
    *,
    saved_file: StorePath | None = None,
    base_offset: int = 0,
    headers: OriginalHeaders = NO_HEADERS,
) -> PartitionWork:
    """The work of restoring partition `orders-3` (or that of the target's number)."""
    return PartitionWork(
        source=TopicPartitionId("orders", target.partition),
        target=target,
        files=tuple(files),
        saved_file=saved_file,
        ranges=tuple(OffsetRange(*r) for r in ranges),
        base_offset=base_offset,
        records=records,
        original_headers=headers,
    )
