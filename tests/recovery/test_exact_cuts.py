"""Cuts of a live exactly-once application under load: every one labelled exact is exact."""

import random
import threading
import time
from pathlib import Path

import pytest

from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Method
from tests.recovery.trial import (
    NO_PURGE,
    QUICK_SESSIONS,
    Trial,
    disturbance,
    methods,
    new_trial,
    random_delays,
    reasons,
    running,
    wrong_points,
)
from tests.streams.oracle_app import OracleApp

pytestmark = [pytest.mark.kafka, pytest.mark.drill, pytest.mark.alone]

CONFIG = {**QUICK_SESSIONS, **NO_PURGE}


def assert_exact(trial: Trial, *, count: int, by_transactions: int) -> None:
    points = trial.points()
    assert len(points) == count
    trial.settle()
    history = trial.history()
    assert wrong_points(trial, history, points) == {}
    assert methods(points)[Method.TRANSACTIONS] >= by_transactions, reasons(points)


@pytest.mark.sample
def test_a_hundred_cuts_under_load_and_rebalances(
    kafka_cluster: LocalCluster, tmp_path: Path
) -> None:
    trial = new_trial(kafka_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    first, second, third = (trial.app(f"i{n}", threads=2, config=CONFIG) for n in range(3))

    def rebalance(over: threading.Event) -> None:
        """An instance more, one killed with its transactions open, one stopped, one back."""
        steps = (third.start, second.kill, first.stop, first.start)
        for step in steps:
            if over.wait(9):
                return
            step()

    try:
        with (
            running([first, second]),
            trial.load(rate=5_000) as load,
        ):
            time.sleep(3)
            with disturbance(rebalance):
                trial.take(100, every_s=0.5)
            sent = load.stop()
    finally:
        third.stop()
    assert sent.count / sent.seconds > 4_500
    assert_exact(trial, count=100, by_transactions=95)


def test_short_commits_on_three_brokers_whose_leaders_move(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", nodes=3) as cluster:
        trial = new_trial(cluster.bootstrap_servers, tmp_path)
        trial.create_topics(replication_factor=3)
        apps = [
            trial.app(
                f"i{n}",
                threads=2,
                commit_interval_ms=50,
                config={
                    **CONFIG,
                    "replication.factor": "3",
                    "producer.compression.type": codec,
                },
            )
            for n, codec in enumerate(("lz4", "zstd"))
        ]

        def move(over: threading.Event) -> None:
            for node in (1, 2):
                if over.wait(4):
                    return
                cluster.stop_node(node)
                over.wait(4)
                cluster.start_node(node)

        with (
            running(apps),
            trial.load(rate=2_000, compression="zstd"),
        ):
            time.sleep(3)
            with disturbance(move):
                trial.take(40, every_s=0.5)
        assert_exact(trial, count=40, by_transactions=30)


def test_punctuation_slow_sampling_and_killed_instances(
    kafka_cluster: LocalCluster, tmp_path: Path
) -> None:
    trial = new_trial(
        kafka_cluster.bootstrap_servers, tmp_path, between=random_delays(0.3), ticks=True
    )
    trial.create_topics()
    apps = [trial.app(f"i{n}", threads=2, punctuate_ms=40, config=CONFIG) for n in range(2)]

    def kill(over: threading.Event) -> None:
        """Kill one instance after the other, and start it again with an empty state directory."""
        source = random.Random(3)
        while not over.wait(source.uniform(5, 9)):
            victim: OracleApp = source.choice(apps)
            victim.kill()
            victim.wipe_state()
            victim.start()

    with (
        running(apps),
        trial.load(rate=2_000, burst_s=1, pause_s=0.7),
    ):
        time.sleep(3)
        with disturbance(kill):
            trial.take(40)
    assert_exact(trial, count=40, by_transactions=30)
