"""What Kafka no longer gives is told exactly, and never spoils the rest or what is stored."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.commits import SpanReader
from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.model.spans import Gap, GapCause
from tests.backup.reading import consume, offsets, stored
from tests.backup.writing import producer, send, write
from tests.streams.workbench import Workbench
from tests.timing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

LOSS, CHANGED = "no_source_loss", "topic_unchanged"


def red(workbench: Workbench, backups: list[WindowBackup]) -> dict[tuple[str, str, str], str]:
    """Failed checks by (window, topic, check), with what they say."""
    return {
        key: verdict.explanation
        for key, verdict in workbench.verdicts(backups).items()
        if not verdict.passed
    }


def test_retention_before_and_between_backups(workbench: Workbench) -> None:
    topic, other = workbench.topic("short", partitions=2), workbench.topic("other")
    for name, partition in ((topic, 0), (topic, 1), (other, 0)):
        write(workbench, name, 10, partition=partition)
    first = workbench.close_window()
    workbench.delete_records(topic, 4)
    backups = workbench.back_up(first)
    lost = red(workbench, backups)
    assert set(lost) == {(first.key, topic, LOSS)}
    assert f"{topic}-0: offsets 0 to 3 (retention)" in lost[first.key, topic, LOSS]
    assert f"{topic}-1" not in lost[first.key, topic, LOSS]
    kept = {name: stored(workbench, name) for name in (topic, other)}
    assert offsets(kept[topic]) == [*range(4, 10)]
    assert offsets(kept[topic], 1) == offsets(kept[other]) == [*range(10)]

    for name in (topic, other):
        write(workbench, name, 10)
    second = workbench.close_window()
    workbench.delete_records(topic, 15)
    lost = red(workbench, workbench.back_up(second))
    assert set(lost) == {(second.key, topic, LOSS)}
    assert f"{topic}-0: offsets 10 to 14 (retention)" in lost[second.key, topic, LOSS]
    assert offsets(stored(workbench, topic, {second.key})) == [*range(15, 20)]

    entries = workbench.ledger.entries(windows={first.key}, topics={topic})
    again = workbench.back_up(first)  # Kafka has lost more of it since
    assert {name: stored(workbench, name, {first.key}) for name in (topic, other)} == kept
    assert [topic.spans[0].kept for topic in again[0].topics] == [False, True]  # other, short
    assert set(red(workbench, again)) == {(first.key, topic, LOSS)}
    assert workbench.ledger.entries(windows={first.key}, topics={topic}) == entries


@pytest.mark.parametrize("count", [5, 10, 25], ids=["fewer", "equal", "more"])
def test_recreated_topic(workbench: Workbench, count: int) -> None:
    topic, other = workbench.topic("anew"), workbench.topic("other")
    write(workbench, topic, 10)
    first = workbench.close_window()
    workbench.back_up(first)
    before = stored(workbench, topic)
    write(workbench, topic, 3)
    workbench.recreate(topic)
    write(workbench, topic, count)
    write(workbench, other, 1)
    second = workbench.close_window()

    lost = red(workbench, workbench.back_up(second))

    assert set(lost) == {(second.key, topic, LOSS), (second.key, topic, CHANGED)}
    assert f"{topic}-0: from offset 10 on, end unknown (topic_rec" in lost[second.key, topic, LOSS]
    assert "deleted and recreated" in lost[second.key, topic, CHANGED]
    new_life = consume(workbench.bootstrap_servers, topic)
    assert stored(workbench, topic, {second.key}) == new_life
    assert offsets(new_life) == [*range(count)]
    again = workbench.back_up(first, second)
    assert stored(workbench, topic, {first.key}) == before
    assert stored(workbench, topic, {second.key}) == new_life
    assert {
        key: text for key, text in red(workbench, again).items() if key[0] == second.key
    } == lost
    assert (first.key, topic, LOSS) not in red(workbench, again)


def test_recreated_between_the_end_of_a_window_and_its_backup(workbench: Workbench) -> None:
    topic, shrunk = workbench.topic("late"), workbench.topic("shrunk", partitions=2)
    write(workbench, topic, 10)
    write(workbench, shrunk, 4, partition=1)
    first = workbench.close_window()
    workbench.recreate(topic)
    workbench.recreate(shrunk)
    write(workbench, topic, 12)
    second = workbench.close_window()
    lost = red(workbench, workbench.back_up(first, second))
    every = {
        (w.key, t, c) for w in (first, second) for t in (topic, shrunk) for c in (LOSS, CHANGED)
    }
    assert set(lost) == every
    assert f"{topic}-0: offsets 0 to 9 (topic_recreated)" in lost[first.key, topic, LOSS]
    assert f"{shrunk}-1: offsets 0 to 3 (topic_recreated)" in lost[first.key, shrunk, LOSS]
    assert f"{shrunk}-1: from offset 4 on" in lost[second.key, shrunk, LOSS]
    assert offsets(stored(workbench, topic, {first.key})) == []
    assert offsets(stored(workbench, topic, {second.key})) == [*range(12)]


def test_deleted_for_good_while_others_go_on(workbench: Workbench) -> None:
    topic, other = workbench.topic("gone"), workbench.topic("other")
    lost: dict[str, dict[tuple[str, str, str], str]] = {}
    for step in range(4):
        if step == 2:
            workbench.delete(topic)
        elif step < 2:
            write(workbench, topic, 10)
        write(workbench, other, 10)
        workbench.close_window()
        if step != 1:  # the second is backed up after the deletion
            todo = [w for w in workbench.windows if w.key not in lost]
            for backup in workbench.back_up(*todo):
                lost[backup.window.key] = red(workbench, [backup])
    first, second, third, fourth = (window.key for window in workbench.windows)
    assert lost[first] == {}
    assert set(lost[second]) == {(second, topic, LOSS), (second, topic, CHANGED)}
    assert f"{topic}-0: offsets 10 to 19 (topic_deleted)" in lost[second][second, topic, LOSS]
    assert set(lost[third]) == {(third, topic, LOSS), (third, topic, CHANGED)}
    assert (
        f"{topic}-0: from offset 20 on, end unknown (topic_deleted"
        in lost[third][third, topic, LOSS]
    )
    assert set(lost[fourth]) == {(fourth, topic, CHANGED)}
    assert "gone" in lost[fourth][fourth, topic, CHANGED]
    assert offsets(stored(workbench, topic)) == [*range(10)]
    assert offsets(stored(workbench, other)) == [*range(40)]
    done = {w.key: topics for w, topics in workbench.ledger.done({topic, other}).items()}
    assert done == {key: {topic, other} for key in (first, second, third, fourth)}
    assert set(red(workbench, workbench.back_up(*workbench.windows[2:]))) == {
        *lost[third], *lost[fourth]
    }  # fmt: skip

    workbench.recreate(topic)
    write(workbench, topic, 5)
    fifth = workbench.close_window()
    assert set(red(workbench, workbench.back_up(fifth))) == {(fifth.key, topic, CHANGED)}
    assert offsets(stored(workbench, topic, {fifth.key})) == [*range(5)]


def test_purged_repartition_records_are_no_loss(workbench: Workbench) -> None:
    topic = workbench.topic("by-customer-repartition", role=TopicRole.REPARTITION)
    write(workbench, topic, 20)
    group = {
        "bootstrap.servers": workbench.bootstrap_servers, "group.id": workbench.application_id
    }  # fmt: skip
    member = Consumer(group)
    member.commit(offsets=[TopicPartition(topic, 0, 12)], asynchronous=False)
    window = workbench.close_window()
    workbench.delete_records(topic, 12)
    backups = workbench.back_up(window)
    assert red(workbench, backups) == {}
    assert backups[0].topics[0].spans[0].gaps == (Gap(GapCause.PURGED, 0, 12, 12),)
    assert offsets(stored(workbench, topic)) == [*range(12, 20)]

    write(workbench, topic, 10)
    member.commit(offsets=[TopicPartition(topic, 0, 22)], asynchronous=False)
    second = workbench.close_window()
    workbench.delete_records(topic, 25)
    lost = red(workbench, workbench.back_up(window, second))
    assert set(lost) == {(second.key, topic, LOSS)}
    assert f"{topic}-0: offsets 22 to 24 (retention)" in lost[second.key, topic, LOSS]
    assert offsets(stored(workbench, topic)) == [*range(12, 20), *range(25, 30)]
    member.close()


def test_what_kafka_still_has_is_written_again_identically(workbench: Workbench) -> None:
    topic = workbench.topic("again")
    write(workbench, topic, 20)
    window = workbench.close_window()
    (before,) = workbench.back_up(window)
    records = stored(workbench, topic)
    (after,) = workbench.back_up(window)
    assert stored(workbench, topic) == records == consume(workbench.bootstrap_servers, topic)
    versions = before.topics[0].delta_version, after.topics[0].delta_version
    assert versions[0] is not None
    assert versions[1] == versions[0] + 1
    assert not after.topics[0].spans[0].kept
    assert after.topics[0].spans[0].gaps == ()


def test_compaction_is_explained_and_takes_nothing_from_what_is_stored(
    workbench: Workbench,
) -> None:
    configs = {
        "cleanup.policy": "compact",
        "segment.ms": "200",
        "min.cleanable.dirty.ratio": "0.001",
        "max.compaction.lag.ms": "200",
    }
    topic = workbench.topic("changelog", role=TopicRole.CHANGELOG, configs=configs)
    late = workbench.topic("changelog-late", role=TopicRole.CHANGELOG, configs=configs)
    for name in (topic, late):
        sender = producer(workbench.bootstrap_servers)
        for _ in range(3):
            send(sender, name, b"a", b"b", b"c")
    window = workbench.close_window()
    workbench.back_up(window, topics=[topic])
    before = stored(workbench, topic)
    assert offsets(before) == [*range(9)]
    time.sleep(0.3)
    for name in (topic, late):
        send(producer(workbench.bootstrap_servers), name, b"d")
        assert eventually(lambda name=name: len(consume(workbench.bootstrap_servers, name)) == 4)

    backups = workbench.back_up(window)

    assert set(red(workbench, backups)) == {
        (window.key, name, "compaction_cannot_outrun_backup") for name in (topic, late)
    }
    assert stored(workbench, topic) == before
    assert offsets(stored(workbench, late)) == [6, 7, 8]
    spans = {topic.topic: topic.spans[0] for topic in backups[0].topics}
    assert spans[topic].kept
    assert not spans[late].kept
    assert spans[late].gaps == (Gap(GapCause.COMPACTED, 0, 9, 6),)
    # What was read in time was contiguous. The point of the window is proved all the same: sealed.
    assert [spans[name].first_hole for name in (topic, late)] == [None, 0]
    assert all(spans[name].contiguity_known for name in (topic, late))
    assert [b.unproven_points for b in backups[0].topics] == [(), ()]


@pytest.mark.usefixtures("on_spark")
class TestWhileSparkReads:
    """The log moves between the plan and the read, or under the read."""

    @pytest.fixture
    def before_write(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
        """Have something done once, just before Spark reads."""
        write_spans = SpanReader._write

        def install(action: Callable[[], None]) -> None:
            actions = [action]

            def write(*arguments):
                if actions:
                    actions.pop()()
                return write_spans(*arguments)

            monkeypatch.setattr(SpanReader, "_write", write)

        return install

    def test_a_log_start_that_moves_leads_to_a_new_plan(self, workbench, before_write) -> None:
        topic, other = workbench.topic("moving"), workbench.topic("other")
        for name in (topic, other):
            write(workbench, name, 10)
        first = workbench.close_window()
        workbench.back_up(first)
        write(workbench, topic, 10)
        second = workbench.close_window()
        before_write(lambda: workbench.delete_records(topic, 13))
        lost = red(workbench, workbench.back_up(first, second))
        assert set(lost) == {(second.key, topic, LOSS)}
        assert f"{topic}-0: offsets 10 to 12 (retention)" in lost[second.key, topic, LOSS]
        assert offsets(stored(workbench, topic, {first.key})) == [*range(10)]
        assert offsets(stored(workbench, topic, {second.key})) == [*range(13, 20)]
        assert offsets(stored(workbench, other)) == [*range(10)]

    def test_a_topic_recreated_then_is_not_taken_for_the_old_one(
        self, workbench, before_write
    ) -> None:
        topic = workbench.topic("swapped")
        write(workbench, topic, 10)
        window = workbench.close_window()

        def recreate() -> None:
            workbench.recreate(topic)
            write(workbench, topic, 30)

        before_write(recreate)
        lost = red(workbench, workbench.back_up(window))
        assert f"{topic}-0: offsets 0 to 9 (topic_recreated)" in lost[window.key, topic, LOSS]
        assert stored(workbench, topic) == []
