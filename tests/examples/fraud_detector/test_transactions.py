"""The load generator of the fraud detector: reproducible, with all that the application drops."""

import json
import struct

from examples.fraud_detector.application import RISK_SCORES, TRANSACTIONS
from examples.fraud_detector.load import events_of
from examples.fraud_detector.transactions import HIGH_RISK, LATEST_MS, TransactionGenerator


def test_seed_and_index_give_the_transaction() -> None:
    made = [TransactionGenerator(seed=3).transaction(index) for index in range(500)]
    again = TransactionGenerator(seed=3)
    assert [again.transaction(index) for index in reversed(range(500))] == made[::-1]
    assert TransactionGenerator(seed=4).transaction(0) != made[0]
    assert len({one.key for one in made}) == 500


def test_transactions_are_large_small_late_and_broken() -> None:
    generator = TransactionGenerator(seed=1)
    made = [generator.transaction(index) for index in range(2000)]
    assert {one.is_large for one in made} == {True, False}
    late = [one.late_ms for one in made if one.late_ms]
    assert 0 < len(late) < 200
    assert max(late) <= LATEST_MS
    broken = [one for one in made if not one.value.endswith(b"}")]
    assert 0 < len(broken) < 60
    assert not any(one.is_large for one in broken)
    amounts = [json.loads(one.value)["amount_cents"] for one in made if one.is_large]
    assert min(amounts) > 100_000


def test_scores_end_with_what_the_user_has() -> None:
    generator = TransactionGenerator(seed=1)
    last = dict(generator.risk_scores())
    assert len(last) == generator.users
    scores = {user.decode(): generator.risk_of(user.decode()) for user in last}
    for user, written in last.items():
        score = scores[user.decode()]
        assert written == (None if score is None else struct.pack(">d", score))
    assert None in scores.values()
    assert any(score is not None and score > HIGH_RISK for score in scores.values())


def test_scores_go_before_the_first_transaction() -> None:
    events = events_of(1)
    first = list(events(0))
    assert [event.topic for event in first] == [RISK_SCORES] * (len(first) - 1) + [TRANSACTIONS]
    assert len(first) == 2 * TransactionGenerator().users + 1
    (second,) = events(1)
    made = TransactionGenerator(seed=1).transaction(1)
    assert (second.key, second.value) == (made.key, made.value)
