"""A records table that holds what a handmade ledger says: Delta's log and empty files of a size."""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from deltalake import DeltaTable

from kstreams_assets.layout import Warehouse
from tests.repository.disk import on_disk

_FILE_BYTES = 1000
_COLUMNS = ("window", "topic", "partition", "offset", "timestamp_ms")
_TYPES = ("string", "string", "integer", "long", "long")


def hold_records(warehouse: Warehouse, application_id: str, *, files: bool = True) -> None:
    """One file for each row of the ledger that has records; in place of what was there.

    Without `files` there is the log alone.
    """
    rows = DeltaTable(on_disk(warehouse.control("windows"))).to_pyarrow_table().to_pylist()
    path = on_disk(warehouse.records(application_id))
    held = [r for r in rows if r["application_id"] == application_id and r["records"]]
    log = path / "_delta_log" / f"{0:020}.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    actions = [*_table(), *map(_added, held)]
    log.write_text("\n".join(map(json.dumps, actions)))
    for row in held if files else ():
        with (path / _name(row)).open("wb") as file:
            os.truncate(file.fileno(), _FILE_BYTES)


def _table() -> Iterable[Mapping[str, Any]]:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in zip(_COLUMNS, _TYPES, strict=True)
    ]
    yield {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    yield {
        "metaData": {
            "id": "records",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": ["window", "topic"],
            "configuration": {},
        }
    }


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['window']}-{row['topic']}-{row['partition']}.parquet".replace(":", "-")


def _added(row: Mapping[str, Any]) -> Mapping[str, Any]:
    first = row["first_offset"] if row["first_offset"] is not None else row["start"]
    last = row["last_offset"] if row["last_offset"] is not None else row["end"] - 1
    low = {"partition": row["partition"], "offset": first, "timestamp_ms": 1}
    high = {"partition": row["partition"], "offset": last, "timestamp_ms": 1}
    statistics = {"numRecords": row["records"], "minValues": low, "maxValues": high}
    return {
        "add": {
            "path": _name(row),
            "partitionValues": {"window": row["window"], "topic": row["topic"]},
            "size": _FILE_BYTES,
            "modificationTime": 1,
            "dataChange": True,
            "stats": json.dumps(statistics),
        }
    }
