"""Finds functions in the SQL of a rule that Spark does not have. Pure."""

import difflib
import functools
import re
from importlib.resources import files
from typing import Final

from sqlglot import exp

from kstreams_assets.completeness.known_views import RuleTextError

_SYNTAX: Final = frozenset({"timestampadd", "timestampdiff", "try_cast"})
"""Called like functions, and not listed by Spark."""
_NAME: Final = re.compile(r"\w+")


@functools.cache
def spark_functions() -> frozenset[str]:
    """What `SHOW FUNCTIONS` of the pinned Spark lists, operators aside; a test compares."""
    text = files("kstreams_assets.completeness").joinpath("spark_functions.txt").read_text("utf-8")
    return frozenset(text.split())


def check_functions(query: exp.Query, sql: str) -> None:
    """Raise RuleTextError for the first function, in the order of the text, there is not."""
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


def _calls(query: exp.Query) -> list[tuple[int, exp.Expr]]:
    """Calls with where their name begins; what the parser makes of operators has no place."""
    return [
        (start, node)
        for node in query.find_all(exp.Func)
        if isinstance(start := node.meta.get("start"), int)
    ]
