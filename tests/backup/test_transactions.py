"""Only what was committed is backed up, each record in one window, every other offset explained."""

import itertools
import time

import pytest

from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.accounting import Accountant
from kstreams_assets.checks import Severity
from kstreams_assets.errors import RawReadTimeoutError
from kstreams_assets.kafka import raw_log
from kstreams_assets.kafka.channel import Channel, FetchAnswer
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.model.spans import Gap, GapCause, SpanResult
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.settings import BackupSettings
from tests.backup.reading import consume, offsets, stored
from tests.backup.writing import await_end, open_transaction, producer, send
from tests.streams.workbench import NoSpark, Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

MARKER, ABORTED = GapCause.TRANSACTION_MARKER, GapCause.ABORTED


def _gaps(span: SpanResult) -> dict[GapCause, int | None]:
    for gap in span.gaps:
        assert gap == Gap(gap.cause, span.plan.start, span.plan.end, gap.offsets)
    return {gap.cause: gap.offsets for gap in span.gaps}


@pytest.mark.usefixtures("on_spark")
def test_interleaved_transactions_of_several_producers(workbench: Workbench) -> None:
    topic = workbench.topic("tx", partitions=2)
    plain = producer(workbench.bootstrap_servers)
    good, bad, hanging = (open_transaction(workbench) for _ in range(3))
    for partition in (0, 1):  # offsets 0 to 3, markers 4 and 5
        send(good, topic, b"good 1", partition=partition)
        send(bad, topic, b"bad 1", partition=partition)
        send(plain, topic, b"plain 1", partition=partition)
        send(good, topic, b"good 2", partition=partition)
    good.commit_transaction(20)
    await_end(workbench, topic, 5, partitions=2)
    bad.abort_transaction(20)
    await_end(workbench, topic, 6, partitions=2)
    good.begin_transaction()
    for partition in (0, 1):  # 6 stays open, 7 and 8 lie behind it, marker 9
        send(hanging, topic, b"open", partition=partition)
        send(plain, topic, b"plain 2", partition=partition)
        send(good, topic, b"good 3", partition=partition)
    good.commit_transaction(20)
    await_end(workbench, topic, 10, partitions=2)
    workbench.close_window()
    first = workbench.back_up(workbench.windows[0])
    hanging.commit_transaction(20)  # marker 10
    await_end(workbench, topic, 11, partitions=2)
    workbench.close_window()
    hanging.begin_transaction()
    for partition in (0, 1):  # 11 is open, then aborted: marker 13
        send(hanging, topic, b"never", partition=partition)
        send(plain, topic, b"plain 3", partition=partition)
    workbench.close_window()
    hanging.abort_transaction(20)
    await_end(workbench, topic, 14, partitions=2)
    workbench.close_window()
    rest = workbench.back_up(*workbench.windows[1:])

    by_window = {
        (backup.window.key, span.partition.partition): (
            (span.plan.start, span.plan.end),
            offsets(stored(workbench, topic, {backup.window.key}), span.partition.partition),
            _gaps(span),
        )
        for backup in (*first, *rest)
        for span in backup.topics[0].spans
    }
    for partition in (0, 1):
        assert [by_window[f"w{number:04d}", partition] for number in range(4)] == [
            ((0, 6), [0, 2, 3], {MARKER: 2, ABORTED: 1}),
            ((6, 11), [6, 7, 8], {MARKER: 2}),
            ((11, 11), [], {}),
            ((11, 14), [12], {MARKER: 1, ABORTED: 1}),
        ]
    assert stored(workbench, topic) == consume(workbench.bootstrap_servers, topic, 2)
    assert all(verdict.passed for verdict in workbench.verdicts([*first, *rest]).values())


def test_an_open_transaction_in_an_output_holds_up_that_topic_alone(
    workbench: Workbench,
) -> None:
    """Somebody else's; the application itself writes at least once, in front of it and behind."""
    workbench.settings = BackupSettings(stable_wait_seconds=0.5)
    topic = workbench.topic("in")
    output = workbench.topic("shared", partitions=2, role=TopicRole.OUTPUT)
    servers = workbench.bootstrap_servers
    own = producer(servers)
    foreign = producer(servers, transactional_id=output, transaction_timeout_ms=900_000)
    foreign.init_transactions(20)
    foreign.begin_transaction()
    send(own, topic, b"1", b"2")
    send(own, output, b"own 1")
    early = workbench.close_window()
    send(foreign, output, b"foreign")
    send(own, output, b"own 2")
    began = time.monotonic()
    late = workbench.close_window()
    assert time.monotonic() - began < 15  # a request may take 20 s

    first, second = workbench.back_up()

    assert [backup.topic for backup in first.topics] == [topic, output]
    assert first.unread == ()
    assert [backup.topic for backup in second.topics] == [topic]
    (unread,) = second.unread
    assert (unread.window, unread.topic) == (late, output)
    assert f"{output}-0 stays at 1; the window ends at 3" in unread.reason
    verdicts = workbench.verdicts([first, second])
    red = [key for key, verdict in verdicts.items() if not verdict.passed]
    assert red == [(late.key, output, "every_offset_accounted")]
    done = workbench.ledger.done({topic, output})
    assert done == {early: {topic, output}, late: {topic}}

    foreign.abort_transaction(20)
    held_up = [TopicPartitionId(output, 0)]
    while workbench.cluster.last_stable_offsets(held_up)[held_up[0]] < 4:
        assert time.monotonic() < began + 300
        time.sleep(0.1)
    (again,) = workbench.back_up(late, topics=[output])
    assert again.unread == ()
    assert all(verdict.passed for verdict in workbench.verdicts([again]).values())
    assert offsets(stored(workbench, output)) == [0, 2]
    assert workbench.ledger.done({topic, output})[late] == {topic, output}


