"""Counts of orders: restored, held against queries, and two versions of them side by side."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from examples.orders_count.application import (
    COUNTS,
    COUNTS_V2,
    EXAMPLE,
    EXAMPLE_V2,
    HIGH_VALUE,
    HIGH_VALUE_CENTS,
    STORE,
    STORE_V2,
)
from examples.orders_created.orders import TOPIC
from examples.streams.application import ExampleApplication
from kstreams_assets.cli.discover import discover
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.point import Guarantee
from kstreams_assets.restore.request import ChangelogSource
from spark_resources.resource import SparkSessionResource
from tests.examples.orders_created.records import count_by_customer, created, orders_of
from tests.restore.control import read
from tests.restore.example_comparison import differences_from_control
from tests.restore.example_definition import Definition
from tests.restore.example_snapshots import assert_snapshots_equal_queries
from tests.restore.example_trial import (
    LIVE,
    PARTITIONS,
    QUIET,
    ExampleRun,
    ExampleTrial,
    InputFeed,
    assert_restored_as_control,
    run_example,
)
from tests.restore.trial import Source, SourceRun, own_names, restore
from tests.streams.cluster import unique_name
from tests.streams.feed import Feed, Record

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]

RATE: Final = 600
FIRST: Final = ExampleTrial(
    Definition(EXAMPLE, "orders_count_v1"), [InputFeed(TOPIC, created(), RATE)]
)
SECOND: Final = ExampleTrial(
    Definition(EXAMPLE_V2, "orders_count_v2"), [InputFeed(TOPIC, created(), RATE)]
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, spark: SparkSessionResource) -> ExampleRun:
    return run_example(FIRST, tmp_path_factory.mktemp("orders-count"), spark)


def counts(records: Iterable[Record]) -> dict[str, list[int]]:
    """Every count of each customer, in order."""
    found: dict[str, list[int]] = {}
    for record in records:
        number = int.from_bytes(record.value or b"")
        found.setdefault((record.key or b"").decode(), []).append(number)
    return found


def up_to(totals: Counter[str]) -> dict[str, list[int]]:
    """The counts of customers who placed so many orders, if each counts once."""
    return {customer: list(range(1, total + 1)) for customer, total in totals.items()}


def test_counts_and_high_values_follow_from_the_orders(run: ExampleRun) -> None:
    written, prefix = run.source.written, run.prefix
    assert {p.guarantee for p in run.source.points.values()} == {Guarantee.EXACT}
    orders = orders_of(written[prefix + TOPIC])
    totals = count_by_customer(orders)
    assert counts(written[prefix + COUNTS]) == up_to(totals)
    assert {a["key"]: a["value"] for a in run.answers[STORE]} == totals
    high = {o.key: o.value for o in orders if o.is_order and o.amount_cents >= HIGH_VALUE_CENTS}
    assert {r.key: r.value for r in written[prefix + HIGH_VALUE]} == high
    assert 0 < len(high) < len(orders)


def test_five_live_points_go_on(
    run: ExampleRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    assert_restored_as_control(run, LIVE, second_cluster, spark, tmp_path)


def test_snapshots_equal_queries(run: ExampleRun, spark: SparkSessionResource) -> None:
    assert_snapshots_equal_queries(run, spark)


def test_snapshots_restore_as_the_raw_log_does(
    run: ExampleRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    assert_snapshots_equal_queries(run, spark)
    labels = (LIVE[-1], QUIET)
    source = ChangelogSource.SNAPSHOT
    assert_restored_as_control(run, labels, second_cluster, spark, tmp_path, source=source)


@dataclass(frozen=True, slots=True)
class Version:
    """One of the two applications that run side by side."""

    trial: ExampleTrial
    source: Source
    prefix: str
    application: ExampleApplication

    @property
    def id(self) -> str:
        return self.source.settings.application_id


@pytest.fixture(scope="module")
def versions(
    second_cluster: KafkaConnection, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Version, Version]]:
    """Both run on one cluster and read the same orders."""
    folder, prefix = tmp_path_factory.mktemp("side-by-side"), f"{unique_name('p')}."
    servers = second_cluster.bootstrap_servers
    with KafkaCluster(second_cluster) as cluster:
        both = [_version(trial, servers, prefix, folder, cluster) for trial in (FIRST, SECOND)]
        with both[0].application, both[1].application:
            yield both[0], both[1]


def _version(
    trial: ExampleTrial, servers: str, prefix: str, folder: Path, cluster: KafkaCluster
) -> Version:
    example = trial.definition.example
    name = unique_name(example.application_id)
    example.create_topics(servers, topic_prefix=prefix, partitions=PARTITIONS)
    settings = trial.definition.settings(servers, name, prefix, folder / name)
    application = trial.application(servers, name, prefix, folder / f"state-{name}", queries=True)
    return Version(trial, Source(settings, cluster), prefix, application)


def discovered(version: Version) -> dict[str, list[str]]:
    """Roles by topic, as found on the cluster."""
    servers = version.source.settings.connection.bootstrap_servers
    arguments = ["--application-id", version.id, "--bootstrap", servers, "--json"]
    result = CliRunner().invoke(discover, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return {topic["name"]: topic["roles"] for topic in found["topics"]}


def test_two_versions_side_by_side_do_not_touch_each_other(
    versions: tuple[Version, Version],
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    servers, prefix = second_cluster.bootstrap_servers, versions[0].prefix
    with Feed(servers, prefix + TOPIC, created(), rate=RATE) as feed:
        time.sleep(2)
        points = [version.source.take() for version in versions]
        for version, store in zip(versions, (STORE, STORE_V2), strict=True):
            assert_discovered(version, store)
        feed.stop()
    for version in versions:
        version.source.drain()
    fed = feed.count
    for stopped, going_on, point in zip(versions, versions[::-1], points, strict=True):
        stopped.application.stop()
        stopped.source.back_up(point, spark)
        control = stopped.source.ended({"live": point})
        with Feed(servers, prefix + TOPIC, created(first_index=fed), rate=RATE) as feed:
            assert_goes_on_alone(stopped.trial, control, second_cluster, spark, tmp_path)
            feed.stop()
        fed += feed.count
        going_on.source.drain()
        stopped.application.start()
        stopped.source.drain()
    totals = count_by_customer(orders_of(read(servers, [prefix + TOPIC])[prefix + TOPIC]))
    for output in (COUNTS, COUNTS_V2):
        assert counts(read(servers, [prefix + output])[prefix + output]) == up_to(totals)
    for version, store in zip(versions, (STORE, STORE_V2), strict=True):
        answers = version.application.query(store)
        assert {answer["key"]: answer["value"] for answer in answers} == totals


def assert_discovered(version: Version, store: str) -> None:
    """The cluster's topics are given to the application that they belong to."""
    found = discovered(version)
    assert found.pop(version.prefix + TOPIC) == ["input"]
    internal = {topic: roles for topic, roles in found.items() if roles != ["output"]}
    assert internal == {
        f"{version.id}-{store}-changelog": ["changelog"],
        f"{version.id}-orders-by-customer-repartition": ["repartition"],
    }
    own = {version.prefix + topic for topic in version.trial.definition.example.topics}
    assert found.keys() - internal.keys() <= own


def assert_goes_on_alone(
    trial: ExampleTrial,
    control: SourceRun,
    target: KafkaConnection,
    spark: SparkSessionResource,
    folder: Path,
) -> None:
    """A version restored from a live point goes on as it did, while the other works."""
    request = own_names("restored", control.points["live"])
    restored = restore(control, target, spark, request)
    restored.commit()
    name, servers = restored.plan.group, target.bootstrap_servers
    prefix = next(t for s, t in restored.names.items() if s.endswith(TOPIC)).removesuffix(TOPIC)
    with trial.application(servers, name, prefix, folder / name):
        assert restored.replay() > 0
        restored.drain()
    assert differences_from_control(restored, not_compared=frozenset(), by_last=False) == []
