"""Links and examples of the documents hold."""

import re
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from kstreams_assets.app_file.model import ApplicationModel
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.model.snapshot import Snapshot
from kstreams_assets.orchestration.component import build_application_definitions
from kstreams_assets.repository.rows import rows_of
from spark_resources.resource import SparkSessionResource
from tests.docs.documents import (
    CHECKOUT,
    Block,
    anchors,
    blocks,
    documents,
    links,
    prose,
)

TOPOLOGY = CHECKOUT / "examples" / "defs" / "order_processor" / "topology.txt"
_PROGRAM = re.compile(r"(?<![\w.-])kstreams-assets[ \t]+([^\n|>&;#]+)")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::([\w.\[\]-]+(?:::\w+)*)`")
_LEAST: dict[str, Any] = {
    "application_id": "order-processor",
    "connection": {"bootstrap_servers": "kafka-1:9092"},
    "warehouse": "warehouse",
    "windows": {"every": "hour", "start": "2026-11-21"},
    "topology": "topology.txt",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a topology text, as the current one."""
    shutil.copy(TOPOLOGY, tmp_path / "topology.txt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("file", documents(), ids=lambda f: str(f.relative_to(CHECKOUT)))
def test_relative_links_lead_to_a_file_and_heading(file: Path) -> None:
    for target in links(file):
        path, _, anchor = target.partition("#")
        aim = (file.parent / path).resolve() if path else file
        assert aim.exists(), f"{target} is not there"
        if anchor:
            assert anchor in anchors(aim), f"{target}: no such heading"


def test_every_document_is_linked_from_the_readme_or_the_index() -> None:
    entries = [CHECKOUT / "README.md", CHECKOUT / "docs" / "index.md"]
    linked = {
        (entry.parent / target.partition("#")[0]).resolve()
        for entry in entries
        for target in links(entry)
    }
    assert set(documents()) - set(entries) <= linked
    assert entries[1] in linked


def test_the_readme_is_short() -> None:
    assert len(documents()[0].read_text(encoding="utf-8").splitlines()) <= 120


def _attributes(block: Block) -> dict[str, Any]:
    document = yaml.safe_load(block.text)
    if "type" in document:
        return document["attributes"]
    assert document.keys() <= ApplicationModel.model_fields.keys()
    return {**_LEAST, **document}


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_examples_resolve(block: Block, folder: Path) -> None:
    file = folder / "defs.yaml"
    attributes = _attributes(block)
    file.write_text(
        yaml.safe_dump({"type": "x.KafkaStreamsAppComponent", "attributes": attributes}),
        encoding="utf-8",
    )
    assert load_settings(file).application_id == attributes["application_id"]


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_examples_run(block: Block, folder: Path) -> None:
    _warehouse(folder)
    text = block.text.replace("/backup/warehouse", str(folder / "warehouse"))
    names: dict[str, Any] = {"__file__": str(folder / "definitions.py"), "__name__": "example"}
    exec(compile(text, str(block), "exec"), names)  # noqa: S102 - our own documents
    if isinstance(defs := names.get("defs"), dg.Definitions):
        whole = defs if defs.assets else dg.Definitions.merge(defs, _order_processor(folder))
        dg.Definitions.validate_loadable(whole)
        for name in (job.name for job in defs.jobs or ()):
            assert whole.resolve_job_def(name).asset_layer.selected_asset_keys


def _order_processor(folder: Path) -> dg.Definitions:
    file = folder / "defs.yaml"
    file.write_text(
        yaml.safe_dump({"type": "x.KafkaStreamsAppComponent", "attributes": _LEAST}),
        encoding="utf-8",
    )
    return dg.Definitions.merge(
        build_application_definitions(load_settings(file)),
        dg.Definitions(resources={"spark": SparkSessionResource()}),
    )


@pytest.mark.parametrize("block", blocks("sql"), ids=str)
def test_sql_examples_run(block: Block, folder: Path) -> None:
    _warehouse(folder)
    tables = QueryBuilder()
    tables.register("records", DeltaTable(folder / "warehouse/records/order-processor"))
    tables.register("windows", DeltaTable(folder / "warehouse/windows"))
    for name, path in _KTABLES.items():
        tables.register(name, DeltaTable(folder / "warehouse" / path))
    assert pa.table(tables.execute(block.text).read_all()).num_rows > 0


_KTABLES = {
    "order_totals": "ktables/order-processor/order-totals",
    "ktable_snapshots": "ktable_snapshots",
}


def _ktables(folder: Path) -> None:
    """A snapshot of one store, with a row that does not decode."""
    window = "2026-11-21-12:44"
    good = {"decoded_key": "c-1", "decoded_value": {"count": 2, "total_cents": 7}}
    bad = {"decode_error": "value: no JSON", "decoded_value": None}
    rows = [
        {"window": window, "partition": 0, "offset": offset, "key": b"k", "value": b"v"} | row
        for offset, row in enumerate((good, bad))
    ]
    value = pa.struct([("count", pa.int64()), ("total_cents", pa.int64())])
    schema = pa.schema(
        [
            ("window", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("decoded_key", pa.string()),
            ("decoded_value", value),
            ("decode_error", pa.string()),
            ("key", pa.binary()),
            ("value", pa.binary()),
        ]
    )
    warehouse = folder / "warehouse"
    table = pa.Table.from_pylist(rows, schema)
    write_deltalake(warehouse / _KTABLES["order_totals"], table, partition_by=["window"])
    taken: dict[str, Any] = {
        field.name: 0 if pa.types.is_integer(field.type) else "x"
        for field in rows_of(Snapshot).schema
        if not pa.types.is_nested(field.type)
    }
    taken |= {"store": "order-totals", "window": window, "proved": True}
    snapshots = pa.Table.from_pylist([taken], rows_of(Snapshot).schema)
    write_deltalake(warehouse / _KTABLES["ktable_snapshots"], snapshots)


def _warehouse(folder: Path) -> None:
    """Two tables with what the examples ask for; one store with two keys, one of them deleted."""
    changelog = "order-processor-order-totals-changelog"
    rows = [
        ("orders", 0, b"o-1", b"{}"),
        (changelog, 0, b"c-1", b"1"),
        (changelog, 1, b"c-1", b"2"),
        (changelog, 2, b"c-2", b"1"),
        (changelog, 3, b"c-2", None),
    ]
    records = pa.table(
        {
            "window": pa.array(["2026-11-21-12:44"] * len(rows)),
            "topic": [row[0] for row in rows],
            "partition": pa.array([0] * len(rows), pa.int32()),
            "offset": pa.array([row[1] for row in rows], pa.int64()),
            "timestamp_ms": pa.array([1] * len(rows), pa.int64()),
            "timestamp_type": pa.array([0] * len(rows), pa.int32()),
            "key": pa.array([row[2] for row in rows], pa.binary()),
            "value": pa.array([row[3] for row in rows], pa.binary()),
        }
    )
    target = folder / "warehouse/records/order-processor"
    write_deltalake(target, records, partition_by=["window", "topic"])
    span: dict[str, Any] = {
        field.name: 0 if pa.types.is_integer(field.type) else "x"
        for field in rows_of(LedgerEntry).schema
        if not pa.types.is_nested(field.type)
    }
    span |= {
        "application_id": "order-processor",
        "continues": True,
        "contiguity_known": True,
        "gaps": [{"cause": "retention", "start": 0, "end": 3, "offsets": 3}],
    }
    write_deltalake(
        folder / "warehouse/windows", pa.Table.from_pylist([span], rows_of(LedgerEntry).schema)
    )
    _ktables(folder)


def test_the_store_example_gives_the_newest_record_of_each_key(folder: Path) -> None:
    _warehouse(folder)
    query = next(block for block in blocks("sql") if "newest" in block.text)
    tables = QueryBuilder()
    tables.register("records", DeltaTable(folder / "warehouse/records/order-processor"))
    found = pa.table(tables.execute(query.text).read_all()).to_pylist()
    assert found == [{"customer": "c-1", "total": "2"}]


def test_every_test_that_is_named_exists() -> None:
    named = [match for file in documents() for match in _TEST.findall(prose(file))]
    assert named
    for file, test in named:
        source = CHECKOUT / file
        assert source.is_file(), file
        for part in test.split("::"):
            pattern = rf"^\s*(?:async )?(?:def|class) {part}\b"
            assert re.search(pattern, source.read_text(encoding="utf-8"), re.MULTILINE), test
