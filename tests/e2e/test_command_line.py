"""The command line against a live order processor: what a cron job would do."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, QueryBuilder

from examples.order_processor.application import OrderProcessor, create_topics, describe_topology
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import CustomerTotal, OrderGenerator, customer_totals
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from tests.streams.cluster import unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e]

ORDERS = 4_000

TOTALS_SQL = """
SELECT records.key, records.value
FROM records
JOIN (
    SELECT partition, max("offset") AS "offset"
    FROM records WHERE topic = '{changelog}' GROUP BY partition, key
) AS newest ON records.partition = newest.partition AND records."offset" = newest."offset"
WHERE records.topic = '{changelog}' AND records.value IS NOT NULL
"""
"""The store at the last window: the newest record of each key, tombstones left out."""


def run(
    *arguments: str, timeout_s: float = 240, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kstreams_assets.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


def await_committed(connection: KafkaConnection, application_id: str, topics: set[str]) -> None:
    """Wait until the application has committed everything in these topics."""
    deadline = time.monotonic() + 90
    with KafkaCluster(connection) as cluster:
        while time.monotonic() < deadline:
            committed = cluster.group_offsets(application_id)
            ends = cluster.last_stable_offsets(list(committed))
            behind = [p for p in committed if ends[p] - committed[p].offset > 1]
            if topics <= {p.topic for p in committed} and not behind:
                return
            time.sleep(0.2)
    raise AssertionError(f"{application_id} did not catch up")


@pytest.fixture
def application_id() -> str:
    return unique_name("orders-e2e")


@pytest.fixture
def app_file(kafka_cluster: LocalCluster, application_id: str, tmp_path: Path) -> Path:
    """The application's YAML with its topology beside it."""
    prefix = f"{application_id}-"
    (tmp_path / "topology.txt").write_text(describe_topology(topic_prefix=prefix), "utf-8")
    attributes = {
        "application_id": application_id,
        "topology": "topology.txt",
        "connection": {"bootstrap_servers": kafka_cluster.bootstrap_servers},
        "warehouse": str(tmp_path / "warehouse"),
        "windows": {"every": "minute", "start": time.strftime("%Y-%m-%d", time.gmtime())},
    }
    document = {
        "type": "kstreams_assets.components.KafkaStreamsAppComponent",
        "attributes": attributes,
    }
    file = tmp_path / "defs.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


def test_taking_a_point_asks_a_cluster_without_confluent_kafka(
    kafka_cluster: LocalCluster, application_id: str, app_file: Path
) -> None:
    create_topics(kafka_cluster.bootstrap_servers, topic_prefix=f"{application_id}-")
    internal = [
        f"{application_id}-orders-by-customer-repartition",
        f"{application_id}-order-totals-changelog",
    ]
    offsets = {TopicPartitionId(f"{application_id}-orders", 0): CommittedOffset(0, "")}
    with KafkaCluster(
        KafkaConnection(bootstrap_servers=kafka_cluster.bootstrap_servers)
    ) as cluster:
        cluster.create_topics(TopicSpec(name, 1) for name in internal)
        cluster.commit_group_offsets(application_id, offsets)
    taken = run(
        *("recovery-points", "take", "--app", str(app_file), "--json"),
        PYTHONPROFILEIMPORTTIME="1",
    )
    assert taken.returncode == 0, taken.stderr
    assert json.loads(taken.stdout)["guarantee"]
    assert "kafka.protocol" in taken.stderr
    for module in ("confluent_kafka", "pyspark", "dagster"):
        assert f" {module}" not in taken.stderr


