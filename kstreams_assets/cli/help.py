"""Help of commands: options by section, and an example at the end."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

SECTIONS: Final = (
    "Application",
    "Selection",
    "Target",
    "Copy",
    "Engine",
    "Checks",
    "Repair",
    "Commands",
    "Limits",
    "Output",
)
"""The sections, in the order of the help."""
_OTHER: Final = "Other"
_COLUMN: Final = 24
"""Maximum width of an option beside its text; a longer option gets its own line."""


class Option(click.Option):
    """An option in a section of the help; `alias` is accepted but not shown."""

    def __init__(
        self,
        declarations: Sequence[str],
        *,
        section: str,
        alias: str = "",
        **attributes: Any,  # noqa: ANN401 - as click has them
    ) -> None:
        if section not in SECTIONS:
            raise ValueError(f"{section} is not a section of the help")
        super().__init__([*declarations, *([alias] if alias else [])], **attributes)
        self.section, self._alias = section, alias

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option and its text without the alias."""
        record = super().get_help_record(ctx)
        if record is None or not self._alias:
            return record
        return record[0].replace(f", {self._alias}", ""), record[1]


def option(*declarations: str, section: str, **attributes: Any) -> Callable[[Any], Any]:  # noqa: ANN401
    """Declare an option, like `click.option`, in a section of the help."""
    return click.option(*declarations, cls=Option, section=section, **attributes)


class Command(click.Command):
    """A command with sections of options; its epilog is an example, shown as written."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and not isinstance(parameter, click.Argument):
                section = parameter.section if isinstance(parameter, Option) else _OTHER
                sections.setdefault(section, []).append(record)
        names = [name for rows in sections.values() for name, _ in rows if len(name) <= _COLUMN]
        width = max(map(len, names), default=_COLUMN)
        for section in (*SECTIONS, _OTHER):
            if rows := sections.get(section):
                with formatter.section("Options" if len(sections) == 1 else section):
                    formatter.write_dl([(f"{n:<{width}}", text) for n, text in rows], width)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example, whose lines are not wrapped."""
        del ctx
        if self.epilog:
            with formatter.section("Example"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Group(Command, click.Group):
    """A group of commands whose help has sections."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)
