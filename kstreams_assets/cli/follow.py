"""`kstreams-assets follow`: back up an application every few seconds."""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import click

from kstreams_assets.backup.follow import Follower, FollowerStatus, status_of, trouble_of
from kstreams_assets.backup.follow import follow as follow_all
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.help import Group, option
from kstreams_assets.cli.options import (
    app_options,
    apps_options,
    limit_options,
    listen_option,
    new_lineage_option,
)
from kstreams_assets.cli.output import print_facts, print_json, say_guesses
from kstreams_assets.cli.spark_run import spark_run
from kstreams_assets.metrics.collect import Scrape
from kstreams_assets.metrics.exposition import HEALTH, LIVE, MetricsServer, parse_address
from kstreams_assets.settings import ApplicationSettings

_STATUS_EVERY_S = 60.0
_SCRAPE_S = 8.0


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog="kstreams-assets follow --app defs.yaml --listen 127.0.0.1:9464",
)
@apps_options
@limit_options("backup")
@option(
    "--every",
    "every_s",
    section="Limits",
    metavar="SECONDS",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Minimum time between two recovery points.",
)
@listen_option("/health, /live and /metrics (Prometheus)")
@new_lineage_option
def follow(
    all_settings: Sequence[ApplicationSettings],
    every_s: float,
    listen: str | None,
    new_lineage: bool,
) -> None:
    """Back up an application every few seconds

    Until you stop it, the follower takes recovery points. After each one it backs up all records
    that the point needs. If the source cluster is lost, only the last seconds are missing. Closed
    backup windows appear in Dagster.

    The first SIGTERM or Ctrl-C lets the current step finish. The second stops the follower
    immediately. A killed follower continues where it stopped. Each application is followed
    independently.

    Exit code 2: one of these errors ended the follower:

    - Every attempt of the last ten minutes failed.

    - Another follower of the application runs, or has taken over.

    - The connection leads to another cluster than the one in the backups.
    """
    ended = threading.Event()
    ending = _Ending(ended)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ending)
    logging.getLogger("kstreams_assets.backup.follow").setLevel(logging.INFO)
    with contextlib.ExitStack() as opened, spark_run() as run:
        followers = [
            Follower(one, run.spark, run.id, every_s, _StatusLines(), new_lineage=new_lineage)
            for one in all_settings
        ]
        if listen is not None:
            server = MetricsServer(
                parse_address(listen),
                Scrape(all_settings, timeout_s=_SCRAPE_S),
                pages={HEALTH: lambda: _health(followers), LIVE: lambda: _stuck(followers)},
            )
            opened.enter_context(server)
            click.echo(f"Serving metrics on {server.url}, health on {server.health_url}")
        for one in all_settings:
            click.echo(f"Following {one.application_id} into {one.warehouse.root}.")
            say_guesses(one)
        follow_all(followers, ended)
    for follower in followers:
        click.echo(f"{_line(follower.status)} Stopped.")


class _Ending:
    """Signal handler: the first signal ends after the current step, the second at once."""

    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended

    def __call__(self, number: int, frame: object) -> None:
        if self._ended.is_set():
            os._exit(exit_codes.INTERRUPTED)  # threads may be waiting for a broker that is down
        self._ended.set()


class _StatusLines:
    """Print a line for the first covered point, then one per minute."""

    def __init__(self) -> None:
        self._at = float("-inf")

    def __call__(self, status: FollowerStatus) -> None:
        now = time.monotonic()
        if status.covered_point is not None and now - self._at >= _STATUS_EVERY_S:
            self._at = now
            click.echo(_line(status))


def _line(status: FollowerStatus) -> str:
    if status.covered_point is None or status.covered_at_ms is None:
        return (
            f"{status.application_id}: no recovery point is covered yet. {status.problem}"
        ).strip()
    age_s = time.time() - status.covered_at_ms / 1000
    return (
        f"{status.application_id}: newest covered point {status.covered_point}"
        f" ({status.guarantee}), {age_s:.1f} s old; {status.steps} points, {status.records:,}"
        f" records, {status.step_s:.1f} s per step{_executor(status)}. {status.problem}".strip()
    )


def _executor(status: FollowerStatus) -> str:
    return f" ({status.executor})" if status.executor else ""


def _health(followers: Sequence[Follower]) -> str:
    """Return the text for a readiness probe; empty if healthy. Store and brokers are not asked."""
    return _lines(followers, Follower.trouble)


def _stuck(followers: Sequence[Follower]) -> str:
    """Return the text for a liveness probe; empty if every follower makes progress."""
    return _lines(followers, Follower.stuck)


def _lines(followers: Sequence[Follower], trouble: Callable[[Follower], str]) -> str:
    troubles = [(one.settings.application_id, trouble(one)) for one in followers]
    return "\n".join(f"{name}: {text}" for name, text in troubles if text)


@follow.command(epilog="kstreams-assets follow status --app defs.yaml")
@app_options
def status(settings: ApplicationSettings, as_json: bool) -> None:
    """Show the status of a follower

    A recovery point is covered when the backups contain all records that it needs.

    Exit code 1: the newest covered point is too old, or the follower has ended or has never run.
    Too old: older than recovery_points.objective_seconds, or than 60 seconds if this key is not
    set.
    """
    found = status_of(settings.warehouse, settings.application_id)
    trouble = trouble_of(settings)
    if as_json:
        print_json(
            {
                "application_id": settings.application_id,
                "healthy": not trouble,
                "trouble": trouble,
                "follower": None if found is None else asdict(found),
            }
        )
    else:
        if found is not None:
            print_facts(f"Follower of {settings.application_id}", asdict(found))
        click.echo(trouble or "The follower is running.")
    if trouble:
        sys.exit(exit_codes.CHECK_FAILED)
