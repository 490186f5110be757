"""Declared completeness rules and recomputed stores. Pure."""

import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import Field, model_validator

from kstreams_assets.app.store_format import Format
from kstreams_assets.block import Block
from kstreams_assets.checks import Severity


class Place(StrEnum):
    """Where a rule is evaluated.

    `backup`: at the recovery point of a window, or at any other covered point; stores are rebuilt
    from their changelogs. `ktables`: the same with stores from their KTable snapshots. `restore`:
    on a restored cluster, before the group offsets are committed.
    """

    BACKUP = "backup"
    KTABLES = "ktables"
    RESTORE = "restore"


_MOST: Final = 2_000_000_000
"""The largest number that Spark stores in 32 bits."""
_MIB: Final = 1024**2


class RuleLimits(Block):
    """Limits of a rule or a recomputation; its query is stopped at the first limit it reaches."""

    timeout_seconds: float = Field(
        default=1800.0,
        gt=0,
        le=threading.TIMEOUT_MAX,
        description="Time limit of the query; a rule that exceeds it has failed.",
    )
    max_rows: int = Field(
        default=1_000_000,
        ge=1,
        le=_MOST,
        description="How many violating rows are counted at most; the result then says that there"
        " are more.",
    )
    max_memory_mib: int = Field(
        default=512,
        ge=1,
        le=_MOST,
        description="Memory limit of a table that Spark keeps in memory for a join, and of the"
        " rows that are shown. A rule that exceeds it has failed.",
    )

    @property
    def memory_bytes(self) -> int:
        """Memory limit of one table in a join, and of all shown rows together."""
        return self.max_memory_mib * _MIB

    @property
    def limits(self) -> "RuleLimits":
        """Only the limits."""
        return RuleLimits(**{name: getattr(self, name) for name in RuleLimits.model_fields})


class Scope(StrEnum):
    """The records in the views of a rule.

    `everything`: all records up to the point. `window`: the records since the previous window's
    point; earlier ones are in the views `<name>@before` (stores, records in flight).
    """

    EVERYTHING = "everything"
    WINDOW = "window"


@dataclass(frozen=True, slots=True)
class RepeatEffect:
    """How records that the application processes twice change the difference of a balance.

    `sign` is 1 if they can only make `left - right` larger, -1 if smaller, 0 if either. `counts`:
    the balance counts records, so the number of repeats limits the difference; it does not limit
    sums of other numbers.
    """

    sign: int
    counts: bool


class DeclaredRule(RuleLimits):
    """One completeness rule: `sql`, or `balance` as its short form.

    `sql` returns the violating rows; it is Spark SQL over views that are named after topics and
    stores. `balance` is an equation of counts (`a.v1`), sums (`sum(a.v1.amount)`) and records in
    flight (`in_flight(a)`).
    """

    name: str = Field(description="Name of the rule, and of its asset check.")
    sql: str | None = Field(default=None, description="Returns the violating rows.")
    balance: str | None = Field(
        default=None,
        description="Left side == right side, of topics and stores joined by + and -.",
        examples=["orders.created.v1 == orders.risk-candidates.v1 + orders.error.v1"],
    )
    per: str | None = Field(
        default=None,
        description="Compare for each value of this column (_key for the record key); by default"
        " in total.",
    )
    scope: Scope = Field(
        default=Scope.EVERYTHING,
        description="Whether all records up to the point count, or only those since the previous"
        " window.",
    )
    severity: Severity = Field(default=Severity.ERROR, description="error or warn.")
    blocking: bool = Field(
        default=True,
        description="Whether the rule, if violated or failed on a restored cluster, blocks the"
        " commit of group offsets. Rules of severity warn never block.",
    )
    on: list[Place] = Field(
        default=list(Place), description="Where it is evaluated: backup, ktables, restore."
    )
    description: str = Field(default="", description="Its meaning, in words.")

    @model_validator(mode="before")
    @classmethod
    def _read_on(cls, given: object) -> object:
        """YAML 1.1 parses a bare `on` as true."""
        if isinstance(given, dict) and True in given:
            return {"on" if key is True else key: value for key, value in given.items()}
        return given


class CompletenessRule(DeclaredRule):
    """One rule as it is evaluated; it holds if `query` returns no row.

    `query` is Spark SQL over the views `views` (see `rules.view`): `sql`, or the translation of
    `balance`. `line` is its first line in the YAML.
    """

    query: str
    views: tuple[str, ...]
    line: int | None = None
    repeats: RepeatEffect | None = None
    """Of a balance."""


@dataclass(frozen=True, slots=True)
class TopicFormat:
    """The format of the keys and values of a topic."""

    key: Format
    value: Format


class WindowedBy(Block):
    """Tumbling or hopping windows of a recomputed store."""

    size_ms: int = Field(description="Length of a window.")
    advance_ms: int | None = Field(
        default=None, description="Of hopping windows; default: the length."
    )
    grace_ms: int = Field(default=0, description="How late records may be.")

    @property
    def step_ms(self) -> int:
        """Time from the start of one window to the start of the next."""
        return self.size_ms if self.advance_ms is None else self.advance_ms


class DeclaredRecomputation(RuleLimits):
    """How a store of counts or sums is computed from one input topic."""

    source: str = Field(description="The input topic.")
    key: str = Field(
        default="_key", description="SQL expression over its view that computes the store's key."
    )
    values: str | dict[str, str] = Field(
        default="count(*)",
        description="count(*) or sum(...); one per field if the value has several.",
        examples=[{"count": "count(*)", "total_cents": "sum(amount_cents)"}],
    )
    where: str = Field(default="", description="SQL condition that selects the records.")
    through: str | None = Field(
        default=None, description="The repartition topic between the two, if any."
    )
    windowed_by: WindowedBy | None = Field(default=None, description="Windows of a windowed store.")

    @property
    def aggregates(self) -> dict[str, str]:
        """The aggregates by field of the value; the name is empty for a single number."""
        return {"": self.values} if isinstance(self.values, str) else self.values


class Recomputation(DeclaredRecomputation):
    """A store of counts and sums that is recomputed from one input topic.

    The records in flight in `through` are not in the store yet. `line` is its line in the YAML.
    """

    store: str
    line: int | None = None
