"""A records table as backups write it, written without Spark."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from kstreams_assets.offsets import TopicPartitionId

_SCHEMA = pa.schema(
    [
        pa.field("window", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("timestamp_type", pa.int32()),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)


def write_records(
    path: Path, window: str, partition: TopicPartitionId, offsets: Iterable[int]
) -> None:
    """Add one file with records of these offsets, in one commit."""
    rows = [
        {
            "window": window,
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": offset,
            "timestamp_ms": 1_000_000 + offset,
            "timestamp_type": 0,
            "headers": None,
            "key": b"k%d" % (offset % 7),
            "value": b"value %d" % offset,
        }
        for offset in offsets
    ]
    table = pa.Table.from_pylist(rows, schema=_SCHEMA)
    write_deltalake(path, table, mode="append", partition_by=["window", "topic"])
