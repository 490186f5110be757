"""Builds confluent-kafka's clients in Spark tasks."""

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.client_logs import LIBRDKAFKA_LOGGER, tame_client_logs

Client = TypeVar("Client")

ABSENT: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 (librdkafka's local errors are all named like this)
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
}
"""What librdkafka says of a topic or partition that is not there."""


def connected(kind: Callable[..., Client], settings: dict[str, Any]) -> Client:
    """A Producer or Consumer that logs quietly; ConfigurationError for settings it refuses."""
    tame_client_logs()
    try:
        return kind(settings, logger=logging.getLogger(LIBRDKAFKA_LOGGER))
    except KafkaException as error:
        raise ConfigurationError(
            f"librdkafka refuses the connection's settings: {error.args[0].str()}.",
            remedy="Check ssl, sasl and extra_librdkafka of the connection.",
        ) from None
