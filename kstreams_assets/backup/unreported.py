"""Runs of the command line that ended before they could show the windows they had recorded.

A command marks itself before it records its first window, and takes the mark away once the
terminal has the checks of its last one. A mark that no process holds is of a command that was
killed or failed in between: the next one shows what the ledger has of it. Windows that were backed
up again since belong to the later run.

Dagster needs no marks: what it has is compared with the ledger, see `orchestration/reports.py`.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kstreams_assets.layout import Warehouse
from kstreams_assets.store import StorePath, store_at

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

        Makes the warehouse if it is new. Raises what `Warehouse.make` raises.
        """
        self.warehouse.make()
        with store_at(self._path(run_id)).mark(f"report of {run_id}"):
            yield

    @contextlib.contextmanager
    def left_behind(self, run_id: str) -> Iterator[bool]:
        """Hold the mark of a run that has ended; it is gone after a block without an error.

        False when there is no such mark, or another process holds it.
        """
        with store_at(self._path(run_id)).left_mark(f"report of {run_id}") as is_left:
            yield is_left

    def run_ids(self) -> list[str]:
        """Runs that have a mark: those that go on, and those that were left behind."""
        try:
            return sorted(store_at(self._folder).entries())
        except FileNotFoundError:
            return []

    @property
    def _folder(self) -> StorePath:
        return self.warehouse.lock_file(f"backup-reports/{self.application_id}").with_suffix("")

    def _path(self, run_id: str) -> StorePath:
        return self._folder / run_id
