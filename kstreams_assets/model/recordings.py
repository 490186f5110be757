"""Rows of the ledger, and what a run recorded about a topic in a window."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from kstreams_assets.model.column import (
    WINDOW_END,
    WINDOW_KEY,
    ApplicationId,
    Column,
    RunId,
    TopicName,
)
from kstreams_assets.model.spans import SpanResult, TopicFacts, Window

_NO_PARTITION = -1
"""A topic without partitions when the window closed has one row: the window is done."""


RecordedTopic = tuple[Window, str]
"""A window and the name of a topic."""


class BackedUpTopic(Protocol):
    """A topic in a window that was backed up just now."""

    @property
    def window(self) -> Window: ...

    @property
    def topic(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def spans(self) -> Sequence[SpanResult]: ...

    @property
    def facts(self) -> TopicFacts | None: ...

    @property
    def recovery_point_id(self) -> str | None: ...

    @property
    def delta_version(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One row of the ledger."""

    application_id: ApplicationId
    result: SpanResult
    recovery_point_id: Annotated[str | None, Column("The recovery point that ends the window.")]
    delta_version: Annotated[int | None, Column("Version of the records table with the span.")]
    run_id: RunId
    recorded_at_ms: Annotated[int, Column("When the row was written, epoch milliseconds.")]
    ledger_version: Annotated[
        int | None,
        Column("Version of this table when the span had been read; null: unknown."),
    ]

    @property
    def has_span(self) -> bool:
        """False if the row only marks the window as done: the topic had no partition."""
        return self.result.partition.partition != _NO_PARTITION


@dataclass(frozen=True, slots=True)
class StoredSize:
    """The size of a topic in a window: rows of the ledger, records, and bytes of its files."""

    rows: int
    records: int
    bytes: int


Recorded = Mapping[RecordedTopic, tuple[LedgerEntry, ...]]
"""Rows of the ledger by window and topic; see `LedgerEntry.has_span`."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A run's record of a topic in a window. A repetition is another recording."""

    window: Window
    topic: str
    run_id: str
    recorded_at_ms: int

    @classmethod
    def of(cls, entries: Sequence[LedgerEntry]) -> "Recording":
        """The recording in the rows of one topic in one window."""
        result = entries[0].result
        recorded_at_ms = max(entry.recorded_at_ms for entry in entries)
        return cls(result.plan.window, result.partition.topic, entries[0].run_id, recorded_at_ms)


@dataclass(frozen=True, slots=True)
class NotedTopic:
    """A row of the table."""

    application_id: ApplicationId
    window: Annotated[str, WINDOW_KEY]
    window_end_ms: Annotated[int, WINDOW_END]
    topic: TopicName
    role: Annotated[str, Column("Roles, joined with `+`.")]
    facts: TopicFacts
