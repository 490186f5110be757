"""The short form of rules: an equation of counts and sums, and its translation to SQL. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NoReturn

from kstreams_assets.app.rules import RepeatEffect, Scope
from kstreams_assets.rules.view import (
    BEFORE,
    FRACTIONS,
    NUMBERS,
    RELATIVE_TOLERANCE,
    KnownViews,
    MissingColumnError,
    NamedView,
    RuleTextError,
    View,
    ViewKind,
    column_type,
)

_SPACE: Final = re.compile(r"\s+")
_TOKEN: Final = re.compile(
    r"`(?P<quoted>[^`]+)`|(?P<comparison>==|<=|>=)|(?P<word>[A-Za-z0-9._:@-]+)|(?P<sign>[()+])"
)
_NUMBER: Final = re.compile(r"[0-9]+")
_FORM: Final = (
    "Write it as `a == b + c`: topics, stores, count(view), sum(view.column), in_flight(view) and"
    " whole numbers, joined by + and - (with blanks around the -, because names contain dashes),"
    " and one of ==, <= and >=."
)


class Function(StrEnum):
    """The aggregate of a term."""

    COUNT = "count"
    SUM = "sum"
    IN_FLIGHT = "in_flight"


class Comparison(StrEnum):
    """The required relation of the two sides."""

    EQUAL = "=="
    AT_MOST = "<="
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a side; `sign` is 1 or -1.

    `view` is the name as written, without its quotes; `column` is a path, only for sums. A term
    without a function is the whole number `number`.
    """

    sign: int
    function: Function | None
    view: str = ""
    column: tuple[str, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True)
class Balance:
    """A parsed balance."""

    left: tuple[Term, ...]
    comparison: Comparison
    right: tuple[Term, ...]


def parse_balance(text: str, known: KnownViews) -> Balance:
    """Parse a balance.

    The known views decide where the name ends in `sum(a.v1.amount)`: the longest one wins.

    Raises:
        RuleTextError: It is not a balance, or contains unknown names.
    """
    parser = _Parser(tuple(_tokens(text)), known)
    left = parser.side()
    comparison = parser.comparison()
    right = parser.side()
    parser.end()
    return Balance(left, comparison, right)


@dataclass(frozen=True, slots=True)
class _Token:
    """`kind` is quoted, comparison, word, sign or end; `glued`: without a blank before it."""

    kind: str
    text: str
    column: int
    line: int
    glued: bool


def _tokens(text: str) -> Iterator[_Token]:
    position, glued = 0, False
    while position < len(text):
        blank = _SPACE.match(text, position)
        if blank:
            position, glued = blank.end(), False
            continue
        line = text.count("\n", 0, position) + 1
        column = position - (text.rfind("\n", 0, position) + 1) + 1
        match = _TOKEN.match(text, position)
        if match is None:
            raise RuleTextError(
                f"column {column} of the balance has {text[position]!r}", remedy=_FORM, line=line
            )
        kind = str(match.lastgroup)
        yield _Token(kind, match[kind], column, line, glued)
        position, glued = match.end(), True
    yield _Token("end", "", len(text) + 1, text.count("\n") + 1, glued=False)


