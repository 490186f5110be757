"""A warehouse as years of hourly windows leave it, made in a minute or two without a broker.

Its tables are written by the code that writes them otherwise, a lot of windows at a time, and are
put together as maintenance leaves them. The files of records are there with their sizes; those of
the last windows hold records, the others only take up their length.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import Guarantee, Method, PartitionCut, RecoveryPoint, new_point_id
from kstreams_assets.model.recordings import LedgerEntry, NotedTopic
from kstreams_assets.model.saved_records import SavedTail
from kstreams_assets.model.spans import GapCause, SpanKind, Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import Ledger, TopicFactsTable
from kstreams_assets.repository.records import PARTITIONED_BY, ensure_records
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.rows import rows_of
from kstreams_assets.repository.table import Table
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from spark_resources.data_files import FILE

APPLICATION: Final = "simulated"
TOPICS: Final = {
    "orders": TopicRole.INPUT,
    "simulated-by-customer-repartition": TopicRole.REPARTITION,
    "simulated-totals-changelog": TopicRole.CHANGELOG,
    "simulated-counts-changelog": TopicRole.CHANGELOG,
    "totals": TopicRole.OUTPUT,
}
STEP: Final = 100
"""Offsets of a partition in a window; outside inputs every tenth is the marker of a transaction."""
_MARKED: Final = 10
_HOUR_MS: Final = 3_600_000
_LOT: Final = 500
"""Windows that are written together."""
_FEW: Final = 26
"""Windows at the end whose files hold records."""
_LEDGER_ROWS: Final = 35_000
"""About as many as a file of two megabytes holds, which maintenance leaves alone."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a simulation is.

    `retention` is how many windows back the logs of inputs, outputs and repartition topics begin at
    the newest point; None: at the first window, as those of changelogs do. `every_s` is how often
    points were taken during the last day. Of `whole_topics` every file holds records.
    """

    windows: int = 10_000
    partitions: int = 10
    retention: int | None = None
    every_s: int = 10
    with_files: bool = True
    whole_topics: frozenset[str] = frozenset()


class Simulation:
    """The warehouse in a folder.

    Windows end with the last full hour before `now_ms`, which is when the newest point was taken.
    """

    def __init__(self, root: Path, shape: Shape, *, now_ms: int) -> None:
        self.shape = shape
        self.warehouse = Warehouse(root)
        self._end_ms = now_ms // _HOUR_MS * _HOUR_MS
        self.now_ms = now_ms
        self.first_ms = self._end_ms - shape.windows * _HOUR_MS
        self._random = np.random.default_rng(18)

    @cached_property
    def settings(self) -> ApplicationSettings:
        """The application as it is configured; its broker is not there."""
        topics = tuple(AppTopic(name, TopicRoles({role})) for name, role in TOPICS.items())
        start = datetime.fromtimestamp(self.first_ms / 1000, tz=UTC)
        return ApplicationSettings(
            application=StreamsApplication(APPLICATION, topics),
            topics=topics,
            connection=KafkaConnection(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=1),
            warehouse=self.warehouse,
            windows=WindowSchedule.every("hour", start=f"{start:%Y-%m-%d-%H:%M}"),
        )

    def window(self, number: int) -> Window:
        """The window of this number, from 0 on."""
        start_ms = self.first_ms + number * _HOUR_MS
        key = f"{datetime.fromtimestamp(start_ms / 1000, tz=UTC):%Y-%m-%d-%H:%M}"
        return Window(start_ms, start_ms + _HOUR_MS, key)

    def make(self) -> None:
        """Write everything."""
        self.warehouse.root.mkdir(parents=True, exist_ok=True)
        records = self.warehouse.records(APPLICATION)
        path = Path(str(records))
        ensure_records(records)
        ledger = Ledger(self.warehouse, APPLICATION)._table  # noqa: SLF001
        waiting: list[pa.Table] = []
        for begin in range(0, self.shape.windows, _LOT):
            lot = range(begin, min(begin + _LOT, self.shape.windows))
            files = _Files.made(self, lot, path)
            self._commit(files)
            waiting.append(self._ledger_rows(files))
            rows = pa.concat_tables(waiting)
            is_last = lot.stop == self.shape.windows
            if rows.num_rows >= _LEDGER_ROWS or is_last:
                _put(ledger, rows)
                waiting = []
        table = ensure_records(records)
        table.create_checkpoint()
        table.cleanup_metadata()
        self._note_topics()
        self._take_points()

    # records

    def _commit(self, files: "_Files") -> None:
        table = ensure_records(self.warehouse.records(APPLICATION))
        table.create_write_transaction(
            list(files.actions()), "append", table.schema(), list(PARTITIONED_BY)
        )

    # ledger

    def _ledger_rows(self, files: "_Files") -> pa.Table:
        schema = rows_of(LedgerEntry).schema
        count = len(files.windows)
        windows = np.array(files.windows)
        starts_ms = self.first_ms + windows * _HOUR_MS
        topics = list(TOPICS)
        names = pa.DictionaryArray.from_arrays(pa.array(files.topics), topics).cast(pa.string())
        start = windows * STEP
        end = start + STEP
        is_input = np.array([role is TopicRole.INPUT for role in TOPICS.values()])[files.topics]
        records = np.where(is_input, STEP, STEP - STEP // _MARKED)
        last = np.where(is_input, end - 1, end - 2)
        marked = np.flatnonzero(~is_input)
        gaps = pa.StructArray.from_arrays(
            [
                pa.repeat(GapCause.TRANSACTION_MARKER.value, len(marked)),
                pa.array(start[marked] + _MARKED - 1),
                pa.array(end[marked]),
                pa.array(np.full(len(marked), STEP // _MARKED)),
            ],
            fields=list(schema.field("gaps").type.value_type),
        )
        written = pa.StructArray.from_arrays(
            [
                pa.array(files.paths),
                pa.array(files.sizes),
                pa.array(records),
                pa.array(files.digests),
            ],
            fields=list(schema.field("written").type.value_type),
        )
        edges = np.concatenate(([0], np.cumsum(~is_input)))
        keys = {number: self.window(number).key for number in set(files.windows)}
        points = {number: self.closing_id(number) for number in set(files.windows)}
        is_changelog = np.array([r is TopicRole.CHANGELOG for r in TOPICS.values()])[files.topics]
        zeros = pa.array(np.zeros(count, np.int64))
        window_keys = pa.array([keys[number] for number in files.windows])
        columns = {
            "application_id": pa.repeat(APPLICATION, count),
            "window": window_keys,
            "kind": pa.repeat(SpanKind.WINDOW.value, count),
            "first_window": window_keys,
            "last_window": window_keys,
            "window_start_ms": pa.array(starts_ms),
            "window_end_ms": pa.array(starts_ms + _HOUR_MS),
            "topic": names,
            "partition": pa.array(files.partitions, pa.int32()),
            "topic_id": pa.DictionaryArray.from_arrays(
                pa.array(files.topics), [topic_id(name) for name in topics]
            ).cast(pa.string()),
            "start": pa.array(start),
            "end": pa.array(end),
            "read_start": pa.array(start),
            "continues": pa.array(windows > 0),
            "log_start": zeros,
            "records": pa.array(records),
            "bytes": pa.array(records * 120),
            "stored_bytes": pa.array(files.sizes),
            "files": pa.repeat(pa.scalar(1, pa.int32()), count),
            "tombstones": zeros,
            "null_keys": zeros,
            "odd_timestamps": zeros,
            "first_offset": pa.array(start),
            "last_offset": pa.array(last),
            "min_timestamp_ms": pa.array(starts_ms),
            "max_timestamp_ms": pa.array(starts_ms + _HOUR_MS - 1),
            "gaps": pa.ListArray.from_arrays(pa.array(edges, pa.int32()), gaps),
            "first_hole": pa.nulls(count, pa.int64()),
            "contiguity_known": pa.array(is_changelog),
            "recovery_point_id": pa.array([points[number] for number in files.windows]),
            "delta_version": pa.nulls(count, pa.int64()),
            "run_id": pa.array([f"run-{number:06d}" for number in files.windows]),
            "recorded_at_ms": pa.array(starts_ms + _HOUR_MS + 60_000),
            "ledger_version": pa.nulls(count, pa.int64()),
            "written": pa.ListArray.from_arrays(
                pa.array(np.arange(count + 1), pa.int32()), written
            ),
        }
        return pa.table(
            [columns[name].cast(schema.field(name).type) for name in schema.names], schema
        )

    def closing_id(self, number: int) -> str:
        """The id of the point that ends a window."""
        taken_at_ms = self.first_ms + (number + 1) * _HOUR_MS - 10_000
        moment = datetime.fromtimestamp(taken_at_ms / 1000, tz=UTC)
        return f"{moment:%Y%m%dT%H%M%S}.000Z-{number:06x}"

    # topics

    def _note_topics(self) -> None:
        schema = rows_of(NotedTopic).schema
        count, size = self.shape.windows, len(TOPICS)
        numbers = np.repeat(np.arange(count), size)
        codes = np.tile(np.arange(size), count)
        configs = [("cleanup.policy", "compact"), ("min.insync.replicas", "2")]
        keys = [self.window(number).key for number in range(count)]

        def coded(values: Sequence[str]) -> pa.Array:
            return pa.DictionaryArray.from_arrays(pa.array(codes), list(values)).cast(pa.string())

        columns = {
            "application_id": pa.repeat(APPLICATION, count * size),
            "window": pa.array([keys[number] for number in numbers]),
            "window_end_ms": pa.array(self.first_ms + (numbers + 1) * _HOUR_MS),
            "topic": coded([*TOPICS]),
            "role": coded([role.value for role in TOPICS.values()]),
            "topic_id": coded([topic_id(name) for name in TOPICS]),
            "partitions": pa.array(np.full(count * size, self.shape.partitions), pa.int32()),
            "replication_factor": pa.array(np.full(count * size, 3), pa.int32()),
            "configs": pa.array([configs] * (count * size), schema.field("configs").type),
            "effective_configs": pa.array(
                [configs] * (count * size), schema.field("effective_configs").type
            ),
        }
        rows = pa.table(
            [columns[name].cast(schema.field(name).type) for name in schema.names], schema
        )
        _put(TopicFactsTable(self.warehouse, APPLICATION)._table, rows)  # noqa: SLF001

    # points

    def _take_points(self) -> None:
        table = Repository(self.warehouse, APPLICATION).points
        points = list(self._points())
        for begin in range(0, len(points), 2_000):
            table.append_many(points[begin : begin + 2_000])
        hours = range(max(0, self.shape.windows - 1), self.shape.windows + 1)
        saved = Repository(self.warehouse, APPLICATION).saved_records
        for hour in hours:
            tails = [
                SavedTail(
                    TopicPartitionId(name, partition),
                    topic_id(name),
                    [
                        RawRecord(offset, self.first_ms, 0, b"key-%d" % offset, b"v" * 40, ())
                        for offset in range(hour * STEP, (hour + 1) * STEP)
                        if offset % _MARKED != _MARKED - 1
                    ],
                )
                for name, role in TOPICS.items()
                if role is TopicRole.CHANGELOG
                for partition in range(self.shape.partitions)
            ]
            saved.append(self.closing_id(hour), tails)

    def _points(self) -> Iterator[RecoveryPoint]:
        shape, sequence = self.shape, 0
        last_day_ms = self._end_ms - min(24, shape.windows) * _HOUR_MS
        for number in range(shape.windows):
            if self.first_ms + (number + 1) * _HOUR_MS > last_day_ms:
                break
            taken_at_ms = self.first_ms + (number + 1) * _HOUR_MS - 10_000
            yield self._point(self.closing_id(number), taken_at_ms, sequence, (number + 1) * STEP)
            sequence += 1
        for taken_at_ms in range(last_day_ms, self.now_ms, shape.every_s * 1000):
            number, into_ms = divmod(taken_at_ms - self.first_ms, _HOUR_MS)
            closes = into_ms + shape.every_s * 1000 >= _HOUR_MS
            point_id = self.closing_id(number) if closes else new_point_id(taken_at_ms)
            end = number * STEP + (STEP if closes else into_ms * STEP // _HOUR_MS)
            yield self._point(point_id, taken_at_ms, sequence, end)
            sequence += 1

    def _point(self, point_id: str, taken_at_ms: int, sequence: int, end: int) -> RecoveryPoint:
        window = max(0, (end - 1) // STEP)
        kept = self.shape.retention
        begins = 0 if kept is None else max(0, window - kept) * STEP
        cuts = [
            PartitionCut(
                name,
                partition,
                topic_id(name),
                0 if role is TopicRole.CHANGELOG else begins,
                end,
                TopicRoles({role}),
                saved_from=max(0, window - 1) * STEP if role is TopicRole.CHANGELOG else None,
                leader_epoch=3,
            )
            for name, role in TOPICS.items()
            for partition in range(self.shape.partitions)
        ]
        return RecoveryPoint(
            id=point_id,
            application_id=APPLICATION,
            cluster_id="MkU3OEVBNTcwNTJENDM2Qk",
            taken_at_ms=taken_at_ms,
            method=Method.TRANSACTIONS,
            guarantee=Guarantee.EXACT,
            reason="The committed transactions were told apart in the raw logs.",
            took_ms=310,
            partitions=tuple(cuts),
            group_offsets=tuple(
                GroupOffset(cut.topic, cut.partition, max(0, end - 3), "AgAAAZM0x1Y=")
                for cut in cuts
                if cut.roles.is_source or cut.roles.in_flight_only
            ),
            sealed=True,
            sequence=sequence,
            ledger_version=None,
            undeclared_topics=(),
        )


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of some windows, one for each partition."""

    windows: list[int]
    topics: list[int]
    partitions: list[int]
    paths: list[str]
    sizes: list[int]
    digests: list[str]
    keys: dict[int, str]
    first_ms: int

    @classmethod
    def made(cls, simulation: Simulation, lot: range, table: Path) -> "_Files":
        shape, random = simulation.shape, simulation._random  # noqa: SLF001
        per_window = len(TOPICS) * shape.partitions
        count = len(lot) * per_window
        tails = random.bytes(6 * count).hex()
        digests = random.bytes(32 * count).hex()
        sizes = random.integers(5_000, 9_000, count).tolist()
        found = cls(
            [], [], [], [], [], [], {n: simulation.window(n).key for n in lot}, simulation.first_ms
        )
        index = 0
        for number in lot:
            window = simulation.window(number)
            made_at = datetime.fromtimestamp(window.end_ms / 1000 + 30, tz=UTC)
            folder = f"{made_at:%Y%m%dT%H%M%S}-{number:08x}"
            if shape.with_files:
                (table / folder).mkdir()
            is_real = number >= shape.windows - _FEW
            for code, (name, role) in enumerate(TOPICS.items()):
                for partition in range(shape.partitions):
                    path = (
                        f"{folder}/{name}-{partition}-{tails[12 * index : 12 * index + 12]}.parquet"
                    )
                    size, digest = sizes[index], digests[64 * index : 64 * index + 64]
                    if is_real or name in shape.whole_topics:
                        content = _content(number, partition, role, window.start_ms)
                        size, digest = len(content), hashlib.sha256(content).hexdigest()
                        if shape.with_files:
                            (table / path).write_bytes(content)
                    elif shape.with_files:
                        handle = os.open(table / path, os.O_WRONLY | os.O_CREAT, 0o600)
                        os.ftruncate(handle, size)
                        os.close(handle)
                    found.windows.append(number)
                    found.topics.append(code)
                    found.partitions.append(partition)
                    found.paths.append(path)
                    found.sizes.append(size)
                    found.digests.append(digest)
                    index += 1
        return found

    def actions(self) -> Iterator[AddAction]:
        """What Delta's log says of them."""
        names = list(TOPICS)
        inputs = [role is TopicRole.INPUT for role in TOPICS.values()]
        nulls = dict.fromkeys(FILE.names, 0)
        rows = zip(self.windows, self.topics, self.partitions, self.paths, self.sizes, strict=True)
        for number, topic, partition, path, size in rows:
            start_ms = self.first_ms + number * _HOUR_MS
            first, end = number * STEP, (number + 1) * STEP
            stats = {
                "numRecords": STEP if inputs[topic] else STEP - STEP // _MARKED,
                "minValues": {
                    "partition": partition,
                    "offset": first,
                    "timestamp_ms": start_ms,
                    "timestamp_type": 0,
                },
                "maxValues": {
                    "partition": partition,
                    "offset": end - 1 if inputs[topic] else end - 2,
                    "timestamp_ms": start_ms + _HOUR_MS - 1,
                    "timestamp_type": 0,
                },
                "nullCount": nulls,
            }
            values = {"window": self.keys[number], "topic": names[topic]}
            yield AddAction(path, size, values, start_ms, True, json.dumps(stats))


