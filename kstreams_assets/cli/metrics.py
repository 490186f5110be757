"""`kstreams-assets metrics`: what a dashboard needs, for Prometheus."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import click

from kstreams_assets.cli.options import apps_options
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.metrics.collect import Scrape
from kstreams_assets.metrics.exposition import MetricsServer, parse_address, write_textfile
from kstreams_assets.settings import ApplicationSettings


@click.command()
@apps_options
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
    all_settings: Sequence[ApplicationSettings],
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
    scrape = Scrape(all_settings, timeout_s=timeout_s)
    if textfile is not None:
        write_textfile(textfile, scrape)
    elif listen is not None:
        with MetricsServer(parse_address(listen), scrape) as server:
            click.echo(f"Serving metrics on {server.url}")
            with contextlib.suppress(KeyboardInterrupt):  # how it is meant to end
                server.wait()
