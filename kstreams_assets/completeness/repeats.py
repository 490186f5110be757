"""Records that an at-least-once application may process twice, and their effect on rules.

State and outputs of such an application are ahead of its committed offsets. At a recovery point
they contain effects of records that count as unprocessed, and a restore processes these again.
Therefore the output can contain too many records, but never too few. The point limits the number of
these records. Pure.
"""

from dataclasses import dataclass

from kstreams_assets.app.rules import Recomputation, RepeatEffect

_EXACT = "DECIMAL(38, 6)"


@dataclass(frozen=True, slots=True)
class Repeats:
    """Maximum number of repeated records: `now` at the point, `before` at the previous one.

    Records repeated at the previous point are missing among the new ones, so they count negatively.
    """

    now: int
    before: int = 0

    @property
    def most(self) -> int:
        """The sum of both."""
        return self.now + self.before


@dataclass(frozen=True, slots=True)
class Allowance:
    """Selects the rows of a rule that repeated records cannot explain.

    `sql` returns these rows. `total_sql` returns the total difference of all rows in records, which
    repeats explain up to `most`. Without `is_bounded`, the effect of a repeated record is unknown,
    so that rows explained by repeats neither pass nor violate the rule.
    """

    sql: str
    total_sql: str | None
    most: int
    is_bounded: bool


def of_balance(sql: str, effect: RepeatEffect, repeats: Repeats) -> Allowance:
    """Return the allowance of a balance whose SQL returns rows with a column `difference`."""
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
    """Return the allowance of a recomputed store: rows `key`, `field`, `expected`, `found`.

    A count can be too large; then the sums of its key can be too large as well. Without a count,
    the effect of a repeated record on a sum is unknown.
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
    # A new key whose only record is repeated may be in flight and not in the store: expected -1.
    found, expected = (f"CAST(coalesce({side}, '0') AS {_EXACT})" for side in ("found", "expected"))
    more = f"{found} - {expected}"
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
