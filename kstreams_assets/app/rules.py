"""Completeness rules and recomputed stores, as they are declared. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kstreams_assets.app.store_format import Format
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


DEFAULT_TIMEOUT_S: Final = 1800.0


@dataclass(frozen=True, slots=True)
class RuleLimits:
    """What the queries of a rule may use; each is ended at the first limit that it reaches.

    `timeout_s` are seconds for each. No more than `rows` in violation are counted. `memory_bytes`
    may a table take that Spark holds in memory for a join, and all rows together that are shown.
    """

    timeout_s: float = DEFAULT_TIMEOUT_S
    rows: int = 1_000_000
    memory_bytes: int = 512 * 1024**2


EVERYWHERE: Final = frozenset(Place)


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


@dataclass(frozen=True, slots=True)
class CompletenessRule:
    """One rule; it holds when `sql` returns no row.

    `sql` is Spark SQL over the views `views` (see `completeness.view`). `balance` is the short form
    it was made from, as the user wrote it. `blocking`: a violation on a restored cluster keeps the
    group offsets from being committed. `line` is where it begins in the YAML. `limits` are what
    its query may use.
    """

    name: str
    sql: str
    views: tuple[str, ...]
    balance: str | None = None
    scope: Scope = Scope.EVERYTHING
    severity: Severity = Severity.ERROR
    blocking: bool = True
    on: frozenset[Place] = EVERYWHERE
    description: str = ""
    limits: RuleLimits = RuleLimits()
    line: int | None = None
    repeats: RepeatEffect | None = None
    """Of a balance."""


@dataclass(frozen=True, slots=True)
class TopicFormat:
    """How the keys and values of a topic are read."""

    key: Format
    value: Format


@dataclass(frozen=True, slots=True)
class WindowedBy:
    """Tumbling or hopping windows of a recomputed store, in milliseconds."""

    size_ms: int
    advance_ms: int
    grace_ms: int


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A store of counts and sums, to be recomputed from one input topic.

    `key` is a SQL expression over the view of `source` that gives the store's key, `where` which
    records count. `values` are aggregates, `count(*)` or `sum(...)`, by field of the value; the
    name is empty where the whole value is one number. `limits` are what its query may use.
    `through` is the repartition topic between
    the two: its records in flight are not in the store yet. `windowed_by` is set for windowed
    stores. `line` is where it stands in the YAML.
    """

    store: str
    source: str
    key: str
    values: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    through: str | None = None
    windowed_by: WindowedBy | None = None
    line: int | None = None
    limits: RuleLimits = RuleLimits()
