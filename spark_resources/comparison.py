"""Compares two sequences of records of one partition, the backup's and the target's. Pure."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

from kstreams_assets.offsets import TopicPartitionId
from spark_resources.partition_records import Difference

CREATE_TIME: Final = 1

_TIMESTAMP_TYPES: Final = {0: "none", CREATE_TIME: "CreateTime", 2: "LogAppendTime"}

Headers = list[tuple[str, bytes | None]] | None


class Record(NamedTuple):
    """A record without its offset; `time` is (timestamp type, milliseconds)."""

    time: Any
    key: bytes | None
    value: bytes | None
    headers: Headers


def describe_difference(backup: Record, target: Record) -> str:
    """Return how the target's record differs from the backup.

    Payloads are described only by length and the start of their SHA-256: they may be secret.
    """
    parts = []
    if backup.key != target.key:
        parts.append(f"key is {_about(target.key)} instead of {_about(backup.key)}")
    if backup.value != target.value:
        parts.append(f"value is {_about(target.value)} instead of {_about(backup.value)}")
    if backup.time != target.time:
        parts.append(_times(backup.time, target.time))
    if backup.headers != target.headers:
        parts.append(_headers(backup.headers or [], target.headers or []))
    return "; ".join(parts)


def _about(payload: bytes | None) -> str:
    if payload is None:
        return "null"
    if not payload:
        return "empty"
    return f"{len(payload)} bytes (sha256 {hashlib.sha256(payload).hexdigest()[:8]})"


def _times(backup: Any, target: tuple[int, int]) -> str:  # noqa: ANN401
    kind, timestamp_ms = target
    if kind != CREATE_TIME:
        name = _TIMESTAMP_TYPES.get(kind, str(kind))
        return f"timestamp type is {name} instead of CreateTime"
    return f"timestamp is {timestamp_ms} instead of {backup[1]}"


def _headers(backup: list[tuple[str, bytes | None]], target: list[tuple[str, bytes | None]]) -> str:
    if len(backup) != len(target):
        return f"has {len(target)} headers instead of {len(backup)}"
    if Counter(backup) == Counter(target):
        return f"its {len(target)} headers have another order"
    pairs = zip(backup, target, strict=True)
    number, (wanted, found) = next(
        (number, pair) for number, pair in enumerate(pairs, 1) if pair[0] != pair[1]
    )
    which = f"header {number} of {len(target)}"
    if wanted[0] != found[0]:
        return f"{which} has another name"
    return f"{which}: value is {_about(found[1])} instead of {_about(wanted[1])}"


KEPT_DIFFERENCES: Final = 10

_WINDOW: Final = 10_000
_SMALL_WINDOW: Final = 16
_SEARCHED: Final = 64
_AGREEING: Final = 3
_SEARCHES: Final = 100


class _AnyCreateTime:
    """Equals every timestamp of type CreateTime."""

    def __eq__(self, other: object) -> bool:
        return other is self or (isinstance(other, tuple) and other[0] == CREATE_TIME)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


ANY_CREATE_TIME: Final = _AnyCreateTime()
"""Replaces the timestamp of a record that got the time of the restore."""


class RecordColumns(NamedTuple):
    """Records in order, one list per field, all equally long.

    `offsets` are the target's, `times` pairs of (timestamp type, milliseconds) or ANY_CREATE_TIME,
    `headers` lists of (name, value) pairs, None for a record without any.
    """

    offsets: list[int]
    times: list[Any]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[tuple[str, bytes | None]] | None]

    def part(self, start: int, stop: int) -> "RecordColumns":
        """Return some of the records."""
        return RecordColumns._make(column[start:stop] for column in self)


_EMPTY: Final = RecordColumns([], [], [], [], [])


@dataclass(slots=True)
class _Side:
    """One of the two sequences, with loaded records that were not passed yet."""

    chunks: Iterator[RecordColumns]
    columns: RecordColumns = _EMPTY
    at: int = 0
    passed: int = 0

    def ahead(self, wanted: int) -> int:
        """Return how many records are loaded: at least `wanted`, unless the end comes first."""
        while (seen := len(self.columns.offsets) - self.at) < wanted:
            chunk = next(self.chunks, None)
            if chunk is None:
                break
            rest = self.columns.part(self.at, self.at + seen)
            self.columns = RecordColumns._make(a + b for a, b in zip(rest, chunk, strict=True))
            self.at = 0
        return seen

    def first(self, count: int) -> RecordColumns:
        """Return the next records without passing them."""
        return self.columns.part(self.at, self.at + count)

    def contents(self, count: int) -> list[Record]:
        """Return the next records without their offsets, as many as there are."""
        self.ahead(count)
        part = self.first(count)
        return [Record(*fields) for fields in zip(*part[1:], strict=True)]

    def pass_over(self, count: int) -> None:
        """Pass the next records."""
        self.at += count
        self.passed += count


class Comparison:
    """The result of comparing the target's records with the backup's.

    `source_of` returns the source offset of a target offset, for messages. Afterwards `compared`
    counts the compared pairs, `expected` the backup's records, `differing` all differences;
    `differences` are the first few.
    """

    def __init__(self, target: TopicPartitionId, source_of: Callable[[int], int | None]) -> None:
        self.compared = 0
        self.expected = 0
        self.differing = 0
        self.differences: list[Difference] = []
        self._target = target
        self._source_of = source_of

    def run(self, backup: Iterator[RecordColumns], target: Iterator[RecordColumns]) -> None:
        """Compare two sequences to their ends; may be called again for another range."""
        pair = _Pair(self, _Side(backup), _Side(target))
        pair.compare()
        self.expected += pair.backup.passed

    def equal(self, count: int) -> None:
        """Record that the next records of both are equal, this many."""
        self.compared += count
        self.expected += count

    def report(self, offset: int, what: str, *, belongs_at: int | None) -> None:
        """Count a difference, and keep it if it is among the first.

        `belongs_at` is the target offset of the backup's record in the offset map.
        """
        self.differing += 1
        if len(self.differences) < KEPT_DIFFERENCES:
            source = None if belongs_at is None else self._source_of(belongs_at)
            where = "" if source is None else f" (source offset {source})"
            self.differences.append(Difference(self._target, offset, f"{what}{where}"))


class _Pair:
    """Two sequences side by side.

    `_shift` is the distance of the target's records above their offsets in the offset map, after
    missing or additional records.
    """

    def __init__(self, outcome: Comparison, backup: _Side, target: _Side) -> None:
        self.backup = backup
        self._target = target
        self._outcome = outcome
        self._shift = 0
        self._window = _WINDOW
        self._searches = 0

    def compare(self) -> None:
        while size := min(self.backup.ahead(1), self._target.ahead(1), self._window):
            if self._equal(size):
                self._pass_both(size)
                self._window = min(2 * self._window, _WINDOW)
            elif size > _SMALL_WINDOW:
                self._window = _SMALL_WINDOW
            elif self._equal(1):
                self._pass_both(1)
            else:
                self._compare_next()
        self._compare_rest()

    def _equal(self, size: int) -> bool:
        backup, target = self.backup.first(size), self._target.first(size)
        if self._shift:
            moved = [offset + self._shift for offset in backup.offsets]
            backup = backup._replace(offsets=moved)
        return backup == target

    def _pass_both(self, count: int) -> None:
        self._outcome.compared += count
        self.backup.pass_over(count)
        self._target.pass_over(count)

    def _compare_next(self) -> None:
        offset = self._target.first(1).offsets[0]
        wanted = self.backup.first(1).offsets[0] + self._shift
        if offset < wanted:
            self._extra(1)
        elif offset > wanted:
            self._missing(wanted, 1)
        else:
            self._compare_contents(offset)

    def _compare_contents(self, offset: int) -> None:
        report, belongs_at = self._outcome.report, offset - self._shift
        searched = _SEARCHED if self._searches < _SEARCHES else 1
        self._searches += 1
        backup = self.backup.contents(searched + _AGREEING)
        target = self._target.contents(searched + _AGREEING)
        if len(backup) > 1 and len(target) > 1 and backup[:2] == [target[1], target[0]]:
            swapped = "is swapped with the record at offset"
            report(offset, f"{swapped} {offset + 1}", belongs_at=belongs_at)
            report(offset + 1, f"{swapped} {offset}", belongs_at=belongs_at + 1)
            self._pass_both(2)
        elif missing := _found_at(backup, target):
            self._missing(offset, missing)
            self._shift -= missing
        elif extra := _found_at(target, backup):
            self._extra(extra)
            self._shift += extra
        else:
            what = describe_difference(backup[0], target[0])
            report(offset, what, belongs_at=belongs_at)
            self._pass_both(1)

    def _missing(self, offset: int, count: int) -> None:
        """The backup's next records are missing on the target, which continues at `offset`."""
        for belongs_at in self.backup.first(count).offsets:
            self._outcome.report(offset, "a record is missing here", belongs_at=belongs_at)
        self.backup.pass_over(count)

    def _extra(self, count: int) -> None:
        what = "holds a record that is not in the backup"
        for offset in self._target.first(count).offsets:
            self._outcome.report(offset, what, belongs_at=None)
        self._target.pass_over(count)

    def _compare_rest(self) -> None:
        while count := self.backup.ahead(1):
            self._missing(self.backup.first(1).offsets[0] + self._shift, count)
        while count := self._target.ahead(1):
            self._extra(count)


def _found_at(sequence: Sequence[Record], other: Sequence[Record]) -> int:
    """Return by how many records `sequence` must be moved to match `other`; 0 if it does not."""
    for moved in range(1, min(len(sequence), _SEARCHED + 1)):
        part = list(islice(sequence, moved, moved + _AGREEING))
        if part[0] == other[0] and part == list(other[: len(part)]):
            return moved
    return 0
