"""Copies a warehouse in a process of its own, which kills itself when it comes to a certain step.

Arguments: source, copy, the number of the step. Steps are moments at which a file gets its name,
counted from 0, each once before and once after; the number of all of them is printed at the end.
"""

import os
import signal
import sys
from pathlib import Path

from kstreams_assets.layout import Warehouse
from kstreams_assets.store import place_at
from kstreams_assets.upkeep.copy import copy_warehouse

_real = Path.replace
_steps = 0


def _step() -> None:
    global _steps
    if _steps == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    _steps += 1


def _replace(self: Path, target: Path) -> Path:
    _step()
    found = _real(self, target)
    _step()
    return found


if __name__ == "__main__":
    Path.replace = _replace  # type: ignore[method-assign,assignment]
    result = copy_warehouse(Warehouse.at(sys.argv[1]), place_at(sys.argv[2]))
    assert not result.lacking
    sys.stdout.write(f"{_steps}\n")
