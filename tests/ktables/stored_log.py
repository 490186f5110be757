"""A changelog as a warehouse holds it, written by hand: spans, points, saved records. No broker."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.app.model import AppTopic, Store, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.backup.result import TopicBackup
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.kafka.record_columns import HEADERS
from kstreams_assets.ktables.run import KTableRun
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import Guarantee, Method, PartitionCut, RecoveryPoint
from kstreams_assets.model.saved_records import SavedTail
from kstreams_assets.model.snapshot import Snapshot, TableStore
from kstreams_assets.model.spans import Gap, GapCause, SpanContent, SpanPlan, SpanResult, Window
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from spark_resources.work import Spark
from tests.store.place import edited

TOPIC = "app-store-changelog"
STORE = "store"
APPLICATION_ID = "app"
HOUR_MS = 3_600_000
_CHANGELOG = TopicRoles({TopicRole.CHANGELOG})
_SCHEMA = pa.schema(
    [
        ("window", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("timestamp_type", pa.int32()),
        ("headers", HEADERS),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


@dataclass(frozen=True)
class Change:
    """A record of the changelog."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 1_000
    partition: int = 0


def window_of(index: int) -> Window:
    """Windows of an hour each."""
    return Window(index * HOUR_MS, (index + 1) * HOUR_MS, f"w{index:04d}")


