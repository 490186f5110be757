"""Options that every command of an application has."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.warehouse.table import absence

_READERS: Final = frozenset({"windows", "list", "show", "ready", "state", "map"})
"""Commands whose answer comes from the warehouse alone: where there is none, they say so. Others
make one and say that (backup, take, governance), or fail for want of what they need."""


def app_options(command: Callable[..., None]) -> Callable[..., None]:
    """--app, --application-id, --bootstrap and --warehouse, handed on as `settings`; and --json.

    The command gets the keyword arguments `settings` (ApplicationSettings) and `as_json`.
    """

    @functools.wraps(command)
    def with_settings(
        app_file: Path,
        application_id: str | None,
        bootstrap: str | None,
        warehouse: str | None,
        **rest: Any,  # noqa: ANN401 - whatever options the command has of its own
    ) -> None:
        settings = load_settings(
            app_file,
            application_id=application_id,
            bootstrap_servers=bootstrap,
            warehouse=warehouse,
        )
        missing = absence(settings.warehouse, settings.application_id)
        if missing is not None and click.get_current_context().info_name in _READERS:
            click.echo(f"NOTE {missing}", err=True)
        command(settings=settings, **rest)

    decorated: Callable[..., None] = with_settings
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--warehouse", help="Folder of the tables; replaces the YAML's."),
        click.option("--bootstrap", help="host:port[,...]; replaces the YAML's."),
        click.option("--application-id", help="Which application, if the YAML has several."),
        click.option(
            "--app",
            "app_file",
            required=True,
            type=click.Path(path_type=Path),
            help="The component's YAML (defs.yaml).",
        ),
    ):
        decorated = option(decorated)
    return decorated
