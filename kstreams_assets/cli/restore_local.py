"""`kstreams-assets restore serve`: run local clusters with restored topics."""

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import click

from kstreams_assets.cli.help import Command, option
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.local.target import local_targets, remove_local_target
from kstreams_assets.local.target import serve as serve_cluster
from kstreams_assets.model.restores import StoredRestore
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.steps import Step, blocker
from kstreams_assets.restore.target import local_name_of
from kstreams_assets.settings import ApplicationSettings


@click.command(cls=Command, epilog="kstreams-assets restore serve --app defs.yaml tuesday")
@app_options
@option("--remove", section="Target", is_flag=True, help="Delete the cluster and all its data.")
@click.argument("name", required=False)
def serve(settings: ApplicationSettings, as_json: bool, name: str | None, remove: bool) -> None:
    """Run a local cluster with restored topics

    `restore run --target local:NAME` creates such a cluster. It runs until Ctrl-C or SIGTERM and
    keeps its data. Without a name, the command lists all local clusters.
    """
    if name is None:
        _list(settings, as_json=as_json)
    elif remove:
        removed = remove_local_target(settings, name)
        click.echo(f"Removed {removed.directory}, {removed.bytes:,} bytes.")
    else:
        for line in _unready(settings, name):
            click.echo(f"NOTE {line}", err=True)
        until = threading.Event()

        def stop(number: int, frame: FrameType | None) -> None:
            del number, frame
            until.set()

        before = signal.signal(signal.SIGTERM, stop)
        try:
            serve_cluster(settings, name, announce=_announce, until=until)
        finally:
            signal.signal(signal.SIGTERM, before)


def _unready(settings: ApplicationSettings, name: str) -> Iterator[str]:
    """Yield a blocker per group whose application must not start yet on this cluster."""
    newest: dict[str, StoredRestore] = {}
    for restore in Repository.open(settings).restores.all():
        if local_name_of(settings, restore) == name:
            newest.setdefault(restore.group, restore)
    for restore in newest.values():
        refused = blocker(restore, Step.START)
        if refused is not None:
            yield str(refused)


def _announce(line: str) -> None:
    click.echo(line)


def _list(settings: ApplicationSettings, *, as_json: bool) -> None:
    found = local_targets(settings)
    if as_json:
        print_json(
            {
                "local_clusters": [
                    {"name": one.name, "directory": str(one.directory), "bytes": one.bytes}
                    for one in found
                ]
            }
        )
        return
    print_table(
        f"Local clusters of {settings.application_id}",
        ["name", "bytes", "directory"],
        [[one.name, one.bytes, str(one.directory)] for one in found],
    )
