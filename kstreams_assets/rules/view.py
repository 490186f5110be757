"""The views of rules: one for each backed-up topic and store, with its columns. Pure."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kstreams_assets.app.model import AppTopic, Store, TopicRole, TopicRoles
from kstreams_assets.app.rules import Scope, TopicFormat
from kstreams_assets.app.store_columns import (
    COMMON_COLUMNS,
    COMMON_TYPES,
    KEY_PARTS,
    TYPES,
    SchemaField,
    key_parts_of,
    parse_schema,
    value_columns,
)
from kstreams_assets.app.store_format import BUFFERS, BYTES, FRAMED, Format, StoreFormat, format_of
from kstreams_assets.model.snapshot import TableStore
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import few

BEFORE: Final = "@before"
"""Suffix of the view with the state at the previous window's point."""
STORE_PREFIX: Final = "store:"
"""Optional prefix of the name of a store; required if a topic has the same name."""


class ViewKind(StrEnum):
    """The rows of a view: the records of a topic, or the newest row per key of a store."""

    TOPIC = "topic"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class View:
    """One view that rules can name.

    `topic` contains its records (for a store: its changelog), `roles` are those of that topic.
    `format` is the format of keys and values. `columns` are all its columns: the common ones, key
    parts, and the fields of a struct value. They are None if they are only known at reading, from a
    schema registry or the structure of a buffer.
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
        """The declared fields of the value; none for formats other than JSON."""
        schema = self.format.value.schema
        return () if schema is None else parse_schema(schema)

    @property
    def has_before(self) -> bool:
        """Whether there is a view `<name>@before`: for stores, and if records can be in flight.

        The latter are repartition topics, and topics that the application both writes and reads.
        """
        return self.kind is ViewKind.STORE or self.is_transient or self.is_read_and_written

    @property
    def is_transient(self) -> bool:
        """Whether it shows only records in flight, because the application deletes the others."""
        return self.kind is ViewKind.TOPIC and self.roles.is_repartition

    @property
    def is_read_and_written(self) -> bool:
        """Whether the application both writes and reads the topic."""
        return {TopicRole.INPUT, TopicRole.OUTPUT} <= self.roles


def views_of(settings: ApplicationSettings) -> Mapping[str, View]:
    """The views by all their names, including aliases.

    A topic that only rebuilds a store appears as bytes. Internal topics may be named without the
    application id. Every store may be called `store:<name>`; if a topic has the same name (backed
    up or not), this is its only name.
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
    if read.kind in BUFFERS or read.value.encoding in FRAMED:
        return None
    parts = key_parts_of(read.kind)
    fields = () if read.value.schema is None else parse_schema(read.value.schema)
    return (*COMMON_COLUMNS, *parts, *value_columns((each.name for each in fields), parts))


