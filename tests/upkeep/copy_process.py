"""A copy of a warehouse during which its process is killed when it comes to a certain step.

Steps are moments at which a file gets its name, counted from 0, each once before and once after.
"""

import itertools
import os
import signal
from pathlib import Path

import pytest

from kstreams_assets.layout import Warehouse
from kstreams_assets.upkeep.copy import CopyJob


def copy_and_die(source: Path, to: Path, last: int = -1) -> int:
    """Copy, and die in step `last`; how many steps there were."""
    steps = itertools.count()
    rename = Path.replace

    def step() -> None:
        if next(steps) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def replace(path: Path, target: Path) -> Path:
        step()
        found = rename(path, target)
        step()
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "replace", replace)
        assert not CopyJob(Warehouse(source), to).run().lacking
    return next(steps)
