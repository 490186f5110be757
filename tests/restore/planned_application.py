"""An application that is backed up, and a target cluster, for plans on real brokers."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from spark_resources.work import Spark
from tests.backup.acls import Acls
from tests.backup.writing import RawRecord, producer, write_raw
from tests.repository.disk import on_disk
from tests.streams.cluster import unique_name
from tests.streams.workbench import Workbench

LARGE = 60_000
_WAIT_S = 20.0
_ROLES = {
    "orders": TopicRole.INPUT,
    "rates": TopicRole.GLOBAL,
    "totals": TopicRole.OUTPUT,
}


@dataclass
class PlannedApplication:
    """Two windows of it are backed up; a third recovery point lies behind them.

    In partition 0 of `orders` are 20 records, one of them of `LARGE` bytes, and 8 more in the
    second window, of which 2 have timestamps that cannot be kept. 4 records are in flight.
    """

    bench: Workbench
    target: KafkaConnection
    names: dict[str, str] = field(default_factory=dict)
    points: list[RecoveryPoint] = field(default_factory=list)

    def prepare(self) -> None:
        """Create topics, write, take points and back up."""
        application_id, cluster = self.bench.application_id, self.bench.cluster
        for name, role in _ROLES.items():
            self.names[name] = self.bench.topic(name, partitions=2, role=role)
        internal = {
            "changelog": (TopicRole.CHANGELOG, {"cleanup.policy": "compact"}),
            "repartition": (TopicRole.REPARTITION, {"cleanup.policy": "delete"}),
        }
        for name, (role, configs) in internal.items():
            topic = self.names[name] = f"{application_id}-sums-{name}"
            cluster.create_topics([TopicSpec(topic, 2, 1, configs)])
            self.bench.roles[topic] = TopicRoles({role})
        self._write({"orders": 19, "rates": 3, "totals": 5, "changelog": 10, "repartition": 10})
        self._write({"orders": 1}, size=LARGE)
        self._commit({"orders": 12, "repartition": 6})
        self._close_and_back_up()
        odd = [RawRecord(timestamp, b"odd") for timestamp in (0, -1)]
        write_raw(self.bench.bootstrap_servers, self.names["orders"], 0, odd)
        self._write({"orders": 6, "totals": 1, "changelog": 2})
        self._commit({"orders": 28, "repartition": 10})
        self._close_and_back_up()
        self._write({"orders": 1})
        self.points.append(self.bench.take_point())

    @property
    def newest_covered(self) -> RecoveryPoint:
        """The point that the last backup took at its end; only the last point of all is newer."""
        return self.bench.points()[-2]

    @property
    def settings(self) -> ApplicationSettings:
        """The application as it is configured."""
        application = self.bench.application
        return ApplicationSettings(
            application=application,
            topics=application.topics,
            connection=self.bench.cluster.connection,
            warehouse=self.bench.warehouse,
            windows=WindowSchedule.every("day", start="2026-11-01"),
        )

    def request(self, **changes: Any) -> RestoreRequest:
        """A request for the first point, which has nothing odd.

        No log of this hand-made application shows exactly-once, so its points are at least once.
        """
        changes.setdefault("accept", Restorability.AT_LEAST_ONCE)
        if not {"point_id", "as_of_ms"} & changes.keys():
            changes["as_of_ms"] = self.points[0].ended_at_ms
        return RestoreRequest(**changes)

    def plan(
        self, *, target: KafkaConnection | None = None, newest: bool = False, **changes: Any
    ) -> RestorePlan:
        """The plan; fails when anything was written, to the warehouse or to the target."""
        changes.setdefault("accept", Restorability.AT_LEAST_ONCE)
        request = RestoreRequest(**changes) if newest else self.request(**changes)
        before = self._everything()
        plan = plan_restore(self.settings, request, target or self.target)
        assert self._everything() == before
        return plan

    def blockers(self, **changes: Any) -> list[str]:
        """What stands against it."""
        return [str(blocker) for blocker in self.plan(**changes).blockers]

    @contextmanager
    def existing(
        self, name: str, *, partitions: int = 2, configs: Mapping[str, str] = {}, records: int = 0
    ) -> Iterator[str]:
        """A topic that is on the target already."""
        topic = self.names[name]
        with self.on_target() as cluster:
            cluster.create_topics([TopicSpec(topic, partitions, 1, configs)])
            try:
                _produce(self.target.bootstrap_servers, topic, records)
                yield topic
            finally:
                cluster.delete_topics([topic])

    @contextmanager
    def on_target(self) -> Iterator[KafkaCluster]:
        """The target, with all rights."""
        with KafkaCluster(self.target) as cluster:
            yield cluster

    def _write(self, counts: Mapping[str, int], *, size: int = 10) -> None:
        for name, count in counts.items():
            _produce(self.bench.bootstrap_servers, self.names[name], count, size)

    def _commit(self, offsets: Mapping[str, int]) -> None:
        committed = {
            TopicPartitionId(self.names[name], 0): CommittedOffset(offset, f"metadata of {name}")
            for name, offset in offsets.items()
        }
        self.bench.cluster.commit_group_offsets(self.bench.application_id, committed)

    def _close_and_back_up(self) -> None:
        window = self.bench.close_window()
        self.points.append(self.bench.points()[-1])
        self.bench.back_up(window)

    def _everything(self) -> str:
        """A fingerprint of the warehouse's files and of the target's topics and groups."""
        root = on_disk(self.bench.warehouse.root)
        files = sorted(
            (str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns)
            for path in root.rglob("*")
            if path.is_file()
        )
        with self.on_target() as cluster:
            names = [name for name in cluster.metadata().topics if not name.startswith("__")]
            described = cluster.describe_topics(names)
            topics = [(d.name, d.topic_id, dict(d.explicit_configs)) for d in described.values()]
            partitions = [
                TopicPartitionId(d.name, number)
                for d in described.values()
                for number in range(d.partitions)
            ]
            ends = cluster.high_watermarks(partitions) if partitions else {}
            groups = sorted(cluster.group_ids())
        facts = [files, topics, sorted(map(str, ends.items())), groups]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def give(acls: Acls, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    """Give bob rights on all whose names begin so."""
    for operation in operations:
        acls.allow(kind, name, operation, prefixed=True)


def _produce(servers: str, topic: str, count: int, size: int = 10) -> None:
    sender = producer(servers, linger_ms=5, message_max_bytes=10_000_000)
    for number in range(count):
        sender.produce(topic, b"v" * size, key=b"%d" % number, partition=0)
    assert sender.flush(_WAIT_S) == 0


@contextmanager
def planned_application(
    source: KafkaConnection, spark: Spark, folder: Path, *, target: KafkaConnection | None = None
) -> Iterator[PlannedApplication]:
    """One that is backed up into this folder; without a target it is restored beside itself."""
    with KafkaCluster(source) as cluster:
        bench = Workbench(cluster, Warehouse(folder), spark, unique_name("app"))
        made = PlannedApplication(bench, target or source)
        made.prepare()
        yield made