class _Parser:
    """Recursive descent over `side comparison side`."""

    def __init__(self, tokens: Sequence[_Token], known: KnownViews) -> None:
        self._tokens = tokens
        self._known = known
        self._at = 0

    def side(self) -> tuple[Term, ...]:
        terms = [self._term(1)]
        while self._peek().text in ("+", "-") and self._peek().kind != "quoted":
            terms.append(self._term(1 if self._take().text == "+" else -1))
        return tuple(terms)

    def comparison(self) -> Comparison:
        token = self._take()
        if token.kind != "comparison":
            self._refuse(token, "+, -, ==, <= or >=")
        return Comparison(token.text)

    def end(self) -> None:
        if self._peek().kind != "end":
            self._refuse(self._peek(), "+, - or the end")

    def _term(self, sign: int) -> Term:
        token = self._take()
        if token.kind not in ("word", "quoted") or (token.kind, token.text) == ("word", "-"):
            self._refuse(token, "a topic, a store, a function or a whole number")
        if token.kind == "word" and self._peek().text == "(":
            return self._call(sign, token)
        known = self._find(token.text, token)
        if known is not None:
            return Term(sign, Function.COUNT, known.name)
        if token.kind == "word" and _NUMBER.fullmatch(token.text):
            return Term(sign, None, number=int(token.text))
        self._unknown(token, token.text)

    def _call(self, sign: int, name: _Token) -> Term:
        if name.text.lower() not in tuple(Function):
            self._refuse(name, f"one of the functions {', '.join(Function)}")
        function = Function(name.text.lower())
        self._take()
        path = self._path()
        closing = self._take()
        if closing.text != ")":
            self._refuse(closing, "`)`")
        if function is Function.SUM:
            return self._sum(sign, path)
        written = "".join(token.text for token in path)
        view = self._find(written, path[0])
        if view is None:
            self._unknown(path[0], written)
        return Term(sign, function, view.name)

    def _path(self) -> tuple[_Token, ...]:
        """The text between parentheses: a name, or pieces of a path, some in quotes."""
        first = self._take()
        if first.kind not in ("word", "quoted"):
            self._refuse(first, "the name of a topic or store")
        found = [first]
        while self._peek().kind in ("word", "quoted") and self._peek().glued:
            found.append(self._take())
        return tuple(found)

    def _sum(self, sign: int, path: tuple[_Token, ...]) -> Term:
        for view, column in _splits(path):
            known = self._find(view, path[0])
            if known is not None:
                return Term(sign, Function.SUM, known.name, column)
        written = "".join(token.text for token in path)
        whole = self._find(written, path[0])
        if whole is not None:
            raise RuleTextError(
                f"sum({written}) names no column",
                remedy=f"Write sum({written}.column); `_value` is the whole value.",
                line=path[0].line,
            )
        self._unknown(path[0], written.rpartition(".")[0] or written)

    def _find(self, name: str, token: _Token) -> NamedView | None:
        if name.endswith(BEFORE):
            raise RuleTextError(
                f"a balance names no {BEFORE} view",
                remedy="With scope: window the earlier state is subtracted automatically.",
                line=token.line,
            )
        return self._known.find(name, Scope.EVERYTHING)

    def _unknown(self, token: _Token, name: str) -> NoReturn:
        dashes = " (a - between terms needs blanks around it)" if "-" in name else ""
        raise RuleTextError(
            f"there is no topic or store {name!r} ({self._known.near(name)}){dashes}",
            remedy=_FORM,
            line=token.line,
        )

    def _refuse(self, token: _Token, expected: str) -> NoReturn:
        found = repr(token.text) if token.text else "the end"
        raise RuleTextError(
            f"column {token.column} of the balance has {found} instead of {expected}",
            remedy=_FORM,
            line=token.line,
        )

    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._peek()
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token


def _splits(path: tuple[_Token, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The possible ends of the view's name, longest first; dots inside quotes do not split."""
    pieces: list[str] = []
    for token in path:
        if token.kind == "quoted":
            pieces.append(token.text)
        else:
            pieces += re.split(r"(\.)", token.text)
    pieces = [piece for piece in pieces if piece]
    for at in range(len(pieces) - 2, 0, -1):
        column = tuple(piece for piece in pieces[at + 1 :] if piece != ".")
        if pieces[at] == "." and column:
            yield "".join(pieces[:at]), column


_WHOLE: Final = NUMBERS - FRACTIONS


@dataclass(frozen=True, slots=True)
class BalanceSql:
    """SQL of a balance, its views, and its repeat effect."""

    sql: str
    views: tuple[str, ...]
    repeats: RepeatEffect


@dataclass(frozen=True, slots=True)
class _Piece:
    """One count or sum over one view; `is_left` selects the side."""

    is_left: bool
    sign: int
    measure: str
    view: str


def balance_sql(text: str, *, per: str | None, known: KnownViews, scope: Scope) -> BalanceSql:
    """The SQL of a balance: rows `left_side, right_side, difference`, `per` column before them.

    Without `per` there is at most one row. In scope `window`, stores and records in flight count
    with their growth since the previous window.

    Raises:
        RuleTextError: It is not a balance, or does not match the views.
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
        repeats=_repeats(balance, known),
    )


def _repeats(balance: Balance, known: KnownViews) -> RepeatEffect:
    """Records that are processed twice increase the application's outputs, never its inputs."""
    signs = {
        term.sign * of_side
        for of_side, terms in ((1, balance.left), (-1, balance.right))
        for term in terms
        if term.function is not None and _is_written(known.views[term.view])
    }
    counts = {Function.COUNT, Function.IN_FLIGHT}
    return RepeatEffect(
        sign=signs.pop() if len(signs) == 1 else 0,
        counts=any(term.function in counts for term in (*balance.left, *balance.right)),
    )


def _is_written(view: View) -> bool:
    return view.kind is ViewKind.STORE or view.is_transient or view.roles.is_output


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
            f"sum({term.view}.{'.'.join(term.column)}) sums a value that is {found}",
            remedy="Sum a number; declare the format of the topic or store if that is missing"
            " (topics.<name>.value, stores.<name>.value).",
        )


def _check_in_flight(term: Term, view: View) -> None:
    if view.kind is ViewKind.TOPIC and view.has_before:
        return
    raise RuleTextError(
        f"in_flight({term.view}) is always 0",
        remedy="Only repartition topics, and topics that the application both writes and reads,"
        " can have records in flight: the view of an input contains only processed records.",
    )


def _type(name: str, view: View, path: tuple[str, ...]) -> str | None:
    try:
        return column_type(view, path)
    except MissingColumnError as error:
        raise RuleTextError(
            f"{name} has no column {'.'.join(path)!r}{error.hint}",
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
            # Records that were in flight before may still be: `_in_flight` is that of the window's
            # point.
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
    """True if the two sides do not balance; null if a sum overflowed or is not a number."""
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
