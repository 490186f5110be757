"""Check the SQL of a rule before anything runs: no Spark, no JVM. Pure.

Errors that Spark would report later are reported at load, as far as the SQL parser and the declared
formats allow; Spark checks the rest.
"""

import contextlib
import difflib
import functools
import itertools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Final

import sqlglot
from sqlglot import TokenType, exp, tokenize
from sqlglot.errors import ParseError, SqlglotError, TokenError

from kstreams_assets.app.rules import Recomputation, Scope, WindowedBy
from kstreams_assets.app.store_format import StoreKind
from kstreams_assets.rules.recompute import store_view, value_path
from kstreams_assets.rules.view import (
    NUMBERS,
    KnownViews,
    MissingColumnError,
    NamedView,
    RuleTextError,
    View,
    ViewKind,
    column_type,
)

_GENERATORS: Final = (exp.Explode, exp.Posexplode, exp.Inline, exp.Stack, exp.JSONTable)
_GENERATOR_NAMES: Final = frozenset(
    {"json_tuple", "explode_outer", "posexplode_outer", "inline_outer", "variant_explode"}
)


def path_of(column: exp.Column) -> list[str]:
    """The name of a column, and of the nested fields: `a.b.c`."""
    path = [part.name if isinstance(part, exp.Identifier) else "*" for part in column.parts]
    node: exp.Expr = column
    while isinstance(node.parent, exp.Dot) and node.arg_key == "this":
        node = node.parent
        if not isinstance(node.expression, exp.Identifier):
            break
        path.append(node.expression.name)
    return path if path != ["*"] else []


def selects_around(column: exp.Column) -> Iterator[exp.Select]:
    """The SELECTs whose columns this one can be, from the inside out.

    A subquery in FROM or WITH does not see the SELECT around it, unless it is lateral. ORDER BY of
    a UNION has none.
    """
    node: exp.Expr | None = column
    while node is not None:
        parent = node.parent
        if isinstance(node, exp.Select):
            yield node
        if isinstance(parent, exp.SetOperation) and node.arg_key not in ("this", "expression"):
            return
        is_source = isinstance(parent, exp.From | exp.Join) and node.arg_key == "this"
        if isinstance(node, exp.CTE) or (is_source and isinstance(node, exp.Subquery)):
            return
        node = parent


def source_nodes(select: exp.Select) -> Iterator[exp.Expr]:
    """The sources in FROM, JOIN and LATERAL VIEW of a SELECT."""
    from_ = select.args.get("from_")
    if from_ is not None:
        yield from_.this
        yield from (join.this for join in from_.this.args.get("joins") or ())
    for join in select.args.get("joins") or ():
        yield join.this
        yield from (inner.this for inner in join.this.args.get("joins") or ())
    yield from select.args.get("laterals") or ()


def alias_columns(node: exp.Expr) -> Sequence[str]:
    """The column names of an alias: `AS t(a, b)`."""
    alias = node.args.get("alias")
    if not isinstance(alias, exp.TableAlias):
        return ()
    return [column.name for column in alias.args.get("columns") or ()]


def common_table(table: exp.Table) -> exp.CTE | None:
    """The common table expression with a table's name, None if there is none.

    Inside WITH only earlier ones are visible, and itself if it is recursive.
    """
    came_from: exp.Expr = table
    node = table.parent
    while node is not None:
        with_ = node if isinstance(node, exp.With) else node.args.get("with_")
        if with_ is not None and with_ is not came_from:
            for cte in _seen(with_, came_from):
                if cte.alias.lower() == table.name.lower():
                    return cte
        came_from, node = node, node.parent
    return None


def _seen(with_: exp.With, inside: exp.Expr) -> Iterator[exp.CTE]:
    for cte in with_.expressions:
        if cte is inside and not with_.args.get("recursive"):
            return
        yield cte
        if cte is inside:
            return


def ancestors(node: exp.Expr) -> Iterator[exp.Expr]:
    """All nodes around a node, from the inside out."""
    parent = node.parent
    while parent is not None:
        yield parent
        parent = parent.parent


def select_aliases(select: exp.Select) -> list[str]:
    """Names given in the SELECT, which later columns, HAVING, GROUP BY and ORDER BY may use."""
    found: list[str] = []
    for projection in select.expressions:
        if isinstance(projection, exp.Aliases):
            found += [identifier.name for identifier in projection.args["expressions"]]
        elif isinstance(projection, exp.Alias):
            found.append(projection.alias)
    return found


