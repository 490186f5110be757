"""Warehouses of earlier releases, and the program of one, which runs beside today's.

`earlier/COMMIT.tar.xz` are warehouses of the simulated application, written by that release: six
windows, of which `expire` merged the first ones, two more, and two increments of the next.
`truth.json` has what the application's logs held. `earlier/program-9389ffd.tar.xz` is that
release's program, as far as `process-9389ffd.txt` loads it.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import KeepSettings, WindowSchedule
from tests.upkeep.simulated_app import APPLICATION_ID, Row, SimulatedApp

EARLIER: Final = Path(__file__).parent / "earlier"
COMMITS: Final = ("9910f94", "9389ffd")
"""Releases of which there is a warehouse."""
MERGED: Final = 3
"""So many windows are merged."""
CLOSED: Final = 8
"""So many are closed, merged ones among them; there are increments of the next."""

_PROCESS: Final = (EARLIER / "process-9389ffd.txt").read_text("utf-8")
"""Written for that release, whose modules today's tools do not know."""


@dataclass(frozen=True, slots=True)
class EarlierProcess:
    """A process of the earlier release, which takes one step after the other."""

    steps: IO[str]
    answers: IO[str]

    def __call__(self, step: str, *arguments: str) -> dict[str, Any]:
        """What comes of a step: nothing, `refused` and `problem`, or `exit_code` and `out`."""
        self.steps.write(json.dumps([step, *arguments]) + "\n")
        self.steps.flush()
        answer = self.answers.readline()
        assert answer, "the earlier process has ended"
        return json.loads(answer)


@contextmanager
def earlier_process(folder: Path, warehouse: Path) -> Iterator[EarlierProcess]:
    """Run the program of release 9389ffd on a warehouse; it is unpacked into a folder."""
    shutil.unpack_archive(EARLIER / "program-9389ffd.tar.xz", folder)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", _PROCESS, str(warehouse)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield EarlierProcess(process.stdin, process.stdout)
        finally:
            process.kill()


def earlier_app(commit: str, folder: Path) -> SimulatedApp:
    """The application whose warehouse a release wrote, with the logs that it had."""
    shutil.unpack_archive(EARLIER / f"{commit}.tar.xz", folder)
    truth = json.loads((folder / "truth.json").read_text("utf-8"))
    warehouse = Warehouse(folder / "warehouse")
    made = SimulatedApp.at(warehouse, seed=1, windows=1, keep=KeepSettings(all="0s", minimum=2))
    windows = WindowSchedule.every("hour", start=truth["start"])
    app = replace(made, settings=replace(made.settings, windows=windows), chance=random.Random(1))
    for name, rows in truth["logs"].items():
        app.logs[_partition(name)] = [
            Row(offset, key.encode(), None if value is None else value.encode(), timestamp_ms)
            for offset, key, value, timestamp_ms in rows
        ]
    for name in ("ends", "backed_up", "committed"):
        getattr(app, name).update({_partition(of): at for of, at in truth[name].items()})
    points = Repository(warehouse, APPLICATION_ID).points
    ids = {instant.id for instant in points.instants()}
    app.points.extend(points.load(ids))
    return app


def _partition(name: str) -> TopicPartitionId:
    topic, _, number = name.rpartition("/")
    return TopicPartitionId(topic, int(number))


def stored_windows(warehouse: Warehouse) -> set[Window]:
    """Windows, merged ones and increments, as the ledger gives them."""
    return {*Ledger(warehouse, APPLICATION_ID).keys().values()}
