"""All configs that hold for topics, asked of any live broker.

Of one's own, since librdkafka's admin client may wait for a dead broker until its timeout while
others could answer.
"""

from collections.abc import Iterable
from typing import Final

import kafka.errors as client_errors
from kafka.protocol.admin import DescribeConfigsRequest

from kstreams_assets.errors import AuthorizationFailedError, KafkaRequestError
from kstreams_assets.kafka.leaders import TOPIC_NOT_ALLOWED
from kstreams_assets.kafka.wire import WireClient

_OPERATION: Final = "describe_configs"
_TOPIC: Final = 2
_ABSENT: Final = client_errors.UnknownTopicOrPartitionError.errno


def topic_configs(wire: WireClient, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """The configs of topics by name, defaults included; topics that are not there are left out.

    Raises AuthorizationFailedError (DESCRIBE_CONFIGS; it names every topic), KafkaRequestError,
    ClusterUnavailableError.
    """
    wanted = sorted(set(topics))
    if not wanted:
        return {}
    response = wire.request(
        lambda: DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=_TOPIC, resource_name=name, configuration_keys=None
                )
                for name in wanted
            ],
            include_synonyms=False,
            include_documentation=False,
        ),
        operation=_OPERATION,
    )
    codes = {result.resource_name: result.error_code for result in response.results}
    denied = sorted(name for name, code in codes.items() if code == TOPIC_NOT_ALLOWED)
    if denied:
        resource = f"topic{'s' if len(denied) > 1 else ''} {', '.join(denied)}"
        raise AuthorizationFailedError(
            operation=_OPERATION, resource=resource, needed="DESCRIBE_CONFIGS"
        )
    for result in response.results:
        if result.error_code not in (0, _ABSENT):
            raise KafkaRequestError(
                operation=_OPERATION,
                resource=f"topic {result.resource_name}",
                reason=result.error_message or f"error {result.error_code}",
            )
    return {
        result.resource_name: {
            entry.name: entry.value for entry in result.configs if entry.value is not None
        }
        for result in response.results
        if result.error_code == 0
    }
