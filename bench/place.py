"""A broker, an engine and warehouses of a case's own; commands run in them as whole processes."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml
from confluent_kafka import Producer

from bench.harness import Act, Measured, Options
from bench.memory import Usage, of_children, watched
from examples.demo.place import APPLICATION_ID, CHECKOUT, CONFIG
from examples.order_processor.application import OrderProcessor
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.store import StorePath
from spark_resources.engine import ENGINES_VARIABLE, engines, stop

LIMIT_S: Final = 900.0
_MINUTE_MS: Final = 60_000
APPLICATION: Final = "bench"
CUSTOMERS: Final = 1_000
"""Of the orders that the order processor gets."""


@dataclass(slots=True)
class Place:
    """Where a case runs; `begin` is when the first of its windows of a minute begins."""

    folder: Path
    cluster: KafkaCluster
    begin: datetime
    made: int = field(default=0)

    @property
    def bootstrap_servers(self) -> str:
        """The broker."""
        return self.cluster.connection.bootstrap_servers

    def window(self, number: int) -> str:
        """The key of a window."""
        return f"{self.begin + timedelta(minutes=number):%Y-%m-%d-%H:%M}"

    def file(self, attributes: Mapping[str, Any], name: str = "defs") -> Path:
        """A `defs.yaml` of the application `bench`; `attributes` are added to what it needs."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        told = {
            "application_id": APPLICATION,
            "connection": {"bootstrap_servers": self.bootstrap_servers},
            "warehouse": str(self.folder / "warehouse"),
            "windows": {"every": "minute", "start": f"{self.begin:%Y-%m-%d}"},
            **attributes,
        }
        component = "kstreams_assets.components.KafkaStreamsAppComponent"
        path = folder / "defs.yaml"
        path.write_text(yaml.safe_dump({"type": component, "attributes": told}), encoding="utf-8")
        return path

    def point(self, file: Path, number: int) -> RecoveryPoint:
        """Take a point now and date it into a window; it is in no warehouse yet."""
        settings = load_settings(file, warehouse=str(self.folder / "probe"))
        point = recorder_of(settings, self.cluster).take()
        shutil.rmtree(self.folder / "probe")
        middle = self.begin + timedelta(minutes=number, seconds=30)
        at_ms = round(middle.timestamp() * 1000)
        return replace(point, id=f"{number:06d}", taken_at_ms=at_ms)

    def warehouse(self, points: Sequence[RecoveryPoint]) -> Path:
        """A new warehouse that knows these points."""
        root = self.warehouse_in(self.folder, points)
        assert isinstance(root, Path)  # noqa: S101 (as the folder is)
        return root

    def warehouse_in(self, place: StorePath, points: Sequence[RecoveryPoint]) -> StorePath:
        """A new warehouse below a folder or a place of a store."""
        self.made += 1
        root = place / f"warehouse-{self.made}"
        for point in points:
            Repository(Warehouse(root), point.application_id).points.append(point)
        return root

    def copy(self, warehouse: Path) -> Path:
        """A copy of a warehouse."""
        self.made += 1
        return Path(shutil.copytree(warehouse, self.folder / f"warehouse-{self.made}"))

    def command(self, *words: str, **variables: str) -> Measured:
        """A command of `kstreams-assets` from its start to its end; raises when it fails."""
        before = of_children()
        began = time.monotonic()
        process = self.start(*words, **variables)
        with watched(lambda: [process.pid, *_engine_pids()]) as usage:
            out, err = process.communicate(timeout=LIMIT_S)
            seconds = time.monotonic() - began
        # Of the process itself the system knows more than was seen of it.
        cpu_s = usage.cpu_s - usage.of(process.pid) + of_children() - before
        if process.returncode:
            raise RuntimeError(f"{words} ended with {process.returncode}:\n{out}\n{err}")
        return Measured(seconds, cpu_s, usage.peak_mb)

    def start(self, *words: str, **variables: str) -> "subprocess.Popen[str]":
        """Start a command of `kstreams-assets`."""
        return subprocess.Popen(
            [sys.executable, "-m", "kstreams_assets.cli.main", *words],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), **variables},
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def usage(self) -> AbstractContextManager[Usage]:
        """What this process and the engine use during the block."""
        return watched(_engine_pids, me=True)

    def engine_runs(self) -> None:
        """Start an engine and let it warm up."""
        self.command("engine", "start")

    def no_engine(self) -> None:
        """End every engine of this place."""
        for engine in engines():
            stop(engine)

    def stored(self, root: StorePath, windows: Sequence[str], records: int) -> float:
        """MB of the files of windows; raises when they do not hold so many records."""
        entries = Ledger(Warehouse(root), APPLICATION).entries()
        contents = [e.result.content for e in entries if e.result.plan.window.key in windows]
        found = sum(content.records for content in contents)
        if found != records:
            raise RuntimeError(f"{root} holds {found:,} records, not {records:,}")
        return sum(content.stored_bytes for content in contents) / 1e6


