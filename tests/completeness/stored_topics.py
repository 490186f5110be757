"""Topics of one application as a warehouse holds them, written by hand. No broker, no JVM."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from kstreams_assets.app.model import AppTopic, Store, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.app.rules import CompletenessRule, TopicFormat
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat
from kstreams_assets.backup.result import TopicBackup
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.kafka.record_columns import HEADERS
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import Guarantee, Method, PartitionCut, RecoveryPoint
from kstreams_assets.model.saved_records import SavedTail
from kstreams_assets.model.spans import Gap, SpanContent, SpanPlan, SpanResult, Window
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from tests.store.place import edited

APP = "app"
ORDERS, TOTALS, JOINED, RATES = "orders", "totals", "joined", "rates"
MOVED, CHANGELOG = "app-moved-repartition", "app-sums-changelog"
HOUR_MS = 3_600_000
ROLES = {
    ORDERS: TopicRoles({TopicRole.INPUT}),
    TOTALS: TopicRoles({TopicRole.OUTPUT}),
    JOINED: TopicRoles({TopicRole.INPUT, TopicRole.OUTPUT}),
    RATES: TopicRoles({TopicRole.GLOBAL}),
    MOVED: TopicRoles({TopicRole.REPARTITION}),
    CHANGELOG: TopicRoles({TopicRole.CHANGELOG}),
}
_TEXT = Format(Encoding.STRING)
_AMOUNT = Format(Encoding.JSON, "customer STRING, amount BIGINT")
_SUM = Format(Encoding.JSON, "count BIGINT, total BIGINT")
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
class Kept:
    """A record; `value` is written as JSON, None is a deletion."""

    offset: int
    key: str | bytes | None
    value: Any
    partition: int = 0
    timestamp_ms: int = 1_000

    @property
    def raw_key(self) -> bytes | None:
        """The key as it lies in the topic."""
        return self.key.encode() if isinstance(self.key, str) else self.key

    @property
    def raw_value(self) -> bytes | None:
        """The value as it lies in the topic."""
        return None if self.value is None else json.dumps(self.value).encode()


def order(offset: int, customer: str, amount: int) -> Kept:
    """An order, or one that was moved to its customer's partition."""
    return Kept(offset, customer, {"customer": customer, "amount": amount})


def total(offset: int, customer: str, count: int, amount: int) -> Kept:
    """What a customer's sum is."""
    return Kept(offset, customer, {"count": count, "total": amount})


def window_of(index: int) -> Window:
    """Windows of an hour each."""
    return Window(index * HOUR_MS, (index + 1) * HOUR_MS, f"w{index:04d}")


