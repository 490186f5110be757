"""Where groups and transactional ids live; the hashes are what Java's String.hashCode gives."""

import pytest

from kstreams_assets.kafka.coordinator_log import coordinator_partition, java_string_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("orders", -1008770331),
        ("größe", 98762257),
        ("😀", 1772899),
        ("polygenelubricants", -2147483648),
        ("orders-00000000-0000-0000-0000-000000000000-1", 600019404),
    ],
)
def test_hash(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


def test_partition_is_by_the_absolute_value() -> None:
    # & 0x7fffffff, as for keys of records, would give 17
    assert coordinator_partition("orders", 50) == 31
    assert coordinator_partition("orders", 1) == 0


def test_lowest_hash() -> None:
    assert (
        coordinator_partition("polygenelubricants", 50) == 0
    )  # Java's own abs would stay negative
