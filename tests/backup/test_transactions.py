"""Only what was committed is backed up, each record in one window, every other offset explained."""

import pytest

from kstreams_assets.backup.plan import Gap, GapCause
from kstreams_assets.backup.result import SpanResult
from tests.backup.reading import consume, offsets, stored
from tests.backup.writing import await_end, open_transaction, producer, send
from tests.streams.workbench import Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

MARKER, ABORTED = GapCause.TRANSACTION_MARKER, GapCause.ABORTED


def _gaps(span: SpanResult) -> dict[GapCause, int | None]:
    for gap in span.gaps:
        assert gap == Gap(gap.cause, span.plan.start, span.plan.end, gap.offsets)
    return {gap.cause: gap.offsets for gap in span.gaps}


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