NUMBERS: Final = frozenset(
    {"tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "decimal"}
    | {"dec", "numeric", "float", "real", "double"}
)
FRACTIONS: Final = frozenset({"float", "real", "double"})
"""Types whose sums depend on the order of the records."""
RELATIVE_TOLERANCE: Final = "1e-9"
"""Tolerated difference of such sums."""


class MissingColumnError(LookupError):
    """A view, or a struct in it, does not have this column; `available` are the existing ones."""

    def __init__(self, name: str, available: Iterable[str]) -> None:
        self.name = name
        self.available = tuple(available)
        super().__init__(f"no column {name!r}: there are {', '.join(self.available)}")

    @property
    def hint(self) -> str:
        """` (there are: a, b)`; empty if there are none."""
        return f" (there are: {', '.join(self.available)})" if self.available else ""


def column_type(view: View, path: Sequence[str]) -> str | None:
    """The type of a column, or of a field in it, in lower case without parameters (`decimal`).

    None if it is only known at reading (Avro, Protobuf, buffers, inside arrays and maps).

    Raises:
        MissingColumnError: The column is known not to exist.
    """
    if view.columns is None:
        return None
    first = path[0].lower()
    known = {name.lower() for name in view.columns}
    if first not in known:
        raise MissingColumnError(path[0], view.columns)
    if first == "_key":
        return _of_format(view.format.key, path)
    if first == "_value":
        return _of_format(view.format.value, path)
    if first in COMMON_TYPES:
        return COMMON_TYPES[first] if len(path) == 1 or first == "_headers" else _scalar(path)
    parts = {name: type_ for name, type_, _ in KEY_PARTS.get(view.format.kind, ())}
    if first in key_parts_of(view.format.kind):
        return parts[first]
    return _in_fields(view.fields, path)


def _of_format(declared: Format, path: Sequence[str]) -> str | None:
    if declared.encoding in FRAMED:
        return None
    if len(path) == 1:
        return TYPES[declared.encoding]
    if declared.schema is None:
        return _scalar(path)
    return _in_fields(parse_schema(declared.schema), path[1:])


def _in_fields(fields: Sequence[SchemaField], path: Sequence[str]) -> str | None:
    found = next((each for each in fields if each.name.lower() == path[0].lower()), None)
    if found is None:
        raise MissingColumnError(path[0], (each.name for each in fields))
    if found.fields and len(path) > 1:
        return _in_fields(found.fields, path[1:])
    plain = found.type.lower().partition("(")[0].partition("<")[0]
    if len(path) == 1:
        return plain
    # Below an array or a map the path continues; below a number it does not.
    return None if plain in ("array", "map") else _scalar(path)


def _scalar(path: Sequence[str]) -> str | None:
    raise MissingColumnError(".".join(path[1:]), ())


_SHOWN: Final = 30


class RuleTextError(ValueError):
    """An invalid text of a rule; the reader of the YAML adds the names of rule and file.

    `line` is a line of the text (from 1), None if no single line is wrong.
    """

    def __init__(self, problem: str, *, remedy: str, line: int | None = None) -> None:
        super().__init__(f"{problem}. {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.line = line


@dataclass(frozen=True, slots=True)
class NamedView:
    """A view with the name in a rule; `name` may be an alias and may end with `@before`."""

    name: str
    view: View


@dataclass(frozen=True, slots=True)
class KnownViews:
    """The views that rules of an application can name.

    `without_backup` has the reasons why topics and stores are not backed up.
    """

    views: Mapping[str, View]
    without_backup: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: ApplicationSettings) -> "KnownViews":
        """The views of an application."""
        views = views_of(settings)
        backed_up = {topic.name for topic in settings.topics}
        without = {
            topic.name: "the topic is excluded from the backup"
            for topic in settings.application.topics
            if topic.name not in backed_up
        }
        prefix = f"{settings.application_id}-"
        for topic in settings.application.topics:
            if topic.is_internal and topic.name in without:
                without.setdefault(topic.name.removeprefix(prefix), without[topic.name])
        for store in settings.application.stores:
            if store.changelog not in backed_up:
                why = (
                    "the store has no changelog"
                    if store.changelog is None
                    else f"its changelog {store.changelog} is excluded from the backup"
                )
                for name in (store.name, f"{STORE_PREFIX}{store.name}"):
                    without.setdefault(name, why)
        return cls(views, without)

    def find(self, name: str, scope: Scope) -> NamedView | None:
        """The view of this name; None if there is none.

        Names are compared without case, as in Spark, unless two would match.

        Raises:
            RuleTextError: It is not backed up, or has no `@before` view.
        """
        plain = name.removesuffix(BEFORE)
        found = self._spelling(plain)
        if found is None:
            if plain in self.without_backup:
                raise RuleTextError(
                    f"{plain!r} is not backed up: {self.without_backup[plain]}",
                    remedy="Back it up (mode, include and exclude), or remove it from the rule.",
                )
            return None
        if plain == name:
            return NamedView(found, self.views[found])
        return self._before(found, scope)

    def near(self, name: str) -> str:
        """The similar names, else all, as a part of a message."""
        plain = name.removesuffix(BEFORE)
        shown = sorted(known for known in self.views if not self._is_second_name(known))
        near = difflib.get_close_matches(plain, shown, n=3, cutoff=0.5)
        if near:
            return f"near: {', '.join(near)}"
        return f"there are: {few(shown, _SHOWN)}"

    def _is_second_name(self, name: str) -> bool:
        """Whether it is `store:<name>` although `<name>` is enough."""
        short = name.removeprefix(STORE_PREFIX)
        return short != name and self.views.get(short) is self.views[name]

    def _spelling(self, name: str) -> str | None:
        if name in self.views:
            return name
        alike = [known for known in self.views if known.lower() == name.lower()]
        return alike[0] if len(alike) == 1 else None

    def _before(self, name: str, scope: Scope) -> NamedView:
        view = self.views[name]
        if scope is not Scope.WINDOW:
            raise RuleTextError(
                f"{name}{BEFORE} exists only in rules with scope: window",
                remedy="Set scope: window, or remove @before.",
            )
        if not view.has_before:
            raise RuleTextError(
                f"there is no {name}{BEFORE}: in a rule with scope: window {name} contains only new"
                " records",
                remedy="Only stores, repartition topics and topics that the application both"
                " writes and reads have one.",
            )
        return NamedView(f"{name}{BEFORE}", view)
