"""tests/recovery/oracle.py: a correct cut passes, each kind of mistake is named."""

from dataclasses import replace

import numpy as np
import pytest

from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from tests.recovery.oracle import Check, Cut, History, Violation, lost_only, violations
from tests.recovery.oracle_records import Records, merged, orders, totals
from tests.timing import processor_time

ORDERS = TopicPartitionId("orders", 0)
ORDERS_1 = TopicPartitionId("orders", 1)
REPARTITION = TopicPartitionId("app-by-customer-repartition", 0)
CHANGELOG = TopicPartitionId("app-totals-changelog", 0)
OUTPUT = TopicPartitionId("totals", 0)
TICKS_CHANGELOG = TopicPartitionId("app-ticks-changelog", 0)
TICKS = TopicPartitionId("ticks", 0)

# Offset 2 of the repartition topic and of the changelog, and 3 of the output, are markers. The
# orders at 3 (no order) and 4 and the last record of each topic come after the cut.
HISTORY = History.of(
    inputs={
        ORDERS: [
            (0, b"o0", b"anna,5"),
            (1, b"o1", b"bert,7"),
            (3, b"o3", b"-"),
            (4, b"", b"eve,9"),
        ],
        ORDERS_1: [(0, b"o2", b"anna,2"), (1, b"o4", b"nonsense"), (2, b"o5", b"bert,1")],
    },
    repartition={
        REPARTITION: [
            (0, b"anna", b"anna,5"),
            (1, b"bert", b"bert,7"),
            (3, b"anna", b"anna,2"),
            (4, b"bert", b"bert,1"),
            (6, b"eve", b"eve,9"),
        ]
    },
    changelog={
        CHANGELOG: [
            (0, b"anna", b"1,5"),
            (1, b"bert", b"1,7"),
            (3, b"anna", b"2,7"),
            (5, b"bert", b"2,8"),
        ]
    },
    outputs={
        OUTPUT: [
            (0, b"anna", b"1,5"),
            (1, b"bert", b"1,7"),
            (2, b"anna", b"2,7"),
            (4, b"bert", b"2,8"),
        ]
    },
    ticks_changelog={TICKS_CHANGELOG: [(0, b"task-0", b"1"), (2, b"task-0", b"2")]},
    ticks_outputs={TICKS: [(0, b"task-0", b"1"), (2, b"task-0", b"2")]},
)
"""What Kafka has in the end."""

CUT = Cut(
    committed={ORDERS: 3, ORDERS_1: 3, REPARTITION: 4},
    ends={REPARTITION: 6, CHANGELOG: 4, OUTPUT: 4, TICKS_CHANGELOG: 3, TICKS: 3},
    in_flight={REPARTITION: [(4, b"bert", b"bert,1")]},
)
"""Three of the four orders are applied, one is in flight."""


def checks(found: list[Violation]) -> set[Check]:
    return {violation.check for violation in found}


def test_an_exact_cut_has_no_violation() -> None:
    assert violations(HISTORY, CUT) == []
    assert lost_only(HISTORY, CUT) == []


def test_nothing_read_yet_is_exact() -> None:
    assert violations(HISTORY, Cut(committed={}, ends={})) == []


def test_the_end_of_the_run_is_exact() -> None:
    done = Cut(
        {ORDERS: 4, ORDERS_1: 3, REPARTITION: 5},
        dict.fromkeys((CHANGELOG, OUTPUT, TICKS_CHANGELOG, TICKS), 99) | {REPARTITION: 5},
    )
    assert violations(HISTORY, done) == []


def test_records_in_flight_come_from_the_topic_when_none_were_saved() -> None:
    assert violations(HISTORY, replace(CUT, in_flight=None)) == []
    purged = replace(HISTORY, repartition=None)
    assert violations(purged, CUT) == []
    with pytest.raises(ValueError, match="in flight"):
        violations(purged, replace(CUT, in_flight=None))


def test_a_changelog_end_too_early_or_too_late() -> None:
    early = violations(HISTORY, replace(CUT, ends={**CUT.ends, CHANGELOG: 3}))
    assert {(v.check, v.key, v.left, v.right) for v in early} == {
        (Check.NOTHING_LOST_OR_TWICE, "anna", (1, 5), (2, 7)),
        (Check.STATE_IS_WHAT_WAS_READ, "anna", (1, 5), (2, 7)),
        (Check.OUTPUT_IS_STATE, "anna", (2, 7), (1, 5)),
        (Check.OUTPUTS_ARE_CHANGES, "anna", (2, 2), (1, 1)),
    }
    late = violations(HISTORY, replace(CUT, ends={**CUT.ends, CHANGELOG: 6}))
    assert {v.key for v in late} == {"bert"}
    assert Check.NOTHING_LOST_OR_TWICE in checks(late)


