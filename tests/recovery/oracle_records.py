"""Records of OracleApp as arrays, so that cuts over millions of records are judged in seconds.

A value is "customer,amount" (orders), "count,sum" (totals) or a counter (ticks), in ASCII.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kstreams_assets.offsets import OffsetRange

Integers = npt.NDArray[np.int64]
Record = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""

INVALID: Final = -1


class Names:
    """Numbers the keys (customers, tasks) of a history."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, name: bytes) -> int:
        """The number of a key, a new one if it has none yet."""
        return self._numbers.setdefault(name, len(self._numbers))

    def all(self) -> list[str]:
        """All keys, in the order of their numbers."""
        return [name.decode() for name in self._numbers]


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of one partition, by offset: the number of the key (INVALID: none), count and sum.

    An order has count 1 and its amount as sum, a tick its counter as count.
    """

    offsets: Integers
    keys: Integers
    counts: Integers
    sums: Integers

    def __len__(self) -> int:
        return len(self.offsets)

    def select(self, start: int, end: int, excluded: Iterable[OffsetRange] = ()) -> "Records":
        """The valid records in [start, end) outside the excluded ranges."""
        first, last = np.searchsorted(self.offsets, (start, end))
        offsets, keys = self.offsets[first:last], self.keys[first:last]
        keep = keys != INVALID
        for hole in excluded:
            begin, stop = np.searchsorted(offsets, (hole.start, hole.end))
            keep[begin:stop] = False
        return Records(
            offsets[keep], keys[keep], self.counts[first:last][keep], self.sums[first:last][keep]
        )


@dataclass(frozen=True, slots=True, eq=False)
class PerKey:
    """A count and a sum for each key, by its number."""

    counts: Integers
    sums: Integers

    def __add__(self, other: "PerKey") -> "PerKey":
        return PerKey(self.counts + other.counts, self.sums + other.sums)


def orders(records: Iterable[Record], names: Names) -> Records:
    """Parse orders; one without customer is INVALID, as the application drops it."""

    def parse(_key: bytes | None, value: bytes | None) -> tuple[int, int, int]:
        customer, comma, amount = (value or b"").partition(b",")
        if not comma or not customer:
            return INVALID, 0, 0
        return names.number(customer), 1, int(amount)

    return _parsed(records, parse)


def totals(records: Iterable[Record], names: Names) -> Records:
    """Parse totals or ticks; a tombstone counts as 0."""

    def parse(key: bytes | None, value: bytes | None) -> tuple[int, int, int]:
        count, _, total = (value or b"0").partition(b",")
        return names.number(key or b""), int(count), int(total or b"0")

    return _parsed(records, parse)


def merged(parts: Sequence[Records]) -> Records:
    """One partition from several reads of it; an offset that was read twice counts once."""
    offsets = np.concatenate([part.offsets for part in parts])
    offsets, chosen = np.unique(offsets, return_index=True)
    return Records(
        offsets,
        np.concatenate([part.keys for part in parts])[chosen],
        np.concatenate([part.counts for part in parts])[chosen],
        np.concatenate([part.sums for part in parts])[chosen],
    )


def added_up(parts: Iterable[Records], size: int) -> PerKey:
    """Counts and sums of all records, per key of `size` keys; exact below 2**53."""
    total = _zero(size)
    for part in parts:
        total += PerKey(_bins(part.keys, part.counts, size), _bins(part.keys, part.sums, size))
    return total


def numbers(parts: Iterable[Records], size: int) -> PerKey:
    """How many records there are, per key (in both fields)."""
    total = _zero(size)
    for part in parts:
        number = _bins(part.keys, None, size)
        total += PerKey(number, number)
    return total


def last(parts: Iterable[Records], size: int) -> PerKey:
    """The last record per key; a key that lies in two partitions counts in both."""
    total = _zero(size)
    for part in parts:
        state = _zero(size)
        # Of several values for one index, numpy keeps the last one.
        state.counts[part.keys] = part.counts
        state.sums[part.keys] = part.sums
        total += state
    return total


def out_of_step(part: Records, size: int) -> list[tuple[int, int, int]]:
    """For each key whose counts are not 1, 2, 3, ...: key, first wrong count, what it should be."""
    if not len(part):
        return []
    # numpy sorts 16-bit numbers by radix, ten times as fast.
    by_key = np.argsort(part.keys.astype(np.uint16 if size < 1 << 16 else np.int64), kind="stable")
    keys, counts = part.keys[by_key], part.counts[by_key]
    starts = np.flatnonzero(np.diff(keys, prepend=[-1]))
    lengths = np.diff(starts, append=[len(keys)])
    due = np.arange(1, len(keys) + 1) - np.repeat(starts, lengths)
    wrong = np.flatnonzero(counts != due)
    _, first = np.unique(keys[wrong], return_index=True)
    return [(int(keys[i]), int(counts[i]), int(due[i])) for i in wrong[first]]


def _parsed(
    records: Iterable[Record],
    parse: Callable[[bytes | None, bytes | None], tuple[int, int, int]],
) -> Records:
    rows = [(offset, *parse(key, value)) for offset, key, value in records]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    table = table[np.argsort(table[:, 0], kind="stable")]
    return Records(*(np.ascontiguousarray(column) for column in table.T))


def _zero(size: int) -> PerKey:
    return PerKey(np.zeros(size, np.int64), np.zeros(size, np.int64))


def _bins(keys: Integers, weights: Integers | None, size: int) -> Integers:
    return np.bincount(keys, weights, size).astype(np.int64)
