"""Which transaction a stretch of data belongs to."""

import pytest

from kstreams_assets.offsets import OffsetRange
from kstreams_assets.recovery.identity import (
    EndedTransaction,
    Identities,
    ProducerEpoch,
    TransactionId,
    shared_epochs,
)
from kstreams_assets.recovery.segments import Marker, Segment
from tests.recovery.logs import CHANGELOG, OUTPUT, Tx, older

OLD = older(1)
SHARED = frozenset({ProducerEpoch(1, 0)})


def _segment(at_ms: int | None, *, epoch: int = 0, marker_epoch: int = 0, partition=CHANGELOG):
    marker = None if at_ms is None else Marker(1, marker_epoch, 9, True, at_ms)
    return Segment(partition, 1, epoch, (OffsetRange(0, 1),), marker)


def _identities(*history: EndedTransaction) -> Identities:
    return Identities(SHARED, history)


def test_an_epoch_is_shared_if_a_marker_carries_it_too() -> None:
    bumped, open_one = _segment(5, marker_epoch=1), _segment(None)
    assert shared_epochs([bumped, open_one]) == frozenset()
    assert shared_epochs([bumped, open_one, _segment(5)]) == SHARED


def test_an_epoch_of_its_own_is_the_identity() -> None:
    identities = Identities(frozenset())
    assert identities.of(_segment(None, epoch=4)) == TransactionId(1, 4)
    assert not identities.is_shared(_segment(None, epoch=4))


def test_a_marker_belongs_to_the_transaction_of_its_time() -> None:
    identities = _identities(
        OLD.ended(CHANGELOG, OUTPUT, prepared_ms=20, completed_ms=24),  # in any order
        OLD.ended(CHANGELOG, OUTPUT, prepared_ms=10, completed_ms=14),
        OLD.ended(CHANGELOG, OUTPUT, prepared_ms=30, completed_ms=None),
    )
    found = {at: identities.of(_segment(at)) for at in (10, 14, 20, 24, 30, 99)}
    ordinals = {at: one and one.ordinal for at, one in found.items()}
    assert ordinals == {10: 0, 14: 0, 20: 1, 24: 1, 30: 2, 99: 2}
    assert identities.of(_segment(12, partition=OUTPUT)) == identities.of(_segment(13))


@pytest.mark.parametrize("at_ms", [9, 15, 19])
def test_a_marker_between_all_transactions_cannot_be_told(at_ms: int) -> None:
    identities = _identities(
        OLD.ended(CHANGELOG, prepared_ms=10, completed_ms=14),
        OLD.ended(CHANGELOG, prepared_ms=20, completed_ms=24),
    )
    assert identities.of(_segment(at_ms)) is None


def test_two_transactions_of_one_millisecond_are_told_apart_by_their_partitions() -> None:
    identities = _identities(
        OLD.ended(OUTPUT, prepared_ms=10, completed_ms=20),
        OLD.ended(CHANGELOG, prepared_ms=20, completed_ms=30),
    )
    assert identities.of(_segment(20)) == TransactionId(1, 0, ordinal=1)
    assert identities.of(_segment(20, partition=OUTPUT)) == TransactionId(1, 0, ordinal=0)


def test_two_transactions_of_one_millisecond_and_partition_cannot() -> None:
    identities = _identities(
        OLD.ended(CHANGELOG, prepared_ms=10, completed_ms=20),
        OLD.ended(CHANGELOG, prepared_ms=20, completed_ms=30),
    )
    assert identities.of(_segment(20)) is None
    assert identities.of(_segment(19)) == TransactionId(1, 0, ordinal=0)


def test_without_a_marker_it_cannot_be_told() -> None:
    identities = _identities(OLD.ended(CHANGELOG, prepared_ms=10, completed_ms=20))
    assert identities.is_shared(_segment(None))
    assert identities.of(_segment(None)) is None


def test_the_marker_of_a_fence_ends_the_last_one() -> None:
    identities = _identities(OLD.ended(CHANGELOG, prepared_ms=10, completed_ms=20))
    fenced = identities.of(_segment(15, marker_epoch=1))
    assert fenced == TransactionId(1, 0, ordinal=1)
    assert fenced is not None
    assert fenced > TransactionId(1, 0, ordinal=0)


def test_transactions_of_other_producers_and_epochs_do_not_count() -> None:
    identities = _identities(
        older(2).ended(CHANGELOG, prepared_ms=10, completed_ms=20),
        Tx(1, 1, older=True).ended(CHANGELOG, prepared_ms=10, completed_ms=20),
    )
    assert identities.of(_segment(15)) is None
