"""The records of an application: their files, and differences from the ledger (no JVM)."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.copy_mark import state_for
from kstreams_assets.kafka.record_columns import HEADERS, header_name_column
from kstreams_assets.layout import LAYOUT_PROPERTY, LAYOUT_VERSION
from kstreams_assets.model.damage import Damage, DamagedSpans
from kstreams_assets.model.data_files import By, ExpectedFile, ExpectedFiles, SpanFile, renumbered
from kstreams_assets.model.files import NewFile, path_in_table
from kstreams_assets.model.numbered import Offsets, index_in, numbered_spans, positions
from kstreams_assets.model.spans import SpanContent, SpanId
from kstreams_assets.offsets import OffsetRange, RangeSet
from kstreams_assets.repository.committer import require_written
from kstreams_assets.repository.delta_log import (
    CHECKPOINT_INTERVAL,
    commit_hooks,
    committing,
    delta_table,
    drop_old_log,
    entry_versions,
    make_checkpoint,
)
from kstreams_assets.repository.inspection import inspect
from kstreams_assets.repository.known import Known
from kstreams_assets.repository.table import (
    LogState,
    create_delta,
    lacks_columns,
    log_state,
    open_delta,
)
from kstreams_assets.store import StorePath, local_hours, store_at
from kstreams_assets.store.failures import storage_failures

RECORDS: Final = pa.schema(
    [
        pa.field("window", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        ("timestamp_ms", pa.int64()),
        ("timestamp_type", pa.int32()),
        ("headers", HEADERS),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""A record of a backup; `timestamp_ms` is epoch milliseconds exactly as Kafka stored it."""

PARTITIONED_BY: Final = ("window", "topic")

_DELETIONS: Final = 8
"""Number of files deleted at a time, because a store answers slowly."""
_REPLACED_HOURS: Final = 6
"""How long replaced files are kept for readers that have looked them up before."""
_PROPERTIES: Final = {
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": f"interval {_REPLACED_HOURS} hours",
    "delta.dataSkippingStatsColumns": "partition,offset,timestamp_ms",
    "delta.checkpoint.writeStatsAsStruct": "true",
    "delta.checkpoint.writeStatsAsJson": "false",
}
"""A follower commits every few seconds: a long log would slow down each read of the table. So would
checkpoints with facts about each file as JSON, because there are hundreds of thousands."""


def open_records(
    path: StorePath,
    *,
    to_write: bool = False,
    known: Known | None = None,
    version: int | None = None,
) -> DeltaTable | None:
    """The records table as deltalake reads it, None if nothing was written (`open_delta`).

    Raises:
        NewerLayoutError: A newer release wrote it.
        WarehouseError: The table cannot be read.
    """
    name = f"records/{path.name}"
    return open_delta(
        path, name, to_write=to_write, known=known, layout=LAYOUT_VERSION, version=version
    )


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


def records_version(path: StorePath, known: Known | None = None) -> int:
    """The version of the table whose files `file_actions` lists, -1 if it was never written."""
    return _files_and_version(path, known or Known())[1]


def has_all_columns(path: StorePath, known: Known) -> bool:
    """Whether the table has the fields of this release: one of an earlier release may lack some."""
    return _files_and_version(path, known)[2]


def file_actions(path: StorePath, known: Known | None = None) -> pa.Table:
    """The files of the newest version, one row each, from Delta's log.

    Columns `window, topic, partition, path` (as in the log), `size_bytes, file_records`, `first`
    and `last` offset, `earliest` timestamp (epoch milliseconds). They are cached in `known` while
    the log is unchanged.

    Raises:
        NewerLayoutError: A newer release wrote the table.
        WarehouseError: The table cannot be read.
    """
    return _files_and_version(path, known or Known())[0]


def _files_and_version(path: StorePath, known: Known) -> tuple[pa.Table, int, bool]:
    with known.reading_records:
        log = known.log_states.get(path)
        state = log if log is not None else log_state(path), state_for(path)
        found = known.record_files.get(path)
        if found is None or found[0] != state:
            # The table itself takes several times as much memory: it is not cached.
            table = open_records(path, version=_version_of(path, log))
            known.record_files.drop(path)
            version = -1 if table is None else table.version()
            is_current = table is not None and not lacks_columns(pa.schema(table.schema()), RECORDS)
            files = _files_of(path, table)
            found = known.record_files.put(path, (state, files, version, is_current))
        return found[1:]


