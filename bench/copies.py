"""Backup and restore of one topic, beside Kafka's own tools and plain loops on the same data."""

import multiprocessing
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from typing import Any, Final
from unittest import mock
from urllib.parse import unquote

import pyarrow.parquet as pq
from confluent_kafka import KafkaError, Message, Producer

from bench.harness import Act, Case, Measured, Opened, Options
from bench.memory import watched
from bench.place import APPLICATION, LIMIT_S, Place, externals, flushed, place, send
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.data_files import By, SpanFile
from kstreams_assets.model.spans import SpanId
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.repository.inspection import inspect
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.restore.produce import produce
from kstreams_assets.restore.verify import verify
from kstreams_assets.settings import RestoreSettings, VerifyExtent
from kstreams_assets.store import FileIdentity, ObjectPath, StorePath, relative, store_at
from spark_resources.jars import class_path
from spark_resources.java import find_java
from spark_resources.partition_records import PartitionWork, header_lists
from spark_resources.session import LazySession
from spark_resources.settings import SparkSettings
from tests.repository.spans_on_disk import span_files

_TOPIC: Final = "orders"
_PEAK_MB: Final = 3_000.0
_PAYLOADS: Final = 50_000
"""More than a compressor's window holds."""
_COMMIT_EVERY_S: Final = 0.1
_ABORTED: Final = 0.05
_LEVELS: Final = (3, 6)
_STORED_MB: Final = 386.0
"""0.88 of what the 1 M records took before; so do they in the format of a tool in Rust."""
_TARGET: Final = {"retention.ms": "-1", "max.message.bytes": "104857600"}
_COLUMNS: Final = ["timestamp_ms", "headers", "key", "value"]
_FETCH, _LOOP, _BACKUP = "ConsumerPerformance, fetch time", "plain producer loop", "backup"
_RESTORE: Final = "restore, every record compared"
_UNCHECKED: Final = "the same without a look at the files' digests"


@dataclass(frozen=True, slots=True)
class _Data:
    """What the topic holds: records of so many bytes; `large` ones are few."""

    title: str
    records: int
    partitions: int
    value_bytes: int
    least: int = 1_000
    transactional: bool = False
    backup_at_most: float | None = None
    restore_at_most: float | None = None
    with_limits: bool = False
    """Also other zstd levels, what compression alone takes, and Kafka's own producer."""
    with_store: bool = False
    """Also with the warehouse in an S3 server of this machine."""


def _case(data: _Data) -> Opened:
    def opened(options: Options) -> AbstractContextManager[Case]:
        return _open(data, options)

    return opened


PLAIN: Final = _case(
    _Data(
        "1 M records of 1 KB over 4 partitions",
        1_000_000,
        4,
        961,
        backup_at_most=2.6,
        restore_at_most=1.1,
        with_limits=True,
    )
)
TRANSACTIONAL: Final = _case(
    _Data(
        "1 M records of 1 KB over 4 partitions, committed every 100 ms, 5 % aborted",
        1_000_000,
        4,
        961,
        transactional=True,
        backup_at_most=3.3,
    )
)
SMALL: Final = _case(_Data("5 M records of 200 bytes over 12 partitions", 5_000_000, 12, 200))
LARGE: Final = _case(
    _Data("2,000 records of 1 MB over 4 partitions", 2_000, 4, 1_000_000, least=40)
)

STORE: Final = _case(
    _Data(
        "1 M records of 1 KB over 4 partitions, on a disk and in an S3 server of this machine",
        1_000_000,
        4,
        961,
        with_store=True,
    )
)


