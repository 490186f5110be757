"""How a dataclass says which of its fields are columns of a table, and what they mean.

Without Arrow, which costs an import: the classes that are stored are used where nothing is read.
`repository/rows.py` makes of them what the tables need.
"""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class Column:
    """A field that is a column: its annotation is `Annotated[<type>, Column("what it means")]`.

    Type and name are those of the field, unless others are given (`type` as Arrow calls it). Null
    is allowed where the type says so, and for lists and maps, in which it is read as empty.
    `nullable` says otherwise; null then stands for the field's default, as in rows of earlier
    releases, and an empty list is stored as null. A column that is `last` stands behind those that
    are not: it was added by a later release (2: by one later still).
    """

    text: str = ""
    name: str | None = None
    type: str | None = None
    nullable: bool | None = None
    last: int = 0


class Columns:
    """Annotates a field whose value has columns of its own: which of its fields, in this order."""

    def __init__(self, **by_field: Column) -> None:
        self.by_field = by_field


Int32 = Annotated[int, Column(type="int32")]
"""In values inside of a column, which have no text of their own."""

ApplicationId = Annotated[str, Column("The application.")]
RunId = Annotated[str, Column("Dagster run, or `cli-...`.")]
TopicName = Annotated[str, Column("Topic.")]
TopicId = Annotated[
    str,
    Column(
        "Id that Kafka gave the topic; a recreated topic has another one. If the log of the"
        " partition was truncated, with `~` and the leader epoch in which that was seen."
    ),
]
WINDOW_KEY = Column("Key of the window, as in Dagster.", name="window")
WINDOW_END = Column("Exclusive end of the window, epoch milliseconds.", name="window_end_ms")
WindowColumns = Columns(
    key=WINDOW_KEY,
    start_ms=Column("Begin of the window, epoch milliseconds.", name="window_start_ms"),
    end_ms=WINDOW_END,
)
SpanColumns = Columns(
    **WindowColumns.by_field,
    kind=Column(
        "What the row stands for: `window`, `increment` (a part of an open window) or `merged`"
        " (several windows, by `expire`); null in rows that only an earlier release has written.",
        nullable=True,
        last=2,
    ),
    first_window=Column(
        "Key of the first window that the row stands for, of an increment that of its window;"
        " null as `kind`.",
        nullable=True,
        last=2,
    ),
    last_window=Column("Key of the last one; null as `kind`.", nullable=True, last=2),
)
"""As `WindowColumns`, of rows that need not be one window."""
PARTITION = Column("Partition of the topic.", type="int32")
OFFSET = Column("Offset in Kafka.")
TIMESTAMP = Column("Epoch milliseconds exactly as Kafka stored it; 0 and -1 are kept.")
TIMESTAMP_TYPE = Column("0 CreateTime, 1 LogAppendTime.", type="int32")
HEADERS = Column(
    "In order; duplicate keys and null values are kept. `key_bytes` holds a key that is not UTF-8"
    " (`key` then has replacement characters); null: `key` is exact."
)
KEY = Column("Raw bytes; null and empty are told apart.")
VALUE = Column("Raw bytes; null is a tombstone.")