def generates(projection: exp.Expr) -> bool:
    """Whether it generates columns whose names only Spark knows."""
    inner = projection.this if isinstance(projection, exp.Alias) else projection
    if isinstance(inner, exp.Anonymous):
        return inner.name.lower() in _GENERATOR_NAMES
    return isinstance(inner, _GENERATORS) and not isinstance(projection, exp.Alias)


_SYNTAX: Final = frozenset({"timestampadd", "timestampdiff", "try_cast"})
"""Called like functions, but not listed by Spark."""
_NAME: Final = re.compile(r"\w+")
_DOORS: Final = frozenset(
    {
        # Any static method of any Java class, including `System.getenv` and `Runtime.exec`.
        *("java_method", "reflect", "try_reflect"),
        # Their options or arguments name files that Spark opens.
        *("from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf"),
        *("from_xml", "schema_of_xml"),
        "python_worker_logs",
    }
)


_TEXTS: Final = frozenset(
    kind for kind in TokenType if kind.name == "STRING" or kind.name.endswith("_STRING")
)
"""Kinds of tokens that are quoted text."""


@functools.cache
def spark_functions() -> frozenset[str]:
    """The list of `SHOW FUNCTIONS` of the pinned Spark, without operators; a test compares them."""
    text = files("kstreams_assets.rules").joinpath("spark_functions.txt").read_text("utf-8")
    return frozenset(text.split())


def check_functions(query: exp.Query, sql: str) -> None:
    """Raise RuleTextError for the first unknown function in the order of the text."""
    known = spark_functions() | _SYNTAX
    for start, node in sorted(_calls(query), key=lambda call: call[0]):
        match = _NAME.match(sql, start)
        if match is None or sql[start - 1 : start] == ".":
            continue
        name = match[0]
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
            hint = f" (near: {', '.join(near)})" if near else ""
            raise RuleTextError(
                f"Spark has no function {name!r}{hint}",
                remedy="Use a built-in function of Spark SQL.",
                line=node.meta.get("line"),
            )


def refuse_doors(sql: str) -> None:
    """Raise RuleTextError for SQL that accesses more than the data: programs, Java methods, files.

    It checks the words of the text, not the syntax tree: a rule is reviewed as a SELECT, and its
    effect must not depend on how much of Spark's grammar this parser knows.
    """
    try:
        tokens = tokenize(sql, read="spark")
    except TokenError:
        return  # the parser reports it
    for token, after in itertools.pairwise(tokens):
        word = token.text.lower()
        if word == "using" and after.token_type in _TEXTS:
            raise RuleTextError(
                "it passes rows to a program (TRANSFORM ... USING)",
                remedy="Write it with the functions of Spark SQL: a rule only reads.",
                line=token.line,
            )
        if token.text == "$" and after.token_type is TokenType.L_BRACE:
            raise RuleTextError(
                "it has a variable (${...})",
                remedy="Write the value itself: variables are not replaced.",
                line=token.line,
            )
        is_name = token.token_type not in _TEXTS
        if is_name and word in _DOORS and after.token_type is TokenType.L_PAREN:
            raise RuleTextError(
                f"it calls {word}, which accesses Java methods, files or logs of the machine",
                remedy="Use other functions of Spark SQL: a rule only reads its views.",
                line=token.line,
            )


def _calls(query: exp.Query) -> list[tuple[int, exp.Expr]]:
    """Calls with the positions of their names; the parser gives operators no position."""
    return [
        (start, node)
        for node in query.find_all(exp.Func)
        if isinstance(start := node.meta.get("start"), int)
    ]


_WITHOUT_PARENTHESES: Final = frozenset(
    {"user", "session_user", "current_time", "localtimestamp", "grouping__id", "current_catalog"}
    | {"current_database", "current_schema", "current_timezone", "all"}
)
"""Names that Spark interprets as functions if there is no such column."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A source in FROM; `columns` is None if unknown, `view` is set for a view."""

    alias: str
    columns: tuple[str, ...] | None
    view: NamedView | None = None

    def has(self, column: str) -> bool:
        """Whether it has this column, as far as known."""
        return self.columns is not None and _among(column, self.columns)