@contextmanager
def _open(data: _Data, options: Options) -> Iterator[Case]:
    properties = {"message.max.bytes": "4000000"} if data.value_bytes > 500_000 else {}
    with (
        _server() if data.with_store else nullcontext() as store,
        place(properties=properties) as here,
    ):
        records = options.scaled(data.records, data.least)
        here.cluster.create_topics([TopicSpec(_TOPIC, data.partitions, 1)])
        write = _transactions if data.transactional else _records
        records = write(here, data, records)
        copies = _Copies(here, data, records)
        here.engine_runs()
        acts = [
            Act(_FETCH, copies.fetched),
            Act(_BACKUP, copies.backup, against=_FETCH, at_most=_bounds(data.backup_at_most)),
        ]
        if data.with_limits:
            acts += [
                Act(
                    f"backup, zstd {level}",
                    partial(copies.backup, level),
                    against=_FETCH,
                    at_most={"ratio": 3.1, "stored_mb": _STORED_MB},
                )
                for level in _LEVELS
            ]
            if shutil.which("zstd"):
                acts.append(Act("cat of the broker's log through zstd -1", copies.compressed))
            acts.append(Act("ProducerPerformance", copies.sent_by_kafka, against=_LOOP))
        acts += [
            Act(_LOOP, copies.loop),
            Act(
                _RESTORE,
                copies.restore,
                against=_LOOP,
                at_most=_bounds(data.restore_at_most),
            ),
        ]
        if data.with_limits:
            unchecked = partial(copies.restore, digests=False)
            acts.append(Act(_UNCHECKED, unchecked, against=_RESTORE))
        if store is not None:
            acts += [
                Act(
                    "backup into S3",
                    partial(copies.backup, store=store),
                    against=_BACKUP,
                    at_most=_bounds(1.3),
                ),
                Act(
                    "restore from S3",
                    partial(copies.restore, store),
                    against=_RESTORE,
                    at_most=_bounds(1.2),
                ),
            ]
        told = {"TOPIC": _TOPIC, "RECORDS": str(records), "PARTITIONS": str(data.partitions)}
        acts += externals(here, options, told, _FETCH)
        yield Case(data.title, acts, _notes(data, records))
        copies.close()


@contextmanager
def _server() -> Iterator[ObjectPath]:
    """A place in an S3 server, which this process and what it starts find by the environment."""
    from tests.store.seaweed import serving

    with serving() as server, mock.patch.dict(os.environ, server.environment):
        yield server.place()


def _bounds(ratio: float | None) -> dict[str, float]:
    return {"peak_mb": _PEAK_MB} if ratio is None else {"ratio": ratio, "peak_mb": _PEAK_MB}


def _notes(data: _Data, records: int) -> list[str]:
    return [
        f"{records:,} records in {data.partitions} partitions, values of {data.value_bytes:,}"
        " bytes of which half is random, half of them with a header.",
        "A backup is the whole process `kstreams-assets backup` on a warm engine, into a new"
        " warehouse. Kafka's tool counts from its first fetch, without the start of its JVM.",
        "A restore is all of comparing the digests of its files, of producing, and of reading every"
        " record back and comparing it, on the warm engine; `check_s` and `produce_s` are the first"
        " parts; the digests may cost a twentieth (a ratio of 0.95 without them). The plain"
        " loop is two processes that stream the same files into confluent-kafka, with the same"
        " settings, and look at errors alone; it counts from when both have loaded their"
        " libraries.",
        *(["The S3 server is SeaweedFS; it takes its part of the two cores."] * data.with_store),
    ]


