"""Backups against a real broker and a real Spark: which window holds which record."""

import time
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.backup.run import BackupRun
from kstreams_assets.checks import Severity
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.spans import Window
from tests.backup.reading import consume, offsets, stored
from tests.backup.writing import RawRecord, write, write_raw
from tests.streams.workbench import NoSpark, Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.on_store]

DAY_MS = 86_400_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def spans(*backups: WindowBackup) -> dict[tuple[str, int], tuple[int, int]]:
    """(window, partition) -> (start, end), of windows with one topic."""
    return {
        (backup.window.key, span.partition.partition): (span.plan.start, span.plan.end)
        for backup in backups
        for span in backup.topics[0].spans
    }


@pytest.mark.usefixtures("on_spark")
def test_windows_tile_the_log_in_whatever_order_they_are_backed_up(workbench: Workbench) -> None:
    topic = workbench.topic("orders", partitions=2)
    for _ in range(4):
        for partition in (0, 1):
            write(workbench, topic, 25, partition=partition)
        workbench.close_window()
    first, second, third, fourth = workbench.windows

    one_by_one = [*workbench.back_up(third), *workbench.back_up(first)]
    as_a_range = workbench.back_up(second, fourth)

    assert spans(*one_by_one, *as_a_range) == {
        (window.key, partition): (25 * number, 25 * number + 25)
        for number, window in enumerate(workbench.windows)
        for partition in (0, 1)
    }
    for number, window in enumerate(workbench.windows):
        records = stored(workbench, topic, {window.key})
        for partition in (0, 1):
            assert offsets(records, partition) == [*range(25 * number, 25 * number + 25)]
    assert stored(workbench, topic) == consume(workbench.bootstrap_servers, topic, 2)
    assert all(verdict.passed for verdict in workbench.verdicts(as_a_range).values())
    assert spans(*workbench.back_up()) == spans(*one_by_one, *as_a_range)


@pytest.mark.usefixtures("on_spark")
def test_an_empty_window_is_recorded_as_empty_without_spark(workbench: Workbench) -> None:
    topic = workbench.topic("silent", partitions=2)
    window = workbench.close_window()
    workbench.spark = NoSpark()
    backups = workbench.back_up(window)
    assert spans(*backups) == {(window.key, 0): (0, 0), (window.key, 1): (0, 0)}
    assert all(verdict.passed for verdict in workbench.verdicts(backups).values())
    assert workbench.ledger.done({topic}) == {window: {topic}}
    assert [e.result.content.records for e in workbench.ledger.entries()] == [0, 0]
    assert not workbench.records_path.exists()


@pytest.mark.usefixtures("on_spark")
def test_a_window_before_the_first_point_is_empty_and_done(workbench: Workbench) -> None:
    topic = workbench.topic("early")
    write(workbench, topic, 5)
    end_ms = now_ms()
    before = Window(end_ms - 1000, end_ms, "before")
    workbench.windows.append(before)
    time.sleep(0.01)
    window = workbench.close_window()
    session, workbench.spark = workbench.spark, NoSpark()
    backups = workbench.back_up(before)
    assert spans(*backups) == {}
    assert workbench.ledger.done({topic}) == {before: {topic}}
    assert workbench.ledger.entries() == []
    workbench.spark = session
    assert spans(*workbench.back_up(window)) == {(window.key, 0): (0, 5)}


def test_event_time_decides_nothing(workbench: Workbench) -> None:
    any_time = {"message.timestamp.after.max.ms": str(2**62), "retention.ms": "-1"}
    topic = workbench.topic("late", configs=any_time)
    times = (0, 2 * DAY_MS, -2 * DAY_MS)
    for _ in range(2):
        records = [RawRecord(now_ms() + shift, b"%d" % shift) for shift in times]
        write_raw(workbench.bootstrap_servers, topic, 0, records)
        workbench.close_window()
    workbench.back_up()
    for number, window in enumerate(workbench.windows):
        records = stored(workbench, topic, {window.key})
        assert offsets(records) == [3 * number, 3 * number + 1, 3 * number + 2]
        assert {record.timestamp_ms < window.start_ms for record in records} == {True, False}
        assert {record.timestamp_ms > window.end_ms for record in records} == {True, False}


