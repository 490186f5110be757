"""The block `stores` of the YAML: what rebuilds a store, and how it is read as a table."""

from collections.abc import Mapping
from typing import Any, Final

import dagster as dg
from pydantic import Field

from kstreams_assets.app.declarations import StoreDeclaration, require_known
from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.app.store_columns import parse_schema
from kstreams_assets.app.store_format import (
    FRAMED,
    Format,
    StoreFormat,
    StoreKind,
    kind_by_name,
)
from kstreams_assets.components.completeness_models import RecomputeModel
from kstreams_assets.components.format_models import read_format
from kstreams_assets.errors import ConfigurationError

_HAVE_WINDOWED_KEYS: Final = (StoreKind.SUPPRESS, StoreKind.JOIN_BUFFER)
_WINDOWED_KEYS: Final = (StoreKind.KEY_VALUE, StoreKind.WINDOW, StoreKind.SESSION)


class StoreModel(dg.Resolvable, dg.Model):
    """What is said about one state store.

    At most one of `changelog`, `source_topic` and `logging_disabled`; without one the store's
    changelog is found by rule. `key` and `value` are `string`, `long`, `int`, `short`, `double`,
    `float`, `uuid`, `bytes`, `avro`, `protobuf`, or `{format: json, schema: "a BIGINT, b STRING"}`.
    """

    changelog: str | None = Field(default=None, description="Changelog topic of the store.")
    source_topic: str | None = Field(
        default=None, description="Source topic that serves as changelog (topology.optimization)."
    )
    logging_disabled: bool = Field(default=False, description="The store has no changelog.")
    kind: StoreKind | None = Field(
        default=None,
        description="Kind of the store; without it key_value, or what a generated name tells.",
    )
    key: str | dict[str, Any] | None = Field(
        default=None,
        description="Format of the key (without windows); of a foreign-key subscription that of"
        " the primary key.",
        examples=["string", {"format": "json", "schema": "id BIGINT"}],
    )
    value: str | dict[str, Any] | None = Field(
        default=None,
        description="Format of the value; of a foreign-key subscription that of the foreign key.",
        examples=["long", {"format": "json", "schema": "count BIGINT, total DOUBLE"}],
    )
    window_size_ms: int | None = Field(
        default=None, description="Length of the windows; it is not in the changelog."
    )
    retention_ms: int | None = Field(
        default=None,
        description="Retention of windows and sessions, history retention of versions; without it"
        " nothing expires in the table.",
    )
    windowed_keys: StoreKind | None = Field(
        default=None,
        description="Of a suppress or join buffer: window or session if its keys are windowed.",
    )
    lineage: dict[str, list[str]] = Field(
        default={},
        description="Which topic.field each field of the value is computed from; an empty name is"
        " the whole value.",
        examples=[{"total": ["orders.amount"]}],
    )
    ktable: bool = Field(default=True, description="Whether tables are made of the store.")
    recompute: RecomputeModel | None = Field(
        default=None, description="How a store of counts or sums follows from an input."
    )

    def declaration(self, store: str) -> StoreDeclaration | None:
        """What rebuilds the store, None if the rules are to find it; raises ConfigurationError."""
        if self == StoreModel():
            raise ConfigurationError(
                f"Nothing is said about store {store!r}.",
                remedy="Give its key and value, or what rebuilds it, or leave it out of stores.",
            )
        if self.changelog is None and self.source_topic is None and not self.logging_disabled:
            return None
        try:
            return StoreDeclaration(
                changelog=self.changelog,
                source_topic=self.source_topic,
                logging_disabled=self.logging_disabled,
            )
        except ConfigurationError as error:
            raise ConfigurationError(
                f"Store {store!r}: {error.problem}", remedy="Give at most one of the three."
            ) from error

    @property
    def says_how_to_read(self) -> bool:
        """Whether anything is said about how the store is read."""
        rebuilt = StoreModel(
            changelog=self.changelog,
            source_topic=self.source_topic,
            logging_disabled=self.logging_disabled,
            ktable=self.ktable,
            recompute=self.recompute,
        )
        return self != rebuilt

    def format(self, store: str) -> StoreFormat:
        """How the store is read; raises ConfigurationError, which names the store."""
        self._check_windowed_keys(store)
        value = read_format(f"the value of store {store!r}", self.value)
        self._check_lineage(store, value)
        try:
            return StoreFormat(
                kind=self.kind or kind_by_name(store) or StoreKind.KEY_VALUE,
                key=read_format(f"the key of store {store!r}", self.key),
                value=value,
                window_size_ms=self.window_size_ms,
                retention_ms=self.retention_ms,
                windowed_keys=self.windowed_keys or StoreKind.KEY_VALUE,
                lineage=tuple((name, tuple(said)) for name, said in sorted(self.lineage.items())),
            )
        except ConfigurationError as error:
            raise ConfigurationError(
                f"Store {store!r}: {error.problem}", remedy=error.remedy
            ) from error

    def _check_windowed_keys(self, store: str) -> None:
        kind = self.kind or kind_by_name(store)
        if self.windowed_keys is None:
            return
        if kind not in _HAVE_WINDOWED_KEYS:
            raise ConfigurationError(
                f"Store {store!r} has windowed_keys, and is of kind {kind or 'key_value'}.",
                remedy="Only suppress and join_buffer have them; of other stores give the kind.",
            )
        if self.windowed_keys not in _WINDOWED_KEYS:
            raise ConfigurationError(
                f"Store {store!r}: windowed_keys is {self.windowed_keys}.",
                remedy=f"Give one of {', '.join(_WINDOWED_KEYS)}.",
            )

    def _check_lineage(self, store: str, value: Format) -> None:
        """Fields exist as far as the format tells; topics are looked up with the application."""
        if value.encoding not in FRAMED:
            fields = {""}
            if value.schema is not None:
                fields |= {path for each in parse_schema(value.schema) for path in each.paths()}
            where = f"the value of store {store!r}"
            require_known("lineage field", self.lineage.keys(), fields, where)
        for name, sources in self.lineage.items():
            bad = [source for source in sources if not source.strip(".")]
            if bad or not sources:
                raise ConfigurationError(
                    f"Store {store!r}: the lineage of {name!r} is {sources}.",
                    remedy="Give a list of topic.field.",
                )


def store_formats(stores: Mapping[str, StoreModel]) -> dict[str, StoreFormat]:
    """How stores are read, for those of which it is said; raises ConfigurationError."""
    return {name: model.format(name) for name, model in stores.items() if model.says_how_to_read}


def require_stores(stores: Mapping[str, StoreModel], application: StreamsApplication) -> None:
    """Raise ConfigurationError for the first store that the application does not have."""
    known = {store.name for store in application.stores}
    require_known("store", stores.keys(), known, f"application {application.application_id}")
