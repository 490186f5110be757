"""The records of the load generator: their content follows from a seed and an index alone."""

import itertools
import json
import random
from collections.abc import Callable, Mapping
from typing import Final

from kafka.partitioner.default import murmur2

from examples.parcel_tracker.application import INPUTS
from examples.streams.load import Event

RATES: Final[Mapping[str, int]] = {
    "customers": 10,
    "parcels": 80,
    "slots": 40,
    "scans": 60,
    "handovers": 60,
    "ledger": 60,
}
"""Records per second of each input."""

TICKS: Final = 100
"""Indices of the load generator per second."""

CLOSING: Final = ("scans", "handovers", "ledger")
"""Inputs whose windows, joins and buffers a closing record brings to their end."""

CLOSING_AFTER_MS: Final = 3_600_000
"""How long after the begin the closing records are: every window and every join is over then."""

PARCELS: Final = 200
CUSTOMERS: Final = 60
DEPOTS: Final = 12
ZONES: Final = 12
_RETIRED_ZONES: Final = 3
_RETIRED_FROM: Final = 80
_DELETED: Final = 0.04
_DELIVERED_AFTER: Final = 12
_LONGEST_BACKDATING_MS: Final = 60_000


class ParcelRecords:
    """Makes the records: the same seed, begin and index always give the same bytes.

    Event time begins at `began_ms` and never goes back within a topic, except for tariffs of
    `ledger` that are changed or withdrawn for a time that has passed. It passes `pace` times as
    quickly as the clock when each topic gets records at its rate. `partitions` is that of the
    topics.
    """

    def __init__(self, *, began_ms: int, seed: int = 1, pace: int = 1, partitions: int = 4) -> None:
        self._began_ms = began_ms
        self._pace = pace
        self._seed = seed
        self._partitions = partitions
        self._neighbours: dict[int, list[str]] = {number: [] for number in range(partitions)}
        for number in range(CUSTOMERS):
            customer = f"customer-{number:03d}"
            self._neighbours[self._partition(customer.encode())].append(customer)

    def of(self, topic: str) -> Callable[[int], Event]:
        """Records of one of the inputs, by index (0, 1, 2 ...)."""
        made = {
            "customers": self._customer,
            "parcels": self._parcel,
            "slots": self._slot,
            "scans": self._scan,
            "handovers": self._handover,
            "ledger": self._ledger_entry,
        }[topic]

        def record(index: int) -> Event:
            return made(index, random.Random(f"{self._seed}/{topic}/{index}"))

        return record

    def tick(self, index: int) -> list[Event]:
        """The records of all inputs in one tick."""
        return [
            self.of(topic)(number)
            for topic in INPUTS
            for number in range(index * RATES[topic] // TICKS, (index + 1) * RATES[topic] // TICKS)
        ]

    def closing(self, topic: str) -> list[Event]:
        """One record for each partition of a topic of `CLOSING`, an hour behind the begin."""
        value = {
            "scans": _json(parcel="parcel-closing", postcode="99999"),
            "handovers": b"picked up by nobody",
            "ledger": b"weighed 0",
        }[topic]
        at_ms = self._began_ms + CLOSING_AFTER_MS
        keys = (b"closing-%d" % number for number in itertools.count())
        by_partition: dict[int, bytes] = {}
        while len(by_partition) < self._partitions:
            key = next(keys)
            by_partition.setdefault(self._partition(key), key)
        return [Event(topic, by_partition[n], value, at_ms) for n in sorted(by_partition)]

    def _customer(self, index: int, chance: random.Random) -> Event:
        key = f"customer-{index if index < CUSTOMERS else chance.randrange(CUSTOMERS):03d}"
        value = _json(name=f"Name {index}", street=f"{chance.randrange(1, 200)} High Street")
        # Never deleted: an inner foreign-key join gives no answer to a parcel that keeps its
        # customer, or comes back, while the customer is gone. Whether the label of before stays
        # then depends on which answer is under way.
        return self._at("customers", index, key, value)

    def _parcel(self, index: int, chance: random.Random) -> Event:
        number = chance.randrange(PARCELS)
        # Foreign keys change within a partition only: answers of two partitions to the same
        # parcel overtake each other, and the one that comes last wins.
        homes = [group for group in self._neighbours.values() if group]
        customer = chance.choice(homes[number % len(homes)])
        value = _json(customer=customer, grams=chance.randrange(50, 20_000))
        return self._put("parcels", index, _parcel_key(number), value, chance)

    def _slot(self, index: int, chance: random.Random) -> Event:
        key = _parcel_key(chance.randrange(PARCELS))
        value = chance.randrange(1, 1_000).to_bytes(8, "big")
        return self._put("slots", index, key, value, chance)

    def _scan(self, index: int, chance: random.Random) -> Event:
        parcel = _parcel_key(chance.randrange(PARCELS))
        value = _json(parcel=parcel, postcode=f"{chance.randrange(10_000, 90_000):05d}")
        return self._at("scans", index, f"depot-{chance.randrange(DEPOTS):02d}", value)

    def _handover(self, index: int, chance: random.Random) -> Event:
        """Of three records one is a pick-up, one its repetition or a stray, one a delivery."""
        number, turn = divmod(index, 3)
        who = f"driver {chance.randrange(20)}"
        picked_up, delivered = f"picked up by {who}".encode(), f"delivered by {who}".encode()
        if turn == 0 or (turn == 1 and number % 3 == 0):
            key, value = _handed_over(number), picked_up
        elif turn == 1 or number < _DELIVERED_AFTER or number % 4 == 0:
            key, value = f"stray-{turn}-{number:06d}", delivered
        else:
            key, value = _handed_over(number - _DELIVERED_AFTER), delivered
        # A pick-up and its repetition have one timestamp.
        return self._at("handovers", number * 3, key, value)

    def _ledger_entry(self, index: int, chance: random.Random) -> Event:
        """Tariffs from now on, tariffs from some time in the past on, and weighings."""
        zones = ZONES if index < _RETIRED_FROM else ZONES - _RETIRED_ZONES
        zone = f"zone-{chance.randrange(zones):02d}"
        turn = index % 4
        if turn in (1, 2):
            return self._at("ledger", index, zone, b"weighed %d" % chance.randrange(50, 20_000))
        withdrawn = chance.random() < 0.2
        value = None if withdrawn else b"%d" % chance.randrange(100, 900)
        back_ms = chance.randrange(1, _LONGEST_BACKDATING_MS) if turn == 3 else 0
        return self._at("ledger", index, zone, value, back_ms=back_ms)

    def _put(self, topic: str, index: int, key: str, value: bytes, chance: random.Random) -> Event:
        """A row of a table, or now and then its deletion."""
        return self._at(topic, index, key, None if chance.random() < _DELETED else value)

    def _at(
        self, topic: str, index: int, key: str, value: bytes | None, *, back_ms: int = 0
    ) -> Event:
        at_ms = self._began_ms + index * 1_000 * self._pace // RATES[topic] - back_ms
        return Event(topic, key.encode(), value, at_ms)

    def _partition(self, key: bytes) -> int:
        return (murmur2(key) & 0x7FFFFFFF) % self._partitions


def _parcel_key(number: int) -> str:
    return f"parcel-{number:06d}"


def _handed_over(number: int) -> str:
    return f"handed-{number:06d}"


def _json(**fields: str | int) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
