"""Differences between two sequences of records, found and named."""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstreams_assets.offsets import TopicPartitionId
from spark_resources.comparison import (
    ANY_CREATE_TIME,
    KEPT_DIFFERENCES,
    Comparison,
    Record,
    RecordColumns,
)

TARGET = TopicPartitionId("orders", 3)
Row = tuple[int, Record]


def record(number: int, **changes: Any) -> Record:
    """A record that differs from all others in its key, value, timestamp and headers."""
    name = b"%d" % number
    plain = Record((1, 1_000 + number), b"k" + name, b"v" + name, [("a", name), ("b", None)])
    return plain._replace(**changes)


def rows(count: int, start: int = 0) -> list[Row]:
    """Records at consecutive offsets."""
    return [(start + number, record(number)) for number in range(count)]


def moved(records: Iterable[Row], start: int = 0) -> list[Row]:
    """The same records at consecutive offsets, as a producer would write them."""
    return [(offset, content) for offset, (_, content) in enumerate(records, start)]


def chunks(records: Sequence[Row], size: int) -> Iterator[RecordColumns]:
    for at in range(0, len(records), size):
        part = records[at : at + size]
        columns = zip(*((offset, *content) for offset, content in part), strict=True)
        yield RecordColumns(*(list(column) for column in columns))


def compared(backup: Sequence[Row], target: Sequence[Row], *, sizes: tuple[int, int] = (7, 5)):
    """The outcome; source offsets are target offsets plus 100."""
    comparison = Comparison(TARGET, lambda offset: offset + 100)
    comparison.run(chunks(backup, sizes[0]), chunks(target, sizes[1]))
    return comparison


def told(comparison: Comparison) -> list[str]:
    return [str(difference) for difference in comparison.differences]


@pytest.mark.parametrize("sizes", [(1, 1), (7, 5), (5, 7), (100, 3), (3, 100), (100, 100)])
def test_equal_sequences_pass_however_they_are_cut(sizes: tuple[int, int]) -> None:
    comparison = compared(rows(50), rows(50), sizes=sizes)

    assert (comparison.compared, comparison.expected, comparison.differing) == (50, 50, 0)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"key": b"x"}, "key is 1 bytes (sha256 2d711642) instead of 3 bytes (sha256 "),
        ({"value": b""}, "value is empty instead of 3 bytes (sha256 "),
        ({"value": None}, "value is null instead of 3 bytes (sha256 "),
        ({"time": (1, 7)}, "timestamp is 7 instead of 1030 (source offset 130)"),
        ({"time": (2, 1_030)}, "timestamp type is LogAppendTime instead of CreateTime"),
        ({"headers": None}, "has 0 headers instead of 2"),
        ({"headers": [("b", None), ("a", b"30")]}, "its 2 headers have another order"),
        ({"headers": [("a", b"30"), ("c", None)]}, "header 2 of 2 has another name"),
        ({"headers": [("a", b"30"), ("b", b"")]}, "header 2 of 2: value is empty instead of null"),
    ],
)
@pytest.mark.parametrize("at", [0, 30, 49])
def test_one_changed_field_is_named_with_its_offset(
    changes: dict[str, Any], what: str, at: int
) -> None:
    backup, target = rows(50), rows(50)
    backup[at] = (at, record(30))
    target[at] = (at, record(30, **changes))

    comparison = compared(backup, target)

    assert comparison.differing == 1
    (difference,) = comparison.differences
    assert (difference.target, difference.offset) == (TARGET, at)
    assert what.replace("source offset 130", f"source offset {100 + at}") in difference.what
    assert difference.what.endswith(f"(source offset {100 + at})")
    assert comparison.compared == 50


def test_null_is_not_empty() -> None:
    backup, target = [(0, record(0, key=None))], [(0, record(0, key=b""))]

    assert told(compared(backup, target)) == [
        "orders-3 offset 0: key is empty instead of null (source offset 100)"
    ]


def test_what_differs_never_shows_the_payload() -> None:
    secret = b"secret-4711"
    changes = [{"key": secret}, {"value": secret}, {"headers": [("secret-name", secret)]}]
    for change in changes:
        for pair in ((record(0), record(0, **change)), (record(0, **change), record(0))):
            text = str(told(compared([(0, pair[0])], [(0, pair[1])])))
            assert "secret" not in text.replace("sha256", "")


def test_a_missing_record_is_named_and_those_behind_it_are_not() -> None:
    backup = rows(50)

    comparison = compared(backup, moved(backup[:20] + backup[21:]))

    assert told(comparison) == ["orders-3 offset 20: a record is missing here (source offset 120)"]
    assert (comparison.differing, comparison.compared, comparison.expected) == (1, 49, 50)


def test_many_missing_records_in_a_row_are_all_named() -> None:
    backup = rows(100)

    comparison = compared(backup, moved(backup[:20] + backup[25:]))

    assert [d.what for d in comparison.differences] == [
        f"a record is missing here (source offset {120 + n})" for n in range(5)
    ]
    assert comparison.differing == 5


