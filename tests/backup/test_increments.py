"""A window that is open is backed up by increments, and put together when it has closed."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.increments import IncrementMerger
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restorability import PointStatus
from kstreams_assets.model.spans import GapCause, SpanKey, SpanKind, Window
from kstreams_assets.model.tables import Lock
from kstreams_assets.repository.ledger import Ledger, TopicFactsTable
from kstreams_assets.repository.records import file_actions
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import KeepSettings
from kstreams_assets.upkeep.expire import ExpireJob
from kstreams_assets.upkeep.verify import VerifyJob
from tests.backup.reading import consume, offsets, stored
from tests.backup.writing import write
from tests.streams.workbench import NoSpark, Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.on_store]

HOUR_MS = 3_600_000


@pytest.fixture
def window(workbench: Workbench) -> Window:
    """The open window; a run here needs no Spark."""
    workbench.spark = NoSpark()
    start_ms = time.time_ns() // 1_000_000 - 1
    window = Window(start_ms, start_ms + HOUR_MS, "w")
    workbench.windows.append(window)
    return window


def _status(bench: Workbench, point: RecoveryPoint) -> PointStatus:
    return (
        Repository.of(bench.warehouse, bench.application.application_id)
        .reading(bench.application)
        .statuses([point])[0]
    )


def _increment(bench: Workbench, window: Window) -> RecoveryPoint:
    """Take a point and back up what came before it."""
    point = bench.take_point()
    assert bench.run().increment(window, newest_closed=None) is not None
    assert _status(bench, point).covered
    return point


def _ends(bench: Workbench, window: Window) -> list[tuple[int, int]]:
    found = bench.ledger.increments_of(window)
    return [(entry.result.plan.start, entry.result.plan.end) for entry in found]


def test_points_are_covered_before_the_window_closes(workbench: Workbench, window: Window) -> None:
    topic = workbench.topic("orders", partitions=2)
    points: list[RecoveryPoint] = []
    for count in (25, 1, 40):
        for partition in (0, 1):
            write(workbench, topic, count, partition=partition)
        points.append(_increment(workbench, window))
    assert workbench.run().increment(window, newest_closed=None) is None  # no point since
    assert sorted(_ends(workbench, window)) == sorted(2 * [(0, 25), (25, 26), (26, 66)])
    assert workbench.ledger.done({topic}) == {}
    write(workbench, topic, 4)
    points.append(workbench.take_point())
    assert not _status(workbench, points[-1]).covered

    backups = workbench.back_up(window)

    assert all(verdict.passed for verdict in workbench.verdicts(backups).values())
    (entry_0, entry_1) = workbench.ledger.entries()
    assert (entry_0.result.plan.start, entry_0.result.plan.end) == (0, 70)
    assert (entry_1.result.plan.start, entry_1.result.plan.end) == (0, 66)
    assert workbench.ledger.done({topic}) == {window: {topic}}
    assert workbench.ledger.increments_of(window) == []
    assert stored(workbench, topic, {window.key}) == consume(
        workbench.bootstrap_servers, topic, partitions=2
    )
    assert file_actions(workbench.records_path).num_rows == 2
    assert all(_status(workbench, point).covered for point in points)
    assert not workbench.ledger.damaged()


def test_facts_of_topics_travel_with_the_first_increment_and_whenever_they_change(
    workbench: Workbench, window: Window
) -> None:
    topic, log = (
        workbench.topic("orders"),
        workbench.topic(
            "shop-totals-changelog",
            role=TopicRole.CHANGELOG,
            configs={"cleanup.policy": "compact", "min.compaction.lag.ms": "7"},
        ),
    )
    table = TopicFactsTable(workbench.warehouse, workbench.application_id)
    points: list[RecoveryPoint] = []
    for step in range(4):
        write(workbench, topic, 3)
        write(workbench, log, 3)
        if step == 2:
            spec = {log: {"min.compaction.lag.ms": "9"}}
            workbench.cluster.alter_topic_configs(spec)
        points.append(_increment(workbench, window))
    assert [row.topic for row in table.between(0, window.end_ms)].count(topic) == 1
    assert [row.topic for row in table.between(0, window.end_ms)].count(log) == 2
    contents = Repository.of(workbench.warehouse, workbench.application.application_id).reading(
        workbench.application
    )
    for point, lag in zip(points, ("7", "7", "9", "9"), strict=True):
        lives = {cut.topic: cut.topic_id for cut in point.partitions}
        noted = contents.facts(point, lives)
        assert noted.keys() == {topic, log}
        assert not any(one.later for one in noted.values())
        assert dict(noted[log].facts.configs) == {
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": lag,
        }


STEPS: dict[str, tuple[type, str]] = {
    "the last increment": (Ledger, "record_increment"),
    "the rows of the window": (Ledger, "record"),
    "the end of the increments": (IncrementMerger, "drop_superseded"),
    "their rows": (Ledger, "keep_increments"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_is_killed_is_finished_by_the_next_one(
    workbench: Workbench, window: Window, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = workbench.topic("orders", partitions=2)
    points: list[RecoveryPoint] = []
    for count in (7, 9):
        write(workbench, topic, count)
        points.append(_increment(workbench, window))
    write(workbench, topic, 5)
    last = workbench.take_point()
    with monkeypatch.context() as patch:
        patch.setattr(*STEPS[step], _killed())
        with pytest.raises(KeyboardInterrupt):
            workbench.back_up(window)
    assert all(_status(workbench, point).covered for point in points)

    workbench.back_up(window)

    assert workbench.ledger.done({topic}) == {window: {topic}}
    assert workbench.ledger.increments_of(window) == []
    assert offsets(stored(workbench, topic)) == [*range(21)]
    assert not workbench.ledger.damaged()
    assert all(_status(workbench, point).covered for point in (*points, last))


@pytest.mark.parametrize("cleaner", ["the next window", "expire"])
def test_increments_that_a_killed_run_left_are_no_damage_and_go(
    workbench: Workbench, window: Window, cleaner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = workbench.topic("orders", partitions=2)
    for count in (7, 9):
        write(workbench, topic, count)
        point = _increment(workbench, window)
    with monkeypatch.context() as patch:
        patch.setattr(IncrementMerger, "drop_superseded", _killed())
        with pytest.raises(KeyboardInterrupt):
            workbench.back_up(window)
    settings = replace(workbench.application_settings, keep=KeepSettings(all="0s", minimum=1))
    assert workbench.ledger.increments_of(window)
    assert VerifyJob(settings, full=True, record=False, settle_s=0).run().damages == ()

    if cleaner == "expire":
        ExpireJob(settings, run_id="one").run()
    else:
        later = Window(window.end_ms, window.end_ms + HOUR_MS, "x")
        workbench.windows.append(later)
        workbench.back_up(later)

    assert workbench.ledger.increments_of(window) == []
    there = file_actions(workbench.records_path)["window"].to_pylist()
    assert not [key for key in there if SpanKey.of(key).kind is SpanKind.INCREMENT]
    assert _status(workbench, point).covered
    assert VerifyJob(settings, full=True, record=False, settle_s=0).run().damages == ()


def test_an_increment_whose_row_is_gone_is_damage(workbench: Workbench, window: Window) -> None:
    topic = workbench.topic("orders")
    for count in (7, 9):
        write(workbench, topic, count)
        _increment(workbench, window)
    repo = Repository.open(workbench.application_settings)
    with repo.writing(Lock.APPLICATION, purpose="test", wait_s=10) as lock:
        last = workbench.ledger.increments_of(window)[-1]
        workbench.ledger.keep_increments(window, [last], lock)
    found = VerifyJob(workbench.application_settings, record=False, settle_s=0).run()
    assert [damage.topic for damage in found.errors] == [topic]


def _killed() -> Callable[..., None]:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    return killed


def test_what_a_recreated_topic_held_stays(workbench: Workbench, window: Window) -> None:
    topic, other = workbench.topic("orders"), workbench.topic("other")
    write(workbench, topic, 10)
    write(workbench, other, 3)
    before = _increment(workbench, window)
    workbench.recreate(topic)
    write(workbench, topic, 4)
    after = _increment(workbench, window)
    backups = workbench.back_up(window)
    red = {name for name, verdict in workbench.verdicts(backups).items() if not verdict.passed}
    assert ("w", topic, "no_source_loss") in red
    assert all(_status(workbench, point).covered for point in (before, after))
    assert offsets(stored(workbench, topic, {"w"})) == [*range(4)]
    (left,) = workbench.ledger.increments_of(window)
    assert (left.result.plan.start, left.result.plan.end) == (0, 10)
    workbench.back_up(window)
    assert all(_status(workbench, point).covered for point in (before, after))


def test_processed_records_of_a_repartition_topic_may_go(
    workbench: Workbench, window: Window
) -> None:
    topic = workbench.topic("part", role=TopicRole.REPARTITION)
    write(workbench, topic, 10)
    _increment(workbench, window)
    workbench.delete_records(topic, 8)
    write(workbench, topic, 5)
    _increment(workbench, window)
    backups = workbench.back_up(window)
    (span,) = backups[0].topics[0].spans
    assert (span.plan.start, span.plan.end, span.content.records) == (0, 15, 15)
    assert not span.unaccounted


def test_records_that_retention_takes_between_increments_are_lost_and_told(
    workbench: Workbench, window: Window
) -> None:
    topic = workbench.topic("orders")
    write(workbench, topic, 10)
    _increment(workbench, window)
    write(workbench, topic, 10)
    workbench.delete_records(topic, 15)
    workbench.take_point()
    backups = workbench.back_up(window)
    (span,) = backups[0].topics[0].spans
    assert [(g.cause, g.start, g.end) for g in span.gaps] == [(GapCause.RETENTION, 10, 15)]
    assert offsets(stored(workbench, topic)) == [*range(10), *range(15, 20)]
    assert not workbench.verdicts(backups)["w", topic, "no_source_loss"].passed


def test_increments_begin_where_a_window_without_a_point_is_ended_late(
    workbench: Workbench, window: Window
) -> None:
    """The late point lies in the open window, behind a point that was taken in it before."""
    topic = workbench.topic("orders")
    closed = Window(window.start_ms - HOUR_MS, window.start_ms, "v")
    workbench.windows.insert(0, closed)
    write(workbench, topic, 10)
    early = workbench.take_point()
    write(workbench, topic, 10)
    assert workbench.run().increment(window, newest_closed=closed) is None
    late = workbench.points()[-1]
    assert (late.closes_window_end_ms, early.id) == (closed.end_ms, workbench.points()[0].id)
    write(workbench, topic, 10)
    point = workbench.take_point()
    assert workbench.run().increment(window, newest_closed=closed) is not None
    assert _ends(workbench, window) == [(20, 30)]
    workbench.back_up(closed)
    assert offsets(stored(workbench, topic, {"v"})) == [*range(20)]
    assert all(_status(workbench, one).covered for one in (late, point))
    workbench.back_up(window)
    assert offsets(stored(workbench, topic)) == [*range(30)]


def test_points_stay_when_a_topic_vanishes_later_in_their_window(
    workbench: Workbench, window: Window
) -> None:
    """What increments held before a topic was recreated is stored when the window closes."""
    topic = workbench.topic("orders")
    write(workbench, topic, 10)
    early = _increment(workbench, window)
    write(workbench, topic, 5)
    lost = workbench.take_point()
    workbench.delete(topic)
    backups = workbench.back_up(window)
    assert _status(workbench, early).covered
    assert not _status(workbench, lost).covered
    (entry,) = workbench.ledger.entries()
    assert (entry.result.plan.start, entry.result.plan.end) == (0, 15)
    assert entry.result.content.records == 10
    assert [gap.cause for gap in entry.result.losses] == [GapCause.TOPIC_DELETED]
    assert not workbench.verdicts(backups)[window.key, topic, "no_source_loss"].passed
