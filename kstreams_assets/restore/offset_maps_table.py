"""The table `offset_maps`: where the records of each restored partition went.

One row for each run, and one more for each partition that tells its end (`length` 0). The map of a
compacted changelog has a run per record, so rows are written and read by the column.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.errors import StoredDataError
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.offset_map import OffsetMap, OffsetRuns, merge_runs
from kstreams_assets.restore.result import PartitionProduced
from kstreams_assets.warehouse.column import ApplicationId, Column
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.rows import rows_of
from kstreams_assets.warehouse.table import Table, one_of


@dataclass(frozen=True, slots=True)
class MapRow:
    """A row of the table: a run, or the end of a partition."""

    application_id: ApplicationId
    restore_id: Annotated[str, Column("The restore.")]
    topic: Annotated[str, Column("Source topic.")]
    partition: Annotated[int, Column("Source partition.", type="int32")]
    target_topic: Annotated[str, Column("Topic on the target.")]
    target_partition: Annotated[int, Column("Partition on the target.", type="int32")]
    source_start: Annotated[
        int | None,
        Column("First source offset of the run; null in the row that tells the end."),
    ]
    target_start: Annotated[
        int, Column("Its target offset; in the row that tells the end, the target's end.")
    ]
    length: Annotated[
        int,
        Column("Records with consecutive offsets on both sides; 0 in the row that tells the end."),
    ]
    digest: Annotated[
        str | None,
        Column(
            "In the row that tells the end: SHA-256 of the partition's map; compared when it is"
            " read. Null in rows of earlier releases."
        ),
    ]


_NAMES = rows_of(MapRow).schema.names
_LOADED = [name for name in _NAMES if name not in ("application_id", "restore_id")]


@dataclass(frozen=True, slots=True)
class StoredMap:
    """Where the records of one partition went."""

    target: TopicPartitionId
    map: OffsetMap


class OffsetMapsTable:
    """Offset maps of the restores of all applications."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = Table(
            warehouse.control("offset_maps"),
            MapRow,
            grows_along="restore_id",
            statistics=("restore_id", "topic", "partition", "source_start"),
            bulky=True,
        )

    def record(
        self, application_id: str, restore_id: str, produced: Iterable[PartitionProduced]
    ) -> None:
        """Put the maps of all partitions of a restore in place of earlier ones, in one commit.

        Raises:
            OffsetMapError: The runs of a partition contradict each other; nothing is stored.
        """
        parts = [
            _columns(application_id, restore_id, partition)
            for partition in sorted(produced, key=lambda p: p.source)
        ]
        if not parts:
            return
        rows = pa.concat_tables(parts).unify_dictionaries()
        self._table.rewrite(application_id, restore_id, restore_id, lambda _: rows)
        self._table.tidy()

    def load(
        self, application_id: str, restore_id: str, *, topics: Collection[str] | None = None
    ) -> Mapping[TopicPartitionId, StoredMap]:
        """The maps of a restore by source partition; of all topics, or of these source topics.

        Empty when the restore has stored none.

        Raises:
            OffsetMapError: The stored runs of a partition contradict each other.
            StoredDataError: They are not those that were stored.
        """
        where = pc.field("restore_id") == restore_id
        if topics is not None:
            where &= one_of("topic", topics)
        rows = self._table.read(application_id=application_id, columns=_LOADED, where=where)
        runs_by_partition = _runs(rows.filter(pc.field("length") > 0))
        none = OffsetRuns((), (), ())
        ends = rows.filter(pc.field("length") == 0).to_pylist()
        for row in ends:
            source = TopicPartitionId(row["topic"], row["partition"])
            target = TopicPartitionId(row["target_topic"], row["target_partition"])
            runs = runs_by_partition.get(source, none)
            # Maps of earlier releases have no digest.
            if row["digest"] not in (None, _digest(target, runs, row["target_start"])):
                raise StoredDataError(
                    subject=f"The offset map of {source} in restore {restore_id}",
                    problem="it does not match the digest that was noted when it was stored",
                    remedy="Bring the table offset_maps back from a copy of the warehouse, or run"
                    " the restore again: it writes nothing twice and stores the map anew.",
                )
        return {
            (source := TopicPartitionId(row["topic"], row["partition"])): StoredMap(
                target=TopicPartitionId(row["target_topic"], row["target_partition"]),
                map=OffsetMap(
                    runs_by_partition.get(source, none), row["target_start"], partition=source
                ),
            )
            for row in sorted(ends, key=lambda row: (row["topic"], row["partition"]))
        }

    def ends(self, application_id: str, restore_id: str) -> Mapping[TopicPartitionId, int]:
        """The end behind the last restored record of each target partition; reads no runs."""
        where = (pc.field("restore_id") == restore_id) & (pc.field("length") == 0)
        columns = ["target_topic", "target_partition", "target_start"]
        rows = self._table.read(application_id=application_id, columns=columns, where=where)
        return {
            TopicPartitionId(row["target_topic"], row["target_partition"]): row["target_start"]
            for row in rows.to_pylist()
        }


