"""The records of an application: their files, and what does not match the ledger (no JVM)."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.copy_mark import CopyState, state_for
from kstreams_assets.kafka.record_columns import HEADERS, header_name_column
from kstreams_assets.layout import (
    LAYOUT_PROPERTY,
    LAYOUT_VERSION,
    WrittenFile,
    file_problem,
    path_in_table,
)
from kstreams_assets.offsets import OffsetRange, OffsetRuns, RangeSet, TopicPartitionId
from kstreams_assets.store import StorePath, local_hours, readable, sizes_in
from kstreams_assets.warehouse.committer import NewFile, require_written
from kstreams_assets.warehouse.delta_log import (
    CHECKPOINT_INTERVAL,
    commit_hooks,
    committing,
    delta_table,
    drop_old_log,
    make_checkpoint,
)
from kstreams_assets.warehouse.spans import SpanContent
from kstreams_assets.warehouse.table import (
    LogState,
    create_delta,
    lacks_columns,
    log_state,
    one_of,
    open_delta,
    storage_failures,
)

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
"""Files that are deleted at a time: a store answers late."""
_REPLACED_HOURS: Final = 6
"""How long replaced files stay: whoever reads them has looked them up before."""
_PROPERTIES: Final = {
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": f"interval {_REPLACED_HOURS} hours",
    "delta.dataSkippingStatsColumns": "partition,offset,timestamp_ms",
    "delta.checkpoint.writeStatsAsStruct": "true",
    "delta.checkpoint.writeStatsAsJson": "false",
}
"""A follower commits every few seconds: a long log would make each look at the table slow. So would
checkpoints with what is known of each file as JSON, of which there are hundreds of thousands."""


@dataclass(frozen=True, slots=True)
class SpanId:
    """A partition's part of one window."""

    window: str
    partition: TopicPartitionId


@dataclass(frozen=True, slots=True)
class SpanFile:
    """One file of a span; its records are in offset order, `[first_offset, last_offset]`.

    `written` is the file as its backup noted it, None where it did not (earlier releases). `window`
    is the key of the window that it belongs to, empty where nobody needs it.

    With `runs` the file is of an older log, and a restore wrote its records to another one: only
    records in the runs count, under the offsets that they got there (`renumbered`).
    `[first_offset, last_offset]` are such offsets.
    """

    path: StorePath
    records: int
    first_offset: int
    last_offset: int
    written: WrittenFile | None = None
    window: str = ""
    runs: OffsetRuns | None = None


Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def renumbered(rows: Rows, runs: OffsetRuns | None) -> Rows:
    """Rows of a file with the offsets that count for a reader (see `SpanFile.runs`)."""
    if runs is None or rows.num_rows == 0:
        return rows
    offsets = rows.column("offset").to_numpy()
    index = np.maximum(runs.source_starts.searchsorted(offsets, side="right") - 1, 0)
    if len(runs) == 0:
        return rows.slice(0, 0)
    ahead = offsets - runs.source_starts[index]
    inside = (ahead >= 0) & (ahead < runs.lengths[index])
    kept = rows.filter(pa.array(inside))
    new = pa.array((runs.target_starts[index] + ahead)[inside], pa.int64())
    number = kept.schema.get_field_index("offset")
    return kept.set_column(number, kept.schema.field(number), new)


def span_of(file: NewFile) -> SpanId:
    """The span whose records a new file holds."""
    partition = TopicPartitionId(file.values["topic"], file.about["partition"])
    return SpanId(file.values["window"], partition)


def open_records(
    path: StorePath, *, to_write: bool = False, keep: bool = True
) -> DeltaTable | None:
    """The records table as deltalake reads it, None while nothing was written (`open_delta`).

    Raises:
        NewerLayoutError: A newer release wrote it.
        WarehouseError: It cannot be read.
    """
    name = f"records/{path.name}"
    return open_delta(path, name, to_write=to_write, keep=keep, layout=LAYOUT_VERSION)


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


