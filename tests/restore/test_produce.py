"""Partitions are written by Spark tasks, and whatever is killed, each record is there once."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore import produce as produce_module
from kstreams_assets.restore.produce import produce
from kstreams_assets.settings import RestoreSettings
from spark_resources.failures import SparkJobError
from spark_resources.partition_records import PartitionWork
from spark_resources.resource import SparkSessionResource
from tests.backup.reading import consume
from tests.restore.killing import workers_reading
from tests.restore.span_files import Stored, span_file, work_of
from tests.streams.cluster import unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

SETTINGS = RestoreSettings(delivery_timeout_seconds=30)


def _quiet(_: str) -> None:
    """A log nobody reads."""


@pytest.fixture
def connection(kafka_cluster: LocalCluster) -> KafkaConnection:
    servers = kafka_cluster.bootstrap_servers
    return KafkaConnection(bootstrap_servers=servers, request_timeout_seconds=20)


@pytest.fixture
def cluster(connection: KafkaConnection) -> Iterator[KafkaCluster]:
    with KafkaCluster(connection) as cluster:
        yield cluster


def _topic(cluster: KafkaCluster, partitions: int) -> str:
    name = unique_name("restored")
    configs = {"message.timestamp.before.max.ms": str(2**63 - 1), "retention.ms": "-1"}
    cluster.create_topics([TopicSpec(name, partitions, 1, configs)])
    return name


def _works(
    folder: Path, topic: str, counts: list[int], *, value_bytes: int = 10
) -> list[PartitionWork]:
    works = []
    for partition, count in enumerate(counts):
        values = (b"%d-%d" % (partition, n) for n in range(count))
        records = [Stored(n, value.ljust(value_bytes), b"%d" % n) for n, value in enumerate(values)]
        path = span_file(folder / f"{partition}.parquet", records, partition=partition)
        target = TopicPartitionId(topic, partition)
        works.append(work_of(target, [path], [(0, count)], count))
    return works


def _assert_restored(connection: KafkaConnection, works: list[PartitionWork]) -> None:
    """Each record once, in order, in its partition."""
    topic = works[0].target.topic
    arrived = consume(connection.bootstrap_servers, topic, partitions=len(works))
    expected = [
        (work.target.partition, n, b"%d" % n) for work in works for n in range(work.records)
    ]
    assert [(r.partition, r.offset, r.key) for r in arrived] == expected
    assert all((r.value or b"").rstrip() == b"%d-%d" % (r.partition, r.offset) for r in arrived)


def test_partitions_of_any_size_in_order_of_works(
    spark: SparkSessionResource,
    cluster: KafkaCluster,
    connection: KafkaConnection,
    tmp_path: Path,
) -> None:
    works = _works(tmp_path, _topic(cluster, 5), [3, 0, 20_000, 1, 500])
    lines: list[str] = []
    for attempt in range(2):
        produced = produce(
            spark.spark_session, works, connection, settings=SETTINGS, log=lines.append
        )
        assert [p.target for p in produced] == [work.target for work in works]
        assert [p.records for p in produced] == [3, 0, 20_000, 1, 500]
        assert [p.end for p in produced] == [3, 0, 20_000, 1, 500]
        assert [p.resumed for p in produced] == [p.records * attempt for p in produced]
        assert [list(p.runs) for p in produced] == [
            [(0, 0, n)] if n else [] for n in (3, 0, 20_000, 1, 500)
        ]
    _assert_restored(connection, works)
    assert "20,504 records of 5 partitions are on the target; " in "\n".join(lines)
    assert "20,504 of them since an earlier attempt" in lines[-1]


def test_an_error_of_a_task_arrives_with_its_facts(
    spark: SparkSessionResource,
    cluster: KafkaCluster,
    connection: KafkaConnection,
    tmp_path: Path,
) -> None:
    topic = unique_name("small")
    cluster.create_topics([TopicSpec(topic, 2, 1, {"max.message.bytes": "1000"})])
    works = _works(tmp_path, topic, [1, 2], value_bytes=990)
    refused = rf"{topic}-[01] refused the record .* source offset 0: MESSAGE_SIZE_TOO_LARGE"
    with pytest.raises(KStreamsAssetsError, match=refused):
        produce(spark.spark_session, works, connection, settings=SETTINGS, log=_quiet)
    assert cluster.high_watermarks(w.target for w in works) == {w.target: 0 for w in works}


def test_records_of_somebody_else_behind_the_last_one(
    spark: SparkSessionResource,
    cluster: KafkaCluster,
    connection: KafkaConnection,
    tmp_path: Path,
) -> None:
    topic = _topic(cluster, 1)
    [work] = _works(tmp_path, topic, [0])
    producer = Producer({"bootstrap.servers": connection.bootstrap_servers})
    producer.produce(topic, b"foreign", partition=0)
    assert producer.flush(20) == 0
    with pytest.raises(KStreamsAssetsError, match="it ends at 1, the restore's last record at 0"):
        produce(spark.spark_session, [work], connection, settings=SETTINGS, log=_quiet)


def test_killed_workers_and_a_second_call(
    spark: SparkSessionResource,
    cluster: KafkaCluster,
    connection: KafkaConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(produce_module, "_PROGRESS_S", 0.2)
    works = _works(tmp_path, _topic(cluster, 2), [200_000, 200_000], value_bytes=500)
    total = sum(work.records for work in works)
    killed: list[int] = []

    def kill_in_the_middle() -> None:
        with KafkaCluster(connection) as watching:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                ends = watching.high_watermarks(work.target for work in works)
                if sum(ends.values()) > total // 20:
                    break
        for pid in workers_reading(spark.jvm_pid(), tmp_path):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    lines: list[str] = []
    session = spark.spark_session
    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    try:
        with pytest.raises(SparkJobError, match="Python worker of Spark died"):
            produce(session, works, connection, settings=SETTINGS, log=lines.append)
    finally:
        killer.join(60)
    assert killed
    there = sum(cluster.high_watermarks(work.target for work in works).values())
    assert 0 < there < total
    assert any("of 400,000 records (" in line for line in lines)

    produced = produce(session, works, connection, settings=SETTINGS, log=lines.append)

    assert sum(p.resumed for p in produced) == there
    assert [list(p.runs) for p in produced] == [[(0, 0, 200_000)]] * 2
    _assert_restored(connection, works)
