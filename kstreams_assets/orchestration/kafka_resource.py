"""Kafka clusters as Dagster resources, for the assets of users."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import dagster as dg
from pydantic import Field

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.librdkafka import librdkafka_config
from kstreams_assets.orchestration.keys import sanitize_name
from kstreams_assets.settings import ApplicationSettings


class KafkaResource(dg.ConfigurableResource):
    """A Kafka cluster, reached like the cluster of an application or of a target of restores.

    The fields are those of `connection` in the YAML. Secrets are named there (`{env: NAME}`,
    `{file: PATH}`), so Dagster shows none; they are read when a client is built.

    Examples:
        ```python
        @dg.asset
        def topics(kafka_orders: KafkaResource) -> int:
            return len(AdminClient(kafka_orders.client_config()).list_topics(timeout=10).topics)
        ```
    """

    bootstrap_servers: str = Field(description="host:port, several separated by commas.")
    security_protocol: str = Field(
        default="PLAINTEXT", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."
    )
    ssl: dict[str, Any] | None = Field(
        default=None, description="TLS, in the form of connection.ssl in the YAML."
    )
    sasl: dict[str, Any] | None = Field(
        default=None, description="SASL, in the form of connection.sasl in the YAML."
    )
    request_timeout_seconds: float = Field(
        default=30.0, description="After how long a call to the cluster gives up."
    )
    extra_librdkafka: dict[str, Any] = Field(
        default={}, description="Further settings of librdkafka; secrets as {env: NAME}."
    )
    extra_kafka_python: dict[str, Any] = Field(
        default={}, description="Further keyword arguments of kafka-python."
    )

    @classmethod
    def of(cls, connection: KafkaConnection) -> "KafkaResource":
        """The resource of a connection.

        Raises:
            ConfigurationError: A secret of the connection is a value of this process.
        """
        for setting, secret in connection.secrets():
            if secret.is_value:
                raise ConfigurationError(
                    f"{setting} of the connection to {connection.bootstrap_servers} is a value,"
                    " which Dagster would show.",
                    remedy="Give it as Secret(env=NAME) or Secret(file=PATH).",
                )
        return cls(
            **connection.model_dump(mode="json", exclude_defaults=True, include=_FIELDS),
        )

    @property
    def connection(self) -> KafkaConnection:
        """The connection.

        Raises:
            ConfigurationError: Its settings contradict one another.
        """
        return KafkaConnection.model_validate(
            {name: given for name in _FIELDS if (given := getattr(self, name)) is not None}
        )

    def client_config(self) -> dict[str, Any]:
        """The settings of a client of confluent-kafka, with secrets; add `group.id` for a consumer.

        Raises:
            ConfigurationError: The connection is wrong.
            SecretNotFoundError: A secret is absent.
        """
        return dict(librdkafka_config(self.connection))

    def cluster(self) -> KafkaCluster:
        """The cluster as the assets of this project use it; close it, or use it in `with`."""
        return KafkaCluster(self.connection)


_FIELDS: Final = {*KafkaResource.model_fields}


def kafka_key(application_id: str, target: str | None = None) -> str:
    """The key of the resource of an application's cluster, or of one of its targets."""
    return f"kafka_{sanitize_name(application_id)}" + (
        f"__{sanitize_name(target)}" if target else ""
    )


def kafka_resources(settings: ApplicationSettings) -> Mapping[str, KafkaResource]:
    """The clusters of an application and of its declared targets, by key.

    A connection with a secret that is a value of this process has none.
    """
    connections = {kafka_key(settings.application_id): settings.connection}
    for name, target in settings.declared_targets.items():
        if target.connection is not None:
            connections[kafka_key(settings.application_id, name)] = target.connection
    return {
        key: _same(connection.model_dump_json())
        for key, connection in connections.items()
        if not any(secret.is_value for _, secret in connection.secrets())
    }


@cache
def _same(connection: str) -> KafkaResource:
    """One object for equal connections, which Dagster needs to merge definitions."""
    return KafkaResource.of(KafkaConnection.model_validate(json.loads(connection)))