@dataclass(slots=True)
class _Columns:
    """Resolve the columns of one query; `tables` are the views by the id of their node."""

    tables: Mapping[int, NamedView]
    _sources: dict[int, list[_Source]] = field(default_factory=dict)

    def check(self, query: exp.Query) -> None:
        for column in query.find_all(exp.Column):
            path = path_of(column)
            # The parser does not treat parameters of lambdas as columns.
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
        """Whether the path is in one of the sources; raises RuleTextError for a missing field."""
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
        """The sources in FROM, JOIN and LATERAL VIEW of a SELECT."""
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
            # Without an alias the name of the view, with its dots, is the alias.
            return _Source(alias, view.view.columns, view)
        common = common_table(node)
        if common is None:
            return _Source(alias, named or None)
        given = tuple(column for column in alias_columns(common) if column)
        is_inside = any(ancestor is common for ancestor in ancestors(node))  # it is recursive
        return _Source(alias, named or given or (None if is_inside else self.output(common.this)))

    def output(self, query: exp.Expr | None) -> tuple[str, ...] | None:
        """The columns of a query, None if unknown."""
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
    """Raise RuleTextError for the first column that is known to be missing.

    `tables` maps table nodes of the query (by id) to views.
    """
    _Columns(tables).check(query)


def _check_inside(source: _Source, path: Sequence[str], column: exp.Column) -> None:
    """Check a field of a struct against the view's format."""
    if source.view is None or "*" in path or len(path) == 1:
        return
    try:
        column_type(source.view.view, path)
    except MissingColumnError as error:
        raise RuleTextError(
            f"{source.view.name} has no field {'.'.join(path)!r}{error.hint}",
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
    """Whether Spark has generated the name: `count(1)`."""
    return "(" in path[-1]


def _among(name: str, names: Sequence[str]) -> bool:
    return any(name.lower() == each.lower() for each in names)


_DIALECT: Final = "spark"
_HIGHLIGHT: Final = re.compile(r"\x1b\[[0-9]+m")
_PARSER_CLASS: Final = re.compile(r" for <class '[^']*'>")
_CORRECT: Final = "Write one SELECT of Spark SQL that returns the violating rows."


def check_rule_sql(sql: str, known: KnownViews, scope: Scope) -> tuple[str, ...]:
    """The views that the SQL of a rule reads, sorted by name.

    Raises:
        RuleTextError: It is not one SELECT, names unknown views, columns or functions, or accesses
            more than the data; the line is that of the SQL.
    """
    refuse_doors(sql)
    query = _parsed(sql, known)
    tables = {id(table): named for table, named in _views(query, known, scope)}
    if not tables:
        raise RuleTextError(
            "it reads neither a topic nor a store", remedy="Name one as a view: SELECT ... FROM a."
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
    what = f"{len(found)} statements" if len(found) != 1 else f"{_kind(found[0])}, not a SELECT"
    raise RuleTextError(f"it is {what}", remedy=_CORRECT)


@contextlib.contextmanager
def _quiet_parser() -> Iterator[None]:
    """The parser warns about statements that it does not parse in detail; they are refused
    anyway."""
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
            f"{name} contains dots or dashes and needs backticks",
            remedy=f"Write it as `{name}`.",
            line=line,
        )
    if isinstance(error, ParseError) and error.errors:
        first = error.errors[0]
        at = f" at {first['highlight']!r}" if first.get("highlight") else ""
        why = _PARSER_CLASS.sub("", str(first["description"]))
        problem = f"the SQL cannot be parsed{at}: {why}"
        return RuleTextError(problem.rstrip("."), remedy=_CORRECT, line=first.get("line"))
    text = _HIGHLIGHT.sub("", str(error).splitlines()[0])
    return RuleTextError(f"the SQL cannot be parsed: {text}".rstrip("."), remedy=_CORRECT)


def _without_backticks(sql: str, known: KnownViews) -> tuple[str, int] | None:
    """A view whose name needs backticks but has none, with its line."""
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
            remedy="Correct the name: views have the names of topics and stores, in backticks if"
            " they contain dots or dashes.",
            line=line,
        )
    if len(parts) > 1:
        raise RuleTextError(
            f"{name} contains dots or dashes and needs backticks",
            remedy=f"Write it as `{name}`.",
            line=line,
        )
    return found


def line_of(node: exp.Expr) -> int | None:
    """The line of the SQL with a node (from 1), None if the parser kept none."""
    for each in node.walk():
        line = each.meta.get("line")
        if isinstance(line, int):
            return line
    return None


def check_recomputation(declared: Recomputation, known: KnownViews) -> None:
    """Raise RuleTextError for an invalid recomputation."""
    view = _store(declared, known)
    _check_windows(declared.windowed_by, view)
    source = _topic("source", declared.source, known)
    if not source.roles.is_source:
        raise RuleTextError(
            f"source {declared.source!r} is not an input of the application",
            remedy="Recompute from a topic that the application reads and that keeps its records"
            " (repartition topics are purged).",
        )
    _check_values(declared.aggregates, view)
    _check_expressions(declared, known)
    if declared.through is not None:
        through = _topic("through", declared.through, known)
        if not through.roles.is_repartition:
            raise RuleTextError(
                f"through {declared.through!r} is not a repartition topic",
                remedy="Name the repartition topic between source and store, or remove through.",
            )


