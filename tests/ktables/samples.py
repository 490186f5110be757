"""An application with stores, its snapshots and tables, made by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from kstreams_assets.app.model import AppTopic, Store, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat, StoreKind
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.snapshot import RowProblem, Snapshot, SnapshotPartition
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from tests.repository.disk import on_disk

SCHEDULE = WindowSchedule.every("hour", start="2026-10-20")
KEYS = [f"2026-10-20-0{hour}:00" for hour in range(4)]
TOTALS = StoreFormat(
    key=Format(Encoding.STRING),
    value=Format(Encoding.JSON, "count BIGINT, last STRUCT<id: STRING, at: BIGINT>"),
    lineage=(("count", ("orders.eu.id",)), ("last.id", ("orders.eu.id",))),
)
SESSIONS = StoreFormat(
    StoreKind.SESSION, Format(Encoding.STRING), Format(Encoding.LONG), retention_ms=1000
)
TOPICS = (
    AppTopic("orders.eu", TopicRoles({TopicRole.INPUT})),
    AppTopic("shop-totals-changelog", TopicRoles({TopicRole.CHANGELOG}), stores=("totals",)),
    AppTopic("shop-sessions-changelog", TopicRoles({TopicRole.CHANGELOG}), stores=("sessions",)),
)
STORES = (
    Store("totals", "shop-totals-changelog"),
    Store("sessions", "shop-sessions-changelog"),
    Store("cache", None),
)


def settings(
    root: Path,
    *,
    topics: Sequence[AppTopic] = TOPICS,
    stores: Sequence[Store] = STORES,
    formats: Mapping[str, StoreFormat] | None = None,
    without_ktable: frozenset[str] = frozenset(),
) -> ApplicationSettings:
    """The settings of application `shop`, with a warehouse at `root`."""
    return ApplicationSettings(
        application=StreamsApplication("shop", tuple(topics), tuple(stores)),
        topics=tuple(topics),
        connection=KafkaConnection(bootstrap_servers="localhost:1"),
        warehouse=Warehouse(root),
        windows=SCHEDULE,
        store_formats={"totals": TOTALS, "sessions": SESSIONS} if formats is None else formats,
        without_ktable=without_ktable,
    )


def snapshot(
    window: str = KEYS[0],
    store: str = "totals",
    *,
    proved: bool = True,
    reason: str = "",
    problems: Sequence[RowProblem] = (),
    problem_rows: int | None = None,
    point_id: str | None = None,
    rows: int = 9,
) -> Snapshot:
    """A snapshot whose recovery point was taken five minutes before the window's end."""
    of_window = WindowCalendar(SCHEDULE).window(window)
    return Snapshot(
        application_id="shop",
        store=store,
        topic=f"shop-{store}-changelog",
        window=of_window,
        point_id=point_id or f"point-{window}",
        taken_at_ms=of_window.end_ms - 300_000,
        proved=proved,
        reason=reason,
        base_window=None,
        fingerprint="f",
        partitions=(SnapshotPartition(0, "life-1", 0, 40, rows=rows, bytes=900),),
        records=40,
        problem_rows=len(problems) if problem_rows is None else problem_rows,
        problems=tuple(problems),
        delta_version=3,
        took_ms=1500,
    )


def write_window(
    configured: ApplicationSettings,
    store: str,
    window: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    key: pa.DataType | None = None,
    value: pa.DataType | None = None,
    parts: Sequence[str] = (),
) -> None:
    """Append the rows of one window to the table of a store, as Spark writes it."""
    schema = pa.schema(
        [
            ("window", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp_ms", pa.int64()),
            *((name, pa.int64()) for name in parts),
            ("decoded_key", key or pa.string()),
            ("decoded_value", value or pa.int64()),
            ("decode_error", pa.string()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ("key", pa.binary()),
            ("value", pa.binary()),
        ]
    )
    whole = {"partition": 0, "timestamp_ms": 1_792_454_400_000, "window": window}
    table = pa.Table.from_pylist([{**whole, **row} for row in rows], schema=schema)
    path = on_disk(configured.warehouse.ktable(configured.application_id, store))
    write_deltalake(path, table, mode="append", partition_by=["window"])
