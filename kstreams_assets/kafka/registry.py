"""How to reach the schema registry of an application, and what is asked of it."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kstreams_assets.errors import (
    ConfigurationError,
    RegistryError,
    SchemaNotFoundError,
)
from kstreams_assets.kafka.secret import MASK, Secret

if TYPE_CHECKING:  # at run time where a registry is asked: its import is a tenth of a command
    import requests

_FOR_EVER_S = 86_400.0
_PAGE = 500
_LIST = "the list of schemas"
_T = TypeVar("_T")


class RegistryConnection(BaseModel):
    """How to reach one schema registry (Confluent's REST interface).

    Secrets are named, not held (see `Secret`). Raises ConfigurationError for settings that
    contradict one another, pydantic's ValidationError for unknown keys and wrong types.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str = Field(description="Base address, http or https, without credentials.")
    username: Secret | None = Field(default=None, description="User name of HTTP basic auth.")
    password: Secret | None = Field(default=None, description="Password of HTTP basic auth.")
    ssl_ca_location: str | None = Field(
        default=None,
        description="File with the CA certificates to trust; those of the machine without it.",
    )
    request_timeout_seconds: float = Field(
        default=10.0, description="After how long one request to the registry gives up."
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        problem = _problem_of_url(value)
        if problem:
            # The value itself is not shown: it may hold a password.
            raise ConfigurationError(
                f"schema_registry.url {problem}.",
                remedy="Give an address such as http://host:8081; user name and password go into"
                " schema_registry.username and schema_registry.password.",
            )
        return value.rstrip("/")

    @field_validator("request_timeout_seconds")
    @classmethod
    def _check_timeout(cls, value: float) -> float:
        if not 0 < value < _FOR_EVER_S:
            raise ConfigurationError(
                f"schema_registry.request_timeout_seconds is {value:g}.",
                remedy="Give a number of seconds above 0, at most a day.",
            )
        return value

    @model_validator(mode="after")
    def _check(self) -> "RegistryConnection":
        if (self.username is None) != (self.password is None):
            raise ConfigurationError(
                "schema_registry.username and schema_registry.password go together; one is"
                " missing.",
                remedy="Give both for HTTP basic authentication, or neither.",
            )
        return self

    def scrub(self, text: str) -> str:
        """The text with every secret of this connection masked (for what clients say in errors)."""
        for secret in (self.username, self.password):
            value = secret.peek() if secret is not None else None
            if value:
                text = text.replace(value, MASK)
        return text


def _problem_of_url(value: str) -> str | None:
    try:
        parts = urlsplit(value)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        return "is no address"
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
        return "is not an http or https address"
    if parts.username is not None or parts.password is not None:
        return "holds credentials"
    if parts.query or parts.fragment:
        return "has a query or a fragment"
    return None


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one imports: under which name, and where the registry has it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """A schema as the registry tells it; `kind` is AVRO, PROTOBUF or JSON."""

    id: int
    kind: str
    text: str
    references: tuple[Reference, ...]


class RegistryClient:
    """Reads schemas from a registry; a context manager.

    Its methods raise RegistryError, SchemaNotFoundError and
    SecretNotFoundError.
    """

    def __init__(self, connection: RegistryConnection) -> None:
        import requests
        from requests.auth import HTTPBasicAuth

        self._connection = connection
        self._session = requests.Session()
        self._session.headers["Accept"] = "application/vnd.schemaregistry.v1+json, application/json"
        username, password = connection.username, connection.password
        if username is not None and password is not None:
            self._session.auth = HTTPBasicAuth(
                username.resolve("schema_registry.username").encode(),
                password.resolve("schema_registry.password").encode(),
            )
        else:
            self._session.auth = _no_auth  # else a .netrc of the user would be read

    def __enter__(self) -> "RegistryClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.close()

    def entries(self) -> Iterator[RegistryEntry]:
        """Every version of every subject, soft-deleted ones too; a schema may come twice.

        Registries that cannot list schemas (Apicurio, older ones) are asked subject by subject.
        """
        try:
            page = self._page(0)
        except SchemaNotFoundError:
            yield from self._entries_by_subject()
            return
        seen = 0
        while page:
            seen += len(page)
            yield from self._checked(partial(self._of_this_context, page), _LIST)
            page = self._page(seen)

    def entry(self, schema_id: int) -> RegistryEntry:
        """The schema with an id."""
        asked = f"schema {schema_id}"
        found = self._get(f"/schemas/ids/{schema_id}", asked=asked)
        return self._checked(lambda: _entry({**found, "id": schema_id}), asked)

    def version(self, subject: str, version: int) -> RegistryEntry:
        """One version of a subject, also a soft-deleted one."""
        asked = f"version {version} of subject {subject}"
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
        found = self._get(path, asked=asked, deleted="true")
        return self._checked(lambda: _entry(found), asked)

    def _page(self, offset: int) -> list[Any]:
        return self._get("/schemas", asked=_LIST, deleted="true", offset=offset, limit=_PAGE)

    def _of_this_context(self, page: Iterable[Mapping[str, Any]]) -> list[RegistryEntry]:
        return [_entry(item) for item in page if not self._is_foreign(item)]

    def _is_foreign(self, item: Mapping[str, Any]) -> bool:
        """Ids of other contexts than that of the address mean other schemas."""
        subject = str(item.get("subject", ""))
        return subject.startswith(":.") and "/contexts/" not in self._connection.url

    def _entries_by_subject(self) -> Iterator[RegistryEntry]:
        subjects = self._get("/subjects", asked="the list of subjects", deleted="true")
        for subject in self._checked(partial(_texts, subjects), "the list of subjects"):
            path = f"/subjects/{quote(subject, safe='')}/versions"
            try:
                versions = self._get(path, asked=f"versions of subject {subject}", deleted="true")
                found = [self.version(subject, number) for number in versions]
            except SchemaNotFoundError:
                continue  # deleted since the list was made
            yield from found

    def _get(self, path: str, *, asked: str, **query: str | int) -> Any:  # noqa: ANN401 (JSON)
        import requests

        connection = self._connection
        try:
            response = self._session.get(
                connection.url + path,
                params=query,
                timeout=connection.request_timeout_seconds,
                verify=connection.ssl_ca_location or True,
            )
        except (requests.RequestException, OSError) as error:
            # OSError: the file of CA certificates is not there.
            raise self._unavailable(asked, connection.scrub(_reason(error))) from None
        if response.ok:
            return self._checked(response.json, asked)
        reason = connection.scrub(_message(response))
        if response.status_code == HTTPStatus.NOT_FOUND:
            raise SchemaNotFoundError(url=connection.url, asked=asked, reason=reason)
        if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise self._unavailable(asked, f"HTTP {response.status_code}, {reason}")
        raise RegistryError(
            f"The schema registry at {connection.url} refused {asked}: HTTP"
            f" {response.status_code}, {reason}.",
            remedy="Check user name and password of schema_registry and their right to read"
            " schemas.",
        )

    def _checked(self, read: Callable[[], _T], asked: str) -> _T:
        try:
            return read()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unavailable(asked, "the answer is not that of a schema registry") from error

    def _unavailable(self, asked: str, reason: str) -> RegistryError:
        return RegistryError(
            f"The schema registry at {self._connection.url} did not give {asked}: {reason}.",
            remedy="Check that it runs, its address and its certificate, then try again; schemas"
            " that are stored in the warehouse are read without it.",
        )


def _no_auth(request: "requests.PreparedRequest") -> "requests.PreparedRequest":
    return request


def _texts(values: Iterable[object]) -> list[str]:
    return [str(value) for value in values]


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
    """What went wrong in few words: the innermost cause, without addresses of objects."""
    import requests

    if isinstance(error, requests.Timeout):
        return "no answer in time"
    text = str(error)
    cause = re.search(r"(\[Errno [^\]]*\] [^'\")]+|certificate verify failed[^'\")(]*)", text)
    return (cause.group(1) if cause else f"{type(error).__name__}: {text}"[:300]).strip(" .")


def _message(response: "requests.Response") -> str:
    try:
        body = response.json()
        return f"{body['message']} (error {body['error_code']})".strip(" .")
    except (ValueError, KeyError, TypeError):
        return str(response.reason or "no reason given")
