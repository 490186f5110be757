"""A broker, topics, dated recovery points and a warehouse for a measurement."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.backup.run import BackupRun
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.spans import Window
from spark_resources.session import LazySession
from spark_resources.settings import SparkSettings

_MINUTE_MS = 60_000


@dataclass(slots=True)
class Setting:
    """Where a measurement runs."""

    folder: Path
    cluster: KafkaCluster
    spark: LazySession
    topics: tuple[str, ...]
    jvm_starts: int = 0

    @property
    def bootstrap_servers(self) -> str:
        """The broker."""
        return self.cluster.connection.bootstrap_servers

    @property
    def application(self) -> StreamsApplication:
        """The topics as inputs of an application."""
        inputs = TopicRoles({TopicRole.INPUT})
        return StreamsApplication("bench", tuple(AppTopic(t, inputs) for t in self.topics))

    def dated_point(self, warehouse: Warehouse, number: int) -> Window:
        """Take a point and date it into minute `number` after the epoch's first day."""
        point = Recorder(self.application, self.cluster, warehouse).take()
        start_ms = 86_400_000 + number * _MINUTE_MS
        table = RecoveryPointTable(warehouse)
        table.append(replace(point, id=f"{number:06d}", taken_at_ms=start_ms + _MINUTE_MS // 2))
        return Window(start_ms, start_ms + _MINUTE_MS, f"w{number:06d}")

    def back_up(self, warehouse: Warehouse, windows: Sequence[Window]) -> None:
        """Back up windows in one run; raises when the run fails."""
        run = BackupRun(
            application=self.application,
            topics=self.application.topics,
            cluster=self.cluster,
            warehouse=warehouse,
            spark=self.spark,
            run_id=f"bench-{uuid.uuid4().hex[:8]}",
            begins_ms=0,
        )
        run.execute(windows, newest_closed=None)


@contextmanager
def setting(topics: Sequence[str], *, driver_memory: str = "2g") -> Iterator[Setting]:
    """A broker of its own on this machine, and a Spark session that starts on first use."""
    with (
        TemporaryDirectory(prefix="kstreams-bench-") as folder,
        LocalCluster(Path(folder) / "kafka", heap_mb=1024) as local,
        KafkaCluster(KafkaConnection(bootstrap_servers=local.bootstrap_servers)) as cluster,
    ):
        spark = LazySession(SparkSettings(master="local[2]", driver_memory=driver_memory))
        try:
            yield Setting(Path(folder), cluster, spark, tuple(topics))
        finally:
            spark.stop()
