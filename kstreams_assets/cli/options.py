"""Options that several commands share."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import click

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.cli.help import option
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import LEAST_RATE, ApplicationSettings

_Decorator = Callable[[Any], Any]
_READERS: Final = frozenset({"windows", "list", "show", "ready", "state", "map"})
"""Commands that only read the warehouse: they print a note if it does not exist. Other commands
create the warehouse and report that (backup, take, governance), or fail."""


def app_option(name: str, *, required: bool = False, multiple: bool = False) -> _Decorator:
    """Return --app; the command gets the path as argument `name`."""
    return option(
        "--app",
        name,
        section="Application",
        required=required,
        multiple=multiple,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"YAML file of the application (defs.yaml).{' Repeatable.' if multiple else ''}",
    )


application_id_option: Final = option(
    "--application-id",
    section="Application",
    metavar="ID",
    help="Application to use if the YAML file holds several.",
)
_bootstrap_option: Final = option(
    "--bootstrap",
    section="Application",
    metavar="HOST:PORT,...",
    help="Bootstrap servers of the source cluster (overrides the YAML).",
)
warehouse_option: Final = option(
    "--warehouse",
    section="Application",
    metavar="PLACE",
    help="Warehouse: a folder or s3://bucket/prefix (overrides the YAML).",
)
json_option: Final = option("--json", "as_json", section="Output", is_flag=True, help="Print JSON.")

as_of_option: Final = option(
    "--as-of",
    section="Selection",
    metavar="TIME",
    help="Use the newest backed-up recovery point that was completely taken by this time (ISO 8601,"
    " such as 2026-11-21T14:30:00Z).",
)
point_option: Final = option(
    "--point", "point_id", section="Selection", metavar="ID", help="Use this recovery point."
)


def listen_option(pages: str) -> _Decorator:
    """Return --listen: the address at which a command serves these pages."""
    return option(
        "--listen",
        section="Output",
        metavar="HOST:PORT",
        help=f"Serve {pages} at this address; port 0 selects a free port.",
    )


def last_option(what: str, *, default: int = 20) -> _Decorator:
    """Return --last: the number of rows that a command lists."""
    return option(
        "--last",
        section="Selection",
        metavar="N",
        default=default,
        show_default=True,
        help=f"Number of {what}, newest first.",
    )


def app_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --app, --application-id, --bootstrap, --warehouse, --state-in and --json.

    The command gets the keyword arguments `settings` (ApplicationSettings) and `as_json`.
    """
    return _with_app_options(command, writes=False)


def writing_app_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the same options; --state-in is not shown, because the warehouse refuses it."""
    return _with_app_options(command, writes=True)


def _with_app_options(command: Callable[..., None], *, writes: bool) -> Callable[..., None]:
    @functools.wraps(command)
    def with_settings(
        app_file: Path,
        application_id: str | None,
        bootstrap: str | None,
        warehouse: str | None,
        state_in: str | None,
        **rest: Any,  # noqa: ANN401 - whatever options the command has of its own
    ) -> None:
        settings = load_settings(
            app_file,
            application_id=application_id,
            bootstrap_servers=bootstrap,
            warehouse=warehouse,
            state_in=state_in,
        )
        missing = Repository.open(settings).absence()
        if missing is not None and click.get_current_context().info_name in _READERS:
            click.echo(f"NOTE {missing}", err=True)
        command(settings=settings, **rest)

    decorated: Callable[..., None] = with_settings
    for declared in (
        json_option,
        option(
            "--state-in",
            "state_in",
            alias="--notes-in",
            section="Application",
            metavar="PLACE",
            hidden=writes,
            help="Use this only if the warehouse is read-only: folder or s3://bucket/prefix where"
            " restores, drills and checks store progress and results (overrides the YAML).",
        ),
        warehouse_option,
        _bootstrap_option,
        application_id_option,
        app_option("app_file", required=True),
    ):
        decorated = declared(decorated)
    return decorated


new_lineage_option: Final = option(
    "--new-lineage",
    section="Checks",
    is_flag=True,
    help="Accept the cluster in the YAML as the new source; needed if you moved the application"
    " there by other means than `restore run`.",
)


def limit_options(job: Literal["backup", "restore"]) -> Callable[..., Callable[..., None]]:
    """Add --bytes-per-second, --broker-bytes-per-second and --tasks, which override the YAML.

    Place this decorator below `app_options` or `apps_options`.
    """

    def limited(settings: ApplicationSettings, **limits: int | None) -> ApplicationSettings:
        given = {name: value for name, value in limits.items() if value is not None}
        if job == "backup":
            return replace(settings, backup=settings.backup.model_copy(update=given))
        return replace(settings, restore=settings.restore.model_copy(update=given))

    def decorator(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_limits(
            bytes_per_second: int | None,
            broker_bytes_per_second: int | None,
            tasks: int | None,
            **rest: Any,  # noqa: ANN401 - whatever options the command has of its own
        ) -> None:
            def of(settings: ApplicationSettings) -> ApplicationSettings:
                return limited(
                    settings,
                    bytes_per_second=bytes_per_second,
                    broker_bytes_per_second=broker_bytes_per_second,
                    tasks=tasks,
                )

            if "settings" in rest:
                rest["settings"] = of(rest["settings"])
            else:
                rest["all_settings"] = [of(one) for one in rest["all_settings"]]
            command(**rest)

        rate = "fetch rate" if job == "backup" else "produce and read-back rate"
        work = "read" if job == "backup" else "written or read back"
        decorated: Callable[..., None] = with_limits
        for name, least, metavar, text in (
            (
                "tasks",
                1,
                "N",
                f"Maximum number of partitions {work} in parallel (overrides the YAML).",
            ),
            (
                "broker_bytes_per_second",
                LEAST_RATE,
                "BYTES",
                f"Maximum {rate} per broker (overrides the YAML).",
            ),
            (
                "bytes_per_second",
                LEAST_RATE,
                "BYTES",
                f"Maximum total {rate} (overrides the YAML).",
            ),
        ):
            variable = f"KSTREAMS_ASSETS_{job}_{name}".upper()
            decorated = option(
                f"--{name.replace('_', '-')}",
                name,
                section="Limits",
                metavar=metavar,
                type=click.IntRange(min=least),
                envvar=variable,
                show_envvar=True,
                help=text,
            )(decorated)
        return decorated

    return decorator


def apps_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add a repeatable --app, and the options that require a single --app.

    The command gets the keyword argument `all_settings`. A group does nothing when one of its
    subcommands is called.
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
                    f"Options are given before the subcommand {called}.",
                    remedy=f"Write them after {called}.",
                )
            return
        if not app_files:
            raise ConfigurationError(
                "--app is missing.", remedy="Give the YAML file of the application."
            )
        if len(app_files) > 1 and (application_id or bootstrap or warehouse):
            raise ConfigurationError(
                "--application-id, --bootstrap and --warehouse require a single --app.",
                remedy="Set them in the YAML files, or run the command once for each application.",
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
    for declared in (
        warehouse_option,
        _bootstrap_option,
        application_id_option,
        app_option("app_files", multiple=True),
    ):
        decorated = declared(decorated)
    return decorated


def _refuse_twins(settings: Sequence[ApplicationSettings]) -> None:
    """Reject equal ids: Prometheus rejects a scrape with two series of the same name and labels."""
    ids = [one.application_id for one in settings]
    twins = sorted({name for name in ids if ids.count(name) > 1})
    if twins:
        raise ConfigurationError(
            f"Two applications have the same id: {', '.join(twins)}.",
            remedy="Serve them with two commands and two Prometheus job names.",
        )
