"""Faults seeded into a restore: span files with a record dropped, altered or written twice."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.model.restores import PartitionProduced
from kstreams_assets.offsets import runs_of
from kstreams_assets.restore.plan import PartitionPlan, RestorePlan
from spark_resources.partition_records import PartitionWork, work_offsets
from tests.repository.disk import on_disk
from tests.streams.cluster import unique_name

Edit = Callable[[pa.Table], pa.Table]
"""The records of a span, in order of offsets -> the same with a fault; None does not occur."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong in one partition of a topic (named without prefix)."""

    topic: str
    edit: Edit


def drop_an_order(rows: pa.Table) -> pa.Table:
    """The first record is not there."""
    return rows.slice(1)


def alter_an_amount(rows: pa.Table) -> pa.Table:
    """The first valid order has an amount of one cent more."""
    values = rows["value"].to_pylist()
    at, order = next((n, found) for n, one in enumerate(values) if (found := _order(one)))
    values[at] = json.dumps({**order, "amount_cents": order["amount_cents"] + 1}).encode()
    column = rows.schema.get_field_index("value")
    return rows.set_column(column, rows.schema.field(column), pa.array(values, pa.binary()))


def write_twice(rows: pa.Table) -> pa.Table:
    """A record comes once more, at the offset of the transaction marker behind it."""
    offsets = rows["offset"].to_pylist()
    at = next(n for n, (one, other) in enumerate(pairwise(offsets)) if other > one + 1)
    column = rows.schema.get_field_index("offset")
    again = rows.slice(at, 1).set_column(
        column, rows.schema.field(column), pa.array([offsets[at] + 1], pa.int64())
    )
    return pa.concat_tables([rows.slice(0, at + 1), again, rows.slice(at + 1)])


def in_plan(plan: RestorePlan, prefix: str, fault: Fault, folder: Path) -> RestorePlan:
    """A plan whose backup has the fault: it is written so, and compared with that."""
    return replace(
        plan,
        topics=tuple(
            replace(topic, partitions=_first_spoiled(topic.partitions, fault, folder))
            if topic.source == prefix + fault.topic
            else topic
            for topic in plan.topics
        ),
    )


def in_works(
    works: Sequence[PartitionWork], prefix: str, faults: Sequence[Fault], folder: Path
) -> list[PartitionWork]:
    """What is produced has the faults, each in partition 0 of its topic."""
    by_topic = {prefix + fault.topic: fault for fault in faults}
    return [
        _spoiled_work(work, by_topic[work.source.topic], folder)
        if work.source.topic in by_topic and work.source.partition == 0
        else work
        for work in works
    ]


def told_as_planned(work: PartitionWork) -> PartitionProduced:
    """What producing a partition tells when nothing goes wrong."""
    offsets = [int(offset) for batch in work_offsets(work) for offset in batch]
    end = work.base_offset + work.records
    runs = tuple(runs_of(offsets, range(work.base_offset, end)))
    return PartitionProduced(work.source, work.target, runs, work.records, 0, end)


def _first_spoiled(
    partitions: Sequence[PartitionPlan], fault: Fault, folder: Path
) -> tuple[PartitionPlan, ...]:
    first, *others = partitions
    file, *more = first.files
    path, added = _spoiled(on_disk(file.path), fault, folder)
    # The fault is one of the time before the backup noted its files.
    files = (replace(file, path=path, records=file.records + added, written=None), *more)
    return replace(first, files=files, records=first.records + added), *others


def _spoiled_work(work: PartitionWork, fault: Fault, folder: Path) -> PartitionWork:
    first, *more = work.files
    path, added = _spoiled(on_disk(first), fault, folder)
    return replace(work, files=(path, *more), records=work.records + added)


def _spoiled(path: Path, fault: Fault, folder: Path) -> tuple[Path, int]:
    """A copy of a span file with the fault, and how many records more it has."""
    rows = pq.ParquetFile(path).read()
    made = fault.edit(rows)
    copy = folder / f"{unique_name('span')}.parquet"
    pq.write_table(made, copy)
    return copy, made.num_rows - rows.num_rows


def _order(value: bytes | None) -> dict[str, Any] | None:
    """A valid order, None for any other value."""
    try:
        found = json.loads(value or b"")
    except ValueError:
        return None
    is_order = isinstance(found, dict) and found.get("customer_id")
    amount = found.get("amount_cents") if is_order else None
    return found if isinstance(amount, int) and amount > 0 else None
