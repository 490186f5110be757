"""Sends transactions: `python -m examples.fraud_detector.load --bootstrap host:port`."""

import time
from collections.abc import Iterator

from examples.fraud_detector.application import RISK_SCORES, TRANSACTIONS
from examples.fraud_detector.transactions import TransactionGenerator
from examples.streams.load import Event, Events, load_command


def events_of(seed: int) -> Events:
    """One transaction for each index; all risk scores go before the first of them."""
    generator = TransactionGenerator(seed=seed)

    def events(index: int) -> Iterator[Event]:
        if index == 0:
            for user, score in generator.risk_scores():
                yield Event(RISK_SCORES, user, score)
        made = generator.transaction(index)
        happened_ms = time.time_ns() // 1_000_000 - made.late_ms
        yield Event(TRANSACTIONS, made.key, made.value, happened_ms)

    return events


main = load_command(events_of, what="transactions, and first the risk scores")

if __name__ == "__main__":
    main()
