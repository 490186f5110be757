"""Runs a process until a moment, and leaves of its files what a loss of power leaves at worst.

What was not synced is gone: the content of a file, and the name of one in its folder. Removed names
stay removed. The events come from a library that is loaded before the C library (`power_cut.c`), so
they are those of Python, Arrow and delta-rs alike.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

_SOURCE: Final = Path(__file__).with_name("power_cut.c")
_TIMEOUT_S: Final = 120


def library(folder: Path) -> Path:
    """The library; a machine without a compiler skips the test."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler on Linux: file operations are seen by a preloaded library")
    made = folder / "power_cut.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(_SOURCE), "-ldl"]
    subprocess.run([*command, "-lpthread"], check=True, capture_output=True, timeout=_TIMEOUT_S)
    return made


@dataclass(frozen=True)
class Event:
    """See `power_cut.c` for the kinds."""

    kind: str
    path: Path
    other: Path


def run(
    command: Sequence[str],
    *,
    below: Path,
    trace: Path,
    preload: Path,
    at: int = 0,
    env: Mapping[str, str] | None = None,
) -> list[Event]:
    """The events of a process below a folder; it is killed after event `at` (0: it ends)."""
    trace.unlink(missing_ok=True)
    given = {
        "LD_PRELOAD": str(preload),
        "POWER_CUT_BELOW": str(below),
        "POWER_CUT_TRACE": str(trace),
        "POWER_CUT_AT": str(at),
    }
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **given, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    events = [
        Event(kind, Path(path), Path(other))
        for kind, path, other in (
            line.split("\t") for line in trace.read_text("utf-8").splitlines()
        )
    ]
    assert done.returncode == (0 if not at or len(events) < at else -9), done.stderr[-4000:]
    return events


@dataclass
class _Disk:
    """What of the files is on the disk; a file is a number, which its names share."""

    files: dict[Path, int] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)
    unnamed: set[Path] = field(default_factory=set)
    """Names (of files and folders) that their folders on the disk do not have."""
    _next: int = 0

    def _of(self, path: Path) -> int:
        if path not in self.files:
            self._next += 1
            self.files[path] = self._next
        return self.files[path]

    def apply(self, event: Event) -> None:
        path, other = event.path, event.other
        match event.kind:
            case "C":
                self.files.pop(path, None)
                self.dirty.add(self._of(path))
                self.unnamed.add(path)
            case "W":
                self.dirty.add(self._of(path))
            case "M":
                self.unnamed.add(path)
            case "N":
                self.files[other] = self._of(path)
                self.unnamed.add(other)
            case "R":
                had_name = other in self.files and other not in self.unnamed
                self.files[other] = self._of(path)
                self._forget(path)
                if not had_name:
                    self.unnamed.add(other)
            case "D":
                self._forget(path)
            case "S":
                self.dirty.discard(self.files.get(path, -1))
                self.unnamed = {name for name in self.unnamed if name.parent != path}
            case _:
                self.dirty.clear()
                self.unnamed.clear()

    def _forget(self, path: Path) -> None:
        self.files.pop(path, None)
        self.unnamed.discard(path)


def cut(below: Path, before: set[Path], events: Sequence[Event]) -> list[str]:
    """Take what was not synced away; what that was. `before` is what was there and on the disk."""
    disk = _Disk()
    for path in before:
        disk._of(path)
    for event in events:
        disk.apply(event)
    lost: list[str] = []
    for path in sorted(below.rglob("*")):
        if not path.exists():
            continue  # its folder has gone
        seen = path in before or path in disk.files or path.is_dir()
        if path in disk.unnamed or not seen:
            lost.append(f"name {path.relative_to(below)}")
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif path.is_file() and disk.files.get(path) in disk.dirty and path.stat().st_size:
            lost.append(f"content {path.relative_to(below)}")
            path.write_bytes(b"")
    return lost
