"""Completeness rules and recomputed stores, as they are declared. Pure."""

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

    `backup`: at the recovery point of a window, or at any other that the backup covers; stores are
    rebuilt from their changelogs. `ktables`: the same with stores as their KTable snapshots hold
    them. `restore`: on a restored cluster, before the group offsets are committed.
    """

    BACKUP = "backup"
    KTABLES = "ktables"
    RESTORE = "restore"


_MOST: Final = 2_000_000_000
"""What Spark can count and hold by one number of 32 bits."""
_MIB: Final = 1024**2


class RuleLimits(Block):
    """What a rule or a recomputation may use; a query is ended at the first limit it reaches."""

    timeout_seconds: float = Field(
        default=1800.0,
        gt=0,
        le=threading.TIMEOUT_MAX,
        description="After how long its query is ended; the rule has then failed.",
    )
    max_rows: int = Field(
        default=1_000_000,
        ge=1,
        le=_MOST,
        description="How many rows in violation are counted; of more it is said that there are"
        " more.",
    )
    max_memory_mib: int = Field(
        default=512,
        ge=1,
        le=_MOST,
        description="How much a table that Spark holds in memory for a join may take, and the rows"
        " that are shown; the rule has failed where they take more.",
    )

    @property
    def memory_bytes(self) -> int:
        """How much memory a table may take for a join, and all rows together that are shown."""
        return self.max_memory_mib * _MIB

    @property
    def limits(self) -> "RuleLimits":
        """These alone."""
        return RuleLimits(**{name: getattr(self, name) for name in RuleLimits.model_fields})


class Scope(StrEnum):
    """What the views of a rule hold.

    `everything`: all records up to the point. `window`: the records since the point of the window
    before; what was before that is in the views named `<name>@before` (stores, records in flight).
    """

    EVERYTHING = "everything"
    WINDOW = "window"


@dataclass(frozen=True, slots=True)
class RepeatEffect:
    """What records that the application processes twice do to the difference of a balance.

    `sign` is 1 where they can only make `left - right` larger, -1 where smaller, 0 where either.
    `counts`: the balance is one of records, so that the number of repeats bounds the difference;
    sums of other numbers it does not bound.
    """

    sign: int
    counts: bool


class DeclaredRule(RuleLimits):
    """One completeness rule: `sql`, or `balance` as its short form.

    `sql` returns the rows in violation; it is Spark SQL over views that are named after topics and
    stores. `balance` is an equation of counts (`a.v1`), sums (`sum(a.v1.amount)`) and records in
    flight (`in_flight(a)`).
    """

    name: str = Field(description="Name of the rule, and of its asset check.")
    sql: str | None = Field(default=None, description="Returns the rows in violation.")
    balance: str | None = Field(
        default=None,
        description="Left side == right side, of topics and stores joined by + and -.",
        examples=["orders.created.v1 == orders.risk-candidates.v1 + orders.error.v1"],
    )
    per: str | None = Field(
        default=None,
        description="Balance for each value of this column (_key for the record key); in total"
        " without it.",
    )
    scope: Scope = Field(
        default=Scope.EVERYTHING,
        description="Whether everything up to the point counts, or what is new since the window"
        " before.",
    )
    severity: Severity = Field(default=Severity.ERROR, description="error or warn.")
    blocking: bool = Field(
        default=True,
        description="Whether a violation on a restored cluster keeps the group offsets away.",
    )
    on: list[Place] = Field(
        default=list(Place), description="Where it is evaluated: backup, ktables, restore."
    )
    description: str = Field(default="", description="What it says, in words.")

    @model_validator(mode="before")
    @classmethod
    def _read_on(cls, said: object) -> object:
        """YAML of version 1.1 takes a bare `on` for true."""
        if isinstance(said, dict) and True in said:
            return {"on" if key is True else key: value for key, value in said.items()}
        return said


class CompletenessRule(DeclaredRule):
    """One rule as it is evaluated; it holds when `query` returns no row.

    `query` is Spark SQL over the views `views` (see `rules.view`): `sql`, or what `balance`
    means. `line` is where it begins in the YAML.
    """

    query: str
    views: tuple[str, ...]
    line: int | None = None
    repeats: RepeatEffect | None = None
    """Of a balance."""


@dataclass(frozen=True, slots=True)
class TopicFormat:
    """How the keys and values of a topic are read."""

    key: Format
    value: Format


class WindowedBy(Block):
    """Tumbling or hopping windows of a recomputed store."""

    size_ms: int = Field(description="Length of a window.")
    advance_ms: int | None = Field(default=None, description="Of hopping windows; else the length.")
    grace_ms: int = Field(default=0, description="How late records may be.")

    @property
    def step_ms(self) -> int:
        """From the start of one window to that of the next."""
        return self.size_ms if self.advance_ms is None else self.advance_ms


class DeclaredRecomputation(RuleLimits):
    """How a store of counts or sums follows from one input topic."""

    source: str = Field(description="The input topic.")
    key: str = Field(
        default="_key", description="SQL expression over its view that gives the store's key."
    )
    values: str | dict[str, str] = Field(
        default="count(*)",
        description="count(*) or sum(...); by field where the value has several.",
        examples=[{"count": "count(*)", "total_cents": "sum(amount_cents)"}],
    )
    where: str = Field(default="", description="SQL condition: which records count.")
    through: str | None = Field(
        default=None, description="The repartition topic between the two, if there is one."
    )
    windowed_by: WindowedBy | None = Field(default=None, description="Windows of a windowed store.")

    @property
    def aggregates(self) -> dict[str, str]:
        """The aggregates by field of the value; the name is empty where it is one number."""
        return {"": self.values} if isinstance(self.values, str) else self.values


class Recomputation(DeclaredRecomputation):
    """A store of counts and sums, to be recomputed from one input topic.

    The records in flight in `through` are not in the store yet. `line` is where it stands in the
    YAML.
    """

    store: str
    line: int | None = None