def test_a_hole_left_by_compaction_is_named_and_moves_nothing() -> None:
    backup = rows(50)

    comparison = compared(backup, backup[:20] + backup[22:])

    assert told(comparison) == [
        "orders-3 offset 20: a record is missing here (source offset 120)",
        "orders-3 offset 21: a record is missing here (source offset 121)",
    ]


def test_an_extra_record_in_the_middle_is_named_and_those_behind_it_are_not() -> None:
    backup = rows(50)

    comparison = compared(backup, moved([*backup[:20], (0, record(999)), *backup[20:]]))

    assert told(comparison) == ["orders-3 offset 20: holds a record that is not in the backup"]
    assert comparison.compared == 50


def test_a_doubled_record_is_an_extra_one() -> None:
    backup = rows(50)

    comparison = compared(backup, moved(backup[:21] + backup[20:]))

    assert told(comparison) == ["orders-3 offset 21: holds a record that is not in the backup"]


@pytest.mark.parametrize("at", [0, 20, 48])
def test_two_swapped_neighbours_are_named(at: int) -> None:
    backup = rows(50)
    target = backup.copy()
    target[at], target[at + 1] = target[at + 1], target[at]

    assert told(compared(backup, moved(target))) == [
        f"orders-3 offset {at}: is swapped with the record at offset {at + 1}"
        f" (source offset {100 + at})",
        f"orders-3 offset {at + 1}: is swapped with the record at offset {at}"
        f" (source offset {101 + at})",
    ]


def test_two_distant_records_swapped_are_named() -> None:
    backup = rows(50)
    target = backup.copy()
    target[10], target[40] = target[40], target[10]

    comparison = compared(backup, moved(target))

    assert [d.offset for d in comparison.differences] == [10, 40]


def test_missing_and_extra_records_at_the_end_are_named() -> None:
    assert told(compared(rows(50), rows(49))) == [
        "orders-3 offset 49: a record is missing here (source offset 149)"
    ]
    assert told(compared(rows(49), rows(50))) == [
        "orders-3 offset 49: holds a record that is not in the backup"
    ]


def test_a_difference_behind_a_missing_record_is_named_at_its_own_offset() -> None:
    backup = rows(50)
    target = moved(backup[:20] + backup[21:])
    target[39] = (39, target[39][1]._replace(value=b"x"))

    first, second = compared(backup, target).differences

    assert (first.offset, second.offset) == (20, 39)
    assert second.what.endswith("(source offset 140)")


def test_equal_contents_at_another_offset_do_not_pass() -> None:
    assert compared(rows(5), rows(5, start=1)).differing > 0
    assert told(compared(rows(5, start=1), rows(5))) == [
        "orders-3 offset 0: holds a record that is not in the backup",
        "orders-3 offset 1: a record is missing here (source offset 101)",
    ]


def test_only_the_first_differences_are_kept_but_all_are_counted() -> None:
    backup = rows(30_000)
    target = [(offset, content._replace(value=b"x")) for offset, content in backup]

    comparison = compared(backup, target, sizes=(10_000, 9_000))

    assert comparison.differing == 30_000
    assert len(comparison.differences) == KEPT_DIFFERENCES


def test_a_replaced_timestamp_equals_any_of_type_create_time() -> None:
    backup = [(0, record(0, time=ANY_CREATE_TIME)), (1, record(1, time=ANY_CREATE_TIME))]
    target = [(0, record(0, time=(1, 5_000))), (1, record(1, time=(2, 5_000)))]

    assert told(compared(backup, target)) == [
        "orders-3 offset 1: timestamp type is LogAppendTime instead of CreateTime"
        " (source offset 101)"
    ]


@given(st.data())
def test_any_other_sequence_is_refused(data: st.DataObject) -> None:
    """Records repeat, so that alignment by content can go wrong; a verdict must not."""
    numbers = data.draw(st.lists(st.integers(0, 2), max_size=40))
    backup = [(offset, record(number)) for offset, number in enumerate(numbers)]
    other = data.draw(st.lists(st.integers(0, 2), max_size=40))
    target = [(offset, record(number)) for offset, number in enumerate(other)]
    sizes = data.draw(st.tuples(st.integers(1, 50), st.integers(1, 50)))

    comparison = compared(backup, target, sizes=sizes)

    assert (comparison.differing == 0) == (numbers == other)
    assert comparison.expected == len(numbers)


def test_random_tampering_is_always_found_at_or_before_its_place() -> None:
    chance = random.Random(5)
    for _ in range(300):
        backup = rows(200)
        at = chance.randrange(200)
        target = backup.copy()
        match chance.randrange(3):
            case 0:
                del target[at]
            case 1:
                target.insert(at, (0, record(1_000)))
            case _:
                target[at] = (at, record(at, value=b"other"))

        comparison = compared(backup, moved(target), sizes=(chance.randrange(1, 250), 17))

        assert [d.offset for d in comparison.differences] == [at]
