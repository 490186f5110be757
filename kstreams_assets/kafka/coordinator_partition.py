"""Which partition of an internal topic holds a group or a transactional id."""

from typing import Final

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"

_LOWEST: Final = -(2**31)


def java_string_hash(text: str) -> int:
    """What Java's `String.hashCode` gives: signed 32 bits, over UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def coordinator_partition(name: str, partitions: int) -> int:
    """The partition for a group (of CONSUMER_OFFSETS) or transactional id (of TRANSACTION_STATE).

    Both by `Utils.abs(hashCode) % partitions`, where the abs of the lowest integer is 0 (Kafka's
    GroupCoordinatorService and TransactionStateManager); not by its `toPositive`, which serves
    the partitioner of producers.
    """
    value = java_string_hash(name)
    return 0 if value == _LOWEST else abs(value) % partitions
