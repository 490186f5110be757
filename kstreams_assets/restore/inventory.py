"""What the warehouse holds of a recovery point: files, saved records, facts of topics. No JVM.

Reads the ledger and Delta's log once, whatever the number of windows; of the files themselves only
columns that are needed where the log does not say enough.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.errors import StoredDataError
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.restore.record_sizes import payload_bytes
from kstreams_assets.restore.selection import WantedPartition, WantedTopic
from kstreams_assets.restore.target import Holding, NotedFacts
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.ledger import (
    COLUMNS,
    Chain,
    Ledger,
    PartitionLife,
    TopicFactsTable,
    chains_of,
    facts_in,
    spans_of,
)
from kstreams_assets.warehouse.point import RecoveryPoint, topic_id_of
from kstreams_assets.warehouse.points import SavedRecordsTable, by_partition, within_ranges
from kstreams_assets.warehouse.records import COLUMNS as DAMAGE_COLUMNS
from kstreams_assets.warehouse.records import SpanDamage, SpanFile, damaged_spans, file_actions
from kstreams_assets.warehouse.spans import WrittenFile
from kstreams_assets.warehouse.table import storage_failures

_Offsets = npt.NDArray[np.int64]
_SPAN = ["window", "topic", "partition"]


@dataclass(frozen=True, slots=True)
class _StoredFile:
    """A file of a span, with the bytes that the ledger notes for a record of it on average."""

    file: SpanFile
    window: str
    bytes_per_record: float
    may_be_odd: bool


class Inventory:
    """The backups of one application, as they were when this object was made."""

    def __init__(self, warehouse: Warehouse, application_id: str, topics: Collection[str]) -> None:
        self._warehouse, self._application_id = warehouse, application_id
        ledger = Ledger(warehouse, application_id)
        columns = [*dict.fromkeys([*COLUMNS, *DAMAGE_COLUMNS, "bytes"])]
        spans = ledger.span_rows(topics, columns=columns)
        path = warehouse.records(application_id)
        files = file_actions(path)
        self._damage = damaged_spans(path, spans, files, look_at_files=True)
        self._chains: Mapping[PartitionLife, Chain] = chains_of(spans_of(spans, self._damage))
        self._files = _files_by_life(path, spans, files)

    def holdings(
        self, point: RecoveryPoint, topics: Iterable[WantedTopic]
    ) -> dict[TopicPartitionId, Holding]:
        """What is there of each wanted partition, counted exactly where nothing is damaged."""
        wanted = [partition for topic in topics for partition in topic.partitions]
        saves = any(w.ranges and w.cut.saved_from is not None for w in wanted)
        saved = by_partition(SavedRecordsTable(self._warehouse).of_point(point)) if saves else {}
        return {w.cut.id: self._holding(w, saved.get(w.cut.id)) for w in wanted}

    def files(self, wanted: WantedPartition) -> tuple[tuple[SpanFile, float], ...]:
        """The files that may hold wanted records, in order, and about how many bytes of records.

        Nothing is counted: a file may hold none of them.

        Raises:
            StoredDataError: Files do not match the ledger.
        """
        for damage in self._damaged(wanted):
            raise StoredDataError(
                subject=f"The backup of {wanted.cut.id}",
                problem=str(damage),
                remedy=damage.remedy,
            )
        return tuple(
            (found.file, found.bytes_per_record * found.file.records)
            for found in self._near(wanted)
        )

    def missing(self, wanted: WantedPartition) -> tuple[OffsetRange, ...]:
        """Wanted offsets that neither a backup nor the saved records answer for, in order."""
        return tuple(_missing(wanted, self._chains.get(_life(wanted))))

    def facts(self, point: RecoveryPoint, topics: Iterable[WantedTopic]) -> dict[str, NotedFacts]:
        """What was noted of each topic last before the point, else first after it.

        Notes of the life that the point saw go before notes of another topic of the same name.
        """
        lives = {t.source: topic_id_of(t.partitions[0].cut.topic_id) for t in topics}
        rows = TopicFactsTable(self._warehouse, self._application_id).rows(lives)
        facts = facts_in(rows)
        best: dict[str, tuple[bool, bool, int, int]] = {}
        names = ["topic", "topic_id", "window_end_ms"]
        for index, (topic, life, end_ms) in enumerate(
            zip(*(rows[name].to_pylist() for name in names), strict=True)
        ):
            later = end_ms > point.effective_at_ms
            distance = abs(end_ms - point.effective_at_ms)
            rank = (life != lives[topic], later, distance, index)
            best[topic] = min(best.get(topic, rank), rank)
        return {
            topic: NotedFacts(facts[index], later) for topic, (_, later, _, index) in best.items()
        }

    def _damaged(self, wanted: WantedPartition) -> tuple[SpanDamage, ...]:
        """The damaged spans that wanted records may lie in."""
        found = (self._damage.inside(_life(wanted), r.start, r.end) for r in wanted.ranges)
        return tuple(dict.fromkeys(damage for damage in found if damage is not None))

    def _near(self, wanted: WantedPartition) -> list[_StoredFile]:
        if not wanted.ranges:
            return []
        low, high = wanted.ranges[0].start, wanted.ranges[-1].end
        return [
            found
            for found in self._files.get(_life(wanted), ())
            if found.file.first_offset < high and found.file.last_offset >= low
        ]

    def _holding(self, wanted: WantedPartition, saved: pa.Table | None) -> Holding:
        if not wanted.ranges:
            return Holding()
        damaged = self._damaged(wanted)
        if damaged:
            return Holding(damaged=damaged)
        files = self._near(wanted)
        of_saved = _inside(saved, wanted.ranges) if saved is not None else None
        saved_offsets = of_saved["offset"].to_numpy() if of_saved is not None else _NONE
        counts = [_Count(found, wanted.ranges, saved_offsets) for found in files]
        used = [(f, c) for f, c in zip(files, counts, strict=True) if c.records]
        holding = Holding(
            files=tuple(found.file for found, _ in used),
            records=sum(count.records for _, count in used),
            bytes=round(sum(found.bytes_per_record * c.records for found, c in used)),
            odd_timestamps=sum(count.odd_timestamps for _, count in used),
            lost=sum(map(len, _missing(wanted, self._chains.get(_life(wanted))))),
            windows=frozenset(found.window for found, _ in used),
        )
        if of_saved is None:
            return holding
        twice = np.concatenate([_NONE, *(count.saved_too for _, count in used)])
        only_saved = of_saved.filter(pa.array(~np.isin(saved_offsets, twice)))
        return _with_saved(holding, only_saved)


class _Count:
    """Records of one file inside the ranges; the file is opened only where it must be."""

    def __init__(
        self, found: _StoredFile, ranges: Sequence[OffsetRange], saved_offsets: _Offsets
    ) -> None:
        file = found.file
        whole = any(
            wanted.start <= file.first_offset and file.last_offset < wanted.end for wanted in ranges
        )
        first, last = np.searchsorted(saved_offsets, [file.first_offset, file.last_offset + 1])
        near = saved_offsets[first:last]
        self.records, self.odd_timestamps, self.saved_too = file.records, 0, _NONE
        if whole and not len(near) and not found.may_be_odd:
            return
        columns = ["offset", "timestamp_ms"] if found.may_be_odd else ["offset"]
        with storage_failures(file.path):
            parquet = pq.ParquetFile(file.path, page_checksum_verification=True)
            rows = _inside(parquet.read(columns=columns), ranges)
        self.records = rows.num_rows
        self.saved_too = near[np.isin(near, rows["offset"].to_numpy())]
        if found.may_be_odd:
            self.odd_timestamps = _odd(rows)


_NONE: _Offsets = np.empty(0, np.int64)


def _files_by_life(
    path: Path, spans: pa.Table, files: pa.Table
) -> dict[PartitionLife, list[_StoredFile]]:
    """Files in order of offsets. Those of windows that are not in the ledger do not count."""
    if files.num_rows == 0 or spans.num_rows == 0:
        return {}
    written = {
        file["path"]: WrittenFile(**file)
        for file in spans["written"].combine_chunks().flatten().to_pylist()
    }
    known = spans.select([*_SPAN, "topic_id", "records", "bytes"])
    files = files.join(known, _SPAN, join_type="inner").sort_by(
        [("topic", "ascending"), ("partition", "ascending"), ("first", "ascending")]
    )
    by_life: dict[PartitionLife, list[_StoredFile]] = {}
    for row in files.to_pylist():
        life = (row["topic"], row["partition"], row["topic_id"])
        by_life.setdefault(life, []).append(_stored_file(path, row, written.get(row["path"])))
    return by_life


def _stored_file(path: Path, row: Mapping[str, Any], written: WrittenFile | None) -> _StoredFile:
    return _StoredFile(
        file=SpanFile(
            path=path / unquote(row["path"]),
            records=row["file_records"],
            first_offset=row["first"],
            last_offset=row["last"],
            written=written,
        ),
        window=row["window"],
        bytes_per_record=row["bytes"] / max(row["records"], 1),
        may_be_odd=row["earliest"] is None or row["earliest"] <= 0,
    )


def _life(wanted: WantedPartition) -> PartitionLife:
    return wanted.cut.topic, wanted.cut.partition, wanted.cut.topic_id


def _inside(rows: pa.Table, ranges: Sequence[OffsetRange]) -> pa.Table:
    return rows.filter(pa.array(within_ranges(rows["offset"].to_numpy(), ranges)))


def _odd(rows: pa.Table) -> int:
    return int((rows["timestamp_ms"].to_numpy() <= 0).sum())


def _with_saved(holding: Holding, saved: pa.Table) -> Holding:
    return Holding(
        files=holding.files,
        records=holding.records + saved.num_rows,
        bytes=holding.bytes + int(payload_bytes(saved).sum()),
        saved_records=saved.num_rows,
        odd_timestamps=holding.odd_timestamps + _odd(saved),
        lost=holding.lost,
        windows=holding.windows,
    )


def _missing(wanted: WantedPartition, chain: Chain | None) -> Iterator[OffsetRange]:
    saved_from = wanted.cut.saved_from
    for part in wanted.ranges:
        end = part.end if saved_from is None else min(part.end, saved_from)
        offset = part.start
        while offset < end:
            reached = chain.stored.reach(offset) if chain else offset
            if reached == offset:
                following = chain.stored.next_start(offset) if chain else None
                reached = end if following is None else min(following, end)
                yield OffsetRange(offset, reached)
            offset = reached
