"""Options that every command of an application has."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import click

from kstreams_assets.app_file.blocks import LEAST_RATE
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.table import absence

_READERS: Final = frozenset({"windows", "list", "show", "ready", "state", "map"})
"""Commands whose answer comes from the warehouse alone: where there is none, they say so. Others
make one and say that (backup, take, governance), or fail for want of what they need."""


def app_options(command: Callable[..., None]) -> Callable[..., None]:
    """--app, --application-id, --bootstrap, --warehouse and --notes-in, handed on as `settings`;
    and --json.

    The command gets the keyword arguments `settings` (ApplicationSettings) and `as_json`.
    """

    @functools.wraps(command)
    def with_settings(
        app_file: Path,
        application_id: str | None,
        bootstrap: str | None,
        warehouse: str | None,
        notes_in: str | None,
        **rest: Any,  # noqa: ANN401 - whatever options the command has of its own
    ) -> None:
        settings = load_settings(
            app_file,
            application_id=application_id,
            bootstrap_servers=bootstrap,
            warehouse=warehouse,
            notes_in=notes_in,
        )
        missing = absence(settings.warehouse, settings.application_id)
        if missing is not None and click.get_current_context().info_name in _READERS:
            click.echo(f"NOTE {missing}", err=True)
        command(settings=settings, **rest)

    decorated: Callable[..., None] = with_settings
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--notes-in",
            help="Folder for what restores and drills note, if the warehouse is only read (a copy);"
            " replaces the YAML's.",
        ),
        click.option("--warehouse", help="Folder of the tables, or s3://...; replaces the YAML's."),
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


new_lineage_option = click.option(
    "--new-lineage",
    is_flag=True,
    help="Accept another cluster than that of the newest recovery point, though no restore of this"
    " warehouse leads to it.",
)


def limit_options(job: Literal["backup", "restore"]) -> Callable[..., Callable[..., None]]:
    """--bytes-per-second, --broker-bytes-per-second and --tasks: they replace the YAML's.

    The command has the options of `app_options` or `apps_options` as well, which go above.
    """

    def limited(settings: ApplicationSettings, **said: int | None) -> ApplicationSettings:
        given = {name: value for name, value in said.items() if value is not None}
        if job == "backup":
            return replace(settings, backup=replace(settings.backup, **given))
        return replace(settings, restore=replace(settings.restore, **given))

    def decorator(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_limits(
            bytes_per_s: int | None,
            broker_bytes_per_s: int | None,
            tasks: int | None,
            **rest: Any,  # noqa: ANN401 - whatever options the command has of its own
        ) -> None:
            def of(settings: ApplicationSettings) -> ApplicationSettings:
                return limited(
                    settings,
                    bytes_per_s=bytes_per_s,
                    broker_bytes_per_s=broker_bytes_per_s,
                    tasks=tasks,
                )

            if "settings" in rest:
                rest["settings"] = of(rest["settings"])
            else:
                rest["all_settings"] = [of(one) for one in rest["all_settings"]]
            command(**rest)

        verb = "fetch" if job == "backup" else "produce and read back"
        decorated: Callable[..., None] = with_limits
        for option, name, least, text in (
            ("--tasks", "tasks", 1, "How many tasks run at a time; replaces the YAML's."),
            (
                "--broker-bytes-per-second",
                "broker_bytes_per_s",
                LEAST_RATE,
                f"Do not {verb} more than this per broker; replaces the YAML's.",
            ),
            (
                "--bytes-per-second",
                "bytes_per_s",
                LEAST_RATE,
                f"Do not {verb} more than this in all; replaces the YAML's.",
            ),
        ):
            variable = f"KSTREAMS_ASSETS_{job}_{option.strip('-').replace('-', '_')}".upper()
            decorated = click.option(
                option,
                name,
                type=click.IntRange(min=least),
                envvar=variable,
                show_envvar=True,
                help=text,
            )(decorated)
        return decorated

    return decorator


def apps_options(command: Callable[..., None]) -> Callable[..., None]:
    """--app, several times, and what goes with a single one; handed on as `all_settings`.

    A group with commands of its own does nothing when one of them is called.
    """

    @functools.wraps(command)
    def with_settings(
        app_files: Sequence[Path],
        application_id: str | None,
        bootstrap: str | None,
        warehouse: str | None,
        **rest: Any,  # noqa: ANN401 - whatever options the command has of its own
    ) -> None:
        called = click.get_current_context().invoked_subcommand
        if called is not None:
            if app_files or application_id or bootstrap or warehouse:
                raise ConfigurationError(
                    f"Options stand before the word {called}.", remedy=f"Write them after {called}."
                )
            return
        if not app_files:
            raise ConfigurationError("--app is needed.", remedy="Give the component's YAML.")
        if len(app_files) > 1 and (application_id or bootstrap or warehouse):
            raise ConfigurationError(
                "--application-id, --bootstrap and --warehouse go with one --app.",
                remedy="Say it in the YAML files, or start the command once for each application.",
            )
        all_settings = [
            load_settings(
                file,
                application_id=application_id,
                bootstrap_servers=bootstrap,
                warehouse=warehouse,
            )
            for file in app_files
        ]
        _refuse_twins(all_settings)
        command(all_settings=all_settings, **rest)

    decorated: Callable[..., None] = with_settings
    for option in (
        click.option("--warehouse", help="Folder of the tables, or s3://...; replaces the YAML's."),
        click.option("--bootstrap", help="host:port[,...]; replaces the YAML's."),
        click.option("--application-id", help="Which application, if the YAML has several."),
        click.option(
            "--app",
            "app_files",
            multiple=True,
            type=click.Path(path_type=Path),
            help="The component's YAML (defs.yaml); may be given several times.",
        ),
    ):
        decorated = option(decorated)
    return decorated


def _refuse_twins(settings: Sequence[ApplicationSettings]) -> None:
    """Two series of the same name and labels would make Prometheus refuse the whole scrape."""
    ids = [one.application_id for one in settings]
    twins = sorted({name for name in ids if ids.count(name) > 1})
    if twins:
        raise ConfigurationError(
            f"Two of the applications are called {', '.join(twins)}.",
            remedy="Serve them from two commands, under two job names.",
        )
