"""Output of commands: tables for people, JSON for programs."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import duration, iso_time

_NUMBERS = (int, float)
_QUANTITIES: Final = {
    *("bytes", "failures", "files", "keys", "lost", "points", "read", "records", "rows", "steps"),
    *("tombstones", "topics", "violations", "windows"),
    # Offsets count the records before them.
    *("committed", "end", "mapped", "offset", "offsets", "saved", "source", "start", "target"),
}
"""Counts get thousands separators. Other integers, such as ports and process ids, are printed
plain, because users copy them."""
_EPOCH_MS: Final = 10**11
"""In a column whose name ends in `_ms`, larger values are times (since 1973), smaller ones are
durations."""
_PIPE_COLUMNS: Final = 240
_INDENTED: Final = 16
"""Maximum indentation of nested lists."""
_NARROWEST: Final = 16
"""Minimum width of a column with sentences; a narrower one has one word in each line."""


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document to standard output."""
    click.echo(json.dumps(document, indent=2, sort_keys=False))


def print_markdown(text: str) -> None:
    """Print formatted Markdown to standard output; words are never broken."""
    from markdown_it import MarkdownIt

    from kstreams_assets.cli.markdown import WholeWordsMarkdown

    document = WholeWordsMarkdown(text)
    # Rich would omit text that looks like HTML, such as <partition>.
    parser = MarkdownIt(options_update={"html": False}).enable(["strikethrough", "table"])
    document.parsed = parser.parse(text)
    console = _console()
    # Rich cuts long words in lists at the width of the console. Therefore the console is made wide
    # enough: for each word on a terminal, for each line in a pipe. Tables have their own layout.
    lines = [line for line in text.splitlines() if line[:1] != "|"]
    parts = [word for line in lines for word in line.split()] if console.is_terminal else lines
    width = max(map(cell_len, parts), default=0) + _INDENTED
    overflow = "fold" if console.is_terminal else "ignore"
    console.print(_Wide(document, width), overflow=overflow, crop=False)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a title and a table to standard output; numbers are aligned to the right.

    Words are never broken, because users copy ids. If the columns do not fit, each row becomes a
    block of lines. The name of a column determines the format of its numbers (see `shown`).
    """
    click.echo(title)  # Rich would wrap a table's own title to the width of the table
    # Text, because Rich would read [team:orders] as markup.
    cells = [
        [Text(shown(column, cell)) for column, cell in zip(columns, row, strict=True)]
        for row in rows
    ]
    numeric = [
        bool(rows) and all(row[n] is None or isinstance(row[n], _NUMBERS) for row in rows)
        for n in range(len(columns))
    ]
    headings = [Text(_label(column)) for column in columns]
    console = _console()
    console.print(
        whole_words_table(console, headings, cells, numeric, box.HEAVY_HEAD),
        overflow="ignore",
        crop=False,
    )


def print_facts(title: str, facts: Mapping[str, object]) -> None:
    """Print a table of names and values; None values are omitted."""
    rows = [[_label(n), shown(n, value)] for n, value in facts.items() if value is not None]
    print_table(title, ["what", "value"], rows)


def shown(name: str, value: object) -> str:
    """Format a value for people; `name` is the name of its column or field.

    Counts (`records`, `bytes`, offsets …) get thousands separators, other integers are plain. If
    the name ends in `_ms`, a time is shown in ISO 8601 with its age, a duration in words.

    >>> shown("pid", 29529), shown("records", 29529), shown("took_ms", 90_000)
    ('29529', '29,529', '1 min 30 s')
    """
    if value is None:
        return ""
    if not isinstance(value, int) or isinstance(value, bool):
        return str(value)
    if name.endswith("_ms"):
        return _time(value) if abs(value) >= _EPOCH_MS else duration(value)
    is_counted = not _QUANTITIES.isdisjoint(re.split(r"[^a-z]+", name.lower()))
    return f"{value:,}" if is_counted else str(value)


def _label(name: str) -> str:
    return name.removesuffix("_ms")


def _time(epoch_ms: int) -> str:
    try:
        at = iso_time(epoch_ms)
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return str(epoch_ms)
    now_ms = _now_ms()
    return f"{at} ({duration(now_ms - epoch_ms)} ago)" if epoch_ms <= now_ms else at


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _console() -> Console:
    console = Console()
    # A pipe has no width, and grep needs whole names.
    return console if console.is_terminal else Console(width=_PIPE_COLUMNS)


def whole_words_table(
    console: Console,
    headings: Sequence[Text],
    rows: Sequence[Sequence[Text]],
    numeric: Sequence[bool],
    style: box.Box,
) -> RenderableType:
    """Lay out a table without broken words.

    Text wraps at blanks. If that is not enough, each row becomes a block of lines. In a pipe, the
    table is as wide as necessary, because its lines are searched.
    """
    around = 3 * len(headings) + 1
    columns = [[heading, *(row[n] for row in rows)] for n, heading in enumerate(headings)]
    natural = [max((_longest_line(cell) for cell in column), default=1) for column in columns]
    least = [
        max(min(lines, _NARROWEST), *(_longest_word(cell) for cell in column))
        for column, lines in zip(columns, natural, strict=True)
    ]
    room = console.width - around
    if sum(least) > room:
        if console.is_terminal and rows:
            return Group(*_blocks(headings, rows))
        room = sum(least)
    table = Table(header_style="bold", box=style, width=None)
    for heading, width, is_number in zip(
        headings, _widths(least, natural, room), numeric, strict=True
    ):
        table.add_column(heading, justify="right" if is_number else "left", width=width)
    for row in rows:
        table.add_row(*row)
    return _Wide(table, sum(table.columns[n].width or 0 for n in range(len(headings))) + around)


class _Wide:
    """Renderable that may be wider than the console."""

    def __init__(self, shown: RenderableType, width: int) -> None:
        self._shown, self._width = shown, width

    def __rich_console__(self, console: Console, options: Any) -> Any:  # noqa: ANN401 - as Rich has it
        """Render as Rich's protocol requires."""
        yield from console.render(
            self._shown, options.update(width=max(self._width, options.max_width))
        )


def _widths(least: Sequence[int], natural: Sequence[int], room: int) -> list[int]:
    """Return a width per column: at least its longest word, at most its longest line."""
    widths = list(least)
    left = room - sum(widths)
    while left > 0:
        open_ = [n for n, width in enumerate(widths) if width < natural[n]]
        if not open_:
            break
        share = max(1, left // len(open_))
        for n in open_:
            more = min(share, natural[n] - widths[n], left)
            widths[n] += more
            left -= more
    return widths


def _blocks(headings: Sequence[Text], rows: Sequence[Sequence[Text]]) -> list[Text]:
    """Return each row as lines of name and value; an empty line separates rows."""
    longest = max(cell_len(heading.plain) for heading in headings)
    found: list[Text] = []
    for row in rows:
        for heading, cell in zip(headings, row, strict=True):
            if cell.plain:
                name = Text(f"{heading.plain:<{longest}}  ", style="bold")
                lines = cell.plain.splitlines()
                found.append(name + Text(f"\n{'':<{longest + 2}}".join(lines)))
        found.append(Text(""))
    return found[:-1]


def _longest_word(text: Text) -> int:
    return max((cell_len(word) for word in text.plain.split()), default=0)


def _longest_line(text: Text) -> int:
    return max((cell_len(line) for line in text.plain.splitlines()), default=0)


def say_guesses(settings: ApplicationSettings) -> None:
    """Print each unconfirmed guess to standard error."""
    for guess in settings.application.guesses:
        click.echo(f"NOTE {guess} {guess.remedy}", err=True)
