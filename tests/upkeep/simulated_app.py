"""An application that never ran: its windows and points made by hand, backed up as real ones are.

Keys come and go, transactions overlap recovery points, records wait in a repartition topic. What a
restore of a point has to give is known, so that nothing that happens to the backups later can
change it unnoticed.
"""

import copy
import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.app.model import AppTopic, Store, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.backup.result import TopicBackup
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.data_files import renumbered
from kstreams_assets.model.files import NewFile
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import (
    Guarantee,
    Method,
    PartitionCut,
    PartitionIncarnation,
    RecoveryPoint,
    WantedPartition,
    new_point_id,
)
from kstreams_assets.model.restores import (
    PartitionProduced,
    RestoreMode,
    RestoreState,
    StoredRestore,
    StoredTopic,
)
from kstreams_assets.model.spans import (
    Gap,
    GapCause,
    SpanContent,
    SpanId,
    SpanPlan,
    SpanResult,
    TopicFacts,
    Window,
)
from kstreams_assets.model.tables import Lock
from kstreams_assets.offsets import OffsetMap, OffsetRange, RangeSet, TopicPartitionId, runs_of
from kstreams_assets.repository.committer import commit, uncommitted
from kstreams_assets.repository.ledger import Ledger, TopicFactsTable
from kstreams_assets.repository.records import contents_of, ensure_records
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, KeepSettings, WindowSchedule
from kstreams_assets.store import store_at
from spark_resources.data_files import FILE, NewFolder, SpanEdges, SpanFiles
from tests.repository.disk import on_disk

APPLICATION_ID: Final = "shop"
INPUT, FLIGHT, STATE, OUTPUT = (
    "orders",
    "shop-by-customer-repartition",
    "shop-totals-changelog",
    "sums",
)
ROLES: Final[Mapping[str, TopicRole]] = {
    INPUT: TopicRole.INPUT,
    FLIGHT: TopicRole.REPARTITION,
    STATE: TopicRole.CHANGELOG,
    OUTPUT: TopicRole.OUTPUT,
}
PARTITIONS: Final = 2
KEYS: Final = 25
COMPACT: Final = (("cleanup.policy", "compact"),)

Configs = tuple[tuple[str, str], ...]
MASTER, TABLE, RATES = "customers", "prices", "rates"
MORE: Final[Mapping[str, tuple[TopicRoles, Configs]]] = {
    MASTER: (TopicRoles({TopicRole.INPUT}), COMPACT),
    TABLE: (TopicRoles({TopicRole.INPUT, TopicRole.CHANGELOG}), COMPACT),
    RATES: (TopicRoles({TopicRole.GLOBAL}), COMPACT),
}
"""Topics that others write and Kafka compacts: an input, one that is a changelog too, a global."""

State = dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Row:
    """A committed record."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp_ms: int


@dataclass(slots=True)
class SimulatedApp:
    """The application, its logs as Kafka would have them, and its backups.

    `logs` are the committed records of each partition, `committed` the group's offsets.
    """

    settings: ApplicationSettings
    chance: random.Random
    logs: dict[TopicPartitionId, list[Row]] = field(default_factory=dict)
    ends: dict[TopicPartitionId, int] = field(default_factory=dict)
    backed_up: dict[TopicPartitionId, int] = field(default_factory=dict)
    committed: dict[TopicPartitionId, int] = field(default_factory=dict)
    points: list[RecoveryPoint] = field(default_factory=list)
    per_window: int = 30
    topic_ids: dict[str, str] = field(default_factory=dict)
    gone: dict[PartitionIncarnation, list[Row]] = field(default_factory=dict)
    """The logs of topics that were recreated since."""
    cluster_id: str = "source"
    restored: dict[TopicPartitionId, int] = field(default_factory=dict)
    """Where what the last restore wrote ends."""
    produced: int = 0
    """Records that the application and its producers have written, restores apart."""
    configs: dict[str, Configs] = field(default_factory=dict)
    read_slowly: set[str] = field(default_factory=set)
    """Topics of which the group reads two records of each partition in a window, and no more."""

    @classmethod
    def at(
        cls,
        warehouse: Warehouse,
        *,
        seed: int,
        windows: int,
        keep: KeepSettings,
        more: Mapping[str, tuple[TopicRoles, Configs]] | None = None,
    ) -> "SimulatedApp":
        """One whose next `windows` windows are closed already, with `more` topics."""
        more = more or {}
        topics = tuple(AppTopic(name, TopicRoles({role})) for name, role in ROLES.items())
        topics += tuple(AppTopic(name, roles) for name, (roles, _) in more.items())
        stores = [
            Store(f"{name} table", name, is_global=TopicRole.GLOBAL in roles)
            for name, (roles, _) in more.items()
            if roles.rebuilds_store
        ]
        start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(
            hours=windows
        )
        settings = ApplicationSettings(
            application=StreamsApplication(
                APPLICATION_ID, topics, stores=(Store("totals", STATE), *stores)
            ),
            topics=topics,
            connection=KafkaConnection(bootstrap_servers="127.0.0.1:1"),
            warehouse=warehouse,
            windows=WindowSchedule.every("hour", start=f"{start:%Y-%m-%d-%H:%M}"),
            store_formats={name: StoreFormat() for name in ("totals", *(s.name for s in stores))},
            keep=keep,
        )
        made = cls(settings, random.Random(seed))
        for topic in topics:
            made.topic_ids[topic.name] = f"{topic.name}-id"
            made.configs[topic.name] = COMPACT if topic.name == STATE else ()
            for number in range(PARTITIONS):
                id_ = TopicPartitionId(topic.name, number)
                made.logs[id_], made.ends[id_], made.backed_up[id_] = [], 0, 0
                if topic.roles.is_read_by_group:
                    made.committed[id_] = 0
        made.configs |= {name: configs for name, (_, configs) in more.items()}
        warehouse.make()
        return made

    @property
    def roles(self) -> dict[str, TopicRoles]:
        """Of every topic."""
        return {topic.name: topic.roles for topic in self.settings.topics}

    def recreate(self, topic: str) -> None:
        """Delete a topic and make it again; what it held since its last backup is gone."""
        for number in range(PARTITIONS):
            id_ = TopicPartitionId(topic, number)
            self.gone[topic, number, self.topic_ids[topic]] = self.logs[id_]
            self.logs[id_], self.ends[id_], self.backed_up[id_] = [], 0, 0
            if id_ in self.committed:
                self.committed[id_] = 0
        self.topic_ids[topic] += "+"

    def fail_over(self, point: RecoveryPoint, cluster_id: str) -> None:
        """Restore a point onto another cluster, and continue there."""
        warehouse, id_of = self.settings.warehouse, f"{cluster_id}-{len(self.points)}"
        committed = {(o.topic, o.partition): o.offset for o in point.group_offsets}
        produced: list[PartitionProduced] = []
        topics: list[StoredTopic] = []
        for topic, roles in self.roles.items():
            records = 0
            for number in range(PARTITIONS):
                cut = point.cut(TopicPartitionId(topic, number))
                assert cut is not None
                low = committed[topic, number] if roles.in_flight_only else cut.log_start
                rows = [r for r in self.log_of(cut) if r.offset >= low and cut.holds(r.offset)]
                self.gone[topic, number, self.topic_ids[topic]] = self.logs[cut.id]
                self.logs[cut.id] = [replace(r, offset=n) for n, r in enumerate(rows)]
                self.ends[cut.id] = self.restored[cut.id] = len(rows)
                self.backed_up[cut.id] = 0
                runs = runs_of([r.offset for r in rows], [*range(len(rows))])
                done = PartitionProduced(cut.id, cut.id, runs, len(rows), 0, len(rows))
                produced.append(done)
                records += len(rows)
                if cut.id in self.committed:
                    self.committed[cut.id] = OffsetMap(runs, len(rows)).map(
                        committed[topic, number]
                    )
            self.topic_ids[topic] = f"{topic}-{id_of}"
            topics.append(StoredTopic(topic, topic, f"{topic}-{id_of}", (0,) * PARTITIONS, records))
        self.cluster_id = cluster_id
        Repository(warehouse, APPLICATION_ID).offset_maps.record(id_of, produced)
        Repository(warehouse, APPLICATION_ID).restores.append(
            StoredRestore(
                application_id=APPLICATION_ID,
                restore_id=id_of,
                state=RestoreState.COMMITTED,
                changed_at_ms=point.taken_at_ms + 1,
                created_at_ms=point.taken_at_ms + len(self.points),
                run_id="simulated",
                point_id=point.id,
                group=APPLICATION_ID,
                target_cluster_id=cluster_id,
                target_bootstrap_servers="127.0.0.1:1",
                mode=RestoreMode.STATE,
                request="{}",
                topics=tuple(topics),
            )
        )

    def log_of(self, cut: PartitionCut) -> list[Row]:
        """The log of a partition in the incarnation that a cut saw."""
        return self.gone.get(cut.life, self.logs[cut.id])

    @property
    def windows(self) -> list[Window]:
        """Those that are closed."""
        calendar = WindowCalendar(self.settings.windows)
        return calendar.closed_since(calendar.first_ms)

    @property
    def ledger(self) -> Ledger:
        """Of the application."""
        return Ledger(self.settings.warehouse, APPLICATION_ID)

    def run(self, windows: Iterable[Window], *, points_in_window: int = 1) -> None:
        """Live through windows: work, points, a backup of each."""
        for window in windows:
            for number in range(points_in_window):
                before = dict(self.committed)
                self._work(window)
                slowly = {i: at + 2 for i, at in before.items() if i.topic in self.read_slowly}
                self.committed |= slowly
                length = window.end_ms - window.start_ms
                at_ms = window.start_ms + length * (number + 1) // points_in_window - 1_000
                self.take(at_ms)
            self.back_up(window)

    def produce(self, window: Window) -> None:
        """Work for a while, without a point."""
        self._work(window)

    def follow(self, window: Window, *, increments: int) -> None:
        """Live through the begin of a window, and back up each point by an increment."""
        length = window.end_ms - window.start_ms
        for number in range(increments):
            self._work(window)
            self.take(window.start_ms + length * (number + 1) // (increments + 1))
            self.back_up(window.increment(number, window.start_ms, window.end_ms))

    def _work(self, window: Window) -> None:
        chance = self.chance
        for number in range(PARTITIONS):
            for _ in range(chance.randrange(self.per_window)):
                self._write(INPUT, number, b"order", b"%d" % chance.randrange(1_000), window)
            got = self.ends[TopicPartitionId(INPUT, number)]
            read = TopicPartitionId(INPUT, number)
            self.committed[read] = max(self.committed[read], got - chance.randrange(8))
            for _ in range(chance.randrange(self.per_window)):
                self._write(FLIGHT, number, b"by customer", b"%d" % chance.randrange(10**6), window)
            waits = TopicPartitionId(FLIGHT, number)
            self.committed[waits] = max(
                self.committed[waits], self.ends[waits] - chance.randrange(5)
            )
            for _ in range(chance.randrange(self.per_window)):
                key = b"customer-%d" % chance.randrange(KEYS)
                value = None if chance.random() < 0.2 else b"total %d" % chance.randrange(10**6)
                self._write(STATE, number, key, value, window)
                self._write(OUTPUT, number, key, value, window)
            for name in (STATE, OUTPUT):
                self.ends[TopicPartitionId(name, number)] += chance.randrange(3)  # markers
        for name in (name for name in self.roles if name not in ROLES):
            for number in range(PARTITIONS):
                self._work_more(name, number, window)

    def _work_more(self, topic: str, number: int, window: Window) -> None:
        chance, id_ = self.chance, TopicPartitionId(topic, number)
        for _ in range(chance.randrange(self.per_window)):
            key = b"master-%d" % chance.randrange(KEYS)
            value = None if chance.random() < 0.2 else b"%d" % chance.randrange(10**6)
            self._write(topic, number, key, value, window)
        if id_ in self.committed:
            self.committed[id_] = max(self.committed[id_], self.ends[id_] - chance.randrange(8))

    def _write(
        self, topic: str, number: int, key: bytes, value: bytes | None, window: Window
    ) -> None:
        id_ = TopicPartitionId(topic, number)
        self.logs[id_].append(Row(self.ends[id_], key, value, window.start_ms + self.ends[id_]))
        self.ends[id_] += 1
        self.produced += 1

    def take(self, at_ms: int) -> RecoveryPoint:
        """A point of what there is; of changelogs transactions that go on may be left out."""
        cuts = [
            PartitionCut(
                topic=id_.topic,
                partition=id_.partition,
                topic_id=self.topic_ids[id_.topic],
                log_start=0,
                end=end,
                roles=self.roles[id_.topic],
                excluded=self._excluded(id_, end),
                saved_from=end if self.roles[id_.topic].changelog_only else None,
            )
            for id_, end in sorted(self.ends.items())
        ]
        point = RecoveryPoint(
            application_id=APPLICATION_ID,
            id=new_point_id(at_ms),
            cluster_id=self.cluster_id,
            taken_at_ms=at_ms,
            method=Method.TRANSACTIONS,
            guarantee=Guarantee.EXACT,
            sealed=True,
            reason="Simulated.",
            took_ms=5,
            partitions=tuple(cuts),
            group_offsets=tuple(
                GroupOffset(id_.topic, id_.partition, offset, "")
                for id_, offset in sorted(self.committed.items())
            ),
            sequence=1 + max((point.sequence or 0 for point in self.points), default=-1),
            ledger_version=self.ledger.version(),
            undeclared_topics=(),
        )
        Repository.open(self.settings).points.append(point)
        self.points.append(point)
        return point

    def _excluded(self, id_: TopicPartitionId, end: int) -> tuple[OffsetRange, ...]:
        before = self.points[-1].cut(id_) if self.points else None
        low = before.end if before else 0
        if not self.roles[id_.topic].changelog_only or end - low < 8 or self.chance.random() < 0.4:
            return ()
        start = end - self.chance.randrange(5, 8)
        return (OffsetRange(start, start + self.chance.randrange(1, 4)),)

    def back_up(self, window: Window) -> None:
        """A window, up to the last point in it, through the steps of a real backup."""
        settings, point = self.settings, self.points[-1]
        path = settings.warehouse.records(APPLICATION_ID)
        spans: list[SpanPlan] = []
        for cut in point.partitions:
            start = self.backed_up[cut.id]
            read = max(start, self.restored.get(cut.id, 0))
            gaps = (Gap(GapCause.RESTORED, start, read, read - start),) if read > start else ()
            spans.append(
                SpanPlan(window, cut.id, cut.topic_id, start, cut.end, read, start > 0, gaps)
            )
            self.backed_up[cut.id] = cut.end
        repository = Repository.open(settings)
        with repository.writing(Lock.APPLICATION, purpose="simulation", wait_s=10) as lock:
            table = ensure_records(path)
            with uncommitted(path) as folder:
                files = self._files(NewFolder(folder, "zstd", 1), spans)
                contents = contents_of(path, files)
            version = commit(
                path,
                table,
                files,
                writer=lock,
                replaces=[{"window": window.key, "topic": name} for name in self.roles],
                provenance={"run_id": "simulated"},
            )
            backups = [self._backup(window, name, spans, contents, version) for name in self.roles]
            TopicFactsTable(settings.warehouse, APPLICATION_ID).record(backups)
            self.ledger.record(backups, run_id=f"simulated-{window.key}", writer=lock)

    def _files(self, folder: NewFolder, spans: Sequence[SpanPlan]) -> list[NewFile]:
        files: list[NewFile] = []
        for span in spans:
            rows = [r for r in self.logs[span.partition] if span.read_start <= r.offset < span.end]
            if not rows:
                continue
            edges = SpanEdges((span.window.key,), (span.start,), (span.end,))
            key = (span.partition.topic, span.partition.partition)
            batch = (span.partition, _batch(span.partition.partition, rows))
            for written in SpanFiles(folder, {key: edges}).write([batch]):
                files += [NewFile.from_task_row(folder.path, row) for row in written.to_pylist()]
        return files

    def _backup(
        self,
        window: Window,
        topic: str,
        spans: Sequence[SpanPlan],
        contents: Mapping[SpanId, SpanContent],
        version: int | None,
    ) -> TopicBackup:
        results: list[SpanResult] = []
        for span in spans:
            if span.partition.topic != topic:
                continue
            content = contents.get(SpanId(window.key, span.partition), SpanContent())
            markers = span.end - span.read_start - content.records
            gap = Gap(GapCause.TRANSACTION_MARKER, span.read_start, span.end, markers)
            is_state = self.roles[topic].is_changelog
            results.append(
                SpanResult(
                    span,
                    content,
                    (*span.gaps, *((gap,) if markers else ())),
                    contiguity_known=is_state,
                )
            )
        return TopicBackup(
            window=window,
            topic=topic,
            role="+".join(sorted(self.roles[topic])),
            spans=tuple(results),
            facts=TopicFacts(self.topic_ids[topic], PARTITIONS, 1, self.configs[topic]),
            previous_facts=None,
            recovery_point_id=self.points[-1].id,
            delta_version=version,
            duration_s=0.1,
        )

    def state(self, point: RecoveryPoint, topic: str = STATE) -> dict[int, State]:
        """By partition, what the store held at a point."""
        found: dict[int, State] = {}
        for number in range(PARTITIONS):
            cut = point.cut(TopicPartitionId(topic, number))
            assert cut is not None
            found[number] = _last_of_each_key(r for r in self.log_of(cut) if cut.holds(r.offset))
        return found

    def needed(self, point: RecoveryPoint, topic: str) -> list[Row]:
        """The records of an input or repartition topic that the group had not processed."""
        found: list[Row] = []
        committed = {(o.topic, o.partition): o.offset for o in point.group_offsets}
        for number in range(PARTITIONS):
            cut = point.cut(TopicPartitionId(topic, number))
            assert cut is not None
            low = committed[topic, number]
            found += [r for r in self.log_of(cut) if low <= r.offset < cut.end]
        return found


def _batch(number: int, rows: Sequence[Row]) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "partition": [number] * len(rows),
        "offset": [row.offset for row in rows],
        "timestamp_ms": [row.timestamp_ms for row in rows],
        "timestamp_type": [0] * len(rows),
        "headers": [None] * len(rows),
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
    }
    return pa.RecordBatch.from_pydict(columns, schema=FILE)


def _last_of_each_key(rows: Iterable[Row]) -> State:
    state: State = {}
    for row in rows:
        if row.value is None:
            state.pop(row.key, None)
        else:
            state[row.key] = row.value
    return state


def read_back(
    settings: ApplicationSettings, point: RecoveryPoint, topic: str, *, from_committed: bool
) -> dict[int, list[Row]]:
    """What the backups give of a topic at a point, by partition, as a restore reads it."""
    contents = Repository.open(settings).reading(settings)
    committed = {(o.topic, o.partition): o.offset for o in point.group_offsets}
    found: dict[int, list[Row]] = {}
    for number in range(PARTITIONS):
        cut = point.cut(TopicPartitionId(topic, number))
        assert cut is not None
        low = committed[topic, number] if from_committed else cut.log_start
        ranges = cut.records_from(low)
        rows: list[Row] = []
        for one in contents.files(WantedPartition(cut, ranges)):
            read = pq.read_table(store_at(one.file.path).readable())
            table = renumbered(read, one.file.runs).to_pylist()
            rows += [
                Row(r["offset"], r["key"], r["value"], r["timestamp_ms"])
                for r in table
                if RangeSet(ranges).holds(r["offset"])
            ]
        assert [row.offset for row in rows] == sorted({row.offset for row in rows})
        found[number] = rows
    return found


def restored_state(
    settings: ApplicationSettings, point: RecoveryPoint, topic: str = STATE
) -> dict[int, State]:
    """The store at a point, as the backups give it now."""
    rows = read_back(settings, point, topic, from_committed=False)
    return {number: _last_of_each_key(of_it) for number, of_it in rows.items()}


def copied(app: SimulatedApp, folder: Path) -> SimulatedApp:
    """The same application, which goes on by itself with a copy of its warehouse."""
    shutil.copytree(on_disk(app.settings.warehouse.root), folder)
    other = copy.deepcopy(app)
    other.settings = replace(app.settings, warehouse=Warehouse(folder))
    return other


def with_keep(settings: ApplicationSettings, keep: KeepSettings) -> ApplicationSettings:
    """The same with another policy."""
    return replace(settings, keep=keep)
