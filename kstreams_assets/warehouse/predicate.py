"""Delta predicates that name windows and topics."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowTopic:
    """A topic's part of one window: what a backup replaces as a whole."""

    window: str
    topic: str


def sql_string(text: str) -> str:
    """A string literal."""
    return "'" + text.replace("'", "''") + "'"


def windows_and_topics(pairs: Iterable[WindowTopic]) -> str:
    """A predicate over the columns `window` and `topic` that holds for exactly these pairs.

    Windows with the same topics share one clause, so that hundreds of windows stay a short text.
    """
    topics_of: dict[str, set[str]] = {}
    for pair in pairs:
        topics_of.setdefault(pair.window, set()).add(pair.topic)
    windows_of: dict[tuple[str, ...], list[str]] = {}
    for window, topics in topics_of.items():
        windows_of.setdefault(tuple(sorted(topics)), []).append(window)
    clauses = [
        f"(window IN ({_literals(sorted(windows))}) AND topic IN ({_literals(topics)}))"
        for topics, windows in sorted(windows_of.items())
    ]
    return " OR ".join(clauses)


def _literals(values: Sequence[str]) -> str:
    return ", ".join(sql_string(value) for value in values)
