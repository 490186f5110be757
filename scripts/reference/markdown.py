"""Tables and pages in Markdown."""

from collections.abc import Iterable, Iterator, Mapping

GENERATED = "<!-- Written by `python -m scripts.generate_reference`; do not edit. -->"


def page(title: str, lines: Iterable[str]) -> str:
    """A page with its title."""
    return "\n".join([f"# {title}", "", GENERATED, "", *lines, ""])


def row(*cells: str) -> str:
    """One row of a table."""
    escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A whole table."""
    titles = list(headings)
    yield row(*titles)
    yield row(*("---" for _ in titles))
    for cells in rows:
        yield row(*cells)


def named(what: str, meaning: str, texts: Mapping[str, str]) -> Iterator[str]:
    """A table of names in code type and what they mean."""
    yield from table((what, meaning), ((f"`{name}`", text) for name, text in texts.items()))
