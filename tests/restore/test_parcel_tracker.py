"""The parcel tracker, backed up under load, restored, and held against its uninterrupted run."""

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from examples.parcel_tracker.application import OUTPUTS, SERVE_AS_CHANGELOG
from kstreams_assets.app.model import TopicRole
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.offsets import TopicPartitionId
from spark_resources.resource import SparkSessionResource
from tests.restore import parcel_postage as postage
from tests.restore.control import by_key, differences, newest
from tests.restore.example_comparison import differences_from_control
from tests.restore.example_expectations import assert_live_and_exact, retention_differences
from tests.restore.example_snapshots import assert_snapshots_equal_queries
from tests.restore.example_trial import LIVE, ExampleRun, run_example
from tests.restore.parcel_postage import changelog, held
from tests.restore.parcel_run import (
    BUFFER_LEFT_OUT,
    LOOKED_AT,
    NOT_COMPARED,
    GoneOn,
    Version,
    go_on,
    in_any_order_at_one_time,
    trial,
    versions,
)
from tests.streams.feed import Record

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]

# Two input topics meet in these: what comes first changes what is said in between.
BY_LAST: Final = frozenset({"schedule", "labels"})
_LOAD_WINDOW_MS: Final = 30_000
_SEQUENCE: Final = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, spark: SparkSessionResource) -> ExampleRun:
    """The run that is never interrupted; its cluster is gone."""
    return run_example(trial(), tmp_path_factory.mktemp("parcel-tracker"), spark)


@pytest.fixture(scope="module")
def gone_on(
    run: ExampleRun,
    second_cluster: KafkaConnection,
    spark: SparkSessionResource,
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, GoneOn]:
    """Every live point restored; all five applications went on at once."""
    return go_on(run, second_cluster, spark, tmp_path_factory.mktemp("gone-on"))


def test_the_run_had_live_exact_points(run: ExampleRun) -> None:
    assert_live_and_exact(run)
    sides = "handover-outer-this-join-store", "handover-outer-other-join-store"
    assert retention_differences(run).keys() <= {"tariffs", *sides}
    assert all(run.source.written[run.prefix + topic] for topic in OUTPUTS)


def test_outputs_and_state_equal_the_control_run(
    run: ExampleRun, gone_on: Mapping[str, GoneOn]
) -> None:
    """Where two input topics meet, the last record of each key; else every record of every key."""
    whole = {run.prefix + topic for topic in OUTPUTS if topic not in BY_LAST}
    ordered, reports = whole - {run.prefix + postage.TOPIC}, run.prefix + "handover-reports"
    wrong: dict[str, list[str]] = {}
    for label, gone in gone_on.items():
        not_compared = NOT_COMPARED | whole
        texts = differences_from_control(gone.restored, not_compared=not_compared, by_last=True)
        for topic, found in gone.restored.written(*ordered).items():
            logs = run.source.written[topic], found
            if topic == reports:
                logs = in_any_order_at_one_time(logs[0]), in_any_order_at_one_time(logs[1])
            texts += [f"{topic}: {text}" for text in differences(*map(by_key, logs))]
        wrong[label] = texts
    assert {label: texts for label, texts in wrong.items() if texts} == {}


@pytest.mark.parametrize("store", sorted(NOT_COMPARED - {postage.BUFFER}))
def test_joins_and_buffers_hold_the_same_in_the_end(
    store: str, run: ExampleRun, gone_on: Mapping[str, GoneOn]
) -> None:
    """Without what depends on the start: sequence numbers in keys, offsets in buffered records."""
    topic = changelog(run, store)
    control = _rows_of(store, run.source.written[topic])
    assert control
    for label, gone in gone_on.items():
        assert _rows_of(store, gone.written(topic)) == control, label


def _rows_of(store: str, records: Sequence[Record]) -> Counter[tuple[bytes, bytes | None]]:
    rows = newest(records)
    if store == "closed-windows-store":
        return Counter((key or b"", None) for key in rows)
    return Counter(((key or b"")[:-_SEQUENCE], row.value) for key, row in rows.items())


