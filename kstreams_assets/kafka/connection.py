"""Connection settings of one Kafka cluster: bootstrap servers, TLS as PEM, SASL; their checks."""

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator

from kstreams_assets.block import Block
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.secret import MASK, SECRET_FORMS, Secret

_BEGIN = "-----BEGIN "
_PLAIN_KEY = "-----BEGIN PRIVATE KEY-----"
_ENCRYPTED_KEY = "-----BEGIN ENCRYPTED PRIVATE KEY-----"
_STORE_SUFFIXES = {".jks", ".p12", ".pfx", ".pkcs12", ".keystore", ".truststore", ".bcfks"}


def is_inline_pem(text: str) -> bool:
    """Whether a setting contains PEM text itself, not a path."""
    return _BEGIN in text


def refuse_store(setting: str, value: str) -> None:
    """Raise ConfigurationError for a path to a JKS or PKCS#12 store: only Java reads those."""
    if not is_inline_pem(value) and Path(value).suffix.lower() in _STORE_SUFFIXES:
        raise ConfigurationError(
            f"{setting} is a Java or PKCS#12 store ({value}); only PEM is accepted, because every"
            " client here must be able to read it.",
            remedy=f"Convert it, a JKS first with: keytool -importkeystore -srckeystore {value}"
            " -destkeystore store.p12 -deststoretype PKCS12; then: openssl pkcs12 -in store.p12"
            " -nodes -out store.pem",
        )


def read_certificates(setting: str, value: str) -> str:
    """The PEM text of one or more certificates, given inline or as a path.

    Raises ConfigurationError if the file cannot be read or contains no certificate.
    """
    refuse_store(setting, value)
    text = value if is_inline_pem(value) else _read(setting, value)
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise ConfigurationError(
            f"{setting} contains no PEM certificate.",
            remedy="Provide PEM text with BEGIN CERTIFICATE lines, or the path of such a file.",
        )
    return text


def _read(setting: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{setting}: the file {path} is not PEM text.",
            remedy=f"Convert it with: openssl x509 -inform der -in {path} -out cert.pem (DER), or"
            f" openssl pkcs12 -in {path} -nodes -out store.pem (PKCS#12).",
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{setting}: the file {path} cannot be read ({error.strerror}).",
            remedy="Check the path, and the rights of the user of this process.",
        ) from None


def check_private_key(setting: str, text: str, *, has_password: bool) -> None:
    """Raise ConfigurationError unless this is a PKCS#8 key that matches the password setting.

    Java supports no other form. The text never appears in the error.
    """
    if _ENCRYPTED_KEY in text:
        if not has_password:
            raise ConfigurationError(
                f"{setting} is encrypted, but no key password is set.",
                remedy="Set ssl.key_password.",
            )
        return
    if _PLAIN_KEY in text:
        if has_password:
            raise ConfigurationError(
                f"{setting} is not encrypted, but a key password is set.",
                remedy="Remove ssl.key_password, or encrypt the key with: openssl pkcs8 -topk8"
                " -in key.pem -out key.pkcs8.pem",
            )
        return
    kind = next(
        (
            name
            for begin, name in (("RSA ", "PKCS#1"), ("EC ", "SEC1"), ("DSA ", "DSA"))
            if f"{_BEGIN}{begin}PRIVATE KEY-----" in text
        ),
        None,
    )
    found = f"a {kind} key" if kind else "no PEM key of the form PKCS#8"
    raise ConfigurationError(
        f"{setting} is {found}; Java supports only PKCS#8 (BEGIN PRIVATE KEY or BEGIN ENCRYPTED"
        " PRIVATE KEY).",
        remedy="Convert it with: openssl pkcs8 -topk8 -nocrypt -in key.pem -out key.pkcs8.pem",
    )


