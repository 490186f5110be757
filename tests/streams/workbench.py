"""A workbench for backup tests: topics of its own, windows that close when the test says so."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.backup.context import RunContext
from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.backup.run import BackupRun
from kstreams_assets.backup.verdicts import evaluate
from kstreams_assets.checks import Evaluation
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery import evidence, methods
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import (
    ApplicationSettings,
    BackupSettings,
    ExecutorSettings,
    WindowSchedule,
)
from kstreams_assets.store import StorePath
from spark_resources.resource import SparkSessionResource
from spark_resources.work import Spark
from tests.store.place import warehouse_at
from tests.streams.cluster import connection_to, unique_name
from tests.timing import eventually


class NoSpark:
    """Where a run must not start Spark."""

    @property
    def spark_session(self) -> SparkSession:
        """Fails the test."""
        return pytest.fail("the run started Spark")

    def check(self) -> None:
        """Nothing is missing."""


ON_SPARK: Final = ExecutorSettings(from_offsets=0)
"""With these Spark reads also what is little; else the same tasks run in this process."""


@dataclass(slots=True)
class Workbench:
    """One application without code: just topics, recovery points and backups of them."""

    cluster: KafkaCluster
    warehouse: Warehouse
    spark: Spark
    application_id: str
    roles: dict[str, TopicRoles] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    settings: BackupSettings = field(default_factory=BackupSettings)
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)

    @property
    def bootstrap_servers(self) -> str:
        """The brokers, host:port."""
        return self.cluster.connection.bootstrap_servers

    def topic(
        self,
        prefix: str,
        *,
        partitions: int = 1,
        role: TopicRole = TopicRole.INPUT,
        configs: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic that belongs to the application, and return its name."""
        name = unique_name(prefix)
        self.cluster.create_topics([TopicSpec(name, partitions, 1, configs or {})])
        self.roles[name] = TopicRoles({role})
        return name

    def delete_records(self, topic: str, before: int, *, partition: int = 0) -> None:
        """Delete records below an offset, as retention does."""
        target = TopicPartitionId(topic, partition)
        assert self.cluster.delete_records({target: before}) == {target: before}

    def recreate(self, topic: str, *, partitions: int = 1) -> None:
        """Delete a topic (unless it is gone) and create another of the same name."""
        if topic in self.cluster.topics():
            self.delete(topic)
        self.cluster.create_topics([TopicSpec(topic, partitions)])

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self.cluster.delete_topics([topic])
        assert eventually(lambda: topic not in self.cluster.topics())

    @property
    def application(self) -> StreamsApplication:
        """The application with the topics made so far."""
        topics = tuple(AppTopic(name, roles) for name, roles in sorted(self.roles.items()))
        return StreamsApplication(self.application_id, topics)

    @property
    def application_settings(self) -> ApplicationSettings:
        """The same as configured, with windows of a minute."""
        return ApplicationSettings(
            application=self.application,
            topics=self.application.topics,
            connection=self.cluster.connection,
            warehouse=self.warehouse,
            windows=WindowSchedule.every("minute", start="2026-01-01"),
        )

    def take_point(self, *, closes_window_end_ms: int | None = None) -> RecoveryPoint:
        """Take a recovery point now."""
        recorder = Recorder(self.application, self.cluster, self.warehouse)
        return recorder.take(closes_window_end_ms=closes_window_end_ms)

    def points(self) -> list[RecoveryPoint]:
        """All recovery points of the application, in the order in which they were taken."""
        return Repository(self.warehouse, self.application_id).points.newest(1000)[::-1]

    def close_window(self) -> Window:
        """Take a recovery point and let the window end just after it; the next begins there."""
        now_ms = time.time_ns() // 1_000_000
        start_ms = self.windows[-1].end_ms if self.windows else now_ms - 1
        end_ms = self.take_point().taken_at_ms + 1
        window = Window(start_ms, end_ms, f"w{len(self.windows):04d}")
        self.windows.append(window)
        return window

    def run(self, *, topics: Sequence[str] | None = None) -> BackupRun:
        """A run over the application's topics, or these of them."""
        chosen = [t for t in self.application.topics if topics is None or t.name in topics]
        ctx = RunContext(
            settings=replace(self.application_settings, backup=self.settings, spark=self.executor),
            topics=tuple(chosen),
            cluster=self.cluster,
            spark=self.spark,
            run_id=f"test-{uuid.uuid4().hex[:8]}",
            begins_ms=self.windows[0].start_ms if self.windows else 0,
        )
        return BackupRun(ctx)

    def back_up(self, *windows: Window, topics: Sequence[str] | None = None) -> list[WindowBackup]:
        """Back up windows (all closed ones when none is given)."""
        return self.run(topics=topics).execute(windows or tuple(self.windows), newest_closed=None)

    def verdicts(self, backups: Sequence[WindowBackup]) -> dict[tuple[str, str, str], Evaluation]:
        """Every check by (window key, topic, check)."""
        return {
            (verdict.window, verdict.subject, verdict.check): verdict
            for backup in backups
            for verdict in evaluate(backup, self.application)
        }

    @property
    def ledger(self) -> Ledger:
        """The application's ledger."""
        return Ledger(self.warehouse, self.application_id)

    @property
    def records_path(self) -> StorePath:
        """Where the records lie."""
        return self.warehouse.records(self.application_id)


@pytest.fixture
def workbench(
    kafka_cluster: LocalCluster, spark: SparkSessionResource, tmp_path: Path
) -> Iterator[Workbench]:
    """An application of its own on the shared broker, with an empty warehouse."""
    connection = connection_to(kafka_cluster.bootstrap_servers)
    with KafkaCluster(connection) as cluster:
        yield Workbench(
            cluster=cluster,
            warehouse=warehouse_at(tmp_path / "warehouse"),
            spark=spark,
            application_id=unique_name("app"),
        )


@pytest.fixture
def on_spark(workbench: Workbench) -> None:
    """Backups of the workbench are read by Spark, however little there is."""
    workbench.executor = ON_SPARK


@pytest.fixture
def closed_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points of hand-made applications count as exact.

    They write outside of transactions, so nothing in their logs shows that they could not run
    ahead of their offsets; but the test knows that they stand still and do not.
    """
    monkeypatch.setattr(methods, "why_not_exact", lambda *_: "")
    monkeypatch.setattr(evidence.Evidence, "objections", ())
