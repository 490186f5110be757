"""Tables of KTable snapshots written by hand, without Spark."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SCHEMA = pa.schema(
    [
        ("window", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("decoded_key", pa.string()),
        ("decoded_value", pa.struct([("count", pa.int64())])),
        ("decode_error", pa.string()),
        ("headers", _HEADERS),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


@dataclass(frozen=True)
class Row:
    """A row of a snapshot."""

    partition: int
    offset: int
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    timestamp_ms: int = 1_700_000_000_000
    headers: Sequence[tuple[str, bytes | None]] | None = None
    window: str = "w1"

    @property
    def record(self) -> dict[str, object]:
        """As it is to be restored."""
        return {
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
            "headers": None if self.headers is None else [_header(*each) for each in self.headers],
            "key": self.key,
            "value": self.value,
        }


def write_snapshot(table: Path, rows: Iterable[Row]) -> None:
    """Add rows to a table, in the order given, as a commit of its own."""
    columns = [
        {
            "window": row.window,
            "partition": row.partition,
            "decoded_key": None,
            "decoded_value": None,
            "decode_error": "key: not declared",
            **row.record,
        }
        for row in rows
    ]
    write_deltalake(
        table, pa.Table.from_pylist(columns, _SCHEMA), mode="append", partition_by=["window"]
    )


def _header(key: str, value: bytes | None) -> dict[str, object]:
    return {"key": key, "value": value, "key_bytes": None}
