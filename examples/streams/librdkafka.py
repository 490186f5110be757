"""A connection as the configuration of librdkafka, whose clients tests and benchmarks use."""

from kstreams_assets.kafka.connection import (
    KafkaConnection,
    OAuthBearerSasl,
    SslSettings,
    read_certificates,
    resolve_extras,
)

LibrdkafkaConfig = dict[str, str | bool | int | float]


def librdkafka_config(connection: KafkaConnection) -> LibrdkafkaConfig:
    """The settings every confluent-kafka client of this cluster starts from, secrets in clear.

    Build it where the client is built and keep it nowhere. Raises SecretNotFoundError,
    ConfigurationError.
    """
    timeout_ms = round(connection.request_timeout_seconds * 1000)
    config: LibrdkafkaConfig = {
        "bootstrap.servers": connection.bootstrap_servers,
        "security.protocol": connection.security_protocol.value,
        "client.id": "kstreams-assets",
        # librdkafka refuses less than 10 ms and more than 300 s
        "socket.timeout.ms": min(max(timeout_ms, 10), 300_000),
        "socket.connection.setup.timeout.ms": min(max(timeout_ms, 1_000), 30_000),
    }
    if connection.ssl is not None:
        config |= _ssl(connection.ssl)
    sasl = connection.sasl
    if isinstance(sasl, OAuthBearerSasl):
        config |= _oauthbearer(sasl)
    elif sasl is not None:
        config["sasl.mechanism"] = sasl.mechanism
        config["sasl.username"] = sasl.username
        config["sasl.password"] = sasl.password.resolve("sasl.password")
    return config | resolve_extras("extra_librdkafka", connection.extra_librdkafka)


def _ssl(ssl: SslSettings) -> LibrdkafkaConfig:
    config: LibrdkafkaConfig = {
        "ssl.endpoint.identification.algorithm": "https" if ssl.verify_host_name else "none"
    }
    if ssl.ca is not None:
        config["ssl.ca.pem"] = read_certificates("ssl.ca", ssl.ca)
    key = ssl.resolve_private_key()
    if ssl.certificate is not None and key is not None:
        config["ssl.certificate.pem"] = read_certificates("ssl.certificate", ssl.certificate)
        config["ssl.key.pem"] = key
    password = ssl.resolve_key_password()
    if password is not None:
        config["ssl.key.password"] = password
    return config


def _oauthbearer(sasl: OAuthBearerSasl) -> LibrdkafkaConfig:
    config: LibrdkafkaConfig = {
        "sasl.mechanism": sasl.mechanism,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": sasl.client_id,
        "sasl.oauthbearer.client.secret": sasl.client_secret.resolve("sasl.client_secret"),
        "sasl.oauthbearer.token.endpoint.url": sasl.token_endpoint_url,
    }
    if sasl.scope is not None:
        config["sasl.oauthbearer.scope"] = sasl.scope
    return config
