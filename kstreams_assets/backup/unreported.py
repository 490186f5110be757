"""Marks runs of the command line that ended before they could report their windows.

A command marks itself before it records its first window, and removes the mark after it printed
the checks of its last one. A mark that no process holds belongs to a command that was killed or
failed in between: the next command reports its windows from the ledger. Windows that were backed up
again since belong to the later run.

Dagster needs no marks: its events are compared with the ledger, see `orchestration/reports.py`.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kstreams_assets.layout import Warehouse
from kstreams_assets.store import StorePath, store_at

COMMAND_RUN: Final = "cli-"
"""Prefix of the run ids of the command line; Dagster's ids have another form."""


@dataclass(frozen=True, slots=True)
class ReportMarks:
    """The marks of one application's commands: files that the kernel unlocks with their process."""

    warehouse: Warehouse
    application_id: str

    @contextlib.contextmanager
    def of_run(self, run_id: str) -> Iterator[None]:
        """Mark a run as not reported until the block has ended without an error.

        Creates the warehouse if it is new. Raises what `Warehouse.make` raises.
        """
        self.warehouse.make()
        with store_at(self._path(run_id)).mark(f"report of {run_id}"):
            yield

    @contextlib.contextmanager
    def left_behind(self, run_id: str) -> Iterator[bool]:
        """Hold the mark of an ended run; remove it after a block without an error.

        Yield False if there is no such mark, or if another process holds it.
        """
        with store_at(self._path(run_id)).left_mark(f"report of {run_id}") as is_left:
            yield is_left

    def run_ids(self) -> list[str]:
        """Return runs that have a mark: running ones, and ended ones that did not report."""
        try:
            return sorted(store_at(self._folder).entries())
        except FileNotFoundError:
            return []

    @property
    def _folder(self) -> StorePath:
        return self.warehouse.lock_file(f"backup-reports/{self.application_id}").with_suffix("")

    def _path(self, run_id: str) -> StorePath:
        return self._folder / run_id
