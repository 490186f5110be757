"""The SQL that a balance stands for: it returns a row where the two sides do not balance. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kstreams_assets.completeness.balance_parser import (
    Balance,
    Comparison,
    Function,
    Term,
    parse_balance,
)
from kstreams_assets.completeness.column_types import (
    FRACTIONS,
    NUMBERS,
    RELATIVE_TOLERANCE,
    MissingColumnError,
    column_type,
)
from kstreams_assets.completeness.known_views import KnownViews, RuleTextError
from kstreams_assets.completeness.rule import Scope
from kstreams_assets.completeness.view import BEFORE, View, ViewKind

_WHOLE: Final = NUMBERS - FRACTIONS


@dataclass(frozen=True, slots=True)
class BalanceSql:
    """SQL of a balance and the views that it reads."""

    sql: str
    views: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """One count or sum over one view; `is_left` says to which side it belongs."""

    is_left: bool
    sign: int
    measure: str
    view: str


def balance_sql(text: str, *, per: str | None, known: KnownViews, scope: Scope) -> BalanceSql:
    """The SQL of a balance: rows `left_side, right_side, difference`, `per` column before them.

    Without `per` there is one row or none. In scope `window` what stores hold and what is in flight
    counts as what it grew by since the window before.

    Raises:
        RuleTextError: It is no balance, or does not fit the views.
    """
    balance = parse_balance(text, known)
    terms = (*balance.left, *balance.right)
    if not any(term.function for term in terms):
        raise RuleTextError("the balance has only numbers", remedy="Name a topic or a store.")
    group = None if per is None else tuple(per.replace("`", "").split("."))
    _check(terms, group, known)
    pieces = tuple(_pieces(balance, known, scope))
    return BalanceSql(
        sql=_written(balance, pieces, group, exact=_is_exact(terms, known)),
        views=tuple(dict.fromkeys(piece.view for piece in pieces)),
    )


def _check(terms: Sequence[Term], group: tuple[str, ...] | None, known: KnownViews) -> None:
    families: dict[str, str] = {}
    for term in terms:
        if term.function is None:
            continue
        view = known.views[term.view]
        if term.function is Function.SUM:
            _check_sum(term, view)
        if term.function is Function.IN_FLIGHT:
            _check_in_flight(term, view)
        if group is not None:
            found = _type(term.view, view, group)
            if found is not None:
                families.setdefault("number" if found in NUMBERS else found, term.view)
    if len(families) > 1:
        kinds = ", ".join(f"{family} in {name}" for family, name in families.items())
        raise RuleTextError(
            f"per: {'.'.join(group or ())} has different types: {kinds}",
            remedy="Declare the formats of these topics and stores alike (topics.<name>.key and"
            " value), or write the rule as SQL.",
        )


def _check_sum(term: Term, view: View) -> None:
    found = _type(term.view, view, term.column)
    if found is not None and found not in NUMBERS:
        raise RuleTextError(
            f"sum({term.view}.{'.'.join(term.column)}) sums what is {found}",
            remedy="Sum a number; declare the format of the topic or store if that is missing"
            " (topics.<name>.value, stores.<name>.value).",
        )


def _check_in_flight(term: Term, view: View) -> None:
    if view.kind is ViewKind.TOPIC and view.has_before:
        return
    raise RuleTextError(
        f"in_flight({term.view}) is always 0",
        remedy="Only repartition topics, and topics that the application both writes and reads, can"
        " have records in flight: of an input the view holds what the application has taken in.",
    )


def _type(name: str, view: View, path: tuple[str, ...]) -> str | None:
    try:
        return column_type(view, path)
    except MissingColumnError as error:
        there = f" (there are: {', '.join(error.available)})" if error.available else ""
        raise RuleTextError(
            f"{name} has no column {'.'.join(path)!r}{there}",
            remedy="Correct the column, or declare the format of the topic or store.",
        ) from None


def _is_exact(terms: Sequence[Term], known: KnownViews) -> bool:
    """Whether every sum is one of whole or decimal numbers."""
    return all(
        column_type(known.views[term.view], term.column) in _WHOLE
        for term in terms
        if term.function is Function.SUM
    )


def _pieces(balance: Balance, known: KnownViews, scope: Scope) -> Iterator[_Piece]:
    for is_left, terms in ((True, balance.left), (False, balance.right)):
        for term in terms:
            if term.function is not None:
                for sign, measure, view in _measures(term, known.views[term.view], scope):
                    yield _Piece(is_left, term.sign * sign, measure, view)


def _measures(term: Term, view: View, scope: Scope) -> Iterator[tuple[int, str, str]]:
    measure = "count(*)"
    if term.function is Function.SUM:
        measure = f"coalesce(sum({_quoted(term.column)}), 0)"
    if term.function is Function.IN_FLIGHT and not view.is_transient:
        yield 1, "count_if(`_in_flight`)", term.view
        if scope is Scope.WINDOW:
            # What was in flight before may be still: `_in_flight` is that of the window's point.
            yield 1, "count_if(`_in_flight`)", f"{term.view}{BEFORE}"
            yield -1, "count(*)", f"{term.view}{BEFORE}"
        return
    yield 1, measure, term.view
    if scope is Scope.WINDOW and (view.is_transient or view.kind is ViewKind.STORE):
        yield -1, measure, f"{term.view}{BEFORE}"


def _written(
    balance: Balance, pieces: Sequence[_Piece], group: tuple[str, ...] | None, *, exact: bool
) -> str:
    parts = "\n    UNION ALL\n".join(f"    {_part(piece, group)}" for piece in pieces)
    left, right = _constant(balance.left), _constant(balance.right)
    key = "" if group is None else "per_key, "
    shown = "" if group is None else f"per_key AS {_quoted(('.'.join(group),))}, "
    grouped = "" if group is None else "\n  GROUP BY per_key"
    return (
        f"SELECT {shown}left_side, right_side, left_side - right_side AS difference\n"
        f"FROM (\n  SELECT {key}sum(left_part){left} AS left_side,"
        f" sum(right_part){right} AS right_side\n"
        f"  FROM (\n{parts}\n  ){grouped}\n)\n"
        f"WHERE {_condition(balance.comparison, exact=exact)}"
    )


def _part(piece: _Piece, group: tuple[str, ...] | None) -> str:
    measure = piece.measure if piece.sign == 1 else f"-{piece.measure}"
    left, right = (measure, "0") if piece.is_left else ("0", measure)
    key = "" if group is None else f"{_quoted(group)} AS per_key, "
    grouped = "" if group is None else f" GROUP BY {_quoted(group)}"
    rows = f"FROM {_quoted((piece.view,))}{grouped}"
    return f"SELECT {key}{left} AS left_part, {right} AS right_part {rows}"


def _constant(terms: Sequence[Term]) -> str:
    number = sum(term.sign * term.number for term in terms)
    return f" + {number}" if number > 0 else f" - {-number}" if number else ""


def _condition(comparison: Comparison, *, exact: bool) -> str:
    """When the two sides do not balance; null where a sum overflowed or is no number."""
    if exact:
        sign = {Comparison.EQUAL: "<>", Comparison.AT_MOST: ">", Comparison.AT_LEAST: "<"}
        compared = f"left_side {sign[comparison]} right_side"
    else:
        difference = {
            Comparison.EQUAL: "abs(left_side - right_side)",
            Comparison.AT_MOST: "left_side - right_side",
            Comparison.AT_LEAST: "right_side - left_side",
        }[comparison]
        compared = (
            f"isnan(CAST(left_side - right_side AS DOUBLE))"
            f" OR {difference} > if(typeof(left_side - right_side) = 'double',"
            f" greatest(abs(left_side), abs(right_side)) * {RELATIVE_TOLERANCE}, 0)"
        )
    return f"coalesce({compared}, true)"


def _quoted(path: Sequence[str]) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in path)