@dataclass
class StoredLog:
    """Backups of one changelog of one store."""

    warehouse: Warehouse
    spark: Spark
    format: StoreFormat = field(default_factory=StoreFormat)
    roles: TopicRoles = _CHANGELOG
    runs: int = 0

    @property
    def store(self) -> TableStore:
        """The store."""
        return TableStore(STORE, TOPIC, self.format)

    @property
    def application(self) -> StreamsApplication:
        """The application with this one topic."""
        return StreamsApplication(APPLICATION_ID, (AppTopic(TOPIC, self.roles),))

    @property
    def settings(self) -> ApplicationSettings:
        """The application as it is configured."""
        topic = AppTopic(TOPIC, self.roles, stores=(STORE,))
        return ApplicationSettings(
            application=StreamsApplication(APPLICATION_ID, (topic,), (Store(STORE, TOPIC),)),
            topics=(topic,),
            connection=KafkaConnection(bootstrap_servers="localhost:1"),
            warehouse=self.warehouse,
            windows=WindowSchedule.every("hour", start="1970-01-01"),
            store_formats={STORE: self.format},
        )

    def point(
        self,
        index: int,
        ends: Mapping[int, int],
        *,
        excluded: Mapping[int, Sequence[OffsetRange]] | None = None,
        topic_id: str = "life-1",
        log_starts: Mapping[int, int] | None = None,
        saved_from: Mapping[int, int] | None = None,
        sealed: bool = False,
        guarantee: Guarantee = Guarantee.EXACT,
    ) -> RecoveryPoint:
        """The closing point of a window, taken a second before its end."""
        cuts = [
            PartitionCut(
                topic=TOPIC,
                partition=number,
                topic_id=topic_id,
                log_start=(log_starts or {}).get(number, 0),
                end=end,
                roles=self.roles,
                excluded=tuple((excluded or {}).get(number, ())),
                saved_from=(saved_from or {}).get(number),
            )
            for number, end in ends.items()
        ]
        taken = RecoveryPoint(
            id=f"point-{index:04d}",
            application_id=APPLICATION_ID,
            cluster_id="cluster",
            taken_at_ms=window_of(index).end_ms - 1_000,
            method=Method.TRANSACTIONS,
            guarantee=guarantee,
            reason="Told apart." if guarantee is Guarantee.EXACT else "At least once.",
            took_ms=1,
            partitions=tuple(cuts),
            group_offsets=(),
            sealed=sealed,
        )
        Repository(self.warehouse, taken.application_id).points.append(taken)
        return taken

    def back_up(
        self,
        index: int,
        spans: Mapping[int, tuple[int, int]],
        changes: Iterable[Change],
        *,
        topic_id: str = "life-1",
        first_holes: Mapping[int, int] | None = None,
        continues: bool = True,
        point_id: str | None = "",
    ) -> None:
        """The backup of a window; `spans` are (start, end) by partition."""
        window = window_of(index)
        changes = list(changes)
        for number, (start, end) in spans.items():
            inside = [c for c in changes if c.partition == number and start <= c.offset < end]
            if inside:
                self._write(window, sorted(inside, key=lambda c: c.offset))
        results = tuple(
            self._result(window, number, span, changes, topic_id, first_holes or {}, continues)
            for number, span in spans.items()
        )
        done = TopicBackup(
            window=window,
            topic=TOPIC,
            spans=results,
            role="+".join(sorted(self.roles)),
            facts=None,
            previous_facts=None,
            recovery_point_id=f"point-{index:04d}" if point_id == "" else point_id,
            delta_version=0,
            duration_s=0.1,
        )
        Ledger(self.warehouse, APPLICATION_ID).record([done], run_id="run")

    def save(self, index: int, changes: Iterable[Change], *, topic_id: str = "life-1") -> None:
        """Save records with the closing point of a window."""
        for change in changes:
            record = RawRecord(change.offset, change.timestamp_ms, 0, change.key, change.value, ())
            tail = SavedTail(TopicPartitionId(TOPIC, change.partition), topic_id, [record])
            Repository(self.warehouse, APPLICATION_ID).saved_records.append(
                f"point-{index:04d}", [tail]
            )

    def snapshot(self, *indexes: int) -> list[Snapshot]:
        """Make the snapshots of these windows in one run."""
        self.runs += 1
        run = KTableRun(
            application=self.application,
            warehouse=self.warehouse,
            spark=self.spark,
            run_id=f"run-{self.runs}",
        )
        return run.execute([self.store], [window_of(index) for index in indexes])

    def rows(self, index: int) -> list[dict[str, Any]]:
        """The rows of a window by partition and offset."""
        with edited(self.warehouse.ktable(APPLICATION_ID, STORE)) as path:
            return table_rows(path, window_of(index).key)

    def _write(self, window: Window, changes: Sequence[Change]) -> None:
        rows = [
            {
                "window": window.key,
                "topic": TOPIC,
                "partition": change.partition,
                "offset": change.offset,
                "timestamp_ms": change.timestamp_ms,
                "timestamp_type": 0,
                "key": change.key,
                "value": change.value,
            }
            for change in changes
        ]
        with edited(self.warehouse.records(APPLICATION_ID)) as path:
            write_deltalake(
                path,
                pa.Table.from_pylist(rows, schema=_SCHEMA),
                mode="append",
                partition_by=["window", "topic"],
            )

    def _result(
        self,
        window: Window,
        number: int,
        span: tuple[int, int],
        changes: Sequence[Change],
        topic_id: str,
        first_holes: Mapping[int, int],
        continues: bool,
    ) -> SpanResult:
        start, end = span
        held = [c for c in changes if c.partition == number and start <= c.offset < end]
        plan = SpanPlan(
            window=window,
            partition=TopicPartitionId(TOPIC, number),
            topic_id=topic_id,
            start=start,
            end=end,
            read_start=start,
            continues=continues,
            log_start=start,
        )
        missing = end - start - len(held)
        gaps = (Gap(GapCause.COMPACTED, start, end, missing),) if missing else ()
        return SpanResult(
            plan=plan,
            content=SpanContent(records=len(held), bytes=100 * len(held)),
            gaps=gaps,
            first_hole=first_holes.get(number),
            contiguity_known=True,
        )


def table_rows(path: Path, window: str) -> list[dict[str, Any]]:
    """The rows of a window of a KTable, by partition and offset."""
    found = DeltaTable(path).to_pyarrow_dataset().to_table(filter=ds.field("window") == window)
    return sorted(found.to_pylist(), key=lambda row: (row["partition"], row["offset"]))
