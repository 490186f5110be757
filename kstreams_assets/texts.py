"""Texts that every layer shows: timestamps, durations, names within Markdown."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

_CODE: Final = re.compile(r"(`[^`]*`)")
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_SIGNS: Final = re.compile(r"([\\*_<>\[\]|~])")


def plain(text: str) -> str:
    """The text with a backslash before each sign of Markdown and HTML, except in `code`."""
    parts = _CODE.split(text)
    return "".join(
        part if index % 2 else _SIGNS.sub(r"\\\1", part) for index, part in enumerate(parts)
    )


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are Markdown already."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def iso_time(epoch_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(epoch_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")


def duration(length_ms: int) -> str:
    """A duration in words: its two largest units, such as `2 h 5 min`."""
    seconds = max(0, length_ms) // 1000
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def few(items: Iterable[object], most: int = 3, by: str = ", ") -> str:
    """The first items, and the number of further ones: `a, b, c and 2 more`."""
    texts = [*map(str, items)]
    more = f"{by.rstrip(' ,')} and {len(texts) - most} more" if len(texts) > most else ""
    return by.join(texts[:most]) + more


def bytes_text(count: int) -> str:
    """A size for people, in powers of 1000."""
    size, unit = float(count), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
