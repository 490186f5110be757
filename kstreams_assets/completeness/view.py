"""What completeness rules can name: one view for each topic and store that is backed up. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kstreams_assets.app.model import AppTopic, Store, TopicRole, TopicRoles
from kstreams_assets.completeness.recomputation import TopicFormat
from kstreams_assets.ktables.columns import KEY_PARTS
from kstreams_assets.ktables.ddl import SchemaField, parse_schema
from kstreams_assets.ktables.snapshot import TableStore
from kstreams_assets.ktables.store_format import BYTES, FRAMED, StoreFormat, StoreKind, format_of
from kstreams_assets.settings import ApplicationSettings

COMMON_COLUMNS: Final = (
    "_key",
    "_value",
    "_partition",
    "_offset",
    "_timestamp",
    "_timestamp_ms",
    "_window",
    "_headers",
    "_in_flight",
    "_decode_error",
)
"""Columns that every view has."""
BEFORE: Final = "@before"
"""Ends the name of a view that holds what there was at the point of the window before."""
STORE_PREFIX: Final = "store:"
"""May begin the name of a store, and must where a topic has the same name."""
_STRUCTURED: Final = frozenset(
    {StoreKind.SUPPRESS, StoreKind.JOIN_BUFFER, StoreKind.SUBSCRIPTION, StoreKind.OUTER_JOIN}
)


class ViewKind(StrEnum):
    """What a view is of: the records of a topic, or the newest row per key of a store."""

    TOPIC = "topic"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class View:
    """One view that rules can name.

    `topic` holds its records (of a store: what rebuilds it), `roles` are those of that topic.
    `format` says how keys and values are read. `columns` are all that it has: the common ones, key
    parts, and the fields of a struct value; None where a schema registry or the structure of a
    buffer tells them only when read.
    """

    name: str
    kind: ViewKind
    topic: str
    store: TableStore | None
    format: StoreFormat
    roles: TopicRoles
    columns: tuple[str, ...] | None

    @property
    def fields(self) -> tuple[SchemaField, ...]:
        """The fields of the value as they are declared; none where it is no JSON."""
        schema = self.format.value.schema
        return () if schema is None else parse_schema(schema)

    @property
    def has_before(self) -> bool:
        """Whether there is a view `<name>@before`: of stores, and where records can be in flight.

        Those are repartition topics and what the application both writes and reads.
        """
        return self.kind is ViewKind.STORE or self.is_transient or self.is_read_and_written

    @property
    def is_transient(self) -> bool:
        """Whether it shows only what is in flight: the application deletes the rest."""
        return self.kind is ViewKind.TOPIC and TopicRole.REPARTITION in self.roles

    @property
    def is_read_and_written(self) -> bool:
        """Whether the application both writes and reads the topic."""
        return {TopicRole.INPUT, TopicRole.OUTPUT} <= self.roles


def views_of(settings: ApplicationSettings) -> Mapping[str, View]:
    """The views by every name they may be called by, aliases included.

    A topic that only rebuilds a store is there as bytes. An internal topic may be named without
    the application id. Every store may be called `store:<name>`, one whose name a topic has (backed
    up or not) only so.
    """
    topics = [_of_topic(topic, settings.topic_formats) for topic in settings.topics]
    views = {view.name: view for view in topics}
    topic_names = {topic.name for topic in settings.application.topics}
    for store in settings.application.stores:
        view = _of_store(store, settings)
        if view is not None:
            views[f"{STORE_PREFIX}{store.name}"] = view
            if store.name not in topic_names:
                views[store.name] = view
    prefix = f"{settings.application_id}-"
    for topic, view in zip(settings.topics, topics, strict=True):
        if topic.is_internal and topic.name.startswith(prefix):
            views.setdefault(topic.name.removeprefix(prefix), view)
    return views


def value_columns(fields: Iterable[str], key_parts: Iterable[str] = ()) -> tuple[str, ...]:
    """The fields of a struct value that become columns of their own.

    A field named like a common column or a key part gives way (it is still in `_value`). Names are
    compared without case, as Spark compares them.
    """
    taken = {name.lower() for name in (*COMMON_COLUMNS, *key_parts)}
    return tuple(field for field in fields if field.lower() not in taken)


def key_parts_of(kind: StoreKind) -> tuple[str, ...]:
    """The columns that only views of this kind of store have, such as `window_start_ms`."""
    return tuple(name for name, _, _ in KEY_PARTS.get(kind, ()))


def _of_topic(topic: AppTopic, formats: Mapping[str, TopicFormat]) -> View:
    said = formats.get(topic.name, TopicFormat(BYTES, BYTES))
    read = StoreFormat(key=said.key, value=said.value)
    return View(
        name=topic.name,
        kind=ViewKind.TOPIC,
        topic=topic.name,
        store=None,
        format=read,
        roles=topic.roles,
        columns=_columns(read),
    )


def _of_store(store: Store, settings: ApplicationSettings) -> View | None:
    """None for a store whose log is not backed up."""
    topic = next((topic for topic in settings.topics if topic.name == store.changelog), None)
    if topic is None:
        return None
    read = format_of(store.name, settings.store_formats)
    return View(
        name=store.name,
        kind=ViewKind.STORE,
        topic=topic.name,
        store=TableStore(
            store=store.name,
            topic=topic.name,
            format=read,
            is_global=store.is_global,
            is_changelog_only=topic.roles == {TopicRole.CHANGELOG},
        ),
        format=read,
        roles=topic.roles,
        columns=_columns(read),
    )


def _columns(read: StoreFormat) -> tuple[str, ...] | None:
    if read.kind in _STRUCTURED or read.value.encoding in FRAMED:
        return None
    parts = key_parts_of(read.kind)
    fields = () if read.value.schema is None else parse_schema(read.value.schema)
    return (*COMMON_COLUMNS, *parts, *value_columns((each.name for each in fields), parts))