def test_a_window_without_a_point_is_empty_and_its_records_are_in_the_next(
    workbench: Workbench,
) -> None:
    topic = workbench.topic("pause")
    write(workbench, topic, 4)
    first = workbench.close_window()
    write(workbench, topic, 3)
    silent = Window(first.end_ms, now_ms(), "2026-11-01-13:30")
    workbench.windows.append(silent)
    time.sleep(0.01)
    write(workbench, topic, 2)
    third = workbench.close_window()
    backups = workbench.back_up()
    expected = {(first.key, 0): (0, 4), (silent.key, 0): (4, 4), (third.key, 0): (4, 9)}
    assert spans(*backups) == expected
    warnings = {key for key, verdict in workbench.verdicts(backups).items() if not verdict.passed}
    assert warnings == {
        (silent.key, topic, check) for check in ("every_offset_accounted", "no_source_loss")
    }
    assert not any(verdict.is_red for verdict in workbench.verdicts(backups).values())
    assert offsets(stored(workbench, topic, {third.key})) == [*range(4, 9)]


def test_the_newest_closed_window_gets_a_point_when_it_has_none(workbench: Workbench) -> None:
    topic = workbench.topic("late-point")
    write(workbench, topic, 4)
    first = workbench.close_window()
    write(workbench, topic, 3)
    # a key as Dagster makes them, whose folder name Delta's log escapes twice
    newest = Window(first.end_ms, now_ms(), "2026-11-01-13:30")
    time.sleep(0.01)
    write(workbench, topic, 2)
    workbench.take_point()  # in the next window, and overtaken by the late one
    write(workbench, topic, 1)
    backups: list[WindowBackup] = []
    for _ in range(2):  # the second time it has one
        backups = workbench.run().execute([first, newest], newest_closed=newest)
        assert spans(*backups) == {(first.key, 0): (0, 4), (newest.key, 0): (4, 10)}
    points = workbench.points()
    assert [point.closes_window_end_ms for point in points] == [
        *(None, None, newest.end_ms),  # and one at the end of each run
        *(None, None),
    ]
    assert backups[1].recovery_point_id == points[2].id
    assert offsets(stored(workbench, topic, {newest.key})) == [*range(4, 10)]

    write(workbench, topic, 5)
    workbench.windows.append(newest)
    following = workbench.close_window()
    after = Window(following.end_ms, following.end_ms + 1000, "after")
    backups = workbench.back_up(after, following)
    assert spans(*backups) == {(following.key, 0): (10, 15), (after.key, 0): (15, 15)}
    assert stored(workbench, topic) == consume(workbench.bootstrap_servers, topic)


def test_a_new_partition_begins_in_the_window_that_first_saw_it(workbench: Workbench) -> None:
    topic = workbench.topic("growing")
    write(workbench, topic, 4)
    first = workbench.close_window()
    admin = AdminClient({"bootstrap.servers": workbench.bootstrap_servers})
    for future in admin.create_partitions([NewPartitions(topic, 2)]).values():
        future.result(20)
    write(workbench, topic, 3, partition=1)
    second = workbench.close_window()
    write(workbench, topic, 2, partition=1)
    third = workbench.close_window()
    backups = [*workbench.back_up(third), *workbench.back_up(first, second)]
    assert spans(*backups) == {
        (first.key, 0): (0, 4),
        (second.key, 0): (4, 4),
        (second.key, 1): (0, 3),
        (third.key, 0): (4, 4),
        (third.key, 1): (3, 5),
    }
    verdicts = workbench.verdicts(backups)
    failed = {key: verdict for key, verdict in verdicts.items() if not verdict.passed}
    assert set(failed) == {(second.key, topic, "topic_unchanged")}
    assert "partitions 1 -> 2" in failed[second.key, topic, "topic_unchanged"].explanation
    assert stored(workbench, topic) == consume(workbench.bootstrap_servers, topic, 2)


