"""What the two Kafka clients log: into Python's logging, quietly, never with credentials."""

import logging

LIBRDKAFKA_LOGGER = "kstreams_assets.kafka.librdkafka"

# kafka-python writes its whole configuration, every request and every byte on the wire, passwords
# included, to these loggers at level DEBUG.
_LOGGERS_WITH_CREDENTIALS = (
    "kafka.admin.client",
    "kafka.consumer.group",
    "kafka.net.connection",
    "kafka.net.manager",
    "kafka.producer.kafka",
    "kafka.protocol.parser",
)


class _AsDebug(logging.Filter):
    """librdkafka reports every attempt to reconnect as an error; what matters is raised anyway."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


class _NoDebug(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG


_AS_DEBUG = _AsDebug()
_NO_DEBUG = _NoDebug()


def tame_client_logs() -> None:
    """Keep librdkafka's logs off standard error, and credentials off all logs.

    Idempotent; every builder of a client calls it. Levels and handlers of the application stay.
    """
    logging.getLogger(LIBRDKAFKA_LOGGER).addFilter(_AS_DEBUG)
    for name in _LOGGERS_WITH_CREDENTIALS:
        logging.getLogger(name).addFilter(_NO_DEBUG)  # adding it twice changes nothing
