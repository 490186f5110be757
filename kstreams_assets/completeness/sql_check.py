"""Checks the SQL of a rule before anything runs: no Spark, no JVM. Pure.

What Spark itself would refuse later is refused at load as far as the SQL parser and the declared
formats can tell; what they cannot tell is left to Spark.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from kstreams_assets.completeness.known_views import KnownViews, NamedView, RuleTextError
from kstreams_assets.completeness.rule import Scope
from kstreams_assets.completeness.sql_columns import check_columns
from kstreams_assets.completeness.sql_functions import check_functions, refuse_doors
from kstreams_assets.completeness.sql_tree import common_table

_DIALECT: Final = "spark"
_HIGHLIGHT: Final = re.compile(r"\x1b\[[0-9]+m")
_PARSER_CLASS: Final = re.compile(r" for <class '[^']*'>")
_CORRECT: Final = "Write one SELECT of Spark SQL that returns the rows in violation."


def check_rule_sql(sql: str, known: KnownViews, scope: Scope) -> tuple[str, ...]:
    """The views that the SQL of a rule reads, sorted by name.

    Raises:
        RuleTextError: It is not one SELECT, or names views, columns or functions that there are
            not, or reaches out of the data; its line is that of the SQL.
    """
    refuse_doors(sql)
    query = _parsed(sql, known)
    tables = {id(table): named for table, named in _views(query, known, scope)}
    if not tables:
        raise RuleTextError(
            "it reads no topic and no store", remedy="Name one as a view: SELECT ... FROM a."
        )
    check_functions(query, sql)
    check_columns(query, tables)
    return tuple(sorted({named.name for named in tables.values()}))


def _parsed(sql: str, known: KnownViews) -> exp.Query:
    try:
        with _quiet_parser():
            statements = sqlglot.parse(sql, dialect=_DIALECT)
    except SqlglotError as error:
        raise _syntax_error(sql, error, known) from None
    found = [
        each for each in statements if each is not None and not isinstance(each, exp.Semicolon)
    ]
    if len(found) == 1 and isinstance(found[0], exp.Query):
        return found[0]
    what = f"{len(found)} statements" if len(found) != 1 else f"{_kind(found[0])}, no SELECT"
    raise RuleTextError(f"it is {what}", remedy=_CORRECT)


@contextlib.contextmanager
def _quiet_parser() -> Iterator[None]:
    """The parser warns of statements that it takes as a whole; they are refused anyway."""
    logger = logging.getLogger("sqlglot")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _kind(statement: exp.Expr) -> str:
    return f"a statement {statement.key.upper()}"


def _syntax_error(sql: str, error: SqlglotError, known: KnownViews) -> RuleTextError:
    unquoted = _without_backticks(sql, known)
    if unquoted is not None:
        name, line = unquoted
        return RuleTextError(
            f"{name} has dots or dashes and is not in backticks",
            remedy=f"Write it as `{name}`.",
            line=line,
        )
    if isinstance(error, ParseError) and error.errors:
        first = error.errors[0]
        at = f" at {first['highlight']!r}" if first.get("highlight") else ""
        why = _PARSER_CLASS.sub("", str(first["description"]))
        problem = f"the SQL is not understood{at}: {why}"
        return RuleTextError(problem.rstrip("."), remedy=_CORRECT, line=first.get("line"))
    text = _HIGHLIGHT.sub("", str(error).splitlines()[0])
    return RuleTextError(f"the SQL is not understood: {text}".rstrip("."), remedy=_CORRECT)


def _without_backticks(sql: str, known: KnownViews) -> tuple[str, int] | None:
    """A view whose name needs backticks and stands without, with its line."""
    bare = re.sub(r"`[^`]*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*", _blanked, sql)
    for name in sorted(known.views, key=len, reverse=True):
        if re.fullmatch(r"\w+", name):
            continue
        match = re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", bare, re.IGNORECASE)
        if match:
            return name, bare.count("\n", 0, match.start()) + 1
    return None


def _blanked(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _views(
    query: exp.Query, known: KnownViews, scope: Scope
) -> Iterator[tuple[exp.Table, NamedView]]:
    """The tables of the SQL that are views: neither common table expressions nor functions."""
    for table in query.find_all(exp.Table):
        parts = [part for part in table.parts if isinstance(part, exp.Identifier)]
        is_function = len(parts) != len(table.parts)
        if is_function or table.find_ancestor(exp.Hint):
            continue
        if len(parts) == 1 and common_table(table) is not None:
            continue
        yield table, _view(parts, known, scope)


def _view(parts: list[exp.Identifier], known: KnownViews, scope: Scope) -> NamedView:
    line = line_of(parts[0])
    name = ".".join(part.name for part in parts)
    try:
        found = known.find(name, scope)
    except RuleTextError as error:
        raise RuleTextError(error.problem, remedy=error.remedy, line=line) from None
    if found is None:
        raise RuleTextError(
            f"there is no topic or store {name!r} ({known.near(name)})",
            remedy="Correct the name: views are called as topics and stores are, in backticks where"
            " they have dots or dashes.",
            line=line,
        )
    if len(parts) > 1:
        raise RuleTextError(
            f"{name} has dots or dashes and is not in backticks",
            remedy=f"Write it as `{name}`.",
            line=line,
        )
    return found


def line_of(node: exp.Expr) -> int | None:
    """The line of the SQL that a node stands in (from 1), None where the parser kept none."""
    for each in node.walk():
        line = each.meta.get("line")
        if isinstance(line, int):
            return line
    return None
