"""Throwaway clusters on this machine for restores, to inspect old state.

Each keeps its data in a folder of the warehouse between starts, until it is removed.
"""

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError, LocalClusterError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.local.cluster import CLIENT_PROPERTIES, LocalCluster
from kstreams_assets.settings import ApplicationSettings

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MADE_BY_LOCAL_CLUSTER: Final = "cluster.id"
_LOOK_S: Final = 0.5
_HEAP_MB: Final = 512
# A broker whose owner was killed ends shortly afterwards.
_SETTLE_S: Final = 3.0
# Data that is inspected weeks later must still exist: offsets of an idle group, deleted records.
_PROPERTIES: Final = {
    "offsets.retention.minutes": "2147483647",
    "log.retention.ms": "-1",
}


@dataclass(frozen=True, slots=True)
class LocalTarget:
    """A throwaway cluster with data on disk; `bytes` is its size."""

    name: str
    directory: Path
    bytes: int

    @property
    def client_properties(self) -> Path:
        """Settings of a Java client of the running cluster, with its password."""
        return self.directory / CLIENT_PROPERTIES


@contextmanager
def local_target(
    settings: ApplicationSettings,
    name: str,
    *,
    wait_s: float = _SETTLE_S,
    protected: bool = True,
) -> Iterator[KafkaConnection]:
    """Start the application's local cluster of this name, created at its first use, for the block.

    One broker, on free ports of 127.0.0.1 that change with each start; the data and the cluster's
    id stay. Topics are therefore created with one replica and at most one in sync. Clients need the
    password in the cluster's folder, unless `protected` is False. Stopped at the end of the block,
    and when this process dies. Raises ConfigurationError for a name that is not a valid folder
    name, WarehouseLockedError if another process runs it for longer than `wait_s`,
    LocalClusterError, JarsMissingError, JavaNotFoundError.
    """
    with _running(settings, name, wait_s=wait_s, protected=protected) as cluster:
        yield cluster.connection


def serve(
    settings: ApplicationSettings,
    name: str,
    *,
    announce: Callable[[str], None],
    until: threading.Event,
) -> None:
    """Start a local cluster again on its data and run it until `until` is set, or Ctrl-C.

    `announce` receives the connection instructions, line by line. Raises KStreamsAssetsError for a
    cluster without any restore, LocalClusterError when it dies, and the errors of `local_target`.
    """
    require_local_target(settings, name)
    try:
        with _running(settings, name, wait_s=_SETTLE_S, protected=True) as cluster:
            for line in _how_to_connect(settings, name, cluster):
                announce(line)
            while not until.wait(_LOOK_S):
                _require_alive(cluster)
    except KeyboardInterrupt:
        announce(f"Local cluster {name} is stopped; its data stays.")


def local_targets(settings: ApplicationSettings) -> list[LocalTarget]:
    """The application's local clusters that have data on disk, by name."""
    home = _home(settings)
    if not home.is_dir():
        return []
    folders = sorted(path.parent for path in home.glob(f"*/{_MADE_BY_LOCAL_CLUSTER}"))
    return [LocalTarget(folder.name, folder, _size(folder)) for folder in folders]


def require_local_target(settings: ApplicationSettings, name: str) -> LocalTarget:
    """The local cluster of this name; raises KStreamsAssetsError."""
    found = local_targets(settings)
    for target in found:
        if target.name == name:
            return target
    known = ", ".join(target.name for target in found) or "none"
    raise KStreamsAssetsError(
        f"There is no local cluster {name!r} in {_home(settings)} (existing clusters: {known}).",
        remedy="Choose one of these, or restore with target local first.",
    )


def remove_local_target(settings: ApplicationSettings, name: str) -> LocalTarget:
    """Delete a local cluster with all its data; return its description.

    Raises KStreamsAssetsError, WarehouseLockedError while it runs.
    """
    target = require_local_target(settings, name)
    with warehouse_lock(_lock_file(settings, name), purpose=f"removal of {name}", wait_s=_SETTLE_S):
        # its mark is removed last, so that a killed removal can be repeated
        for path in target.directory.iterdir():
            if path.name != _MADE_BY_LOCAL_CLUSTER:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(target.directory)
    return target


@contextmanager
def _running(
    settings: ApplicationSettings, name: str, *, wait_s: float, protected: bool
) -> Iterator[LocalCluster]:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"A local cluster cannot be called {name!r}.",
            remedy="Use letters, digits, '.', '_' and '-', and start with a letter or digit.",
        )
    purpose = f"local cluster {name} of {settings.application_id}"
    with (
        warehouse_lock(_lock_file(settings, name), purpose=purpose, wait_s=wait_s) as lock,
        LocalCluster(
            _home(settings) / name, properties=_PROPERTIES, protected=protected, heap_mb=_HEAP_MB
        ) as cluster,
    ):
        lock.note_writer(cluster.pid(0))
        yield cluster


def _how_to_connect(
    settings: ApplicationSettings, name: str, cluster: LocalCluster
) -> tuple[str, ...]:
    return (
        f"Local cluster {name} of {settings.application_id} runs; data in {cluster.data_dir}.",
        f"bootstrap.servers={cluster.bootstrap_servers}",
        f"Its password and all client settings: {cluster.client_properties} (readable by you"
        " alone); the cluster is reachable from this machine only.",
        "To inspect state, start the application with these properties and an empty state.dir, or"
        " read its changelogs with any Kafka client, for example kafka-console-consumer.sh"
        f" --bootstrap-server {cluster.bootstrap_servers} --consumer.config"
        f" {cluster.client_properties} --from-beginning --topic ...",
        "Ctrl-C stops it; the data stays.",
    )


def _require_alive(cluster: LocalCluster) -> None:
    if cluster.pid(0) is None:
        raise LocalClusterError(
            node=0, reason="it has ended by itself", log_file=cluster.log_file(0)
        )


def _home(settings: ApplicationSettings) -> Path:
    return settings.warehouse.on_disk / "local_clusters" / settings.application_id


def _lock_file(settings: ApplicationSettings, name: str) -> Path:
    return (
        settings.warehouse.on_disk
        / ".locks"
        / f"local-cluster-{settings.application_id}-{name}.lock"
    )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
