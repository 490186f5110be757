"""What an at-least-once application may have processed twice, and what of a rule that explains.

Its state and outputs run ahead of its committed offsets, so that at a recovery point they hold
effects of records that count as not yet processed; a restore processes these again. Either way what
the application writes holds too much, by at most so many records as the point says, never too
little. Pure.
"""

from dataclasses import dataclass

from kstreams_assets.app.rules import Recomputation, RepeatEffect

_EXACT = "DECIMAL(38, 6)"


@dataclass(frozen=True, slots=True)
class Repeats:
    """How many records may be repeated: `now` at the point, `before` at that of the window before.

    What was repeated before is missing in what is new since, so it counts the other way round.
    """

    now: int
    before: int = 0

    @property
    def most(self) -> int:
        """Of both together."""
        return self.now + self.before


@dataclass(frozen=True, slots=True)
class Allowance:
    """Of the rows that a rule returns, those that repeats do not explain.

    `sql` returns these rows, `total_sql` one number: how many records all returned rows together
    are apart, which may be `most` at most. Not `is_bounded`: nothing says how much a repeated
    record changes, so rows that repeats may explain are neither right nor wrong.
    """

    sql: str
    total_sql: str | None
    most: int
    is_bounded: bool


def of_balance(sql: str, effect: RepeatEffect, repeats: Repeats) -> Allowance:
    """The allowance of a balance with this SQL: rows with a column `difference`."""
    if not effect.counts:
        sign = {1: "difference > 0", -1: "difference < 0", 0: "true"}[effect.sign]
        return Allowance(f"{_all(sql)} WHERE NOT coalesce({sign}, false)", None, 0, False)
    low = -repeats.before if effect.sign == 1 else -repeats.now
    high = repeats.before if effect.sign == -1 else repeats.now
    if effect.sign == 0:
        low, high = -repeats.most, repeats.most
    return Allowance(
        f"{_all(sql)} WHERE NOT coalesce(difference BETWEEN {low} AND {high}, false)",
        f"SELECT sum(abs(difference)) AS total FROM (\n{sql}\n)",
        repeats.most,
        True,
    )


def of_recomputation(sql: str, declared: Recomputation, repeats: Repeats) -> Allowance:
    """The allowance of a recomputed store: rows `key`, `field`, `expected`, `found`.

    A count may be too large. Where it is, so may be the sums of its key; without a count nothing
    says how much a repeated record adds to a sum.
    """
    counts = [field or "_value" for field, what in declared.aggregates.items() if _is_count(what)]
    if not counts:
        return Allowance(f"{_all(sql)} WHERE false", None, 0, False)
    windows = declared.windowed_by
    of_each = 1 if windows is None else -(-windows.size_ms // windows.step_ms)
    most = repeats.now * of_each
    keys = ["key"] if windows is None else ["key", "window_start_ms"]
    named = ", ".join(keys)
    is_count = f"field IN ({', '.join(_text(field) for field in counts)})"
    more = f"CAST(found AS {_EXACT}) - coalesce(CAST(expected AS {_EXACT}), 0)"
    explained = (
        f"SELECT {named} FROM (\n{sql}\n) WHERE {is_count}\nGROUP BY {named}"
        f" HAVING bool_and(coalesce({more} BETWEEN 0 AND {most}, false))"
    )
    on = " AND ".join(f"r.{key} <=> x.{key}" for key in keys)
    return Allowance(
        f"SELECT r.* FROM (\n{sql}\n) AS r\nLEFT ANTI JOIN (\n{explained}\n) AS x ON {on}",
        f"SELECT sum(abs({more})) AS total FROM (\n{sql}\n) WHERE {is_count}",
        most * len(counts),
        True,
    )


def _all(sql: str) -> str:
    return f"SELECT * FROM (\n{sql}\n)"


def _is_count(aggregate: str) -> bool:
    return aggregate.replace(" ", "").lower() in ("count(*)", "count(1)")


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
