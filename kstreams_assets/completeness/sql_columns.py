"""Finds columns in the SQL of a rule that its views do not have. Pure.

Names are resolved as Spark does it: sources of the SELECT that a column stands in, its aliases,
then the SELECTs around it. What cannot be known (Avro, generators, pivots, deep structures) is
never refused.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from kstreams_assets.completeness.column_types import MissingColumnError, column_type
from kstreams_assets.completeness.known_views import NamedView, RuleTextError
from kstreams_assets.completeness.sql_tree import (
    alias_columns,
    ancestors,
    common_table,
    generates,
    path_of,
    select_aliases,
    selects_around,
    source_nodes,
)

_WITHOUT_PARENTHESES: Final = frozenset(
    {"user", "session_user", "current_time", "localtimestamp", "grouping__id", "current_catalog"}
    | {"current_database", "current_schema", "current_timezone", "all"}
)
"""Names that Spark takes for functions where there is no such column."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Something in FROM; `columns` is None where they are not known, `view` set for a view."""

    alias: str
    columns: tuple[str, ...] | None
    view: NamedView | None = None

    def has(self, column: str) -> bool:
        """Whether it has this column, as far as is known."""
        return self.columns is not None and _among(column, self.columns)


@dataclass(slots=True)
class _Columns:
    """Resolves the columns of one query; `tables` are the views by the id of their node."""

    tables: Mapping[int, NamedView]
    _sources: dict[int, list[_Source]] = field(default_factory=dict)

    def check(self, query: exp.Query) -> None:
        for column in query.find_all(exp.Column):
            path = path_of(column)
            # Parameters of lambdas are no columns to the parser.
            if path:
                self._check_column(column, path)

    def _check_column(self, column: exp.Column, path: Sequence[str]) -> None:
        first: list[_Source] | None = None
        for select in selects_around(column):
            sources = self.sources(select)
            first = sources if first is None else first
            if self._resolves(path, sources, column) or _among(path[0], select_aliases(select)):
                return
            if any(source.columns is None for source in sources):
                return
        is_function = len(path) == 1 and path[0].lower() in _WITHOUT_PARENTHESES
        if first is not None and not is_function and not _is_made_up(path):
            raise _unknown(column, path, first)

    def _resolves(
        self, path: Sequence[str], sources: Sequence[_Source], column: exp.Column
    ) -> bool:
        """Whether the path is in one of the sources; raises RuleTextError for a part it lacks."""
        named = [source for source in sources if source.alias.lower() == path[0].lower()]
        behind = path[1] if len(path) > 1 else "*"
        for source in named:
            if behind == "*" or source.columns is None or source.has(behind):
                _check_inside(source, path[1:], column)
                return True
        holding = [source for source in sources if source.has(path[0])]
        for source in holding:
            _check_inside(source, path, column)
        if named and not holding and not _is_made_up(path):
            raise _unknown(column, path, named)
        return bool(holding)

    def sources(self, select: exp.Select) -> list[_Source]:
        """What is in FROM, JOIN and LATERAL VIEW of a SELECT."""
        known = self._sources.get(id(select))
        if known is None:
            known = self._sources[id(select)] = [
                self._source(node) for node in source_nodes(select)
            ]
        return known

    def _source(self, node: exp.Expr) -> _Source:
        alias = node.alias_or_name
        named = tuple(column for column in alias_columns(node) if column)
        if node.args.get("pivots"):
            return _Source(alias, None)
        if isinstance(node, exp.Table):
            return self._table(node, alias, named)
        if isinstance(node, exp.Subquery):
            return _Source(alias, named or self.output(node.this))
        if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery):
            return _Source(alias, named or self.output(node.this.this))
        return _Source(alias, named or None)

    def _table(self, node: exp.Table, alias: str, named: tuple[str, ...]) -> _Source:
        view = self.tables.get(id(node))
        if view is not None:
            if named:
                return _Source(alias, named)
            # Without an alias the name of the view is one, with its dots.
            return _Source(alias, view.view.columns, view)
        common = common_table(node)
        if common is None:
            return _Source(alias, named or None)
        given = tuple(column for column in alias_columns(common) if column)
        is_inside = any(ancestor is common for ancestor in ancestors(node))  # it is recursive
        return _Source(alias, named or given or (None if is_inside else self.output(common.this)))

    def output(self, query: exp.Expr | None) -> tuple[str, ...] | None:
        """The columns of a query, None where they are not known."""
        while isinstance(query, exp.SetOperation | exp.Subquery):
            query = query.this
        if not isinstance(query, exp.Select):
            return None
        found: list[str] = []
        for projection in query.expressions:
            columns = self._projected(projection, query)
            if columns is None:
                return None
            found += columns
        return tuple(found)

    def _projected(self, projection: exp.Expr, select: exp.Select) -> Sequence[str] | None:
        if isinstance(projection, exp.Aliases):
            return [identifier.name for identifier in projection.args["expressions"]]
        if isinstance(projection, exp.Star):
            return self._star(self.sources(select))
        if isinstance(projection, exp.Column) and isinstance(projection.this, exp.Star):
            alias = projection.table.lower()
            return self._star([s for s in self.sources(select) if s.alias.lower() == alias])
        if isinstance(projection, exp.Dot) and isinstance(projection.expression, exp.Star):
            return None
        if generates(projection):
            return None
        is_named = isinstance(projection, exp.Alias | exp.Column | exp.Dot)
        return [projection.alias_or_name] if is_named else []

    def _star(self, sources: Sequence[_Source]) -> Sequence[str] | None:
        found: list[str] = []
        for source in sources:
            if source.columns is None:
                return None
            found += source.columns
        return found if sources else None


def check_columns(query: exp.Query, tables: Mapping[int, NamedView]) -> None:
    """Raise RuleTextError for the first column that is known not to be there.

    `tables` says which view a table of the query is, by the id of its node.
    """
    _Columns(tables).check(query)


def _check_inside(source: _Source, path: Sequence[str], column: exp.Column) -> None:
    """A field of a struct that the view's format does not have."""
    if source.view is None or "*" in path or len(path) == 1:
        return
    try:
        column_type(source.view.view, path)
    except MissingColumnError as error:
        there = f" (there are: {', '.join(error.available)})" if error.available else ""
        raise RuleTextError(
            f"{source.view.name} has no field {'.'.join(path)!r}{there}",
            remedy="Correct the name, or declare the format of the topic or store.",
            line=_line(column),
        ) from None


def _unknown(column: exp.Column, path: Sequence[str], sources: Sequence[_Source]) -> RuleTextError:
    name = ".".join(path)
    columns = list(dict.fromkeys(c for source in sources for c in source.columns or ()))
    near = difflib.get_close_matches(path[-1], columns, n=1, cutoff=0.6)
    hint = f"near: {near[0]}; " if near else ""
    return RuleTextError(
        f"there is no column {name!r} ({hint}there are: {', '.join(columns)})",
        remedy="Correct the name, or declare the format of the topic or store (topics.<name>.value,"
        " stores.<name>.value).",
        line=_line(column),
    )


def _line(column: exp.Column) -> int | None:
    for part in column.parts:
        line = part.meta.get("line")
        if isinstance(line, int):
            return line
    return None


def _is_made_up(path: Sequence[str]) -> bool:
    """Whether it is a name that Spark gives: `count(1)`."""
    return "(" in path[-1]


def _among(name: str, names: Sequence[str]) -> bool:
    return any(name.lower() == each.lower() for each in names)
