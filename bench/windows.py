"""Many windows in one backfill: one Spark start, and time that grows with data, not windows."""

import time

from confluent_kafka import Producer

from bench.machine import write_result
from bench.setting import Setting, setting
from kstreams_assets.kafka.topics import TopicSpec
from kstreams_assets.layout import Warehouse

_TOPICS = tuple(f"topic-{number}" for number in range(5))
_PARTITIONS = 4
_RECORDS = 200_000
_COUNTS = (1, 25, 50, 100, 200)
_VALUE = b"v" * 200


def main() -> None:
    """Measure and write bench/results/windows.md."""
    rows: list[list[object]] = []
    with setting(_TOPICS) as place:
        place.cluster.create_topics([TopicSpec(t, _PARTITIONS, 1) for t in _TOPICS])
        began = time.monotonic()
        _ = place.spark.spark_session
        start_s = time.monotonic() - began
        _measure(place, _COUNTS[1])  # not counted: the JVM warms up
        for count in _COUNTS:
            seconds = _measure(place, count)
            rows.append([count, count * len(_TOPICS), _RECORDS, seconds, 1000 * seconds / count])
            print(rows[-1], flush=True)
    write_result(
        "windows",
        title="100 windows x 5 topics as one backfill",
        command="python -m bench windows",
        columns=["windows", "windows x topics", "records in all", "seconds", "ms per window"],
        rows=rows,
        notes=[
            f"The same {_RECORDS:,} records of 200 bytes over {len(_TOPICS)} topics with"
            f" {_PARTITIONS} partitions each, cut into more and more windows; each row is one run"
            " (one Kafka read, one Delta commit, one ledger commit) in a warm JVM.",
            f"One Spark start for all of them: {start_s:.1f} s.",
        ],
    )


def _measure(place: Setting, count: int) -> float:
    """Produce the records in `count` windows, then back them up in one run."""
    warehouse = Warehouse(place.folder / f"warehouse-{time.monotonic_ns()}")
    place.dated_point(warehouse, 0)
    windows = []
    producer = Producer({"bootstrap.servers": place.bootstrap_servers, "linger.ms": 5})
    for number in range(count):
        for index in range(_RECORDS // count):
            producer.produce(_TOPICS[index % len(_TOPICS)], _VALUE, partition=index % _PARTITIONS)
            if index % 10_000 == 0:
                producer.poll(0)
        producer.flush(60)
        windows.append(place.dated_point(warehouse, number + 1))
    began = time.monotonic()
    place.back_up(warehouse, windows)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
