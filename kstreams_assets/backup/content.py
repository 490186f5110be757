"""The table of an application's records: what Delta's log says of it, and its commits (no JVM).

Files of an increment lie in a folder of their own. Nothing refers to them until one commit does:
what fails before leaves a folder that the next run deletes.
"""

import json
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from kstreams_assets.backup.result import SpanContent
from kstreams_assets.errors import WarehouseError
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.warehouse.delta import open_delta, storage_failures
from kstreams_assets.warehouse.digest import WrittenFile, file_problem
from kstreams_assets.warehouse.layout import LAYOUT_PROPERTY, LAYOUT_VERSION
from kstreams_assets.warehouse.predicate import WindowTopic

RECORDS: Final = pa.schema(
    [
        pa.field("window", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        ("timestamp_ms", pa.int64()),
        ("timestamp_type", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""A record of a backup; `timestamp_ms` is epoch milliseconds exactly as Kafka stored it."""

PARTITIONED_BY: Final = ("window", "topic")
_UNCOMMITTED: Final = "_uncommitted"
"""A file in the folder of an increment until a commit refers to the others."""


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


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file of one span that no commit refers to yet; `path` is relative to the table.

    `digest` is the SHA-256 in hex, `stats` what Delta's log will say of it, `payload_bytes` the
    uncompressed size of keys, values and headers.
    """

    span: SpanId
    path: str
    size: int
    digest: str
    stats: Mapping[str, Any]
    payload_bytes: int
    odd_timestamps: int

    @property
    def records(self) -> int:
        """How many records it holds."""
        return self.stats["numRecords"]


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


def begin_increment(path: Path) -> Path:
    """A new folder for files of an increment; the table is created unless it exists.

    Raises:
        NewerLayoutError: A newer release wrote the table.
        WarehouseError: The folder cannot be made.
    """
    with storage_failures(path):
        if open_records(path) is None:
            path.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                path,
                schema=RECORDS,
                partition_by=[*PARTITIONED_BY],
                configuration={LAYOUT_PROPERTY: str(LAYOUT_VERSION)},
                mode="ignore",
                raise_if_key_not_exists=False,
            )
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")  # for people who look at the folder
        folder = path / f"{now}-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        (folder / _UNCOMMITTED).touch()
    return folder


def abandon_increment(folder: Path) -> None:
    """Delete the files of an increment that is not committed, as far as they can be deleted."""
    shutil.rmtree(folder, ignore_errors=True)


def sweep(path: Path) -> None:
    """Delete what runs left that were killed before their commit; the caller holds the lock.

    Raises:
        WarehouseError: The table or its folder cannot be read.
    """
    with storage_failures(path):
        left = [mark.parent for mark in path.glob(f"*/{_UNCOMMITTED}")]
    if not left:
        return
    committed = {Path(file).parts[0] for file in file_actions(path)["path"].to_pylist()}
    for folder in left:
        if folder.name in committed:
            (folder / _UNCOMMITTED).unlink(missing_ok=True)
        else:
            abandon_increment(folder)


def contents_of(path: Path, files: Sequence[NewFile]) -> dict[SpanId, SpanContent]:
    """What new files hold, by span, after a look at whether each is there.

    Raises:
        WarehouseError: A file is missing or has another size than its task wrote.
    """
    by_span: dict[SpanId, list[NewFile]] = defaultdict(list)
    for file in sorted(files, key=lambda file: file.stats["minValues"]["offset"]):
        problem = file_problem(path / file.path, file.size)
        if problem:
            raise WarehouseError(
                path=path,
                reason=f"{problem}, although Spark has just written it",
                remedy="Let Spark's executors and this process use the same folder as warehouse.",
            )
        by_span[file.span].append(file)
    return {span: _content(of_it) for span, of_it in by_span.items()}


def commit(
    path: Path,
    files: Sequence[NewFile],
    *,
    replaces: Collection[WindowTopic],
    provenance: Mapping[str, object],
) -> int | None:
    """Put new files in place of what the table holds for these windows and topics, in one commit.

    Returns:
        The version that holds them; None when there is nothing to put and nothing to replace.

    Raises:
        WarehouseError: The table cannot be written, or somebody else has written it meanwhile.
    """
    table = open_records(path)
    if table is None:
        return None
    now_ms = time.time_ns() // 1_000_000
    pairs = {(pair.window, pair.topic) for pair in replaces}
    stale = [
        row for row in file_actions(path).to_pylist() if (row["window"], row["topic"]) in pairs
    ]
    if not files and not stale:
        return None
    actions: list[AddAction | RemoveAction] = [
        AddAction(
            file.path,
            file.size,
            {"window": file.span.window, "topic": file.span.partition.topic},
            now_ms,
            True,
            json.dumps(file.stats),
        )
        for file in files
    ]
    actions += [
        RemoveAction(
            row["path"],
            True,
            now_ms,
            row["size_bytes"],
            {"window": row["window"], "topic": row["topic"]},
        )
        for row in stale
    ]
    with storage_failures(path):
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            [*PARTITIONED_BY],
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": json.dumps(provenance, sort_keys=True)},
                max_commit_retries=0,
            ),
        )
        for folder in {Path(file.path).parts[0] for file in files}:
            with suppress(OSError):  # The next run's sweep takes it away.
                (path / folder / _UNCOMMITTED).unlink()
        return DeltaTable(path).version()


def _content(files: Sequence[NewFile]) -> SpanContent:
    stats = [file.stats for file in files]
    earliest = [s["minValues"]["timestamp_ms"] for s in stats if "timestamp_ms" in s["minValues"]]
    latest = [s["maxValues"]["timestamp_ms"] for s in stats if "timestamp_ms" in s["maxValues"]]
    return SpanContent(
        records=sum(file.records for file in files),
        bytes=sum(file.payload_bytes for file in files),
        stored_bytes=sum(file.size for file in files),
        files=len(files),
        tombstones=sum(s["nullCount"]["value"] for s in stats),
        null_keys=sum(s["nullCount"]["key"] for s in stats),
        odd_timestamps=sum(file.odd_timestamps for file in files),
        first_offset=min(s["minValues"]["offset"] for s in stats),
        last_offset=max(s["maxValues"]["offset"] for s in stats),
        min_timestamp_ms=min(earliest, default=None),
        max_timestamp_ms=max(latest, default=None),
        written=tuple(WrittenFile(f.path, f.size, f.records, f.digest) for f in files),
    )