def test_excluded_ranges_count() -> None:
    # The cut of another moment: bert's second order is applied, anna's second one is not.
    ends = {**CUT.ends, REPARTITION: 5, CHANGELOG: 6, OUTPUT: 5}
    holes = {
        CHANGELOG: (OffsetRange(2, 5),),
        OUTPUT: (OffsetRange(2, 4),),
    }
    wrong = violations(HISTORY, replace(CUT, ends=ends, excluded=holes))
    assert {(v.key, v.left, v.right) for v in wrong if v.check is Check.STATE_IS_WHAT_WAS_READ} == {
        ("anna", (1, 5), (2, 7)),
        ("bert", (2, 8), (1, 7)),
    }
    assert not checks(wrong) & {Check.OUTPUT_IS_STATE, Check.OUTPUTS_COUNT_ON}
    # Nothing of a hole is in flight.
    hole = {REPARTITION: (OffsetRange(4, 5),)}
    found = violations(HISTORY, replace(CUT, excluded=hole, in_flight=None))
    assert checks(found) == {Check.NOTHING_LOST_OR_TWICE}
    found = violations(HISTORY, replace(CUT, excluded=hole))
    assert checks(found) == {Check.IN_FLIGHT_COMPLETE}


def test_offsets_of_another_moment() -> None:
    older = violations(HISTORY, replace(CUT, committed={**CUT.committed, ORDERS: 1}))
    assert older == [Violation(Check.NOTHING_LOST_OR_TWICE, "bert", (2, 8), (1, 1))]
    assert lost_only(HISTORY, replace(CUT, committed={**CUT.committed, ORDERS: 1})) == []
    newer = replace(CUT, committed={**CUT.committed, ORDERS: 5})
    assert checks(violations(HISTORY, newer)) == {Check.NOTHING_LOST_OR_TWICE}
    assert lost_only(HISTORY, newer) == [Violation(Check.NOTHING_LOST, "eve", (0, 0), (1, 9))]
    repartition = replace(CUT, committed={**CUT.committed, REPARTITION: 3}, in_flight=None)
    assert checks(violations(HISTORY, repartition)) == {
        Check.NOTHING_LOST_OR_TWICE,
        Check.STATE_IS_WHAT_WAS_READ,
    }
    assert lost_only(HISTORY, repartition) == []


def test_a_lost_record_is_seen_even_if_the_sum_is_not_less() -> None:
    stored = {CHANGELOG: [(1, b"bert", b"1,8"), (3, b"anna", b"2,7")]}
    assert lost_only(HISTORY, replace(CUT, changelog=stored, in_flight={})) == [
        Violation(Check.NOTHING_LOST, "bert", (1, 8), (2, 8))
    ]


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {REPARTITION: [(4, b"bert", b"bert,2")]},
        {REPARTITION: [(4, b"bert", b"bert,1"), (6, b"eve", b"eve,9")]},
    ],
)
def test_records_saved_in_flight_are_missing_altered_or_too_many(saved: dict) -> None:
    found = violations(HISTORY, replace(CUT, in_flight=saved))
    assert checks(found) == {Check.NOTHING_LOST_OR_TWICE, Check.IN_FLIGHT_COMPLETE}
    lost = lost_only(HISTORY, replace(CUT, in_flight=saved))
    assert bool(lost) == (saved == {})


def test_an_output_that_misses_a_record() -> None:
    found = violations(HISTORY, replace(CUT, excluded={OUTPUT: (OffsetRange(0, 1),)}))
    assert found == [
        Violation(Check.OUTPUTS_COUNT_ON, "anna", (2, 0), (1, 0)),
        Violation(Check.OUTPUTS_ARE_CHANGES, "anna", (1, 1), (2, 2)),
    ]
    found = violations(HISTORY, replace(CUT, ends={**CUT.ends, OUTPUT: 2}))
    assert checks(found) == {Check.OUTPUT_IS_STATE, Check.OUTPUTS_ARE_CHANGES}


def test_an_output_that_is_written_twice() -> None:
    names = HISTORY.names
    rows = [(0, b"anna", b"1,5"), (1, b"bert", b"1,7"), (2, b"anna", b"2,7"), (3, b"anna", b"2,7")]
    twice = replace(HISTORY, outputs={OUTPUT: totals(rows, names)})
    assert violations(twice, CUT) == [
        Violation(Check.OUTPUTS_COUNT_ON, "anna", (2, 0), (3, 0)),
        Violation(Check.OUTPUTS_ARE_CHANGES, "anna", (3, 3), (2, 2)),
    ]


