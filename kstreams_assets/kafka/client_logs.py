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

# They report every attempt to reconnect, and every login without TLS.
_LOGGERS_OF_ATTEMPTS = (
    LIBRDKAFKA_LOGGER,
    "kafka.net.connection",
    "kafka.net.inet",
    "kafka.net.manager",
    "kafka.net.sasl.plain",
    "kafka.net.selector",
    "kafka.net.transport",
)


class _AsDebug(logging.Filter):
    """Both clients report attempts that failed as errors; what matters is raised anyway."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


class _NoDebug(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG


_AS_DEBUG = _AsDebug()
_NO_DEBUG = _NoDebug()


def tame_client_logs() -> None:
    """Keep the clients' failed attempts off standard error, and credentials off all logs.

    Idempotent; every builder of a client calls it. Levels and handlers of the application stay.
    """
    for name in _LOGGERS_WITH_CREDENTIALS:
        logging.getLogger(name).addFilter(_NO_DEBUG)  # adding it twice changes nothing
    for name in _LOGGERS_OF_ATTEMPTS:  # after the filter above, which must see the true level
        logging.getLogger(name).addFilter(_AS_DEBUG)