def _version_of(path: StorePath, log: LogState | None) -> int | None:
    """The version that a view sees; None: the newest."""
    if log is None or log == log_state(path):
        return None
    # A table that was created later has nothing that the view may see at its first version.
    return max(entry_versions(path, [name for name, _, _ in log]), default=0)


def _files_of(path: StorePath, table: DeltaTable | None) -> pa.Table:
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


def _added(path: StorePath, table: DeltaTable) -> pa.Table:
    with storage_failures(path):
        return pa.table(table.get_add_actions(flatten=True))


def ensure_records(path: StorePath, *, first: Callable[[], None] | None = None) -> DeltaTable:
    """The records table; it is created unless it exists, after `first` has run.

    A table of an earlier release gets missing fields.

    Raises:
        NewerLayoutError: A newer release wrote the table.
        WarehouseError: The table cannot be created.
    """
    table = open_records(path, to_write=True)
    with storage_failures(path):
        if table is not None:
            if _PROPERTIES.items() - table.metadata().configuration.items():
                with committing(path):
                    table.alter.set_table_properties(
                        _PROPERTIES,
                        raise_if_not_exists=False,
                        post_commithook_properties=commit_hooks(path),
                    )
            if lacks_columns(pa.schema(table.schema()), RECORDS):
                # Its files do not have them: they are null there.
                with committing(path):
                    write_deltalake(
                        table,
                        RECORDS.empty_table(),
                        mode="append",
                        schema_mode="merge",
                        post_commithook_properties=commit_hooks(path),
                    )
                return delta_table(path)
            return table
        if first is not None:
            first()
        return create_delta(
            path,
            schema=RECORDS,
            partition_by=PARTITIONED_BY,
            configuration={LAYOUT_PROPERTY: str(LAYOUT_VERSION), **_PROPERTIES},
        )


def tidy_records(path: StorePath, *, keep_files: bool = False) -> None:
    """Delete files that were replaced hours ago, and unneeded entries of Delta's log.

    The caller holds the lock, so nobody else writes the table. With `keep_files` the files stay: a
    restore may still read files in its plan.

    Raises:
        WarehouseError: The table cannot be read or written.
    """
    table = open_records(path, to_write=True)
    if table is not None:
        tidy_files(path, table, keep_files=keep_files)


def tidy_files(path: StorePath, table: DeltaTable, *, keep_files: bool) -> None:
    """Like `tidy_records`, for any table whose files are in folders of their commits."""
    with storage_failures(path):
        if not keep_files:
            # Only list the files: deltalake's own vacuum makes two commits, and syncs neither.
            hours = local_hours(path, _REPLACED_HOURS)
            gone = table.vacuum(hours, dry_run=True, enforce_retention_duration=False)
            files = [path / path_in_table(file) for file in gone]
            with ThreadPoolExecutor(_DELETIONS) as pool:
                list(pool.map(lambda file: file.unlink(missing_ok=True), files))
            for folder in {file.parent for file in files}:
                with suppress(OSError):  # other files are in it
                    folder.rmdir()
        make_checkpoint(path)
        drop_old_log(path)


def contents_of(path: StorePath, files: Sequence[NewFile]) -> dict[SpanId, SpanContent]:
    """The contents of new files, by span, after a check that each exists.

    Raises:
        WarehouseError: A file is missing or has another size than its task wrote.
    """
    require_written(path, files)
    by_span: dict[SpanId, list[NewFile]] = defaultdict(list)
    for file in sorted(files, key=lambda file: file.stats["minValues"]["offset"]):
        by_span[SpanId.of_file(file)].append(file)
    return {span: _content(of_it) for span, of_it in by_span.items()}


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
        non_positive_timestamps=sum(file.about["odd_timestamps"] for file in files),
        first_offset=min(s["minValues"]["offset"] for s in stats),
        last_offset=max(s["maxValues"]["offset"] for s in stats),
        min_timestamp_ms=min(earliest, default=None),
        max_timestamp_ms=max(latest, default=None),
        written=tuple(file.written for file in files),
    )


