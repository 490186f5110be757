"""A connection as configuration of Java clients, and filters for the logs of clients."""

import logging

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.kafka.connection import (
    KafkaConnection,
    MskIamSasl,
    OAuthBearerSasl,
    PasswordSasl,
    Sasl,
    SslSettings,
    decrypt_private_key,
    read_certificates,
    resolve_extras,
)

# At level DEBUG kafka-python writes its whole configuration, every request and every byte on the
# wire to these loggers, including passwords.
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
    "kafka.cluster",
    "kafka.net.connection",
    "kafka.net.inet",
    "kafka.net.manager",
    "kafka.net.sasl.plain",
    "kafka.net.selector",
    "kafka.net.transport",
    "httpx2",  # every request to a schema registry
)


class _AsDebug(logging.Filter):
    """Both clients report failed attempts as errors; real failures are raised anyway."""

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


_SECURITY = "org.apache.kafka.common.security"
_MSK_IAM = "software.amazon.msk.auth.iam"
"""A class of aws-msk-iam-auth, which must be on the class path of the Java client."""


def java_config(connection: KafkaConnection) -> dict[str, str]:
    """Java client properties with clear-text secrets and inline PEM, so that executors need no
    file.

    Build them where they are used and do not store them. Raises SecretNotFoundError,
    ConfigurationError (also for a user name or secret with a line break, which JAAS does not
    support).
    """
    config = {
        "bootstrap.servers": connection.bootstrap_servers,
        "security.protocol": connection.security_protocol.value,
    }
    if connection.ssl is not None:
        config |= _java_ssl(connection.ssl)
    if connection.sasl is not None:
        config["sasl.mechanism"] = connection.sasl.mechanism
        config["sasl.jaas.config"] = _jaas(connection.sasl)
        if isinstance(connection.sasl, OAuthBearerSasl):
            handler = f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"
            config["sasl.login.callback.handler.class"] = handler
            config["sasl.oauthbearer.token.endpoint.url"] = connection.sasl.token_endpoint_url
        if isinstance(connection.sasl, MskIamSasl):
            config["sasl.client.callback.handler.class"] = f"{_MSK_IAM}.IAMClientCallbackHandler"
    extras = resolve_extras("extra_java", connection.extra_java)
    return config | {key: _java_text(value) for key, value in extras.items()}


def _java_ssl(ssl: SslSettings) -> dict[str, str]:
    config = {"ssl.endpoint.identification.algorithm": "https" if ssl.verify_host_name else ""}
    if ssl.ca is not None:
        config["ssl.truststore.type"] = "PEM"
        config["ssl.truststore.certificates"] = read_certificates("ssl.ca", ssl.ca)
    key = ssl.resolve_private_key()
    if ssl.certificate is not None and key is not None:
        chain = read_certificates("ssl.certificate", ssl.certificate)
        config["ssl.keystore.type"] = "PEM"
        config["ssl.keystore.certificate.chain"] = chain
        # Java up to 17 cannot open the encryption (PBES2) that every current tool uses
        password = ssl.resolve_key_password()
        config["ssl.keystore.key"] = (
            key if password is None else decrypt_private_key("ssl.private_key", key, password)
        )
    return config


def _jaas(sasl: Sasl) -> str:
    if isinstance(sasl, MskIamSasl):
        return f"{_MSK_IAM}.IAMLoginModule required{_profile(sasl)};"
    if isinstance(sasl, PasswordSasl):
        module = "plain.PlainLoginModule" if sasl.mechanism == "PLAIN" else "scram.ScramLoginModule"
        password = sasl.password.resolve("sasl.password")
        options = {"username": sasl.username, "password": password}
    else:
        module = "oauthbearer.OAuthBearerLoginModule"
        secret = sasl.client_secret.resolve("sasl.client_secret")
        options = {"clientId": sasl.client_id, "clientSecret": secret}
        if sasl.scope is not None:
            options["scope"] = sasl.scope
    words = " ".join(f'{name}="{_quote(name, value)}"' for name, value in options.items())
    return f"{_SECURITY}.{module} required {words};"


def _profile(sasl: MskIamSasl) -> str:
    return f' awsProfileName="{_quote("profile", sasl.profile)}"' if sasl.profile else ""


def _quote(name: str, value: str) -> str:
    if "\n" in value or "\r" in value:
        raise ConfigurationError(
            f"The {name} of the sasl block contains a line break, which JAAS does not support.",
            remedy="Remove the line break from the value or from its source.",
        )
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _java_text(value: str | bool | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
