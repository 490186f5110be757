"""Scripts and cron jobs call these commands with these options: none may go or change.

`python -m tests.contract.test_command_line` writes the file anew when something was added.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.main import COMMANDS, cli

FILE = Path(__file__).with_name("command_line.txt")


def test_every_command_and_option_is_as_it_was() -> None:
    assert _surface() == FILE.read_text("utf-8")


def test_the_list_of_commands_says_what_they_say() -> None:
    context = click.Context(cli)
    for name, text in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert (command.name, command.get_short_help_str(200)) == (name, text)


def _surface() -> str:
    codes = (f"exit code {v} {k}" for k, v in sorted(vars(exit_codes).items()) if k.isupper())
    return "\n".join([*codes, *_commands(cli, "kstreams-assets"), ""])


def _commands(command: click.Command, path: str) -> Iterator[str]:
    yield path
    yield from (f"  {_parameter(parameter)}" for parameter in command.params)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, f"{path} {name}")


def _parameter(parameter: click.Parameter) -> str:
    kind = parameter.type
    words = [
        *parameter.opts,
        *parameter.secondary_opts,
        "|".join(map(str, kind.choices)) if isinstance(kind, click.Choice) else kind.name,
    ]
    words += ["required"] if parameter.required else []
    words += ["repeatable"] if parameter.multiple or parameter.nargs != 1 else []
    words += ["flag"] if isinstance(parameter, click.Option) and parameter.is_flag else []
    default = parameter.to_info_dict().get("default")
    if isinstance(default, (str, int, float)) and default is not False:
        words.append(f"default={getattr(default, 'value', default)}")
    return " ".join(words)


if __name__ == "__main__":
    FILE.write_text(_surface(), encoding="utf-8")
