"""The transactions of an application as `__transaction_state` tells them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from kstreams_assets.kafka.coordinator_partition import TRANSACTION_STATE, coordinator_partition
from kstreams_assets.kafka.raw_range import RawRange
from kstreams_assets.kafka.transaction_log import (
    TransactionStateRecord,
    TransactionStatus,
    transaction_state,
)
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.identity import EndedTransaction, ProducerEpoch

_PREPARED = (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)
_COMPLETED = (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)


def state_partitions(transactional_ids: Iterable[str], count: int) -> list[TopicPartitionId]:
    """Where these transactional ids live, given the number of partitions."""
    numbers = {coordinator_partition(name, count) for name in transactional_ids}
    return [TopicPartitionId(TRANSACTION_STATE, number) for number in sorted(numbers)]


def state_records(
    ranges: Iterable[RawRange], names: frozenset[str]
) -> list[TransactionStateRecord]:
    """The states of these transactional ids in raw ranges, each partition in offset order."""
    found = (
        transaction_state(record)
        for one in ranges
        for batch in one.batches
        if not batch.header.is_control
        for record in batch.records()
    )
    return [state for state in found if state is not None and state.transactional_id in names]


def ended_transactions(states: Iterable[TransactionStateRecord]) -> list[EndedTransaction]:
    """Pair Prepare with Complete, per transactional id and in log order.

    The times are those of the records: the one inside the value of Complete is taken before the
    markers are written.
    """
    by_name: defaultdict[str, list[TransactionStateRecord]] = defaultdict(list)
    for state in states:
        by_name[state.transactional_id].append(state)
    return [ended for of_name in by_name.values() for ended in _ended(of_name)]


def _ended(states: Sequence[TransactionStateRecord]) -> Iterable[EndedTransaction]:
    prepared: TransactionStateRecord | None = None
    for state in states:
        if state.status in _PREPARED:
            if prepared is not None:
                yield _transaction(prepared, None)
            prepared = state
        elif state.status in _COMPLETED and prepared is not None:
            yield _transaction(prepared, state.append_time_ms)
            prepared = None
    if prepared is not None:
        yield _transaction(prepared, None)


def _transaction(prepared: TransactionStateRecord, completed_ms: int | None) -> EndedTransaction:
    return EndedTransaction(
        producer=ProducerEpoch(prepared.producer_id, prepared.producer_epoch),
        committed=prepared.status is TransactionStatus.PREPARE_COMMIT,
        partitions=prepared.partitions,
        prepared_ms=prepared.append_time_ms,
        completed_ms=completed_ms,
    )
