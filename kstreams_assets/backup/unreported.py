"""Runs that ended before they could report the windows they had recorded, and what those hold.

A run marks itself before it records its first window, and takes the mark away once Dagster, or the
terminal, has the checks of its last one. A mark that no process holds is of a run that was killed
or failed in between: the next run, or the next tick of the sensor, reports what the ledger has of
it. Windows that were backed up again since belong to the later run.

Earlier releases left no marks. Their runs are compared with Dagster's events once, see
`report_left_behind`.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import IO, Final

from kstreams_assets.backup.planner import load_edges
from kstreams_assets.backup.result import TopicBackup, WindowBackup
from kstreams_assets.backup.run import window_backups
from kstreams_assets.layout import Warehouse
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.ledger import Ledger, TopicFactsTable
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.table import WindowTopic, make_warehouse

COMMAND_RUN: Final = "cli-"
"""What ids of runs of the command line begin with; Dagster's do not."""


@dataclass(slots=True)
class ReportMark:
    """The mark of one run while this process holds it."""

    run_id: str
    _file: IO[str]
    reported: set[str] = field(init=False)
    """Keys of windows that an earlier, unfinished report has handed over."""
    stays: bool = False
    """Set where windows are left for the next report."""

    def __post_init__(self) -> None:
        self._file.seek(0)
        self.reported = set(self._file.read().split("\n")) - {""}

    def note(self, window: str) -> None:
        """Remember that a window (key) is reported."""
        self._file.write(f"{window}\n")
        self._file.flush()


@dataclass(frozen=True, slots=True)
class ReportMarks:
    """The marks of one application's runs, as files that the kernel unlocks with their process."""

    warehouse: Warehouse
    application_id: str

    @contextlib.contextmanager
    def of_run(self, run_id: str) -> Iterator[None]:
        """Mark a run as not reported until the block has ended without an error.

        Makes the warehouse if it is new. Raises what `make_warehouse` raises.
        """
        make_warehouse(self.warehouse.root)
        with self._held(run_id) as mark:
            yield
            if mark is not None:
                self._path(run_id).unlink(missing_ok=True)

    @contextlib.contextmanager
    def left_behind(self, run_id: str) -> Iterator[ReportMark | None]:
        """Hold the mark of a run that has ended, and take it away after the block.

        None when there is no such mark, or another process holds it. The mark stays when the block
        ends with an error, or says so.
        """
        with self._held(run_id, mode="r+") as mark:
            yield mark
            if mark is not None and not mark.stays:
                self._path(run_id).unlink(missing_ok=True)

    @property
    def compared(self) -> Path:
        """Is there once runs of earlier releases, which left no marks, were looked for."""
        return self.warehouse.lock_file(f"backup-reports/{self.application_id}")

    def add(self, run_id: str, reported: Iterable[str]) -> None:
        """Mark a run that has ended and left no mark; `reported` are keys of windows to skip."""
        with self._held(run_id) as mark:
            if mark is not None:
                for window in sorted(reported):
                    mark.note(window)

    def run_ids(self) -> list[str]:
        """Runs that have a mark: those that go on, and those that were left behind."""
        try:
            return sorted(entry.name for entry in os.scandir(self._folder) if entry.is_file())
        except FileNotFoundError:
            return []

    @property
    def _folder(self) -> Path:
        return self.compared.with_suffix("")

    def _path(self, run_id: str) -> Path:
        return self._folder / run_id

    @contextlib.contextmanager
    def _held(self, run_id: str, *, mode: str = "a+") -> Iterator[ReportMark | None]:
        path = self._path(run_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    file = stack.enter_context(path.open(mode, encoding="utf-8"))
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                except (BlockingIOError, FileNotFoundError):
                    yield None
                    return
                if _is_at(file, path):
                    yield ReportMark(run_id, file)
                    return


def _is_at(file: IO[str], path: Path) -> bool:
    """Whether the open file is still the one of its name: its holder may just have removed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def windows_of_run(settings: ApplicationSettings, run_id: str) -> list[WindowBackup]:
    """What the ledger still has of a run, as the run itself would have reported it.

    Needs no broker. Topics that the application has no longer are left out.
    """
    application_id = settings.application_id
    ledger = Ledger(settings.warehouse, application_id)
    known = {topic.name: topic for topic in settings.application.topics}
    recorded = {key: rows for key, rows in ledger.of_run(run_id).items() if key[1] in known}
    if not recorded:
        return []
    windows = sorted({window for window, _ in recorded})
    first = WindowCalendar(settings.windows).first_closed()
    edges = load_edges(
        application_id,
        windows,
        {topic for _, topic in recorded},
        points=RecoveryPointTable(settings.warehouse),
        ledger=ledger,
        begins_ms=first.start_ms if first else 0,
    )
    facts_table = TopicFactsTable(settings.warehouse, application_id)
    facts = facts_table.of_windows({window.key for window in windows})
    previous = dict(facts_table.before(windows[0].start_ms))
    backups: list[TopicBackup] = []
    for (window, topic), entries in sorted(recorded.items(), key=itemgetter(0)):
        now = facts.get(WindowTopic(window.key, topic))
        backups.append(
            TopicBackup(
                window=window,
                topic=topic,
                role="+".join(sorted(known[topic].roles)),
                spans=tuple(entry.result for entry in entries if entry.has_span),
                facts=now,
                previous_facts=previous.get(topic),
                recovery_point_id=entries[0].recovery_point_id,
                delta_version=entries[0].delta_version,
                duration_s=None,
            )
        )
        if now is not None:
            previous[topic] = now
    return window_backups(settings.warehouse, settings.application, windows, backups, edges)
