"""The page of the YAML: every model that the component reaches, with its fields."""

import enum
import inspect
import types
import typing
from collections.abc import Iterator, Mapping

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kstreams_assets.app.store_columns import KEY_PARTS, TYPES
from kstreams_assets.app.store_format import Encoding, Format, StoreKind
from kstreams_assets.app_file.model import ApplicationModel
from kstreams_assets.block import keys_of
from kstreams_assets.secret import Secret
from scripts.reference.markdown import row, table

_KINDS = {
    StoreKind.KEY_VALUE: "Key-value stores, `table()`, `count()`, global tables.",
    StoreKind.WINDOW: "Windowed aggregations. Give `window_size_ms`; with `retention_ms` rows"
    " expire as in the store.",
    StoreKind.JOIN_WINDOW: "Buffers of stream-stream joins: duplicates are kept.",
    StoreKind.SESSION: "Session windows. `retention_ms` as above.",
    StoreKind.VERSIONED: "Versioned stores (KIP-889): one row for each key and begin of validity;"
    " `retention_ms` is the history retention.",
    StoreKind.SUPPRESS: "Buffer of `suppress`: its structure is decoded.",
    StoreKind.JOIN_BUFFER: "Buffer of a join with a grace period: its structure is decoded.",
    StoreKind.SUBSCRIPTION: "Subscriptions of a foreign-key join: their structure is decoded.",
    StoreKind.OUTER_JOIN: "Records of an outer join that wait for their match: their structure is"
    " decoded.",
}
_FORMATS = {
    Encoding.BYTES: "As they are; what is taken when nothing is declared.",
    Encoding.STRING: "UTF-8.",
    Encoding.LONG: "8 bytes, big-endian, as Kafka's serializer; so all numbers.",
    Encoding.INT: "4 bytes.",
    Encoding.SHORT: "2 bytes.",
    Encoding.DOUBLE: "8 bytes.",
    Encoding.FLOAT: "4 bytes.",
    Encoding.UUID: "Text of 36 characters, as Kafka's serializer.",
    Encoding.JSON: 'With `schema`, as in `{format: json, schema: "count BIGINT, id STRING"}`.',
    Encoding.AVRO: "Confluent framing; needs `schema_registry` once, then the saved schemas.",
    Encoding.PROTOBUF: "The same.",
}


def yaml_lines() -> Iterator[str]:
    """The YAML: every model that the component reaches, with its fields."""
    component = "kstreams_assets.components.KafkaStreamsAppComponent"
    yield f"A file `defs.yaml` has `type: {component}` and"
    yield "`attributes` with the keys below. Unknown keys are errors. `{{ env('NAME') }}` and"
    yield "`{{ env('NAME', 'default') }}` take a value from the environment; secrets have a form"
    yield "of their own ([`env`, `file` or `aws`](#secrets)), so that they are never in the"
    yield "configuration."
    yield ""
    yield "## attributes"
    yield ""
    yield from _model_lines(ApplicationModel, "")
    yield ""
    yield "## Secrets"
    yield ""
    yield "A secret is named by the place that holds it. Give one of these keys:"
    yield ""
    yield from _model_lines(Secret, "secret.")
    yield ""
    yield "## Formats of keys and values"
    yield ""
    yield "Bytes that do not fit give a row with `decode_error` and null in the decoded column."
    yield ""
    yield from table(
        ("format", "decoded type", "what"),
        ((f"`{one}`", f"`{TYPES[one]}`", _FORMATS[one]) for one in Encoding),
    )
    yield ""
    yield "## Kinds of stores"
    yield ""
    yield from table(
        ("kind", "columns of its own", "what"),
        ((f"`{kind}`", _own_columns(kind), _KINDS[kind]) for kind in StoreKind),
    )


def _own_columns(kind: StoreKind) -> str:
    return ", ".join(f"`{name}`" for name, _, _ in KEY_PARTS.get(kind, ()))


_CONNECTIONS: Mapping[str, str] = {
    "connection": "How to reach the cluster.",
    "targets.NAME.connection": "The cluster, in the form of [connection](#connection). Without it,"
    " a throwaway cluster on this machine.",
    "restore.target": "Default target of restores: the name of one of `targets`, or a cluster in"
    " the form of [connection](#connection), which becomes the target `default`. Without it, the"
    " default is the only one of `targets`.",
    "schema_registry": "Where the schemas of Avro and Protobuf are (Confluent's REST interface).",
}


def _model_lines(model: type[BaseModel], path: str) -> Iterator[str]:
    yield row("key", "type", "default", "what")
    yield row("---", "---", "---", "---")
    nested: list[tuple[str, type[BaseModel]]] = []
    for name, field in keys_of(model).items():
        annotation = field.annotation
        models = list(_models(annotation))
        text = field.description or " Or: ".join(_first_sentence(found) for found in models)
        text = _CONNECTIONS.get(f"{path}{name}", text)
        if path and f"{path}{name}" in _CONNECTIONS:
            models = []  # told under `connection`
        yield row(f"`{name}`", _type(annotation), _default(field), text)
        inner = f"{path}{name}{_item_path(annotation)}"
        nested += [(inner, found) for found in models if found is not Secret]
    for inner, found in nested:
        yield ""
        yield f"## {inner}{_variant(found)}"
        yield ""
        if (text := _first_sentence(found)) != "":
            yield text
            yield ""
        yield from _model_lines(found, f"{inner}.")


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """The models inside a type."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models(inner)


def _item_path(annotation: object) -> str:
    return ".NAME" if typing.get_origin(annotation) is dict and any(_models(annotation)) else ""


def _variant(model: type[BaseModel]) -> str:
    """Which mechanisms a block is for, where several blocks share one key."""
    mechanism = model.model_fields.get("mechanism")
    if mechanism is None:
        return ""
    return f" ({', '.join(str(m) for m in typing.get_args(mechanism.annotation))})"


def _first_sentence(model: type[BaseModel]) -> str:
    text = inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0]
    return " ".join(text.split())


_PLAIN_TYPES = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    Format: "text or mapping",
}


def _type(annotation: object) -> str:
    if annotation in _PLAIN_TYPES:
        return _PLAIN_TYPES[typing.cast(type, annotation)]
    if annotation is Secret:
        return "[secret](#secrets)"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (list, tuple):
        inner = _type(arguments[0])
        return "list of " + ("texts" if inner == "text" else inner)
    if origin is not None and inspect.isclass(origin) and issubclass(origin, Mapping):
        if arguments[1] is typing.Any or any(_models(arguments[1])):
            return "mapping"
        return f"mapping to {_type(arguments[1])}"
    if origin in (typing.Union, types.UnionType):
        texts = [_type(inner) for inner in arguments if inner is not type(None)]
        return " or ".join(dict.fromkeys(texts))
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        return ", ".join(f"`{member.value}`" for member in annotation)
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "block"
    raise TypeError(f"No text for the type {annotation!r}.")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if value is None or value == "" or (isinstance(value, list | tuple | dict) and not value):
        return ""
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, enum.Enum):
        value = value.value
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"
