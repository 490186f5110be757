"""`kstreams-assets engine`: manage the shared Spark engine of this host."""

import time
from typing import Any

import click

from kstreams_assets.cli.help import Group, option
from kstreams_assets.cli.options import json_option
from kstreams_assets.cli.output import print_json, print_table


@click.group(cls=Group, epilog="kstreams-assets engine start --driver-memory 4g")
def engine() -> None:
    """Manage the shared Spark engine of this host

    Commands that need Spark start an engine if none runs. All commands of a user share it.
    """


@engine.command(epilog="kstreams-assets engine start --driver-memory 4g --idle 3600")
@option(
    "--driver-memory", section="Engine", metavar="SIZE", help="Heap size of the JVM (default: 2g)."
)
@option("--java-options", section="Engine", metavar="TEXT", help="Additional JVM options.")
@option(
    "--class-data-archive",
    section="Engine",
    metavar="FILE",
    help="Class-data archive for a faster JVM start; created if it is missing.",
)
@option("--master", section="Engine", metavar="URL", help="Spark master URL (default: local[*]).")
@option(
    "--idle",
    section="Engine",
    metavar="SECONDS",
    type=float,
    help="Stop the engine after this many idle seconds (default: 900).",
)
@json_option
def start(
    driver_memory: str | None,
    java_options: str | None,
    class_data_archive: str | None,
    master: str | None,
    idle: float | None,
    as_json: bool,
) -> None:
    """Start and warm up an engine

    If an engine with these settings already runs, the command does nothing.

    Other commands, such as backup, use any running engine, whatever its settings are. To make such
    a command use an engine with certain settings, run it with environment variables such as
    KSTREAMS_ASSETS_SPARK_DRIVER_MEMORY.
    """
    from spark_resources.session import LazySession
    from spark_resources.settings import SparkSettings
    from spark_resources.warm_up import warm_up

    settings = SparkSettings.from_environment(
        driver_memory=driver_memory,
        java_options=java_options,
        class_data_archive=class_data_archive,
        master=master,
        engine_idle_s=idle,
    )
    started = time.monotonic()
    session = LazySession(settings)
    try:
        warm_up(session.spark_session, shares_files=settings.remote is None)
    finally:
        session.stop()
    took = time.monotonic() - started
    if as_json:
        print_json({"seconds": round(took, 2), "engines": _engines()})
    else:
        click.echo(f"The engine is ready after {took:.1f} s.")


@engine.command(epilog="kstreams-assets engine status --json")
@json_option
def status(as_json: bool) -> None:
    """List running engines of this user"""
    found = _engines()
    if as_json:
        print_json({"engines": found})
        return
    columns = ["engine", "port", "pid", "jvm_pid", "since_ms", "version", "clients"]
    print_table(f"{len(found)} engines", columns, [[one[c] for c in columns] for one in found])


@engine.command(epilog="kstreams-assets engine stop")
def stop() -> None:
    """Stop all engines of this user

    Commands that use an engine at this time fail. Run these commands again: they start a new
    engine.
    """
    from spark_resources.engine import engines
    from spark_resources.engine import stop as stop_engine

    found = engines()
    for one in found:
        stop_engine(one)
    click.echo(f"{len(found)} engines stopped.")


def _engines() -> list[dict[str, Any]]:
    from spark_resources.engine import engines, is_used

    return [
        {
            "engine": one.key,
            "port": one.port,
            "pid": one.pid,
            "jvm_pid": one.jvm_pid,
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one.since_ms / 1000)),
            "since_ms": one.since_ms,
            "version": one.version,
            "clients": "in use" if is_used(one) else "none",
        }
        for one in engines()
    ]
