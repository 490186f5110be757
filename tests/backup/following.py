"""A follower as its own process, and what it has brought into the warehouse."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.backup.follow import FollowerStatus, status_of
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.spans import WrittenFile
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath, store_at
from tests.cli.application import document, write
from tests.store.place import warehouse_at

Record = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""


@dataclass(slots=True)
class Following:
    """An application whose follower can be started, asked and killed."""

    folder: Path
    settings: ApplicationSettings
    app_file: Path
    every_s: float = 0.5
    program: str = "kstreams_assets.cli.main"
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of this process."""
    _process: "subprocess.Popen[str] | None" = field(init=False, default=None)

    def start(self, *options: str) -> None:
        """Start it; its output goes on in one file."""
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*self.command("follow"), "--every", str(self.every_s), *options],
                stdout=log,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONFAULTHANDLER": "1", **self.environment},
            )

    def command(self, *words: str) -> list[str]:
        """The command line of a command on this application."""
        return [sys.executable, "-m", self.program, *words, "--app", str(self.app_file)]

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run another command to its end."""
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=240, check=False
        )

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.folder / "follow.log"

    @property
    def status(self) -> FollowerStatus | None:
        """What it told last."""
        return status_of(self.settings.warehouse, self.settings.application_id)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        assert self._process.wait(20) == -signal.SIGKILL, self.log.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end, and return its exit code; if it does not end, its log has all stacks."""
        assert self._process is not None
        self._process.send_signal(number)
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)
            self._process.wait(20)
            raise AssertionError(self.log.read_text()) from None

    def send(self, number: int) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def ended_with(self, within_s: float) -> int:
        """The exit code of a follower that ends by itself."""
        assert self._process is not None
        return self._process.wait(within_s)

    def end_if_it_runs(self) -> None:
        """Leave no process behind."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(20)

    def wait_for(self, told: Callable[[FollowerStatus], object], limit_s: float = 60) -> None:
        """Wait until what it tells is so."""
        deadline = time.monotonic() + limit_s
        while (status := self.status) is None or not told(status):
            assert self._process is None or self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, (status, self.log.read_text())
            time.sleep(0.1)

    def wait_until_it_has_all(self, limit_s: float = 180) -> None:
        """Wait until a point is covered that was taken from now on."""
        now_ms = time.time_ns() // 1_000_000
        self.wait_for(lambda s: s.covered_at_ms is not None and s.covered_at_ms > now_ms, limit_s)

    def covered_points(self) -> list[RecoveryPoint]:
        """Those that can be restored."""
        application = self.settings.application
        newest = Repository(self.settings.warehouse, application.application_id).points.newest(
            100_000
        )
        statuses = (
            Repository.of(self.settings.warehouse, application.application_id)
            .reading(application)
            .statuses(newest)
        )
        covered = {status.id for status in statuses if status.covered}
        return [point for point in newest if point.id in covered]

    def records(self, topic: str) -> dict[TopicPartitionId, list[Record]]:
        """What the ledger has of a topic, windows and increments; each span where the last ended.

        Fails where offsets are missing between two spans, or are in two of them, or where a file
        holds an offset that is not its span's.
        """
        ledger = Ledger(self.settings.warehouse, self.settings.application_id)
        columns = ["partition", "start", "end", "written"]
        rows = ledger.span_rows([topic], columns=columns, increments=True).to_pylist()
        root = self.settings.warehouse.records(self.settings.application_id)
        found: dict[TopicPartitionId, list[Record]] = {}
        ends: dict[int, int] = {}
        for row in sorted(rows, key=lambda row: (row["partition"], row["start"], row["end"])):
            partition = row["partition"]
            assert row["start"] == ends.get(partition, 0), (topic, row)
            ends[partition] = row["end"]
            records = [record for file in row["written"] or () for record in _read(root, file)]
            assert [r[0] for r in records] == sorted({r[0] for r in records})
            assert all(row["start"] <= record[0] < row["end"] for record in records), row
            found.setdefault(TopicPartitionId(topic, partition), []).extend(records)
        return found


def _read(root: StorePath, file: Mapping[str, Any]) -> Iterable[Record]:
    written = WrittenFile(**file)
    rows = pq.ParquetFile(store_at(root / written.path).readable()).read(
        columns=["offset", "key", "value"]
    )
    return zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)


def new_following(
    folder: Path,
    bootstrap_servers: str,
    application_id: str,
    roles: Mapping[str, str],
    every: str,
    objective_s: int = 60,
    warehouse: str | None = None,
    **more: Any,
) -> Following:
    """Write the YAML of an application with topics of these roles, such windows and `more` keys."""
    start = time.strftime("%Y-%m-%d", time.gmtime())
    app_file = write(
        folder / "defs.yaml",
        document(
            application_id,
            connection={"bootstrap_servers": bootstrap_servers},
            warehouse=warehouse or str(warehouse_at(folder / "warehouse").root),
            recovery_points={"every_seconds": 5, "objective_seconds": objective_s},
            windows={"every": every, "start": start},
            topics={name: {"roles": [role]} for name, role in roles.items()},
            **more,
        ),
    )
    return Following(folder, load_settings(app_file), app_file)
