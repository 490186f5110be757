"""KTable snapshots: 3 M changelog records of 300 k keys, then 100 k changes on top."""

import random
import time
from collections.abc import Iterable

from confluent_kafka import Producer

from bench.machine import write_result
from bench.memory import peak_memory
from bench.setting import Setting, setting
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat
from kstreams_assets.kafka.topics import TopicSpec
from kstreams_assets.ktables.run import KTableRun
from kstreams_assets.ktables.snapshot import Snapshot, TableStore
from kstreams_assets.layout import Warehouse
from kstreams_assets.warehouse.spans import Window

_TOPIC = "bench-totals-changelog"
_PARTITIONS = 4
_RECORDS = 3_000_000
_KEYS = 300_000
_CHANGES = 100_000
_RUNS = 3
_TEXT = Format(Encoding.STRING)
_STORE = TableStore("totals", _TOPIC, StoreFormat(key=_TEXT, value=_TEXT))


def main() -> None:
    """Measure and write bench/results/ktables.md."""
    with setting([_TOPIC]) as place:
        warehouse = Warehouse(place.folder / "warehouse")
        place.cluster.create_topics([TopicSpec(_TOPIC, _PARTITIONS, 1)])
        first = _window(place, warehouse, 0, range(_RECORDS))
        second = _window(place, warehouse, 1, range(_RECORDS, _RECORDS + _CHANGES))
        place.back_up(warehouse, [first, second])
        with peak_memory(place.spark.jvm_pid()) as peaks:
            rows = _measured(place, warehouse, "from the begin of the log", first)
            rows += _measured(place, warehouse, f"{_CHANGES:,} changes on top", second)
    write_result(
        "ktables",
        title="KTable snapshots: 3 M changelog records, 300 k keys, values of 200 bytes",
        command="python -m bench ktables",
        columns=["what", "records read", "rows", "seconds"],
        rows=rows,
        notes=[
            f"{_PARTITIONS} partitions, keys and values read as strings. A run is everything: lock,"
            " plan from the ledger and Delta's log, Spark, one Delta commit, counting, ledger of"
            " snapshots. The session is warm by the backup before it; the first run still compiles"
            " its plans.",
            f"Peak resident memory of the JVM: {peaks[1]:,.0f} MB (heap limit 2 GB).",
        ],
    )


def _measured(
    place: Setting, warehouse: Warehouse, what: str, window: Window
) -> list[list[object]]:
    seconds: list[float] = []
    rows: list[list[object]] = []
    for number in range(1 + _RUNS):
        began = time.monotonic()
        snapshot = _snapshot(place, warehouse, window)
        seconds.append(time.monotonic() - began)
        name = "first" if number == 0 else f"warm, run {number}"
        rows.append([f"{what}, {name}", snapshot.records, snapshot.rows, seconds[-1]])
        print(rows[-1], flush=True)
    rows.append([f"{what}, warm, best", "", "", min(seconds[1:])])
    return rows


def _snapshot(place: Setting, warehouse: Warehouse, window: Window) -> Snapshot:
    run = KTableRun(place.application, warehouse, place.spark, "bench")
    (snapshot,) = run.execute([_STORE], [window])
    return snapshot


def _window(place: Setting, warehouse: Warehouse, number: int, records: Iterable[int]) -> Window:
    """Write records, then take the point that closes their window."""
    producer = Producer(
        {
            "bootstrap.servers": place.bootstrap_servers,
            "linger.ms": 20,
            "batch.num.messages": 50_000,
            "batch.size": 4_000_000,
            "queue.buffering.max.messages": 500_000,
            "compression.type": "lz4",
        }
    )
    noise = random.Random(7).randbytes(500_000).hex().encode()
    for count, record in enumerate(records):
        key = record * 7919 % _KEYS
        at = record * 613 % (len(noise) - 188)
        value = b"%012d" % record + noise[at : at + 188]
        producer.produce(_TOPIC, value, key=b"customer-%06d" % key, partition=key % _PARTITIONS)
        if count % 20_000 == 0:
            producer.poll(0.1 if len(producer) > 300_000 else 0)
    if producer.flush(120):
        raise TimeoutError("not all records were written")
    return place.dated_point(warehouse, number)


if __name__ == "__main__":
    main()
