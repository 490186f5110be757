"""Stores and KTable snapshots made by hand, of the application in `planning_samples`."""

from typing import Any

from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.model.snapshot import Snapshot, SnapshotPartition, TableStore
from kstreams_assets.model.spans import Window
from tests.restore.planning_samples import point

CHANGELOG = "shop-sums-changelog"
PLAIN = StoreFormat()


def store(name: str = "sums", topic: str = CHANGELOG, **changes: Any) -> TableStore:
    """A store whose topic is a changelog alone."""
    return TableStore(name, topic, **{"format": PLAIN, **changes})


def snapshot(name: str = "sums", topic: str = CHANGELOG, **changes: Any) -> Snapshot:
    """A proved snapshot of window w1 at `point()`: 3 rows of 30 bytes in the one partition."""
    facts: dict[str, Any] = {
        "window": Window(0, 60_000, "w1"),
        "point_id": point().id,
        "taken_at_ms": point().taken_at_ms,
        "proved": True,
        "reason": "",
        "base_window": None,
        "fingerprint": PLAIN.fingerprint,
        "partitions": (SnapshotPartition(0, f"{topic}-id", 10, 100, rows=3, bytes=30),),
        "records": 5,
    }
    return Snapshot("shop", name, topic, **facts | changes)
