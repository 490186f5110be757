"""A recorder in a process of its own, whose cluster answers as it is told.

Arguments: the warehouse's URL, seconds of a lease, seconds to read positions.
"""

import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from kstreams_assets.layout import Warehouse
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.store import ObjectStoreSettings
from kstreams_assets.store.locks import LeaseLostError
from tests.backup.samples import application, cut, point


class _Recorder(Recorder):
    __slots__ = ()
    read_s = 0.0

    def _settled(self, reader: Any, safe: Any, seal_bytes: int, awaited: Any) -> Any:
        print("read", flush=True)  # noqa: T201 (the parent reads it)
        time.sleep(self.read_s)
        return replace(point(time.time_ns() // 1_000_000, cut(0, 10)), sequence=None), ()


def main() -> None:
    """Take a point, and say `stored NUMBER` or `refused`."""
    url, lease_s, read_s = sys.argv[1:]
    warehouse = Warehouse.at(url, ObjectStoreSettings(lease_s=float(lease_s)))
    _Recorder.read_s = float(read_s)
    cluster: Any = SimpleNamespace(raw_log=nullcontext, cluster_id=lambda: "cluster")
    try:
        told = f"stored {_Recorder(application(), cluster, warehouse).take().sequence}"
    except LeaseLostError:
        told = "refused"
    print(told, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
