"""The transactions of the load generator: their content follows from a seed and an index alone."""

import json
import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

LARGE_CENTS: Final = 100_000
HIGH_RISK: Final = 70.0
LATEST_MS: Final = 240_000
"""How late a transaction may come: less than gap and grace together, so none is dropped."""

_LARGE_SHARE: Final = 0.35
_LATE_SHARE: Final = 0.05
_INVALID_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Transaction:
    """One record for the topic `transactions`.

    It happened `late_ms` before it came. `is_large` is False of what the application drops.
    """

    index: int
    key: bytes
    value: bytes
    user_id: str
    is_large: bool
    late_ms: int


class TransactionGenerator:
    """Makes transactions and risk scores: the same seed and index always give the same bytes."""

    def __init__(self, *, seed: int = 1, users: int = 100) -> None:
        self.seed: Final = seed
        self.users: Final = users

    def transaction(self, index: int) -> Transaction:
        """Return the transaction with this index (from 0)."""
        chance = random.Random(f"{self.seed}/{index}")
        user = _user(chance.randrange(self.users))
        large = chance.random() < _LARGE_SHARE
        amount = chance.randint(LARGE_CENTS + 1, 500_000) if large else chance.randint(1, 100_000)
        late_ms = chance.randint(1, LATEST_MS) if chance.random() < _LATE_SHARE else 0
        value = json.dumps({"user_id": user, "amount_cents": amount}, separators=(",", ":"))
        if chance.random() < _INVALID_SHARE:
            value, large = value[: len(value) // 2], False
        key = f"transaction-{self.seed}-{index:09d}"
        return Transaction(index, key.encode(), value.encode(), user, large, late_ms)

    def risk_of(self, user_id: str) -> float | None:
        """The risk score of a user (0 to 100), None for those without."""
        chance = random.Random(f"{self.seed}/{user_id}")
        return None if chance.random() < 0.1 else round(chance.uniform(0, 100), 1)

    def risk_scores(self) -> Sequence[tuple[bytes, bytes | None]]:
        """Keys and values for the topic `risk-scores`, in order.

        Every user had the highest risk at first; then comes the score, or its deletion.
        """
        names = [_user(number) for number in range(self.users)]
        first = [(name.encode(), _double(100.0)) for name in names]
        return [*first, *((name.encode(), _double(self.risk_of(name))) for name in names)]

    def suspicious(self, transactions: Iterable[Transaction]) -> list[Transaction]:
        """Those that the application counts."""
        return [
            t for t in transactions if t.is_large and (self.risk_of(t.user_id) or 0) > HIGH_RISK
        ]


def _user(number: int) -> str:
    return f"user-{number:05d}"


def _double(score: float | None) -> bytes | None:
    return None if score is None else struct.pack(">d", score)
