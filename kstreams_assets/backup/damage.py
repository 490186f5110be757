"""Compares the ledger with the files that should hold its records. No JVM."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.kafka.positions import OffsetRange
from kstreams_assets.warehouse.digest import file_problem

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
    "written",
]
"""The columns of the ledger that `damaged_spans` needs."""

_SPAN = ["window", "topic", "partition"]

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


def damaged_spans(
    path: Path, rows: pa.Table, actions: pa.Table, *, look_at_files: bool = False
) -> DamagedSpans:
    """The spans among rows of the ledger (`COLUMNS`) that the records table does not hold.

    Compared are the number of records, the first and the last offset, and the names of the files,
    as Delta's log has them (`actions`, see `file_actions`); with `look_at_files` also that each
    file is there and has its size.
    """
    if rows.num_rows == 0:
        return NOTHING_DAMAGED
    numbered = rows.select(COLUMNS).append_column("row", pa.array(np.arange(rows.num_rows)))
    problems = _counts(numbered, actions)
    for row, problem in _files(path, numbered, actions, look_at_files=look_at_files):
        problems.setdefault(row, problem)
    spans = numbered.select(COLUMNS[:6])
    return DamagedSpans(
        SpanDamage(**spans.slice(row, 1).to_pylist()[0], problem=problem)
        for row, problem in problems.items()
    )


def _counts(rows: pa.Table, actions: pa.Table) -> dict[int, str]:
    """Spans with other records than the ledger says, by number of their row."""
    there = actions.group_by(_SPAN).aggregate(
        [("file_records", "sum"), ("first", "min"), ("last", "max")]
    )
    joined = rows.drop_columns(["written"]).join(there, _SPAN, join_type="left outer")
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


def _files(
    path: Path, rows: pa.Table, actions: pa.Table, *, look_at_files: bool
) -> list[tuple[int, str]]:
    """Other files than were written, with the number of their span's row."""
    written = rows["written"].combine_chunks()
    files = written.flatten()
    noted = pa.table(
        {
            "row": rows["row"].combine_chunks().take(written.value_parent_indices()),
            "path": files.field("path"),
            "size": files.field("size"),
        }
    )
    stored = actions.select([*_SPAN, "path", "size_bytes"]).join(
        rows.select([*_SPAN, "row"]), _SPAN, join_type="inner"
    )
    lacking = noted.join(stored.select(["path"]), "path", join_type="left anti")
    foreign = stored.filter(pc.field("row").isin(noted["row"].unique())).join(
        noted.select(["path"]), "path", join_type="left anti"
    )
    problems = [
        (row["row"], f"its file {_name(row['path'])} is not in the records table any more")
        for row in lacking.to_pylist()
    ]
    problems += [
        (row["row"], f"its file {_name(row['path'])} was not written by its backup")
        for row in foreign.to_pylist()
    ]
    if look_at_files:
        sizes = stored.join(noted.select(["path", "size"]), "path", join_type="left outer")
        for row in sizes.to_pylist():
            size = row["size_bytes"] if row["size"] is None else row["size"]
            problem = file_problem(path / unquote(row["path"]), size)
            if problem:
                problems.append((row["row"], problem))
    return problems


def _name(path: str) -> str:
    return Path(unquote(path)).name
