"""`kstreams-assets metrics`: export metrics for Prometheus."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import click

from kstreams_assets.cli.help import Command, option
from kstreams_assets.cli.options import apps_options, listen_option
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.metrics.collect import Scrape
from kstreams_assets.metrics.exposition import MetricsServer, parse_address, write_textfile
from kstreams_assets.settings import ApplicationSettings


@click.command(
    cls=Command, epilog="kstreams-assets metrics --app defs.yaml --listen 127.0.0.1:9464"
)
@apps_options
@option(
    "--textfile",
    section="Output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the metrics once to this *.prom file (node_exporter).",
)
@listen_option("the metrics")
@option(
    "--timeout",
    "timeout_s",
    section="Limits",
    metavar="SECONDS",
    default=8.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Timeout of a scrape; set it below scrape_timeout of Prometheus.",
)
def metrics(
    all_settings: Sequence[ApplicationSettings],
    textfile: Path | None,
    listen: str | None,
    timeout_s: float,
) -> None:
    """Export metrics for Prometheus

    Metrics come from the brokers and the warehouse. A source that does not answer in time has
    kstreams_up 0; the metrics of all other sources are exported.
    """
    if (textfile is None) == (listen is None):
        raise ConfigurationError(
            "Exactly one of --textfile and --listen is required.",
            remedy="Give --textfile FILE.prom, or --listen 127.0.0.1:9464.",
        )
    scrape = Scrape(all_settings, timeout_s=timeout_s)
    if textfile is not None:
        write_textfile(textfile, scrape)
    elif listen is not None:
        with MetricsServer(parse_address(listen), scrape) as server:
            click.echo(f"Serving metrics on {server.url}")
            with contextlib.suppress(KeyboardInterrupt):  # the intended way to stop
                server.wait()