def topic_id(name: str) -> str:
    """The id of a topic, as Kafka writes it."""
    return hashlib.sha256(name.encode()).hexdigest()[:22]


def _content(number: int, partition: int, role: TopicRole, start_ms: int) -> bytes:
    """A file of the records of one span."""
    offsets = np.arange(number * STEP, (number + 1) * STEP)
    if role is not TopicRole.INPUT:
        offsets = offsets[offsets % _MARKED != _MARKED - 1]
    count = len(offsets)
    columns = {
        "partition": pa.array(np.full(count, partition), pa.int32()),
        "offset": pa.array(offsets),
        "timestamp_ms": pa.array(start_ms + (offsets - number * STEP) * 1_000),
        "timestamp_type": pa.array(np.zeros(count), pa.int32()),
        "headers": pa.nulls(count, FILE.field("headers").type),
        "key": pa.array([b"key-%d" % offset for offset in offsets], pa.binary()),
        "value": pa.array([b"v" * 40] * count, pa.binary()),
    }
    sink = io.BytesIO()
    rows = pa.table([columns[name] for name in FILE.names], FILE)
    pq.write_table(rows, sink, compression="zstd", compression_level=2, write_page_checksum=True)
    return sink.getvalue()


def _put(table: Table[Any], rows: pa.Table) -> None:
    """Add rows as one file with the row groups of files that were put together."""
    values = rows[table.grows_along].to_numpy()
    table.rewrite(int(values.min()), int(values.max()), lambda _: rows)
