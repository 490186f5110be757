"""A connection as configuration of librdkafka, and its log."""

import logging
import ssl
from typing import Any, Final

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import (
    KafkaConnection,
    MskIamSasl,
    OAuthBearerSasl,
    Sasl,
    SslSettings,
    read_certificates,
    resolve_extras,
)
from kstreams_assets.kafka.msk_iam import MskIamTokens
from kstreams_assets.kafka.throttle import CLIENT_ID
from kstreams_assets.secret import mask_secrets

LibrdkafkaConfig = dict[str, Any]

_RAW_SASL: Final = {
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
}
"""kafka-python's settings of a mechanism without a `sasl` block, with librdkafka's names."""

_PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_NOT_THROUGH_PROXIES: Final = ("proxy_url", "socks5_proxy")
_CONTROL_PLANE: Final = "topics are described, created, altered and deleted by librdkafka"


def librdkafka_config(connection: KafkaConnection) -> LibrdkafkaConfig:
    """The base settings of every confluent-kafka client of this cluster, with clear-text secrets.

    Build them where the client is built and do not store them. Raises SecretNotFoundError, and
    ConfigurationError for settings that kafka-python supports and librdkafka does not.
    """
    for setting in _NOT_THROUGH_PROXIES:
        if setting in connection.extra_kafka_python:
            raise ConfigurationError(
                f"extra_kafka_python.{setting} names a proxy, but librdkafka does not support"
                f" proxies: {_CONTROL_PLANE}.",
                remedy="Make the brokers reachable without a proxy.",
            )
    timeout_ms = round(connection.request_timeout_seconds * 1000)
    config: LibrdkafkaConfig = {
        "bootstrap.servers": connection.bootstrap_servers,
        "security.protocol": connection.security_protocol.value,
        "client.id": CLIENT_ID,
        # librdkafka rejects less than 10 ms and more than 300 s
        "socket.timeout.ms": min(max(timeout_ms, 10), 300_000),
        "socket.connection.setup.timeout.ms": min(max(timeout_ms, 1_000), 30_000),
    }
    if connection.security_protocol.uses_ssl:
        config |= _ssl(connection.ssl or SslSettings())
    if connection.sasl is not None:
        config |= _sasl(connection.sasl, connection.bootstrap_servers)
    elif connection.security_protocol.uses_sasl:
        config |= _raw_sasl(connection)
    return config | resolve_extras("extra_librdkafka", connection.extra_librdkafka)


def _ssl(settings: SslSettings) -> LibrdkafkaConfig:
    config: LibrdkafkaConfig = {
        "ssl.endpoint.identification.algorithm": "https" if settings.verify_host_name else "none"
    }
    if settings.ca is None:
        config["ssl.ca.location"] = _trusted_by_this_machine()
    else:
        config["ssl.ca.pem"] = read_certificates("ssl.ca", settings.ca)
    key = settings.resolve_private_key()
    if settings.certificate is not None and key is not None:
        config["ssl.certificate.pem"] = read_certificates("ssl.certificate", settings.certificate)
        config["ssl.key.pem"] = key
    password = settings.resolve_key_password()
    if password is not None:
        config["ssl.key.password"] = password
    return config


def _trusted_by_this_machine() -> str:
    """Also use the certificates that Python trusts: librdkafka includes its own OpenSSL."""
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath or "probe"


def _sasl(sasl: Sasl, bootstrap_servers: str) -> LibrdkafkaConfig:
    if isinstance(sasl, MskIamSasl):
        tokens = MskIamTokens(sasl, bootstrap_servers=bootstrap_servers)
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _config: tokens.token_and_end(),
        }
    if not isinstance(sasl, OAuthBearerSasl):
        return {
            "sasl.mechanism": sasl.mechanism,
            "sasl.username": sasl.username,
            "sasl.password": sasl.password.resolve("sasl.password"),
        }
    config: LibrdkafkaConfig = {
        "sasl.mechanism": sasl.mechanism,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": sasl.client_id,
        "sasl.oauthbearer.client.secret": sasl.client_secret.resolve("sasl.client_secret"),
        "sasl.oauthbearer.token.endpoint.url": sasl.token_endpoint_url,
    }
    if sasl.token_endpoint_url.startswith("https"):
        config["https.ca.location"] = _trusted_by_this_machine()
    if sasl.scope is not None:
        config["sasl.oauthbearer.scope"] = sasl.scope
    return config


def _raw_sasl(connection: KafkaConnection) -> LibrdkafkaConfig:
    """The mechanism in the raw settings: librdkafka's own, else kafka-python's."""
    if {"sasl.mechanism", "sasl.mechanisms"} & connection.extra_librdkafka.keys():
        return {}
    mechanism = connection.extra_kafka_python.get("sasl_mechanism")
    if mechanism not in _PASSWORD_MECHANISMS:
        raise ConfigurationError(
            f"extra_kafka_python.sasl_mechanism is {mechanism}, which librdkafka does not support"
            f" under this name: {_CONTROL_PLANE}.",
            remedy="Use a sasl block, or set sasl.mechanism in extra_librdkafka.",
        )
    settings = resolve_extras("extra_kafka_python", connection.extra_kafka_python)
    return {_RAW_SASL[name]: value for name, value in settings.items() if name in _RAW_SASL}


class _MaskedDebug(logging.LoggerAdapter[logging.Logger]):
    """Log librdkafka's lines at level DEBUG, because failed attempts are not errors; mask
    secrets."""

    def log(self, level: int, msg: object, *args: object, **_: object) -> None:
        if self.logger.isEnabledFor(logging.DEBUG):
            self.logger.debug("%s", mask_secrets(str(msg) % args))


LOG: Final = _MaskedDebug(logging.getLogger("librdkafka"))
"""Pass it to every client: without a logger librdkafka writes to standard error."""
