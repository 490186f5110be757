"""Throughput of a backup: 1 M records, about 1 GB, beside Kafka's own consumer in the same run."""

import random
import re
import resource
import subprocess
import time
from pathlib import Path

from confluent_kafka import Producer

from bench.machine import write_result
from bench.setting import Setting, setting
from kstreams_assets.kafka.topics import TopicSpec
from kstreams_assets.layout import Warehouse
from kstreams_assets.warehouse.ledger import Ledger
from kstreams_assets.warehouse.spans import Window
from spark_resources.jars import class_path
from spark_resources.java import find_java

_TOPIC = "orders"
_PARTITIONS = 4
_RECORDS = 1_000_000
_REPEATS = 3
_PAYLOADS = 50_000
"""More than a compressor's window holds."""


def main() -> None:
    """Measure and write bench/results/backup.md."""
    with setting((_TOPIC,), driver_memory="4g") as place:
        place.cluster.create_topics([TopicSpec(_TOPIC, _PARTITIONS, 1)])
        probe = Warehouse(place.folder / "probe")
        place.dated_point(probe, 0)
        produce_records(place.bootstrap_servers, _TOPIC, _RECORDS, _PARTITIONS)
        rows = [_consume(place.bootstrap_servers) for _ in range(_REPEATS)]
        began = time.monotonic()
        _ = place.spark.spark_session
        start_s = time.monotonic() - began
        cold, warehouse, window = _back_up(place, "cold")
        warm = [_back_up(place, f"warm {n + 1}") for n in range(_REPEATS)]
        stored = _stored_bytes(warehouse, window)
        peak_mb = _peak_mb(place)
    best = min(seconds for seconds, _, _ in warm)
    plain = min(rows)
    write_result(
        "backup",
        title="Backup of 1 M records",
        command="python -m bench backup",
        columns=["what", "seconds", "records/s", "ratio"],
        rows=[
            ["Kafka's ConsumerPerformance, fetch time, best of 3", plain, _per_s(plain), 1.0],
            ["start of the Spark session", start_s, "", start_s / plain],
            ["first backup in a new JVM", cold, _per_s(cold), cold / plain],
            *[
                [f"backup, warm JVM, run {n + 1}", seconds, _per_s(seconds), seconds / plain]
                for n, (seconds, _, _) in enumerate(warm)
            ],
            ["backup, warm JVM, best", best, _per_s(best), best / plain],
        ],
        notes=[
            f"{_RECORDS:,} records of about 1 KB (half with a header) in {_PARTITIONS} partitions,"
            f" into one window; {stored / 1e6:,.0f} MB stored (zstd 1). A run is everything: plan,"
            " read, Delta commit, counting from Delta's log, ledger.",
            f"Peak resident memory: {peak_mb:,.0f} MB for the JVM (heap limit 4 GB).",
        ],
    )


def _per_s(seconds: float) -> int:
    return round(_RECORDS / seconds)


def produce_records(bootstrap_servers: str, topic: str, records: int, partitions: int) -> None:
    """Payloads of which half is random and half repeats: they compress about three times."""
    source = random.Random(7)
    words = [source.randbytes(6).hex().encode() for _ in range(4096)]
    payloads = [
        b" ".join([source.randbytes(240).hex().encode(), *source.choices(words, k=37)])
        for _ in range(_PAYLOADS)
    ]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 2**20,
        }
    )
    for number in range(records):
        headers: list[tuple[str, str | bytes | None]] = [("source", b"bench")] * (number % 2)
        while True:
            try:
                producer.produce(
                    topic,
                    payloads[number % _PAYLOADS],
                    f"key-{number % 50_000}",
                    partition=number % partitions,
                    headers=headers or None,
                )
                break
            except BufferError:
                producer.poll(0.5)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("not every record was delivered")


def _consume(bootstrap_servers: str) -> float:
    """Seconds Kafka's own ConsumerPerformance spends fetching every record."""
    command = [
        str(find_java().executable),
        "-Xmx1g",
        "-cp",
        class_path("kafka"),
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", bootstrap_servers),
        *("--topic", _TOPIC),
        *("--num-records", str(_RECORDS)),
        *("--timeout", "60000"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    header, values = [line.split(", ") for line in result.stdout.strip().splitlines()[-2:]]
    return float(dict(zip(header, values, strict=True))["fetch.time.ms"]) / 1000


def _back_up(place: Setting, name: str) -> tuple[float, Warehouse, Window]:
    warehouse = Warehouse(place.folder / re.sub(r"\W", "-", name))
    window = place.dated_point(warehouse, 1)
    began = time.monotonic()
    place.back_up(warehouse, [window])
    seconds = time.monotonic() - began
    print(f"{name}: {seconds:.1f} s", flush=True)
    return seconds, warehouse, window


def _stored_bytes(warehouse: Warehouse, window: Window) -> int:
    """Bytes of the window's files; raises when they do not hold every record."""
    entries = Ledger(warehouse, "bench").entries()
    contents = [e.result.content for e in entries if e.result.plan.window == window]
    if sum(content.records for content in contents) != _RECORDS:
        raise RuntimeError("the backup does not hold every record")
    return sum(content.stored_bytes for content in contents)


def _peak_mb(place: Setting) -> float:
    pid = place.spark.jvm_pid()
    status = Path(f"/proc/{pid}/status")
    if status.is_file():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="ascii"))
        if found:
            return int(found[1]) / 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


if __name__ == "__main__":
    main()
