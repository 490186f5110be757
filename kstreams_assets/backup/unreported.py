"""Runs of the command line that ended before they could show the windows they had recorded.

A command marks itself before it records its first window, and takes the mark away once the
terminal has the checks of its last one. A mark that no process holds is of a command that was
killed or failed in between: the next one shows what the ledger has of it. Windows that were backed
up again since belong to the later run.

Dagster needs no marks: what it has is compared with the ledger, see `orchestration/reports.py`.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import WarehouseLockedError, warehouse_lock
from kstreams_assets.store import ObjectPath, StorePath, below
from kstreams_assets.warehouse.table import make_warehouse

COMMAND_RUN: Final = "cli-"
"""What ids of runs of the command line begin with; Dagster's do not."""


@dataclass(frozen=True, slots=True)
class ReportMarks:
    """The marks of one application's commands, as files that the kernel unlocks with them."""

    warehouse: Warehouse
    application_id: str

    @contextlib.contextmanager
    def of_run(self, run_id: str) -> Iterator[None]:
        """Mark a run as not reported until the block has ended without an error.

        Makes the warehouse if it is new. Raises what `make_warehouse` raises.
        """
        make_warehouse(self.warehouse.root)
        path = self._path(run_id)
        if isinstance(path, ObjectPath):
            with warehouse_lock(path, purpose=f"report of {run_id}", wait_s=0):
                yield
                path.unlink(missing_ok=True)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as mark:
            fcntl.flock(mark.fileno(), fcntl.LOCK_EX)
            yield
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def left_behind(self, run_id: str) -> Iterator[bool]:
        """Hold the mark of a run that has ended; it is gone after a block without an error.

        False when there is no such mark, or another process holds it.
        """
        path = self._path(run_id)
        with contextlib.ExitStack() as stack:
            if isinstance(path, ObjectPath):
                if not path.is_file():
                    yield False
                    return
                try:
                    lock = warehouse_lock(path, purpose=f"report of {run_id}", wait_s=0)
                    stack.enter_context(lock)
                except WarehouseLockedError:
                    yield False
                    return
                yield True
                # Before it is let go: nobody finds it in between. What lets go finds nothing then.
                path.unlink(missing_ok=True)
                return
            try:
                mark = stack.enter_context(path.open("r+", encoding="utf-8"))
                fcntl.flock(mark.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, FileNotFoundError):
                yield False
                return
            is_ours = _is_at(mark, path)
            yield is_ours
            if is_ours:
                path.unlink(missing_ok=True)

    def run_ids(self) -> list[str]:
        """Runs that have a mark: those that go on, and those that were left behind."""
        try:
            return sorted(below(self._folder))
        except FileNotFoundError:
            return []

    @property
    def _folder(self) -> StorePath:
        return self.warehouse.lock_file(f"backup-reports/{self.application_id}").with_suffix("")

    def _path(self, run_id: str) -> StorePath:
        return self._folder / run_id


def _is_at(file: IO[str], path: Path) -> bool:
    """Whether the open file is still the one of its name: its holder may just have removed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
