"""A completeness rule: SQL that returns the rows in violation, and where it holds. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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
EVERYWHERE: Final = frozenset(Place)


class Scope(StrEnum):
    """What the views of a rule hold.

    `everything`: all records up to the point. `window`: the records since the point of the window
    before; what was before that is in the views named `<name>@before` (stores, records in flight).
    """

    EVERYTHING = "everything"
    WINDOW = "window"


@dataclass(frozen=True, slots=True)
class CompletenessRule:
    """One rule; it holds when `sql` returns no row.

    `sql` is Spark SQL over the views `views` (see `completeness.view`). `balance` is the short form
    it was made from, as the user wrote it. `blocking`: a violation on a restored cluster keeps the
    group offsets from being committed. `line` is where it begins in the YAML. After `timeout_s`
    seconds its query is ended.
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
    timeout_s: float = DEFAULT_TIMEOUT_S
    line: int | None = None
