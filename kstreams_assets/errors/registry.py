"""The schema registry, and values that its schemas do not read."""

from kstreams_assets.errors.ktables import KTableError


class RegistryError(KTableError):
    """A schema registry did not give what was asked of it."""


class RegistryUnavailableError(RegistryError):
    """The registry did not answer, or not as a registry does; `url` is without credentials."""

    def __init__(self, *, url: str, asked: str, reason: str) -> None:
        super().__init__(
            f"The schema registry at {url} did not give {asked}: {reason}.",
            remedy="Check that it runs, its address and its certificate, then try again; schemas"
            " that are stored in the warehouse are read without it.",
        )
        self.url = url
        self.asked = asked
        self.reason = reason


class RegistryRefusedError(RegistryError):
    """The registry answered no: wrong credentials, a missing right, or another refusal."""

    def __init__(self, *, url: str, asked: str, status: int, reason: str) -> None:
        super().__init__(
            f"The schema registry at {url} refused {asked}: HTTP {status}, {reason}.",
            remedy="Check user name and password of schema_registry and their right to read"
            " schemas.",
        )
        self.url = url
        self.asked = asked
        self.status = status
        self.reason = reason


class SchemaNotFoundError(RegistryError):
    """The registry has no such schema, subject or version."""

    def __init__(self, *, url: str, asked: str, reason: str) -> None:
        super().__init__(
            f"The schema registry at {url} has no {asked}: {reason}.",
            remedy="Check that schema_registry.url is the registry that the application writes"
            " with, and that nobody deleted the schema for good.",
        )
        self.url = url
        self.asked = asked
        self.reason = reason


class SchemaUnusableError(RegistryError):
    """The text of a schema cannot be read, so its records stay bytes."""

    def __init__(self, *, schema_id: int, kind: str, reason: str) -> None:
        super().__init__(
            f"Schema {schema_id} ({kind}) cannot be used: {reason}.",
            remedy="The records are kept as bytes; check the schema and its references in the"
            " registry.",
        )
        self.schema_id = schema_id
        self.kind = kind
        self.reason = reason
