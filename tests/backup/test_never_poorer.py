"""What is stored is replaced only by a reading that has every offset of it."""

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.backup.accounting import Accountant
from kstreams_assets.backup.increments import IncrementMerger
from kstreams_assets.backup.planner import TopicPlan
from kstreams_assets.backup.replacement import files_that_stay, poorer_partitions
from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.files import NewFile
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.model.spans import SpanContent, SpanResult, Window
from kstreams_assets.model.tables import Lock
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.records import file_actions
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import BackupSettings
from tests.backup.reading import newest_files, offsets, stored
from tests.backup.record_files import write_records
from tests.backup.samples import span, window
from tests.backup.writing import open_transaction, send, write
from tests.streams.workbench import NoSpark, Workbench

HOUR_MS = 3_600_000


@pytest.fixture
def opened(workbench: Workbench) -> Window:
    """A window that is open; a run here needs no Spark, and waits no second."""
    workbench.spark = NoSpark()
    workbench.settings = BackupSettings(stable_wait_seconds=0.5)
    start_ms = time.time_ns() // 1_000_000 - 1
    workbench.windows.append(Window(start_ms, start_ms + HOUR_MS, "w"))
    return workbench.windows[0]


def _increment(bench: Workbench) -> None:
    bench.take_point()
    assert bench.run().increment(bench.windows[0], newest_closed=None) is not None


def _closed(bench: Workbench) -> Window:
    """The window as it ends now, behind a point."""
    start_ms = bench.windows[0].start_ms
    bench.windows[:] = [Window(start_ms, bench.take_point().taken_at_ms + 1, "w")]
    return bench.windows[0]


def _hanging(bench: Workbench, topic: str) -> Producer:
    """A transaction of another application that keeps what comes after it from being read."""
    foreign = open_transaction(bench)
    send(foreign, topic, b"x")
    return foreign


def _red(bench: Workbench, backups: list[WindowBackup], topic: str) -> set[str]:
    return {
        check
        for (_, subject, check), verdict in bench.verdicts(backups).items()
        if subject == topic and not verdict.passed
    }


