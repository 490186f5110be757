"""A restore that has just been committed, made by hand: topics with records, offsets, its row."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore, StoredTopic
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId, offsets_of_topic
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from tests.streams.cluster import connection_to, unique_name

TIMEOUT_S = 30.0


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class AfterCommit:
    """One application whose restore has put these topics on the cluster."""

    cluster: KafkaCluster
    settings: ApplicationSettings
    topics: list[StoredTopic] = field(default_factory=list)

    @property
    def group(self) -> str:
        """The application id, which is the group."""
        return self.settings.application_id

    def topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        role: TopicRole = TopicRole.INPUT,
        configs: Mapping[str, str] | None = None,
        put_back: Mapping[str, str | None] | None = None,
        timestamps_ms: Sequence[int] = (),
    ) -> str:
        """Create a topic with a record of each of these times in every partition."""
        self.cluster.create_topics([TopicSpec(name, partitions, 1, configs or {})])
        write(self.cluster, name, timestamps_ms, partitions=partitions)
        self.adopt(
            name, records=len(timestamps_ms) * partitions, role=role, put_back=put_back or {}
        )
        return name

    def adopt(
        self,
        name: str,
        *,
        records: int,
        role: TopicRole = TopicRole.INPUT,
        put_back: Mapping[str, str | None] | None = None,
    ) -> None:
        """Take a topic that is there for one of the restore."""
        found = self.cluster.metadata().topics[name]
        self.topics.append(
            StoredTopic(
                source=name,
                target=name,
                target_topic_id=found.topic_id,
                base_offsets=(0,) * found.partitions,
                records=records,
                roles=(role.value,),
                put_back=put_back or {},
            )
        )

    def restore(
        self,
        committed: Mapping[TopicPartitionId, CommittedOffset],
        *,
        state: RestoreState = RestoreState.COMMITTED,
        former: Sequence[GroupOffset] | None = (),
    ) -> StoredRestore:
        """Commit offsets as the restore does, and store its row."""
        if committed:
            self.cluster.commit_group_offsets(self.group, committed)
        restore = StoredRestore(
            application_id=self.settings.application_id,
            restore_id=unique_name("restore"),
            state=state,
            changed_at_ms=now_ms(),
            created_at_ms=now_ms(),
            run_id="run",
            point_id="point",
            group=self.group,
            target_cluster_id=self.cluster.cluster_id(),
            target_bootstrap_servers=self.cluster.connection.bootstrap_servers,
            mode=RestoreMode.STATE,
            request="{}",
            topics=tuple(self.topics),
            former_offsets=None if former is None else tuple(former),
            committed=tuple(
                GroupOffset(id_.topic, id_.partition, offset.offset, offset.metadata)
                for id_, offset in sorted(committed.items())
            ),
        )
        Repository.open(self.settings).restores.append(restore)
        return restore

    def ends(self, topic: str) -> tuple[int, ...]:
        """The high watermarks of a topic's partitions."""
        count = self.cluster.metadata().topics[topic].partitions
        ids = [TopicPartitionId(topic, number) for number in range(count)]
        return offsets_of_topic(self.cluster.high_watermarks(ids), topic)

    def stored(self, restore: StoredRestore) -> StoredRestore | None:
        """The restore as it stands in the table."""
        table = Repository(self.settings.warehouse, restore.application_id).restores
        return table.newest(restore.restore_id)


@contextmanager
def after_commit(bootstrap_servers: str, warehouse: Path) -> Iterator[AfterCommit]:
    """An application of its own on this cluster."""
    connection = connection_to(bootstrap_servers)
    with KafkaCluster(connection) as cluster:
        yield AfterCommit(cluster, settings_of(unique_name("app"), connection, warehouse))


def settings_of(
    application_id: str,
    connection: KafkaConnection,
    warehouse: Path,
    topics: Sequence[AppTopic] = (),
) -> ApplicationSettings:
    """Settings of an application without any of its own."""
    return ApplicationSettings(
        application=StreamsApplication(application_id, tuple(topics)),
        topics=tuple(topics),
        connection=connection,
        warehouse=Warehouse(warehouse),
        windows=WindowSchedule.every("hour", start="2026-01-01"),
    )


def write(
    cluster: KafkaCluster, topic: str, timestamps_ms: Sequence[int], *, partitions: int = 1
) -> None:
    """A record of each of these times in every partition."""
    producer = Producer({"bootstrap.servers": cluster.connection.bootstrap_servers, "log_level": 0})
    for partition in range(partitions):
        for timestamp_ms in timestamps_ms:
            producer.produce(topic, b"v", b"k", partition, timestamp=timestamp_ms)
    assert producer.flush(TIMEOUT_S) == 0
