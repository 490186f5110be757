"""Faults in a copy of a backup: a record dropped, doubled or changed in its files."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.table import Table
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import file_digest
from tests.backup.reading import newest_files
from tests.repository.disk import on_disk

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seeded:
    """What was done to the record of this key."""

    key: str
    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that may be spoilt: windows up to that which ends with `point`."""

    settings: ApplicationSettings
    point: RecoveryPoint

    def copy(self, folder: Path) -> "Backup":
        """The same in a warehouse of its own."""
        shutil.copytree(on_disk(self.settings.warehouse.root), folder)
        return replace(self, settings=replace(self.settings, warehouse=Warehouse(folder)))

    def drop(self, topic: str, fits: Callable[[Row], bool]) -> Seeded:
        """Take out the newest record that fits."""
        return self._change(topic, fits, lambda rows, at: rows[:at] + rows[at + 1 :])

    def double(self, topic: str, fits: Callable[[Row], bool]) -> Seeded:
        """Put the newest record that fits in once more, where there was no record."""

        def doubled(rows: list[Row], at: int) -> list[Row]:
            taken = {row["offset"] for row in rows}
            free = [n for n in range(min(taken), max(taken)) if n not in taken]
            held = [n for n in free if self._holds(topic, {**rows[at], "offset": n})]
            again = {**rows[at], "offset": held[-1]}
            return sorted([*rows, again], key=lambda row: row["offset"])

        return self._change(topic, fits, doubled)

    def alter(self, topic: str, change: Callable[[Row], Row]) -> Seeded:
        """Change the value of the newest record that belongs to the point."""

        def altered(rows: list[Row], at: int) -> list[Row]:
            value = json.dumps(change(json.loads(rows[at]["value"]))).encode()
            return [*rows[:at], {**rows[at], "value": value}, *rows[at + 1 :]]

        return self._change(topic, lambda _row: True, altered)

    def alter_row(self, store: str, field: str) -> Seeded:
        """Add one to a number in a row of a store's newest snapshot."""
        path = on_disk(self.settings.warehouse.ktable(self._id, store))
        file = sorted(path.glob("[0-9]*/*.parquet"))[-1]
        table = pq.ParquetFile(file).read()
        rows = table.to_pylist()
        rows[-1]["decoded_value"][field] += 1
        _write(file, rows, table.schema)
        _note_again(Repository.open(self.settings).snapshots.table, file)
        return Seeded(rows[-1]["decoded_key"], rows[-1]["decoded_value"])

    def _change(
        self,
        topic: str,
        fits: Callable[[Row], bool],
        change: Callable[[list[Row], int], list[Row]],
    ) -> Seeded:
        """Change the rows of the newest file with a record that fits and that the point holds."""
        for file in newest_files(on_disk(self.settings.warehouse.records(self._id)), topic):
            table = pq.ParquetFile(file).read()
            rows = table.to_pylist()
            found = [n for n, row in enumerate(rows) if self._holds(topic, row) and fits(row)]
            if found:
                _write(file, change(rows, found[-1]), table.schema)
                _note_again(Ledger(self.settings.warehouse, self._id)._table, file)
                row = rows[found[-1]]
                return Seeded(row["key"].decode(), json.loads(row["value"]))
        raise AssertionError(f"no record of {topic} fits")

    @property
    def _id(self) -> str:
        return self.settings.application_id

    def _holds(self, topic: str, row: Row) -> bool:
        """Whether a record belongs to the point, of inputs whether it is taken in."""
        cut = self.point.cut(TopicPartitionId(topic, row["partition"]))
        taken_in = [
            offset.offset
            for offset in self.point.group_offsets
            if (offset.topic, offset.partition) == (topic, row["partition"])
        ]
        below = not taken_in or row["offset"] < taken_in[0]
        return cut is not None and cut.holds(row["offset"]) and below


def _note_again(table: Table[Any], file: Path) -> None:
    """As if the backup had written the file so: otherwise its digest gives the fault away."""

    def changed(rows: pa.Table) -> pa.Table:
        found = rows.to_pylist()
        for written in (each for row in found for each in row["written"] or ()):
            if Path(unquote(written["path"])).name == file.name:
                written |= {"size": file.stat().st_size, "digest": file_digest(file)}
        return pa.Table.from_pylist(found, rows.schema)

    table.rewrite(0, 2**62, changed)


def _write(file: Path, rows: list[Row], schema: pa.Schema) -> None:
    pq.write_table(pa.Table.from_pylist(rows, schema), file)
    checksum = file.with_name(f".{file.name}.crc")
    checksum.unlink(missing_ok=True)