COLUMNS = [
    "window",
    "topic",
    "partition",
    "topic_id",
    "start",
    "end",
    "records",
    "first_offset",
    "last_offset",
    "bytes",
    "written",
]
"""The columns of the ledger that `Comparison` and users of files need."""

SPAN: Final = COLUMNS[:6]
"""The identity and the position of a span."""
_FEW_FILES: Final = 20
"""Up to this many files are inspected separately; for more, their folders are listed."""


class Comparison:
    """The ledger compared once with Delta's log, and with the files as far as they are inspected.

    Damaged are spans in rows of the ledger (`COLUMNS`) that do not match the records table. The
    number of records, the first and the last offset, and the names of the files are compared with
    Delta's log (`actions`, see `file_actions`). `inspect_files` also checks that each file exists
    and has its size. Results about files carry over from an earlier comparison.
    """

    def __init__(
        self,
        path: StorePath,
        rows: pa.Table,
        actions: pa.Table,
        earlier: "Comparison | None" = None,
        *,
        version: int = -1,
    ) -> None:
        self._path = path
        self.rows = rows
        self.version = version
        """Version of the records table with the log `actions`, -1 without a table."""
        self.unnamed = actions
        """Files of the table that no row of the ledger names, if `rows` are all of them."""
        self.found: pa.Table | None = None
        """The files of the spans, None without a span: columns of `file_actions`, `row` (the
        position of the span's row) and `noted`, the position among the files that backups recorded
        (`noted_files`); null if none did."""
        self._problems: dict[int, str] = {}
        self._next = 0
        self.bad: dict[str, Damage] = {}
        """The damaged files, by path below the table."""
        if rows.num_rows:
            self._problems, self.found, self.unnamed = _compared(rows, actions)
        if earlier is not None and len(self._files):
            if earlier.bad:
                again = [file for file in self._files if file.path in earlier.bad]
                self._update((), inspect(again, By.SIZE))
            above = self._files.files.filter(pc.field("path") > earlier.reached)
            self._next = above.num_rows % len(self._files)

    @cached_property
    def _files(self) -> ExpectedFiles:
        """Each file by path, the highest first.

        The size is the one that its backup recorded, else the log's.
        """
        spans = self.rows.select(SPAN)
        if self.found is None:
            return ExpectedFiles(self._path, _ACTIONS.empty_table(), spans)
        sizes = noted_files(self.rows, ("size",))["size"].take(self.found["noted"])
        size = pc.coalesce(sizes, self.found["size_bytes"])  # pyright: ignore[reportAttributeAccessIssue]
        files = self.found.select(["row", "path"]).append_column("size", size)
        return ExpectedFiles(self._path, files.sort_by([("path", "descending")]), spans)

    @property
    def reached(self) -> str:
        """The path of the next file to inspect; files come by path, the highest first."""
        return self._files.files["path"][self._next].as_py() if len(self._files) else ""

    def inspect_files(self, seconds: float) -> None:
        """Check that each file exists and has its size; continue where the last call stopped.

        It stops after this many seconds, or when every file was inspected once.
        """
        files = self._files
        if seconds == math.inf and len(files) > _FEW_FILES:
            self.bad.clear()
            self._update((), inspect(files, By.LISTING))
            return
        deadline = time.monotonic() + seconds
        for part in (files[self._next :], files[: self._next]):
            found = inspect(part, By.SIZE, until=deadline)
            self._update(part[: found.files], found)
            self._next = (self._next + found.files) % len(files) if len(files) else 0

    def _update(self, inspected: Sequence[ExpectedFile], damages: Iterable[Damage]) -> None:
        if self.bad:
            for file in inspected:
                self.bad.pop(file.path, None)
        self.bad |= {damage.file: damage for damage in damages}

    def damaged(self, topics: Collection[str] | None = None) -> DamagedSpans:
        """The damage found so far, of all topics or of these."""
        spans = self.rows.select(SPAN)
        whole = (
            ExpectedFile(self._path, "", 0, **spans.slice(row, 1).to_pylist()[0]).damage(problem)
            for row, problem in self._problems.items()
        )
        found: dict[tuple[object, ...], Damage] = {}
        for one in (*whole, *self.bad.values()):
            found.setdefault(one.span, one)
        return DamagedSpans(s for s in found.values() if topics is None or s.topic in topics)


