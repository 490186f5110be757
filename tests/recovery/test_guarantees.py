"""What is not exact says so, and why; what is labelled at_least_once loses nothing."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kstreams_assets.app.model import TopicRole
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee, Method
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery import completion, recorder, transactions
from kstreams_assets.recovery.evidence import latest_commits
from kstreams_assets.recovery.methods import quiesced
from kstreams_assets.recovery.scene import Positions, Scene
from tests.backup.writing import producer, send
from tests.recovery.oracle import Check, violations
from tests.recovery.trial import (
    NO_PURGE,
    QUICK_SESSIONS,
    losing_points,
    methods,
    new_trial,
    running,
    wrong_points,
)
from tests.streams.cluster import unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.drill, pytest.mark.alone]

CONFIG = {**QUICK_SESSIONS, **NO_PURGE}


def test_at_least_once_application(kafka_cluster: LocalCluster, tmp_path: Path) -> None:
    trial = new_trial(kafka_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    app = trial.app(
        "i0", threads=2, guarantee="at_least_once", commit_interval_ms=500, config=CONFIG
    )
    load = trial.load(rate=2_000)
    with running([app]), load:
        time.sleep(2)
        trial.take(12, every_s=0.4)
        load.stop()
        time.sleep(2)
    live = trial.points()
    assert {point.guarantee for point in live} == {Guarantee.AT_LEAST_ONCE}
    assert methods(live) == {Method.OFFSETS_FIRST: 12}
    assert "at_least_once" in live[0].reason or "outside of transactions" in live[0].reason
    time.sleep(7)  # until the session of the closed instance has timed out
    trial.take(1)
    (stopped,) = trial.points()[len(live) :]
    # it was closed in an orderly way, so it is exact; but nothing in Kafka shows that
    assert (stopped.method, stopped.guarantee) == (Method.QUIESCED, Guarantee.AT_LEAST_ONCE)
    assert "exact if the application was closed in an orderly way" in stopped.reason
    history = trial.history()
    assert losing_points(trial, history, [*live, stopped]) == {}
    assert violations(history, trial.cut(stopped)) == []


def test_killed_at_least_once_application_is_not_exact(
    kafka_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Its changelogs are ahead of its offsets by what it did since it last committed."""
    trial = new_trial(kafka_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    app = trial.app(
        "i0", threads=2, guarantee="at_least_once", commit_interval_ms=4_000, config=CONFIG
    )
    load = trial.load(rate=1_000)
    with running([app]), load:
        time.sleep(10)
        app.kill()
        load.stop()
    time.sleep(7)  # until the session of the killed instance has timed out
    trial.take(1)
    (point,) = trial.points()
    assert (point.method, point.guarantee) == (Method.QUIESCED, Guarantee.AT_LEAST_ONCE)
    assert "written without transactions" in point.reason
    assert "not killed" in point.reason
    history = trial.history()
    assert violations(history, trial.cut(point)) != []
    assert losing_points(trial, history, [point]) == {}


def test_stopped_exactly_once_application_is_exact(
    kafka_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Also when only its resting logs can tell."""
    trial = new_trial(kafka_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    load = trial.load(rate=1_000)
    with running([trial.app("i0", threads=2, config=CONFIG)]), load:
        time.sleep(5)
        load.stop()
        time.sleep(1)
    time.sleep(7)  # until the session of the closed instance has timed out
    with trial.recorder() as taking, taking.cluster.raw_log() as reader:
        present = taking.cluster.metadata().topics
        scene = Scene(taking.application, taking.cluster, reader, present)
        found = quiesced(scene)
        commits = latest_commits(scene, scene.read)
    assert isinstance(found, Positions)
    assert (found.guarantee, found.note) == (Guarantee.EXACT, "")
    assert commits
    assert all(latest.in_transaction for latest in commits.values())
    trial.take(1)
    (point,) = trial.points()
    assert point.guarantee is Guarantee.EXACT
    assert {p: o.offset for p, o in found.committed.items()} == {
        TopicPartitionId(o.topic, o.partition): o.offset for o in point.group_offsets
    }
    assert wrong_points(trial, trial.history(), [point]) == {}


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_somebody_elses_open_transaction_in_an_output(
    kafka_cluster: LocalCluster, tmp_path: Path, guarantee: str
) -> None:
    """It holds back what the application writes behind it; points are taken as without it."""
    trial = new_trial(kafka_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    sender = producer(
        kafka_cluster.bootstrap_servers,
        transactional_id=unique_name("foreign"),
        transaction_timeout_ms=900_000,
    )
    sender.init_transactions(20)
    load = trial.load(rate=500)
    with running([trial.app("i0", threads=2, guarantee=guarantee, config=CONFIG)]), load:
        time.sleep(3)
        sender.begin_transaction()
        send(sender, trial.topics.totals, b"foreign")
        time.sleep(1)
        began = time.monotonic()
        trial.take(5, every_s=0.5)
        assert time.monotonic() - began < 60  # five points; a request may take 20 s
        load.stop()
        sender.abort_transaction(20)
        time.sleep(2)
    points, history = trial.points(), trial.history()
    exact = guarantee == "exactly_once_v2"
    assert {point.guarantee for point in points} == {
        Guarantee.EXACT if exact else Guarantee.AT_LEAST_ONCE
    }
    assert losing_points(trial, history, points) == {}
    assert wrong_points(trial, history, points) == {}
    if not exact:
        assert all(f"A transaction is open in {trial.topics.totals}-0" in p.reason for p in points)


def test_somebody_elses_tail_too_long_to_be_read_isolates_that_output_alone(
    kafka_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hanging transaction: what lies behind it grows until no point could look through it."""
    trial = new_trial(kafka_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    sender = producer(
        kafka_cluster.bootstrap_servers,
        transactional_id=unique_name("foreign"),
        transaction_timeout_ms=900_000,
    )
    sender.init_transactions(20)
    load = trial.load(rate=500)
    with running([trial.app("i0", threads=2, config=CONFIG)]), load:
        time.sleep(3)
        trial.take(1)
        sender.begin_transaction()
        for number in range(40):
            sender.produce(trial.topics.totals, os.urandom(250_000), key=b"%d" % number)
        assert sender.flush(20) == 0
        monkeypatch.setattr(transactions, "_READ_BYTES", 4_000_000)
        trial.take(5, every_s=0.5)
        load.stop()
        sender.abort_transaction(20)
        time.sleep(2)
        trial.take(1)
    points, history = trial.points(), trial.history()
    assert [point.guarantee for point in points] == [Guarantee.EXACT] * 7
    assert methods(points) == {Method.TRANSACTIONS: 7}
    held_up = [f"open for very long in {trial.topics.totals}-" in p.reason for p in points]
    assert held_up == [False, *[True] * 5, False]
    # state, records in flight and offsets belong together; outputs may be ahead, as is said
    assert wrong_points(trial, history, [points[0], points[-1]]) == {}
    for point in points[1:-1]:
        wrong = violations(history, trial.cut(point))
        assert {one.check for one in wrong} <= {
            Check.OUTPUT_IS_STATE,
            Check.OUTPUTS_ARE_CHANGES,
        }


def test_resting_application_is_exact(kafka_cluster: LocalCluster, tmp_path: Path) -> None:
    """No transaction for longer than the lookback: the guarantee is told by the logs."""
    trial = new_trial(kafka_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    load = trial.load(rate=500)
    with running([trial.app("i0", threads=2, config=CONFIG)]), load:
        time.sleep(2)
        load.stop()
        time.sleep(1)
        trial.take(2)
    trial.take(1)
    points = trial.points()
    assert {point.guarantee for point in points} == {Guarantee.EXACT}
    history = trial.history()
    assert wrong_points(trial, history, points) == {}


def test_live_streams_protocol_group_is_not_taken_for_stopped(
    kafka_cluster: LocalCluster, tmp_path: Path
) -> None:
    trial = new_trial(kafka_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    # the new protocol sets session timeouts on the group, at the broker
    app = trial.app(
        "i0",
        threads=2,
        guarantee="at_least_once",
        config={**NO_PURGE, "group.protocol": "streams"},
    )
    load = trial.load(rate=200)
    with running([app]), load:
        time.sleep(2)
        load.stop()
        time.sleep(1)
        admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
        described = admin.describe_consumer_groups([trial.topics.application_id])
        assert described[trial.topics.application_id].result(timeout=20).state.name == "DEAD"
        trial.take(1)
    (point,) = trial.points()
    assert point.guarantee is Guarantee.AT_LEAST_ONCE
    assert "(type streams)" in point.reason


def test_records_in_flight_survive_the_purge(kafka_cluster: LocalCluster, tmp_path: Path) -> None:
    """The application deletes processed repartition records every second."""
    trial = new_trial(kafka_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    config = {**QUICK_SESSIONS, "repartition.purge.interval.ms": "1000"}
    apps = [trial.app(f"i{n}", threads=2, config=config) for n in range(2)]
    load = trial.load(rate=3_000)
    with running(apps), load:
        time.sleep(3)
        trial.take(40, every_s=0.3)
    points = trial.points()
    history = trial.history(repartition_purged=True)
    assert sum(point.guarantee is Guarantee.EXACT for point in points) >= 36
    assert sum(point.in_flight for point in points) > 0
    assert wrong_points(trial, history, points) == {}


def test_purged_before_they_could_be_read(
    kafka_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut whose records in flight are gone is discarded, and taken anew."""
    trial = new_trial(kafka_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    config = {**QUICK_SESSIONS, "repartition.purge.interval.ms": "200"}
    complete = recorder.complete
    pauses = [1.0, 1.0]

    def late(*arguments: Any) -> object:
        time.sleep(pauses.pop() if pauses else 0.0)
        return complete(*arguments)

    monkeypatch.setattr(recorder, "complete", late)
    load = trial.load(rate=2_000)
    with running([trial.app("i0", threads=2, config=config)]), load:
        time.sleep(3)
        trial.take(1)
    (point,) = trial.points()
    assert point.attempts > 1
    history = trial.history(repartition_purged=True)
    assert losing_points(trial, history, [point]) == {}
    assert wrong_points(trial, history, [point]) == {}


def test_purged_after_they_were_read(
    kafka_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was saved belongs to the point, also where the log begins behind it a moment later."""
    trial = new_trial(kafka_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    config = {**QUICK_SESSIONS, "repartition.purge.interval.ms": "200"}
    read = completion.capture

    def late(*arguments: Any) -> object:
        found = read(*arguments)
        time.sleep(1.5)
        return found

    monkeypatch.setattr(completion, "capture", late)
    load = trial.load(rate=2_000)
    with running([trial.app("i0", threads=2, config=config)]), load:
        time.sleep(3)
        trial.take(5)
    points = [point for point in trial.points() if point.in_flight]
    assert points
    for point in points:
        committed = {TopicPartitionId(o.topic, o.partition): o.offset for o in point.group_offsets}
        for cut in point.partitions:
            if TopicRole.REPARTITION in cut.roles and cut.id in committed:
                assert cut.log_start <= committed[cut.id]
    history = trial.history(repartition_purged=True)
    assert wrong_points(trial, history, points) == {}