class _Copies:
    """The acts, on one topic."""

    def __init__(self, here: Place, data: _Data, records: int) -> None:
        self._here, self._data, self._records = here, data, records
        self._files = {
            level: here.file(
                {
                    "inputs": [_TOPIC],
                    "backup": {"compression_level": level} if level != 1 else {},
                },
                f"level-{level}",
            )
            for level in (1, *_LEVELS)
        }
        self._point = here.point(self._files[1], 1)
        self._spark = LazySession(SparkSettings())
        self._spans: dict[ObjectPath | None, list[tuple[SpanFile, ...]]] = {}
        self._made = 0

    def close(self) -> None:
        """End the session on the engine."""
        self._spark.stop()

    def fetched(self) -> Measured:
        """Seconds Kafka's own ConsumerPerformance spends fetching every record."""
        level = "read_committed" if self._data.transactional else "read_uncommitted"
        out = self._java(
            "ConsumerPerformance",
            *("--topic", _TOPIC),
            *("--num-records", str(self._records)),
            *("--timeout", "60000"),
            *("--command-property", f"isolation.level={level}"),
        )
        header, values = [line.split(", ") for line in out.strip().splitlines()[-2:]]
        found = dict(zip(header, values, strict=True))
        return Measured(float(found["fetch.time.ms"]) / 1000)

    def sent_by_kafka(self) -> Measured:
        """Seconds Kafka's own ProducerPerformance spends sending as many records."""

        def act(topic: str) -> Measured:
            out = self._java(
                "ProducerPerformance",
                *("--topic", topic),
                *("--num-records", str(self._records)),
                *("--record-size", str(self._data.value_bytes)),
                *("--throughput", "-1"),
                *("--command-property", "acks=all", "linger.ms=20", "batch.size=1000000"),
            )
            rate = re.findall(r"([\d.]+) records/sec", out)
            return Measured(self._records / float(rate[-1]))

        return self._on_new_topic(act)

    def compressed(self) -> Measured:
        """Reading the broker's segments and compressing them, without understanding them."""
        kept = self._here.folder / "cat.zst"
        logs = sorted(self._here.folder.glob(f"kafka/**/{_TOPIC}-*/*.log"))
        began = time.monotonic()
        with kept.open("wb") as out:
            cat = subprocess.Popen(["cat", *map(str, logs)], stdout=subprocess.PIPE)
            command = ["zstd", "-q", "-1", "-c"]
            subprocess.run(command, stdin=cat.stdout, stdout=out, check=True, timeout=LIMIT_S)
            cat.wait(LIMIT_S)
        seconds = time.monotonic() - began
        stored = kept.stat().st_size / 1e6
        kept.unlink()
        return Measured(seconds, stored_mb=stored)

    def backup(self, level: int = 1, store: ObjectPath | None = None) -> Measured:
        """The whole process, into a new warehouse on the disk or in a store."""
        root, measured = self._backed_up(level, store)
        stored = self._here.stored(root, [self._here.window(1)], self._records)
        store_at(root).remove_tree()
        return Measured(measured.seconds, measured.cpu_s, measured.peak_mb, stored)

    def loop(self) -> Measured:
        """Two plain processes."""
        return self._on_new_topic(partial(self._plain, self._span_files()))

    def restore(self, store: ObjectPath | None = None, *, digests: bool = True) -> Measured:
        """Compare the files' digests, produce, and compare every record."""
        spans = self._span_files(store)
        return self._on_new_topic(partial(self._restored, spans, digests=digests))

    def _backed_up(self, level: int, store: ObjectPath | None) -> tuple[StorePath, Measured]:
        place = store or self._here.folder
        root = self._here.warehouse_in(place, [self._point])
        words = ["--app", str(self._files[level]), "--warehouse", str(root)]
        measured = self._here.command("backup", *words, "--window", self._here.window(1))
        return root, measured

    def _span_files(self, store: ObjectPath | None = None) -> list[tuple[SpanFile, ...]]:
        """The span files of each partition, of a backup that stays for all rounds."""
        if store not in self._spans:
            root, _ = self._backed_up(1, store)
            records = Warehouse(root).records(APPLICATION)
            window = self._here.window(1)
            written = {
                unquote(file.path): file
                for entry in Ledger(Warehouse(root), APPLICATION).entries(windows={window})
                for file in entry.result.content.written
            }
            self._spans[store] = [
                tuple(
                    replace(file, written=written[f"{relative(file.path, records)}"])
                    for file in span_files(
                        records, SpanId(window, TopicPartitionId(_TOPIC, number))
                    )
                )
                for number in range(self._data.partitions)
            ]
        return self._spans[store]

    def _on_new_topic(self, act: Callable[[str], Measured]) -> Measured:
        self._made += 1
        topic = f"restored-{self._made}"
        cluster = self._here.cluster
        cluster.create_topics([TopicSpec(topic, self._data.partitions, 1, _TARGET)])
        time.sleep(1)
        measured = act(topic)
        targets = [TopicPartitionId(topic, n) for n in range(self._data.partitions)]
        found = sum(cluster.high_watermarks(targets).values())
        if found != self._records:
            raise RuntimeError(f"{topic} holds {found:,} records, not {self._records:,}")
        cluster.delete_topics([topic])
        time.sleep(2)
        return measured

    def _java(self, tool: str, *arguments: str) -> str:
        command = [str(find_java().executable), "-Xmx1g", "-cp", class_path("kafka")]
        servers = ["--bootstrap-server", self._here.bootstrap_servers]
        done = subprocess.run(
            [*command, f"org.apache.kafka.tools.{tool}", *servers, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        if done.returncode:
            raise RuntimeError(f"{tool} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def _restored(
        self, spans: Sequence[tuple[SpanFile, ...]], topic: str, *, digests: bool
    ) -> Measured:
        expected = {
            file.path: of_it
            for number, files in enumerate(spans)
            for file in files
            if digests and (of_it := file.expected(TopicPartitionId(_TOPIC, number)))
        }
        connection = self._here.cluster.connection
        session = self._spark.spark_session
        with self._here.usage() as usage:
            began = time.monotonic()
            sound = {path: store_at(path).identity() for path in expected}
            if changed := inspect([*expected.values()], By.DIGEST):
                raise RuntimeError(f"files were changed: {changed.damages}")
            works = self._works(spans, topic, sound)
            check_s = time.monotonic() - began
            produced = produce(
                session, works, connection, settings=RestoreSettings(), log=lambda _: None
            )
            produce_s = time.monotonic() - began - check_s
            result = verify(
                session,
                works,
                produced,
                topics=(),
                stored=(),
                connection=connection,
                extent=VerifyExtent.FULL,
                log=lambda _: None,
            )
            seconds = time.monotonic() - began
        if not result.passed or result.compared != self._records:
            raise RuntimeError(f"the restore differs from the backup: {result.problems}")
        figures = {"check_s": check_s, "produce_s": produce_s}
        return Measured(seconds, usage.cpu_s, usage.peak_mb, figures=figures)

    def _works(
        self,
        spans: Sequence[tuple[SpanFile, ...]],
        topic: str,
        sound: Mapping[StorePath, FileIdentity | None],
    ) -> list[PartitionWork]:
        found: list[PartitionWork] = []
        for number, files in enumerate(spans):
            source = TopicPartitionId(_TOPIC, number)
            end = self._here.cluster.high_watermarks([source])[source]
            work = PartitionWork(
                source=source,
                target=TopicPartitionId(topic, number),
                files=tuple(file.path for file in files),
                saved_file=None,
                ranges=(OffsetRange(0, end),),
                base_offset=0,
                records=sum(file.records for file in files),
                noted={file.path: file for file in files if file.path in sound},
                sound={f.path: known for f in files if (known := sound.get(f.path)) is not None},
            )
            found.append(work)
        return found

    def _plain(self, spans: Sequence[tuple[SpanFile, ...]], topic: str) -> Measured:
        spawned = multiprocessing.get_context("spawn")
        ready = spawned.Barrier(3)
        numbered = [(n, tuple(file.path for file in files)) for n, files in enumerate(spans)]
        servers = self._here.bootstrap_servers
        processes: list[BaseProcess] = []
        with watched(lambda: [p.pid for p in processes if p.pid]) as usage:
            processes += [
                spawned.Process(target=_plain_loop, args=(servers, topic, dict(half), ready))
                for half in (numbered[0::2], numbered[1::2])
            ]
            for process in processes:
                process.start()
            ready.wait(120)
            began = time.monotonic()
            for process in processes:
                process.join(LIMIT_S)
            seconds = time.monotonic() - began
        if any(process.exitcode != 0 for process in processes):
            raise RuntimeError("a plain loop failed")
        return Measured(seconds, usage.cpu_s, usage.peak_mb)


def _plain_loop(
    servers: str, topic: str, files: Mapping[int, Sequence[StorePath]], ready: Barrier
) -> None:
    failed: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 65_536,
            "message.max.bytes": 4_000_000,
            "delivery.report.only.error": True,
            "on_delivery": delivered,
        }
    )
    produce_one: Callable[..., None] = producer.produce
    ready.wait(120)
    for partition, paths in files.items():
        for path in paths:
            with pq.ParquetFile(path, memory_map=True) as file:
                for batch in file.iter_batches(batch_size=8_192, columns=_COLUMNS):
                    rows = zip(
                        batch.column("value").to_numpy(zero_copy_only=False).tolist(),
                        batch.column("key").to_numpy(zero_copy_only=False).tolist(),
                        batch.column("timestamp_ms").to_numpy(zero_copy_only=False).tolist(),
                        header_lists(batch.column("headers")),
                        strict=True,
                    )
                    for value, key, time_ms, headers in rows:
                        while True:
                            try:
                                produce_one(
                                    topic, value, key, partition, None, None, time_ms, headers
                                )
                                break
                            except BufferError:
                                producer.poll(0.1)
                    producer.poll(0)
    if producer.flush(120) or failed:
        raise RuntimeError(f"not every record was delivered: {failed[:1]}")


