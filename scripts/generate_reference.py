"""Writes docs/reference from the code: `python -m scripts.generate_reference [--check]`.

Names, types, defaults and commands come from the code. What a column or a gap cause means is said
here, once for each; a column without a text, or a text without a column, is an error.
"""

import enum
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import pyarrow as pa
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kstreams_assets.backup import facts, ledger
from kstreams_assets.backup.coverage import POINT_CHECKS
from kstreams_assets.backup.plan import LOSSES, GapCause
from kstreams_assets.backup.point_judge import Restores
from kstreams_assets.backup.verdicts import CHANGELOG_CHECKS, CHECKS
from kstreams_assets.cli.main import cli
from kstreams_assets.components import KafkaStreamsAppComponent
from kstreams_assets.components.models import WrongRegistry
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.secret import Secret
from kstreams_assets.ktables import schemas, snapshots_table
from kstreams_assets.ktables.checks import KTABLE_CHECKS
from kstreams_assets.ktables.columns import KEY_PARTS, POSITION, RAW, TYPES
from kstreams_assets.ktables.store_format import Encoding, StoreKind
from kstreams_assets.recovery import saved_records
from kstreams_assets.recovery import table as recovery_points
from kstreams_assets.restore import offset_maps_table, restores_table
from kstreams_assets.restore.checks import GROUP_OFFSETS_CHECKS, RESTORE_CHECKS
from kstreams_assets.warehouse.layout import LAYOUT_PROPERTY, LAYOUT_VERSION, Warehouse
from spark_resources.records_table import RECORD_COLUMNS

CHECKOUT = Path(__file__).resolve().parents[1]
FOLDER = CHECKOUT / "docs" / "reference"
GENERATED = "<!-- Written by `python -m scripts.generate_reference`; do not edit. -->"

Columns = Mapping[str, tuple[str, str]]
"""Name -> type and text of a column."""