def _compared(rows: pa.Table, actions: pa.Table) -> tuple[dict[int, str], pa.Table, pa.Table]:
    """The problems of spans, by number of their row, their files, and the files of no span.

    See `Comparison.found` and `unnamed`.
    """
    # Windows, topics and paths are long and there are millions: they are compared by number.
    span, span_of_file = numbered_spans(rows, actions)
    row_of_file = positions(span_of_file, span)
    known = row_of_file >= 0
    unnamed = actions.slice(0, 0)
    if not known.all():
        unnamed = actions.filter(pa.array(~known))
        actions = actions.filter(pa.array(known))
        row_of_file, span_of_file = row_of_file[known], span_of_file[known]
    first = positions(span, span_of_file)
    problems = _counts(rows, span, first, actions, span_of_file, row_of_file)
    noted = noted_files(rows, ("path",))
    file = _same_files(noted["path"], first[noted["row"].to_numpy()], actions["path"])
    for row, problem in _names(noted, file, actions["path"], row_of_file):
        problems.setdefault(row, problem)
    position = np.full(actions.num_rows, -1, np.int64)
    position[file[file >= 0]] = np.flatnonzero(file >= 0)
    found = actions.append_column("row", pa.array(row_of_file))
    found = found.append_column("noted", pa.array(position, mask=position < 0))
    return problems, found, unnamed


def _same_files(noted: pa.ChunkedArray, first: Offsets, there: pa.ChunkedArray) -> Offsets:
    """For each recorded path, its position among the existing ones; -1 if it is missing.

    `first` is that of the first file of its span, or -1.
    """
    if len(there) == 0:
        return first
    # Most spans have one file: then its path need not be searched among all others.
    guess = there.take(pa.array(np.maximum(first, 0)))
    is_same = pc.fill_null(pc.call_function("equal", [noted, guess]), False).to_numpy() & (
        first >= 0
    )
    others = np.flatnonzero(~is_same)
    found = first.copy()
    if len(others):
        left = noted.take(pa.array(others))
        found[others] = index_in(left, there)
    return found


def _counts(
    rows: pa.Table,
    span: Offsets,
    first: Offsets,
    actions: pa.Table,
    span_of_file: Offsets,
    row_of_file: Offsets,
) -> dict[int, str]:
    """Spans whose records differ from the ledger, by number of their row.

    `first` is the position of the first file of each row's span, or -1.
    """
    there = actions.select(["file_records", "first", "last"])
    if (first[row_of_file] != np.arange(len(row_of_file))).any():
        there = (
            there.append_column("span", pa.array(span_of_file))
            .group_by("span")
            .aggregate([("file_records", "sum"), ("first", "min"), ("last", "max")])
        )
        first = positions(span, there["span"].to_numpy())
        there = there.drop_columns("span")
    at = pa.array(first, mask=first < 0)
    joined = there.take(at).rename_columns(["file_records_sum", "first_min", "last_max"])
    for name in ("records", "first_offset", "last_offset"):
        joined = joined.append_column(name, rows[name])
    joined = joined.append_column("row", pa.array(np.arange(rows.num_rows)))
    count = pc.field("file_records_sum")
    # A comparison with a null is null and does not count as a difference.
    differs = (
        (count != pc.field("records"))
        | (count.is_null() & (pc.field("records") > 0))
        | (pc.field("first_offset") != pc.field("first_min"))
        | (pc.field("last_offset") != pc.field("last_max"))
    )
    return {row["row"]: _difference(row) for row in joined.filter(differs).to_pylist()}


def _difference(row: Mapping[str, Any]) -> str:
    return (
        f"the ledger says {_records(row['records'], row['first_offset'], row['last_offset'])}, the"
        " records table holds"
        f" {_records(row['file_records_sum'] or 0, row['first_min'], row['last_max'])}"
    )


def _records(count: int, first: int | None, last: int | None) -> str:
    return f"{count:,} records" + ("" if first is None else f" ({first} to {last})")


