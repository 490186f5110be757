"""Judges one cut of OracleApp by the whole history of its topics: what must hold if it is exact.

Pure: the history is read once, by tests/recovery/history.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from tests.recovery.oracle_records import (
    Names,
    PerKey,
    Record,
    Records,
    added_up,
    last,
    numbers,
    orders,
    out_of_step,
    totals,
)

Partitions = Mapping[TopicPartitionId, Records]
RawPartitions = Mapping[TopicPartitionId, Iterable[Record]]


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """Every committed record of the application's topics; every partition has an entry.

    `repartition` is None when records were purged from it. `changelog_complete` is False when
    compaction has removed records from the changelogs; cuts then need their own content.
    """

    names: Names
    inputs: Partitions
    repartition: Partitions | None
    changelog: Partitions
    outputs: Partitions
    ticks_changelog: Partitions = field(default_factory=dict)
    ticks_outputs: Partitions = field(default_factory=dict)
    changelog_complete: bool = True

    @classmethod
    def of(
        cls,
        *,
        inputs: RawPartitions,
        repartition: RawPartitions | None,
        changelog: RawPartitions,
        outputs: RawPartitions,
        ticks_changelog: RawPartitions | None = None,
        ticks_outputs: RawPartitions | None = None,
        changelog_complete: bool = True,
    ) -> "History":
        """Build a history from (offset, key, value) of each partition."""
        names = Names()

        def orders_of(partitions: RawPartitions) -> Partitions:
            return {each: orders(records, names) for each, records in partitions.items()}

        def totals_of(partitions: RawPartitions) -> Partitions:
            return {each: totals(records, names) for each, records in partitions.items()}

        return cls(
            names,
            inputs=orders_of(inputs),
            repartition=None if repartition is None else orders_of(repartition),
            changelog=totals_of(changelog),
            outputs=totals_of(outputs),
            ticks_changelog=totals_of(ticks_changelog or {}),
            ticks_outputs=totals_of(ticks_outputs or {}),
            changelog_complete=changelog_complete,
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """One recovery point as plain data; a partition without an entry stands at offset 0.

    `committed`: group offsets of inputs and repartition topics. `ends` and `excluded`: of
    changelogs and outputs, and of the repartition topics.
    `in_flight`: all that was saved of the repartition topics, None to take it from the history.
    `changelog`: all that was stored of all changelogs, instead of what the history has; `Records`
    (made with `totals` and the history's names) where many cuts share it.
    """

    committed: Mapping[TopicPartitionId, int]
    ends: Mapping[TopicPartitionId, int]
    excluded: Mapping[TopicPartitionId, Sequence[OffsetRange]] = field(default_factory=dict)
    in_flight: Mapping[TopicPartitionId, Sequence[Record]] | None = None
    changelog: Mapping[TopicPartitionId, Sequence[Record] | Records] | None = None


class Check(StrEnum):
    """What must hold for each key."""

    STATE_IS_WHAT_WAS_READ = "state == repartition records below the committed offset"
    NOTHING_LOST_OR_TWICE = "state + in flight == inputs below the committed offset"
    NOTHING_LOST = "state + in flight >= inputs below the committed offset"
    IN_FLIGHT_COMPLETE = "records saved in flight == those of the repartition topic"
    OUTPUT_IS_STATE = "last output == state"
    OUTPUTS_ARE_CHANGES = "number of outputs == number of changelog records"
    OUTPUTS_COUNT_ON = "outputs count on from 1 without hole or repeat"
    TICKS_ARE_STATE = "last tick == state of the ticks"
    TICKS_COUNT_ON = "ticks count on from 1 without hole or repeat"


@dataclass(frozen=True, slots=True)
class Violation:
    """One key for which a check does not hold, with (count, sum) of its two sides.

    For the two COUNT_ON checks: the first wrong count and what it should be, sums 0.
    """

    check: Check
    key: str
    left: tuple[int, int]
    right: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.key}: {self.check}: {self.left}, {self.right}"


def violations(history: History, cut: Cut) -> list[Violation]:
    """Return what contradicts that the cut is exact; an empty list if nothing does.

    The application must have run with exactly_once_v2, without cache, and from empty topics on.
    """
    sides = _Sides(history, cut)
    return [*_of_state(sides), *_of_outputs(sides), *_of_ticks(sides)]


def lost_only(history: History, cut: Cut) -> list[Violation]:
    """Return what contradicts that nothing is lost; records may count several times."""
    sides = _Sides(history, cut)
    have, need = sides.state + sides.in_flight, sides.read(history.inputs)
    less = (have.counts < need.counts) | (have.sums < need.sums)
    return sides.where(less, Check.NOTHING_LOST, have, need)


def _of_state(sides: "_Sides") -> list[Violation]:
    history, repartition = sides.history, sides.history.repartition
    found = sides.different(
        Check.NOTHING_LOST_OR_TWICE, sides.state + sides.in_flight, sides.read(history.inputs)
    )
    if repartition is not None:
        read = sides.read(repartition)
        found += sides.different(Check.STATE_IS_WHAT_WAS_READ, sides.state, read)
        in_topic = sides.in_flight_in(repartition)
        found += sides.different(Check.IN_FLIGHT_COMPLETE, sides.in_flight, in_topic)
    return found


def _of_outputs(sides: "_Sides") -> list[Violation]:
    written = sides.below_end(sides.history.outputs)
    found = sides.different(Check.OUTPUT_IS_STATE, last(written, sides.size), sides.state)
    found += sides.not_counting_on(Check.OUTPUTS_COUNT_ON, written)
    if sides.history.changelog_complete and sides.cut.changelog is None:
        changes = numbers(sides.changelog, sides.size)
        outputs = numbers(written, sides.size)
        found += sides.different(Check.OUTPUTS_ARE_CHANGES, outputs, changes)
    return found


def _of_ticks(sides: "_Sides") -> list[Violation]:
    written = sides.below_end(sides.history.ticks_outputs)
    state = last(sides.ticks_changelog, sides.size)
    found = sides.different(Check.TICKS_ARE_STATE, last(written, sides.size), state)
    return found + sides.not_counting_on(Check.TICKS_COUNT_ON, written)


class _Sides:
    """The parts of the comparisons for one cut."""

    def __init__(self, history: History, cut: Cut) -> None:
        self.history = history
        self.cut = cut
        changelog, ticks_changelog = history.changelog, history.ticks_changelog
        if cut.changelog is not None:
            changelog = self._stored(changelog, cut.changelog)
            ticks_changelog = self._stored(ticks_changelog, cut.changelog)
        saved = [orders(each, history.names) for each in (cut.in_flight or {}).values()]
        # From here on there are no new names: every array has one entry for each.
        self.size = len(history.names)
        self.changelog = self.below_end(changelog)
        self.ticks_changelog = self.below_end(ticks_changelog)
        self.state = last(self.changelog, self.size)
        if cut.in_flight is not None:
            self.in_flight = added_up([each.select(0, 1 << 62) for each in saved], self.size)
        elif history.repartition is not None:
            self.in_flight = self.in_flight_in(history.repartition)
        else:
            raise ValueError("the records in flight were neither saved nor are they in the topic")

    def _stored(
        self,
        partitions: Partitions,
        stored: Mapping[TopicPartitionId, Sequence[Record] | Records],
    ) -> Partitions:
        """What was stored of a changelog; nothing of a partition that was forgotten."""
        content = {each: stored.get(each, ()) for each in partitions}
        return {
            each: records if isinstance(records, Records) else totals(records, self.history.names)
            for each, records in content.items()
        }

    def below_end(self, partitions: Partitions) -> list[Records]:
        """The records that belong to the cut."""
        return self._between(partitions, {})

    def in_flight_in(self, repartition: Partitions) -> PerKey:
        """What a repartition topic has from the committed offset to the end of the cut."""
        return added_up(self._between(repartition, self.cut.committed), self.size)

    def _between(
        self, partitions: Partitions, starts: Mapping[TopicPartitionId, int]
    ) -> list[Records]:
        ends, excluded = self.cut.ends, self.cut.excluded
        return [
            records.select(starts.get(each, 0), ends.get(each, 0), excluded.get(each, ()))
            for each, records in partitions.items()
        ]

    def read(self, partitions: Partitions) -> PerKey:
        """What the application had read by the committed offsets."""
        committed = self.cut.committed
        below = (each.select(0, committed.get(id_, 0)) for id_, each in partitions.items())
        return added_up(below, self.size)

    def not_counting_on(self, check: Check, parts: Iterable[Records]) -> list[Violation]:
        """Keys whose counts are not 1, 2, 3, ... in the order of the offsets."""
        names = self.history.names.all()
        return [
            Violation(check, names[key], (found, 0), (due, 0))
            for part in parts
            for key, found, due in out_of_step(part, self.size)
        ]

    def different(self, check: Check, left: PerKey, right: PerKey) -> list[Violation]:
        """Keys for which the two sides differ."""
        wrong = (left.counts != right.counts) | (left.sums != right.sums)
        return self.where(wrong, check, left, right)

    def where(
        self, wrong: npt.NDArray[np.bool_], check: Check, left: PerKey, right: PerKey
    ) -> list[Violation]:
        """One violation for each key that is marked."""
        names = self.history.names.all() if wrong.any() else []
        return [
            Violation(
                check,
                names[key],
                (int(left.counts[key]), int(left.sums[key])),
                (int(right.counts[key]), int(right.sums[key])),
            )
            for key in np.flatnonzero(wrong)
        ]
