"""Thirty faults that are seeded into a copy of a warehouse, and how each must be told."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.layout import MARKER, Warehouse
from kstreams_assets.repository.ledger import Ledger

STORE: Final = "sums"


@dataclass(frozen=True)
class Stored:
    """A copy of the warehouse of the application, to be damaged."""

    root: Path
    application_id: str
    names: Mapping[str, str]

    @property
    def records(self) -> Path:
        return self.root / "records" / self.application_id

    @property
    def ktable(self) -> Path:
        return self.root / "ktables" / self.application_id / STORE

    def file(self, name: str = "orders", window: int = 0, partition: int = 0) -> Path:
        """A file of a span."""
        ledger = Ledger(Warehouse(self.root), self.application_id)
        (entry,) = (
            entry
            for entry in ledger.entries(windows=[f"w{window:04d}"], topics=[self.names[name]])
            if entry.result.partition.partition == partition
        )
        return self.records / unquote(entry.result.content.written[0].path)

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(self.root / name)

    def data_file(self, name: str) -> Path:
        """The largest file of a control table."""
        return max(map(Path, self._files(name)), key=lambda file: file.stat().st_size)

    def _files(self, name: str) -> list[str]:
        added = pa.table(self.table(name).get_add_actions(flatten=True))
        return [str(self.root / name / unquote(path)) for path in added["path"].to_pylist()]


@dataclass(frozen=True)
class Fault:
    """`place` begins as told; `window`, `topic` (by its short name) and `partition` where they are
    known. `needed`: a restore of the recovery point of this number reads it."""

    do: Callable[[Stored], object]
    place: str
    window: str | None = None
    topic: str | None = None
    partition: int | None = None
    needed: bool = True
    point: int = 0


def _edited(edit: Callable[[pa.Table], pa.Table]) -> Callable[[Stored], object]:
    def do(stored: Stored) -> None:
        path = stored.file()
        pq.write_table(edit(pq.ParquetFile(path).read()), path)

    return do


def _bytes(edit: Callable[[bytearray], object], find: Callable[[Stored], Path]) -> Any:
    def do(stored: Stored) -> None:
        path = find(stored)
        content = bytearray(path.read_bytes())
        edit(content)
        path.write_bytes(bytes(content))

    return do


def _flip(place: float) -> Callable[[bytearray], None]:
    def flip(content: bytearray) -> None:
        content[int(len(content) * place)] ^= 4

    return flip


def _flip_footer(content: bytearray) -> None:
    content[-6] ^= 1


def _flip_statistics(content: bytearray) -> None:
    """Within the footer's metadata; its length stands in the four bytes before the last four."""
    length = int.from_bytes(content[-8:-4], "little")
    content[-8 - length // 3] ^= 1


def _cut(content: bytearray) -> None:
    del content[-9:]


def _empty(content: bytearray) -> None:
    content.clear()


def _another_value(rows: pa.Table) -> pa.Table:
    values = rows["value"].to_pylist()
    values[3] = b"w" * len(values[3])
    column = rows.schema.get_field_index("value")
    return rows.set_column(column, rows.schema.field(column), pa.array(values, pa.binary()))


def _swapped(stored: Stored) -> None:
    one, other = stored.file("orders", 0), stored.file("totals", 0)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _old_version(stored: Stored) -> None:
    """What lay there before the window was backed up again: the same records but for the last."""
    path = stored.file()
    rows = pq.ParquetFile(path).read()
    pq.write_table(rows.slice(0, rows.num_rows - 1), path, compression="zstd")


def _entry(folder: Callable[[Stored], Path], which: int) -> Callable[[Stored], None]:
    def remove(stored: Stored) -> None:
        sorted((folder(stored) / "_delta_log").glob("*.json"))[which].unlink()

    return remove


def _window_dropped(stored: Stored) -> None:
    DeltaTable(stored.records).delete("window = 'w0000'")


def _without_folder(stored: Stored) -> None:
    shutil.rmtree(stored.file().parent)


def _without_records(stored: Stored) -> None:
    shutil.rmtree(stored.records)


def _without(table: str) -> Callable[[Stored], None]:
    return lambda stored: shutil.rmtree(stored.root / table)


def _updated(table: str, updates: Mapping[str, str], where: str) -> Callable[[Stored], object]:
    return lambda stored: stored.table(table).update(
        updates=dict(updates), predicate=_filled(where, stored)
    )


def _deleted(table: str, where: str) -> Callable[[Stored], object]:
    return lambda stored: stored.table(table).delete(_filled(where, stored))


def _filled(where: str, stored: Stored) -> str:
    for name, topic in stored.names.items():
        where = where.replace(f"<{name}>", topic)
    return where


def _doubled(table: str, column: str, value: str) -> Callable[[Stored], None]:
    def double(stored: Stored) -> None:
        there = stored.table(table)
        rows = there.to_pyarrow_table().filter(pc.field(column) == _filled(value, stored))
        write_deltalake(there, rows.slice(0, 1), mode="append")

    return double


def _first_point_doubled(stored: Stored) -> None:
    there = stored.table("recovery_points")
    write_deltalake(
        there, there.to_pyarrow_table().sort_by("taken_at_ms").slice(0, 1), mode="append"
    )


def _first_point(stored: Stored) -> str:
    rows = stored.table("recovery_points").to_pyarrow_table(columns=["id", "taken_at_ms"])
    return rows.sort_by("taken_at_ms")["id"][0].as_py()


def _point_changed(stored: Stored) -> None:
    where = f"id = '{_first_point(stored)}'"
    stored.table("recovery_points").update(updates={"took_ms": "took_ms + 1"}, predicate=where)


def _point_dropped(stored: Stored) -> None:
    stored.table("recovery_points").delete(f"id = '{_first_point(stored)}'")


def _checkpoint(stored: Stored) -> None:
    """Of a table with one; it is damaged."""
    stored.table("windows").create_checkpoint()
    (file,) = (stored.root / "windows/_delta_log").glob("*.checkpoint.parquet")
    content = bytearray(file.read_bytes())
    third = len(content) // 3
    content[third : 2 * third] = bytes(third)
    file.write_bytes(bytes(content))


def _old_table(stored: Stored) -> None:
    """The ledger as it was before its last commit: entry and file are gone."""
    log = stored.root / "windows/_delta_log"
    last = max(log.glob("*.json"))
    for line in last.read_text("utf-8").splitlines():
        action = json.loads(line)
        if "add" in action:
            (stored.root / "windows" / unquote(action["add"]["path"])).unlink()
    last.unlink()


def _marker(stored: Stored) -> None:
    (stored.root / MARKER).write_text("{}", "utf-8")


def _snapshot_file(stored: Stored) -> Path:
    return next(stored.ktable.rglob("*.parquet"))


_ORDERS: Final = {"window": "w0000", "topic": "orders", "partition": 0}
_OF_ORDERS: Final = "topic = '<orders>' AND partition = 0 AND window = 'w0000'"


def _of_file(do: Callable[[Stored], object]) -> Fault:
    return Fault(do, "records/", "w0000", "orders", 0)


FAULTS: Final[Mapping[str, Fault]] = {
    "file deleted": _of_file(lambda stored: stored.file().unlink()),
    "file truncated": _of_file(_bytes(_cut, Stored.file)),
    "file emptied": _of_file(_bytes(_empty, Stored.file)),
    "one bit": _of_file(_bytes(_flip(0.3), Stored.file)),
    "one value with a valid checksum": _of_file(_edited(_another_value)),
    "two files swapped": _of_file(_swapped),
    "row dropped from a file": _of_file(_edited(lambda rows: rows.slice(1))),
    "row duplicated in a file": _of_file(
        _edited(lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))
    ),
    "footer damaged": _of_file(_bytes(_flip_footer, Stored.file)),
    "statistics in the footer": _of_file(_bytes(_flip_statistics, Stored.file)),
    "old version of a file put back": _of_file(_old_version),
    "last entry of the records' log removed": Fault(
        _entry(lambda stored: stored.records, -1), "records/", "w0001", "orders", 0, point=1
    ),
    "first entry of the records' log removed": Fault(
        _entry(lambda stored: stored.records, 0), "records/"
    ),
    "window dropped from the records' log": _of_file(_window_dropped),
    "folder of a window's topic deleted": _of_file(_without_folder),
    "all records deleted": _of_file(_without_records),
    "ledger row changed": Fault(
        _updated("windows", {"records": "records - 1"}, _OF_ORDERS), "windows"
    ),
    "ledger row with another end": Fault(
        _updated("windows", {"end": '"end" - 1'}, _OF_ORDERS), "windows"
    ),
    "ledger row dropped": Fault(_deleted("windows", _OF_ORDERS), "windows"),
    "ledger row duplicated": Fault(_doubled("windows", "topic", "<orders>"), "windows"),
    "last entry of the ledger's log removed": Fault(
        _entry(lambda stored: stored.root / "windows", -1), "windows"
    ),
    "middle entry of the ledger's log removed": Fault(
        _entry(lambda stored: stored.root / "windows", -2), "windows"
    ),
    "one bit of a file of the ledger": Fault(
        _bytes(_flip(0.5), lambda stored: stored.data_file("windows")), "windows"
    ),
    "checkpoint damaged": Fault(_checkpoint, "windows"),
    "old ledger put back": Fault(_old_table, "windows"),
    "point row changed": Fault(_point_changed, "recovery_points"),
    "point dropped": Fault(_point_dropped, "recovery_points"),
    "point duplicated": Fault(_first_point_doubled, "recovery_points"),
    "one bit of a file of points": Fault(
        _bytes(_flip(0.5), lambda stored: stored.data_file("recovery_points")), "recovery_points"
    ),
    "saved record changed": Fault(
        _updated("recovery_point_records", {"offset": '"offset" + 1'}, "topic = '<repartition>'"),
        "recovery_point_records",
    ),
    "saved records dropped": Fault(
        _deleted("recovery_point_records", "topic = '<repartition>'"), "recovery_point_records"
    ),
    "file of saved records deleted": Fault(
        lambda stored: stored.data_file("recovery_point_records").unlink(),
        "recovery_point_records",
    ),
    "offset map changed": Fault(
        _updated("offset_maps", {"target_start": "target_start + 1"}, "length > 0"), "offset_maps"
    ),
    "ledger deleted": Fault(_without("windows"), "windows"),
    "points deleted": Fault(_without("recovery_points"), "recovery_points"),
    "saved records deleted": Fault(_without("recovery_point_records"), "recovery_point_records"),
    "configs of topics changed": Fault(_updated("topics", {"role": "'input'"}, "true"), "topics"),
    "one bit of a KTable's file": Fault(
        _bytes(_flip(0.3), _snapshot_file), "ktables/", "w0000", "changelog", needed=False
    ),
    "file of a KTable deleted": Fault(
        lambda stored: _snapshot_file(stored).unlink(),
        "ktables/",
        "w0000",
        "changelog",
        needed=False,
    ),
    "KTable's row changed": Fault(
        _updated("ktable_snapshots", {"records": "records + 1"}, "true"), "ktable_snapshots"
    ),
    "marker changed": Fault(_marker, MARKER),
}
