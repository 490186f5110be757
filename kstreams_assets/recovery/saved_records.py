"""The table `recovery_point_records`: records of recovery points that cannot wait for a backup.

Repartition records in flight, which the application deletes as soon as it has processed them, and
the tails of changelogs, which compaction thins out. A record is saved once, under the id of the
point that saved it; later points whose ranges reach back refer to it by its offset.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.errors import StoredDataError
from kstreams_assets.kafka.raw_record import RawRecord
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.offset_ranges import OffsetRanges, matching
from kstreams_assets.recovery.point import PartitionCut, RecoveryPoint
from kstreams_assets.warehouse.column import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TIMESTAMP_TYPE,
    VALUE,
    ApplicationId,
    Column,
    TopicId,
    TopicName,
)
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.rows import rows_of
from kstreams_assets.warehouse.table import StoredFile, Table


@dataclass(frozen=True, slots=True)
class Header:
    """A header of a record."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class SavedRecord:
    """A row of the table; there are many, so that they are written and read by the column."""

    application_id: ApplicationId
    recovery_point_id: Annotated[
        str, Column("The point that saved the record; later ones refer to it by offset.")
    ]
    topic: TopicName
    topic_id: TopicId
    partition: Annotated[int, PARTITION]
    offset: Annotated[int, OFFSET]
    timestamp_ms: Annotated[int, TIMESTAMP]
    timestamp_type: Annotated[int, TIMESTAMP_TYPE]
    headers: Annotated[tuple[Header, ...], HEADERS]
    key: Annotated[bytes | None, KEY]
    value: Annotated[bytes | None, VALUE]
    digest: Annotated[
        bytes | None,
        Column(
            "BLAKE2b (16 bytes) of the record with its topic and partition; compared when it is"
            " read. Null in rows of earlier releases."
        ),
    ]


SCHEMA = rows_of(SavedRecord).schema
_HEADERS = SCHEMA.field("headers").type
_DIGEST_BYTES = 16
_KEY = ["topic", "partition", "topic_id", "offset"]


@dataclass(frozen=True, slots=True)
class SavedTail:
    """Records of one partition that one point saves, in offset order."""

    partition: TopicPartitionId
    topic_id: str
    records: Sequence[RawRecord]