def test_ticks_of_a_transaction_that_is_only_half_in_the_cut() -> None:
    found = violations(HISTORY, replace(CUT, ends={**CUT.ends, TICKS: 2}))
    assert found == [Violation(Check.TICKS_ARE_STATE, "task-0", (1, 0), (2, 0))]
    found = violations(HISTORY, replace(CUT, ends={**CUT.ends, TICKS_CHANGELOG: 2}))
    assert found == [Violation(Check.TICKS_ARE_STATE, "task-0", (2, 0), (1, 0))]


def test_ticks_with_a_hole_or_a_repeat() -> None:
    found = violations(HISTORY, replace(CUT, excluded={TICKS: (OffsetRange(0, 1),)}))
    assert found == [Violation(Check.TICKS_COUNT_ON, "task-0", (2, 0), (1, 0))]
    rows = [(0, b"task-0", b"1"), (1, b"task-0", b"1"), (2, b"task-0", b"2")]
    twice = replace(HISTORY, ticks_outputs={TICKS: totals(rows, HISTORY.names)})
    assert violations(twice, CUT) == [Violation(Check.TICKS_COUNT_ON, "task-0", (1, 0), (2, 0))]


def test_stored_changelogs_take_the_place_of_the_topics() -> None:
    compacted = replace(
        HISTORY,
        changelog={CHANGELOG: totals([(5, b"bert", b"2,8")], HISTORY.names)},
        changelog_complete=False,
    )
    lost = violations(compacted, CUT)
    assert {v.check for v in lost if v.key == "anna"} >= {
        Check.NOTHING_LOST_OR_TWICE,
        Check.OUTPUT_IS_STATE,
    }
    assert Check.OUTPUTS_ARE_CHANGES not in checks(lost)
    stored = {
        # Compacted before it was read, which harms nothing; more than the cut holds; in any order.
        CHANGELOG: [(3, b"anna", b"2,7"), (5, b"bert", b"2,8"), (1, b"bert", b"1,7")],
        TICKS_CHANGELOG: totals([(2, b"task-0", b"2")], HISTORY.names),
    }
    assert violations(compacted, replace(CUT, changelog=stored)) == []
    forgotten = violations(HISTORY, replace(CUT, changelog={CHANGELOG: stored[CHANGELOG]}))
    assert forgotten == [Violation(Check.TICKS_ARE_STATE, "task-0", (2, 0), (0, 0))]


def test_keys_that_only_a_cut_has_are_judged() -> None:
    stored = {
        CHANGELOG: [(0, b"bert", b"1,7"), (1, b"anna", b"2,7"), (2, b"zoe", b"1,1")],
        TICKS_CHANGELOG: [(2, b"task-0", b"2")],
    }
    found = violations(HISTORY, replace(CUT, changelog=stored))
    assert {violation.key for violation in found} == {"zoe"}


def test_parts_of_a_partition_are_put_together_by_offset() -> None:
    names = HISTORY.names
    span = totals([(0, b"anna", b"1,5"), (1, b"bert", b"1,7")], names)
    tail = totals([(3, b"anna", b"2,7"), (1, b"bert", b"1,7")], names)
    assert merged([tail, span]).offsets.tolist() == [0, 1, 3]
    assert merged([tail, span]).counts.tolist() == [1, 1, 2]


def test_a_violation_tells_check_key_and_both_sides() -> None:
    violation = Violation(Check.OUTPUT_IS_STATE, "anna", (2, 7), (1, 5))
    assert str(violation) == "anna: last output == state: (2, 7), (1, 5)"


def test_ten_cuts_of_half_a_million_records_take_half_a_second() -> None:
    count, customers = 500_000, 500
    history, changelog = _long_history(count, customers)
    with processor_time() as took:
        for end in range(count // 10, count + 1, count // 10):
            cut = Cut(
                {ORDERS: end, REPARTITION: end},
                {REPARTITION: end, CHANGELOG: end, OUTPUT: end},
                changelog={CHANGELOG: changelog},
            )
            assert violations(history, cut) == []
    assert took.seconds < 10


def _long_history(count: int, customers: int) -> tuple[History, Records]:
    template = History.of(inputs={}, repartition={}, changelog={}, outputs={})
    for number in range(customers):
        orders([(0, None, b"customer-%d,1" % number)], template.names)
    offsets = np.arange(count)
    keys, ones = offsets % customers, np.ones(count, np.int64)
    change = Records(offsets, keys, offsets // customers + 1, offsets // customers + 1)
    order = Records(offsets, keys, ones, ones)
    history = replace(
        template,
        inputs={ORDERS: order},
        repartition={REPARTITION: order},
        changelog={CHANGELOG: change},
        outputs={OUTPUT: change},
    )
    return history, change
