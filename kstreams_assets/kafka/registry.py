"""The schema registry of an application: connection settings and requests."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.client import responses
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from kstreams_assets.block import Block
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError, SchemaNotFoundError
from kstreams_assets.kafka.clients import tame_client_logs
from kstreams_assets.kafka.connection import require_seconds
from kstreams_assets.secret import MASK, Secret

if TYPE_CHECKING:  # imported where a registry is used, because the import takes 0.2 s
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError

_PAGE: Final = 500
_LIST: Final = "the list of schemas"
_CA_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""The CA file of other HTTP clients in Python; SSL_CERT_FILE and SSL_CERT_DIR apply, too."""
_T = TypeVar("_T")


class RegistryConnection(Block):
    """How to reach one schema registry (Confluent's REST interface).

    Secrets are references (see `Secret`). Raises ConfigurationError for contradicting settings,
    pydantic's ValidationError for unknown keys and wrong types.
    """

    url: str = Field(description="Base address, http or https, without credentials.")
    username: Secret | None = Field(default=None, description="User name of HTTP basic auth.")
    password: Secret | None = Field(default=None, description="Password of HTTP basic auth.")
    ssl_ca_location: str | None = Field(
        default=None,
        description="File with the trusted CA certificates; by default those of the machine.",
    )
    request_timeout_seconds: float = Field(
        default=10.0, description="Time limit of one request to the registry."
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        problem = problem_of_url(value)
        if problem:
            # The value itself is not shown: it may contain a password.
            raise ConfigurationError(
                f"schema_registry.url {problem}.",
                remedy="Set an address such as http://host:8081, and the user name and password in"
                " schema_registry.username and schema_registry.password.",
            )
        return value.rstrip("/")

    @field_validator("request_timeout_seconds")
    @classmethod
    def _check_timeout(cls, value: float) -> float:
        return require_seconds("schema_registry.request_timeout_seconds", value)

    @model_validator(mode="after")
    def _check(self) -> "RegistryConnection":
        if (self.username is None) != (self.password is None):
            raise ConfigurationError(
                "schema_registry.username and schema_registry.password must be set together; one"
                " is missing.",
                remedy="Set both for HTTP basic authentication, or neither.",
            )
        return self

    def scrub(self, text: str) -> str:
        """Mask every secret of this connection in the text (for error messages of clients)."""
        for secret in (self.username, self.password):
            value = secret.peek() if secret is not None else None
            if value:
                text = text.replace(value, MASK)
        return text


def problem_of_url(value: str, schemes: Sequence[str] = ("http", "https")) -> str | None:
    """Return what is wrong with the address of a server, None if nothing; it continues its name."""
    try:
        parts = urlsplit(value)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        return "is not an address"
    if parts.scheme not in schemes or not parts.hostname or not port_is_fine:
        return f"is not an {' or '.join(schemes)} address"
    if parts.username is not None or parts.password is not None:
        return "contains credentials"
    if parts.query or parts.fragment:
        return "has a query or a fragment"
    return None


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one imports: its name there, and its place in the registry."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """A schema in the registry; `kind` is AVRO, PROTOBUF or JSON."""

    id: int
    kind: str
    text: str
    references: tuple[Reference, ...]


class RegistryClient:
    """Read schemas from a registry; a context manager.

    Its methods raise KStreamsAssetsError, SchemaNotFoundError and
    SecretNotFoundError.
    """

    def __init__(self, connection: RegistryConnection) -> None:
        self._connection = connection
        self._settings: dict[str, Any] = {
            "url": connection.url,
            "timeout": connection.request_timeout_seconds,
            "max.retries": 0,
        }
        variables = (os.environ.get(name) for name in _CA_VARIABLES)
        authorities = connection.ssl_ca_location or next(filter(None, variables), None)
        if authorities is not None:
            self._settings["ssl.ca.location"] = authorities
        if connection.username is not None and connection.password is not None:
            username = connection.username.resolve("schema_registry.username")
            password = connection.password.resolve("schema_registry.password")
            self._settings["basic.auth.user.info"] = f"{username}:{password}"

    def __enter__(self) -> "RegistryClient":
        return self

    def __exit__(self, *exc: object) -> None:
        if "_client" in self.__dict__:
            self._client.close()

    def entries(self) -> Iterator[RegistryEntry]:
        """Every version of every subject, including soft-deleted ones; a schema may occur twice.

        Registries that cannot list schemas (Apicurio, older ones) are read subject by subject.
        """
        try:
            page = self._page(0)
        except SchemaNotFoundError:
            yield from self._entries_by_subject()
            return
        seen = 0
        while page:
            seen += len(page)
            yield from (_entry(item) for item in page if not self._is_foreign(item))
            page = self._page(seen)

    def entry(self, schema_id: int) -> RegistryEntry:
        """The schema with an id."""
        return self._ask(
            f"schema {schema_id}",
            lambda client: _entry({**client.get_schema(schema_id).to_dict(), "id": schema_id}),
        )

    def version(self, subject: str, version: int) -> RegistryEntry:
        """One version of a subject, which may be soft-deleted."""
        return self._ask(
            f"version {version} of subject {subject}",
            lambda client: _entry(client.get_version(subject, version, deleted=True).to_dict()),
        )

    @cached_property
    def _client(self) -> "SchemaRegistryClient":
        from confluent_kafka.schema_registry import SchemaRegistryClient

        tame_client_logs()
        client = SchemaRegistryClient(self._settings)
        client._rest_client.session.follow_redirects = True  # noqa: SLF001
        return client

    def _page(self, offset: int) -> list[Mapping[str, Any]]:
        """One page of the list of all schemas; the client has no method for it.

        For 1,000 subjects, requests by subject would be 2,001 instead of 3.
        """
        query = {"deleted": "true", "offset": offset, "limit": _PAGE}

        def read(client: "SchemaRegistryClient") -> list[Mapping[str, Any]]:
            page = client._rest_client.get("schemas", query)  # noqa: SLF001
            for item in page:
                _entry(item)  # raises if it is not a list of schemas
            return page

        return self._ask(_LIST, read)

    def _is_foreign(self, item: Mapping[str, Any]) -> bool:
        """In other contexts than that of the address, ids mean other schemas."""
        subject = str(item.get("subject", ""))
        return subject.startswith(":.") and "/contexts/" not in self._connection.url

    def _entries_by_subject(self) -> Iterator[RegistryEntry]:
        subjects = self._ask(
            "the list of subjects",
            lambda client: [str(subject) for subject in client.get_subjects(deleted=True)],
        )
        for subject in subjects:
            try:
                versions = self._ask(
                    f"versions of subject {subject}",
                    lambda client, subject=subject: [
                        int(version) for version in client.get_versions(subject, deleted=True)
                    ],
                )
                entries = [self.version(subject, number) for number in versions]
            except SchemaNotFoundError:
                continue  # deleted since the list was made
            yield from entries

    def _ask(self, asked: str, read: Callable[["SchemaRegistryClient"], _T]) -> _T:
        """Send one request to the registry; errors name `asked`."""
        import httpx2
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        connection = self._connection
        try:
            return read(self._client)
        except SchemaRegistryError as error:
            raise self._refused(asked, error.http_status_code, _message(error)) from None
        except httpx2.TimeoutException:
            raise self._unavailable(asked, "no answer in time") from None
        except httpx2.HTTPError as error:
            raise self._unavailable(asked, connection.scrub(_reason(error))) from None
        except OSError as error:  # before a connection: the file of CA certificates is missing
            place = self._settings.get("ssl.ca.location")
            reason = f"{place}: {error.strerror or _reason(error)}"
            raise self._unavailable(asked, reason) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unavailable(asked, "the answer is not that of a schema registry") from error

    def _refused(self, asked: str, status: int, message: str) -> KStreamsAssetsError:
        reason = self._connection.scrub(message)
        if status == HTTPStatus.NOT_FOUND:
            return SchemaNotFoundError(url=self._connection.url, asked=asked, reason=reason)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return self._unavailable(asked, f"HTTP {status}, {reason}")
        return KStreamsAssetsError(
            f"The schema registry at {self._connection.url} refused {asked}: HTTP"
            f" {status}, {reason}.",
            remedy="Check user name and password of schema_registry and their right to read"
            " schemas.",
        )

    def _unavailable(self, asked: str, reason: str) -> KStreamsAssetsError:
        return KStreamsAssetsError(
            f"The schema registry at {self._connection.url} did not return {asked}: {reason}.",
            remedy="Check that it runs, its address and its certificate, then try again; schemas"
            " that are stored in the warehouse can be read without it.",
        )


def _entry(item: Mapping[str, Any]) -> RegistryEntry:
    return RegistryEntry(
        id=int(item["id"]),
        kind=str(item.get("schemaType") or "AVRO").upper(),
        text=str(item["schema"]),
        references=tuple(
            Reference(str(found["name"]), str(found["subject"]), int(found["version"]))
            for found in item.get("references") or ()
        ),
    )


def _reason(error: Exception) -> str:
    """The innermost cause in few words, without object addresses."""
    text = str(error)
    cause = re.search(r"(\[Errno [^\]]*\] [^'\")]+|certificate verify failed[^'\")(]*)", text)
    return (cause.group(1) if cause else f"{type(error).__name__}: {text}"[:300]).strip(" .")


def _message(error: "SchemaRegistryError") -> str:
    """The message of the registry; for another server only the meaning of its status."""
    if error.error_code in (None, error.UNKNOWN):
        return responses.get(error.http_status_code, "no reason given")
    return f"{error.error_message} (error {error.error_code})".strip(" .")
