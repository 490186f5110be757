"""Where each table lies below the warehouse folder, and the layout version they carry."""

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError, WarehouseError

LAYOUT_VERSION = 1
LAYOUT_PROPERTY = "kstreams_assets.layout"

CONTROL_TABLES = (
    "recovery_points",
    "recovery_point_records",
    "windows",
    "topics",
    "restores",
    "offset_maps",
    "ktable_snapshots",
    "schemas",
    "governance_findings",
    "completeness_results",
    "drills",
)
"""The small tables, which all applications of a warehouse share."""


def keep_private() -> None:
    """From now on only the owner may read what this process writes.

    A warehouse holds production records. Folders are made with mode 0700, files with 0600; what is
    there already is not changed.
    """
    os.umask(0o077)


def open_to_others(folder: Path) -> str | None:
    """The mode of a folder that others than its owner may enter or read, such as `0755`."""
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
    except FileNotFoundError:
        return None
    return f"{mode:04o}" if mode & 0o077 else None


class NewerLayoutError(KStreamsAssetsError):
    """A table was written by a newer release than this one."""

    def __init__(self, *, table: str, found: str) -> None:
        super().__init__(
            f"The table {table} has layout version {found}; this release knows up to"
            f" {LAYOUT_VERSION}.",
            remedy="Install the release that wrote the table, or a newer one; nothing was changed.",
        )
        self.table = table
        self.found = found


def check_layout(table: str, properties: dict[str, str | None] | dict[str, str]) -> None:
    """Refuse a table whose layout is newer than this release.

    Raises:
        NewerLayoutError: The version is higher, or is not a number.
    """
    found = properties.get(LAYOUT_PROPERTY) or str(LAYOUT_VERSION)
    if not found.isdigit() or int(found) > LAYOUT_VERSION:
        raise NewerLayoutError(table=table, found=found)


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A folder on a local or mounted disk that holds the tables of any number of applications."""

    root: Path

    @classmethod
    def at(cls, location: str | Path) -> "Warehouse":
        """The warehouse at a path; `file:` URIs are understood.

        Raises:
            ConfigurationError: The location is an object store. One writer per table cannot be
                guaranteed there yet, and two lose each other's commits without an error.
        """
        text = str(location)
        if text.startswith("file:"):
            text = "/" + text.removeprefix("file:").lstrip("/")
        if "://" in text or text.startswith(("s3:", "s3a:", "gs:", "abfs:")):
            raise ConfigurationError(
                f"The warehouse {text!r} is not on a local or mounted disk.",
                remedy="Give a folder; object stores are not supported by this release.",
            )
        return cls(Path(text).expanduser().absolute())

    def require_space(self, least_bytes: int) -> None:
        """Refuse to begin where the disk is all but full.

        Raises:
            WarehouseError: Less than this is free.
        """
        folder = self.root
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        if free < least_bytes:
            raise WarehouseError(
                path=self.root,
                reason=f"its disk has {free // 1024**2} MiB left",
                remedy="Make room on it, then run the same command again.",
            )

    def records(self, application_id: str) -> Path:
        """The records of one application's backups (written by Spark only)."""
        return self.root / "records" / application_id

    def ktable(self, application_id: str, store: str) -> Path:
        """The snapshots of one store (written by Spark only)."""
        return self.root / "ktables" / application_id / store

    def control(self, table: str) -> Path:
        """A small table written with the deltalake package."""
        return self.root / table

    def lock_file(self, name: str) -> Path:
        """The file that a holder of the named lock keeps locked."""
        return self.root / ".locks" / f"{name}.lock"
