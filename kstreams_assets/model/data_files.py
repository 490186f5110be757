"""Data files of tables: those of spans, and their state when they were written."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum, auto
from typing import Any, Final, TypeVar, overload

import numpy as np
import pyarrow as pa

from kstreams_assets.model.damage import Damage, DamageKind, StoredExtent
from kstreams_assets.model.files import WrittenFile, path_in_table, table_name
from kstreams_assets.model.spans import window_of
from kstreams_assets.offsets import OffsetRuns, TopicPartitionId
from kstreams_assets.store import StorePath

CHANGED: Final = "does not match the SHA-256 that was recorded when it was written"
MISSING: Final = "is missing"
_ROWS_AT_ONCE: Final = 10_000


class By(Enum):
    """The compared properties of a file."""

    LISTING = auto()
    """Existence and size, from lists of the folders: the fastest way for many files."""
    SIZE = auto()
    """Existence and size, file by file."""
    DIGEST = auto()
    """Every byte."""


@dataclass(frozen=True, slots=True)
class ExpectedFile(StoredExtent):
    """A data file in its original state, and its contents.

    `table` is the folder of its table, `path` the path below it. `size` is in bytes, `digest` the
    SHA-256 in hex, None if none was recorded.
    """

    table: StorePath
    path: str
    size: int
    digest: str | None = None
    records: int | None = None
    kind: DamageKind = DamageKind.FILE

    @classmethod
    def of(cls, table: StorePath, written: WrittenFile, **about: Any) -> "ExpectedFile":  # noqa: ANN401
        """The file in a row of the ledger or of the snapshots; `about`: further fields."""
        path = path_in_table(written.path)
        return cls(table, path, written.size, written.digest, written.records, **about)

    @property
    def location(self) -> StorePath:
        """The path of the file."""
        return self.table / self.path

    @property
    def place(self) -> str:
        """Its path below the warehouse; that of the table if `path` is empty."""
        return "/".join(filter(None, (table_name(self.table), self.path)))

    def damage(self, problem: str, *, by_reading: bool = False) -> Damage:
        """The damage of this file."""
        return Damage(
            self.kind,
            self.place,
            problem,
            self._remedy,
            by_reading=by_reading,
            **{one.name: getattr(self, one.name) for one in fields(StoredExtent)},
        )

    @property
    def _remedy(self) -> str:
        window = window_of(self.window or "")
        if self.kind is DamageKind.SNAPSHOT:
            return (
                "Create it again from the backups (kstreams-assets ktables make --window"
                f" {window}), or restore the file from a second copy."
            )
        if not window:
            return ""
        return (
            f"Restore the files from a copy of the warehouse, or back up window {window} again"
            f" (kstreams-assets backup --window {window}) if Kafka still has it; otherwise restore"
            " an earlier recovery point."
        )


class ExpectedFiles(Sequence[ExpectedFile]):
    """Files of one table as columns: there may be a million, and few are needed as objects.

    Args:
        table: The folder of the table.
        files: Columns `path` (as in Delta's log) and `size`; `digest` and `records` if known;
            `row`, the position of the span in `spans`.
        spans: Columns of `ExpectedFile`, which the files of a span share.
    """

    def __init__(self, table: StorePath, files: pa.Table, spans: pa.Table) -> None:
        self.table, self.files, self.spans = table, files, spans

    def __len__(self) -> int:
        return self.files.num_rows

    @overload
    def __getitem__(self, index: int) -> ExpectedFile: ...
    @overload
    def __getitem__(self, index: slice) -> "ExpectedFiles": ...
    def __getitem__(self, index: int | slice) -> "ExpectedFile | ExpectedFiles":
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            assert step == 1  # noqa: S101 - no caller asks for less than neighbours
            return ExpectedFiles(self.table, self.files.slice(begin, end - begin), self.spans)
        return next(iter(self[index : index + 1]))

    def __iter__(self) -> Iterator[ExpectedFile]:
        for begin in range(0, len(self), _ROWS_AT_ONCE):
            rows = self.files.slice(begin, _ROWS_AT_ONCE)
            spans = self.spans.take(rows["row"])
            for row, span in zip(rows.to_pylist(), spans.to_pylist(), strict=True):
                yield self._made(row, span)

    def _made(self, row: Mapping[str, Any], span: Mapping[str, Any]) -> ExpectedFile:
        digest, records = row.get("digest"), row.get("records")
        path = path_in_table(row["path"])
        return ExpectedFile(self.table, path, row["size"], digest, records, **span)

    def of_spans(self, columns: Sequence[str]) -> pa.Table:
        """These columns of the span of each file."""
        return self.spans.select([*columns]).take(self.files["row"])

    def names_and_sizes(self) -> Iterator[tuple[str, int]]:
        """Path below the table, and size, of each."""
        paths, sizes = (self.files[name].to_pylist() for name in ("path", "size"))
        return zip(map(path_in_table, paths), sizes, strict=True)


@dataclass(frozen=True, slots=True)
class SpanFile:
    """One file of a span; its records are in offset order, `[first_offset, last_offset]`.

    `written` is the file as its backup recorded it, None if it did not (earlier releases). `window`
    is the key of its window, empty if the key is not needed.

    With `runs` the file belongs to an older log, and a restore wrote its records to another one:
    only records in the runs count, with their new offsets (`renumbered`). `[first_offset,
    last_offset]` are new offsets.
    """

    path: StorePath
    records: int
    first_offset: int
    last_offset: int
    written: WrittenFile | None = None
    window: str = ""
    runs: OffsetRuns | None = None

    def expected(self, partition: TopicPartitionId) -> ExpectedFile | None:
        """The file as the backup of a partition recorded it, None without a record."""
        if self.written is None:
            return None
        table = self.path
        for _ in path_in_table(self.written.path).split("/"):
            table = table.parent
        return ExpectedFile.of(
            table,
            self.written,
            window=self.window,
            topic=partition.topic,
            partition=partition.partition,
        )


@dataclass(frozen=True, slots=True)
class TableScan:
    """Partitions of the table of records on a disk, at one version.

    `windows` are values of the column `window`, `topic` is that of the column `topic`. The scan
    contains the rows of a list of files, and perhaps rows of other Kafka partitions and offsets:
    readers filter by both.
    """

    table: StorePath
    version: int
    windows: tuple[str, ...]
    topic: str


Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def renumbered(rows: Rows, runs: OffsetRuns | None) -> Rows:
    """Rows of a file with the offsets that readers see (see `SpanFile.runs`)."""
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
