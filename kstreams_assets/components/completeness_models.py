"""The blocks `completeness` and `stores.<name>.recompute` of the YAML."""

import dagster as dg
from pydantic import Field

from kstreams_assets.checks import Severity
from kstreams_assets.completeness.rule import (
    DEFAULT_TIMEOUT_S,
    Place,
    Recomputation,
    Scope,
    WindowedBy,
)


class RuleModel(dg.Resolvable, dg.Model):
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
    timeout_seconds: float = Field(
        default=DEFAULT_TIMEOUT_S,
        description="After how long its query is ended; the rule has then failed.",
    )


class WindowedByModel(dg.Resolvable, dg.Model):
    """Tumbling or hopping windows of a recomputed store."""

    size_ms: int = Field(description="Length of a window.")
    advance_ms: int | None = Field(default=None, description="Of hopping windows; else the length.")
    grace_ms: int = Field(default=0, description="How late records may be.")

    def windowed_by(self) -> WindowedBy:
        """The windows, as they are declared."""
        return WindowedBy(
            size_ms=self.size_ms,
            advance_ms=self.size_ms if self.advance_ms is None else self.advance_ms,
            grace_ms=self.grace_ms,
        )


class RecomputeModel(dg.Resolvable, dg.Model):
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
    windowed_by: WindowedByModel | None = Field(
        default=None, description="Windows of a windowed store."
    )

    def recomputation(self, store: str, line: int | None) -> Recomputation:
        """The recomputation of a store, as it is declared; `line` is where it stands."""
        values = {"": self.values} if isinstance(self.values, str) else self.values
        return Recomputation(
            store=store,
            source=self.source,
            key=self.key,
            values=dict(values),
            where=self.where,
            through=self.through,
            windowed_by=None if self.windowed_by is None else self.windowed_by.windowed_by(),
            line=line,
        )
