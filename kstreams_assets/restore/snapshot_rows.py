"""What a KTable snapshot's files hold, from Delta's log and few columns of the files. No JVM."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from kstreams_assets.backup.content import SpanFile
from kstreams_assets.ktables.content import open_table
from kstreams_assets.warehouse.delta import storage_failures

_BATCH = 65_536


def snapshot_files(table: Path, window: str) -> list[SpanFile]:
    """The files that hold a window's snapshot; rows of several partitions, in no order.

    Raises:
        NewerLayoutError: A newer release wrote the table.
    """
    opened = open_table(table)
    added = pa.table(opened.get_add_actions(flatten=True)) if opened else None
    if added is None or added.num_rows == 0:
        return []
    columns = ["path", "num_records", "min.offset", "max.offset"]
    of_window = added.filter(pc.field("partition.window") == window).select(columns)
    return [
        SpanFile(table / unquote(path), records, first, last)
        for path, records, first, last in zip(*of_window.to_pydict().values(), strict=True)
    ]


def keyless_rows(files: Iterable[SpanFile]) -> Mapping[int, int]:
    """By partition, the rows that no changelog can hold: Kafka Streams takes no null key."""
    return _count(files, pc.field("key").is_null(), ["key"])


def odd_timestamps(files: Iterable[SpanFile]) -> Mapping[int, int]:
    """By partition, how many rows with a key have a timestamp of 0 or below."""
    odd = (pc.field("timestamp_ms") <= 0) & pc.field("key").is_valid()
    return _count(files, odd, ["timestamp_ms", "key"])


def _count(
    files: Iterable[SpanFile], where: ds.Expression, columns: Sequence[str]
) -> Mapping[int, int]:
    found: Counter[int] = Counter()
    for file in files:
        with (
            storage_failures(file.path),
            pq.ParquetFile(file.path, page_checksum_verification=True) as parquet,
        ):
            wanted = ["partition", *columns]
            for batch in parquet.iter_batches(batch_size=_BATCH, columns=wanted):
                rows = pa.Table.from_batches([batch]).filter(where)
                found.update(rows["partition"].to_pylist())
    return found
