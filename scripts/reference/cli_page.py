"""The page of the command line: every command with its options."""

import inspect
from collections.abc import Iterator

import click

from kstreams_assets.cli.main import cli
from scripts.reference.markdown import table


def cli_lines() -> Iterator[str]:
    """Every command with its options."""
    yield _help(cli)
    yield ""
    root = click.Context(cli, info_name="kstreams-assets", **cli.context_settings)
    yield from _option_lines(cli, root)
    for name, command in sorted(cli.with_all().commands.items()):
        yield from _command_lines(command, click.Context(command, parent=root, info_name=name))


def _command_lines(command: click.Command, context: click.Context) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield from _section(command, context)
        return
    if command.invoke_without_command:
        yield from _section(command, context)
    for name, inner in sorted(command.commands.items()):
        if not inner.hidden:
            below = click.Context(inner, parent=context, info_name=name)
            yield from _command_lines(inner, below)


def _section(command: click.Command, context: click.Context) -> Iterator[str]:
    yield ""
    yield f"## {context.command_path}"
    yield ""
    yield _help(command)
    yield ""
    pieces = click.Command.collect_usage_pieces(command, context)  # of a group, without subcommands
    yield f"Usage: `{context.command_path} {' '.join(pieces)}`"
    yield ""
    yield from _option_lines(command, context)
    if command.epilog:
        yield ""
        yield "```bash"
        yield from command.epilog.splitlines()
        yield "```"


def _option_lines(command: click.Command, context: click.Context) -> Iterator[str]:
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    yield from table(
        ("option", "what"), ((f"`{record[0]}`", record[1]) for record in records if record)
    )


def _help(command: click.Command) -> str:
    """The help text, without what only Python users need (the errors raised)."""
    text = (command.help or "").partition("\f")[0].strip()
    return "\n\n".join(" ".join(p.split()) for p in inspect.cleandoc(text).split("\n\n"))
