"""A broker that was paused does not know that others took its place, and answers as of old."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee, Method, RecoveryPoint
from kstreams_assets.offsets import CommittedOffset
from kstreams_assets.recovery.recorder import Recorder
from tests.recovery.replicated import Replicated

pytestmark = [pytest.mark.kafka, pytest.mark.drill]


@pytest.fixture(scope="module")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that notices after 3 s that a broker is away."""
    with LocalCluster(tmp_path_factory.mktemp("three"), nodes=3, heap_mb=256) as cluster:
        yield cluster


def test_a_deposed_leader_does_not_tear_a_cut(three_brokers: LocalCluster, tmp_path: Path) -> None:
    application = Replicated(three_brokers).make()
    application.transact(5)
    before = application.settle()
    leader = application.await_leader(application.changelog)
    reported: list[tuple[int, int]] = []
    steps: list[str] = []

    def meanwhile(step: str) -> None:
        """Between the looks at offsets and changelog its leader is away, and a transaction ends."""
        steps.append(step)
        if step == "end of the offsets topic" and "away" not in steps:
            steps.append("away")
            application.pause(leader)
            application.await_leader(application.changelog, [leader])
            application.transact(10)
            application.settle([leader])
        elif step == "ends" and "away" in steps and not reported:
            application.resume_soon(leader)
        elif step == "leaders" and "away" in steps:  # else the cut was begun again before
            with application.asking([leader]) as others:
                newest = others.leader_epochs([application.changelog.topic])
            epoch = cluster.reported_epoch(application.changelog)
            reported.append((-1 if epoch is None else epoch, newest[application.changelog]))

    with application.asking() as cluster:
        point = Recorder(
            application.application, cluster, Warehouse(tmp_path), between=meanwhile
        ).take()
    assert reported, steps
    old, newest = reported[0]
    assert 0 <= old < newest, "the old leader did not answer in time"
    assert (point.method, point.guarantee) == (Method.TRANSACTIONS, Guarantee.EXACT), point.reason
    after = application.settle()
    assert _cut(point, application) == (10, after[application.changelog])
    assert after[application.changelog] > before[application.changelog]


def test_a_deposed_coordinator_is_noticed(three_brokers: LocalCluster) -> None:
    application = Replicated(three_brokers).make()
    application.transact(5)
    application.settle()
    coordinator = application.await_leader(application.group_log)
    with application.asking() as cluster:
        assert cluster.group_offsets(application.group)[application.input].offset == 5
        application.pause(coordinator)
        application.await_leader(application.group_log, [coordinator])
        with application.asking([coordinator]) as others:
            others.commit_group_offsets(
                application.group, {application.input: CommittedOffset(10, "")}
            )
        cluster.watch_leaders()
        application.resume_soon(coordinator)
        told = cluster.group_offsets(application.group)[application.input].offset
        doubt = cluster.stale_leader_check(application.group, wait_s=0)
        assert told == 5, "the old coordinator did not answer in time"
        assert "coordinator" in doubt
        while cluster.stale_leader_check(application.group, wait_s=10):
            cluster.watch_leaders()
            told = cluster.group_offsets(application.group)[application.input].offset
        assert told == 10


def test_a_silent_broker_may_be_the_leader(three_brokers: LocalCluster) -> None:
    application = Replicated(three_brokers).make()
    leader = application.await_leader(application.changelog)
    # Asked last, so that the others name it before the controller takes it for dead.
    other = max(broker for broker in (1, 2, 3) if broker != leader)
    with application.asking([other]) as cluster:
        cluster.watch_leaders()
        cluster.high_watermarks([application.changelog])
        assert cluster.stale_leader_check(application.group, wait_s=0) == ""
        application.pause(other)
        try:
            assert f"broker {other} did not answer" in cluster.stale_leader_check(
                application.group, wait_s=0
            )
            # once the controller takes it for dead, it leads nothing
            assert cluster.stale_leader_check(application.group, wait_s=30) == ""
        finally:
            application.resume(other)


def test_a_leader_elected_since_is_asked_in_its_own_epoch(three_brokers: LocalCluster) -> None:
    application = Replicated(three_brokers).make()
    application.transact(5)
    application.settle()
    leader = application.await_leader(application.changelog)
    with application.asking() as cluster:
        cluster.watch_leaders()
        end = cluster.high_watermarks([application.changelog])[application.changelog]
        epoch = cluster.reported_epoch(application.changelog)
        assert epoch is not None
        application.pause(leader)
        application.await_leader(application.changelog, [leader])
        application.resume(leader)
        assert cluster.epoch_ends({application.changelog: epoch})[application.changelog] >= end
        assert "changed its leader" in cluster.stale_leader_check(application.group, wait_s=10)


def _cut(point: RecoveryPoint, application: Replicated) -> tuple[int, int]:
    """The committed offset of the input, and the end of the changelog."""
    cut = point.cut(application.changelog)
    assert cut is not None
    return point.group_offsets[0].offset, cut.end
