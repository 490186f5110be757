"""Remove the text around a topology in logs and documents.

People print the text with their logger, copy it from a document, or redirect it in PowerShell. Only
lines without meaning are removed: a line with a word of Kafka's grammar is always kept.
"""

import codecs
import html
import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from kstreams_assets.errors import ConfigurationError

REMEDY: Final = (
    "Provide the unchanged output of Topology.describe().toString(), starting at the line"
    " 'Topologies:'."
)
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins with that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_LONGEST: Final = 160

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_BEFORE: Final = r"(?:^|.*?[\s|>\])}:*/#\-])"
"""Prefix of a line from a logger, a pager or a comment."""
_HEADER: Final = re.compile(_BEFORE + r"(Topologies:|Topology: .+:)$")
_GRAMMAR: Final = re.compile(
    _BEFORE + r"(Sub-topology: \d+(?: for global store \(will not generate tasks\))?"
    r"|Source: .* \(topics: .*\)"
    r"|Processor: .* \(stores: \[.*\]\)"
    r"|Sink: .* \((?:topic|extractor class): .*\)"
    r"|(?:-->|<--) .+)$"
)
_WORDS: Final = (
    *("Sub-topology", "Source:", "Processor:", "Sink:"),
    *("-->", "<--", "(topic", "(stores", "(extractor class"),
)
_LETTER: Final = re.compile(r"\w")
_LOGGED: Final = re.compile(
    r"\b(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\b|\d{1,2}:\d{2}:\d{2}|^\S+ +\|"
)


def decoded_text(data: bytes, file: Path) -> str:
    """Decode a file in UTF-8 or UTF-16, without its byte order mark.

    Raises ConfigurationError for other encodings.
    """
    mark, encoding = next((known for known in _BOMS if data.startswith(known[0])), (b"", "utf-8"))
    data = data.removeprefix(mark)
    # Text in Latin letters has a zero in every other byte of UTF-16, and none in UTF-8.
    if not mark and b"\0" in data:
        encoding = "utf-16-be" if data[:1] == b"\0" else "utf-16-le"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"The topology file {file} is not text in UTF-8 or UTF-16 (byte {error.start} of it).",
            remedy=f"Convert it, for example: iconv -f ISO-8859-1 -t UTF-8 {file} > topology.txt",
        ) from None


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """The non-blank lines, trimmed, with their numbers starting at 1."""
    lines = text.removeprefix("\ufeff").split("\n")
    numbered = ((number, line.strip()) for number, line in enumerate(lines, start=1))
    return [(number, line) for number, line in numbered if line]


def not_understood(number: int, line: str, expected: str) -> ConfigurationError:
    """The error for a line."""
    shown = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
    return ConfigurationError(
        f"Line {number} of the topology text is not understood: {shown!r} (expected {expected}).",
        remedy=REMEDY,
    )


def unwrapped(text: str) -> Iterator[Sequence[tuple[int, str]]]:
    """The lines of each topology in a text, without the text around them; nothing if there is none.

    Raises ConfigurationError for a line that may belong to a topology but cannot be parsed.
    """
    lines = numbered_lines(_plain(text))
    starts = [at for at, (_, line) in enumerate(lines) if _HEADER.match(line)]
    for start, end in pairwise([*starts, len(lines)]):
        yield _of_one(lines[start:end])


def _of_one(lines: Sequence[tuple[int, str]]) -> Sequence[tuple[int, str]]:
    """Kafka's lines from the header on, without their prefixes."""
    number, first = lines[0]
    header = _HEADER.match(first)
    found = [(number, header[1] if header else first)]
    between: list[tuple[int, str]] = []
    for number, line in lines[1:]:
        if match := _GRAMMAR.match(line):
            _refuse_unlike_a_log(between)
            between = []
            found.append((number, match[1]))
        elif _may_be_grammar(line):
            raise not_understood(number, line, "a line of Topology.describe()")
        else:
            between.append((number, line))
    return found


def _refuse_unlike_a_log(between: Sequence[tuple[int, str]]) -> None:
    """Any text may follow the last line of a topology; inside it, log lines of other code."""
    for number, line in between:
        if _LETTER.search(line) and not _LOGGED.search(line):
            raise not_understood(number, line, "a line of Topology.describe()")


def _may_be_grammar(line: str) -> bool:
    """Whether it contains a word of the grammar, or the start of one where a text was cut."""
    return any(word in line or word.startswith(line) for word in _WORDS)


def _plain(text: str) -> str:
    """Remove colours, entities and JSON around the text."""
    text = _COLOURS.sub("", text.removeprefix("\ufeff")).replace("\xa0", " ")
    try:
        found = [each for each in _strings(json.loads(text)) if "Sub-topology" in each]
    except (ValueError, RecursionError):
        found = []
    if found:
        text = "\n".join(found)
    if "\n" not in text.strip() and "\\n" in text:
        text = text.replace("\\n", "\n")
    return html.unescape(text) if "--&gt;" in text else text


def _strings(document: object) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, list):
        for each in document:
            yield from _strings(each)
    elif isinstance(document, dict):
        for each in document.values():
            yield from _strings(each)
