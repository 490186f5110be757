"""`kstreams-assets engine`: the warm Spark of this host."""

import time
from typing import Any

import click

from kstreams_assets.cli.output import print_json, print_table


@click.group()
def engine() -> None:
    """Start, look at and stop the warm Spark of this host, which every command shares."""


@engine.command()
@click.option("--driver-memory", help="Heap of its JVM, as 2g.  [default: 2g]")
@click.option("--java-options", help="Further options of its JVM.")
@click.option(
    "--class-data-archive",
    help="A file for the classes of its JVM, which starts faster with it. An engine that ends"
    " writes it where it does not exist.",
)
@click.option("--master", help="Spark master URL.  [default: local[*]]")
@click.option("--idle", type=float, help="Seconds after which it ends unused.  [default: 900]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def start(
    driver_memory: str | None,
    java_options: str | None,
    class_data_archive: str | None,
    master: str | None,
    idle: float | None,
    as_json: bool,
) -> None:
    """Start an engine, unless one with these settings runs, and let it warm up.

    Commands start one by themselves where there is none. They use any that runs, unless variables
    (KSTREAMS_ASSETS_SPARK_DRIVER_MEMORY ...) ask for another.
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
    began = time.monotonic()
    session = LazySession(settings)
    try:
        warm_up(session.spark_session, shares_files=settings.remote is None)
    finally:
        session.stop()
    took = time.monotonic() - began
    if as_json:
        print_json({"seconds": round(took, 2), "engines": _engines()})
    else:
        click.echo(f"The engine is ready after {took:.1f} s.")


@engine.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(as_json: bool) -> None:
    """The engines of this user that run."""
    found = _engines()
    if as_json:
        print_json({"engines": found})
        return
    columns = ["engine", "port", "pid", "jvm_pid", "since_ms", "version", "clients"]
    print_table(f"{len(found)} engines", columns, [[one[c] for c in columns] for one in found])


@engine.command()
def stop() -> None:
    """Stop the engines of this user; what runs on them fails, and can be run again."""
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
