"""The contents of an application's backups for its recovery points, and their restorability.

Ledger and Delta's log are read once, whatever the number of windows and points. The files
themselves are read only for columns that the log does not describe well enough. No JVM, no broker.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kstreams_assets.app.model import StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.errors import StoredDataError
from kstreams_assets.model.chains import Chain, StoredSpan, chains_of, merge_spans
from kstreams_assets.model.damage import NOTHING_DAMAGED, Damage, DamagedSpans
from kstreams_assets.model.data_files import (
    By,
    ExpectedFiles,
    SpanFile,
    TableScan,
    renumbered,
)
from kstreams_assets.model.files import WrittenFile, path_in_table
from kstreams_assets.model.numbered import distinct
from kstreams_assets.model.point import (
    PartitionCut,
    PartitionIncarnation,
    RecoveryPoint,
    WantedPartition,
    topic_id_of,
)
from kstreams_assets.model.restorability import PointStatus
from kstreams_assets.model.snapshot import TableStore
from kstreams_assets.model.spans import NotedFacts, Window, window_of
from kstreams_assets.offsets import OffsetMap, OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.repository.evaluator import RestorabilityEvaluator
from kstreams_assets.repository.inspection import inspect
from kstreams_assets.repository.ledger import facts_in
from kstreams_assets.repository.points import NONE_SAVED
from kstreams_assets.repository.prefixes import Prefix, Prefixes
from kstreams_assets.repository.records import SPAN, noted_files, payload_bytes
from kstreams_assets.repository.repository import INSPECT_TIMEOUT_S, Repository
from kstreams_assets.store import StorePath, store_at
from kstreams_assets.store.failures import storage_failures

if TYPE_CHECKING:
    from kstreams_assets.repository.store_states import StoreStates

_BATCH = 16
"""Number of points in memory at a time: one of 1,000 partitions takes 0.7 MB."""

_Offsets = npt.NDArray[np.int64]
_NONE: _Offsets = np.empty(0, np.int64)
_ENDLESS: Final = 2**62
FEWEST_SCANNED: Final = 200
"""Fewer files are read from their list: Delta Lake takes longer to read its log [measured]."""
_PLACE: Final = ["window", "topic", "partition", "first", "last"]


@dataclass(frozen=True, slots=True)
class PartitionContents:
    """The stored part of the requested ranges of one partition.

    `records` is exact, `bytes` an estimate of keys, values and headers. `saved_records` of them are
    in no file, but were saved with recovery points. `non_positive_timestamps` counts non-positive
    timestamps. `lost` are offsets that Kafka had lost before they could be backed up, `expired`
    those that `expire` dropped because no kept point needs them. `windows` are the keys of the
    files' backups. `damaged` are spans among them whose files do not match the ledger: then nothing
    else is counted.
    """

    files: Sequence[SpanFile] = ()
    records: int = 0
    bytes: int = 0
    saved_records: int = 0
    non_positive_timestamps: int = 0
    lost: int = 0
    expired: int = 0
    windows: frozenset[str] = frozenset()
    damaged: tuple[Damage, ...] = ()


class View(Repository):
    """One state of an application's warehouse: everything is planned from a view.

    Ledger and list of files are those at its creation; each other table stays as it was when the
    view read it first. The Repository shares all data that was read.

    Args:
        repo: The repository, see `Repository.reading`.
        application: The application as currently declared.
        backed_up: Topics that are selected for backup; None: all of the application.
        closed: Closed windows that end after a time (epoch milliseconds), for the remedy of
            points that are not covered.
        inspect_timeout_s: How long files are inspected before points are evaluated, see
            `Ledger.damaged`; None: points are evaluated by the ledger alone, as if nothing was
            damaged.
        requested_inspect_timeout_s: How long files with requested records are inspected, if the
            warehouse is on a disk; by default all are.
    """

    def __init__(
        self,
        repo: Repository,
        application: StreamsApplication,
        *,
        backed_up: Collection[str] | None = None,
        closed: Callable[[int], Sequence[Window]] = lambda _: (),
        inspect_timeout_s: float | None = INSPECT_TIMEOUT_S,
        requested_inspect_timeout_s: float = math.inf,
    ) -> None:
        super().__init__(repo.warehouse, repo.application_id)
        self.known = repo.known.for_view()
        self.ledger.pin()
        self._application, self._closed = application, closed
        names = {topic.name for topic in application.topics}
        self.roles = {topic.name: topic.roles for topic in application.topics}
        self._backed_up = names if backed_up is None else {*backed_up}
        self._topics = names | self._backed_up
        self._changelogs = {t.name for t in application.with_role(TopicRole.CHANGELOG)}
        self._instead: tuple[str, tuple[StoredSpan, ...]] | None = None
        self._inspect_timeout_s, self._inspect_left_s = (
            inspect_timeout_s,
            requested_inspect_timeout_s,
        )
        self.files_unseen = 0
        """Files that may have requested records and were not inspected because time ran out."""
        self.files_damaged = False
        """Whether some inspected files are missing or have another size."""
        if inspect_timeout_s is not None:
            # It takes longest and runs in native code; the next caller gets its error as well.
            pool = ThreadPoolExecutor(1)
            # In a thread of its own it would not know the state at which a copy is read.
            pool.submit(copy_context().run, self.ledger.file_actions)
            pool.shutdown(wait=False)
        self.prefixes = Prefixes(self)
        self._chains = self._read_chains()
        self._joined: dict[PartitionIncarnation, PartitionFiles | None] = {}
        self._unchanged: set[StorePath] = set()

    def with_spans(self, topic: str, spans: Iterable[StoredSpan]) -> "View":
        """A copy in which the ledger has these spans of a topic; for `statuses` only."""
        other = copy(self)
        other._instead = topic, tuple(spans)  # noqa: SLF001
        other._chains = other._read_chains()  # noqa: SLF001
        return other

    def contents(self, point: RecoveryPoint, wanted: Iterable[WantedPartition]) -> "PointContents":
        """The stored part of these offsets of a point."""
        return PointContents(self, point, wanted)

    def states(self, stores: Sequence[TableStore]) -> "StoreStates":
        """The states of these stores at points, with their parts."""
        from kstreams_assets.repository.store_states import StoreStates

        return StoreStates(self, stores)

    def statuses(self, points: Sequence[RecoveryPoint]) -> list[PointStatus]:
        """The restorability of each of these points, in the given order."""
        if not points:
            return []
        self._know_changelogs(points)
        application = self._application
        evaluator = RestorabilityEvaluator(
            self._chains,
            roles=self.roles,
            backed_up=self._backed_up,
            not_mine=application.not_mine,
            closed=self._closed(min(point.effective_at_ms for point in points)),
            delete_retention_ms=self._delete_retention_ms,
            damaged=self._damaged,
        )
        return evaluator.evaluate(points)

    def statuses_of(self, ids: Sequence[str]) -> Iterator[PointStatus | None]:
        """The same by ids, None if a point has been dropped; few are in memory at a time."""
        table = self.points
        for begin in range(0, len(ids), _BATCH):
            batch = ids[begin : begin + _BATCH]
            loaded = table.load(batch, damaged_too=True)
            statuses = {status.id: status for status in self.statuses(loaded)}
            yield from map(statuses.get, batch)

    def beyond(
        self, ids: Collection[str], matters: Callable[[str, TopicRoles], bool]
    ) -> frozenset[str]:
        """Those of the points that are certainly not covered: they need offsets beyond all backups.

        This needs few columns, so that few of the many points of an open window are loaded. The
        others may be covered or not. Only topics that matter are checked. Changelogs and records in
        flight are never checked, because they may have been saved with the points.
        """
        if not ids:
            return frozenset()
        table = self.points
        cuts = table.cuts(ids)
        found, of_cut = distinct(cuts, ["topic", "partition", "topic_id", "roles"])
        ends: list[int] = []
        for row in found.to_pylist():
            names = (row.pop("roles") or "").split(",")
            roles = TopicRoles(map(TopicRole, filter(None, names)))
            roles = roles or self.roles.get(row["topic"], roles)
            chain = self._chains.get(tuple(row.values()))
            ends.append(
                max((r.end for r in chain.recorded), default=0)
                if chain
                and row["topic"] in self._backed_up
                and not (roles.is_changelog or roles.in_flight_only)
                and matters(row["topic"], roles)
                else _ENDLESS
            )
        end = cuts["end"].to_numpy()
        # Of an input, a restore may need only uncommitted records.
        needed = np.maximum(
            cuts["log_start"].to_numpy(), pc.fill_null(cuts["committed"], 0).to_numpy()
        )
        is_beyond = (end > np.array(ends, np.int64)[of_cut]) & (needed < end)
        return frozenset(cuts["id"].filter(pa.array(is_beyond)).unique().to_pylist())

    def chain(self, cut: PartitionCut) -> Chain | None:
        """The spans of a partition of the topic incarnation in a cut, with neighbours merged."""
        return self._chains.get(cut.life)

    def files(self, wanted: WantedPartition) -> tuple["StoredFile", ...]:
        """The files that may have requested records, in order.

        Records are not counted: a file may have none of them.

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

    def scan(self, wanted: Sequence[WantedPartition]) -> TableScan | None:
        """The partitions of the records table whose rows in the wanted ranges are those of `files`.

        The partitions are those that the ledger names. None where the table has to be read by its
        files: it is not on a disk, a restore gave records other offsets, there are few files, or
        partition and offset do not tell wanted records from others (of another incarnation of the
        topic, or of a backup that ended before its rows of the ledger).
        """
        if store_at(self.warehouse.root).on_disk is None:
            return None
        found = [(one, self.log(one)) for one in wanted if one.ranges]
        files = [(one, log) for one, log in found if log is not None]
        if not files or any(log.is_restored for _, log in files):
            return None
        if not self.ledger.records_have_all_columns():
            return None
        ranges = [(one.cut.partition, one.ranges) for one, _ in files]
        near = [log.positions(log.near(one.ranges)) for one, log in files]
        return files[0][1].table_log.scan(np.concatenate(near), ranges)

    def require_unchanged(self, wanted: Iterable[WantedPartition]) -> None:
        """Check, before a record is used, that the files that may have requested ones are intact.

        Each file is read once during the life of this object, several at a time. For files of
        earlier releases no digest was recorded.

        Raises:
            StoredDataError: A file is not intact; names window, topic, partition.
        """
        files = {
            stored.file.path: expected
            for one in wanted
            for stored in self.stored_files(one)
            if stored.file.path not in self._unchanged
            and (expected := stored.file.expected(one.cut.id))
        }
        inspect([*files.values()], By.DIGEST).require_intact()
        self._unchanged.update(files)

    def missing(self, wanted: WantedPartition) -> RangeSet:
        """Requested offsets that neither a backup nor the saved records cover."""
        needed, chain = RangeSet(wanted.ranges), self.chain(wanted.cut)
        if wanted.cut.saved_from is not None:
            needed = needed.clip(0, wanted.cut.saved_from)
        return needed - (chain.stored if chain else ())

    def expired(self, wanted: WantedPartition) -> RangeSet:
        """The missing offsets that `expire` has dropped."""
        chain = self.chain(wanted.cut)
        return self.missing(wanted) & (chain.expired if chain else ())

    def damaged(self, wanted: WantedPartition) -> tuple[Damage, ...]:
        """The damaged spans with requested records; their files have been inspected."""
        life = wanted.cut.life
        known = [self._damaged.inside(life, r.start, r.end) for r in wanted.ranges]
        found = [*filter(None, known), *self._inspect(wanted)]
        return tuple(dict.fromkeys(found))

    def _inspect(self, wanted: WantedPartition) -> Iterator[Damage]:
        """Check that each file that may have requested records exists and has its size."""
        if not store_at(self.warehouse.root).on_disk:
            # A store lists a thousand objects faster than it describes a few separately.
            all_ = self.prefixes.join_damage(self.ledger.damaged(self._topics))
            found = (all_.inside(wanted.cut.life, r.start, r.end) for r in wanted.ranges)
            yield from filter(None, found)
            return
        files = self.log(wanted)
        if files is None:
            return
        numbers = files.near(wanted.ranges)
        began = time.monotonic()
        found = inspect(files.expected(numbers[::-1]), By.SIZE, until=began + self._inspect_left_s)
        self._inspect_left_s -= time.monotonic() - began
        self.files_unseen += len(numbers) - found.files
        self.files_damaged |= bool(found)
        yield from found

    def stored_files(self, wanted: WantedPartition) -> "list[StoredFile]":
        """Like `files`, without a check for damage."""
        if not wanted.ranges:
            return []
        files = self.log(wanted)
        return list(files.stored(files.near(wanted.ranges))) if files else []

    def log(self, wanted: WantedPartition) -> "PartitionFiles | None":
        """All files of a partition of the topic incarnation in a cut; None without any."""
        return self._log_of(wanted.cut.life)

    def _log_of(self, life: PartitionIncarnation) -> "PartitionFiles | None":
        """Its files, after those of the older log with restored records."""
        prefix = self.prefixes.get(life)
        if prefix is None:
            return self._files.get(life)
        if life not in self._joined:
            older = self._log_of(prefix.cut.life)
            self._joined[life] = joined_files(older, prefix, self._files.get(life))
        return self._joined[life]

    def saved(
        self, point: RecoveryPoint, wanted: Iterable[WantedPartition]
    ) -> Mapping[TopicPartitionId, pa.Table]:
        """The requested partitions' records that were saved with points, in order of offsets.

        Those of `[saved_from, end)` of each cut outside its excluded ranges.

        Raises:
            StoredDataError: A record was changed after it was saved, or the table is older than the
                point.
        """
        return self.prefixes.saved(point, {w.cut.id: w.cut for w in wanted if w.ranges})

    def facts(self, point: RecoveryPoint, lives: Mapping[str, str]) -> dict[str, NotedFacts]:
        """The last record of each topic before the point, else the first after it.

        `lives` are the ids of the topics that the point saw, by name; their records take precedence
        over those of another topic with the same name.
        """
        rows = self.topics.rows(lives)
        ends_ms = rows["window_end_ms"].to_numpy()
        later = ends_ms > point.effective_at_ms
        best: dict[str, int] = {}
        for topic, life in lives.items():
            of_topic = pc.call_function("equal", [rows["topic"], topic]).to_numpy()
            number = np.flatnonzero(of_topic)
            if len(number):
                other = pc.call_function("not_equal", [rows["topic_id"], topic_id_of(life)])
                distance = np.abs(ends_ms[number] - point.effective_at_ms)
                best[topic] = int(
                    number[np.lexsort((distance, later[number], other.to_numpy()[number]))[0]]
                )
        facts = facts_in(rows.take(pa.array(best.values(), pa.int64())))
        return {
            topic: NotedFacts(of_it, bool(later[number]))
            for (topic, number), of_it in zip(best.items(), facts, strict=True)
        }

    def _read_chains(self) -> Mapping[PartitionIncarnation, Chain]:
        spans = self.ledger.merged_spans(self._topics, holes_matter=self._changelogs)
        if self._instead is not None:
            topic, others = self._instead
            spans = [span for span in spans if span.partition.topic != topic]
            spans += merge_spans(others, holes_matter=self._changelogs)
        return self.prefixes.join(chains_of(spans))

    @cached_property
    def _damaged(self) -> DamagedSpans:
        if self._inspect_timeout_s is None:
            return NOTHING_DAMAGED
        return self.prefixes.join_damage(
            self.ledger.damaged(self._topics, inspect_timeout_s=self._inspect_timeout_s)
        )

    @cached_property
    def _delete_retention_ms(self) -> Mapping[str, int]:
        facts = self.topics
        return facts.delete_retention_ms(self._topics)

    @cached_property
    def _files(self) -> "Mapping[PartitionIncarnation, PartitionFiles]":
        compared = self.ledger.compared()
        if compared.found is None or compared.found.num_rows == 0:
            return {}
        path = self.records_path
        log = _Log(path, compared.rows, compared.found, compared.unnamed, compared.version)
        return log.by_life()

    def _know_changelogs(self, points: Iterable[RecoveryPoint]) -> None:
        """Add topics that were changelogs at a point but are not declared as changelogs now."""
        cuts = (cut for point in points for cut in point.partitions)
        found = {cut.topic for cut in cuts if cut.roles.is_changelog}
        if not found <= self._changelogs:
            self._changelogs |= found
            self._chains = self._read_chains()