def test_the_first_window_begins_at_the_log_start_though_a_point_is_older(
    workbench: Workbench,
) -> None:
    """As after `recovery-points take` before the day that `windows.start` names."""
    topics = [workbench.topic("orders"), workbench.topic("store", role=TopicRole.CHANGELOG)]
    for topic in topics:
        write(workbench, topic, 30)
    workbench.take_point()
    time.sleep(0.01)
    workbench.windows.append(Window(now_ms(), now_ms() + 1, "first"))
    for topic in topics:
        write(workbench, topic, 5)
    second = workbench.close_window()
    backups = [*workbench.back_up(second), *workbench.back_up()]
    verdicts = workbench.verdicts(backups).values()
    assert all(v.passed for v in verdicts if v.severity is Severity.ERROR)
    for topic in topics:
        assert stored(workbench, topic) == consume(workbench.bootstrap_servers, topic)
        assert offsets(stored(workbench, topic, {"first"})) == [*range(30)]


def test_what_an_earlier_release_passed_over_is_red_until_a_window_takes_it_in(
    workbench: Workbench,
) -> None:
    topic = workbench.topic("orders")
    write(workbench, topic, 30)
    workbench.delete_records(topic, 10)
    taken = workbench.take_point()
    time.sleep(0.01)
    write(workbench, topic, 5)
    first = workbench.close_window()
    workbench.windows[0] = first = replace(first, start_ms=taken.taken_at_ms + 1)
    BackupRun(replace(workbench.run().ctx, begins_ms=0)).execute([first], newest_closed=None)
    assert offsets(stored(workbench, topic)) == [*range(30, 35)]

    write(workbench, topic, 5)
    second = workbench.close_window()
    verdicts = workbench.verdicts(workbench.back_up(second))
    accounted = verdicts[second.key, topic, "every_offset_accounted"]
    assert not accounted.passed
    assert "offsets 10 to 29" in accounted.explanation

    earlier = Window(first.start_ms - 1000, first.start_ms, "earlier")
    workbench.windows.insert(0, earlier)
    backups = [*workbench.back_up(earlier), *workbench.back_up(second)]
    assert all(verdict.passed for verdict in workbench.verdicts(backups).values())
    assert offsets(stored(workbench, topic, {"earlier"})) == [*range(10, 30)]
    assert stored(workbench, topic) == consume(workbench.bootstrap_servers, topic)


def test_windows_of_another_length_over_the_same_time_are_refused(workbench: Workbench) -> None:
    workbench.topic("orders")
    first = workbench.close_window()
    workbench.back_up(first)
    longer = replace(first, end_ms=first.end_ms + 60_000, key="longer")
    with pytest.raises(ConfigurationError, match="longer overlaps window w0000"):
        workbench.back_up(longer)


def test_an_overtaken_point_bounds_no_window_in_whatever_order(workbench: Workbench) -> None:
    """A point taken late for a closed window stands further on than one of the next window."""
    topic = workbench.topic("overtaken")
    write(workbench, topic, 4)
    first = Window(now_ms() - 60_000, now_ms(), "first")
    time.sleep(0.01)
    workbench.take_point()  # in the second window, at 4
    write(workbench, topic, 3)
    workbench.take_point(closes_window_end_ms=first.end_ms)  # at 7
    second = Window(first.end_ms, now_ms(), "second")
    workbench.windows = [first, second]
    time.sleep(0.01)
    write(workbench, topic, 2)
    third = workbench.close_window()
    backups = [bench for window in (third, first, second) for bench in workbench.back_up(window)]
    assert spans(*backups) == {("first", 0): (0, 7), ("second", 0): (7, 7), (third.key, 0): (7, 9)}
    assert stored(workbench, topic) == consume(workbench.bootstrap_servers, topic)
