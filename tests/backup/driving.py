"""Starts `backup_driver.py`: a backup in a process of its own."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from kstreams_assets.model.spans import Window
from tests.streams.workbench import Workbench

_ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Driver:
    """The process."""

    process: subprocess.Popen[str]
    output: IO[str]
    log: Path
    """What it writes to stderr."""

    def require_alive(self) -> None:
        """Fail with the end of its log if it has ended."""
        if self.process.poll() is not None:
            pytest.fail(f"the driver ended too early:\n{self.log.read_text()[-3_000:]}")

    def await_milestone(self, name: str) -> None:
        """Read on until the driver says so."""
        for line in self.output:
            if line.strip() == name:
                return
        pytest.fail(f"the driver ended before {name!r}:\n{self.log.read_text()[-3_000:]}")


@contextlib.contextmanager
def driver(
    bench: Workbench, windows: Sequence[Window], *, hold: str | None = None, here: bool = False
) -> Iterator[Driver]:
    """Start a backup of these windows; `hold` is a milestone at which it waits to be killed.

    It reads by tasks of Spark, which outlive it, or `here`, in its own process.
    """
    job = {
        "bootstrap": bench.bootstrap_servers,
        "warehouse": str(bench.warehouse.root),
        "application_id": bench.application_id,
        "topics": sorted(bench.roles),
        "windows": [(one.start_ms, one.end_ms, one.key) for one in windows],
        "hold": hold,
        "here": here,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".log", delete=False) as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("backup_driver.py")), json.dumps(job)],
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        yield Driver(process, process.stdout, Path(log.name))
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
        Path(log.name).unlink()
