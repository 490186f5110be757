"""Regular expressions of source nodes: Java's, read by Python as far as both mean the same."""

import re

# Constructs that Python accepts with another meaning than Java: nested classes and intersections.
_JAVA_ONLY = re.compile(r"&&|\[[^\]]*(?<!\\)\[")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)")
_NAMED_GROUP = re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>")


def compile_java_pattern(pattern: str) -> re.Pattern[str] | None:
    """The Java regex for use with `fullmatch`, as Kafka's consumer uses it.

    None when Python does not understand it or would understand something else.
    """
    translated = _QUOTED.sub(lambda quoted: re.escape(quoted.group(1)), pattern)
    translated = _NAMED_GROUP.sub(r"(?P<\1>", translated)
    if _JAVA_ONLY.search(translated):
        return None
    try:
        return re.compile(translated, re.ASCII)
    except re.error:
        return None