class SavedRecordsTable:
    """Saved records of all applications."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = Table(
            warehouse.control("recovery_point_records"),
            SavedRecord,
            grows_along="recovery_point_id",  # ids sort by the time their point was taken
            statistics=("recovery_point_id", "topic", "partition", "offset"),
            bulky=True,
            small_files=128,  # as those of the points
        )

    def append(self, application_id: str, point_id: str, tails: Iterable[SavedTail]) -> int:
        """Store what a point saves, in one commit, before the point itself; number of records."""
        parts = [_columns(application_id, point_id, tail) for tail in tails if tail.records]
        if not parts:
            return 0
        rows = pa.concat_tables(parts)
        self._table.append_table(rows)
        return rows.num_rows

    def version(self) -> int:
        """The version of the table; it grows with each change."""
        return self._table.version()

    def _require_all_of(self, point: RecoveryPoint) -> None:
        """Refuse a table that lacks the commit with which records of a point were saved.

        Raises:
            StoredDataError: It is older than the point.
        """
        version = self.version()
        if point.saved_version is not None and version < point.saved_version:
            raise StoredDataError(
                subject="The table recovery_point_records",
                problem=f"recovery point {point.id} was stored when it had version"
                f" {point.saved_version}, now it has {version}: its last commits are missing, as in"
                " a copy that was made while a point was taken",
                remedy="Bring the table recovery_point_records back from a later copy of the"
                " warehouse, or restore a recovery point that does not need it.",
            )

    def of_point(self, point: RecoveryPoint) -> pa.Table:
        """The saved records that belong to a point, each once, by topic, partition and offset.

        Columns as in `SCHEMA`. What a backup was said to hold without holes (see `drop_unneeded`)
        is not among them.

        Raises:
            StoredDataError: One of them was changed since it was saved, or the table is older than
                the point.
        """
        cuts = {cut.id: cut for cut in point.partitions if cut.saved_from is not None}
        return self.of_cuts(point, cuts)

    def of_cuts(
        self, point: RecoveryPoint, cuts: Mapping[TopicPartitionId, PartitionCut]
    ) -> pa.Table:
        """The records in `[saved_from, end)` outside the excluded ranges of cuts of a point.

        Whichever points saved them.

        Raises:
            StoredDataError: As `of_point`.
        """
        if not cuts:
            return SCHEMA.empty_table()
        self._require_all_of(point)
        rows = self._table.read(application_id=point.application_id, where=_near(cuts.values()))
        found = chosen(rows, cuts)
        _require_unchanged(found)
        return found

    def files(self, application_id: str) -> list[StoredFile]:
        """The files of an application by the ids of the points whose records they hold."""
        return self._table.files(application_id)

    def needed_rows(
        self, application_id: str, file: StoredFile, needed: OffsetRanges, fresh_from: str
    ) -> int:
        """How many rows of a file `drop_unneeded` would leave; reads their keys only."""
        point_id = pc.field("recovery_point_id")
        rows = self._table.read(
            application_id=application_id,
            columns=[*_KEY, "recovery_point_id"],
            where=(point_id >= file.low) & (point_id <= file.high),
        )
        return int(_stays(rows, needed, fresh_from).sum())

    def drop_unneeded(
        self, application_id: str, low: str, high: str, needed: OffsetRanges, fresh_from: str
    ) -> int:
        """Put the files of points `[low, high]` together without what nobody needs; rows dropped.

        `needed` is what the stored points refer to. Rows of point ids from `fresh_from` on stay:
        their point may be about to be stored.
        """
        dropped = 0

        def change(rows: pa.Table) -> pa.Table:
            nonlocal dropped
            stays = rows.filter(pa.array(_stays(rows, needed, fresh_from)))
            stays = _each_once(stays.combine_chunks())
            dropped = rows.num_rows - stays.num_rows
            return stays

        self._table.rewrite(application_id, low, high, change)
        return dropped

    def tidy(self) -> None:
        """Drop files and log entries that are no longer part of the table."""
        self._table.tidy()


def chosen(rows: pa.Table, cuts: Mapping[TopicPartitionId, PartitionCut]) -> pa.Table:
    """Of saved records those that belong to these cuts, each once, in order."""
    inside = OffsetRanges.of_cuts(cuts.values()).mask(rows)
    return _each_once(rows.filter(pa.array(inside)))


def by_partition(saved: pa.Table) -> dict[TopicPartitionId, pa.Table]:
    """Saved records, which come by topic, partition and offset, cut into partitions."""
    if saved.num_rows == 0:
        return {}
    saved = saved.combine_chunks()
    topics = saved["topic"].combine_chunks().dictionary_encode().indices.to_numpy()
    partitions = saved["partition"].to_numpy()
    changes = (topics[1:] != topics[:-1]) | (partitions[1:] != partitions[:-1])
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), saved.num_rows]
    found = {}
    for start, end in pairwise(starts):
        rows = saved.slice(start, end - start)
        found[TopicPartitionId(rows["topic"][0].as_py(), rows["partition"][0].as_py())] = rows
    return found


def _near(cuts: Iterable[PartitionCut]) -> pc.Expression:
    """A coarse filter, one range of offsets per topic, by which files are skipped."""
    ranges: dict[str, tuple[int, int]] = {}
    for cut in cuts:
        low, high = ranges.get(cut.topic, (cut.end, cut.end))
        ranges[cut.topic] = min(low, cut.saved_from or 0), max(high, cut.end)
    offset = pc.field("offset")
    wanted = pc.scalar(False)
    for topic, (low, high) in ranges.items():
        wanted |= (pc.field("topic") == topic) & (offset >= low) & (offset < high)
    return wanted


def _stays(rows: pa.Table, needed: OffsetRanges, fresh_from: str) -> npt.NDArray[np.bool_]:
    ids = rows["recovery_point_id"].combine_chunks()
    return needed.mask(rows) | matching(ids, lambda point_id: point_id >= fresh_from)


def _each_once(rows: pa.Table) -> pa.Table:
    """In order; what a later point had to read again (an excluded range, decided) only once."""
    rows = rows.sort_by([(name, "ascending") for name in (*_KEY, "recovery_point_id")])
    if rows.num_rows < 2:
        return rows
    first = np.zeros(rows.num_rows, np.bool_)
    first[0] = True
    for name in _KEY:
        values = rows[name].combine_chunks().dictionary_encode().indices.to_numpy()
        first[1:] |= values[1:] != values[:-1]
    return rows if first.all() else rows.filter(pa.array(first))


def _columns(application_id: str, point_id: str, tail: SavedTail) -> pa.Table:
    offsets, times, kinds, keys, values, headers = zip(*tail.records, strict=True)
    count = len(offsets)
    columns = [
        pa.repeat(application_id, count),
        pa.repeat(point_id, count),
        pa.repeat(tail.partition.topic, count),
        pa.repeat(tail.topic_id, count),
        pa.repeat(pa.scalar(tail.partition.partition, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        pa.array(times, pa.int64()),
        pa.array(kinds, pa.int32()),
        _header_column(headers),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([_digest(tail.partition, record) for record in tail.records], pa.binary()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _digest(partition: TopicPartitionId, record: RawRecord) -> bytes:
    """A digest of one record and where it belongs: of the text that Python writes for its parts."""
    text = ascii((partition.topic, partition.partition, *record))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _require_unchanged(rows: pa.Table) -> None:
    """Rows of earlier releases have no digest: nothing is known of them."""
    names = ("topic", "partition", *RawRecord._fields, "recovery_point_id", "digest")
    columns = [rows.column(name).to_pylist() for name in names]
    for topic, number, *fields, headers, point_id, digest in zip(*columns, strict=True):
        offset, timestamp_ms, timestamp_type, key, value = fields
        pairs = tuple((header["key"], header["value"]) for header in headers or ())
        record = RawRecord(offset, timestamp_ms, timestamp_type, key, value, pairs)
        source = TopicPartitionId(topic, number)
        if digest is not None and digest != _digest(source, record):
            raise StoredDataError(
                subject=f"Offset {record.offset} of {source}, saved with recovery point"
                f" {point_id},",
                problem="it does not match the digest that was noted when it was saved",
                remedy="Bring the table recovery_point_records back from a copy of the warehouse,"
                " or restore a recovery point that does not need it.",
            )


def _header_column(headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> pa.Array:
    names = [name for of_one in headers for name, _ in of_one]
    values = [value for of_one in headers for _, value in of_one]
    ends = np.cumsum([0, *map(len, headers)], dtype=np.int32)
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())],
        fields=[_HEADERS.value_type.field(0), _HEADERS.value_type.field(1)],
    )
    return pa.ListArray.from_arrays(pa.array(ends), pairs, type=_HEADERS)
