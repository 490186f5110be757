"""Options that every command has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

C = TypeVar("C", bound=Callable[..., Any])


def app_options(command: C) -> C:
    """--app, --application-id, --bootstrap, --warehouse and --json."""
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
        command = option(command)
    return command
