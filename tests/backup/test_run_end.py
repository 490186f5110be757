"""A backup run ends with a recovery point, and what backups and points hold together."""

import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.commits import Committer
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restorability import PointStatus, Restorability
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, RecoveryPointSettings, WindowSchedule
from tests.backup.reading import consume
from tests.backup.writing import producer, send, write
from tests.streams.workbench import NoSpark, Workbench
from tests.timing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def _statuses(bench: Workbench, points: list[RecoveryPoint]) -> list[PointStatus]:
    settings = ApplicationSettings(
        application=bench.application,
        topics=bench.application.topics,
        connection=bench.cluster.connection,
        warehouse=bench.warehouse,
        windows=WindowSchedule.every("hour", start="2026-10-20"),
    )
    return Repository.open(settings).reading(settings).statuses(points)


@pytest.mark.usefixtures("on_spark")
def test_also_when_there_was_nothing_to_read_but_not_when_it_failed(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    workbench.topic("silent", role=TopicRole.CHANGELOG)
    workbench.close_window()
    workbench.spark = NoSpark()
    workbench.back_up()
    before, last = workbench.points()
    assert last.taken_at_ms > before.taken_at_ms
    assert last.sealed

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Committer, "_settled", fail)
    with pytest.raises(ZeroDivisionError):
        workbench.back_up()
    assert len(workbench.points()) == 2


def test_the_last_point_lets_the_next_ones_save_only_what_is_new(workbench: Workbench) -> None:
    orders = workbench.topic("orders")
    changelog = workbench.topic("changelog", role=TopicRole.CHANGELOG)
    for topic in (orders, changelog):
        write(workbench, topic, 10)
    workbench.close_window()
    workbench.back_up()
    write(workbench, changelog, 5)
    later = workbench.take_point()
    write(workbench, orders, 5)
    beyond = workbench.take_point()

    (closing, last, *_) = workbench.points()
    cuts = [p.cut(TopicPartitionId(changelog, 0)) for p in (last, later)]
    assert [(cut.saved_from, cut.end) for cut in cuts if cut] == [(10, 10), (10, 15)]
    assert last.sealed
    assert later.sealed
    points = [closing, last, later, beyond]
    assert [status.covered for status in _statuses(workbench, points)] == [True, True, True, False]
    assert f"{orders}-0: offsets 10 to 14 are not backed up" in (
        _statuses(workbench, [beyond])[0].reason
    )


def test_compaction_leaves_sealed_points_exact_and_makes_others_unproven(
    workbench: Workbench,
) -> None:
    configs = {
        "cleanup.policy": "compact",
        "segment.ms": "200",
        "min.cleanable.dirty.ratio": "0.001",
        "max.compaction.lag.ms": "200",
    }
    changelog = workbench.topic("changelog", role=TopicRole.CHANGELOG, configs=configs)
    sender = producer(workbench.bootstrap_servers)
    group = {"bootstrap.servers": workbench.bootstrap_servers, "group.id": workbench.application_id}
    member = Consumer(group)
    member.commit(offsets=[TopicPartition(changelog, 0, 0)], asynchronous=False)
    member.close()
    workbench.close_window()
    send(sender, changelog, b"a", b"b")
    sealed = workbench.take_point()
    without_seal = RecoveryPointSettings(seal_mib=0)
    send(sender, changelog, b"a", b"b")
    unsealed = Recorder(
        workbench.application, workbench.cluster, workbench.warehouse, without_seal
    ).take()
    assert (sealed.sealed, unsealed.sealed) == (True, False)
    send(sender, changelog, b"a", b"b")
    time.sleep(0.3)
    send(sender, changelog, b"c")  # begins a new segment: the others can be compacted
    assert eventually(lambda: len(consume(workbench.bootstrap_servers, changelog)) <= 3)
    workbench.close_window()
    workbench.back_up()
    statuses = _statuses(workbench, [sealed, unsealed])
    restorability = [status.restorability for status in statuses]
    # The best that a log written without transactions can give.
    assert restorability == [Restorability.AT_LEAST_ONCE, Restorability.UNPROVEN], statuses
    assert f"{changelog}-0" in statuses[1].reason
