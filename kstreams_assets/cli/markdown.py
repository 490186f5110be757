"""Markdown for a terminal; its tables never break a word."""

from typing import Any, ClassVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, TableElement

from kstreams_assets.cli.output import whole_words_table


class _Table(TableElement):
    """A table that replaces Rich's own, which cuts words wider than their column."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render with `whole_words_table`."""
        del options
        headings = [] if self.header is None or self.header.row is None else self.header.row.cells
        rows = [] if self.body is None else [row.cells for row in self.body.rows]
        yield whole_words_table(
            console,
            [cell.content for cell in headings],
            [[cell.content for cell in row] for row in rows],
            [cell.content.justify == "right" for cell in headings],
            box.SIMPLE,
        )


class WholeWordsMarkdown(Markdown):
    """Rich's Markdown with tables of whole words."""

    elements: ClassVar[dict[str, Any]] = {**Markdown.elements, "table_open": _Table}
