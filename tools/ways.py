"""Through how many files the work of a user goes: `python -m tools.house ways`.

A broker is started here; then the program takes a point, backs up a window, follows for some
seconds, restores and drops points, each as a process of its own in which the functions that run are
recorded (this file, as a script). A file counts if one of its functions ran; what an import runs
does not count. Tests of the tool: `tests/test_ways.py`.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

PACKAGES: Final = ("kstreams_assets", "spark_resources")
GROUP: Final = "shop"
ORDERS, TOTALS, SUMS = "orders", "shop-totals-changelog", "sums"
_PROCESS_S: Final = 300.0
_KAFKA_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Way:
    """One thing that users do, and the product's files of which a function ran meanwhile."""

    name: str
    files: frozenset[str]


def ways_of(root: Path) -> tuple[Way, ...]:
    """The ways of a checkout: its program on a broker and a warehouse that end with this call.

    Raises:
        RuntimeError: A command ended with another exit code than 0; its output is named.
    """
    from kstreams_assets.local.cluster import LocalCluster

    with (
        tempfile.TemporaryDirectory(prefix="ways-") as name,
        LocalCluster(Path(name) / "kafka") as cluster,
    ):
        return tuple(_ways(_Program(root, Path(name), cluster.bootstrap_servers)))


def _ways(program: "_Program") -> Iterator[Way]:
    program.make_topics()
    program.work(0)
    program.write_yaml()
    yield program.way("take", "recovery-points", "take")
    time.sleep(60 - time.time() % 60 + 2)  # the window that holds the point ends
    program.work(1)
    program.way("take", "recovery-points", "take")
    yield program.way("backup", "backup")
    with program.working():
        yield program.way("follow", "follow", "--every", "1", until_there="increments")
    yield program.way("restore", "restore", "run", "--prefix", "restored-", *_AS_ANOTHER)
    yield program.way("expire", "expire")


_AS_ANOTHER: Final = ("--target-application-id", "restored-shop", "--accept", "at_least_once")


@dataclass(frozen=True, slots=True)
class _Program:
    root: Path
    folder: Path
    bootstrap_servers: str

    def way(self, name: str, *arguments: str, until_there: str | None = None) -> Way:
        """Run a command; one that goes on is ended as soon as a table has rows."""
        log = self.folder / f"{name}.json"
        app = ("--app", str(self.folder / "defs.yaml"))
        process = subprocess.Popen(
            [sys.executable, __file__, str(log), str(self.root), *arguments, *app],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if until_there is not None:
            commits = f"**/{until_there}/_delta_log/*1.json"  # the first makes the table
            deadline = time.monotonic() + _PROCESS_S
            while process.poll() is None and time.monotonic() < deadline:
                if any(self.folder.glob(commits)):
                    process.send_signal(signal.SIGTERM)
                    break
                time.sleep(0.5)
        out, _ = process.communicate(timeout=_PROCESS_S)
        if process.returncode != 0:
            raise RuntimeError(f"{name}: exit code {process.returncode}\n{out}")
        return Way(name, frozenset(json.loads(log.read_text())))

    def make_topics(self) -> None:
        """The topics of an application that counts."""
        from confluent_kafka.admin import (
            AdminClient,
            NewTopic,  # pyright: ignore[reportPrivateImportUsage]
        )

        compact = {"cleanup.policy": "compact"}
        topics = [
            NewTopic(ORDERS, 2, 1),
            NewTopic(TOTALS, 2, 1, config=compact),
            NewTopic(SUMS, 2, 1),
        ]
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for future in admin.create_topics(topics).values():
            future.result(timeout=_KAFKA_S)

    def work(self, step: int) -> None:
        """Some records everywhere; the group has read all orders, and rests."""
        from confluent_kafka import Consumer, Producer, TopicPartition

        producer = Producer({"bootstrap.servers": self.bootstrap_servers})
        for number in range(50):
            for topic in (ORDERS, TOTALS, SUMS):
                producer.produce(topic, f"{step}-{number}", str(number % 7), partition=number % 2)
        if producer.flush(_KAFKA_S):
            raise RuntimeError("The broker did not take the records in.")
        servers = {"bootstrap.servers": self.bootstrap_servers}
        consumer = Consumer({**servers, "group.id": GROUP, "enable.auto.commit": False})
        try:
            for number in range(2):
                _, end = consumer.get_watermark_offsets(TopicPartition(ORDERS, number), _KAFKA_S)
                at_end = [TopicPartition(ORDERS, number, end)]
                consumer.commit(offsets=at_end, asynchronous=False)
        finally:
            consumer.close()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work goes on, step by step, for the time of the block."""
        over = threading.Event()

        def work() -> None:
            step = 2
            while not over.wait(2.0):
                self.work(step)
                step += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def write_yaml(self) -> None:
        """The application, windows of a minute, a target that is the same broker."""
        import yaml

        connection = {"bootstrap_servers": self.bootstrap_servers}
        attributes: Mapping[str, Any] = {
            "application_id": GROUP,
            "connection": connection,
            "warehouse": str(self.folder / "warehouse"),
            "windows": {"every": "minute", "start": time.strftime("%Y-%m-%d-%H:%M", time.gmtime())},
            "topics": {
                ORDERS: {"roles": ["input"]},
                TOTALS: {"roles": ["changelog"]},
                SUMS: {"roles": ["output"]},
            },
            "guarantee": "at_least_once",
            "restore": {"target": connection},
            "keep": {"all": "1min", "minimum": 1},
        }
        type_ = "kstreams_assets.components.KafkaStreamsAppComponent"
        document = {"type": type_, "attributes": attributes}
        (self.folder / "defs.yaml").write_text(yaml.safe_dump(document), "utf-8")


def files_of(codes: Iterable[CodeType], root: Path) -> list[str]:
    """The product's files to which these belong, relative to the root; imports run no function."""
    found: set[str] = set()
    for code in codes:
        file = Path(code.co_filename)
        if code.co_name == "<module>" or not file.is_relative_to(root):
            continue
        relative = file.relative_to(root)
        if relative.parts[0] in PACKAGES:
            found.add(relative.as_posix())
    return sorted(found)


def _run_recorded(log: Path, root: Path, arguments: Sequence[str]) -> None:
    """Run the program of a checkout, and note the files of the functions that ran."""
    codes: set[CodeType] = set()

    def enter(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in codes or not code.co_filename.startswith(str(root)):
            return
        if not _while_imported(frame):  # a class's body runs then, as does what decorates it
            codes.add(code)

    sys.path[0] = str(root)
    sys.argv = ["kstreams-assets", *arguments]
    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        from kstreams_assets.cli.main import main

        main()
    finally:
        sys.setprofile(None)
        log.write_text(json.dumps(files_of(codes, root)))


def _while_imported(frame: FrameType) -> bool:
    caller: FrameType | None = frame
    while caller is not None:
        if caller.f_code.co_name == "<module>" and caller.f_globals.get("__name__") != "__main__":
            return True
        caller = caller.f_back
    return False


if __name__ == "__main__":
    _run_recorded(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