def _store(declared: Recomputation, known: KnownViews) -> View:
    try:
        return known.views[store_view(declared.store, known.views)]
    except KeyError:
        why = known.without_backup.get(declared.store, "the application has no such store")
        raise RuleTextError(
            f"the store {declared.store!r} is not backed up: {why}",
            remedy="Back up its changelog, or remove recompute.",
        ) from None


def _topic(what: str, name: str, known: KnownViews) -> View:
    found = known.find(name, Scope.EVERYTHING)
    if found is None or found.view.kind is not ViewKind.TOPIC or found.name != name:
        raise RuleTextError(
            f"{what}: there is no topic {name!r} ({known.near(name)})",
            remedy="Use the name of a topic of the application.",
        )
    return found.view


def _check_windows(windows: WindowedBy | None, view: View) -> None:
    is_windowed = view.format.kind is StoreKind.WINDOW
    if view.format.kind not in (StoreKind.KEY_VALUE, StoreKind.WINDOW):
        raise RuleTextError(
            f"stores of kind {view.format.kind} cannot be recomputed",
            remedy="Only counts and sums in stores of kind key_value and window can.",
        )
    if is_windowed != (windows is not None):
        said = "no windowed_by" if is_windowed else "windowed_by"
        raise RuleTextError(
            f"the store is of kind {view.format.kind}, but recompute has {said}",
            remedy="Set windowed_by for windows, and kind: window with it.",
        )
    if windows is None:
        return
    if not (0 < windows.step_ms <= windows.size_ms and windows.grace_ms >= 0):
        raise RuleTextError(
            f"windowed_by has size_ms {windows.size_ms}, advance_ms {windows.step_ms}, grace_ms"
            f" {windows.grace_ms}",
            remedy="Set 0 < advance_ms <= size_ms and grace_ms >= 0, as in the application.",
        )
    if view.format.retention_ms is None:
        raise RuleTextError(
            "the retention of the windowed store is not declared",
            remedy="Set stores.<name>.retention_ms: older windows are not in the store.",
        )


def _check_values(values: Mapping[str, str], view: View) -> None:
    if not values:
        raise RuleTextError("it has no values", remedy="Set count(*) or sum(...), or remove it.")
    for path, aggregate in values.items():
        name = f"values.{path}" if path else "values"
        if not _is_aggregate(aggregate):
            raise RuleTextError(
                f"{name} is {aggregate!r}",
                remedy="Use count(*), count(...) or sum(...): only from these can records in"
                " flight be subtracted.",
            )
        try:
            found = column_type(view, value_path(path))
        except MissingColumnError as error:
            raise RuleTextError(
                f"the value of the store has no field {path!r}{error.hint}",
                remedy="Use the field names of stores.<name>.value.",
            ) from None
        if found is not None and found not in NUMBERS:
            raise RuleTextError(
                f"{name} is a number, but the store's value {f'field {path} ' if path else ''}is"
                f" {found}",
                remedy="Declare the format of the store's value, or name the fields.",
            )


def _is_aggregate(text: str) -> bool:
    try:
        parsed = sqlglot.parse_one(text, dialect="spark")
    except SqlglotError:
        return False
    if isinstance(parsed, exp.Filter):
        parsed = parsed.this
    return isinstance(parsed, exp.Count | exp.Sum) and not isinstance(parsed.this, exp.Distinct)


def _check_expressions(declared: Recomputation, known: KnownViews) -> None:
    """Key, condition and aggregates must be SQL over the source; the last two over `through`,
    too."""
    for what, view, key in (
        ("source", declared.source, declared.key),
        ("through", declared.through, "_key"),
    ):
        if view is None:
            continue
        where = f" WHERE ({declared.where}\n)" if declared.where else ""
        values = "\n, ".join(declared.aggregates.values())
        # The key comes first: the check of `count(*)` next to a column then needs no GROUP BY.
        sql = f"SELECT {key}\n, {values}\n FROM `{view}`{where}"
        try:
            check_rule_sql(sql, known, Scope.EVERYTHING)
        except RuleTextError as error:
            raise RuleTextError(
                f"key, where and values do not match {what} {view}: {error.problem}",
                remedy=error.remedy,
            ) from None