@dataclass
class StoredTopics:
    """Points and backups; every topic has one partition."""

    warehouse: Warehouse
    rules: tuple[CompletenessRule, ...] = ()
    _reached: dict[str, int] = field(default_factory=dict)

    @property
    def settings(self) -> ApplicationSettings:
        """The application, with its rules."""
        application = StreamsApplication(
            APP,
            tuple(AppTopic(name, ROLES[name]) for name in sorted(ROLES)),
            (Store("sums", CHANGELOG),),
        )
        amounts = TopicFormat(_TEXT, _AMOUNT)
        return ApplicationSettings(
            application=application,
            topics=application.topics,
            connection=KafkaConnection(bootstrap_servers="127.0.0.1:1"),
            warehouse=self.warehouse,
            windows=WindowSchedule.every("day", start="2026-11-01"),
            store_formats={"sums": StoreFormat(key=_TEXT, value=_SUM)},
            topic_formats={
                ORDERS: amounts,
                JOINED: amounts,
                MOVED: amounts,
                TOTALS: TopicFormat(_TEXT, _SUM),
            },
            completeness=self.rules,
        )

    def point(
        self,
        name: str,
        taken_at_ms: int,
        ends: Mapping[str, int],
        committed: Mapping[str, int] = {},
        *,
        log_starts: Mapping[str, int] = {},
        excluded: Mapping[str, Sequence[OffsetRange]] = {},
        saved_from: Mapping[str, int] = {},
        guarantee: Guarantee = Guarantee.EXACT,
        sealed: bool = True,
    ) -> RecoveryPoint:
        """A point that is stored; topics without an end are not known to it."""
        taken = RecoveryPoint(
            id=name,
            application_id=APP,
            cluster_id="cluster",
            taken_at_ms=taken_at_ms,
            method=Method.TRANSACTIONS,
            guarantee=guarantee,
            reason="" if guarantee is Guarantee.EXACT else "The application repeats records.",
            took_ms=1,
            partitions=tuple(
                PartitionCut(
                    topic=topic,
                    partition=0,
                    topic_id=f"id-{topic}",
                    log_start=log_starts.get(topic, 0),
                    end=end,
                    roles=ROLES[topic],
                    excluded=tuple(excluded.get(topic, ())),
                    saved_from=saved_from.get(topic),
                )
                for topic, end in ends.items()
            ),
            group_offsets=tuple(GroupOffset(t, 0, offset, "") for t, offset in committed.items()),
            sealed=sealed,
        )
        Repository(self.warehouse, taken.application_id).points.append(taken)
        return taken

    def close(
        self,
        index: int,
        records: Mapping[str, Sequence[Kept]],
        committed: Mapping[str, int] = {},
        **about: Any,
    ) -> RecoveryPoint:
        """A window with these records, and the point that ends it just behind them.

        Topics without records stay where they were.
        """
        starts = {topic: self._reached.get(topic, 0) for topic in ROLES}
        ends = {
            topic: max((kept.offset + 1 for kept in records.get(topic, ())), default=starts[topic])
            for topic in ROLES
        }
        ends |= about.pop("ends", {})
        begins = about.pop("begins", {})
        window = window_of(index)
        point = self.point(f"point-{index}", window.end_ms - 1_000, ends, committed, **about)
        spans = {topic: (begins.get(topic, starts[topic]), ends[topic]) for topic in ROLES}
        self.back_up(window, spans, records, point.id)
        self._reached |= ends
        return point

    def back_up(
        self,
        window: Window,
        spans: Mapping[str, tuple[int, int]],
        records: Mapping[str, Sequence[Kept]],
        point_id: str | None,
        gaps: Mapping[str, Sequence[Gap]] = {},
    ) -> None:
        """The backup of a window: records of these spans, and their rows in the ledger."""
        rows = [_row(window, topic, kept) for topic in records for kept in records[topic]]
        if rows:
            with edited(self.warehouse.records(APP)) as path:
                write_deltalake(
                    path,
                    pa.Table.from_pylist(rows, schema=_SCHEMA),
                    mode="append",
                    partition_by=["window", "topic"],
                )
        done = [
            _backup(window, topic, span, len(records.get(topic, ())), point_id, gaps.get(topic, ()))
            for topic, span in sorted(spans.items())
        ]
        Ledger(self.warehouse, APP).record(done, run_id="run")

    def save(self, point_id: str, topic: str, records: Sequence[Kept]) -> None:
        """Save records with a point."""
        rows = [RawRecord(r.offset, r.timestamp_ms, 0, r.raw_key, r.raw_value, ()) for r in records]
        tail = SavedTail(TopicPartitionId(topic, 0), f"id-{topic}", rows)
        Repository(self.warehouse, APP).saved_records.append(point_id, [tail])

    def with_rules(self, *rules: CompletenessRule) -> "StoredTopics":
        """The same with these rules."""
        return replace(self, rules=rules)


def _backup(
    window: Window,
    topic: str,
    span: tuple[int, int],
    records: int,
    point_id: str | None,
    gaps: Sequence[Gap],
) -> TopicBackup:
    plan = SpanPlan(
        window=window,
        partition=TopicPartitionId(topic, 0),
        topic_id=f"id-{topic}",
        start=span[0],
        end=span[1],
        read_start=span[0],
        continues=span[0] > 0,
        log_start=span[0],
    )
    content = SpanContent(records=records, bytes=100 * records)
    return TopicBackup(
        window=window,
        topic=topic,
        spans=(SpanResult(plan, content, tuple(gaps), contiguity_known=True),),
        role="+".join(sorted(ROLES[topic])),
        facts=None,
        previous_facts=None,
        recovery_point_id=point_id,
        delta_version=0,
        duration_s=0.1,
    )


def _row(window: Window, topic: str, record: Kept) -> dict[str, Any]:
    return {
        "window": window.key,
        "topic": topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "timestamp_type": 0,
        "headers": None,
        "key": record.raw_key,
        "value": record.raw_value,
    }
