"""A first backup of gigabytes as one window: memory, a kill near its end, throttle, a slow line."""

import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from unittest import mock

import psutil

from bench.harness import Act, Case, Measured, Options
from bench.place import APPLICATION, Place, place
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import HOST, choose_ports
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.settings import BackupSettings, WindowSchedule
from spark_resources.engine import engines
from spark_resources.jars import class_path
from spark_resources.java import find_java

_PARTITIONS: Final = 4
_RECORD_BYTES: Final = 1_000
_SMALL, _LARGE, _SLOW = 1_000_000, 6_000_000, 300_000
"""Records."""
_LIMIT_S: Final = 3_600.0
_THROTTLE: Final = 20_000_000
_PROXY: Final = 5_000_000
_KILLED_AT: Final = 0.88
_READING: Final = re.compile(r"Reading (\d+) offsets")


@contextmanager
def large_window(options: Options) -> Iterator[Case]:
    """For the harness."""
    with place() as here:
        runs = {
            name: _Runs(here, name, options.scaled(count), options.scale)
            for name, count in (("small", _SMALL), ("large", _LARGE))
        }
        here.engine_runs()
        memory = {"python_mb": 500.0}
        yield Case(
            "1 GB and 6 GB in transactions of 100 ms, each as one window",
            [
                Act("backup of 1 GB", runs["small"].backup, at_most=memory, once=True),
                Act("backup of 6 GB, in parts", runs["large"].backup, at_most=memory, once=True),
                Act("the same, killed at 90 %", runs["large"].killed, once=True),
                Act(
                    "the next run",
                    runs["large"].resumed,
                    at_most={**memory, "read_percent": 15.0},
                    once=True,
                ),
                Act(
                    "1 GB at 20 MB/s",
                    runs["small"].throttled,
                    at_most={**memory, "off_percent": 10.0},
                    once=True,
                ),
                Act(
                    "0.3 GB behind a proxy of 5 MB/s",
                    partial(_behind_a_proxy, options),
                    at_most=memory,
                    once=True,
                ),
            ],
            [
                "Records of 1,000 bytes over 4 partitions, from Kafka's ProducerPerformance with"
                " `--transaction-duration-ms 100`, not compressed. `backup` is the whole process on"
                " a warm engine, into a new warehouse.",
                "`python_mb`: the largest sum of the memory of the command and of Spark's Python"
                " workers, looked at every 0.2 s; of a page that several share each has its part"
                " (PSS). `largest_mb`: the largest of these processes, shared pages included.",
                "`read_percent`: offsets that the run after the kill reads, of all of the window;"
                " a tenth of them was not read before.",
                "`mb_per_s` of the throttle: what the broker sent from 3 to 97 % of the bytes;"
                " `off_percent`: by how much that differs from the limit.",
            ],
        )


@dataclass(slots=True)
class _Pythons:
    """Memory of Python processes, in MB (10^6)."""

    together: float = 0.0
    largest: float = 0.0

    def look(self, client: int) -> None:
        found = [client]
        for engine in engines():
            with suppress(psutil.Error):
                found += [
                    child.pid
                    for child in psutil.Process(engine.pid).children(recursive=True)
                    if "python" in child.name()
                ]
        together = 0.0
        for pid in found:
            with suppress(psutil.Error):
                used = psutil.Process(pid).memory_full_info()
                # Other systems than Linux tell what a process has alone.
                together += getattr(used, "pss", used.uss) / 1e6
                self.largest = max(self.largest, used.rss / 1e6)
        self.together = max(self.together, together)


