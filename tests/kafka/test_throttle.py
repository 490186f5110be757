"""A throttle holds its rate over all who pay into it, whenever they begin and end."""

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.record_columns import COLUMNS
from kstreams_assets.kafka.record_writer import RecordWriter, WriterLimits
from kstreams_assets.kafka.throttle import Throttle, throttle
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import TopicPartitionId
from tests.streams.cluster import connection_to, unique_name
from tests.timing import Clock

RATE = 2_000_000
SLOW = 400_000
"""What a busy machine keeps up with."""


_ROUNDS = 3
"""A machine that pauses for longer than may be made up for is slower, and never faster."""


def _pay(limit: Throttle, sizes: Sequence[int], clock: Clock | ModuleType = time) -> None:
    for size in sizes:
        clock.sleep(0.01)  # what it takes to move and to handle them
        limit.wait(size, 1)


@pytest.mark.parametrize(
    "tasks",
    [
        pytest.param([[100_000] * 60], id="one"),
        pytest.param([[100_000] * 20, [20_000] * 50, [300_000] * 10], id="three, unlike"),
        pytest.param([[50_000] * 4, [50_000] * 4, [100_000] * 56], id="two end early"),
    ],
)
def test_processes_together_hold_the_rate(tmp_path: Path, tasks: list[list[int]]) -> None:
    rates: list[float] = []
    spawned = multiprocessing.get_context("spawn")
    with spawned.Pool(len(tasks)) as pool:
        while len(rates) < _ROUNDS and max(rates, default=0.0) < 0.9 * RATE:
            (folder := tmp_path / str(len(rates))).mkdir()
            limit = Throttle(str(folder), RATE, None, tasks=1)
            pool.starmap(_pay, [(limit, [])] * len(tasks))  # all have begun
            began = time.monotonic()
            pool.starmap(_pay, [(limit, sizes) for sizes in tasks], chunksize=1)
            rates.append(sum(map(sum, tasks)) / (time.monotonic() - began))
    assert max(rates) == pytest.approx(RATE, rel=0.1)


def test_each_broker_has_a_limit_of_its_own(tmp_path: Path, clock: Clock) -> None:
    limit = Throttle(str(tmp_path), None, RATE, tasks=1)
    began = clock.now_s
    for _ in range(40):
        for node in (1, 2):
            limit.wait(100_000, node)
    assert 2 * 4_000_000 / (clock.now_s - began) == pytest.approx(2 * RATE, rel=0.1)


def test_a_pause_is_made_up_for_by_a_second_at_most(tmp_path: Path, clock: Clock) -> None:
    limit = Throttle(str(tmp_path), RATE, None, tasks=1)
    limit.wait(RATE // 10, 1)
    clock.sleep(2.5)
    began = clock.now_s
    _pay(limit, [100_000] * 50, clock)
    assert clock.now_s - began == pytest.approx(5_000_000 / RATE - 1, abs=0.3)


def test_a_task_on_another_machine_takes_its_share(clock: Clock) -> None:
    limit = Throttle("/not/there", RATE, None, tasks=4)
    began = clock.now_s
    _pay(limit, [50_000] * 10, clock)
    assert clock.now_s - began == pytest.approx(500_000 / (RATE / 4), rel=0.15)


def test_without_a_limit_there_is_no_throttle_and_one_name_is_one_account() -> None:
    assert throttle("a", None, None, tasks=None) is None
    assert throttle("a", RATE, None, tasks=2) is throttle("a", RATE, None, tasks=2)
    assert throttle("a", RATE, None, tasks=2) is not throttle("b", RATE, None, tasks=2)


def _batches(count: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, 500):
        numbers = range(start, min(start + 500, count))
        yield pa.RecordBatch.from_pydict(
            {
                "offset": list(numbers),
                "timestamp_ms": [1_700_000_000_000] * len(numbers),
                "timestamp_type": [0] * len(numbers),
                "headers": [None] * len(numbers),
                "key": [b"%d" % number for number in numbers],
                "value": [b"v" * 1_000] * len(numbers),
            },
            schema=COLUMNS,
        )


@pytest.mark.kafka
def test_what_is_produced_and_what_is_read_keep_to_it(
    kafka_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two partitions side by side, one three times as large as the other."""
    waited: dict[str, list[float]] = {}
    original = Throttle.wait

    def noting(limit: Throttle, size: int, node: int) -> None:
        waited.setdefault(limit.folder, []).append(time.monotonic())
        original(limit, size, node)
        waited[limit.folder].append(time.monotonic())

    monkeypatch.setattr(Throttle, "wait", noting)
    connection = connection_to(kafka_cluster.bootstrap_servers)
    topic = unique_name("throttled")
    with KafkaCluster(connection) as cluster:
        cluster.create_topics([TopicSpec(topic, 2, 1, {"retention.ms": "-1"})])
    counts = {TopicPartitionId(topic, 0): 1_000, TopicPartitionId(topic, 1): 3_000}
    for name in ("write", "read"):
        (tmp_path / name).mkdir()
    to_write, to_read = (Throttle(str(tmp_path / n), SLOW, None, 1) for n in ("write", "read"))

    def write(partition: TopicPartitionId) -> None:
        limits = WriterLimits(30, 50_000, throttle=to_write)
        with RecordWriter(connection, limits) as writer:
            for _ in writer.write(partition, _batches(counts[partition]), first=0):
                pass

    def read(partition: TopicPartitionId) -> int:
        with RawLogReader(connection, throttle=to_read) as reader:
            stream = reader.stream(partition, 0, counts[partition], deadline_s=1, by_progress=True)
            return sum(len(batch.data) for batches in stream for batch in batches)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, counts))
        moved = sum(pool.map(read, counts))
    assert moved > 4_000_000
    for limit in (to_write, to_read):  # connecting does not count
        took_s = max(waited[limit.folder]) - min(waited[limit.folder])
        assert 0.75 * SLOW < moved / took_s < 1.1 * SLOW  # two equal shares: 0.67