def _payloads(value_bytes: int) -> list[bytes]:
    """Values of which half is random and half repeats: they compress about three times."""
    source = random.Random(7)
    words = [source.randbytes(6).hex().encode() for _ in range(4096)]
    count = max(20, min(_PAYLOADS, 50_000_000 // value_bytes))
    return [
        b" ".join(
            [
                source.randbytes(value_bytes // 4).hex().encode(),
                *source.choices(words, k=max(1, (value_bytes + 1) // 26)),
            ]
        )
        for _ in range(count)
    ]


def _record(number: int, payloads: Sequence[bytes], data: _Data) -> dict[str, Any]:
    headers: list[tuple[str, bytes]] = [("source", b"bench")] * (number % 2)
    return {
        "topic": _TOPIC,
        "value": payloads[number % len(payloads)],
        "key": f"key-{number % 50_000}",
        "partition": number % data.partitions,
        "headers": headers or None,
    }


def _producer(here: Place, **more: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": here.bootstrap_servers,
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 2**18,
            "message.max.bytes": 4_000_000,
            **more,
        }
    )


def _records(here: Place, data: _Data, records: int) -> int:
    payloads, producer = _payloads(data.value_bytes), _producer(here)
    for number in range(records):
        send(producer, **_record(number, payloads, data))
        if number % 10_000 == 0:
            producer.poll(0)
    flushed(producer)
    return records


def _transactions(here: Place, data: _Data, records: int) -> int:
    """Two producers whose transactions end in turn, one of twenty in an abort.

    Returns how many records were committed.
    """
    payloads, source = _payloads(data.value_bytes), random.Random(3)
    producers = [_producer(here, **{"transactional.id": f"bench-{n}"}) for n in range(2)]
    for producer in producers:
        producer.init_transactions(60)
        producer.begin_transaction()
    committed = 0
    began = [time.monotonic()] * 2
    held = [0, 0]
    for number in range(records):
        which = number // 100 % 2
        producer = producers[which]
        send(producer, **_record(number, payloads, data))
        held[which] += 1
        if time.monotonic() - began[which] < _COMMIT_EVERY_S:
            continue
        committed += _ended(producer, held[which], aborts=source.random() < _ABORTED)
        producer.begin_transaction()
        began[which], held[which] = time.monotonic(), 0
    for producer, count in zip(producers, held, strict=True):
        committed += _ended(producer, count, aborts=False)
    return committed


def _ended(producer: Producer, held: int, *, aborts: bool) -> int:
    if aborts:
        producer.flush(60)
        producer.abort_transaction(60)
        return 0
    producer.commit_transaction(60)
    return held