@dataclass(slots=True)
class _Runs:
    """Backups of one topic as one window."""

    here: Place
    name: str
    records: int
    scale: float
    bootstrap: str = ""
    ends: Mapping[TopicPartitionId, int] = field(init=False)
    app_file: Path = field(init=False)
    root: Path = field(init=False)

    def __post_init__(self) -> None:
        here = self.here
        here.cluster.create_topics([TopicSpec(self.name, _PARTITIONS, 1)])
        _produce(here.bootstrap_servers, self.name, self.records)
        wanted = [TopicPartitionId(self.name, n) for n in range(_PARTITIONS)]
        self.ends = here.cluster.high_watermarks(wanted)
        settings = BackupSettings()
        self.app_file = here.file(
            {
                "topics": {self.name: {"roles": ["input"]}},
                "backup": {
                    "commit_bytes": round(settings.commit_bytes * self.scale),
                    "part_bytes": round(settings.part_bytes * self.scale),
                },
            },
            self.name,
        )

    def backup(self) -> Measured:
        """The whole process."""
        self.new_warehouse()
        measured, _ = self.run()
        stored = self.stored()
        shutil.rmtree(self.root)
        return Measured(measured.seconds, stored_mb=stored, figures=measured.figures)

    def killed(self) -> Measured:
        """Killed once 88 % are committed, and half a part later."""
        self.new_warehouse()
        return self.run(kill_at=_KILLED_AT)[0]

    def resumed(self) -> Measured:
        """The next run."""
        measured, said = self.run("--verbose")
        read = sum(map(int, _READING.findall(said)))
        figures = {**measured.figures, "read_percent": 100 * read / sum(self.ends.values())}
        stored = self.stored()
        shutil.rmtree(self.root)
        return Measured(measured.seconds, stored_mb=stored, figures=figures)

    def throttled(self) -> Measured:
        """At a rate, as the broker sends it: without the start of the job and the commit."""
        self.new_warehouse()
        rate = round(_THROTTLE * max(self.scale, 0.1))
        with _sent_by(self.here) as sent:
            measured, _ = self.run(bytes_per_s=rate)
        total = sent[-1][1]
        began, ended = (next(one for one in sent if one[1] > total * s) for s in (0.03, 0.97))
        held = (ended[1] - began[1]) / (ended[0] - began[0])
        shutil.rmtree(self.root)
        figures = {"mb_per_s": held / 1e6, "off_percent": 100 * abs(held / rate - 1)}
        return Measured(measured.seconds, figures={**measured.figures, **figures})

    def new_warehouse(self) -> None:
        """One that knows a point in the window."""
        self.root = self.here.warehouse([self.here.point(self.app_file, 1)])

    def stored(self) -> float:
        """MB of its files; raises when they do not hold every record."""
        return self.here.stored(self.root, [self.here.window(1)], self.records)

    def run(
        self, *options: str, bytes_per_s: int | None = None, kill_at: float = 2.0
    ) -> tuple[Measured, str]:
        """The command, and what it printed."""
        words = ["backup", "--app", str(self.app_file), "--warehouse", str(self.root)]
        words += ["--window", self.here.window(1)]
        if self.bootstrap:
            words += ["--bootstrap", self.bootstrap]
        if bytes_per_s:
            words += ["--bytes-per-second", str(bytes_per_s)]
        pythons = _Pythons()
        began = time.monotonic()
        process = self.here.start(*options, *words)
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.extend(process.communicate(timeout=_LIMIT_S)))
        reader.start()
        killed_after = float("inf")
        while reader.is_alive():
            pythons.look(process.pid)
            elapsed = time.monotonic() - began
            if killed_after == float("inf") and kill_at <= 1 and self._committed() >= kill_at:
                killed_after = elapsed * (1 + 0.5 * 0.04)
            if elapsed >= killed_after:
                process.kill()
                killed_after = _LIMIT_S
            reader.join(0.2)
        seconds = time.monotonic() - began
        if process.returncode and kill_at > 1:
            raise RuntimeError(f"the backup failed:\n{''.join(said)}")
        figures = {"python_mb": pythons.together, "largest_mb": pythons.largest}
        if kill_at <= 1:
            figures["committed_percent"] = 100 * self._committed()
        return Measured(seconds, figures=figures), "".join(said)

    def _committed(self) -> float:
        """The share of the window that increments hold."""
        schedule = WindowSchedule.every("minute", start=f"{self.here.begin:%Y-%m-%d}")
        (window,) = WindowCalendar(schedule).windows([self.here.window(1)])
        done = Ledger(Warehouse(self.root), APPLICATION).increments_of(window)
        offsets = sum(entry.result.plan.end - entry.result.plan.start for entry in done)
        return offsets / sum(self.ends.values())


