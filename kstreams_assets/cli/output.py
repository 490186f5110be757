"""What commands print: a table for people, JSON for machines."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kstreams_assets.settings import ApplicationSettings

_NUMBERS = (int, float)


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(document, indent=2, sort_keys=False))


def print_markdown(text: str) -> None:
    """Markdown on standard output, as text to read."""
    from markdown_it import MarkdownIt
    from rich.markdown import Markdown

    document = Markdown(text)
    # What looks like HTML is text here, such as <partition>; Rich would leave it out.
    parser = MarkdownIt(options_update={"html": False}).enable(["strikethrough", "table"])
    document.parsed = parser.parse(text)
    _console().print(document)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A line and a table on standard output; numbers to the right."""
    click.echo(title)  # not as the table's own, which would be broken to the table's width
    table = Table(header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(
            row[index] is None or isinstance(row[index], _NUMBERS) for row in rows
        )
        table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        # As it is: [team:orders] is no markup.
        table.add_row(*(Text(_text(cell)) for cell in row))
    _console().print(table)


def _console() -> Console:
    console = Console()
    # A pipe has no width; cut names would be of no use to grep.
    return console if console.is_terminal else Console(width=240)


def _text(cell: object) -> str:
    if cell is None:
        return ""
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def say_guesses(settings: ApplicationSettings) -> None:
    """Name each guess that nobody has confirmed, on the error stream."""
    for guess in settings.application.guesses:
        click.echo(f"NOTE {guess} {guess.remedy}", err=True)
