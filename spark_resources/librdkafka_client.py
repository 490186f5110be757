"""Builds confluent-kafka's clients in Spark tasks."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.client_logs import LIBRDKAFKA_LOGGER, tame_client_logs
from kstreams_assets.kafka.topics import ABSENT

Client = TypeVar("Client")

__all__ = ["ABSENT", "connected"]


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