@pytest.mark.kafka
@pytest.mark.parametrize("readable", ["in the same run", "in the next run"])
def test_increments_of_a_topic_that_could_not_be_read_at_the_end_stay(
    workbench: Workbench, opened: Window, readable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, alerts = workbench.topic("orders"), workbench.topic("alerts", role=TopicRole.OUTPUT)
    for topic in (orders, alerts):
        write(workbench, topic, 10)
    _increment(workbench)
    foreign = _hanging(workbench, alerts)
    write(workbench, orders, 5)
    closed = _closed(workbench)

    def ended() -> None:
        foreign.commit_transaction()
        workbench.delete_records(alerts, 8)

    if readable == "in the same run":
        close = IncrementMerger.close

        def closed_then_ended(merger: IncrementMerger, window: Window) -> list[WindowBackup]:
            done = close(merger, window)
            ended()
            return done

        monkeypatch.setattr(IncrementMerger, "close", closed_then_ended)
    else:
        backups = workbench.back_up(closed)
        assert _red(workbench, backups, alerts) == {"every_offset_accounted"}
        assert offsets(stored(workbench, alerts)) == [*range(10)]
        assert workbench.ledger.done({orders, alerts}) == {closed: {orders}}
        ended()

    backups = workbench.back_up(closed)

    assert _red(workbench, backups, alerts) == set()
    assert offsets(stored(workbench, alerts)) == [*range(11)]
    assert offsets(stored(workbench, orders)) == [*range(15)]
    assert workbench.ledger.done({orders, alerts}) == {closed: {orders, alerts}}
    assert workbench.ledger.increments_of(closed) == []
    assert not workbench.ledger.damaged()


@pytest.mark.kafka
def test_a_topic_that_could_not_be_read_at_first_begins_with_the_window(
    workbench: Workbench, opened: Window
) -> None:
    orders, alerts = workbench.topic("orders"), workbench.topic("alerts", role=TopicRole.OUTPUT)
    foreign = _hanging(workbench, alerts)
    write(workbench, orders, 3)
    _increment(workbench)
    write(workbench, alerts, 3)
    write(workbench, orders, 3)
    _increment(workbench)
    foreign.commit_transaction()
    for _ in range(2):
        write(workbench, alerts, 2)
        write(workbench, orders, 3)
        _increment(workbench)
    assert offsets(stored(workbench, alerts)) == [*range(4), *range(5, 9)]  # 4: the marker
    backups = workbench.back_up(_closed(workbench))
    assert _red(workbench, backups, alerts) == _red(workbench, backups, orders) == set()
    assert offsets(stored(workbench, alerts)) == [*range(4), *range(5, 9)]
    assert offsets(stored(workbench, orders)) == [*range(12)]


@pytest.mark.kafka
def test_an_application_of_which_nothing_can_be_read_ends_its_run(
    workbench: Workbench, opened: Window
) -> None:
    alerts = workbench.topic("alerts", role=TopicRole.OUTPUT)
    write(workbench, alerts, 3)
    _increment(workbench)
    _hanging(workbench, alerts)
    backups = workbench.back_up(_closed(workbench))
    assert [one.topic for backup in backups for one in backup.unread] == [alerts]
    assert offsets(stored(workbench, alerts)) == [*range(3)]


@pytest.mark.kafka
@pytest.mark.parametrize("lost", [0, 4])
def test_increments_with_offsets_missing_between_them(
    workbench: Workbench, opened: Window, lost: int
) -> None:
    topic = workbench.topic("orders")
    for _ in range(3):
        write(workbench, topic, 5)
        _increment(workbench)
    repo = Repository.open(workbench.application_settings)
    with repo.writing(Lock.APPLICATION, purpose="test", wait_s=10) as lock:
        first, _, last = workbench.ledger.increments_of(opened)
        workbench.ledger.keep_increments(opened, [first, last], lock)
    if lost:
        workbench.delete_records(topic, lost)

    backups = workbench.back_up(_closed(workbench))

    assert _red(workbench, backups, topic) == ({"every_offset_accounted"} if lost else set())
    rows = workbench.ledger.stored_spans({topic})
    held = sorted((one.start, one.end) for one in rows)
    assert held == ([(0, 5), (10, 15), (15, 15)] if lost else [(0, 15)])
    assert {*offsets(stored(workbench, topic))} >= {*range(5), *range(10, 15)}


@pytest.mark.kafka
def test_a_damaged_partition_is_read_again_beside_one_that_kafka_lost(
    workbench: Workbench,
) -> None:
    workbench.spark = NoSpark()
    topic = workbench.topic("orders", partitions=3)
    for partition in range(3):
        write(workbench, topic, 10, partition=partition)
    closed = workbench.close_window()
    workbench.back_up(closed)
    before = workbench.ledger.entries()
    damaged = next(
        file
        for file in newest_files(workbench.records_path, topic)  # pyright: ignore[reportArgumentType]
        if file.name in {Path(w.path).name for w in before[0].result.content.written}
    )
    damaged.unlink()
    workbench.delete_records(topic, 6, partition=1)

    backups = workbench.back_up(closed)

    assert [one.kept for one in backups[0].topics[0].spans] == [False, True, True]
    for partition in range(3):
        assert offsets(stored(workbench, topic), partition) == [*range(10)]
    assert not workbench.ledger.damaged()
    assert workbench.ledger.entries()[1:] == before[1:]
    assert file_actions(workbench.records_path).num_rows == 3


@pytest.mark.kafka
def test_what_kafka_loses_while_it_is_read_again_stays_stored(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    workbench.spark = NoSpark()
    topic = workbench.topic("orders", partitions=2)
    for partition in range(2):
        write(workbench, topic, 10, partition=partition)
    closed = workbench.close_window()
    workbench.back_up(closed)
    look = Accountant.gone_since

    def looked(accountant: Accountant, plan: TopicPlan) -> frozenset[TopicPartitionId]:
        gone = look(accountant, plan)
        workbench.delete_records(topic, 6, partition=1)
        return gone

    monkeypatch.setattr(Accountant, "gone_since", looked)
    workbench.back_up(closed)
    for partition in range(2):
        assert offsets(stored(workbench, topic), partition) == [*range(10)]
    assert not workbench.ledger.damaged()


P0, P1 = TopicPartitionId("t", 0), TopicPartitionId("t", 1)


def _entry(partition: int, records: int) -> LedgerEntry:
    plan = span(0, 10, partition=partition)
    result = SpanResult(plan, SpanContent(records=records), ())
    return LedgerEntry("shop", result, None, None, "run", 0, None)


def _new(path: Path, partition: int, found: list[int]) -> NewFile:
    """A file that no commit refers to."""
    write_records(path, "new", TopicPartitionId("t", partition), found)
    rows = file_actions(path).to_pylist()
    row = next(r for r in rows if (r["window"], r["partition"]) == ("new", partition))
    stats = {
        "numRecords": len(found),
        "minValues": {"offset": min(found)},
        "maxValues": {"offset": max(found)},
    }
    values = {"window": window(0).key, "topic": "t"}
    return NewFile(row["path"], 1, "", stats, 0, values, {"partition": partition})


@pytest.mark.parametrize(
    ("held", "read", "poorer"),
    [
        ([0, 1, 2], [0, 1, 2], False),
        ([0, 1, 2], [0, 1, 2, 5], False),
        ([0, 1, 2], [1, 2], True),
        ([0, 1, 2], [1, 2, 5], True),  # as many, but others
        ([0, 1, 2], [1, 2, 5, 6, 7], True),
        ([0, 1, 2], [], True),
    ],
)
@pytest.mark.parametrize("damaged", [False, True])
def test_offset_by_offset(
    tmp_path: Path, held: list[int], read: list[int], poorer: bool, damaged: bool
) -> None:
    repo = Repository(Warehouse(tmp_path), "shop")
    path = tmp_path / "records" / "shop"
    write_records(path, window(0).key, P0, held)
    write_records(path, window(0).key, P1, [4])
    if damaged:
        rows = file_actions(path).to_pylist()
        file = next(path / row["path"] for row in rows if row["partition"] == 0)
        file.write_bytes(b"PAR1")
    spans = (span(0, 10), span(0, 10, partition=1))
    entries = (_entry(0, len(held)), _entry(1, 1))
    topic = TopicPlan(window(0), AppTopic("t", TopicRoles()), spans, entries)
    files = [_new(path, 1, [4])]
    if read:
        files.append(_new(path, 0, read))
    assert poorer_partitions(repo, topic, files) == ({P0} if poorer else set())
    rows = [r for r in file_actions(path).to_pylist() if r["window"] == window(0).key]
    name = next(row["path"] for row in rows if row["partition"] == 0)
    assert files_that_stay(repo, [topic.without({P0})]) == {name}
    assert files_that_stay(repo, [topic]) == set()