def decrypt_private_key(setting: str, text: str, password: str) -> str:
    """The same key as unencrypted PKCS#8; ConfigurationError if the password is wrong."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    try:
        key = load_pem_private_key(text.encode(), password.encode())
    except ValueError:
        raise ConfigurationError(
            f"{setting} cannot be decrypted with ssl.key_password.",
            remedy="Check that key and password belong together.",
        ) from None
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


RawSetting = bool | int | float | str | Secret
"""A setting that is passed to one client unchanged; secrets in it are `Secret` objects."""

_SECRET_MARKS = ("password", "secret", "jaas", "token", "private", "ssl.key", "keystore.key")
_NO_SECRET_SUFFIXES = (".url", "_url", ".location", ".type", ".class", ".seconds", ".ms")


_FOR_EVER_S = 86_400.0
_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-\d+")


class SecurityProtocol(StrEnum):
    """Kafka's `security.protocol`."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_ssl(self) -> bool:
        """Whether the transport is TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        """Whether the client authenticates with SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class _BlockWithSecrets(Block):
    # Dagster accepts connections as parts of other components' YAML only while their fields have no
    # pydantic constraint (`gt`, `min_length` ...): validators do that work instead.

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: object) -> object:
        """Check before pydantic does; its error would show the value, perhaps a password."""
        if isinstance(data, Mapping):
            unknown = sorted(str(key) for key in data if key not in cls.model_fields)
            if unknown:
                raise ConfigurationError(
                    f"Unknown key in the connection: {', '.join(unknown)}.",
                    remedy=f"Known keys: {', '.join(cls.model_fields)}.",
                )
        return data


class SslSettings(_BlockWithSecrets):
    """TLS: trusted certificates and, for mutual TLS, the client's own. PEM only."""

    ca: str | None = Field(
        default=None,
        description="CA certificates: path or PEM text. Default: those of the machine.",
    )
    certificate: str | None = Field(
        default=None, description="Client certificate with its chain: path or PEM text."
    )
    private_key: Secret | None = Field(
        default=None, description="PKCS#8 key of the client certificate (PEM)."
    )
    key_password: Secret | None = Field(default=None, description="Password of an encrypted key.")
    verify_host_name: bool = Field(
        default=True, description="Whether the broker's certificate must contain its host name."
    )

    @model_validator(mode="after")
    def _check(self) -> "SslSettings":
        for setting, value in (("ssl.ca", self.ca), ("ssl.certificate", self.certificate)):
            if value is not None:
                refuse_store(setting, value)
                if "PRIVATE KEY-----" in value:
                    raise ConfigurationError(
                        f"{setting} contains a private key in clear text.",
                        remedy="Set ssl.private_key: {file: PATH} or {env: NAME}.",
                    )
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigurationError(
                "ssl.certificate and ssl.private_key must be set together; one is missing.",
                remedy="Set both for mutual TLS, or neither.",
            )
        if self.private_key is None:
            if self.key_password is not None:
                raise ConfigurationError(
                    "ssl.key_password is set without ssl.private_key.",
                    remedy="Set the key, too, or remove the password.",
                )
            return self
        if self.private_key.file is not None:
            refuse_store("ssl.private_key", self.private_key.file)
        key = self.private_key.peek()
        if key:  # a key that is not readable here is checked when a client is built
            check_private_key("ssl.private_key", key, has_password=self.key_password is not None)
        return self

    def resolve_private_key(self) -> str | None:
        """The PKCS#8 text of the key, None without one; SecretNotFoundError, ConfigurationError."""
        if self.private_key is None:
            return None
        key = self.private_key.resolve("ssl.private_key")
        check_private_key("ssl.private_key", key, has_password=self.key_password is not None)
        return key

    def resolve_key_password(self) -> str | None:
        """The password of the key, None without one; SecretNotFoundError."""
        return self.key_password.resolve("ssl.key_password") if self.key_password else None


