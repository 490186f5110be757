"""Prepare and Complete of `__transaction_state`, put together."""

import pytest

from kstreams_assets.kafka.coordinator_log import (
    TransactionStateRecord,
    TransactionStatus,
    coordinator_partition,
)
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.identity import EndedTransaction, ProducerEpoch
from kstreams_assets.recovery.transactions import ended_transactions, state_partitions
from tests.recovery.logs import CHANGELOG, OFFSETS

BOTH = frozenset({CHANGELOG, OFFSETS})


def _state(
    status: TransactionStatus, at_ms: int, *, name: str = "app-1", epoch: int = 0
) -> TransactionStateRecord:
    has_partitions = status in (
        TransactionStatus.ONGOING,
        TransactionStatus.PREPARE_COMMIT,
        TransactionStatus.PREPARE_ABORT,
    )
    partitions = BOTH if has_partitions else frozenset()
    producer_id = int(name[-1])
    return TransactionStateRecord(name, producer_id, epoch, status, partitions, at_ms, at_ms)


def _ended(
    prepared_ms: int, completed_ms: int | None, *, committed: bool = True, producer_id: int = 1
) -> EndedTransaction:
    producer = ProducerEpoch(producer_id, 0)
    return EndedTransaction(producer, committed, BOTH, prepared_ms, completed_ms)


def test_prepare_and_complete_of_each_transaction() -> None:
    states = [
        _state(TransactionStatus.EMPTY, 1),
        _state(TransactionStatus.ONGOING, 2),
        _state(TransactionStatus.ONGOING, 3),
        _state(TransactionStatus.PREPARE_COMMIT, 4),
        _state(TransactionStatus.COMPLETE_COMMIT, 6),
        _state(TransactionStatus.ONGOING, 7),
        _state(TransactionStatus.PREPARE_ABORT, 8),
        _state(TransactionStatus.COMPLETE_ABORT, 9),
    ]
    assert ended_transactions(states) == [_ended(4, 6), _ended(8, 9, committed=False)]


def test_one_whose_markers_are_being_written() -> None:
    states = [_state(TransactionStatus.PREPARE_COMMIT, 4)]
    assert ended_transactions(states) == [_ended(4, None)]


def test_complete_without_prepare_is_older_than_the_history() -> None:
    states = [
        _state(TransactionStatus.COMPLETE_COMMIT, 4),
        _state(TransactionStatus.PREPARE_COMMIT, 5),
        _state(TransactionStatus.COMPLETE_COMMIT, 6),
    ]
    assert ended_transactions(states) == [_ended(5, 6)]


def test_prepare_without_complete_stays_open_ended() -> None:
    states = [
        _state(TransactionStatus.PREPARE_COMMIT, 4),
        _state(TransactionStatus.PREPARE_COMMIT, 8),
        _state(TransactionStatus.COMPLETE_COMMIT, 9),
    ]
    assert ended_transactions(states) == [_ended(4, None), _ended(8, 9)]


def test_producers_do_not_mix() -> None:
    states = [
        _state(TransactionStatus.PREPARE_COMMIT, 4, name="app-1"),
        _state(TransactionStatus.PREPARE_COMMIT, 5, name="app-2"),
        _state(TransactionStatus.COMPLETE_COMMIT, 6, name="app-2"),
        _state(TransactionStatus.COMPLETE_COMMIT, 7, name="app-1"),
    ]
    assert ended_transactions(states) == [_ended(4, 7), _ended(5, 6, producer_id=2)]


@pytest.mark.parametrize("count", [1, 50])
def test_where_transactional_ids_live(count: int) -> None:
    names = ["app-1", "app-2", "app-1"]
    expected = sorted({coordinator_partition(name, count) for name in names})
    found = state_partitions(names, count)
    assert found == [TopicPartitionId("__transaction_state", number) for number in expected]