class PointContents(Mapping[TopicPartitionId, PartitionContents]):
    """The stored part of the requested partitions of one point, counted exactly."""

    def __init__(
        self, contents: View, point: RecoveryPoint, wanted: Iterable[WantedPartition]
    ) -> None:
        self._contents, self.point = contents, point
        self._wanted = {one.cut.id: one for one in wanted}
        self._counted: dict[TopicPartitionId, _Counted] = {}

    def __getitem__(self, partition: TopicPartitionId) -> PartitionContents:
        return self._count(partition).contents

    def __iter__(self) -> Iterator[TopicPartitionId]:
        return iter(self._wanted)

    def __len__(self) -> int:
        return len(self._wanted)

    @cached_property
    def status(self) -> PointStatus:
        """The restorability of the point, as far as these partitions matter, with the reason."""
        return self._contents.statuses([self.point.narrowed(w.cut for w in self._wanted.values())])[
            0
        ]

    def only_saved(self, partition: TopicPartitionId) -> pa.Table:
        """The requested records that were saved with points and are in no file."""
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
    contents: PartitionContents
    only_saved: pa.Table


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a span, with the average record size from the ledger.

    `window` is the key of the span's window, also of an open one.
    """

    file: SpanFile
    window: str
    bytes_per_record: float
    may_be_odd: bool

    @property
    def bytes(self) -> float:
        """The approximate size of its records in bytes."""
        return self.bytes_per_record * self.file.records


class _Log:
    """Delta's log and the ledger about every file, as columns: there may be a million."""

    def __init__(
        self, root: StorePath, spans: pa.Table, found: pa.Table, unnamed: pa.Table, version: int
    ) -> None:
        """`spans` are rows of the ledger, `found` their files at a `version` (see `Comparison`)."""
        self.root, self.version = root, version
        self._places = found.select(_PLACE)
        self._unnamed = unnamed.select(_PLACE)
        self.paths = found["path"].combine_chunks()
        self.noted = noted_files(spans)
        self.noted_at = _filled(found["noted"], -1)
        self.row: _Offsets = found["row"].to_numpy()
        self.first, self.last = _filled(found["first"], 0), _filled(found["last"], 0)
        self.records, self.size = (_filled(found[n], 0) for n in ("file_records", "size_bytes"))
        sized = np.flatnonzero(self.noted_at >= 0)
        self.size[sized] = self.noted["size"].to_numpy()[self.noted_at[sized]]
        self.may_be_odd = _filled(found["earliest"], 0) <= 0
        self.spans = spans.drop_columns("written").combine_chunks()
        records = self.spans["records"].to_numpy()
        self.bytes_per_record = self.spans["bytes"].to_numpy() / np.maximum(records, 1)
        windows = self.spans["window"].combine_chunks().dictionary_encode()
        self.window_keys = [window_of(key) for key in windows.dictionary.to_pylist()]
        self.window: _Offsets = windows.indices.to_numpy()

    def by_life(self) -> "dict[PartitionIncarnation, PartitionFiles]":
        """The files of each partition."""
        spans = self.spans
        life = np.zeros(spans.num_rows, np.int64)
        for name in ("topic", "partition", "topic_id"):
            code = spans[name].combine_chunks().dictionary_encode().indices.to_numpy()
            life = life * (int(code.max(initial=0)) + 1) + code
        order = np.lexsort((self.first, life[self.row]))
        edges = np.flatnonzero(np.diff(life[self.row][order])) + 1
        found = {}
        for at in np.split(order, edges):
            if len(at):
                row = spans.slice(int(self.row[at[0]]), 1).to_pylist()[0]
                found[row["topic"], row["partition"], row["topic_id"]] = PartitionFiles(self, at)
        return found

    def scan(
        self, at: _Offsets, ranges: Sequence[tuple[int, Sequence[OffsetRange]]]
    ) -> TableScan | None:
        """Files by their positions, of one topic, as partitions of the table; see `View.scan`."""
        if len(at) < FEWEST_SCANNED:
            return None
        wanted = self._places.take(pa.array(at))
        topics = wanted["topic"].unique().to_pylist()
        windows = wanted["window"].unique()
        if len(topics) > 1:
            return None
        others = np.ones(self._places.num_rows, np.bool_)
        others[at] = False
        beside = [self._places.filter(pa.array(others)), self._unnamed]
        inside = pc.field("topic").isin(topics) & pc.field("window").isin(windows)
        if _may_hold(pa.concat_tables(beside).filter(inside), ranges):
            return None
        return TableScan(self.root, self.version, tuple(sorted(windows.to_pylist())), topics[0])

    @cached_property
    def digests(self) -> pa.Array:
        """The recorded digest of each file."""
        return self.noted["digest"].combine_chunks()

    def expected(self, at: _Offsets) -> ExpectedFiles:
        """Files by their positions, in their original state: path, size and span."""
        columns = {
            "path": self.paths.take(pa.array(at)),
            "size": pa.array(self.size[at]),
            "row": pa.array(self.row[at]),
        }
        return ExpectedFiles(self.root, pa.table(columns), self.spans.select(SPAN))

    def span_files(self, at: _Offsets) -> Iterator[SpanFile]:
        """Files by their positions."""
        paths = self.paths.take(pa.array(at)).to_pylist()
        noted_at = pa.array(self.noted_at[at], mask=self.noted_at[at] < 0)
        digests = self.digests.take(noted_at).to_pylist()
        records = self.noted["records"].combine_chunks().take(noted_at).to_pylist()
        numbers = (each[at].tolist() for each in (self.size, self.records, self.first, self.last))
        keys = map(self.window_keys.__getitem__, self.window[self.row[at]].tolist())
        for path, digest, of_it, window, size, count, first, last in zip(
            paths, digests, records, keys, *numbers, strict=True
        ):
            written = None if digest is None else WrittenFile(path, size, of_it, digest)
            yield SpanFile(self.root / path_in_table(path), count, first, last, written, window)