_COMMON = {
    "application_id": "The application.",
    "window": "Key of the window, as in Dagster.",
    "window_start_ms": "Begin of the window, epoch milliseconds.",
    "window_end_ms": "Exclusive end of the window, epoch milliseconds.",
    "topic": "Topic.",
    "partition": "Partition of the topic.",
    "topic_id": "Id that Kafka gave the topic; a recreated topic has another one.",
}
_RECORDS = {
    "window": _COMMON["window"],
    "topic": _COMMON["topic"],
    "partition": _COMMON["partition"],
    "offset": "Offset in Kafka.",
    "timestamp_ms": "Epoch milliseconds exactly as Kafka stored it; 0 and -1 are kept.",
    "timestamp_type": "0 CreateTime, 1 LogAppendTime.",
    "headers": "In order; duplicate keys and null values are kept.",
    "key": "Raw bytes; null and empty are told apart.",
    "value": "Raw bytes; null is a tombstone.",
}
_RECOVERY_POINTS = {
    "application_id": _COMMON["application_id"],
    "id": "Sorts by the time the point was taken.",
    "cluster_id": "Id of the Kafka cluster.",
    "taken_at_ms": "When it was taken, epoch milliseconds.",
    "closes_window_end_ms": "Set on a point taken late, for a window that closed without one:"
    " exclusive end of that window.",
    "method": "How it was taken.",
    "guarantee": "What it was taken with: see [concepts](../concepts.md#recovery-point).",
    "sealed": "Whether its changelogs are safe from compaction.",
    "reason": "Why it has this guarantee and no better one.",
    "took_ms": "How long it took.",
    "attempts": "Number of cuts that were tried.",
    "in_flight": "Records of repartition topics that belong to it and were not yet processed.",
    "unsealed_because": "Why it is not sealed; empty when it is.",
    "absent_topics": "Topics that earlier points knew and that were not on the cluster.",
    "partitions": "Of each partition: log start offset and exclusive `end`; ranges `excluded` from"
    " it; `saved_from`: its records from there on are in `recovery_point_records`, under this id or"
    " earlier ones.",
    "group_offsets": "Committed offsets of the group, with metadata unchanged.",
}
_SAVED_RECORDS = {
    "application_id": _COMMON["application_id"],
    "recovery_point_id": "The point that saved the record; later ones refer to it by offset.",
    "topic": _RECORDS["topic"],
    "topic_id": _COMMON["topic_id"],
    **{name: _RECORDS[name] for name in ("partition", "offset", "timestamp_ms", "timestamp_type")},
    **{name: _RECORDS[name] for name in ("headers", "key", "value")},
}
_WINDOWS = {
    **_COMMON,
    "partition": "Partition; -1 in the one row of a topic that no recovery point knew yet.",
    "start": "First offset of the span.",
    "end": "Exclusive end of the span.",
    "read_start": "First offset that was read; what lies before it is told in `gaps`.",
    "continues": "Whether the span begins where the window before it ends.",
    "log_start": "Log start offset when the span was planned.",
    "records": "Records stored.",
    "bytes": "Uncompressed keys, values and headers in Parquet's plain encoding.",
    "stored_bytes": "Size of the span's files.",
    "files": "Number of the span's files.",
    "tombstones": "Records with a null value.",
    "null_keys": "Records with a null key.",
    "odd_timestamps": "Records with a timestamp of 0 or below.",
    "first_offset": "Smallest offset stored; null without records.",
    "last_offset": "Largest offset stored; null without records.",
    "min_timestamp_ms": "Smallest timestamp stored.",
    "max_timestamp_ms": "Largest timestamp stored.",
    "gaps": "Offsets without a record: cause, range, number (see [checks](checks.md)).",
    "first_hole": "Changelogs: lowest offset that the log did not hold any more after the span was"
    " read (compaction, retention); null: contiguous.",
    "contiguity_known": "Whether that was looked at: changelogs only.",
    "recovery_point_id": "The recovery point that ends the window.",
    "delta_version": "Version of the records table that holds the span.",
    "run_id": "Dagster run, or `cli-...`.",
    "recorded_at_ms": "When the row was written, epoch milliseconds.",
}
_TOPICS = {
    **{name: _COMMON[name] for name in ("application_id", "window", "window_end_ms", "topic")},
    "topic_id": _COMMON["topic_id"],
    "role": "Roles, joined with `+`.",
    "partitions": "Number of partitions.",
    "replication_factor": "Smallest number of replicas of a partition.",
    "configs": "Settings made on the topic itself, not the broker's defaults.",
}
_RESTORES_TABLE = {
    "application_id": _COMMON["application_id"],
    "restore_id": "The same for the same point, mode, names and target.",
    "change": "Number of the change; the highest one is how the restore stands.",
    "state": "`planned`, `produced`, `verified`, `failed_verification`, `committed`,"
    " `rolled_back`, `finished`.",
    "changed_at_ms": "When it came into this state, epoch milliseconds.",
    "created_at_ms": "When it was begun, epoch milliseconds.",
    "run_id": "Dagster run, or `cli-...`.",
    "point_id": "The recovery point.",
    "group": "Consumer group on the target, its application id.",
    "target_cluster_id": "Id of the target cluster.",
    "target_bootstrap_servers": "Where it was.",
    "mode": "`state`, `rebuild` or `inputs_until`.",
    "request": "What was asked for, as JSON.",
    "topics": "Names, id on the target, ends there before the first restored record, number of"
    " records, configs that `finish` puts back.",
    "former_offsets": "What the group had committed on the target before; null before the commit.",
    "committed": "What was committed, in the target's offsets; null before the commit.",
    "to_commit": "What is to be committed once the restore is verified, in the target's offsets.",
    "verified_records": "Records that were read back and compared.",
    "problem": "What went wrong, empty when nothing did.",
}
_OFFSET_MAPS = {
    "application_id": _COMMON["application_id"],
    "restore_id": "The restore.",
    "topic": "Source topic.",
    "partition": "Source partition.",
    "target_topic": "Topic on the target.",
    "target_partition": "Partition on the target.",
    "source_start": "First source offset of the run; null in the row that tells the end.",
    "target_start": "Its target offset; in the row that tells the end, the target's end.",
    "length": "Records with consecutive offsets on both sides; 0 in the row that tells the end.",
}
_KTABLE_SNAPSHOTS = {
    **{name: _COMMON[name] for name in ("application_id", "window", "topic")},
    **{name: _COMMON[name] for name in ("window_start_ms", "window_end_ms")},
    "store": "State store.",
    "point_id": "The recovery point whose state it is.",
    "taken_at_ms": "When that point was taken, epoch milliseconds.",
    "proved": "Whether it is exactly the store's content at the point.",
    "reason": "Why it is, or why that cannot be proved.",
    "base_window": "Window of the earlier snapshot that it builds on; null: made from the begin of"
    " the log.",
    "fingerprint": "The same for formats that give the same rows.",
    "partitions": "Of each partition: where in the log it stands, rows, bytes, the time on which"
    " retention is counted.",
    "records": "Records read to make it.",
    "problem_rows": "Rows that could not be decoded.",
    "problems": "The first of them.",
    "delta_version": "Version of the table that holds it.",
    "took_ms": "How long it took.",
    "run_id": "Dagster run, or `cli-...`.",
    "recorded_at_ms": "When the row was written; the newest one of a store and window counts.",
}
_SCHEMAS = {
    "application_id": _COMMON["application_id"],
    "id": "Id in the registry, as it stands in the records.",
    "kind": "`avro` or `protobuf`.",
    "text": "The schema.",
    "references": "Schemas that it refers to, by name.",
    "saved_at_ms": "When it was copied, epoch milliseconds.",
}
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
_GAPS = {
    GapCause.TRANSACTION_MARKER: "Commit and abort markers take an offset each.",
    GapCause.ABORTED: "Records of aborted transactions.",
    GapCause.COMPACTED: "The raw log no longer holds them: compaction removed them, because a later"
    " record of the same key superseded them.",
    GapCause.PURGED: "Repartition records below the committed offset: processed; Kafka Streams"
    " deletes them itself.",
    GapCause.RETENTION: "The log start offset has passed them: retention, or DeleteRecords.",
    GapCause.TOPIC_RECREATED: "They belonged to an earlier topic of the same name.",
    GapCause.TOPIC_DELETED: "The topic is gone.",
    GapCause.UNEXPLAINED: "Kafka shows committed records that the backup does not hold.",
}

