"""What the tests of the documents read: files, headings, links, fenced blocks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

CHECKOUT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    file: Path
    language: str
    text: str

    def __str__(self) -> str:
        first = self.text.strip().partition("\n")[0]
        return f"{self.file.relative_to(CHECKOUT)}: {first[:50]}"


def documents() -> list[Path]:
    """Every document for users."""
    return [
        CHECKOUT / "README.md",
        *(CHECKOUT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
        *sorted((CHECKOUT / "docs").rglob("*.md")),
    ]


def blocks(*languages: str) -> list[Block]:
    """The fenced blocks in these languages."""
    return [
        Block(file, match[2], re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE))
        for file in documents()
        for match in _FENCE.finditer(file.read_text(encoding="utf-8"))
        if match[2] in languages
    ]


def parse_command(
    command: click.Command, words: Sequence[str], parent: click.Context | None = None
) -> None:
    """Parse a command line without running it.

    Raises:
        click.ClickException: A command or option does not exist, or a value is missing or wrong.
    """
    context = command.make_context(command.name, list(words), parent=parent)
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest and command.invoke_without_command:
            return
        _, inner, words = command.resolve_command(context, rest)
        assert inner is not None
        parse_command(inner, words, context)


def prose(file: Path) -> str:
    """The text without its fenced blocks."""
    return _FENCE.sub("", file.read_text(encoding="utf-8"))


def links(file: Path) -> Iterator[str]:
    """The targets of relative links."""
    for target in _LINK.findall(prose(file)):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(file: Path) -> set[str]:
    """What `#...` may name: the headings as GitHub turns them into anchors."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose(file)):
        words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        anchor, number = words, 0
        while anchor in found:
            number += 1
            anchor = f"{words}-{number}"
        found.add(anchor)
    return found
