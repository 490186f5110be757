"""A connection as keyword arguments of kafka-python 3 (KafkaAdminClient, KafkaConsumer ...)."""

import ssl
import tempfile
from pathlib import Path
from typing import Any

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import KafkaConnection, OAuthBearerSasl, resolve_extras
from kstreams_assets.kafka.oauth_token import ClientCredentialsTokenProvider
from kstreams_assets.kafka.pem import read_certificates


def kafka_python_arguments(connection: KafkaConnection) -> dict[str, Any]:
    """The arguments every kafka-python client of this cluster starts from, secrets in clear.

    Build it where the client is built and keep it nowhere. Raises SecretNotFoundError,
    ConfigurationError.
    """
    arguments: dict[str, Any] = {
        "bootstrap_servers": connection.bootstrap_servers.split(","),
        "security_protocol": connection.security_protocol.value,
        "client_id": "kstreams-assets",
        "request_timeout_ms": round(connection.request_timeout_seconds * 1000),
    }
    if connection.security_protocol.uses_ssl:
        arguments["ssl_context"] = ssl_context(connection)
    sasl = connection.sasl
    if isinstance(sasl, OAuthBearerSasl):
        arguments["sasl_mechanism"] = sasl.mechanism
        arguments["sasl_oauth_token_provider"] = ClientCredentialsTokenProvider(
            sasl,
            bootstrap_servers=connection.bootstrap_servers,
            timeout_s=connection.request_timeout_seconds,
        )
    elif sasl is not None:
        arguments["sasl_mechanism"] = sasl.mechanism
        arguments["sasl_plain_username"] = sasl.username
        arguments["sasl_plain_password"] = sasl.password.resolve("sasl.password")
    return arguments | resolve_extras("extra_kafka_python", connection.extra_kafka_python)


def ssl_context(connection: KafkaConnection) -> ssl.SSLContext:
    """The TLS context of a connection; raises SecretNotFoundError, ConfigurationError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    settings = connection.ssl
    if settings is None or settings.ca is None:
        context.load_default_certs()
    else:
        authorities = read_certificates("ssl.ca", settings.ca)
        try:
            context.load_verify_locations(cadata=authorities)
        except ssl.SSLError as error:
            raise _unreadable("ssl.ca", error) from None
    if settings is None:
        return context
    context.check_hostname = settings.verify_host_name
    key = settings.resolve_private_key()
    if settings.certificate is not None and key is not None:
        chain = read_certificates("ssl.certificate", settings.certificate)
        _load_chain(context, chain, key, settings.resolve_key_password())
    return context


def _load_chain(context: ssl.SSLContext, chain: str, key: str, password: str | None) -> None:
    # Python reads certificate and key from files only; these live for the length of one call
    with tempfile.TemporaryDirectory(prefix="kstreams-assets-") as directory:
        path = Path(directory, "chain.pem")
        path.touch(mode=0o600)
        path.write_text(f"{key.strip()}\n{chain.strip()}\n", encoding="ascii")
        try:
            # without a password OpenSSL would ask for one on the terminal
            context.load_cert_chain(path, password=password or "")
        except ssl.SSLError as error:
            raise _unreadable("ssl.certificate or ssl.private_key", error) from None


def _unreadable(setting: str, error: ssl.SSLError) -> ConfigurationError:
    return ConfigurationError(
        f"{setting} is not accepted by OpenSSL ({error.reason or 'unreadable'}).",
        remedy="Check that certificate, key and key password belong together and are valid PEM.",
    )
