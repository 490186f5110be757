"""Restores made the simple way on a real broker, for tests of their verification."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.restores import PartitionProduced, StoredTopic
from kstreams_assets.offsets import OffsetRange, TopicPartitionId, runs_of
from kstreams_assets.restore.plan import PartitionPlan, TopicPlan
from kstreams_assets.restore.verify import VerifyResult, verify
from kstreams_assets.settings import VerifyExtent
from spark_resources.partition_records import SCHEMA, PartitionWork
from spark_resources.resource import SparkSessionResource
from tests.backup.writing import RawRecord, write_raw
from tests.streams.cluster import connection_to, unique_name

EXTRA = RawRecord(5, b"extra")
RECORDS = 60
CONFIGS = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)}
Tamper = Callable[[dict[int, list[RawRecord]]], object]


def records(count: int = RECORDS) -> dict[int, list[RawRecord]]:
    """Records of two partitions, with everything that a client may confuse."""
    return {
        partition: [
            RawRecord(
                timestamp_ms=1_000_000 - number,
                value=None if number % 7 == 3 else b"" if number % 7 == 4 else b"v%d" % number,
                key=None if number % 5 == 1 else b"" if number % 5 == 2 else b"k%d" % partition,
                headers=(("a", b"%d" % number), ("a", b""), ("é", None)) if number % 2 else (),
            )
            for number in range(count)
        ]
        for partition in range(2)
    }


def source_offset(number: int) -> int:
    """Source offsets have holes, so that the offset map has several runs."""
    return 500 + number + 3 * (number // 10)


@dataclass
class Restored:
    """A topic that was restored, as the parts of a restore tell of it."""

    plan: TopicPlan
    stored: StoredTopic
    works: list[PartitionWork]
    produced: list[PartitionProduced]

    def at(self, partition: int) -> TopicPartitionId:
        """A partition of the target."""
        return TopicPartitionId(self.plan.target, partition)


@dataclass
class Workplace:
    """Restores topics the simple way, and verifies them."""

    cluster: KafkaCluster
    spark: SparkSessionResource
    folder: Path
    said: list[str] = field(default_factory=list)

    def restore(
        self,
        tamper: Tamper = lambda _: None,
        *,
        base: int = 0,
        backup: Mapping[int, list[RawRecord]] | None = None,
        raw: bool = False,
    ) -> Restored:
        """Write a backup of two partitions, and a topic with what `tamper` makes of it."""
        backup = records() if backup is None else backup
        target = unique_name("restored")
        self.cluster.create_topics([TopicSpec(target, len(backup), 1, CONFIGS)])
        earlier = {partition: [RawRecord(1, b"before")] * base for partition in backup}
        self.write(target, earlier)
        if base:  # a restore begins behind other records only where these are deleted
            self.cluster.delete_records(
                {TopicPartitionId(target, partition): base for partition in backup}
            )
        changed = {partition: list(rows) for partition, rows in backup.items()}
        tamper(changed)
        if raw:
            for partition, rows in changed.items():
                write_raw(self.cluster.connection.bootstrap_servers, target, partition, rows)
        else:
            self.write(target, changed)
        works = [self._work(target, partition, rows, base) for partition, rows in backup.items()]
        topic_id = self.cluster.metadata().topics[target].topic_id
        return Restored(
            _plan(works),
            StoredTopic("orders", target, topic_id, (base,) * len(works), RECORDS * len(works)),
            works,
            [produced_as_planned(work) for work in works],
        )

    def write(self, topic: str, rows: Mapping[int, Sequence[RawRecord]]) -> None:
        """Write records to partitions."""
        servers = self.cluster.connection.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "log_level": 0, "linger.ms": 5})
        for partition, of_partition in rows.items():
            for row in of_partition:
                producer.produce(
                    topic,
                    value=row.value,
                    key=row.key,
                    headers=list(row.headers),
                    timestamp=row.timestamp_ms,
                    partition=partition,
                )
        assert producer.flush(20) == 0

    def verify(
        self,
        *restored: Restored,
        extent: VerifyExtent = VerifyExtent.FULL,
        accept_replaced_timestamps: bool = False,
    ) -> VerifyResult:
        """Verify restored topics together."""
        return verify(
            self.spark.spark_session,
            [work for topic in restored for work in topic.works],
            [produced for topic in restored for produced in topic.produced],
            topics=[topic.plan for topic in restored],
            stored=[topic.stored for topic in restored],
            connection=self.cluster.connection,
            extent=extent,
            log=self.said.append,
            accept_replaced_timestamps=accept_replaced_timestamps,
        )

    def _work(
        self, target: str, partition: int, rows: Sequence[RawRecord], base: int
    ) -> PartitionWork:
        file = self.folder / f"{target}-{partition}.parquet"
        of_file = [
            {
                "offset": source_offset(number),
                "timestamp_ms": row.timestamp_ms,
                "headers": [{"key": key, "value": value} for key, value in row.headers] or None,
                "key": row.key,
                "value": row.value,
            }
            for number, row in enumerate(rows)
        ]
        pq.write_table(pa.Table.from_pylist(of_file, SCHEMA), file, row_group_size=25)
        return PartitionWork(
            source=TopicPartitionId("orders", partition),
            target=TopicPartitionId(target, partition),
            files=(file,),
            saved_file=None,
            ranges=(OffsetRange(0, source_offset(len(rows))),),
            base_offset=base,
            records=len(rows),
        )


def produced_as_planned(work: PartitionWork) -> PartitionProduced:
    """What producing these works tells when nothing goes wrong."""
    end = work.base_offset + work.records
    offsets = [source_offset(number) for number in range(work.records)]
    runs = runs_of(offsets, range(work.base_offset, end))
    return PartitionProduced(work.source, work.target, tuple(runs), work.records, 0, end)


def _plan(works: Sequence[PartitionWork]) -> TopicPlan:
    partitions = tuple(
        PartitionPlan(work.source, work.target, "", work.ranges, (), work.records, 0)
        for work in works
    )
    input_role = TopicRoles({TopicRole.INPUT})
    return TopicPlan("orders", works[0].target.topic, input_role, partitions, 1, None, CONFIGS)


@contextmanager
def workplace_on(
    kafka_cluster: LocalCluster, spark: SparkSessionResource, folder: Path
) -> Iterator[Workplace]:
    """The shared broker as target of restores."""
    connection = connection_to(kafka_cluster.bootstrap_servers)
    with KafkaCluster(connection) as cluster:
        yield Workplace(cluster, spark, folder)


def change(partition: int, number: int, **changes: object) -> Tamper:
    """Change fields of one record."""

    def tamper(rows: dict[int, list[RawRecord]]) -> None:
        rows[partition][number] = replace(rows[partition][number], **changes)

    return tamper
