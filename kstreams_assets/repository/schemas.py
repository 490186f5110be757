"""The table `schemas`: copies from the registry, so that tables can be read without it."""

import logging
import time
from collections.abc import Collection, Iterable, Mapping

from kstreams_assets.app.store_format import Encoding
from kstreams_assets.errors import KStreamsAssetsError, SchemaNotFoundError
from kstreams_assets.kafka.registry import RegistryClient, RegistryConnection, RegistryEntry
from kstreams_assets.model.schemas import ReferencedSchema, RegisteredSchema, StoredSchema
from kstreams_assets.model.tables import SCHEMAS
from kstreams_assets.repository.table import ApplicationTable

_KINDS = {"AVRO": Encoding.AVRO, "PROTOBUF": Encoding.PROTOBUF}
_log = logging.getLogger(__name__)


class SchemasTable(ApplicationTable[StoredSchema], spec=SCHEMAS):
    """The schemas of one application; a stored schema never changes."""

    def all(self) -> dict[int, RegisteredSchema]:
        """All of them by their ids; sends no request to a registry."""
        rows = self._table.rows()
        # Two processes may have stored a schema at once; then the earlier row counts.
        rows.sort(key=lambda row: (row.schema.id, -row.saved_at_ms))
        return {row.schema.id: row.schema for row in rows}

    def add(self, schemas: Iterable[RegisteredSchema]) -> None:
        """Store schemas, in one commit."""
        saved_at_ms = int(time.time() * 1000)
        rows = [StoredSchema(self._application_id, schema, saved_at_ms) for schema in schemas]
        if rows:
            self._table.append(rows)

    def save(
        self, registry: RegistryConnection | None, *, ids: Collection[int] = ()
    ) -> tuple[int, ...]:
        """Copy every schema of a registry that is not stored yet; return the new ids.

        `ids` are ids seen in data; those that the registry does not list are requested separately.
        Does nothing without a registry. JSON schemas are omitted. Schemas read before an error are
        stored.

        Raises:
            KStreamsAssetsError: The registry did not answer or refused.
            SecretNotFoundError: User name or password are not available.
        """
        if registry is None:
            return ()
        known = self.all()
        found: dict[int, RegisteredSchema] = {}
        with RegistryClient(registry) as client:
            copier = _Copier(client, known, found)
            try:
                for entry in client.entries():
                    copier.take(entry)
                for schema_id in sorted(set(ids) - known.keys() - found.keys()):
                    copier.take_by_id(schema_id)
            finally:
                self.add(found.values())
        return tuple(sorted(found))

    def try_to_save(self, registry: RegistryConnection | None) -> bool:
        """Like `save`, but log failures as warnings; return whether it succeeded."""
        try:
            self.save(registry)
        except KStreamsAssetsError as error:
            _log.warning("Schemas of %s are not all stored: %s", self._application_id, error)
            return False
        return True


class _Copier:
    """Copy schemas from the registry, with all their references."""

    def __init__(
        self,
        client: RegistryClient,
        known: Mapping[int, RegisteredSchema],
        found: dict[int, RegisteredSchema],
    ) -> None:
        self._client = client
        self._known = known
        self._found = found
        self._versions: dict[tuple[str, int], RegistryEntry] = {}

    def take(self, entry: RegistryEntry) -> None:
        stored = self._known.get(entry.id)
        if stored is not None and stored.text != entry.text:
            _log.warning(
                "The text of stored schema %d differs from the registry's: was the registry"
                " replaced? The stored one stays in use.",
                entry.id,
            )
        kind = _KINDS.get(entry.kind)
        if kind is None or entry.id in self._known or entry.id in self._found:
            return
        references: dict[str, ReferencedSchema] = {}
        try:
            self._resolve(entry, references)
        except SchemaNotFoundError as error:
            _log.warning(
                "Schema %d is not stored, it references a missing one: %s", entry.id, error
            )
            return
        self._found[entry.id] = RegisteredSchema(
            entry.id, kind, entry.text, tuple(references.values())
        )

    def take_by_id(self, schema_id: int) -> None:
        try:
            entry = self._client.entry(schema_id)
        except SchemaNotFoundError as error:
            _log.warning("%s", error)  # the rows report it, too
            return
        self.take(entry)

    def _resolve(self, entry: RegistryEntry, into: dict[str, ReferencedSchema]) -> None:
        """Add the references of an entry, each after its own references."""
        for reference in entry.references:
            if reference.name in into:
                continue
            key = (reference.subject, reference.version)
            if key not in self._versions:
                self._versions[key] = self._client.version(*key)
            found = self._versions[key]
            self._resolve(found, into)
            into[reference.name] = ReferencedSchema(reference.name, found.text)