_RESTORES = {
    Restores.EXACT: "State, records in flight and offsets of exactly the same committed"
    " transactions.",
    Restores.AT_LEAST_ONCE: "Nothing is lost; up to one commit interval may be processed twice.",
    Restores.UNPROVEN: "Covered, but compaction may have removed changelog records of the point"
    " before they were read, and the point is not sealed.",
    Restores.NOTHING: "Not covered: offsets that it needs are not in the backups. The reason names"
    " them, and the windows to back up.",
}


def pages() -> dict[str, str]:
    """Every page of the reference, by file name."""
    return {
        "yaml.md": _page("YAML of an application", yaml_lines()),
        "cli.md": _page("Command line", cli_lines()),
        "tables.md": _page("Tables", table_lines()),
        "checks.md": _page("Checks", check_lines()),
    }


def stale_pages(folder: Path = FOLDER) -> list[str]:
    """Names of the pages whose file is missing or says something else than the code."""
    return [
        name
        for name, text in pages().items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text
    ]


def yaml_lines() -> Iterator[str]:
    """The YAML: every model that the component reaches, with its fields."""
    module = KafkaStreamsAppComponent.__module__.rpartition(".")[0]
    yield f"A file `defs.yaml` has `type: {module}.{KafkaStreamsAppComponent.__name__}` and"
    yield "`attributes` with the keys below. Unknown keys are errors. `{{ env('NAME') }}` and"
    yield "`{{ env('NAME', 'default') }}` take a value from the environment; secrets have a form"
    yield "of their own (`env` or `file`), so that they never stand in the configuration."
    yield ""
    yield "## attributes"
    yield ""
    yield from _model_lines(KafkaStreamsAppComponent, "")
    yield ""
    yield "## Formats of keys and values"
    yield ""
    yield "Bytes that do not fit give a row with `decode_error` and null in the decoded column."
    yield ""
    yield from _row("format", "decoded type", "what")
    yield from _row("---", "---", "---")
    for encoding in Encoding:
        yield from _row(f"`{encoding}`", f"`{TYPES[encoding]}`", _FORMATS[encoding])
    yield ""
    yield "## Kinds of stores"
    yield ""
    yield from _row("kind", "columns of its own", "what")
    yield from _row("---", "---", "---")
    for kind in StoreKind:
        columns = ", ".join(f"`{name}`" for name, _, _ in KEY_PARTS.get(kind, ()))
        yield from _row(f"`{kind}`", columns, _KINDS[kind])


