"""Standby replicas, several instances, headers-aware stores, joins, the streams protocol.

An application with all of it is restored from a point under load, with both guarantees, and held
against its uninterrupted run. `CASES` has each value of each setting with each guarantee.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from kstreams_assets.app.model import Store, TopicRole
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat, StoreKind
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee, Method
from kstreams_assets.restore.request import ChangelogSource
from spark_resources.resource import SparkSessionResource
from tests.restore.control import newest
from tests.restore.joined_comparison import counted, differences_at_least_once, differences_of_exact
from tests.restore.joined_run import BROKER, Case, JoinedRun, run_joined_app
from tests.restore.trial import end_of, own_names, restore, with_snapshots, without
from tests.streams.cluster import connection_to

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.drill,
    pytest.mark.alone,
]

CASES: Final[Mapping[str, Case]] = {
    "exact-classic-headers": Case(Guarantee.EXACT, "classic", "HEADERS"),
    "exact-streams": Case(Guarantee.EXACT, "streams", "DEFAULT"),
    "at-least-once-streams-headers": Case(Guarantee.AT_LEAST_ONCE, "streams", "HEADERS"),
    "at-least-once-classic": Case(Guarantee.AT_LEAST_ONCE, "classic", "DEFAULT"),
}

RunOf = Callable[[str], JoinedRun]

_TEXT: Final = Format(Encoding.STRING)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaConnection]:
    """Where all of them run, and are restored under names of their own."""
    with LocalCluster(tmp_path_factory.mktemp("joined"), properties=BROKER) as local:
        yield connection_to(local.bootstrap_servers)


@pytest.fixture(scope="module")
def run_of(
    cluster: KafkaConnection, spark: SparkSessionResource, tmp_path_factory: pytest.TempPathFactory
) -> RunOf:
    """The uninterrupted run of a case, with its point; each is made once."""

    @cache
    def run(case: str) -> JoinedRun:
        return run_joined_app(CASES[case], cluster, tmp_path_factory.mktemp(case), spark)

    return run


@pytest.mark.parametrize("case", CASES)
def test_it_goes_on_from_a_live_point(
    case: str,
    run_of: RunOf,
    cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path: Path,
) -> None:
    run = run_of(case)
    point, exact = run.point, run.case.is_exact
    assert point.guarantee is run.case.guarantee
    assert point.method is (Method.TRANSACTIONS if exact else Method.OFFSETS_FIRST)
    assert_as_configured(run, cluster)
    restored = restore(run.source, cluster, spark, own_names("joined", point))
    restored.commit()

    run.go_on(restored, tmp_path)

    if exact:
        assert differences_of_exact(run, restored) == {}
        return
    assert differences_at_least_once(run, restored) == {}
    sums = f"{run.topics.prefix}sums"
    assert counted(restored.written(sums)[sums]) > counted(run.source.written[sums])


def assert_as_configured(run: JoinedRun, connection: KafkaConnection) -> None:
    """Nothing was without effect; that there are standby tasks was seen when they started."""
    with KafkaCluster(connection) as cluster:
        state = cluster.group_state(run.topics.application_id)
    assert state is not None
    assert state.type == run.case.protocol
    headers = run.case.store_format == "HEADERS"
    family = "keyValueWithTimestampAndHeaders" if headers else "keyValueWithTimestamp"
    assert family in run.column_families["sums"] & run.column_families["per-window"]
    assert "keyValueWithTimestampAndHeaders" in run.column_families["traces"]
    traces = run.source.written[run.topics.changelog("traces")]
    assert all(record.headers for record in traces)
    roles = {topic.name: topic.roles for topic in run.source.settings.application.topics}
    *tables, units = run.topics.tables
    assert {roles[table] for table in tables} == {frozenset({TopicRole.INPUT, TopicRole.CHANGELOG})}
    assert roles[units] == {TopicRole.GLOBAL}


FORMATS: Final[Mapping[str, StoreFormat]] = {
    **{name: StoreFormat(key=_TEXT, value=_TEXT) for name in ("sums", "traces", "alerts")},
    "per-window": StoreFormat(StoreKind.WINDOW, _TEXT, _TEXT, window_size_ms=10_000),
    "closing": StoreFormat(StoreKind.WINDOW, _TEXT, _TEXT, window_size_ms=10_000),
    "alarms": StoreFormat(key=_TEXT, value=_TEXT),
    "final-store": StoreFormat(
        StoreKind.SUPPRESS, _TEXT, _TEXT, windowed_keys=StoreKind.WINDOW, window_size_ms=10_000
    ),
    "placed-subscription-store": StoreFormat(StoreKind.SUBSCRIPTION, _TEXT, _TEXT),
}


def test_snapshots_of_headers_aware_stores_are_decoded_and_bring_the_headers_back(
    run_of: RunOf, cluster: KafkaConnection, spark: SparkSessionResource, tmp_path: Path
) -> None:
    run = run_of("exact-classic-headers")
    settings = replace(run.source.settings, store_formats=FORMATS)
    stores = [Store(name, run.topics.changelog(name)) for name in FORMATS]
    source = with_snapshots(replace(run.source, settings=settings), stores, spark)
    for store in stores:
        assert store.changelog is not None
        _assert_decoded(run, store.name, store.changelog)
    request = own_names("snapshot", run.point, changelog_source=ChangelogSource.SNAPSHOT)
    restored = restore(source, cluster, spark, request)
    restored.commit()

    run.go_on(restored, tmp_path)

    assert differences_of_exact(run, restored) == {}


def _assert_decoded(run: JoinedRun, store: str, changelog: str) -> None:
    """A row for each key of the point: the record, its headers, and what they mean."""
    settings = run.source.settings
    table = DeltaTable(str(settings.warehouse.ktable(settings.application_id, store)))
    rows = table.to_pyarrow_table().to_pylist()
    held = newest(
        record
        for record in run.source.written[changelog]
        if record.offset < end_of(run.point, changelog, record.partition)
    )
    assert rows
    assert len(rows) == len(held)
    for row in rows:
        written = held[row["key"]]
        headers = tuple((h["key"], h["value"]) for h in row["headers"] or ())
        assert (row["value"], row["timestamp_ms"]) == (written.value, written.timestamp_ms)
        assert headers == written.headers
        assert row["decode_error"] is None
        value = row["decoded_value"]
        if store == "final-store":
            assert row["decoded_key"]["key"].encode() == row["key"][:-8]
            assert value["new"].encode() in row["value"]
        elif store == "placed-subscription-store":
            primary = value["primary_key"]
            assert row["decoded_key"] == {"foreign_key": primary[0], "primary_key": primary}
        else:
            assert value.encode() == row["value"]
            assert row["key"].startswith(row["decoded_key"].encode())


def test_without_state_every_result_differs(
    run_of: RunOf, cluster: KafkaConnection, spark: SparkSessionResource, tmp_path: Path
) -> None:
    """The comparison of exact runs sees each of the stores."""
    run = run_of("exact-classic-headers")
    restored = restore(
        run.source,
        cluster,
        spark,
        own_names("stateless", run.point),
        change=lambda plan: without(without(plan, TopicRole.CHANGELOG), TopicRole.GLOBAL),
    )
    restored.commit()

    run.go_on(restored, tmp_path)

    wrong = differences_of_exact(run, restored)
    assert wrong.keys() >= set(run.topics.outputs)
    described = f"{run.topics.prefix}described"
    values = [record.value or b"" for record in restored.written(described)[described]]
    assert any(value.endswith(b",null,null") for value in values)


def test_offsets_of_the_beginning_repeat_more_than_the_point_says(
    run_of: RunOf, cluster: KafkaConnection, spark: SparkSessionResource, tmp_path: Path
) -> None:
    """The comparison of at-least-once runs sees it."""
    run = run_of("at-least-once-classic")
    restored = restore(run.source, cluster, spark, own_names("older", run.point))
    restored.commit_instead([replace(o, offset=0) for o in restored.restore.to_commit])

    run.go_on(restored, tmp_path)

    wrong = differences_at_least_once(run, restored)
    assert "were counted twice" in str(wrong[f"{run.topics.prefix}sums"])
