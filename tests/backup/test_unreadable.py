"""What nobody can read sets its topic apart: the others are backed up, and it is read again."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from kstreams_assets.kafka import raw_log
from kstreams_assets.kafka.channel import FetchAnswer
from kstreams_assets.model.spans import GapCause, SpanResult, Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.records import file_actions
from kstreams_assets.settings import BackupSettings
from tests.backup.reading import offsets, stored
from tests.backup.writing import write
from tests.streams.workbench import NoSpark, Workbench

pytestmark = [pytest.mark.kafka]


class Damage:
    """Changes what a broker answers about partitions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[TopicPartitionId, Callable[[FetchAnswer], FetchAnswer]] = {}
        self._asked: dict[int, deque[TopicPartitionId]] = {}
        self._send, self._receive = raw_log.send_fetch, raw_log.receive_fetch
        monkeypatch.setattr(raw_log, "send_fetch", self._sent)
        monkeypatch.setattr(raw_log, "receive_fetch", self._received)

    def _sent(self, channel: Any, partition: TopicPartitionId, *args: Any, **named: Any) -> None:
        self._asked.setdefault(id(channel), deque()).append(partition)
        self._send(channel, partition, *args, **named)

    def _received(self, channel: Any) -> FetchAnswer:
        partition = self._asked[id(channel)].popleft()
        answer = self._receive(channel)
        return self.of.get(partition, lambda same: same)(answer)


def corrupt(answer: FetchAnswer) -> FetchAnswer:
    """A byte of the last record is another."""
    data = bytearray(answer.records)
    if data:
        data[-2] ^= 0xFF
    return answer._replace(records=memoryview(data))


def unknown_format(answer: FetchAnswer) -> FetchAnswer:
    """The first batch has the format of another Kafka."""
    data = bytearray(answer.records)
    if data:
        data[16] = 7
    return answer._replace(records=memoryview(data))


def empty(answer: FetchAnswer) -> FetchAnswer:
    """As tiered storage answers that is slow."""
    return answer._replace(records=answer.records[:0])


def refused(answer: FetchAnswer) -> FetchAnswer:
    """The broker cannot read its log."""
    return answer._replace(error_code=2, records=answer.records[:0])


KINDS = (corrupt, unknown_format, empty, refused)


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> Damage:
    """Nothing is damaged yet."""
    return Damage(monkeypatch)


@pytest.fixture
def bench(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    """A run here needs no Spark, and gives up early."""
    monkeypatch.setattr(BackupSettings, "read_stall_s", 1.0)
    workbench.spark = NoSpark()
    workbench.settings = BackupSettings(scan_stall_seconds=2.0)
    return workbench


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_window(bench: Workbench, damage: Damage, kind: Any) -> None:
    orders, other = bench.topic("orders", partitions=2), bench.topic("other")
    for partition in (0, 1):
        write(bench, orders, 20, partition=partition)
    write(bench, other, 5)
    window = bench.close_window()
    damage.of[TopicPartitionId(orders, 1)] = kind

    backups = bench.back_up(window)

    red = {key[1:] for key, verdict in bench.verdicts(backups).items() if not verdict.passed}
    assert red == {(orders, "every_offset_accounted")}
    assert [one.topic for backup in backups for one in backup.unread] == [orders]
    assert len(stored(bench, other)) == 5
    assert offsets(stored(bench, orders), 0) == [*range(20)]
    assert offsets(stored(bench, orders), 1) == []
    (entry,) = [e for e in bench.ledger.entries() if e.result.gaps]
    assert [(g.cause, g.offsets) for g in entry.result.gaps] == [(GapCause.NOT_EXAMINED, 20)]
    assert bench.ledger.not_examined({orders, other}) == {window: {orders}}
    files = {row["path"] for row in file_actions(bench.records_path).to_pylist()}

    damage.of.clear()
    backups = bench.back_up(window)

    assert all(verdict.passed for verdict in bench.verdicts(backups).values())
    assert not backups[0].unread
    assert [offsets(stored(bench, orders), n) for n in (0, 1)] == [[*range(20)]] * 2
    assert bench.ledger.not_examined({orders, other}) == {}
    now = {row["path"] for row in file_actions(bench.records_path).to_pylist()}
    assert len({path for path in files & now if orders in path}) == 1  # it was not read again


@pytest.mark.parametrize("kind", [corrupt, empty])
def test_increments(bench: Workbench, damage: Damage, kind: Any) -> None:
    orders, other = bench.topic("orders", partitions=2), bench.topic("other")
    start_ms = time.time_ns() // 1_000_000 - 1
    window = Window(start_ms, start_ms + 3_600_000, "w")
    bench.windows.append(window)
    damage.of[TopicPartitionId(orders, 1)] = kind
    for _ in range(2):
        for partition in (0, 1):
            write(bench, orders, 10, partition=partition)
        write(bench, other, 5)
        bench.take_point()
        backup = bench.run().increment(window, newest_closed=None)
        assert backup is not None
        assert [one.topic for one in backup.unread] == [orders]
        assert {topic.topic for topic in backup.topics} == {other}
    assert len(stored(bench, other)) == 10

    damage.of.clear()
    bench.take_point()
    backup = bench.run().increment(window, newest_closed=None)

    assert backup is not None
    assert not backup.unread
    for partition in (0, 1):
        assert offsets(stored(bench, orders), partition) == [*range(20)]


def _held(result: SpanResult) -> tuple[object, ...]:
    plan = result.plan
    return (
        plan.partition,
        plan.start,
        plan.end,
        plan.read_start,
        result.content.records,
        result.gaps,
    )


def test_what_is_stored_is_not_replaced_by_less(bench: Workbench, damage: Damage) -> None:
    orders = bench.topic("orders", partitions=2)
    for partition in (0, 1):
        write(bench, orders, 20, partition=partition)
    window = bench.close_window()
    bench.back_up(window)
    before = [_held(entry.result) for entry in bench.ledger.entries()]
    damage.of[TopicPartitionId(orders, 1)] = corrupt

    bench.back_up(window)

    assert [_held(entry.result) for entry in bench.ledger.entries()] == before
    assert [offsets(stored(bench, orders), n) for n in (0, 1)] == [[*range(20)]] * 2