_CONNECTIONS: Mapping[str, str] = {
    "connection": "How to reach the cluster.",
    "target": "The cluster that restores go to, in the form of [connection](#connection); a run can"
    " name other servers.",
    "schema_registry": "Where the schemas of Avro and Protobuf are (Confluent's REST interface).",
}


def _model_lines(model: type[BaseModel], path: str) -> Iterator[str]:
    yield from _row("key", "type", "default", "what")
    yield from _row("---", "---", "---", "---")
    nested: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        annotation = KafkaConnection if name == "connection" else field.annotation
        models = list(_models(annotation))
        text = field.description or " Or: ".join(_first_sentence(found) for found in models)
        text = _CONNECTIONS.get(name, text)
        if name == "target":
            models = []  # told under `connection`
        yield from _row(f"`{name}`", _type(annotation), _default(field), text)
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
    if annotation is WrongRegistry:
        return  # stands in for a block that is refused
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


_PLAIN_TYPES = {str: "text", int: "integer", float: "number", bool: "true or false"}


def _type(annotation: object) -> str:
    if annotation in _PLAIN_TYPES:
        return _PLAIN_TYPES[typing.cast(type, annotation)]
    if annotation is Secret:
        return "`{env: NAME}` or `{file: PATH}`"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is list:
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
    if value is None or value == "" or (isinstance(value, list | dict) and not value):
        return ""
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, enum.Enum):
        value = value.value
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def cli_lines() -> Iterator[str]:
    """Every command with its options."""
    yield _help(cli)
    yield ""
    root = click.Context(cli, info_name="kstreams-assets", **cli.context_settings)
    yield from _option_lines(cli, root)
    for name, command in sorted(cli.commands.items()):
        yield from _command_lines(command, click.Context(command, parent=root, info_name=name))


