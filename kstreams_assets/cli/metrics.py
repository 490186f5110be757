"""`kstreams-assets metrics`: what a dashboard needs, for Prometheus."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import click

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.metrics.collect import Scrape
from kstreams_assets.metrics.exposition import MetricsServer, parse_address, write_textfile
from kstreams_assets.settings import ApplicationSettings


@click.command()
@click.option(
    "--app",
    "app_files",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path),
    help="The component's YAML (defs.yaml); may be given several times.",
)
@click.option("--application-id", help="Which application, if the YAML has several.")
@click.option("--bootstrap", help="host:port[,...]; replaces the YAML's.")
@click.option("--warehouse", help="Folder of the tables; replaces the YAML's.")
@click.option(
    "--textfile",
    type=click.Path(path_type=Path),
    help="Write them once into this file (*.prom, for node_exporter).",
)
@click.option("--listen", help="Serve them on this host:port until stopped; port 0: a free one.")
@click.option(
    "--timeout",
    "timeout_s",
    default=8.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds that a scrape may take; below Prometheus' own scrape_timeout.",
)
def metrics(
    app_files: Sequence[Path],
    application_id: str | None,
    bootstrap: str | None,
    warehouse: str | None,
    textfile: Path | None,
    listen: str | None,
    timeout_s: float,
) -> None:
    """Metrics of applications, from brokers and warehouse, for Prometheus. Needs no JVM.

    What does not answer in time has kstreams_up 0; the rest is there all the same.

    \f
    Raises ConfigurationError.
    """
    if (textfile is None) == (listen is None):
        raise ConfigurationError(
            "One of --textfile and --listen is needed, not both.",
            remedy="Give --textfile FILE.prom, or --listen 127.0.0.1:9464.",
        )
    if len(app_files) > 1 and (application_id or bootstrap or warehouse):
        raise ConfigurationError(
            "--application-id, --bootstrap and --warehouse go with one --app.",
            remedy="Say it in the YAML files, or start the command once for each application.",
        )
    settings = [
        load_settings(
            file,
            application_id=application_id,
            bootstrap_servers=bootstrap,
            warehouse=warehouse,
        )
        for file in app_files
    ]
    _refuse_twins(settings)
    scrape = Scrape(settings, timeout_s=timeout_s)
    if textfile is not None:
        write_textfile(textfile, scrape)
    elif listen is not None:
        with MetricsServer(parse_address(listen), scrape) as server:
            click.echo(f"Serving metrics on {server.url}")
            with contextlib.suppress(KeyboardInterrupt):  # how it is meant to end
                server.wait()


def _refuse_twins(settings: Sequence[ApplicationSettings]) -> None:
    """Two series of the same name and labels would make Prometheus refuse the whole scrape."""
    ids = [one.application_id for one in settings]
    twins = sorted({name for name in ids if ids.count(name) > 1})
    if twins:
        raise ConfigurationError(
            f"Two of the applications are called {', '.join(twins)}.",
            remedy="Serve them from two commands, under two job names.",
        )
