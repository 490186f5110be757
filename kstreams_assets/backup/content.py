"""What the records table holds, read from Delta's log and the files' footers alone (no JVM)."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from kstreams_assets.backup.result import SpanContent
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.warehouse.delta import open_delta, storage_failures
from kstreams_assets.warehouse.digest import WrittenFile, written_files

_PAYLOAD_COLUMNS = ("key", "value", "headers")


@dataclass(frozen=True, slots=True)
class SpanId:
    """A partition's part of one window."""

    window: str
    partition: TopicPartitionId


@dataclass(frozen=True, slots=True)
class SpanFile:
    """One file of a span; its records are in offset order, `[first_offset, last_offset]`.

    `written` is the file as its backup noted it, None where it did not (earlier releases).
    """

    path: Path
    records: int
    first_offset: int
    last_offset: int
    written: WrittenFile | None = None


def open_records(path: Path) -> DeltaTable | None:
    """The records table as deltalake reads it, None while nothing was written.

    Raises:
        NewerLayoutError: A newer release wrote it.
        WarehouseError: It cannot be read.
    """
    return open_delta(path, f"records/{path.name}")


_ACTIONS = pa.schema(
    [
        ("window", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("file_records", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("earliest", pa.int64()),
    ]
)


def file_actions(path: Path) -> pa.Table:
    """The files of the newest version, one row each: what Delta's log says of them.

    Columns `window, topic, partition, path` (as in the log), `size_bytes, file_records`, `first`
    and `last` offset, `earliest` timestamp (epoch milliseconds).

    Raises:
        NewerLayoutError: A newer release wrote the table.
        WarehouseError: It cannot be read.
    """
    table = open_records(path)
    added = None if table is None else _added(path, table)
    if added is None or added.num_rows == 0:
        return _ACTIONS.empty_table()
    columns = [
        "partition.window",
        "partition.topic",
        "min.partition",
        "path",
        "size_bytes",
        "num_records",
        "min.offset",
        "max.offset",
        "min.timestamp_ms",
    ]
    return added.select(columns).rename_columns(_ACTIONS.names).cast(_ACTIONS)


def _added(path: Path, table: DeltaTable) -> pa.Table:
    with storage_failures(path):
        return pa.table(table.get_add_actions(flatten=True))


def windows_with_data(path: Path, windows: Collection[str]) -> set[tuple[str, str]]:
    """Which (window, topic) of these windows have files."""
    rows = _actions(path, windows)
    return {(row["partition.window"], row["partition.topic"]) for row in rows}


def span_contents(
    path: Path, windows: Collection[str], topics: Collection[str]
) -> dict[SpanId, SpanContent]:
    """What the newest version of the table holds of these windows and topics.

    Reads every file whole: their digests are part of it.
    """
    grouped: dict[SpanId, list[dict[str, Any]]] = defaultdict(list)
    for row in _actions(path, windows):
        if row["partition.topic"] in topics:
            grouped[_span_id(row)].append(row)
    contents = {span: _content(path, rows) for span, rows in grouped.items()}
    paths = [(row["path"], row["num_records"]) for rows in grouped.values() for row in rows]
    written = {file.path: file for file in written_files(path, paths)}
    return {
        span: replace(content, written=tuple(written[row["path"]] for row in grouped[span]))
        for span, content in contents.items()
    }


def span_files(path: Path, span: SpanId) -> list[SpanFile]:
    """The files of one span, in offset order."""
    files = [
        SpanFile(
            path=path / unquote(row["path"]),
            records=row["num_records"],
            first_offset=row["min.offset"],
            last_offset=row["max.offset"],
        )
        for row in _actions(path, {span.window})
        if _span_id(row) == span
    ]
    return sorted(files, key=lambda file: file.first_offset)


def _span_id(row: dict[str, Any]) -> SpanId:
    partition = TopicPartitionId(row["partition.topic"], row["min.partition"])
    return SpanId(row["partition.window"], partition)


def _actions(path: Path, windows: Collection[str]) -> Iterable[dict[str, Any]]:
    table = open_records(path)
    if table is None:
        return []
    actions = _added(path, table)
    if actions.num_rows == 0:
        return []
    return actions.filter(pc.field("partition.window").isin(list(windows))).to_pylist()


def _content(path: Path, rows: list[dict[str, Any]]) -> SpanContent:
    timestamps = [r["min.timestamp_ms"] for r in rows if r["min.timestamp_ms"] is not None]
    earliest = min(timestamps, default=None)
    files = [path / unquote(row["path"]) for row in rows]
    return SpanContent(
        records=sum(row["num_records"] for row in rows),
        bytes=sum(_payload_bytes(file) for file in files),
        stored_bytes=sum(row["size_bytes"] for row in rows),
        files=len(rows),
        tombstones=sum(row["null_count.value"] for row in rows),
        null_keys=sum(row["null_count.key"] for row in rows),
        odd_timestamps=sum(_odd_timestamps(f) for f in files)
        if earliest is not None and earliest <= 0
        else 0,
        first_offset=min(row["min.offset"] for row in rows),
        last_offset=max(row["max.offset"] for row in rows),
        min_timestamp_ms=earliest,
        max_timestamp_ms=max((r["max.timestamp_ms"] for r in rows), default=None),
    )


def _payload_bytes(file: Path) -> int:
    footer = pq.read_metadata(file)
    total = 0
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            if column.path_in_schema.split(".")[0] in _PAYLOAD_COLUMNS:
                total += column.total_uncompressed_size
    return total


def _odd_timestamps(file: Path) -> int:
    timestamps = pq.ParquetFile(file, page_checksum_verification=True).read(
        columns=["timestamp_ms"]
    )
    return timestamps.filter(pc.field("timestamp_ms") <= 0).num_rows