def test_a_join_buffer_that_kafka_streams_misreads_is_told_and_can_be_left_out(
    run: ExampleRun, gone_on: Mapping[str, GoneOn]
) -> None:
    """Its log is restored as it was, and of no use; without it nothing is lost."""
    buffer = changelog(run, postage.BUFFER)
    for label, gone in gone_on.items():
        told = gone.written(run.prefix + postage.TOPIC)
        waited = postage.weighings(postage.waiting(run, gone.point))
        noted = any(n.startswith(f"Store {postage.BUFFER} ") for n in gone.restored.plan.notes)
        assert waited, label
        if label == BUFFER_LEFT_OUT:
            late = postage.too_late(run, gone.point)
            assert postage.unexplained(run, told, late) == []
            assert not noted
            assert not any(map(postage.is_closing, told))
            assert postage.weighings(told) == postage.fed(run)
        else:
            # Once a release reads the log back right, this fails: the plan's note has to go, too.
            log = gone.written(buffer)
            assert noted, label
            assert postage.unexplained(run, told) == [], label
            assert postage.begins_with(log, held(run, buffer, gone.point)), label
            assert any(map(postage.is_closing, told)), label
            assert postage.weighings(told) == postage.fed(run) - waited, label
            assert postage.in_buffer(log) == waited, label


def test_snapshots_equal_what_every_queryable_store_answers(
    run: ExampleRun, spark: SparkSessionResource
) -> None:
    assert set(run.answers) == {
        *("parcels", "customers", "slots", "labels"),
        *("scans-per-window", "scans-at-close", "tariffs"),
    }
    assert all(run.answers.values())
    assert_snapshots_equal_queries(run, spark, sampled=True)


def test_the_plan_says_what_cannot_come_back(
    run: ExampleRun, gone_on: Mapping[str, GoneOn]
) -> None:
    """A store without a changelog starts empty; its loss changes no result of this application."""
    gone, topic = gone_on[LOOKED_AT], run.prefix + "scans"
    starts_empty = "Store regions has no changelog (logging disabled): it starts empty."
    assert starts_empty in gone.restored.plan.notes
    assert gone.asked is not None
    committed = {o.partition: o.offset for o in gone.point.group_offsets if o.topic == topic}
    scans = held(run, topic, gone.point)
    then = {_postcode(r) for r in scans if r.offset >= committed[r.partition]}
    cached = {entry["key"] for entry in gone.asked["regions"]}
    assert cached == then
    assert cached < {*map(_postcode, scans)}


def _postcode(record: Record) -> str:
    return json.loads(record.value or b"")["postcode"]


def test_a_source_topic_that_serves_as_changelog_comes_back_with_its_unread_records(
    run: ExampleRun, gone_on: Mapping[str, GoneOn]
) -> None:
    """Kafka Streams fills the table up to the committed offset, and processes the rest."""
    unread = 0
    for topic in (run.prefix + name for name in SERVE_AS_CHANGELOG):
        roles = run.settings.application.topic(topic).roles
        assert roles == {TopicRole.INPUT, TopicRole.CHANGELOG}
        for label in LIVE:
            point = gone_on[label].point
            committed = {o.partition: o.offset for o in point.group_offsets if o.topic == topic}
            for partition in range(4):
                cut = point.cut(TopicPartitionId(topic, partition))
                assert cut is not None
                assert cut.log_start == 0
                assert cut.end >= committed[partition]
                unread += cut.end - committed[partition]
        (planned,) = [t for t in gone_on[LOOKED_AT].restored.plan.topics if t.source == topic]
        assert planned.records == len(held(run, topic, gone_on[LOOKED_AT].point)) > 0
    assert unread > 0
    asked = gone_on[LOOKED_AT].asked
    assert asked is not None
    for name in SERVE_AS_CHANGELOG:
        rows = newest(held(run, run.prefix + name, gone_on[LOOKED_AT].point))
        table = {entry["key"]: (entry["value"], entry["timestamp"]) for entry in asked[name]}
        assert table == {
            (key or b"").decode(): ((row.value or b"").decode(), row.timestamp_ms)
            for key, row in rows.items()
        }


