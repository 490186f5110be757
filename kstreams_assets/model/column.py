"""Declare which fields of a dataclass are columns of a table, and what they mean.

Without Arrow, whose import is expensive: stored classes are also used where nothing is read.
`repository/rows.py` derives from them what the tables need.
"""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class Column:
    """A field that is a column: its annotation is `Annotated[<type>, Column("its meaning")]`.

    Type and name are those of the field, unless others are given (`type` with Arrow's name). Null
    is allowed if the type allows it, and for lists and maps, where it is read as empty. `nullable`
    overrides this; null then means the field's default, as in rows of earlier releases, and an
    empty list is stored as null. Columns with `last` follow the others: a later release added them
    (2: an even later one).
    """

    text: str = ""
    name: str | None = None
    type: str | None = None
    nullable: bool | None = None
    last: int = 0


class Columns:
    """Annotates a field whose value has its own columns: the fields, in this order."""

    def __init__(self, **by_field: Column) -> None:
        self.by_field = by_field


Int32 = Annotated[int, Column(type="int32")]
"""For values inside a column, which have no text of their own."""

ApplicationId = Annotated[str, Column("The application.")]
RunId = Annotated[str, Column("Dagster run, or `cli-...`.")]
TopicName = Annotated[str, Column("Topic.")]
TopicId = Annotated[
    str,
    Column(
        "Kafka's topic id; a recreated topic has another one. If the log of the partition was"
        " truncated, followed by `~` and the leader epoch in which that was seen."
    ),
]
WINDOW_KEY = Column("Key of the window, as in Dagster.", name="window")
WINDOW_END = Column("Exclusive end of the window, epoch milliseconds.", name="window_end_ms")
WindowColumns = Columns(
    key=WINDOW_KEY,
    start_ms=Column("Start of the window, epoch milliseconds.", name="window_start_ms"),
    end_ms=WINDOW_END,
)
SpanColumns = Columns(
    **WindowColumns.by_field,
    kind=Column(
        "Kind of the row: `window`, `increment` (a part of an open window) or `merged` (several"
        " windows, by `expire`); null in rows that only an earlier release has written.",
        nullable=True,
        last=2,
    ),
    first_window=Column(
        "Key of the row's first window, for an increment that of its window; null like `kind`.",
        nullable=True,
        last=2,
    ),
    last_window=Column("Key of the row's last window; null like `kind`.", nullable=True, last=2),
)
"""Like `WindowColumns`, for rows with other kinds of spans."""
PARTITION = Column("Partition of the topic.", type="int32")
OFFSET = Column("Offset in Kafka.")
TIMESTAMP = Column("Epoch milliseconds exactly as stored in Kafka, including 0 and -1.")
TIMESTAMP_TYPE = Column("0 CreateTime, 1 LogAppendTime.", type="int32")
HEADERS = Column(
    "In order, including duplicate keys and null values. `key_bytes` contains a key that is not"
    " UTF-8 (`key` then has replacement characters); null: `key` is exact."
)
KEY = Column("Raw bytes; null and empty are distinct.")
VALUE = Column("Raw bytes; null is a tombstone.")