def noted_files(
    rows: pa.Table, names: Sequence[str] = ("path", "size", "records", "digest")
) -> pa.Table:
    """The original files, as far as rows of the ledger record them.

    Columns `row` (the position of the span's row) and these of `WrittenFile`.
    """
    kinds = {field.name: field.type for field in rows.schema.field("written").type.value_type}
    schema = pa.schema([("row", pa.int64()), *((name, kinds[name]) for name in names)])
    parts, begin = [schema.empty_table()], 0
    for written in rows["written"].chunks:
        files = written.flatten()
        row = written.value_parent_indices().to_numpy().astype(np.int64) + begin
        columns = [pa.array(row), *(files.field(name) for name in names)]
        parts.append(pa.Table.from_arrays(columns, schema=schema))
        begin += len(written)
    return pa.concat_tables(parts)


def _names(
    noted: pa.Table, file: Offsets, paths: pa.ChunkedArray, row_of_file: Offsets
) -> Iterator[tuple[int, str]]:
    """Files that differ from the recorded ones, with the number of their span's row.

    `file` maps each recorded file to the existing one.
    """
    for row in noted.filter(pa.array(file < 0)).to_pylist():
        yield row["row"], f"its file {_name(row['path'])} is missing in the records table"
    foreign = np.ones(len(row_of_file), np.bool_)
    foreign[file[file >= 0]] = False
    foreign &= np.isin(row_of_file, noted["row"].to_numpy())
    for index in np.flatnonzero(foreign).tolist():
        problem = f"its file {_name(paths[index].as_py())} was not written by its backup"
        yield int(row_of_file[index]), problem


def _name(path: str) -> str:
    return Path(path_in_table(path)).name


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
    """The uncompressed size of each record in its own batch, which `max.message.bytes` limits.

    Source: record batch format version 2 (`DefaultRecord.sizeInBytes` of Kafka).
    """
    sizes = np.full(records.num_rows, _ATTRIBUTES_AND_DELTAS, np.int64)
    for name in ("key", "value"):
        lengths = _lengths(_array(records, name))
        sizes += np.maximum(lengths, 0) + _varint(np.maximum(lengths, 0))
    headers = _array(records, "headers")
    sizes += _of_headers(headers, with_lengths=True)
    sizes += _varint(_header_counts(headers))
    return sizes + _varint(sizes) + _BATCH_HEADER


def largest_batch(
    files: Iterable[SpanFile], ranges: Sequence[OffsetRange], *, above: int
) -> int | None:
    """Size of the largest record in the ranges in a batch of its own, None if not `above`.

    Row groups that are too small for such a record are not read.
    """
    largest = above
    for file in files:
        with storage_failures(file.path):
            parquet = pq.ParquetFile(
                store_at(file.path).readable(), page_checksum_verification=True
            )
            groups = [
                index
                for index in range(parquet.num_row_groups)
                if _group_bytes(parquet, index) + _BATCH_HEADER > largest
            ]
            for read in parquet.iter_batches(
                batch_size=4096, row_groups=groups, columns=["offset", *_PAYLOAD]
            ):
                batch = renumbered(read, file.runs)
                inside = RangeSet(ranges).mask(batch["offset"].to_numpy())
                sizes = batch_bytes(batch)[inside]
                largest = max(largest, int(sizes.max(initial=0)))
    return largest if largest > above else None


def _group_bytes(parquet: pq.ParquetFile, index: int) -> int:
    """The uncompressed size of all its records; none of them can be larger."""
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
    for column in (header_name_column(pairs), pairs.field("value")):
        lengths = np.maximum(_lengths(column), 0)
        each += lengths + (_varint(lengths) if with_lengths else 0)
    ends = np.concatenate(([0], np.cumsum(each)))
    counts = _header_counts(headers)
    edges = np.concatenate(([0], np.cumsum(counts)))
    return np.array([ends[b] - ends[a] for a, b in pairwise(edges)], np.int64)


def _varint(numbers: _Sizes) -> _Sizes:
    """Bytes of numbers from 0 up as zigzag varints; -1 (null) takes one, like 0."""
    return 1 + np.searchsorted(_VARINT_STEPS, numbers, side="right").astype(np.int64)


def _header_counts(headers: pa.Array) -> _Sizes:
    """The number of headers of each record."""
    return _numbers(pc.call_function("list_value_length", [headers]), 0)


def _numbers(column: pa.Array, null: int) -> _Sizes:
    return pc.fill_null(column, null).to_numpy(zero_copy_only=False).astype(np.int64)
