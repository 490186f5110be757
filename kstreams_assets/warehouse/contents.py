"""What the backups of an application hold of its recovery points, and what a restore would give.

Ledger and Delta's log are read once, whatever the number of windows and points; of the files
themselves only columns that are needed where the log does not say enough. No JVM, no broker.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.errors import StoredDataError
from kstreams_assets.layout import Warehouse, WrittenFile, changed_files
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath, readable
from kstreams_assets.warehouse.judge import PointJudge, PointStatus
from kstreams_assets.warehouse.ledger import (
    INCREMENT,
    Chain,
    Ledger,
    TopicFactsTable,
    chains_of,
    facts_in,
)
from kstreams_assets.warehouse.point import (
    PartitionCut,
    PartitionLife,
    RecoveryPoint,
    WantedPartition,
    topic_id_of,
)
from kstreams_assets.warehouse.points import (
    NONE_SAVED,
    RecoveryPointTable,
    SavedRecordsTable,
    by_partition,
)
from kstreams_assets.warehouse.records import (
    DamagedSpans,
    SpanDamage,
    SpanFile,
    file_actions,
    payload_bytes,
)
from kstreams_assets.warehouse.spans import TopicFacts, Window
from kstreams_assets.warehouse.table import storage_failures

LOOK_S = 1.0
"""How long files are looked at before points are judged; the next time goes on from there."""
_BATCH = 16
"""So many points are in memory at a time: one of 1,000 partitions takes 0.7 MB."""

_Offsets = npt.NDArray[np.int64]
_NONE: _Offsets = np.empty(0, np.int64)
_SPAN = ["window", "topic", "partition"]


@dataclass(frozen=True, slots=True)
class Holding:
    """What the warehouse holds of the wanted ranges of one partition.

    `records` is exact, `bytes` an estimate of keys, values and headers. `saved_records` of them lie
    in no file, but were saved with recovery points. `odd_timestamps` counts those with a timestamp
    of 0 or below. `lost` are offsets that Kafka had lost before they could be backed up. `windows`
    are the keys of the backups that the files belong to. `damaged` are spans among them whose files
    do not match the ledger: then nothing else is counted.
    """

    files: tuple[SpanFile, ...] = ()
    records: int = 0
    bytes: int = 0
    saved_records: int = 0
    odd_timestamps: int = 0
    lost: int = 0
    windows: frozenset[str] = frozenset()
    damaged: tuple[SpanDamage, ...] = ()


@dataclass(frozen=True, slots=True)
class NotedFacts:
    """A topic as a backup noted it; `later`: only after the recovery point."""

    facts: TopicFacts
    later: bool


class Contents:
    """The backups of one application, as they were when this object was made.

    Args:
        warehouse: Where they are.
        application: The application as it is declared now.
        backed_up: Topics that are selected for backup; None: all of the application.
        closed: Closed windows that end after an instant (epoch milliseconds), for what is to be
            done where a point is not covered.
        look_s: How long files are looked at before points are judged, see `Ledger.damaged`.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        application: StreamsApplication,
        *,
        backed_up: Collection[str] | None = None,
        closed: Callable[[int], Sequence[Window]] = lambda _: (),
        look_s: float = LOOK_S,
    ) -> None:
        self._warehouse, self._application, self._closed = warehouse, application, closed
        names = {topic.name for topic in application.topics}
        self._backed_up = names if backed_up is None else {*backed_up}
        self._topics = names | self._backed_up
        self._changelogs = {t.name for t in application.with_role(TopicRole.CHANGELOG)}
        self._ledger = Ledger(warehouse, application.application_id)
        self._look_s = look_s
        self._chains = self._read_chains()
        self._unchanged: set[StorePath] = set()

    @classmethod
    def of(cls, settings: ApplicationSettings, *, look_s: float = LOOK_S) -> "Contents":
        """The backups of an application as it is configured."""

        def closed(instant_ms: int) -> Sequence[Window]:
            from kstreams_assets.warehouse.calendar import WindowCalendar

            return WindowCalendar(settings.windows).closed_since(instant_ms)

        return cls(
            settings.warehouse,
            settings.application,
            backed_up={topic.name for topic in settings.topics},
            closed=closed,
            look_s=look_s,
        )

    def at(self, point: RecoveryPoint, wanted: Iterable[WantedPartition]) -> "PointContents":
        """What they hold of these offsets of a point."""
        return PointContents(self, point, wanted)

    def statuses(self, points: Sequence[RecoveryPoint]) -> list[PointStatus]:
        """What a restore of each of these points would give, in the order given."""
        if not points:
            return []
        self._know_changelogs(points)
        application = self._application
        judge = PointJudge(
            self._chains,
            roles={topic.name: topic.roles for topic in application.topics},
            backed_up=self._backed_up,
            not_mine=application.not_mine,
            closed=self._closed(min(point.effective_at_ms for point in points)),
            delete_retention_ms=self._delete_retention_ms,
            damaged=self._damaged,
        )
        return judge.judge(points)

    def statuses_of(self, ids: Sequence[str]) -> Iterator[PointStatus | None]:
        """The same by ids, None where a point was dropped since; few are in memory at a time."""
        table = RecoveryPointTable(self._warehouse)
        for begin in range(0, len(ids), _BATCH):
            batch = ids[begin : begin + _BATCH]
            loaded = table.load(self._application.application_id, batch, damaged_too=True)
            statuses = {status.id: status for status in self.statuses(loaded)}
            yield from map(statuses.get, batch)

    def chain(self, cut: PartitionCut) -> Chain | None:
        """The spans of a partition in the life of its topic that a cut saw, neighbours folded."""
        return self._chains.get(cut.life)

    def files(self, wanted: WantedPartition) -> tuple["StoredFile", ...]:
        """The files that may hold wanted records, in order.

        Nothing is counted: a file may hold none of them.

        Raises:
            StoredDataError: Files do not match the ledger.
        """
        for damage in self.damaged(wanted):
            raise StoredDataError(
                subject=f"The backup of {wanted.cut.id}",
                problem=str(damage),
                remedy=damage.remedy,
            )
        return tuple(self.stored_files(wanted))

    def require_unchanged(self, wanted: Iterable[WantedPartition]) -> None:
        """Before a record is used: the files that may hold wanted ones are those that were written.

        Each is read once in the life of this object, several at a time. Of files of earlier
        releases nothing was noted.

        Raises:
            StoredDataError: One is not as its backup noted it; window, topic, partition are named.
        """
        whose = {
            stored.file.path: (one.cut.id, stored)
            for one in wanted
            for stored in self.stored_files(one)
            if stored.file.written is not None and stored.file.path not in self._unchanged
        }
        noted = [(path, s.file.written) for path, (_, s) in whose.items() if s.file.written]
        for path, problem in changed_files(noted).items():
            partition, stored = whose[path]
            raise StoredDataError(
                subject=f"The backup of {partition}, window {stored.window},",
                problem=problem,
                remedy="Bring the file back from a second copy, or back the window up again"
                f" (kstreams-assets backup --window {stored.window}) while Kafka has it.",
            )
        self._unchanged.update(whose)

    def missing(self, wanted: WantedPartition) -> RangeSet:
        """Wanted offsets that neither a backup nor the saved records answer for."""
        needed, chain = RangeSet(wanted.ranges), self.chain(wanted.cut)
        if wanted.cut.saved_from is not None:
            needed = needed.clip(0, wanted.cut.saved_from)
        return needed - (chain.stored if chain else ())

    def damaged(self, wanted: WantedPartition) -> tuple[SpanDamage, ...]:
        """The damaged spans that wanted records may lie in; every file has been looked at."""
        found = (self._damaged_files.inside(wanted.cut.life, r.start, r.end) for r in wanted.ranges)
        return tuple(dict.fromkeys(damage for damage in found if damage is not None))

    def stored_files(self, wanted: WantedPartition) -> "list[StoredFile]":
        """As `files`, without a look at damage."""
        if not wanted.ranges:
            return []
        low, high = wanted.ranges[0].start, wanted.ranges[-1].end
        return [
            found
            for found in self._files.get(wanted.cut.life, ())
            if found.file.first_offset < high and found.file.last_offset >= low
        ]

    def saved(
        self, point: RecoveryPoint, wanted: Iterable[WantedPartition]
    ) -> Mapping[TopicPartitionId, pa.Table]:
        """The records of the wanted partitions that were saved with points, in order of offsets.

        Those of `[saved_from, end)` of each cut outside its excluded ranges.

        Raises:
            StoredDataError: One was changed since it was saved, or the table is older than the
                point.
        """
        cuts = {
            w.cut.id: w.cut
            for w in wanted
            if w.ranges and w.cut.saved_from is not None and w.cut.saved_from < w.cut.end
        }
        return by_partition(SavedRecordsTable(self._warehouse).of_cuts(point, cuts))

    def facts(self, point: RecoveryPoint, lives: Mapping[str, str]) -> dict[str, NotedFacts]:
        """What was noted of each topic last before the point, else first after it.

        `lives` are the ids of the topics that the point saw, by name; notes of these go before
        notes of another topic of the same name.
        """
        rows = TopicFactsTable(self._warehouse, point.application_id).rows(lives)
        facts = facts_in(rows)
        best: dict[str, tuple[bool, bool, int, int]] = {}
        names = ["topic", "topic_id", "window_end_ms"]
        for index, (topic, life, end_ms) in enumerate(
            zip(*(rows[name].to_pylist() for name in names), strict=True)
        ):
            later = end_ms > point.effective_at_ms
            distance = abs(end_ms - point.effective_at_ms)
            rank = (life != topic_id_of(lives[topic]), later, distance, index)
            best[topic] = min(best.get(topic, rank), rank)
        return {
            topic: NotedFacts(facts[index], later) for topic, (_, later, _, index) in best.items()
        }

    def _read_chains(self) -> Mapping[PartitionLife, Chain]:
        return chains_of(self._ledger.folded_spans(self._topics, holes_matter=self._changelogs))

    @cached_property
    def _damaged(self) -> DamagedSpans:
        return self._ledger.damaged(self._topics, look_s=self._look_s)

    @cached_property
    def _damaged_files(self) -> DamagedSpans:
        return self._ledger.damaged(self._topics)

    @cached_property
    def _delete_retention_ms(self) -> Mapping[str, int]:
        facts = TopicFactsTable(self._warehouse, self._application.application_id)
        return facts.delete_retention_ms(self._topics)

    @cached_property
    def _files(self) -> "Mapping[PartitionLife, list[StoredFile]]":
        path = self._warehouse.records(self._application.application_id)
        columns = [*_SPAN, "topic_id", "records", "bytes", "written"]
        spans = self._ledger.span_rows(self._topics, columns=columns, increments=True)
        return _files_by_life(path, spans, file_actions(path))

    def _know_changelogs(self, points: Iterable[RecoveryPoint]) -> None:
        """A topic may have been a changelog when a point was taken and be declared none now."""
        cuts = (cut for point in points for cut in point.partitions)
        found = {cut.topic for cut in cuts if cut.roles.is_changelog}
        if not found <= self._changelogs:
            self._changelogs |= found
            self._chains = self._read_chains()