def records_version(path: StorePath) -> int:
    """The version of the table whose files `file_actions` tells, -1 while nobody has written it."""
    return _known(path)[2]


def file_actions(path: StorePath) -> pa.Table:
    """The files of the newest version, one row each: what Delta's log says of them.

    Columns `window, topic, partition, path` (as in the log), `size_bytes, file_records`, `first`
    and `last` offset, `earliest` timestamp (epoch milliseconds). They are kept for as long as the
    log is the same.

    Raises:
        NewerLayoutError: A newer release wrote the table.
        WarehouseError: It cannot be read.
    """
    return _known(path)[1]


def _known(path: StorePath) -> "_Known":
    with _one_at_a_time:
        state = log_state(path), state_for(path)
        known = _known_files.get(path)
        if known is None or known[0] != state:
            # The table itself takes several times as much memory: it is not kept.
            table = open_records(path, keep=False)
            _known_files.pop(path, None)
            version = -1 if table is None else table.version()
            known = _known_files[path] = state, _files_of(path, table), version
            if len(_known_files) > _MOST_KNOWN:
                _known_files.pop(next(iter(_known_files)), None)
        return known


_one_at_a_time = threading.Lock()
_MOST_KNOWN: Final = 8
_Known = tuple[tuple[LogState, CopyState | None], pa.Table, int]
_known_files: dict[StorePath, _Known] = {}
"""Of records tables their files as this process has read them last, with the log just before and
the version."""


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


