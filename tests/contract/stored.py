"""A warehouse that an earlier commit wrote, and what its commands answered then."""

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, Final

from kstreams_assets.kafka.local_cluster import LocalCluster

APPLICATION_ID: Final = "order-processor"
FOLDER: Final = Path(__file__).with_name("warehouse")
ARCHIVE: Final = FOLDER / "warehouse.tar.xz"
TARGET_CLUSTER_ID: Final = "contract-target-000000"
EARLIER_CLUSTER_ID: Final = "earlier-target-0000000"

OFFLINE: Final = {
    "windows": ("windows",),
    "recovery_points_list": ("recovery-points", "list"),
    "recovery_points_show": ("recovery-points", "show", "POINT"),
    "completeness_list": ("completeness", "list"),
    "ktables_list": ("ktables", "list"),
    "state": ("state", "--store", "order-totals", "--key", "customer-7"),
    "state_history": ("state", "--store", "order-totals", "--key", "customer-7", "--history"),
    "restore_list": ("restore", "list"),
    "restore_map": ("restore", "map", "orders", "0", "0", "17"),
    "ready": ("ready",),
}
"""Commands that need no broker, by the name of the file with their answer."""

_OF_NOW: Final = re.compile(r"(^|_)(age|outage_loss|due|duration|seconds|took)(_|$)|_s$")
"""Keys whose values depend on when or where the command ran."""
_ADDRESS: Final = re.compile(r"127\.0\.0\.1:\d+")


def unpacked(place: Path) -> None:
    """The application's folder with its warehouse in it."""
    for name in ("defs.yaml", "topology.txt"):
        (place / name).write_bytes((FOLDER / name).read_bytes())
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(place, filter="data")


def target_cluster(folder: Path, *, cluster_id: str = TARGET_CLUSTER_ID) -> LocalCluster:
    """A cluster with a known id: the id of a restore depends on it."""
    folder.mkdir()
    (folder / "cluster.id").write_text(cluster_id, "ascii")
    return LocalCluster(folder)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """One command as a shell would run it."""
    return subprocess.run(
        [sys.executable, "-m", "kstreams_assets.cli.main", *command],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


def answer(place: Path, *command: str, cluster: LocalCluster | None = None) -> Any:
    """Exit code and JSON of a command, without what depends on time and place."""
    point = (FOLDER / "POINT").read_text("utf-8").strip() if "POINT" in command else ""
    words = [point if word == "POINT" else word for word in command]
    target = ["--target", cluster.bootstrap_servers] if cluster else []
    done = run(*words, *target, "--app", str(place / "defs.yaml"), "--json")
    assert done.stdout, done.stderr
    return {"exit": done.returncode, "json": _lasting(json.loads(done.stdout), str(place))}


def expected_file(name: str) -> Path:
    """Where the answer of a command is kept."""
    return FOLDER / f"{name}.json"


def _lasting(document: Any, place: str) -> Any:
    if isinstance(document, dict):
        return {
            key: "…" if _OF_NOW.search(key) else _lasting(value, place)
            for key, value in document.items()
        }
    if isinstance(document, list):
        kept = (one for one in document if not _is_due(one))
        return [_lasting(one, place) for one in kept]
    if isinstance(document, str):
        return _ADDRESS.sub("HOST:PORT", document.replace(place, "FOLDER"))
    return document


def _is_due(document: Any) -> bool:
    """A window that closed after the warehouse was made."""
    return isinstance(document, dict) and document.get("state") == "due"
