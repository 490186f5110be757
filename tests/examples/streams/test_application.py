"""A real application with a store of each type is started, asked and stopped."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from examples.streams.application import Example, ExampleApplication
from kstreams_assets.errors import ProcessError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from tests.streams.cluster import unique_name
from tests.streams.feed import Record, produce
from tests.timing import eventually

pytestmark = pytest.mark.kafka

EXAMPLE: Final = Example(
    source=Path(__file__).with_name("StoresApp.java"),
    application_id="stores",
    topics={"numbers": {}, "versions": {}, "everywhere": {"cleanup.policy": "compact"}},
    config={"statestore.cache.max.bytes": "0"},
)
BEGIN_MS: Final = (time.time_ns() // 10_000_000_000 - 360) * 10_000
"""An hour ago (the broker deletes what is older than a week), a multiple of ten seconds."""


def record(partition: int, seconds: int, key: str, number: int | None) -> Record:
    value = None if number is None else number.to_bytes(8)
    return Record(partition, -1, BEGIN_MS + 1000 * seconds, key.encode(), value)


NUMBERS: Final = [
    record(0, 0, "a", 1),
    record(1, 1, "b", 2),
    record(0, 9, "a", 3),
    record(0, 12, "a", 5),
    record(0, 40, "a", 7),
]
VERSIONS: Final = [
    record(0, 0, "a", 1),
    record(0, 5, "a", 2),
    record(1, 1, "b", 3),
    record(1, 3, "b", None),
    record(1, 6, "b", 4),
]
EVERYWHERE: Final = [
    record(0, 0, "x", 1),
    record(1, 1, "y", 2),
    record(0, 2, "x", 3),
    record(1, 3, "z", 4),
    record(1, 4, "z", None),
]


@pytest.fixture(scope="module")
def application(
    kafka_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ExampleApplication]:
    """It runs, with all records sent."""
    servers, prefix = kafka_cluster.bootstrap_servers, f"{unique_name('stores')}."
    made = EXAMPLE.create_topics(servers, topic_prefix=prefix, partitions=2)
    assert made == tuple(prefix + topic for topic in EXAMPLE.topics)
    with ExampleApplication(
        EXAMPLE,
        servers,
        state_dir=tmp_path_factory.mktemp("stores") / "state",
        application_id=unique_name("stores"),
        topic_prefix=prefix,
        commit_interval_ms=100,
        threads=2,
        queries=True,
    ) as running:
        for topic, records in (
            ("numbers", NUMBERS),
            ("versions", VERSIONS),
            ("everywhere", EVERYWHERE),
        ):
            produce(servers, prefix + topic, records)
        yield running


def answer(
    application: ExampleApplication, store: str, *, count: int, keys: Sequence[str] = ()
) -> list[Mapping[str, Any]]:
    """What a store answers once all records can have been processed, sorted."""
    assert eventually(lambda: len(application.query(store, keys=keys)) == count)
    found = application.query(store, keys=keys)
    return sorted(found, key=lambda entry: (entry["key"], entry.get("start", 0)))


def entry(
    key: str,
    value: int,
    *,
    at_s: int | None = None,
    start_s: int | None = None,
    end_s: int | None = None,
    names: tuple[str, str] = ("start", "end"),
) -> dict[str, Any]:
    times = {"timestamp": at_s, names[0]: start_s, names[1]: end_s}
    said = {name: BEGIN_MS + 1000 * s for name, s in times.items() if s is not None}
    return {"key": key, "value": value} | said


@pytest.fixture(scope="module")
def processed(application: ExampleApplication) -> ExampleApplication:
    """The last number has been processed."""
    sums = {"a": 16, "b": 2}
    assert eventually(lambda: {e["key"]: e["value"] for e in application.query("sums")} == sums)
    return application


def test_a_key_value_store_with_timestamps(processed: ExampleApplication) -> None:
    assert answer(processed, "sums", count=2) == [entry("a", 16, at_s=40), entry("b", 2, at_s=1)]


def test_a_plain_key_value_store(processed: ExampleApplication) -> None:
    assert answer(processed, "plain", count=2) == [entry("a", 70), entry("b", 20)]


def test_a_window_store_with_timestamps(processed: ExampleApplication) -> None:
    assert answer(processed, "type-windows", count=4) == [
        entry("a", 4, at_s=9, start_s=0, end_s=10),
        entry("a", 5, at_s=12, start_s=10, end_s=20),
        entry("a", 7, at_s=40, start_s=40, end_s=50),
        entry("b", 2, at_s=1, start_s=0, end_s=10),
    ]


def test_a_plain_window_store(processed: ExampleApplication) -> None:
    found = answer(processed, "plain-windows", count=5)
    assert found[-1] == entry("b", 20, start_s=1, end_s=11)
    assert [e["value"] for e in found] == [10, 30, 50, 70, 20]


def test_a_session_store(processed: ExampleApplication) -> None:
    assert answer(processed, "sessions", count=3) == [
        entry("a", 9, start_s=0, end_s=12),
        entry("a", 7, start_s=40, end_s=40),
        entry("b", 2, start_s=1, end_s=1),
    ]


def test_a_versioned_store_is_asked_by_key(application: ExampleApplication) -> None:
    found = answer(application, "versions", count=4, keys=["a", "b", "nobody"])
    assert sorted(found, key=lambda e: (e["key"], e["from"])) == [
        entry("a", 1, start_s=0, end_s=5, names=("from", "to")),
        entry("a", 2, start_s=5, names=("from", "to")),
        entry("b", 3, start_s=1, end_s=3, names=("from", "to")),
        entry("b", 4, start_s=6, names=("from", "to")),
    ]
    with pytest.raises(ProcessError, match=r"versions is versioned: ask with \?keys"):
        application.query("versions")


def test_a_global_store(application: ExampleApplication) -> None:
    assert answer(application, "everywhere", count=2) == [
        entry("x", 3, at_s=2),
        entry("y", 2, at_s=1),
    ]


def test_a_store_that_is_not_there(application: ExampleApplication) -> None:
    with pytest.raises(ProcessError, match=r"Store type was not answered: .*type"):
        application.query("type")


def test_without_queries_nothing_listens(kafka_cluster: LocalCluster, tmp_path: Path) -> None:
    servers, prefix = kafka_cluster.bootstrap_servers, f"{unique_name('stores')}."
    EXAMPLE.create_topics(servers, topic_prefix=prefix, partitions=1)
    name = unique_name("stores")
    quiet = ExampleApplication(
        EXAMPLE,
        servers,
        state_dir=tmp_path / "state",
        application_id=name,
        topic_prefix=prefix,
        config={"topic.segment.ms": "86400000"},
    )
    with quiet, pytest.raises(ProcessError, match="Start it with queries=True"):
        quiet.query("sums")
    assert "CLOSED" in quiet.log_file.read_text("utf-8")
    with KafkaCluster(KafkaConnection(bootstrap_servers=servers)) as cluster:
        made = {topic for topic in cluster.topics() if topic.startswith(f"{name}-")}
        state = cluster.group_state(name)
    assert f"{name}-sums-changelog" in made
    assert state is not None
    assert state.is_empty, "it left its group at once"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "1"], "--bootstrap is missing"),
        (["--bootstrap"], "value missing: --bootstrap"),
        (["--bootstrap", "h:1", "--colour", "red"], "Unknown option: --colour red"),
    ],
)
def test_wrong_options_are_one_clear_error(arguments: list[str], message: str) -> None:
    with pytest.raises(ProcessError, match=re.escape(message)):
        EXAMPLE.program.run(arguments, timeout_s=60)


def test_describe_has_the_prefix_and_needs_no_broker() -> None:
    assert "topics: [eu.numbers]" in EXAMPLE.describe_topology(topic_prefix="eu.")
