"""Applications built with older clients, which keep one producer epoch for many transactions."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
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

pytestmark = [pytest.mark.kafka, pytest.mark.drill]

CONFIG = {**QUICK_SESSIONS, **NO_PURGE}


def assert_exact(trial: Trial, *, by_transactions: int) -> None:
    points = trial.points()
    history = trial.history()
    assert wrong_points(trial, history, points) == {}
    assert methods(points)[Method.TRANSACTIONS] >= by_transactions, reasons(points)


@contextmanager
def old_application(cluster: LocalCluster, folder: Path, *, rate: float) -> Iterator[Trial]:
    """Two instances of Streams 3.9 under load."""
    trial = new_trial(cluster.bootstrap_servers, folder, between=random_delays(0.15))
    trial.create_topics()
    apps = [trial.app(f"i{n}", threads=2, jar_set="kafka39", config=CONFIG) for n in range(2)]
    with running(apps), trial.load(rate=rate):
        time.sleep(3)
        yield trial


def test_exact_by_way_of_the_transaction_log(kafka_cluster: LocalCluster, tmp_path: Path) -> None:
    with old_application(kafka_cluster, tmp_path, rate=2_000) as trial:
        trial.take(30)
    assert_exact(trial, by_transactions=24)


def test_epochs_alone_would_be_wrong(
    kafka_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle sees it when (producer id, epoch) is taken for one transaction."""
    monkeypatch.setattr("kstreams_assets.recovery.cut.shared_epochs", lambda _segments: frozenset())
    with old_application(kafka_cluster, tmp_path, rate=2_000) as trial:
        trial.take(20)
    history = trial.history()
    assert wrong_points(trial, history, trial.points()) != {}


def test_rolling_upgrade(kafka_cluster: LocalCluster, tmp_path: Path) -> None:
    """Instances of 3.9 are replaced one by one, keeping their state and so their process ids."""
    trial = new_trial(kafka_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    old = [trial.app(f"i{n}", threads=2, jar_set="kafka39", config=CONFIG) for n in range(2)]
    new = [trial.app(f"i{n}", threads=2, config=CONFIG) for n in range(2)]

    def upgrade(over: object) -> None:
        for before, after in zip(old, new, strict=True):
            time.sleep(5)
            before.stop()
            after.start()

    try:
        with (
            running(old),
            trial.load(rate=2_000),
        ):
            time.sleep(2)
            with disturbance(upgrade):
                trial.take(40)
    finally:
        for app in new:
            app.stop()
    assert_exact(trial, by_transactions=28)