class PasswordSasl(_BlockWithSecrets):
    """SASL with user name and password."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    username: str
    password: Secret

    @field_validator("username")
    @classmethod
    def _check_username(cls, value: str) -> str:
        return _not_empty("sasl.username", value)


class OAuthBearerSasl(_BlockWithSecrets):
    """SASL OAUTHBEARER with a token from an OpenID Connect provider (client credentials)."""

    mechanism: Literal["OAUTHBEARER"]
    client_id: str
    client_secret: Secret
    token_endpoint_url: str = Field(description="The provider's token endpoint (http or https).")
    scope: str | None = None

    @field_validator("client_id")
    @classmethod
    def _check_client_id(cls, value: str) -> str:
        return _not_empty("sasl.client_id", value)

    @field_validator("token_endpoint_url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
            raise ConfigurationError(
                "sasl.token_endpoint_url is not an http or https address without credentials.",
                remedy="Set the token endpoint of the OpenID Connect provider.",
            )
        return value


class MskIamSasl(_BlockWithSecrets):
    """Amazon MSK with IAM: SASL OAUTHBEARER with tokens signed by the AWS credentials."""

    mechanism: Literal["AWS_MSK_IAM"]
    region: str = Field(description="AWS region of the cluster.")
    profile: str | None = Field(
        default=None, description="Profile of the AWS configuration (AWS_PROFILE)."
    )

    @field_validator("region")
    @classmethod
    def _check_region(cls, value: str) -> str:
        if _REGION.fullmatch(value) is None:  # it becomes part of a host name
            raise ConfigurationError(
                f"sasl.region is {value!r}, which is not an AWS region.",
                remedy="Set the region of the cluster, for example eu-central-1.",
            )
        return value


Sasl = PasswordSasl | OAuthBearerSasl | MskIamSasl


class KafkaConnection(Block):
    """How to reach one Kafka cluster.

    Secrets are references (see `Secret`). Raises ConfigurationError for contradicting settings,
    pydantic's ValidationError for unknown keys and wrong types.
    """

    bootstrap_servers: str = Field(description="host:port, several separated by commas.")
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    ssl: SslSettings | None = None
    sasl: PasswordSasl | OAuthBearerSasl | MskIamSasl | None = Field(
        default=None, discriminator="mechanism"
    )
    credentials_for: list[str] = Field(
        default=[],
        description="Further hosts for --bootstrap and --target that may receive these"
        " credentials, in addition to those in bootstrap_servers; * matches any part of a name.",
        examples=[["*.kafka.example.com"]],
    )
    request_timeout_seconds: float = Field(
        default=30.0, description="Time limit of a call to the cluster."
    )
    extra_librdkafka: Mapping[str, RawSetting] = Field(
        default_factory=dict,
        description="Settings for librdkafka, the client that describes and changes topics.",
    )
    extra_java: Mapping[str, RawSetting] = Field(
        default_factory=dict,
        description="Settings for Kafka's Java client, which only a drill's application uses:"
        " accepted for older files.",
    )
    extra_kafka_python: Mapping[str, RawSetting] = Field(
        default_factory=dict, description="Keyword arguments for kafka-python."
    )

    @field_validator("bootstrap_servers", mode="before")
    @classmethod
    def _join_servers(cls, value: object) -> object:
        if isinstance(value, list | tuple):
            value = ",".join(str(server) for server in value)
        if isinstance(value, str):
            servers = [server.strip() for server in value.split(",")]
            for server in servers:
                if "://" in server:
                    scheme, _, rest = server.partition("://")
                    raise ConfigurationError(
                        f"bootstrap_servers: {server!r} is not host:port, it has a scheme"
                        f" ({scheme}).",
                        remedy=f"Write {rest.rstrip('/')}; set the protocol in security_protocol.",
                    )
                host, _, port = server.rpartition(":")
                if not host or not port.isdigit():
                    raise ConfigurationError(
                        f"bootstrap_servers: {server!r} is not host:port.",
                        remedy="Write host:port, several separated by commas.",
                    )
            return ",".join(servers)
        return value

    @field_validator("request_timeout_seconds")
    @classmethod
    def _check_timeout(cls, value: float) -> float:
        return require_seconds("request_timeout_seconds", value)

    @model_validator(mode="after")
    def _check(self) -> "KafkaConnection":
        protocol = self.security_protocol
        if self.ssl is not None and not protocol.uses_ssl:
            self._refuse("an ssl block", "SSL or SASL_SSL")
        if self.sasl is not None and not protocol.uses_sasl:
            self._refuse("a sasl block", "SASL_SSL or SASL_PLAINTEXT")
        if self.sasl is None and protocol.uses_sasl and not self._has_raw_sasl:
            self._refuse("no sasl block", "SSL or PLAINTEXT")
        for block, settings in self._extras():
            for key, value in settings.items():
                if isinstance(value, str) and _looks_secret(key):
                    raise ConfigurationError(
                        f"{block}[{key!r}] is in clear text.",
                        remedy=f"Write it as {SECRET_FORMS}.",
                    )
        return self

    def at(self, bootstrap_servers: str) -> "KafkaConnection":
        """This connection to other servers, if they may receive its credentials.

        The user who names the servers of a restore may not own the credentials. Settings that send
        no credentials (no SASL; the key of a client certificate stays here) may be used for any
        host.

        Raises:
            ConfigurationError: A server is not host:port, or its host is neither in this
                connection's bootstrap_servers nor in credentials_for.
        """
        other = KafkaConnection.model_validate(
            {**dict(self), "bootstrap_servers": bootstrap_servers}
        )
        known = {host.lower() for host in _hosts(self.bootstrap_servers)}
        patterns = [pattern.lower() for pattern in self.credentials_for]
        strange = [
            host
            for host in _hosts(other.bootstrap_servers)
            if host.lower() not in known  # not as a pattern: an IPv6 address has brackets
            and not any(fnmatch.fnmatchcase(host.lower(), pattern) for pattern in patterns)
        ]
        extras = any(name.startswith("extra_") for name, _ in self.secrets())
        if strange and (self.sasl is not None or extras):
            raise ConfigurationError(
                f"The credentials configured for {self.bootstrap_servers} would be sent to"
                f" {', '.join(strange)}.",
                remedy="If the host may receive them, add it to credentials_for of that"
                " connection. Otherwise give the other cluster a connection of its own.",
            )
        return other

    @property
    def _has_raw_sasl(self) -> bool:
        """Whether the raw settings configure a mechanism without a model here; untested."""
        keys = {key for _, settings in self._extras() for key in settings}
        return bool(keys & {"sasl.mechanism", "sasl.mechanisms", "sasl_mechanism"})

    def _extras(self) -> tuple[tuple[str, Mapping[str, RawSetting]], ...]:
        return (
            ("extra_librdkafka", self.extra_librdkafka),
            ("extra_java", self.extra_java),
            ("extra_kafka_python", self.extra_kafka_python),
        )

    def _refuse(self, what: str, protocols: str) -> None:
        raise ConfigurationError(
            f"The connection has {what}, but security_protocol is {self.security_protocol}.",
            remedy=f"Set security_protocol to {protocols}, or change the block.",
        )

    @property
    def mechanism(self) -> str:
        """How the client authenticates, in words for error messages."""
        if self.sasl is not None:
            return f"{self.security_protocol}, {self.sasl.mechanism}"
        mutual = self.ssl is not None and self.ssl.certificate is not None
        return f"{self.security_protocol}, client certificate" if mutual else self.security_protocol

    def secrets(self) -> Iterator[tuple[str, Secret]]:
        """Every secret with the name of its setting."""
        if self.ssl is not None and self.ssl.private_key is not None:
            yield "ssl.private_key", self.ssl.private_key
        if self.ssl is not None and self.ssl.key_password is not None:
            yield "ssl.key_password", self.ssl.key_password
        if isinstance(self.sasl, PasswordSasl):
            yield "sasl.password", self.sasl.password
        if isinstance(self.sasl, OAuthBearerSasl):
            yield "sasl.client_secret", self.sasl.client_secret
        for block, settings in self._extras():
            for key, value in settings.items():
                if isinstance(value, Secret):
                    yield f"{block}.{key}", value

    def scrub(self, text: str) -> str:
        """Mask every secret of this connection in the text (for error messages of clients)."""
        for _, secret in self.secrets():
            value = secret.peek()
            if value:
                text = text.replace(value, MASK)
        return text


@dataclass(frozen=True, slots=True)
class CarriedConnection:
    """A connection with its secrets and certificates, for tasks in other processes.

    It can be pickled and shows no secret. Create it where it is sent, and do not store it.
    """

    settings: KafkaConnection
    secrets: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, connection: KafkaConnection) -> "CarriedConnection":
        """Raises SecretNotFoundError, ConfigurationError."""
        secrets = {setting: secret.resolve(setting) for setting, secret in connection.secrets()}
        named = connection.ssl
        ssl = named and named.model_copy(
            update={
                "ca": named.ca and read_certificates("ssl.ca", named.ca),
                "certificate": named.certificate
                and read_certificates("ssl.certificate", named.certificate),
                **_nulls(named, "private_key", "key_password"),
            }
        )
        sasl = connection.sasl
        sasl = sasl and sasl.model_copy(update=_nulls(sasl, "password", "client_secret"))
        extras = {
            name: {k: v for k, v in settings.items() if not isinstance(v, Secret)}
            for name, settings in connection._extras()  # noqa: SLF001
        }
        return cls(connection.model_copy(update={"ssl": ssl, "sasl": sasl, **extras}), secrets)

    def opened(self) -> KafkaConnection:
        """The connection; its secrets are now values of this process."""
        blocks: dict[str, dict[str, object]] = {}
        for setting, text in self.secrets.items():
            block, _, name = setting.partition(".")
            blocks.setdefault(block, {})[name] = Secret.of(SecretStr(text))
        updates: dict[str, object] = {}
        for block, values in blocks.items():
            configured = getattr(self.settings, block)
            updates[block] = (
                configured.model_copy(update=values)
                if isinstance(configured, BaseModel)
                else {**configured, **values}
            )
        return self.settings.model_copy(update=updates)


def _nulls(block: BaseModel, *names: str) -> dict[str, None]:
    return {name: None for name in names if name in type(block).model_fields}


def _hosts(bootstrap_servers: str) -> list[str]:
    return [server.rpartition(":")[0] for server in bootstrap_servers.split(",")]


def resolve_extras(field: str, settings: Mapping[str, RawSetting]) -> dict[str, str | bool | float]:
    """Raw settings with their secrets read; SecretNotFoundError."""
    return {
        key: value.resolve(f"{field}.{key}") if isinstance(value, Secret) else value
        for key, value in settings.items()
    }


def require_seconds(setting: str, value: float) -> float:
    """The timeout; raises ConfigurationError unless it is above 0 and at most a day."""
    if not 0 < value < _FOR_EVER_S:
        raise ConfigurationError(
            f"{setting} is {value:g}.", remedy="Give a number of seconds above 0, at most a day."
        )
    return value


def _not_empty(setting: str, value: str) -> str:
    if not value:
        raise ConfigurationError(f"{setting} is empty.", remedy=f"Give {setting}.")
    return value


def _looks_secret(key: str) -> bool:
    lowered = key.lower()
    if lowered.endswith(_NO_SECRET_SUFFIXES):
        return False
    return any(mark in lowered for mark in _SECRET_MARKS)


__all__ = [
    "CarriedConnection",
    "KafkaConnection",
    "MskIamSasl",
    "OAuthBearerSasl",
    "PasswordSasl",
    "RawSetting",
    "Sasl",
    "Secret",
    "SecurityProtocol",
    "SslSettings",
    "is_inline_pem",
    "resolve_extras",
]
