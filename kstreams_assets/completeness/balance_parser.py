"""Reads the short form of rules: an equation of counts and sums. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NoReturn

from kstreams_assets.completeness.known_views import KnownViews, NamedView, RuleTextError
from kstreams_assets.completeness.rule import Scope
from kstreams_assets.completeness.view import BEFORE

_SPACE: Final = re.compile(r"\s+")
_TOKEN: Final = re.compile(
    r"`(?P<quoted>[^`]+)`|(?P<comparison>==|<=|>=)|(?P<word>[A-Za-z0-9._:@-]+)|(?P<sign>[()+])"
)
_NUMBER: Final = re.compile(r"[0-9]+")
_FORM: Final = (
    "Write it as `a == b + c`: topics, stores, count(view), sum(view.column), in_flight(view) and"
    " whole numbers, joined by + and - (with blanks around the -, since names have dashes), and one"
    " of ==, <= and >=."
)


class Function(StrEnum):
    """What a term counts."""

    COUNT = "count"
    SUM = "sum"
    IN_FLIGHT = "in_flight"


class Comparison(StrEnum):
    """How the two sides must compare."""

    EQUAL = "=="
    AT_MOST = "<="
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a side; `sign` is 1 or -1.

    `view` is the name as written, without its quotes; `column` a path, of sums alone. A term
    without function is the whole number `number`.
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
    """What a balance says.

    The views are needed to tell in `sum(a.v1.amount)` where the name ends: the longest one counts.

    Raises:
        RuleTextError: It is no balance, or names what is not there.
    """
    parser = _Parser(tuple(_tokens(text)), known)
    left = parser.side()
    comparison = parser.comparison()
    right = parser.side()
    parser.end()
    return Balance(left, comparison, right)


@dataclass(frozen=True, slots=True)
class _Token:
    """`kind` is quoted, comparison, word, sign or end; `glued`: no blank before it."""

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
        """What stands between parentheses: a name, or pieces of a path, some in quotes."""
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
                remedy="With scope: window it subtracts what there was before by itself.",
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
    """Where the name of the view may end, the longest first; no dot inside quotes is a split."""
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