class PointContents(Mapping[TopicPartitionId, Holding]):
    """What the backups hold of the wanted partitions of one point, counted exactly."""

    def __init__(
        self, contents: Contents, point: RecoveryPoint, wanted: Iterable[WantedPartition]
    ) -> None:
        self._contents, self.point = contents, point
        self._wanted = {one.cut.id: one for one in wanted}
        self._counted: dict[TopicPartitionId, _Counted] = {}

    def __getitem__(self, partition: TopicPartitionId) -> Holding:
        return self._count(partition).contents

    def __iter__(self) -> Iterator[TopicPartitionId]:
        return iter(self._wanted)

    def __len__(self) -> int:
        return len(self._wanted)

    @cached_property
    def status(self) -> PointStatus:
        """What a restore of the point, as far as these partitions go, would give, and why."""
        return self._contents.statuses([self.point.narrowed(w.cut for w in self._wanted.values())])[
            0
        ]

    def only_saved(self, partition: TopicPartitionId) -> pa.Table:
        """The wanted records that were saved with points and lie in no file."""
        return self._count(partition).only_saved

    @cached_property
    def _saved(self) -> Mapping[TopicPartitionId, pa.Table]:
        return self._contents.saved(self.point, self._wanted.values())

    def _count(self, partition: TopicPartitionId) -> "_Counted":
        if partition not in self._counted:
            wanted = self._wanted[partition]
            saved = self._saved.get(partition, NONE_SAVED)
            self._counted[partition] = _counted(self._contents, wanted, saved)
        return self._counted[partition]


