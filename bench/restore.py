"""Throughput of a restore: 1 M records, about 1 GB, beside a plain loop in the same run."""

import multiprocessing
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier

import pyarrow.parquet as pq
from confluent_kafka import KafkaError, Message, Producer

from bench.backup import produce_records
from bench.machine import write_result
from bench.memory import peak_memory
from bench.setting import Setting, setting
from kstreams_assets.kafka.topics import TopicSpec
from kstreams_assets.layout import Warehouse
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.restore.produce import produce
from kstreams_assets.restore.verify import verify
from kstreams_assets.settings import RestoreSettings, VerifyExtent
from kstreams_assets.warehouse.records import SpanId, span_files
from kstreams_assets.warehouse.restores import PartitionProduced
from kstreams_assets.warehouse.spans import Window
from spark_resources.jars import class_path
from spark_resources.java import find_java
from spark_resources.partition_records import PartitionWork, header_lists

_TOPIC = "orders"
_PARTITIONS = 4
_RECORDS = 1_000_000
_REPEATS = 3
_TARGET = {"retention.ms": "-1", "max.message.bytes": "104857600"}
_COLUMNS = ["timestamp_ms", "headers", "key", "value"]


def main() -> None:
    """Measure and write bench/results/restore.md."""
    with setting((_TOPIC,)) as place:
        place.cluster.create_topics([TopicSpec(_TOPIC, _PARTITIONS, 1)])
        warehouse = Warehouse(place.folder / "warehouse")
        place.dated_point(warehouse, 0)
        produce_records(place.bootstrap_servers, _TOPIC, _RECORDS, _PARTITIONS)
        window = place.dated_point(warehouse, 1)
        place.back_up(warehouse, [window])
        files = _files(warehouse, window)
        rounds = [_round(place, files, number) for number in range(_REPEATS + 1)]
        java = [_timed(place, lambda topic: _java(place, topic)) for _ in range(_REPEATS)]
    first, warm = rounds[0], rounds[1:]
    plain = min(row["plain"] for row in warm)
    best = min(row["restore"] for row in warm)
    ratio = sorted(row["restore"] / row["plain"] for row in warm)[_REPEATS // 2]
    labels = {
        "plain": "plain loop of two processes",
        "restore": "restore without verification",
        "verify": "verification of every record",
    }
    write_result(
        "restore",
        title="Restore of 1 M records",
        command="python -m bench restore",
        columns=["what", "seconds", "records/s", "ratio to the best plain loop"],
        rows=[
            *[
                [f"{label}, run {n}", row[name], _per_s(row[name]), row[name] / plain]
                for name, label in labels.items()
                for n, row in enumerate(warm, 1)
            ],
            ["restore, first one in its JVM", first["restore"], _per_s(first["restore"]), ""],
            ["restore, best", best, _per_s(best), best / plain],
            [
                "restore with verification, best",
                (both := min(row["restore"] + row["verify"] for row in warm)),
                _per_s(both),
                both / plain,
            ],
            ["Kafka's ProducerPerformance, acks=all, best", min(java), "", min(java) / plain],
        ],
        notes=[
            f"{_RECORDS:,} records of about 1 KB (half with a header) in {_PARTITIONS} partitions."
            f" Restore over plain loop of the same round, median of {_REPEATS}: {ratio:.2f}"
            " (accepted: 1.5).",
            "The plain loop streams the same span files with pyarrow into confluent-kafka, with the"
            " same settings, and looks at errors alone; its time begins when both processes have"
            " loaded their libraries. The restore's is all of `produce`: the Spark job, counting"
            " what is there, each record's offset from its delivery report, the offset map.",
            "Peak resident memory while restoring:"
            f" {max(row['worker_mb'] for row in rounds):,.0f} MB for the largest Python worker (two"
            f" of them), {max(row['jvm_mb'] for row in rounds):,.0f} MB for the JVM.",
        ],
    )


def _per_s(seconds: float) -> int:
    return round(_RECORDS / seconds)


def _files(warehouse: Warehouse, window: Window) -> list[tuple[str, ...]]:
    """The span files of each partition."""
    records = warehouse.records("bench")
    spans = [SpanId(window.key, TopicPartitionId(_TOPIC, n)) for n in range(_PARTITIONS)]
    return [tuple(str(file.path) for file in span_files(records, span)) for span in spans]


def _round(place: Setting, files: Sequence[tuple[str, ...]], number: int) -> dict[str, float]:
    """One of each, one after the other, so that the machine's mood meets all of them."""
    times: dict[str, float] = {}
    times["plain"] = _timed(place, lambda topic: _plain(place.bootstrap_servers, topic, files))

    def restore_and_verify(topic: str) -> float:
        works = _works(topic, files)
        with peak_memory(place.spark.jvm_pid()) as peaks:
            began = time.monotonic()
            produced = _restore(place, works)
            seconds = time.monotonic() - began
        times["worker_mb"], times["jvm_mb"] = peaks
        began = time.monotonic()
        _verify(place, works, produced)
        times["verify"] = time.monotonic() - began
        return seconds

    times["restore"] = _timed(place, restore_and_verify)
    print(number, {name: round(value, 2) for name, value in times.items()}, flush=True)
    return times


def _timed(place: Setting, act: Callable[[str], float]) -> float:
    """Seconds that something takes with a new topic, which is deleted afterwards."""
    topic = f"restored-{time.monotonic_ns()}"
    place.cluster.create_topics([TopicSpec(topic, _PARTITIONS, 1, _TARGET)])
    time.sleep(1)
    seconds = act(topic)
    targets = [TopicPartitionId(topic, n) for n in range(_PARTITIONS)]
    if sum(place.cluster.high_watermarks(targets).values()) != _RECORDS:
        raise RuntimeError("not every record is there")
    place.cluster.delete_topics([topic])
    time.sleep(2)
    return seconds


def _works(topic: str, files: Sequence[tuple[str, ...]]) -> list[PartitionWork]:
    count = _RECORDS // _PARTITIONS
    return [
        PartitionWork(
            source=TopicPartitionId(_TOPIC, partition),
            target=TopicPartitionId(topic, partition),
            files=of_partition,
            saved_file=None,
            ranges=(OffsetRange(0, count),),
            base_offset=0,
            records=count,
        )
        for partition, of_partition in enumerate(files)
    ]


def _restore(place: Setting, works: Sequence[PartitionWork]) -> list[PartitionProduced]:
    return produce(
        place.spark.spark_session,
        works,
        place.cluster.connection,
        settings=RestoreSettings(),
        log=lambda line: print(line, flush=True),
    )


def _verify(
    place: Setting, works: Sequence[PartitionWork], produced: Sequence[PartitionProduced]
) -> None:
    result = verify(
        place.spark.spark_session,
        works,
        produced,
        topics=(),
        stored=(),
        connection=place.cluster.connection,
        extent=VerifyExtent.FULL,
        log=lambda line: print(line, flush=True),
    )
    if not result.passed or result.compared != _RECORDS:
        raise RuntimeError(f"the restore is not as the backup: {result.problems}")


def _plain(servers: str, topic: str, files: Sequence[tuple[str, ...]]) -> float:
    """Seconds that two processes take from the first record to the last acknowledgement."""
    spawned = multiprocessing.get_context("spawn")
    ready = spawned.Barrier(3)
    processes = [
        spawned.Process(target=_plain_loop, args=(servers, topic, dict(half), ready))
        for half in (list(enumerate(files))[0::2], list(enumerate(files))[1::2])
    ]
    for process in processes:
        process.start()
    ready.wait(120)
    began = time.monotonic()
    for process in processes:
        process.join(600)
    seconds = time.monotonic() - began
    if any(process.exitcode != 0 for process in processes):
        raise RuntimeError("a plain loop failed")
    return seconds


def _plain_loop(
    servers: str, topic: str, files: dict[int, tuple[str, ...]], ready: Barrier
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
            "delivery.report.only.error": True,
            "on_delivery": delivered,
        }
    )
    send: Callable[..., None] = producer.produce
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
                                send(topic, value, key, partition, None, None, time_ms, headers)
                                break
                            except BufferError:
                                producer.poll(0.1)
                    producer.poll(0)
    if producer.flush(120) or failed:
        raise RuntimeError(f"not every record was delivered: {failed[:1]}")


def _java(place: Setting, topic: str) -> float:
    """Seconds that Kafka's own ProducerPerformance spends sending as many records of 1 KB."""
    command = [
        str(find_java().executable),
        "-Xmx1g",
        "-cp",
        class_path("kafka"),
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", place.bootstrap_servers),
        *("--topic", topic),
        *("--num-records", str(_RECORDS)),
        *("--record-size", "967"),
        *("--throughput", "-1"),
        *("--command-property", "acks=all", "linger.ms=20", "batch.size=1000000"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    rate = re.findall(r"([\d.]+) records/sec", result.stdout)
    if result.returncode != 0 or not rate:
        raise RuntimeError(f"ProducerPerformance failed: {result.stdout}{result.stderr}")
    return _RECORDS / float(rate[-1])


if __name__ == "__main__":
    main()
