"""Data files: as they were when they were written, and their paths in tables."""

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
    """A data file as it was when it was written.

    `path` is as in Delta's log (relative to the table, URL-encoded), `size` in bytes, `digest` the
    SHA-256 of the whole file in hex, as `sha256sum` prints it.
    """

    path: str
    size: int
    records: int
    digest: str


def root_of(table: StorePath) -> StorePath:
    """The warehouse that a table lies in."""
    parent = table.parent
    if parent.name == "records":
        return parent.parent
    if parent.parent.name == "ktables":
        return parent.parent.parent
    return parent


def table_name(table: StorePath) -> str:
    """The path of a table below its warehouse, as the mark has it."""
    return str(relative(table, root_of(table)))


_NO_PART: Final = frozenset({"", ".."})


def path_in_table(logged: str) -> str:
    """The path of a data file in its table, from the text in a Delta log or a ledger.

    Whoever writes a log must not name files beside the table: they would be read, copied over or
    removed with it.

    Raises:
        StoredDataError: It leads out of the table.
    """
    path = unquote(logged) if "%" in logged else logged
    # An empty part: it begins with a slash, or has a scheme.
    if "\0" in path or not _NO_PART.isdisjoint(path.split("/")):
        raise StoredDataError(
            subject=f"The log entry of the file {logged!r}",
            problem="it leads out of the folder of its table",
            remedy="Somebody changed the log, and nothing of it was used. Find out who can write"
            " there, and run kstreams-assets verify; bring the table back from a copy.",
        )
    return path


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file that no commit refers to yet; `path` is relative to the table.

    `digest` is the SHA-256 in hex, `stats` what Delta's log will say of it, `payload_bytes` the
    uncompressed size of keys, values and headers, `values` are those of the columns by which the
    table is partitioned, `about` is what else the task that wrote it noted.
    """

    path: str
    size: int
    digest: str
    stats: Mapping[str, Any]
    payload_bytes: int
    values: Mapping[str, str]
    about: Mapping[str, Any]

    @classmethod
    def told(cls, folder: StorePath, row: Mapping[str, Any]) -> Self:
        """The file that a task tells of in a row of `spark_resources.data_files.WRITTEN`."""
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
        """How many rows it holds."""
        return self.stats["numRecords"]

    @property
    def written(self) -> WrittenFile:
        """As ledgers note it."""
        return WrittenFile(self.path, self.size, self.records, self.digest)


_DIGEST: Final = re.compile(r"-([0-9a-f]{64})\.parquet$")


def digest_in(path: str) -> str | None:
    """The digest that a file's name holds; None for files of earlier releases."""
    found = _DIGEST.search(path)
    return None if found is None else found[1]
