"""Whoever writes a Delta log or a ledger cannot name files beside the table."""

import json
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from kstreams_assets.errors import StoredDataError
from kstreams_assets.model.files import path_in_table
from kstreams_assets.store import file_digest
from kstreams_assets.upkeep.copy import CopyJob
from tests.upkeep.stock import Stock

OUT = (
    "",
    "..",
    "../x",
    "../../recovery_points/part.parquet",
    "a/../../x",
    "a/b/..",
    "/etc/passwd",
    "//host/x",
    "a//b",
    "s3://bucket/x",
    "file:///etc/passwd",
    "a\0b",
)
INSIDE = (
    "part.parquet",
    "window=2026-01-01-00:00/topic=a..b/part-1.parquet",
    "topic=..a/part.parquet",
    "topic=a../..part.parquet",
    "topic=50%/x.parquet",
)


@pytest.mark.parametrize("path", OUT)
def test_a_path_that_leads_out_of_its_table(path: str) -> None:
    for logged in {path, quote(path), quote(path, safe="").replace(".", "%2E")}:
        with pytest.raises(StoredDataError, match="leads out of the folder of its table"):
            path_in_table(logged)


@pytest.mark.parametrize("path", INSIDE)
def test_a_path_inside_its_table(path: str) -> None:
    assert path_in_table(quote(path, safe="/")) == path
    assert path_in_table(quote(path, safe="")) == path


def test_a_copy_writes_nothing_beside_its_tables(tmp_path: Path) -> None:
    """The source alone is in somebody else's hands; the log of `records` is not a chain."""
    source, to = tmp_path / "nfs" / "first", tmp_path / "vault" / "second"
    stock = Stock(source)
    stock.grow(range(3))
    CopyJob(stock.warehouse, to).run()
    victim = next((to / "recovery_points").rglob("*.parquet"))
    name, before = victim.relative_to(to), file_digest(victim)
    beside = tmp_path / "vault" / "authorized_keys"
    beside.write_text("the operator's")
    (source / name).write_bytes(b"PAR1 garbage")
    (tmp_path / "nfs" / "authorized_keys").write_text("somebody else's")
    records = source / "records" / "shop"
    table = DeltaTable(str(records))
    adds: list[AddAction | RemoveAction] = [
        AddAction(
            path,
            size,
            {"window": "x", "topic": "x"},
            int(1000 * time.time()),
            True,
            json.dumps({"numRecords": 0}),
        )
        for path, size in ((f"../../{name}", 12), ("../../../authorized_keys", 15))
    ]
    table.create_write_transaction(adds, "append", table.schema(), ["window", "topic"])

    with pytest.raises(StoredDataError, match="leads out of the folder"):
        CopyJob(stock.warehouse, to).run()

    assert file_digest(victim) == before
    assert beside.read_text() == "the operator's"