@contextmanager
def place(heap_mb: int = 1024, *, properties: Mapping[str, str] | None = None) -> Iterator[Place]:
    """A broker of its own on this machine; engines that are started end with the block."""
    today = datetime.now(tz=UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    with (
        TemporaryDirectory(prefix="kstreams-bench-") as folder,
        engines_in(Path(folder) / "engines"),
        LocalCluster(Path(folder) / "kafka", heap_mb=heap_mb, properties=properties or {}) as local,
        KafkaCluster(KafkaConnection(bootstrap_servers=local.bootstrap_servers)) as cluster,
    ):
        yield Place(Path(folder), cluster, today - timedelta(days=1))


def order_processor(here: Place) -> OrderProcessor:
    """The order processor of the demo, to be entered."""
    return OrderProcessor(
        here.bootstrap_servers,
        state_dir=here.folder / "state",
        application_id=APPLICATION_ID,
        config=CONFIG,
    )


@contextmanager
def engines_in(folder: Path) -> Iterator[None]:
    """Engines are looked for and started in this folder; they end with the block."""
    before = os.environ.get(ENGINES_VARIABLE)
    folder.mkdir(mode=0o700)
    os.environ[ENGINES_VARIABLE] = str(folder)
    try:
        yield
    finally:
        for engine in engines():
            stop(engine)
        os.environ.pop(ENGINES_VARIABLE)
        if before is not None:
            os.environ[ENGINES_VARIABLE] = before


def externals(
    here: Place, options: Options, variables: Mapping[str, str], against: str
) -> list[Act]:
    """An act for each outside program; its command gets BOOTSTRAP, DIR and `variables`."""

    def shell(command: str, folder: Path) -> Measured:
        told = {"BOOTSTRAP": here.bootstrap_servers, "DIR": str(folder), **variables}
        began = time.monotonic()
        process = subprocess.Popen(["/bin/sh", "-c", command], env={**os.environ, **told})
        with watched(lambda: [process.pid]) as usage:
            process.wait(LIMIT_S)
            seconds = time.monotonic() - began
        if process.returncode:
            raise RuntimeError(f"{command!r} ended with {process.returncode}")
        return Measured(seconds, usage.cpu_s, usage.peak_mb)

    def act(command: str) -> Callable[[], Measured]:
        def run() -> Measured:
            folder = here.folder / "external"
            folder.mkdir()
            if options.external_prepare:
                shell(options.external_prepare, folder)
            measured = shell(command, folder)
            stored = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6
            if options.external_cleanup:
                shell(options.external_cleanup, folder)
            shutil.rmtree(folder)
            return replace(measured, stored_mb=stored)

        return run

    return [Act(name, act(command), against=against) for name, command in options.externals.items()]


def _engine_pids() -> list[int]:
    return [engine.pid for engine in engines()]


def flushed(producer: Producer) -> None:
    """Wait until every record is acknowledged."""
    if producer.flush(120):
        raise RuntimeError("not every record was delivered")


def send(producer: Producer, *record: Any, **more: Any) -> None:  # noqa: ANN401 - as `produce`
    """Produce one record, waiting for room."""
    while True:
        try:
            producer.produce(*record, **more)
            return
        except BufferError:
            producer.poll(0.2)