@contextmanager
def _sent_by(here: Place) -> Iterator[list[tuple[float, int]]]:
    """What the broker has written to disk and network, in bytes, every quarter of a second."""
    (broker,) = (
        process
        for process in psutil.Process().children(recursive=True)
        if process.name() == "java"  # what guards it has the same words
        and "kafka.Kafka" in process.cmdline()
        and str(here.folder) in " ".join(process.cmdline())
    )
    sent: list[tuple[float, int]] = []
    ended = threading.Event()
    # Linux counts here what goes to sockets, too.
    counters = Path(f"/proc/{broker.pid}/io")

    def look() -> None:
        text = counters.read_text(encoding="ascii")
        written = int(re.findall(r"wchar: (\d+)", text)[0])
        sent.append((time.monotonic(), written))

    def watch() -> None:
        while not ended.wait(0.25):
            look()

    look()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        ended.set()
        thread.join()
        look()
        sent[:] = [(at, written - sent[0][1]) for at, written in sent]


def _produce(servers: str, topic: str, records: int) -> None:
    command = [str(find_java().executable), "-Xmx512m", "-cp", class_path("kafka")]
    subprocess.run(
        [
            *command,
            "org.apache.kafka.tools.ProducerPerformance",
            *("--bootstrap-server", servers, "--topic", topic),
            *("--num-records", str(records), "--record-size", str(_RECORD_BYTES)),
            *("--throughput", "-1", "--transactional-id", f"bench-{topic}"),
            *("--transaction-duration-ms", "100"),
            *("--command-property", "acks=all", "linger.ms=20", "batch.size=500000"),
        ],
        capture_output=True,
        check=True,
        timeout=_LIMIT_S,
    )


def _behind_a_proxy(options: Options) -> Measured:
    """Every connection of the backup goes through a proxy, answers at 5 MB/s in all."""
    ports, other = choose_ports(2)
    advertised = f"CLIENT://{HOST}:{other.client},INTERNAL://{HOST}:{ports.internal}"
    with (
        mock.patch("kstreams_assets.local.cluster.choose_ports", return_value=(ports,)),
        _proxy(other.client, ports.client) as limit,
        place(properties={"advertised.listeners": advertised}) as here,
    ):
        runs = _Runs(here, "slow", options.scaled(_SLOW), options.scale)
        here.engine_runs()
        runs.new_warehouse()
        runs.bootstrap = f"{HOST}:{other.client}"
        limit[0] = _PROXY
        measured, _ = runs.run()
        limit[0] = 0
        moved = runs.records * _RECORD_BYTES / measured.seconds / 1e6
        stored = runs.stored()
        return Measured(
            measured.seconds, stored_mb=stored, figures={**measured.figures, "mb_per_s": moved}
        )


@contextmanager
def _proxy(port: int, broker: int) -> Iterator[list[int]]:
    """A proxy; the one number that it gives is the limit of all answers together (0: none)."""
    limit, moving = [0], threading.Lock()
    free_at = [0.0]

    def forward(one: socket.socket, other: socket.socket, *, limited: bool) -> None:
        with suppress(OSError):
            while data := one.recv(16_384):
                if limited and limit[0]:
                    with moving:
                        free_at[0] = max(free_at[0], time.monotonic()) + len(data) / limit[0]
                        until = free_at[0]
                    time.sleep(max(0.0, until - time.monotonic()))
                other.sendall(data)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((HOST, broker), 10)
                for each in ((client, server, False), (server, client, True)):
                    threading.Thread(
                        target=partial(forward, *each[:2], limited=each[2]), daemon=True
                    ).start()

    with socket.create_server((HOST, port)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield limit
