"""Which cluster a restore goes to, and went to; a local one runs while it is used."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Final

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.restore.local_target import local_target, local_targets
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.restores_table import StoredRestore
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.presence import require_backup

LOCAL: Final = "local"
"""As target: a throwaway cluster on this machine, `local:NAME` for one of this name."""

_NEWEST: Final = "newest"
_CLUSTER_ID: Final = "cluster.id"


def local_name(target: str | None, request: RestoreRequest) -> str | None:
    """Name of the local cluster that a target means, None for another cluster.

    `local` alone takes its name from the point that is asked for, so that each state that is looked
    at has a cluster of its own, and the same request goes on in the same one.
    """
    if target is None or target.partition(":")[0] != LOCAL:
        return None
    name = target.partition(":")[2]
    if name.isdecimal():  # a broker on a host of that name
        return None
    if name:
        return name
    if request.point_id is not None:
        return re.sub(r"[^A-Za-z0-9._-]", "_", request.point_id)
    if request.as_of_ms is not None:
        at = datetime.fromtimestamp(request.as_of_ms / 1000, tz=UTC)
        return f"{at:%Y%m%dT%H%M%S}.{request.as_of_ms % 1000:03d}Z"
    return _NEWEST


def target_connection(settings: ApplicationSettings, target: str | None) -> KafkaConnection:
    """The target cluster: `restore.target` of the YAML, with other bootstrap servers if given.

    Without `restore.target` a given target is reached in PLAINTEXT: the source's secrets are not
    sent to another cluster.

    Raises:
        ConfigurationError: Neither says which cluster, `target` is no host:port, or the credentials
            of `restore.target` may not go there (`KafkaConnection.at`).
    """
    configured = settings.restore.target
    if target is None:
        if configured is None:
            raise ConfigurationError(
                f"No target cluster is given for the restore of {settings.application_id}.",
                remedy=f"Set restore.target in the YAML, or give target: host:port, or {LOCAL}.",
            )
        return configured
    if configured is None:
        return KafkaConnection(bootstrap_servers=target)
    return configured.at(target)


@contextmanager
def open_target(
    settings: ApplicationSettings, target: str | None, request: RestoreRequest
) -> Iterator[KafkaConnection]:
    """The target of a request, for the block; a local cluster is stopped at its end.

    Raises ConfigurationError, and for a local cluster what `local_target` raises, and
    WarehouseError where there is no backup: its folder would look like the beginning of one.
    """
    name = local_name(target, request)
    wait_s = settings.restore.lock_wait_s
    if name is not None:
        require_backup(settings.warehouse, settings.application_id)
    with (
        nullcontext(target_connection(settings, target))
        if name is None
        else local_target(settings, name, wait_s=wait_s)
    ) as connection:
        yield connection


@contextmanager
def open_stored_target(
    settings: ApplicationSettings, restore: StoredRestore, target: str | None = None
) -> Iterator[KafkaConnection]:
    """The cluster that a restore went to, for the block; `target` if it has other addresses now.

    Raises ConfigurationError, and for a local cluster what `local_target` raises.
    """
    name = local_name_of(settings, restore)
    servers = target or restore.target_bootstrap_servers
    wait_s = settings.restore.lock_wait_s
    with (
        nullcontext(target_connection(settings, servers))
        if name is None or target is not None
        else local_target(settings, name, wait_s=wait_s)
    ) as connection:
        yield connection


def local_name_of(settings: ApplicationSettings, restore: StoredRestore) -> str | None:
    """Name of the local cluster that a restore went to, None when it went to another cluster."""
    for found in local_targets(settings):
        cluster_id = (found.directory / _CLUSTER_ID).read_text(encoding="utf-8").strip()
        if cluster_id == restore.target_cluster_id:
            return found.name
    return None
