"""How long topics without a `retention.ms` of their own keep records."""

import contextlib
from typing import Final

from kafka.protocol.admin import DescribeConfigsRequest

from kstreams_assets.errors import ClusterUnavailableError
from kstreams_assets.kafka.wire import WireClient

_OPERATION: Final = "describe_configs"
_BROKER: Final = 4
# The first that is set holds; a broker's hours always are.
_SETTINGS: Final = {
    "log.retention.ms": 1,
    "log.retention.minutes": 60_000,
    "log.retention.hours": 3_600_000,
}


def broker_retention_ms(wire: WireClient) -> int | None:
    """The brokers' default of `retention.ms`, -1 for without end; None when they do not tell it.

    Needs DESCRIBE_CONFIGS on the cluster, and says None without. Raises ClusterUnavailableError.
    """
    for broker in wire.broker_ids(operation=_OPERATION):
        with contextlib.suppress(ClusterUnavailableError):  # another one tells the same
            return _of_broker(wire, broker)
    return None


def _of_broker(wire: WireClient, broker: int) -> int | None:
    response = wire.request(
        lambda: DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=_BROKER,
                    resource_name=str(broker),
                    configuration_keys=list(_SETTINGS),
                )
            ],
            include_synonyms=False,
            include_documentation=False,
        ),
        operation=_OPERATION,
        node=broker,
    )
    told = {entry.name: entry.value for entry in response.results[0].configs or ()}
    for name, unit_ms in _SETTINGS.items():
        value = told.get(name)
        if value not in (None, ""):
            return int(value) * unit_ms if int(value) >= 0 else -1
    return None
