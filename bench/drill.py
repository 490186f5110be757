"""A restore drill of the order processor with a million orders, some of them not yet processed."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from bench.machine import write_result
from examples.demo.place import DEFS
from examples.order_processor.application import OrderProcessor, create_topics
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import CustomerTotal, OrderGenerator, customer_totals
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.drill.report import DrillReport, bottleneck, objective_verdict
from kstreams_assets.drill.run import DrillJob, DrillRequest
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.librdkafka import librdkafka_config
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.local.target import local_target, remove_local_target
from kstreams_assets.model.point import Guarantee, RecoveryPoint
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.settings import ApplicationSettings
from spark_resources.session import LazySession
from spark_resources.settings import SparkSettings
from spark_resources.work import Spark

ORDERS: Final = 1_000_000
CUSTOMERS: Final = 20_000

_PARTITIONS: Final = 4
_LEFT: Final = 50_000
"""So many orders at most are not processed when the point is taken."""
_PROCESSED_WITHIN_S: Final = 1_200.0
_POINTS: Final = 10
_CHANGELOG: Final = "order-processor-order-totals-changelog"
_READ_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Drilled:
    """A drill, what its cluster held of every customer in the end, and what it should."""

    settings: ApplicationSettings
    report: DrillReport
    found: Mapping[str, CustomerTotal]
    expected: Mapping[str, CustomerTotal]


def drill_orders(folder: Path, spark: Spark, *, orders: int = ORDERS) -> Drilled:
    """Run the order processor, take a point while it works, back up, stop all, drill."""
    generator = OrderGenerator(seed=11, customers=CUSTOMERS, skew=0.5)
    with LocalCluster(folder / "source", heap_mb=1024) as local:
        settings = _settings(local.bootstrap_servers, folder)
        create_topics(local.bootstrap_servers, partitions=_PARTITIONS)
        with (
            KafkaCluster(settings.connection) as cluster,
            OrderProcessor(
                local.bootstrap_servers,
                state_dir=folder / "state",
                application_id=settings.application_id,
                heap_mb=512,
            ),
        ):
            began_ms = time.time_ns() // 1_000_000
            produce_orders(local.bootstrap_servers, generator, count=orders)
            _await_processed(settings, cluster, orders)
            point = _exact_point(settings, cluster)
        window = Window(began_ms, point.taken_at_ms + 1, "w0000")
        BackupJob(settings, spark, "bench-drill").run([window])
    report = DrillJob(settings, spark, "bench-drill").run(
        DrillRequest(point_id=point.id, keep=True)
    )
    return Drilled(
        settings=settings,
        report=report,
        found=_totals(settings, report),
        expected=customer_totals(generator.orders(range(orders))),
    )


def _settings(servers: str, folder: Path) -> ApplicationSettings:
    settings = load_settings(
        DEFS,
        application_id=None,
        bootstrap_servers=servers,
        warehouse=str(folder / "warehouse"),
    )
    connection = KafkaConnection(bootstrap_servers=servers, request_timeout_seconds=60)
    return replace(settings, connection=connection)


def _await_processed(settings: ApplicationSettings, cluster: KafkaCluster, orders: int) -> None:
    deadline = time.monotonic() + _PROCESSED_WITHIN_S
    partitions = [TopicPartitionId("orders", number) for number in range(_PARTITIONS)]
    while True:
        offsets = cluster.group_offsets(settings.application_id, partitions=partitions)
        if sum(found.offset for found in offsets.values()) >= orders - _LEFT:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"not processed in time: {offsets}")
        time.sleep(0.5)


def _exact_point(settings: ApplicationSettings, cluster: KafkaCluster) -> RecoveryPoint:
    recorder = recorder_of(settings, cluster)
    for _ in range(_POINTS):
        point = recorder.take()
        if point.guarantee is Guarantee.EXACT:
            return point
    raise RuntimeError("no exact point")


def _totals(settings: ApplicationSettings, report: DrillReport) -> dict[str, CustomerTotal]:
    """What the changelog says of every customer in the kept cluster, which is then removed."""
    if report.kept is None:
        return {}
    with local_target(settings, report.kept) as connection:
        totals = _newest(connection)
    remove_local_target(settings, report.kept)
    return totals


def _newest(connection: KafkaConnection) -> dict[str, CustomerTotal]:
    consumer = Consumer(
        {
            **librdkafka_config(connection),
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    newest: dict[str, CustomerTotal] = {}
    open_ = set(range(_PARTITIONS))
    deadline = time.monotonic() + _READ_S
    try:
        consumer.assign([TopicPartition(_CHANGELOG, number, 0) for number in sorted(open_)])
        while open_:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not read in time: {open_}")
            for message in consumer.consume(10_000, timeout=0.2):
                if message.error() is not None:
                    open_.discard(message.partition() or 0)
                    continue
                key, value = message.key() or b"", message.value() or b"{}"
                newest[key.decode()] = CustomerTotal(**json.loads(value))
    finally:
        consumer.close()
    return newest


def main() -> None:
    """Measure and write bench/results/drill.md."""
    spark = LazySession(SparkSettings(master="local[2]"))
    try:
        with TemporaryDirectory(prefix="kstreams-bench-") as folder:
            write_drill(drill_orders(Path(folder), spark))
    finally:
        spark.stop()


def write_drill(done: Drilled) -> Path:
    """Write what was measured into bench/results/drill.md."""
    report, wrong = done.report, _wrong(done)
    restored, application = report.restored, report.application
    rows: list[list[object]] = [
        *[[f"phase {measure.phase}, s", measure.took_s] for measure in report.phases],
        ["recovery (begin of the restore to caught up), s", report.total_s or "not reached"],
    ]
    if restored is not None:
        rows += [["restored records", restored.records], ["restored bytes", restored.bytes]]
        rows += [["of them orders", restored.input_records]]
    rows.append(["records waiting at the point", report.waiting_records or 0])
    if application is not None:
        rows += [
            ["to RUNNING, s", application.to_running_s or "not reached"],
            ["changelog records restored by the application", application.changelog_records or 0],
            [
                f"the same per second (from {application.rate_from or 'nothing'})",
                round(application.changelog_records_per_s or 0),
            ],
            ["CPU of the application, s", application.cpu_s],
            ["its peak memory, MB", round(application.peak_memory_bytes / 1e6)],
            ["written to disk by it, MB", round((application.disk_written_bytes or 0) / 1e6)],
            ["state directory, MB", round(application.state_bytes / 1e6)],
        ]
    rows += [
        [f"{one.topic}: keys changed by waiting records", one.changed] for one in report.comparisons
    ]
    rows.append(["customers with a wrong total", wrong])
    passed = sum(r.passed for rules in report.rules for r in rules.results)
    rows.append(["rules and recomputed stores that held, before and after", passed])
    return write_result(
        "drill",
        title=f"Restore drill of the order processor, {ORDERS:,} orders",
        command="python -m bench drill",
        columns=["what", "measured"],
        rows=rows,
        notes=[
            f"Objective: {objective_verdict(report).explanation}",
            f"Bottleneck: {bottleneck(report)}.",
            f"{CUSTOMERS:,} customers, {_PARTITIONS} partitions; every record is read back and"
            " compared. Source cluster and application are stopped before the drill.",
        ],
    )


def _wrong(done: Drilled) -> int:
    customers = {*done.found, *done.expected}
    return sum(done.found.get(name) != done.expected.get(name) for name in customers)


if __name__ == "__main__":
    main()
