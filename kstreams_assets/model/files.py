"""Data files: their original state, and their paths in tables."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import unquote

from kstreams_assets.errors import StoredDataError
from kstreams_assets.store import StorePath, relative


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file in its original state.

    `path` is as in Delta's log (relative to the table, URL-encoded), `size` in bytes, `digest` the
    SHA-256 of the whole file in hex, as `sha256sum` prints it.
    """

    path: str
    size: int
    records: int
    digest: str


def root_of(table: StorePath) -> StorePath:
    """The warehouse that contains a table."""
    parent = table.parent
    if parent.name == "records":
        return parent.parent
    if parent.parent.name == "ktables":
        return parent.parent.parent
    return parent


def table_name(table: StorePath) -> str:
    """The path of a table below its warehouse, as in the mark."""
    return str(relative(table, root_of(table)))


_NO_PART: Final = frozenset({"", ".."})


def path_in_table(logged: str) -> str:
    """The path of a data file in its table, from the text in a Delta log or a ledger.

    The writer of a log must not name files outside the table: they would be read, overwritten or
    deleted with it.

    Raises:
        StoredDataError: The path leads out of the table.
    """
    path = unquote(logged) if "%" in logged else logged
    # An empty part: it starts with a slash, or has a scheme.
    if "\0" in path or not _NO_PART.isdisjoint(path.split("/")):
        raise StoredDataError(
            subject=f"The log entry of the file {logged!r}",
            problem="it leads out of the folder of its table",
            remedy="Someone has changed the log; none of it was used. Find out who can write"
            " there, and run kstreams-assets verify; restore the table from a copy.",
        )
    return path


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file that no commit refers to yet; `path` is relative to the table.

    `digest` is the SHA-256 in hex, `stats` the entry for Delta's log, `payload_bytes` the
    uncompressed size of keys, values and headers, `values` those of the partition columns of the
    table, `about` further facts recorded by the writing task.
    """

    path: str
    size: int
    digest: str
    stats: Mapping[str, Any]
    payload_bytes: int
    values: Mapping[str, str]
    about: Mapping[str, Any]

    @classmethod
    def from_task_row(cls, folder: StorePath, row: Mapping[str, Any]) -> Self:
        """The file in a task's row of `spark_resources.data_files.WRITTEN`."""
        return cls(
            path=f"{folder.name}/{row['name']}",
            size=row["size"],
            digest=row["digest"],
            stats=json.loads(row["stats"]),
            payload_bytes=row["payload_bytes"],
            values=json.loads(row["values"]),
            about=json.loads(row["about"]),
        )

    @property
    def records(self) -> int:
        """The number of its rows."""
        return self.stats["numRecords"]

    @property
    def written(self) -> WrittenFile:
        """Its form in ledgers."""
        return WrittenFile(self.path, self.size, self.records, self.digest)


_DIGEST: Final = re.compile(r"-([0-9a-f]{64})\.parquet$")


def digest_in(path: str) -> str | None:
    """The digest in a file's name; None for files of earlier releases."""
    found = _DIGEST.search(path)
    return None if found is None else found[1]