@pytest.mark.drill
def test_a_live_application_is_discovered_and_backed_up(
    kafka_cluster: LocalCluster, application_id: str, app_file: Path, tmp_path: Path
) -> None:
    prefix = f"{application_id}-"
    bootstrap = kafka_cluster.bootstrap_servers
    generator = OrderGenerator(seed=11, customers=200, invalid_share=0.02)
    create_topics(bootstrap, topic_prefix=prefix)
    with OrderProcessor(
        bootstrap,
        state_dir=tmp_path / "state",
        application_id=application_id,
        topic_prefix=prefix,
        commit_interval_ms=100,
    ):
        load = produce_orders(bootstrap, generator, topic=f"{prefix}orders", count=ORDERS)
        repartition = f"{application_id}-orders-by-customer-repartition"
        connection = KafkaConnection(bootstrap_servers=bootstrap)
        await_committed(connection, application_id, {f"{prefix}orders", repartition})

        discovered = run("discover", "--app", str(app_file), "--json")
        taken = run("recovery-points", "take", "--app", str(app_file), "--json")
        time.sleep(61 - time.time() % 60)
        backed_up = run("backup", "--app", str(app_file), "--json")
        again = run("backup", "--app", str(app_file), "--window", window_of(backed_up), "--json")
        listed = run("windows", "--app", str(app_file), "--json")

    assert discovered.returncode == 0, discovered.stderr
    roles = {t["name"]: t["roles"] for t in json.loads(discovered.stdout)["topics"]}
    assert roles[f"{application_id}-order-totals-changelog"] == ["changelog"]
    assert roles[repartition] == ["repartition"]
    assert roles[f"{prefix}orders"] == ["input"]
    assert json.loads(taken.stdout)["guarantee"] == "exact"

    assert backed_up.returncode == 0, backed_up.stderr
    report = json.loads(backed_up.stdout)
    assert report["passed"]
    records = {topic["topic"]: topic["records"] for topic in report["windows"][0]["topics"]}
    orders = list(generator.orders(load.indices))
    assert records[f"{prefix}orders"] == ORDERS
    assert records[f"{prefix}orders-rejected"] == sum(o.rejection is not None for o in orders)
    assert totals(tmp_path / "warehouse" / "records" / application_id, application_id) == (
        customer_totals(orders)
    )
    assert again.returncode == 0, again.stderr
    assert {
        topic["topic"]: topic["records"]
        for topic in json.loads(again.stdout)["windows"][0]["topics"]
    } == records
    assert json.loads(listed.stdout)["windows"][-1]["records"] == sum(records.values())


def window_of(completed: subprocess.CompletedProcess[str]) -> str:
    """The first window a backup reports."""
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)["windows"][0]["window"]


def totals(records: Path, application_id: str) -> dict[str, CustomerTotal]:
    """The store as the changelog in the backup has it."""
    sql = TOTALS_SQL.format(changelog=f"{application_id}-order-totals-changelog")
    reader = QueryBuilder().register("records", DeltaTable(records)).execute(sql)
    found: dict[str, CustomerTotal] = {}
    for row in pa.table(reader.read_all()).to_pylist():
        value = json.loads(row["value"])
        found[row["key"].decode()] = CustomerTotal(value["count"], value["total_cents"])
    return found


def test_ctrl_c_in_a_backup_is_one_line_and_it_goes_on(
    kafka_cluster: LocalCluster, application_id: str, app_file: Path
) -> None:
    orders = f"{application_id}-orders"
    create_topics(kafka_cluster.bootstrap_servers, topic_prefix=f"{application_id}-")
    produce_orders(
        kafka_cluster.bootstrap_servers, OrderGenerator(seed=1), topic=orders, count=150_000
    )
    document = yaml.safe_load(app_file.read_text("utf-8"))
    document["attributes"] |= {"topics": {orders: {"roles": ["input"]}}}
    del document["attributes"]["topology"]
    app_file.write_text(yaml.safe_dump(document), encoding="utf-8")
    command = [sys.executable, "-m", "kstreams_assets.cli.main", "backup"]
    process = subprocess.Popen(
        [*command, "--app", str(app_file)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    records = Path(document["attributes"]["warehouse"]) / "records"
    while not [*records.rglob("*.parquet")]:  # until Spark's tasks write
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    lines = [line for line in said.splitlines() if line and "New warehouse" not in line]
    assert lines == ["Interrupted. Committed work is kept; run the same command again."]

    again = run("backup", "--app", str(app_file), "--json")

    window = json.loads(again.stdout)["windows"][0]
    assert sum(topic["records"] for topic in window["topics"]) == 150_000


@pytest.mark.parametrize(
    "command", [["recovery-points", "take"], ["backup"], ["restore", "plan"], ["restore", "run"]]
)
def test_a_broker_that_is_down_is_one_line_and_exit_code_2(
    command: list[str], app_file: Path
) -> None:
    document = yaml.safe_load(app_file.read_text("utf-8"))
    document["attributes"]["connection"]["request_timeout_seconds"] = 1
    document["attributes"]["restore"] = {
        "target": {"bootstrap_servers": "127.0.0.1:1", "request_timeout_seconds": 1}
    }
    app_file.write_text(yaml.safe_dump(document), encoding="utf-8")
    if command[0] == "restore":
        Warehouse(Path(document["attributes"]["warehouse"])).make()

    completed = run(*command, "--app", str(app_file), "--bootstrap", "127.0.0.1:1", timeout_s=60)

    assert completed.returncode == 2
    assert completed.stdout == ""
    # A backup that makes the warehouse says so first.
    lines = [line for line in completed.stderr.splitlines() if "New warehouse" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("Error: Kafka at 127.0.0.1:1 did not answer within 1 s")
