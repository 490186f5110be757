"""Columns of KTables, and which columns of backups they come from."""

from pathlib import Path

import pyarrow as pa
import pytest

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat, StoreKind
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.ktables.stores import table_stores
from kstreams_assets.model.snapshot import TableStore
from kstreams_assets.orchestration.ktables import (
    column_lineage,
    column_schema,
    declared_fields,
    split_source,
    written_schema,
)
from tests.ktables.samples import TOPICS, TOTALS, settings

LOG = "shop/backup/shop-totals-changelog"


def _lineage(store: TableStore, root: Path) -> dict[str, list[str]]:
    found = column_lineage(store, settings(root)).deps_by_column
    return {
        column: [f"{dep.asset_key.to_user_string()}:{dep.column_name}" for dep in deps]
        for column, deps in found.items()
    }


def _columns(format_: StoreFormat) -> dict[str, str]:
    schema = column_schema(TableStore("s", "t", format_))
    return {column.name: column.type for column in schema.columns}


def test_decoded_columns_come_from_key_and_value_and_from_what_is_declared(tmp_path: Path) -> None:
    found = _lineage(TableStore("totals", "shop-totals-changelog", TOTALS), tmp_path)
    assert found["decoded_key"] == [f"{LOG}:key"]
    assert found["decoded_value"] == [f"{LOG}:value"]
    assert found["decoded_value.count"] == ["shop/backup/orders.eu:value.id", f"{LOG}:value"]
    assert found["decoded_value.last"] == [f"{LOG}:value"]
    assert found["decoded_value.last.id"] == ["shop/backup/orders.eu:value.id", f"{LOG}:value"]
    assert found["timestamp_ms"] == [f"{LOG}:timestamp_ms"]
    assert found["decode_error"] == [f"{LOG}:key", f"{LOG}:value"]


@pytest.mark.parametrize(
    ("kind", "column", "source"),
    [
        (StoreKind.WINDOW, "window_end_ms", "key"),
        (StoreKind.JOIN_WINDOW, "sequence_number", "key"),
        (StoreKind.SESSION, "session_end_ms", "key"),
        (StoreKind.VERSIONED, "valid_to_ms", "timestamp_ms"),
    ],
)
def test_parts_of_the_key(kind: StoreKind, column: str, source: str, tmp_path: Path) -> None:
    store = TableStore("totals", "shop-totals-changelog", StoreFormat(kind))
    assert _lineage(store, tmp_path)[column] == [f"{LOG}:{source}"]
    assert column in _columns(StoreFormat(kind))


def test_a_topic_without_a_backup_is_its_own_source(tmp_path: Path) -> None:
    configured = settings(tmp_path)
    without = settings(tmp_path, topics=TOPICS[1:])
    object.__setattr__(without, "application", configured.application)
    found = column_lineage(TableStore("totals", "shop-totals-changelog", TOTALS), without)
    sources = [
        (source.asset_key.to_user_string(), source.column_name)
        for source in found.deps_by_column["decoded_value.count"]
    ]
    assert ("kafka/orders.eu", "value.id") in sources


def test_a_source_that_no_topic_has_is_refused(tmp_path: Path) -> None:
    wrong = StoreFormat(lineage=(("", ("orders.us.id",)),))
    with pytest.raises(ConfigurationError, match=r"names 'orders.us.id'.* topics are orders.eu"):
        column_lineage(TableStore("totals", "shop-totals-changelog", wrong), settings(tmp_path))


def test_declared_fields_by_topic(tmp_path: Path) -> None:
    configured = settings(tmp_path)
    assert declared_fields(table_stores(configured), configured) == {
        "orders.eu": {"id": ("totals.count", "totals.last.id")}
    }


def test_columns_of_a_structure_are_dotted_in_the_order_of_the_table() -> None:
    assert list(_columns(TOTALS).items()) == [
        ("window", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp_ms", "bigint"),
        ("decoded_key", "string"),
        ("decoded_value", "struct"),
        ("decoded_value.count", "bigint"),
        ("decoded_value.last", "struct"),
        ("decoded_value.last.id", "string"),
        ("decoded_value.last.at", "bigint"),
        ("decode_error", "string"),
        ("headers", "array<struct<key: string, value: binary, key_bytes: binary>>"),
        ("key", "binary"),
        ("value", "binary"),
    ]


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [
        (Encoding.LONG, "bigint"),
        (Encoding.SHORT, "smallint"),
        (Encoding.UUID, "string"),
        (Encoding.BYTES, "binary"),
        (Encoding.AVRO, "as registered"),
    ],
)
def test_types_by_encoding(encoding: Encoding, kind: str) -> None:
    assert _columns(StoreFormat(value=Format(encoding)))["decoded_value"] == kind


def test_the_table_tells_the_fields_of_registered_schemas() -> None:
    declared = column_schema(TableStore("s", "t", StoreFormat(value=Format(Encoding.AVRO))))
    value = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.list_(pa.string()))]))])
    fields = [pa.field("offset", pa.int64()), pa.field("decoded_value", value)]
    found = written_schema(fields, declared)
    assert [(c.name, c.type) for c in found.columns] == [
        ("offset", "bigint"),
        ("decoded_value", "struct"),
        ("decoded_value.a", "bigint"),
        ("decoded_value.b", "struct"),
        ("decoded_value.b.c", "array<string>"),
    ]
    assert found.columns[0].description == "Offset of the record from which the row was made"


def test_the_longest_name_of_a_topic_wins(tmp_path: Path) -> None:
    orders = AppTopic("orders", TopicRoles({TopicRole.INPUT}))
    configured = settings(tmp_path, topics=[orders, *TOPICS])
    store = TableStore("totals", "shop-totals-changelog", TOTALS)
    assert split_source("orders.eu.id", store, configured) == ("orders.eu", "id")
    assert split_source("orders.us.id", store, configured) == ("orders", "us.id")