@dataclass(frozen=True, slots=True)
class _Counted:
    contents: Holding
    only_saved: pa.Table


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a span, with the bytes that the ledger notes for a record of it on average.

    `window` is the key of the window that the span belongs to, also of one that is still open.
    """

    file: SpanFile
    window: str
    bytes_per_record: float
    may_be_odd: bool

    @property
    def bytes(self) -> float:
        """About how many bytes of records it holds."""
        return self.bytes_per_record * self.file.records


def _counted(contents: Contents, wanted: WantedPartition, saved: pa.Table) -> _Counted:
    damaged = contents.damaged(wanted)
    if damaged or not wanted.ranges:
        return _Counted(Holding(damaged=damaged), saved.slice(0, 0))
    saved = _inside(saved, wanted.ranges)
    offsets = saved["offset"].to_numpy()
    found = [_Count(file, wanted.ranges, offsets) for file in contents.stored_files(wanted)]
    used = [count for count in found if count.records]
    twice = np.concatenate([_NONE, *(count.saved_too for count in used)])
    saved = saved.filter(pa.array(~np.isin(offsets, twice)))
    return _Counted(
        Holding(
            files=tuple(count.stored.file for count in used),
            records=sum(count.records for count in used) + saved.num_rows,
            bytes=round(sum(c.stored.bytes_per_record * c.records for c in used))
            + int(payload_bytes(saved).sum()),
            saved_records=saved.num_rows,
            odd_timestamps=sum(count.odd_timestamps for count in used) + _odd(saved),
            lost=contents.missing(wanted).size,
            windows=frozenset(count.stored.window for count in used),
        ),
        saved,
    )


class _Count:
    """Records of one file inside the ranges; the file is opened only where it must be."""

    def __init__(
        self, stored: StoredFile, ranges: Sequence[OffsetRange], saved_offsets: _Offsets
    ) -> None:
        self.stored, file = stored, stored.file
        whole = RangeSet(ranges).covers(file.first_offset, file.last_offset + 1)
        first, last = np.searchsorted(saved_offsets, [file.first_offset, file.last_offset + 1])
        near = saved_offsets[first:last]
        self.records, self.odd_timestamps, self.saved_too = file.records, 0, _NONE
        if whole and not len(near) and not stored.may_be_odd:
            return
        columns = ["offset", "timestamp_ms"] if stored.may_be_odd else ["offset"]
        with storage_failures(file.path):
            parquet = pq.ParquetFile(readable(file.path), page_checksum_verification=True)
            rows = _inside(parquet.read(columns=columns), ranges)
        self.records = rows.num_rows
        self.saved_too = near[np.isin(near, rows["offset"].to_numpy())]
        if stored.may_be_odd:
            self.odd_timestamps = _odd(rows)


def _files_by_life(
    path: StorePath, spans: pa.Table, files: pa.Table
) -> dict[PartitionLife, list[StoredFile]]:
    """Files in order of offsets. Those of windows that are not in the ledger do not count."""
    if files.num_rows == 0 or spans.num_rows == 0:
        return {}
    written = {
        file["path"]: WrittenFile(**file)
        for file in spans["written"].combine_chunks().flatten().to_pylist()
    }
    known = spans.drop_columns(["written"])
    files = files.join(known, _SPAN, join_type="inner").sort_by(
        [("topic", "ascending"), ("partition", "ascending"), ("first", "ascending")]
    )
    by_life: dict[PartitionLife, list[StoredFile]] = {}
    for row in files.to_pylist():
        life = (row["topic"], row["partition"], row["topic_id"])
        by_life.setdefault(life, []).append(_stored_file(path, row, written.get(row["path"])))
    return by_life


def _stored_file(
    path: StorePath, row: Mapping[str, Any], written: WrittenFile | None
) -> StoredFile:
    window = row["window"].partition(INCREMENT)[0]
    return StoredFile(
        file=SpanFile(
            path=path / unquote(row["path"]),
            records=row["file_records"],
            first_offset=row["first"],
            last_offset=row["last"],
            written=written,
            window=window,
        ),
        window=window,
        bytes_per_record=row["bytes"] / max(row["records"], 1),
        may_be_odd=row["earliest"] is None or row["earliest"] <= 0,
    )


def _inside(rows: pa.Table, ranges: Sequence[OffsetRange]) -> pa.Table:
    return rows.filter(pa.array(RangeSet(ranges).mask(rows["offset"].to_numpy())))


def _odd(rows: pa.Table) -> int:
    return int((rows["timestamp_ms"].to_numpy() <= 0).sum())