def test_a_window_of_aborted_records_only_stays_green_when_kafka_has_dropped_them(
    workbench: Workbench,
) -> None:
    """Nothing was lost: what the log no longer holds never was a record."""
    topic = workbench.topic("aborted")
    sender = open_transaction(workbench)
    send(sender, topic, b"never 1", b"never 2")
    sender.abort_transaction(20)
    await_end(workbench, topic, 3)
    send(producer(workbench.bootstrap_servers), topic, b"record")
    window = workbench.close_window()
    before = workbench.back_up(window)
    entries = workbench.ledger.entries()
    workbench.delete_records(topic, 3)

    again = workbench.back_up(window)

    assert offsets(stored(workbench, topic)) == [3]
    assert [entry.result for entry in workbench.ledger.entries()] == [e.result for e in entries]
    for backups in (before, again):
        assert all(verdict.passed for verdict in workbench.verdicts(backups).values())


def _many_transactions(bench: Workbench, count: int) -> str:
    """An exactly-once topic of two partitions, each with so many transactions of one record."""
    topic = bench.topic("exactly-once", partitions=2, role=TopicRole.CHANGELOG)
    sender = open_transaction(bench)
    for number in range(count):
        for partition in (0, 1):
            send(sender, topic, b"%d" % number, partition=partition)
        sender.commit_transaction(20)
        sender.begin_transaction()
    sender.abort_transaction(20)
    await_end(bench, topic, 2 * count, partitions=2)
    return topic


def test_many_small_transactions_are_explained_however_long_it_takes(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log comes batch by batch, in four times the time that may pass without progress."""
    topic = _many_transactions(workbench, 60)
    window = workbench.close_window()
    monkeypatch.setattr(BackupSettings, "read_stall_s", 1.0)
    monkeypatch.setattr(raw_log, "FIRST_FETCH_BYTES", 1)
    monkeypatch.setattr(raw_log, "LARGEST_FETCH_BYTES", 1)
    receive = raw_log.receive_fetch

    def slowly(channel: Channel) -> FetchAnswer:
        time.sleep(0.07)
        return receive(channel)

    monkeypatch.setattr(raw_log, "receive_fetch", slowly)
    began = time.monotonic()
    backups = workbench.back_up(window)
    assert time.monotonic() - began > 4 * workbench.settings.read_stall_s
    verdicts = workbench.verdicts(backups).values()
    assert all(v.passed for v in verdicts if v.severity is Severity.ERROR)
    for span in backups[0].topics[0].spans:
        assert _gaps(span) == {MARKER: 60}
        assert (span.first_hole, span.contiguity_known) == (None, True)
    assert len(stored(workbench, topic)) == 120


@pytest.mark.usefixtures("on_spark")
def test_what_could_not_be_looked_at_is_red_and_looked_at_again_without_a_second_copy(
    workbench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = _many_transactions(workbench, 20)
    window = workbench.close_window()
    scan = RawLogReader.scan

    def stalls(self: RawLogReader, partition: TopicPartitionId, *rest, **named):
        batches = scan(self, partition, *rest, **named)
        if partition.partition == 0:
            yield from batches
            return
        yield from itertools.islice(batches, 5)
        raise RawReadTimeoutError(
            partition=str(partition), reached=5, end=40, timeout_s=1, reason="no leader"
        )

    results = Accountant.results
    with monkeypatch.context() as patched:
        # As earlier releases looked: at the log, once the records were read.
        patched.setattr(
            Accountant, "results", lambda one, topics, held, *_: results(one, topics, held)
        )
        patched.setattr(RawLogReader, "scan", stalls)
        first = workbench.back_up(window)
    accounted = (window.key, topic, "every_offset_accounted")
    verdict = workbench.verdicts(first)[accounted]
    assert not verdict.passed
    assert "no leader" in verdict.explanation
    assert workbench.ledger.not_examined({topic}) == {window: {topic}}
    (entry,) = (e for e in workbench.ledger.entries() if not e.result.is_examined)
    assert entry.result.partition.partition == 1
    files = sorted(workbench.records_path.rglob("*.parquet"))
    assert not any(_complete(workbench, topic, 1))

    spark, workbench.spark = workbench.spark, NoSpark()
    again = workbench.back_up(window)
    assert workbench.verdicts(again)[accounted].passed
    assert workbench.ledger.not_examined({topic}) == {}
    for entry in workbench.ledger.entries():
        assert _gaps(entry.result) == {MARKER: 20}
        assert (entry.result.content.records, entry.result.first_hole) == (20, None)
    assert sorted(workbench.records_path.rglob("*.parquet")) == files
    assert all(_complete(workbench, topic, 1))
    workbench.spark = spark


def _complete(bench: Workbench, topic: str, partition: int) -> list[bool]:
    """Whether restores may lean on each span of a partition."""
    spans = bench.ledger.stored_spans({topic})
    return [span.complete for span in spans if span.partition.partition == partition]