def _may_hold(files: pa.Table, ranges: Sequence[tuple[int, Sequence[OffsetRange]]]) -> bool:
    """Whether files may hold records of these partitions and offset ranges, by their statistics."""
    partition, first = _filled(files["partition"], -1), _filled(files["first"], 0)
    last = _filled(files["last"], _ENDLESS)
    return any(
        bool(
            (
                ((partition == number) | (partition < 0))
                & (first < of_it[-1].end)
                & (last >= of_it[0].start)
            ).any()
        )
        for number, of_it in ranges
    )


def _filled(column: pa.ChunkedArray, null: int) -> _Offsets:
    return pc.fill_null(column, null).to_numpy().astype(np.int64)


class PartitionFiles:
    """The files of one partition of one topic incarnation, in order of offsets, as columns.

    There may be one for each of ten thousand windows; objects are made only for requested ones.
    """

    def __init__(self, log: _Log, at: _Offsets) -> None:
        self._log, self._at = log, at
        self.first, self.last, self.records = log.first[at], log.last[at], log.records[at]
        self.bytes_per_record = log.bytes_per_record[log.row[at]]
        self.may_be_odd = log.may_be_odd[at]
        self.uncertain = np.zeros(len(at), np.bool_)
        """Files that may have fewer relevant records than `records`: they have to be opened."""
        self._maps: tuple[OffsetMap, ...] = ()
        self._map_of = np.full(len(at), -1, np.int64)
        """For files of an older log, the maps that give their records the offsets of this one."""

    def restored(self, prefix: Prefix) -> "PartitionFiles":
        """Those of them with restored records, under the new offsets."""
        first, behind = prefix.map.map_all(self.first), prefix.map.map_all(self.last + 1)
        counted = prefix.map.all_below(self.last + 1) - prefix.map.all_below(self.first)
        whole = prefix.source - prefix.cut.saved
        is_whole = (counted == self.records) & whole.cover(self.first, self.last + 1)
        some = np.flatnonzero(counted > 0)
        made = PartitionFiles(self._log, self._at[some])
        made.first, made.last = first[some], behind[some] - 1
        made.records = counted[some]
        made.uncertain = self.uncertain[some] | ~is_whole[some]
        made._maps = (prefix.map, *(one.then(prefix.map) for one in self._maps))
        made._map_of = self._map_of[some] + 1
        return made

    def followed_by(self, others: "PartitionFiles") -> "PartitionFiles":
        """These files of an older log, then those of the log itself."""
        made = PartitionFiles(self._log, np.concatenate((self._at, others._at)))  # noqa: SLF001
        for name in ("first", "last", "records", "uncertain", "_map_of"):
            both = getattr(self, name), getattr(others, name)
            setattr(made, name, np.concatenate(both))
        made._maps = self._maps
        return made

    def near(self, ranges: Sequence[OffsetRange]) -> _Offsets:
        """Numbers of the files that may have offsets of these ranges, which are in order."""
        if not ranges:
            return _NONE
        return np.flatnonzero((self.first < ranges[-1].end) & (self.last >= ranges[0].start))

    def span_files(self, numbers: _Offsets) -> Iterator[SpanFile]:
        """Files by their numbers."""
        files = self._log.span_files(self._at[numbers])
        if not self._maps:
            yield from files
            return
        for number, file in zip(numbers.tolist(), files, strict=True):
            at = int(self._map_of[number])
            if at < 0:
                yield file
                continue
            first, last = int(self.first[number]), int(self.last[number])
            runs = self._maps[at].runs_in(file.first_offset, file.last_offset)
            yield replace(file, first_offset=first, last_offset=last, runs=runs)

    def stored(self, numbers: _Offsets) -> Iterator[StoredFile]:
        """The same, with the ledger's data about them."""
        for number, file in zip(numbers.tolist(), self.span_files(numbers), strict=True):
            yield StoredFile(
                file=file,
                window=file.window,
                bytes_per_record=float(self.bytes_per_record[number]),
                may_be_odd=bool(self.may_be_odd[number]),
            )

    def window_keys(self, numbers: _Offsets) -> frozenset[str]:
        """Keys of the files' windows."""
        log = self._log
        codes = log.window[log.row[self._at[numbers]]].tolist()
        return frozenset(map(log.window_keys.__getitem__, codes))

    @property
    def table_log(self) -> _Log:
        """What the log of their table says of all files."""
        return self._log

    @property
    def is_restored(self) -> bool:
        """Whether some are of an older log, so that their records have other offsets here."""
        return bool(self._maps)

    def positions(self, numbers: _Offsets) -> _Offsets:
        """Positions in `table_log`."""
        return self._at[numbers]

    def expected(self, numbers: _Offsets) -> ExpectedFiles:
        """Files by their numbers, in their original state."""
        return self._log.expected(self._at[numbers])