def span_files(path: StorePath, span: SpanId) -> list[SpanFile]:
    """The files of one span, in offset order."""
    files = [
        SpanFile(
            path=path / path_in_table(row["path"]),
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


def _actions(path: StorePath, windows: Collection[str]) -> Iterable[dict[str, Any]]:
    table = open_records(path)
    if table is None:
        return []
    actions = _added(path, table)
    if actions.num_rows == 0:
        return []
    return actions.filter(pc.field("partition.window").isin(list(windows))).to_pylist()


def ensure_records(path: StorePath, *, first: Callable[[], None] | None = None) -> DeltaTable:
    """The records table; it is created unless it exists, after `first` has run.

    A table of an earlier release gets the fields that are missing.

    Raises:
        NewerLayoutError: A newer release wrote the table.
        WarehouseError: It cannot be made.
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
                # Its files have none of them: there they are null.
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
    """Delete files that were replaced hours ago, and what Delta's log no longer needs.

    Nobody else writes the table meanwhile: the caller holds the lock. With `keep_files` the files
    stay: a restore may still read those that it has planned.

    Raises:
        WarehouseError: The table cannot be read or written.
    """
    table = open_records(path, to_write=True)
    if table is not None:
        tidy_files(path, table, keep_files=keep_files)


def tidy_files(path: StorePath, table: DeltaTable, *, keep_files: bool) -> None:
    """As `tidy_records`, of any table whose files lie in folders of their commits."""
    with storage_failures(path):
        if not keep_files:
            # Nothing but the list: deltalake's own vacuum makes two commits, and syncs neither.
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
    """What new files hold, by span, after a look at whether each is there.

    Raises:
        WarehouseError: A file is missing or has another size than its task wrote.
    """
    require_written(path, files)
    by_span: dict[SpanId, list[NewFile]] = defaultdict(list)
    for file in sorted(files, key=lambda file: file.stats["minValues"]["offset"]):
        by_span[span_of(file)].append(file)
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
        odd_timestamps=sum(file.about["odd_timestamps"] for file in files),
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
"""The columns of the ledger that `Comparison` needs, and who asks for files."""

_SPAN = ["window", "topic", "partition"]
_FILES_AT_ONCE: Final = 500
_FEW_FILES: Final = 20
"""So many files are looked at one by one; of more their folders are listed."""
_NO_FILES: Final = pa.schema(
    [("row", pa.int64()), ("path", pa.string()), ("size", pa.int64())]
).empty_table()

_Offsets = npt.NDArray[np.int64]
_Life = tuple[str, int, str]
"""Topic, partition, topic id."""


@dataclass(frozen=True, slots=True)
class SpanDamage:
    """A span whose files do not match its row in the ledger; offsets `[start, end)`."""

    window: str
    topic: str
    partition: int
    topic_id: str
    start: int
    end: int
    problem: str

    def __str__(self) -> str:
        return (
            f"window {self.window}, {self.topic}-{self.partition}, offsets {self.start} to"
            f" {self.end - 1}: {self.problem}"
        )

    @property
    def remedy(self) -> str:
        """What the operator can do."""
        return (
            f"Restore the files from a copy of the warehouse, or back up window {self.window} again"
            f" (kstreams-assets backup --window {self.window}) if Kafka still has it; else restore"
            " a recovery point before it."
        )


class DamagedSpans:
    """Damaged spans, in order of topic, partition and offsets."""

    def __init__(self, spans: Iterable[SpanDamage] = ()) -> None:
        self._spans = sorted(spans, key=lambda s: (s.topic, s.partition, s.start, s.window))
        self._by_life: dict[_Life, list[SpanDamage]] = defaultdict(list)
        for span in self._spans:
            self._by_life[span.topic, span.partition, span.topic_id].append(span)

    def __iter__(self) -> Iterator[SpanDamage]:
        return iter(self._spans)

    def __bool__(self) -> bool:
        return bool(self._spans)

    def inside(self, life: _Life, start: int, end: int) -> SpanDamage | None:
        """The first one of a partition (topic, partition, topic id) with offsets `[start, end)`."""
        return next(
            (s for s in self._by_life.get(life, ()) if s.start < end and start < s.end), None
        )

    def ranges(self, life: _Life, start: int, end: int) -> list[OffsetRange]:
        """What is damaged of offsets `[start, end)` of a partition, in order."""
        return [
            OffsetRange(max(s.start, start), min(s.end, end))
            for s in self._by_life.get(life, ())
            if s.start < end and start < s.end
        ]


NOTHING_DAMAGED: Final = DamagedSpans()


class Comparison:
    """The ledger compared with Delta's log once, and with the files as far as they are looked at.

    Damaged are spans among rows of the ledger (`COLUMNS`) that the records table does not hold.
    Compared are the number of records, the first and the last offset, and the names of the files,
    as Delta's log has them (`actions`, see `file_actions`); by `look_at_files` also that each file
    is there and has its size. What is known of files goes on from an earlier comparison.
    """

    def __init__(
        self,
        path: StorePath,
        rows: pa.Table,
        actions: pa.Table,
        earlier: "Comparison | None" = None,
    ) -> None:
        self._path = path
        self.rows = rows
        self.found: pa.Table | None = None
        """The files of the spans, None without a span: columns of `file_actions`, `row` (the
        position of the span's row) and `noted`, the position among the files that backups noted
        (`noted_files`); null where none did."""
        self._problems: dict[int, str] = {}
        self._next = 0
        self.bad: dict[str, tuple[int, str]] = {}
        """By path, the span's row and what is wrong with the file."""
        if rows.num_rows:
            self._problems, self.found = _compared(rows, actions)
        if earlier is not None and self._files.num_rows:
            bad = self._files.filter(one_of("path", earlier.bad))
            for file in bad.to_pylist():
                self._look(file)
            above = self._files.filter(pc.field("path") > earlier.reached)
            self._next = above.num_rows % self._files.num_rows

    @cached_property
    def _files(self) -> pa.Table:
        """Columns `row, path, size` of each file, by path, the highest first.

        The size is that which its backup noted, else the log's.
        """
        if self.found is None:
            return _NO_FILES
        sizes = noted_files(self.rows, ("size",))["size"].take(self.found["noted"])
        size = pc.coalesce(sizes, self.found["size_bytes"])  # pyright: ignore[reportAttributeAccessIssue]
        files = self.found.select(["row", "path"]).append_column("size", size)
        return files.sort_by([("path", "descending")])

    @property
    def reached(self) -> str:
        """The path of the file that is looked at next; files come by path, the highest first."""
        return self._files["path"][self._next].as_py() if self._files.num_rows else ""

    def look_at_files(self, seconds: float) -> None:
        """See whether each file is there and has its size; goes on where the last call stopped.

        It stops after so many seconds, and when every file was looked at once.
        """
        left = self._files.num_rows
        if left == 0 or seconds <= 0:
            return
        if seconds == math.inf and left > _FEW_FILES:
            self._look_at_all()
            return
        deadline = time.monotonic() + seconds
        while left > 0 and time.monotonic() < deadline:
            lot = self._files.slice(self._next, min(_FILES_AT_ONCE, left))
            for file in lot.to_pylist():
                self._look(file)
            left -= lot.num_rows
            self._next = (self._next + lot.num_rows) % self._files.num_rows

    def _look_at_all(self) -> None:
        """By listing the folders; what does not look right there is looked at by itself."""
        paths = self._files["path"].to_pylist()
        sizes = self._files["size"].to_pylist()
        # Files come by path: those of a folder follow each other.
        by_folder = [
            (folder, [*of_it])
            for folder, of_it in groupby(paths, lambda path: path.rpartition("/")[0])
        ]
        decoded = {folder: path_in_table(folder) if folder else "" for folder, _ in by_folder}
        there = sizes_in(self._path, {*decoded.values()})
        nothing: dict[str, int] = {}
        suspects: list[int] = []
        begin = 0
        for folder, of_it in by_folder:
            here, skip = there.get(decoded[folder], nothing), len(folder) + 1 if folder else 0
            names = [path[skip:] for path in of_it]
            found = [here.get(path_in_table(name)) for name in names]
            if found != sizes[begin : begin + len(found)]:
                suspects += [n for n, size in enumerate(found, begin) if size != sizes[n]]
            begin += len(found)
        self.bad.clear()
        for file in self._files.take(pa.array(suspects, pa.int64())).to_pylist():
            self._look(file)

    def _look(self, file: Mapping[str, Any]) -> None:
        problem = file_problem(self._path / path_in_table(file["path"]), file["size"])
        if problem:
            self.bad[file["path"]] = (file["row"], problem)
        else:
            self.bad.pop(file["path"], None)

    def damaged(self, topics: Collection[str] | None = None) -> DamagedSpans:
        """What was found so far, of all topics or of these."""
        problems = dict(self._problems)
        for row, problem in self.bad.values():
            problems.setdefault(row, problem)
        spans = self.rows.select(COLUMNS[:6])
        found = (
            SpanDamage(**spans.slice(row, 1).to_pylist()[0], problem=problem)
            for row, problem in problems.items()
        )
        return DamagedSpans(s for s in found if topics is None or s.topic in topics)


def _compared(rows: pa.Table, actions: pa.Table) -> tuple[dict[int, str], pa.Table]:
    """What is wrong with spans, by number of their row, and the files (see `Comparison.found`)."""
    # Windows, topics and paths are long and come by the million: they are compared by numbers.
    span, span_of_file = numbered_spans(rows, actions)
    row_of_file = positions(span_of_file, span)
    known = row_of_file >= 0
    if not known.all():
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
    return problems, found.append_column("noted", pa.array(position, mask=position < 0))


def numbered_spans(
    rows: pa.Table, actions: pa.Table, columns: Sequence[str] = _SPAN
) -> tuple[_Offsets, _Offsets]:
    """A number for the span of each row, and for the span of each file; -1 where no row has it.

    A span is what these columns have in common, by default window, topic and partition.
    """
    mine, theirs = np.zeros(rows.num_rows, np.int64), np.zeros(actions.num_rows, np.int64)
    known = np.ones(actions.num_rows, np.bool_)
    for name in columns:
        distinct = rows[name].unique()
        code, code_of_file = (_index_in(table[name], distinct) for table in (rows, actions))
        mine, theirs = mine * len(distinct) + code, theirs * len(distinct) + code_of_file
        known &= code_of_file >= 0
    return mine, np.where(known, theirs, -1)


def distinct(rows: pa.Table, columns: Sequence[str]) -> tuple[pa.Table, _Offsets]:
    """What there is in these columns, each once, and of each row the number of its own."""
    numbers, _ = numbered_spans(rows, rows.slice(0, 0), columns)
    _, firsts, of_row = np.unique(numbers, return_index=True, return_inverse=True)
    return rows.select([*columns]).take(pa.array(firsts)), of_row.astype(np.int64)


def positions(wanted: _Offsets, values: _Offsets) -> _Offsets:
    """Where each wanted number first stands among the values, -1 where it does not."""
    return _index_in(pa.array(wanted), pa.array(values))


def _index_in(wanted: pa.Array | pa.ChunkedArray, values: pa.Array | pa.ChunkedArray) -> _Offsets:
    found = pc.call_function("index_in", [wanted], pc.SetLookupOptions(values))
    return pc.fill_null(found, -1).to_numpy().astype(np.int64)


def _same_files(noted: pa.ChunkedArray, first: _Offsets, there: pa.ChunkedArray) -> _Offsets:
    """Of each path that was noted, the position among those that are there; -1 where it is not.

    `first` is that of the first file of its span, or -1.
    """
    if len(there) == 0:
        return first
    # Most spans have one file: then there is no need to look for its path among all others.
    guess = there.take(pa.array(np.maximum(first, 0)))
    is_same = pc.fill_null(pc.call_function("equal", [noted, guess]), False).to_numpy() & (
        first >= 0
    )
    others = np.flatnonzero(~is_same)
    found = first.copy()
    if len(others):
        left = noted.take(pa.array(others))
        found[others] = _index_in(left, there)
    return found


def _counts(
    rows: pa.Table,
    span: _Offsets,
    first: _Offsets,
    actions: pa.Table,
    span_of_file: _Offsets,
    row_of_file: _Offsets,
) -> dict[int, str]:
    """Spans with other records than the ledger says, by number of their row.

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
    # A comparison with a null is null, and counts as no difference.
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
    """The files that were written, as far as rows of the ledger note them.

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
    noted: pa.Table, file: _Offsets, paths: pa.ChunkedArray, row_of_file: _Offsets
) -> Iterator[tuple[int, str]]:
    """Other files than were written, with the number of their span's row.

    `file` says of each that was noted which of those that are there it is.
    """
    for row in noted.filter(pa.array(file < 0)).to_pylist():
        yield row["row"], f"its file {_name(row['path'])} is not in the records table any more"
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
    """What each record is in a batch of its own, uncompressed: what `max.message.bytes` bounds.

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

    Row groups that are too small to hold such a record are not read.
    """
    largest = above
    for file in files:
        with storage_failures(file.path):
            parquet = pq.ParquetFile(readable(file.path), page_checksum_verification=True)
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
    for column in (header_name_column(pairs), pairs.field("value")):
        lengths = np.maximum(_lengths(column), 0)
        each += lengths + (_varint(lengths) if with_lengths else 0)
    ends = np.concatenate(([0], np.cumsum(each)))
    counts = _header_counts(headers)
    edges = np.concatenate(([0], np.cumsum(counts)))
    return np.array([ends[b] - ends[a] for a, b in pairwise(edges)], np.int64)


def _varint(numbers: _Sizes) -> _Sizes:
    """Bytes of numbers from 0 up as zigzag varints; -1 (null) takes one as 0 does."""
    return 1 + np.searchsorted(_VARINT_STEPS, numbers, side="right").astype(np.int64)


def _header_counts(headers: pa.Array) -> _Sizes:
    """How many headers each record has."""
    return _numbers(pc.call_function("list_value_length", [headers]), 0)


def _numbers(column: pa.Array, null: int) -> _Sizes:
    return pc.fill_null(column, null).to_numpy(zero_copy_only=False).astype(np.int64)