def test_versions_out_of_order_and_deleted_in_the_past_come_back(
    run: ExampleRun, gone_on: Mapping[str, GoneOn]
) -> None:
    """A versioned store is restored in offset order: its versions are those of event time."""
    topic = changelog(run, "tariffs")
    point = gone_on[LOOKED_AT].point
    log = run.source.written[topic]
    back: Counter[bool] = Counter()
    newest_ms: dict[bytes | None, int] = {}
    for record in held(run, topic, point):
        if record.timestamp_ms < newest_ms.get(record.key, 0):
            back[record.value is None] += 1
        newest_ms[record.key] = max(record.timestamp_ms, newest_ms.get(record.key, 0))
    assert min(back[True], back[False]) > 0
    for gone in gone_on.values():
        assert differences(by_key(log), by_key(gone.written(topic))) == []
    asked = gone_on[LOOKED_AT].asked
    assert asked is not None
    # The ledger's records that the point holds are processed by then.
    ledger = [r for r in held(run, run.prefix + "ledger", point) if not postage.is_weighing(r)]
    entries = [r._replace(value=r.value and int(r.value).to_bytes(4)) for r in ledger]
    history_ms = run.settings.store_formats["tariffs"].retention_ms
    assert history_ms is not None
    expected = versions(entries, history_ms)
    answered = {Version(e["key"], e["value"], e["from"], e.get("to")) for e in asked["tariffs"]}
    assert expected <= answered
    assert {v for v in answered - expected if v.end is None} == set()


def test_a_suppressed_window_is_told_once_though_restored_half_way(
    run: ExampleRun, gone_on: Mapping[str, GoneOn]
) -> None:
    """Windows that were in the buffer at the point come out of the restored application, once."""
    buffer, output = changelog(run, "closed-windows-store"), run.prefix + "depot-windows"
    for label, gone in gone_on.items():
        waiting = newest(held(run, buffer, gone.point))
        told = Counter(record.key for record in gone.written(output))
        assert set(told.values()) == {1}, label
        before = {record.key for record in held(run, output, gone.point)}
        names = {b"%b@%d" % (key[:-8], int.from_bytes(key[-8:])) for key in waiting if key}
        assert names, label
        assert not names & before
        assert names <= told.keys()


def test_a_foreign_key_join_goes_on_with_subscriptions_in_flight(
    run: ExampleRun, gone_on: Mapping[str, GoneOn]
) -> None:
    """Answers under way are taken: their hashes are those of the restored parcels, byte by byte."""
    prefix = f"{run.settings.application_id}-addressed-subscription-"
    in_flight: Counter[str] = Counter()
    for gone in gone_on.values():
        for topic in gone.restored.plan.topics:
            if topic.source.startswith(prefix) and TopicRole.REPARTITION in topic.roles:
                in_flight[topic.source.removeprefix(prefix)] += topic.records
    assert in_flight["registration-topic"] > 0
    assert in_flight["response-topic"] > 0
    labels = changelog(run, "labels")
    for label, gone in gone_on.items():
        found, control = newest(gone.written(labels)), newest(run.source.written[labels])
        assert found == control, label
        assert len(control) > 100


def test_who_waits_in_an_outer_join_is_told_alone_exactly_once(
    run: ExampleRun, gone_on: Mapping[str, GoneOn]
) -> None:
    """Also a pick-up that was told twice at one time: duplicates are kept in the join's windows."""
    shared = changelog(run, "handover-outer-shared-join-store")
    output = run.prefix + "handover-reports"
    alone_after_all = 0
    for label, gone in gone_on.items():
        waiting = {(key or b"")[9:] for key in newest(held(run, shared, gone.point))}
        before = by_key(held(run, output, gone.point))
        after = by_key(gone.written(output))
        for key in waiting - {b""}:
            alone = [w for w in after.get(key, ()) if b"null" in (w.value or b"")]
            values = [w.value for w in alone]
            assert len(values) == len(set(values)), (label, key)
            assert key not in before, (label, key)
            alone_after_all += len(alone)
    assert alone_after_all > 0
    told = Counter(r.key for r in run.source.written[output])
    assert {1, 2} <= set(told.values())


def test_windows_emitted_on_close_are_not_emitted_again(
    run: ExampleRun, gone_on: Mapping[str, GoneOn]
) -> None:
    """The committed metadata keeps the close time of the last window that was emitted."""
    output = run.prefix + "depot-load"
    for label, gone in gone_on.items():
        emitted = held(run, output, gone.point)
        assert emitted, label
        told = Counter(record.key for record in gone.written(output))
        assert set(told.values()) == {1}, label
        closed = [
            _last_close_ms(o.metadata)
            for o in gone.point.group_offsets
            if o.topic == run.prefix + "scans"
        ]
        last_start_ms = max(int((r.key or b"").rpartition(b"@")[2]) for r in emitted)
        assert last_start_ms + _LOAD_WINDOW_MS <= max(closed)


def _last_close_ms(metadata: str) -> int:
    """The one time behind the store's name in what Kafka Streams commits with an offset."""
    return int.from_bytes(base64.b64decode(metadata)[-8:])