class FileList(Sequence[SpanFile]):
    """Some files of a partition; objects are made on access.

    Equal to any sequence of the same files.
    """

    __slots__ = ("_files", "_numbers")

    def __init__(self, files: PartitionFiles, numbers: _Offsets) -> None:
        self._files, self._numbers = files, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> SpanFile: ...
    @overload
    def __getitem__(self, index: slice) -> "FileList": ...
    def __getitem__(self, index: int | slice) -> "SpanFile | FileList":
        if isinstance(index, slice):
            return FileList(self._files, self._numbers[index])
        return next(self._files.span_files(self._numbers[[index]]))

    def __iter__(self) -> Iterator[SpanFile]:
        return self._files.span_files(self._numbers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"FileList({len(self)})"


def _counted(contents: View, wanted: WantedPartition, saved: pa.Table) -> _Counted:
    damaged = contents.damaged(wanted)
    if damaged or not wanted.ranges:
        return _Counted(PartitionContents(damaged=damaged), saved.slice(0, 0))
    saved = _inside(saved, wanted.ranges)
    offsets = saved["offset"].to_numpy()
    files, stored, twice = contents.log(wanted), PartitionContents(), _NONE
    if files is not None:
        stored, twice = _in_files(files, wanted.ranges, offsets)
    saved = saved.filter(pa.array(~np.isin(offsets, twice)))
    return _Counted(
        replace(
            stored,
            records=stored.records + saved.num_rows,
            bytes=stored.bytes + int(payload_bytes(saved).sum()),
            saved_records=saved.num_rows,
            non_positive_timestamps=stored.non_positive_timestamps + _odd(saved),
            lost=contents.missing(wanted).size - contents.expired(wanted).size,
            expired=contents.expired(wanted).size,
        ),
        saved,
    )


def _in_files(
    files: PartitionFiles, ranges: Sequence[OffsetRange], saved_offsets: _Offsets
) -> tuple[PartitionContents, _Offsets]:
    """The records in files of the ranges, and which of the saved offsets; opens few files."""
    numbers = files.near(ranges)
    first, last = files.first[numbers], files.last[numbers]
    low, high = (np.searchsorted(saved_offsets, edges) for edges in (first, last + 1))
    whole = RangeSet(ranges).cover(first, last + 1)
    records = files.records[numbers].copy()
    opened = np.flatnonzero(
        ~whole | (low < high) | files.may_be_odd[numbers] | files.uncertain[numbers]
    )
    odd, twice = 0, [_NONE]
    for index, stored in zip(opened.tolist(), files.stored(numbers[opened]), strict=True):
        count = _Count(stored, ranges, saved_offsets)
        records[index] = count.records
        odd += count.non_positive_timestamps
        twice.append(count.saved_too)
    used = numbers[records > 0]
    holding = PartitionContents(
        files=FileList(files, used),
        records=int(records.sum()),
        bytes=round(float((files.bytes_per_record[numbers] * records).sum())),
        non_positive_timestamps=odd,
        windows=files.window_keys(used),
    )
    return holding, np.concatenate(twice)


class _Count:
    """Records of one file inside the ranges."""

    def __init__(
        self, stored: StoredFile, ranges: Sequence[OffsetRange], saved_offsets: _Offsets
    ) -> None:
        file = stored.file
        first, last = np.searchsorted(saved_offsets, [file.first_offset, file.last_offset + 1])
        near = saved_offsets[first:last]
        columns = ["offset", "timestamp_ms"] if stored.may_be_odd else ["offset"]
        with storage_failures(file.path):
            parquet = pq.ParquetFile(
                store_at(file.path).readable(), page_checksum_verification=True
            )
            rows = _inside(renumbered(parquet.read(columns=columns), file.runs), ranges)
        self.records = rows.num_rows
        self.saved_too = near[np.isin(near, rows["offset"].to_numpy())]
        self.non_positive_timestamps = _odd(rows) if stored.may_be_odd else 0


def joined_files(
    older: PartitionFiles | None, prefix: Prefix, own: PartitionFiles | None
) -> PartitionFiles | None:
    """The files of a log that starts with restored records: those of the older log first."""
    restored = None if older is None else older.restored(prefix)
    if restored is None or own is None:
        return restored or own
    return restored.followed_by(own)


def _inside(rows: pa.Table, ranges: Sequence[OffsetRange]) -> pa.Table:
    return rows.filter(pa.array(RangeSet(ranges).mask(rows["offset"].to_numpy())))


def _odd(rows: pa.Table) -> int:
    return int((rows["timestamp_ms"].to_numpy() <= 0).sum())