def _command_lines(command: click.Command, context: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, inner in sorted(command.commands.items()):
            below = click.Context(inner, parent=context, info_name=name)
            yield from _command_lines(inner, below)
        return
    yield ""
    yield f"## {context.command_path}"
    yield ""
    yield _help(command)
    yield ""
    yield f"Usage: `{context.command_path} {' '.join(command.collect_usage_pieces(context))}`"
    yield ""
    yield from _option_lines(command, context)


def _option_lines(command: click.Command, context: click.Context) -> Iterator[str]:
    yield from _row("option", "what")
    yield from _row("---", "---")
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield from _row(f"`{record[0]}`", record[1])


def _help(command: click.Command) -> str:
    """The help text, without what only Python users need (the errors raised)."""
    text = (command.help or "").partition("\f")[0]
    return "\n\n".join(" ".join(p.split()) for p in inspect.cleandoc(text).split("\n\n"))


def table_lines() -> Iterator[str]:
    """Every table below the warehouse with its columns."""
    warehouse = Warehouse(Path("/warehouse"))
    yield "All tables are Delta tables below the folder `warehouse`. Each carries its layout"
    yield f"version (now {LAYOUT_VERSION}) in the table property `{LAYOUT_PROPERTY}`; a newer"
    yield "layout is refused. Do not write to them."
    tables: list[tuple[Path, str, Columns]] = [
        (
            warehouse.records("<application id>"),
            "Records, partitioned by `window` and `topic`; written by Spark. A file holds records"
            " of one span, in offset order.",
            _sql_columns(RECORD_COLUMNS, _RECORDS),
        ),
        (
            warehouse.control("recovery_points"),
            "Recovery points, one row each.",
            _arrow_columns(recovery_points.SCHEMA, _RECOVERY_POINTS),
        ),
        (
            warehouse.control("recovery_point_records"),
            "Records of recovery points that could not wait for a backup: repartition records in"
            " flight, tails of changelogs.",
            _arrow_columns(saved_records.SCHEMA, _SAVED_RECORDS),
        ),
        (
            warehouse.control("windows"),
            "The ledger: one row for each window, topic and partition that is backed up.",
            _arrow_columns(ledger.SCHEMA, _WINDOWS),
        ),
        (
            warehouse.control("topics"),
            "How each topic was described when a window was backed up.",
            _arrow_columns(facts.SCHEMA, _TOPICS),
        ),
        (
            warehouse.control("restores"),
            "Restores, one row for each change of state.",
            _arrow_columns(restores_table.SCHEMA, _RESTORES_TABLE),
        ),
        (
            warehouse.control("offset_maps"),
            "Where restored records went: source offsets to target offsets, run by run.",
            _arrow_columns(offset_maps_table.SCHEMA, _OFFSET_MAPS),
        ),
        (
            warehouse.ktable("<application id>", "<store>"),
            "State stores as tables, partitioned by `window`; written by Spark. A window holds the"
            " whole state at its recovery point. Which rows count is in `ktable_snapshots`.",
            _ktable_columns(),
        ),
        (
            warehouse.control("ktable_snapshots"),
            "The snapshots of state stores, one row for each store and window.",
            _arrow_columns(snapshots_table.SCHEMA, _KTABLE_SNAPSHOTS),
        ),
        (
            warehouse.control("schemas"),
            "Schemas of Avro and Protobuf records, as the registry had them.",
            _arrow_columns(schemas.SCHEMA, _SCHEMAS),
        ),
    ]
    for path, text, columns in tables:
        yield ""
        yield f"## {path.relative_to(warehouse.root)}"
        yield ""
        yield text
        yield ""
        yield from _row("column", "type", "what")
        yield from _row("---", "---", "---")
        for name, (kind, meaning) in columns.items():
            yield from _row(f"`{name}`", f"`{kind}`", meaning)


def _ktable_columns() -> Columns:
    parts = {}
    for kind, columns in KEY_PARTS.items():
        for name, sql_type, text in columns:
            kinds = [*parts[name][2], kind] if name in parts else [kind]
            parts[name] = (sql_type, text, kinds)
    return {
        **{name: (kind, f"{text}.") for name, kind, text in POSITION},
        **{
            name: (kind, f"Only of kind {', '.join(kinds)}. {text}.")
            for name, (kind, text, kinds) in parts.items()
        },
        "decoded_key": ("as declared", "The key, without window or session; null: not decoded."),
        "decoded_value": ("as declared", "The value; null: not decoded, or deleted (versioned)."),
        **{name: (kind, f"{text}.") for name, kind, text in RAW},
    }


def _arrow_columns(schema: pa.Schema, texts: Mapping[str, str]) -> Columns:
    _require_same(schema.names, texts)
    return {field.name: (_arrow_type(field.type), texts[field.name]) for field in schema}


def _arrow_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list<{_arrow_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{f.name}: {_arrow_type(f.type)}' for f in kind)}>"
    return str(kind)


def _sql_columns(text: str, texts: Mapping[str, str]) -> Columns:
    found = {}
    for column in re.split(r",\s*(?![^<]*>)", text):
        name, kind = column.replace(" NOT NULL", "").split(" ", 1)
        found[name] = kind.lower()
    _require_same(list(found), texts)
    return {name: (kind, texts[name]) for name, kind in found.items()}


def _require_same(names: Sequence[str], texts: Mapping[str, str]) -> None:
    wrong = set(names) ^ set(texts)
    if wrong:
        raise ValueError(f"Column without a text, or text without a column: {sorted(wrong)}.")


def check_lines() -> Iterator[str]:
    """Every check and every cause of a gap."""
    yield "Each backup of a topic has these checks, with one evaluation for each window."
    yield "What to do when one is red: [runbook](../operations/runbook.md)."
    yield ""
    yield from _row("check", "claim")
    yield from _row("---", "---")
    for name, text in CHECKS.items():
        yield from _row(f"`{name}`", text)
    for name, text in CHANGELOG_CHECKS.items():
        yield from _row(f"`{name}`", f"Changelogs only. {text}")
    yield ""
    yield "The asset of the recovery points has, with one evaluation for each of its events:"
    yield ""
    yield from _row("check", "claim")
    yield from _row("---", "---")
    for name, text in POINT_CHECKS.items():
        yield from _row(f"`{name}`", text)
    yield ""
    yield "Each restored topic has, with one evaluation for each restore; while it is red, no group"
    yield "offsets are committed:"
    yield ""
    yield from _row("check", "claim")
    yield from _row("---", "---")
    for name, text in RESTORE_CHECKS.items():
        yield from _row(f"`{name}`", text)
    yield ""
    yield "Each KTable has, with one evaluation for each window:"
    yield ""
    yield from _row("check", "claim")
    yield from _row("---", "---")
    for name, text in KTABLE_CHECKS.items():
        yield from _row(f"`{name}`", text)
    yield ""
    yield "The group offsets of a restore have:"
    yield ""
    yield from _row("check", "claim")
    yield from _row("---", "---")
    for name, text in GROUP_OFFSETS_CHECKS.items():
        yield from _row(f"`{name}`", text)
    yield ""
    yield "## What a recovery point gives"
    yield ""
    yield "Shown by `kstreams-assets recovery-points list`, each with its reason; it changes with"
    yield "what is backed up."
    yield ""
    yield from _row("gives", "what")
    yield from _row("---", "---")
    for gives in Restores:
        yield from _row(f"`{gives}`", _RESTORES[gives])
    yield ""
    yield "## Gaps"
    yield ""
    yield "An offset of a span without a record is a gap. Each has a cause in the ledger."
    yield ""
    yield from _row("cause", "loss", "what")
    yield from _row("---", "---", "---")
    for cause in GapCause:
        loss = "**yes**" if cause in LOSSES else "no"
        text = "unknown" if cause is GapCause.UNEXPLAINED else loss
        yield from _row(f"`{cause}`", text, _GAPS[cause])
    yield ""
    yield "Loss turns `no_source_loss` red; `unexplained` turns `every_offset_accounted` red."


def _row(*cells: str) -> Iterator[str]:
    escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    yield f"| {' | '.join(escaped)} |"


def _page(title: str, lines: Iterator[str]) -> str:
    return "\n".join([f"# {title}", "", GENERATED, "", *lines, ""])


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; fail when a page is stale.")
def main(check: bool) -> None:
    """Write docs/reference from the code."""
    stale = stale_pages()
    if check:
        if stale:
            click.echo(f"Stale in docs/reference: {', '.join(stale)}. Run this without --check.")
            sys.exit(1)
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    click.echo(f"Written: {', '.join(stale) or 'nothing, all is up to date'}.")


if __name__ == "__main__":
    main()
