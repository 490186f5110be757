"""Finds its way in the syntax tree of a query: what is around a column, what is in FROM. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from sqlglot import exp

_GENERATORS: Final = (exp.Explode, exp.Posexplode, exp.Inline, exp.Stack, exp.JSONTable)
_GENERATOR_NAMES: Final = frozenset(
    {"json_tuple", "explode_outer", "posexplode_outer", "inline_outer", "variant_explode"}
)


def path_of(column: exp.Column) -> list[str]:
    """The names of a column and of the fields behind it: `a.b.c`."""
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

    What stands in FROM or WITH does not see the SELECT around it, unless it is lateral. ORDER BY of
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
    """What stands in FROM, JOIN and LATERAL VIEW of a SELECT."""
    from_ = select.args.get("from_")
    if from_ is not None:
        yield from_.this
        yield from (join.this for join in from_.this.args.get("joins") or ())
    for join in select.args.get("joins") or ():
        yield join.this
        yield from (inner.this for inner in join.this.args.get("joins") or ())
    yield from select.args.get("laterals") or ()


def alias_columns(node: exp.Expr) -> Sequence[str]:
    """The names that an alias gives columns: `AS t(a, b)`."""
    alias = node.args.get("alias")
    if not isinstance(alias, exp.TableAlias):
        return ()
    return [column.name for column in alias.args.get("columns") or ()]


def common_table(table: exp.Table) -> exp.CTE | None:
    """The common table expression that a table is, None where it is none.

    Inside of WITH only those before are seen, and itself where it is recursive.
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
    """Names given in the SELECT: later columns, HAVING, GROUP BY and ORDER BY may use them."""
    found: list[str] = []
    for projection in select.expressions:
        if isinstance(projection, exp.Aliases):
            found += [identifier.name for identifier in projection.args["expressions"]]
        elif isinstance(projection, exp.Alias):
            found.append(projection.alias)
    return found


def generates(projection: exp.Expr) -> bool:
    """Whether columns come of it whose names only Spark knows."""
    inner = projection.this if isinstance(projection, exp.Alias) else projection
    if isinstance(inner, exp.Anonymous):
        return inner.name.lower() in _GENERATOR_NAMES
    return isinstance(inner, _GENERATORS) and not isinstance(projection, exp.Alias)
