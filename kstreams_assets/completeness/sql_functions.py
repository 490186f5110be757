"""Finds what the SQL of a rule may not call: what Spark lacks, and what reaches out. Pure."""

import difflib
import functools
import itertools
import re
from importlib.resources import files
from typing import Final

from sqlglot import TokenType, exp, tokenize
from sqlglot.errors import TokenError

from kstreams_assets.completeness.known_views import RuleTextError

_SYNTAX: Final = frozenset({"timestampadd", "timestampdiff", "try_cast"})
"""Called like functions, and not listed by Spark."""
_NAME: Final = re.compile(r"\w+")
_DOORS: Final = frozenset(
    {
        # Any static method of any Java class, `System.getenv` and `Runtime.exec` among them.
        *("java_method", "reflect", "try_reflect"),
        # Their options or arguments name files, which Spark opens.
        *("from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf"),
        *("from_xml", "schema_of_xml"),
        "python_worker_logs",
    }
)


_TEXTS: Final = frozenset(
    kind for kind in TokenType if kind.name == "STRING" or kind.name.endswith("_STRING")
)
"""Kinds of tokens that are text in quotes."""


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


def refuse_doors(sql: str) -> None:
    """Raise RuleTextError for SQL that reaches out of the data: programs, Java methods, files.

    It looks at the words of the text, not at the syntax tree: a rule is reviewed as a SELECT, and
    what runs must not depend on how much of Spark's grammar the parser here knows.
    """
    try:
        tokens = tokenize(sql, read="spark")
    except TokenError:
        return  # the parser reports it
    for token, after in itertools.pairwise(tokens):
        word = token.text.lower()
        if word == "using" and after.token_type in _TEXTS:
            raise RuleTextError(
                "it hands rows to a program (TRANSFORM ... USING)",
                remedy="Write it with the functions of Spark SQL: a rule only reads.",
                line=token.line,
            )
        if token.text == "$" and after.token_type is TokenType.L_BRACE:
            raise RuleTextError(
                "it has a variable (${...})",
                remedy="Write the value itself: nothing is put in place of variables.",
                line=token.line,
            )
        is_name = token.token_type not in _TEXTS
        if is_name and word in _DOORS and after.token_type is TokenType.L_PAREN:
            raise RuleTextError(
                f"it calls {word}, which reaches Java methods, files or logs of the machine",
                remedy="Use other functions of Spark SQL: a rule only reads its views.",
                line=token.line,
            )


def _calls(query: exp.Query) -> list[tuple[int, exp.Expr]]:
    """Calls with where their name begins; what the parser makes of operators has no place."""
    return [
        (start, node)
        for node in query.find_all(exp.Func)
        if isinstance(start := node.meta.get("start"), int)
    ]