def _columns(application_id: str, restore_id: str, produced: PartitionProduced) -> pa.Table:
    """The rows of one partition: its runs in order, then its end."""
    runs = merge_runs([produced.runs], partition=produced.source)
    OffsetMap(runs, produced.end, partition=produced.source)  # refuses what contradicts itself
    count = len(runs) + 1
    source, target = produced.source, produced.target
    behind_last = np.arange(count) == len(runs)
    columns = {
        "application_id": pa.repeat(application_id, count),
        "restore_id": _repeated(restore_id, count),
        "topic": _repeated(source.topic, count),
        "partition": pa.repeat(pa.scalar(source.partition, pa.int32()), count),
        "target_topic": _repeated(target.topic, count),
        "target_partition": pa.repeat(pa.scalar(target.partition, pa.int32()), count),
        "source_start": pa.array(np.append(runs.source_starts, 0), mask=behind_last),
        "target_start": pa.array(np.append(runs.target_starts, produced.end)),
        "length": pa.array(np.append(runs.lengths, 0)),
        "digest": pa.array([None] * len(runs) + [_digest(target, runs, produced.end)], pa.string()),
    }
    return pa.table([columns[name] for name in _NAMES], names=_NAMES)


def _digest(target: TopicPartitionId, runs: OffsetRuns, end: int) -> str:
    """A digest of the map of one partition, whose runs are in order of source offsets."""
    numbers = (runs.source_starts, runs.target_starts, runs.lengths)
    content = hashlib.sha256(f"{target.topic}\n{target.partition}\n{end}\n".encode())
    for column in numbers:
        content.update(np.ascontiguousarray(column, "<i8").tobytes())
    return content.hexdigest()


def _repeated(text: str, count: int) -> pa.DictionaryArray:
    """A text by the million: one byte for each row instead of the text."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array([text]))


def _runs(rows: pa.Table) -> dict[TopicPartitionId, OffsetRuns]:
    """The runs of each partition, in order; `rows` may be in any."""
    if rows.num_rows == 0:
        return {}
    topics = rows["topic"].combine_chunks().dictionary_encode()
    partition = rows["partition"].to_numpy().astype(np.int64)
    width = int(partition.max()) + 1
    codes = topics.indices.to_numpy() * width + partition
    source, target, lengths = (
        rows[name].to_numpy() for name in ("source_start", "target_start", "length")
    )
    order = np.lexsort((source, codes))
    codes = codes[order]
    found, starts = np.unique(codes, return_index=True)
    names = topics.dictionary.to_pylist()
    return {
        TopicPartitionId(names[code // width], code % width): OffsetRuns(
            source[mine], target[mine], lengths[mine]
        )
        for code, mine in zip(found.tolist(), np.split(order, starts[1:]), strict=True)
    }
