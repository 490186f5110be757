"""Help: short summaries, options in sections, lines that fit a terminal, examples that parse."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from kstreams_assets.cli.help import SECTIONS
from kstreams_assets.cli.main import cli
from tests.cli.application import Program
from tests.docs.documents import parse_command
from tools.house import DIALECT

_WIDTH = 80


def _contexts() -> Iterator[click.Context]:
    root = click.Context(cli, info_name="kstreams-assets", **cli.context_settings)
    waiting = [root]
    while waiting:
        context = waiting.pop()
        context.terminal_width = context.max_content_width = _WIDTH
        yield context
        command = context.command
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                waiting.append(click.Context(inner, parent=context, info_name=name))


CONTEXTS = {context.command_path: context for context in _contexts()}


@pytest.mark.parametrize("path", CONTEXTS)
def test_the_help_of_a_command(path: str) -> None:
    context = CONTEXTS[path]
    text = context.get_help()
    assert max(map(len, text.splitlines())) <= _WIDTH
    assert DIALECT.findall(text) == []
    assert not re.search(r"\bExits\b|Raises", text)
    for sentence in re.split(r"(?<=[.:]) |\n\n", _body(context.command)):
        assert len(sentence.split()) <= 25, sentence


@pytest.mark.parametrize("path", [path for path in CONTEXTS if " " in path])
def test_a_summary_is_short_and_whole_in_the_list_of_its_parent(path: str) -> None:
    context = CONTEXTS[path]
    summary = context.command.get_short_help_str(_WIDTH)
    assert 10 < len(summary) <= 45
    assert not summary.endswith((".", "..."))
    assert context.parent is not None
    if not context.command.hidden:
        assert re.search(rf"^ +{context.info_name} +{summary}$", context.parent.get_help(), re.M)


@pytest.mark.parametrize("path", CONTEXTS)
def test_every_option_has_a_section_and_one_sentence(path: str) -> None:
    command = CONTEXTS[path].command
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help
            sentences = re.split(r"\.(?: |$)", parameter.help.removesuffix(" Repeatable."))
            assert [one for one in sentences if one] == sentences[:1], parameter.help
            assert len(sentences[0].split()) <= 25, parameter.help
    headings = re.findall(r"^(\w+):$", CONTEXTS[path].get_help(), re.M)
    assert {*headings} <= {*SECTIONS, "Options", "Other", "Commands", "Example"}


@pytest.mark.parametrize("path", CONTEXTS)
def test_an_example_parses(path: str) -> None:
    example = CONTEXTS[path].command.epilog
    if path == "kstreams-assets jars fetch":
        return  # of another package
    assert example
    for line in example.replace("\\\n", " ").splitlines():
        program, *words = shlex.split(line)
        assert program == "kstreams-assets"
        assert line.replace("  ", " ").startswith(path)
        parse_command(cli, words)


def _body(command: click.Command) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))


def test_former_names_of_options_are_accepted_and_not_shown(program: Program) -> None:
    assert "--notes-in" not in program("windows", "--help").out
    parse_command(cli, ["windows", "--app", "a.yaml", "--notes-in", "/b"])
    parse_command(cli, ["windows", "--app", "a.yaml", "--state-in", "/b"])


def test_restore_rollback_is_hidden_and_names_its_new_name(program: Program) -> None:
    listed = program("restore", "--help").out
    assert "previous-offsets" in listed
    assert "rollback" not in listed
