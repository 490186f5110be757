"""Whether there is a warehouse at a path, and making a new one, which is never done in silence."""

import json
import logging
import os
import time
from pathlib import Path
from typing import Final

from kstreams_assets.errors import WarehouseError
from kstreams_assets.warehouse.delta import storage_failures
from kstreams_assets.warehouse.layout import (
    CONTROL_TABLES,
    LAYOUT_PROPERTY,
    LAYOUT_VERSION,
    Warehouse,
    check_layout,
    keep_private,
)

MARKER: Final = "kstreams-assets-warehouse.json"
"""A file in the folder: which layout it has, and when it was made (null: by an older release)."""

_FOLDERS: Final = ("records", "ktables", *CONTROL_TABLES)
_FSTAB: Final = Path("/etc/fstab")

_log = logging.getLogger(__name__)


def is_warehouse(root: Path) -> bool:
    """Whether the folder has a marker, or tables of a release that made none.

    Raises:
        WarehouseError: The path, or a folder above it, is a file or cannot be read.
    """
    with storage_failures(root):
        try:
            found = {entry.name for entry in os.scandir(root)}
        except FileNotFoundError:
            return False
    return MARKER in found or not found.isdisjoint(_FOLDERS)


def make_warehouse(root: Path, *, fstab: Path = _FSTAB) -> None:
    """Make the folder with its marker, unless it is there; a new one is logged as a warning.

    Raises:
        NewerLayoutError: A newer release made it.
        WarehouseError: It cannot be made, or belongs on a disk that is not mounted.
    """
    keep_private()
    marker = root / MARKER
    with storage_failures(root):
        if marker.exists():
            check_layout("warehouse", json.loads(marker.read_text(encoding="utf-8")))
            return
        is_new = not is_warehouse(root)
        if is_new:
            _refuse_unmounted(root, fstab)
            root.mkdir(parents=True, exist_ok=True)
        made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) if is_new else None
        facts = {LAYOUT_PROPERTY: str(LAYOUT_VERSION), "created_at": made_at}
        # Renamed into place, so that nobody reads half of it.
        written = root / f".{MARKER}.{os.getpid()}"
        written.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        written.rename(marker)
    if is_new:
        _log.warning(
            "New warehouse: %s. Nothing is backed up there yet. If this application was backed up"
            " before, look whether the right disk is mounted and the path is right.",
            root,
        )


def absence(warehouse: Warehouse, application_id: str) -> WarehouseError | None:
    """What is not there although a reader expects it, as an error to be shown or raised.

    Raises:
        WarehouseError: The path is a file or cannot be read.
    """
    if not is_warehouse(warehouse.root):
        return WarehouseError(
            path=warehouse.root,
            reason="there is no warehouse, so nothing is backed up there",
            remedy="Check the path (warehouse in the YAML, --warehouse) and whether its disk is"
            " mounted.",
        )
    if warehouse.records(application_id).exists() and not warehouse.control("windows").exists():
        return WarehouseError(
            path=warehouse.root,
            reason=f"it holds records of {application_id}, but the ledger of what is backed up"
            f" ({warehouse.control('windows').name}) is gone",
            remedy="Bring it back from a copy of the warehouse; a backup would begin anew.",
        )
    return None


def require_backup(warehouse: Warehouse, application_id: str) -> None:
    """Refuse to go on where there is no warehouse or no ledger, before anything is made there.

    Raises:
        WarehouseError: See `absence`.
    """
    missing = absence(warehouse, application_id)
    if missing is not None:
        raise missing


def _refuse_unmounted(root: Path, fstab: Path) -> None:
    """An unmounted share looks like the first day, and hides what is written below it later."""
    for point in _mount_points(fstab):
        if root.is_relative_to(point) and not os.path.ismount(point):
            raise WarehouseError(
                path=root,
                reason=f"{point} is to be mounted ({fstab}), and is not",
                remedy=f"Mount it (mount {point}), then run the same command again.",
            )


def _mount_points(fstab: Path) -> list[Path]:
    try:
        lines = fstab.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    entries = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    # Spaces in a path are written as \040.
    points = [entry[1].replace("\\040", " ") for entry in entries if len(entry) > 1]
    return [Path(point) for point in points if point.startswith("/") and point != "/"]
