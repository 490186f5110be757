"""Compaction that removes superseded changelog records within seconds."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee
from kstreams_assets.settings import RecoveryPointSettings
from tests.recovery.trial import NO_PURGE, QUICK_SESSIONS, new_trial, running, wrong_points

pytestmark = [pytest.mark.kafka, pytest.mark.drill]

AGGRESSIVE = {
    "topic.segment.ms": "5000",
    "topic.min.cleanable.dirty.ratio": "0.01",
    "topic.min.compaction.lag.ms": "0",
    "topic.max.compaction.lag.ms": "5000",
    "topic.delete.retention.ms": "0",
}


@pytest.fixture(scope="module")
def cleaning_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker whose cleaner never rests."""
    properties = {"log.cleaner.backoff.ms": "200", "log.cleaner.threads": "2"}
    with LocalCluster(tmp_path_factory.mktemp("cleaning"), properties=properties) as cluster:
        yield cluster


def test_sealed_points_stay_exact_and_others_do_not(
    cleaning_cluster: LocalCluster, tmp_path: Path
) -> None:
    """What was stored rebuilds sealed points later; what Kafka still has does not."""
    trial = new_trial(cleaning_cluster.bootstrap_servers, tmp_path)
    trial.create_topics()
    config = {**QUICK_SESSIONS, **NO_PURGE, **AGGRESSIVE}
    with running([trial.app("i0", threads=2, config=config)]):
        trial.take(1)
        with trial.load(rate=2_000, customers=50):
            trial.take(25, every_s=0.4)
            trial.settings = RecoveryPointSettings(seal_mib=0)
            trial.take(5, every_s=0.4)
            time.sleep(8)
        time.sleep(20)
    points = trial.points()
    exact = [point for point in points if point.guarantee is Guarantee.EXACT]
    sealed = [point for point in exact if point.sealed]
    unsealed = [point for point in exact if not point.sealed]
    assert len(sealed) >= 13, [point.unsealed_because for point in unsealed]
    assert len(unsealed) >= 4
    assert all("more than 0 bytes" in point.unsealed_because for point in unsealed[-4:])
    history = trial.history(changelog_complete=False)
    assert wrong_points(trial, history, sealed, stored_changelog=True) == {}
    # without what was saved, each of them could only be rebuilt from what the log still holds
    early = [
        point
        for point in exact
        if point.taken_at_ms > exact[1].taken_at_ms
        and any(cut.end > 0 for cut in point.partitions if cut.roles.is_changelog)
    ]
    early_ids = {point.id for point in early}
    assert len(early_ids) >= 10
    rebuilt = early_ids - wrong_points(trial, history, early).keys()
    assert not rebuilt, [point for point in early if point.id in rebuilt]
