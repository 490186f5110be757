"""Starts and stops the order processor, and makes its topics."""

import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kstreams_assets.errors import ProcessError
from kstreams_assets.kafka.guarded_process import GuardedProcess
from spark_resources.jars import class_path, jars_home
from spark_resources.java import find_java

Guarantee = Literal["exactly_once_v2", "at_least_once"]

TOPICS: Final = ("orders", "customer-totals", "orders-rejected")
SOURCE: Final = Path(__file__).with_name("OrderProcessor.java")

_COMPILE_TIMEOUT_S: Final = 120.0
_DESCRIBE_TIMEOUT_S: Final = 60.0
_ADMIN_TIMEOUT_S: Final = 30.0
_RUNNING: Final = "STATE RUNNING"
_LOG_OPTIONS: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


def create_topics(
    bootstrap_servers: str,
    *,
    topic_prefix: str = "",
    partitions: int = 4,
    replication_factor: int = 1,
    client: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Create the topics the application does not create itself; those that exist stay as they are.

    Returns their names. Raises KafkaException when a topic cannot be created within 30 s.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, **(client or {})})
    names = tuple(topic_prefix + topic for topic in TOPICS)
    new = [NewTopic(name, partitions, replication_factor) for name in names]
    for created in admin.create_topics(new, request_timeout=_ADMIN_TIMEOUT_S).values():
        try:
            created.result(timeout=_ADMIN_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return names


def describe_topology(*, topic_prefix: str = "") -> str:
    """Return what the application's Topology.describe() says.

    Raises ProcessError, JarsMissingError, JavaNotFoundError.
    """
    command = [*_java_command(heap_mb=128), "--describe", "--topic-prefix", topic_prefix]
    return _run(command, timeout_s=_DESCRIBE_TIMEOUT_S)


class OrderProcessor:
    """The application as a process of this machine, as a context manager.

    It needs its topics (`create_topics`). `state_dir` keeps its stores from one start to the next;
    its output goes to `order-processor.log` beside that folder. `config` has further Streams
    properties. Raises ProcessError, JarsMissingError, JavaNotFoundError.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        state_dir: Path,
        application_id: str = "orders",
        guarantee: Guarantee = "exactly_once_v2",
        commit_interval_ms: int | None = None,
        threads: int = 1,
        topic_prefix: str = "",
        config: Mapping[str, str] | None = None,
        heap_mb: int = 256,
    ) -> None:
        self.log_file: Final = state_dir.parent / f"{state_dir.name}-order-processor.log"
        self._heap_mb = heap_mb
        self._arguments = [
            *("--bootstrap", bootstrap_servers),
            *("--application-id", application_id),
            *("--guarantee", guarantee),
            *("--state-dir", str(state_dir.absolute())),
            *("--threads", str(threads)),
            *("--topic-prefix", topic_prefix),
        ]
        if commit_interval_ms is not None:
            self._arguments += ["--commit-interval-ms", str(commit_interval_ms)]
        for key, value in (config or {}).items():
            self._arguments += ["--config", f"{key}={value}"]
        self._process: GuardedProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The process id, None when it does not run."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.running

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start the application and wait until its state is RUNNING (3 s as a rule)."""
        self._process = GuardedProcess(
            [*_java_command(heap_mb=self._heap_mb), *self._arguments], log_file=self.log_file
        )
        deadline = time.monotonic() + timeout_s
        while not self._process.has_logged(_RUNNING):
            if not self._process.running or time.monotonic() > deadline:
                tail = self._process.log_tail(5)
                self._process.stop(timeout_s=2.0)
                raise ProcessError(
                    f"The order processor is not RUNNING: {tail}",
                    remedy=f"Read {self.log_file}; check that its topics exist.",
                )
            time.sleep(0.05)

    def stop(self, *, timeout_s: float = 30.0) -> None:
        """Close the application in an orderly way (SIGTERM); SIGKILL after `timeout_s`."""
        if self._process is not None:
            self._process.stop(timeout_s=timeout_s)
            self._process = None

    def kill(self) -> None:
        """Kill the application with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process = None


def _java_command(*, heap_mb: int) -> list[str]:
    """Return the command up to the application's own options.

    The source is compiled once: starting from source would take a second more each time.
    """
    java = find_java(compiler=True)
    jars = class_path("kafka")
    digest = hashlib.sha256(SOURCE.read_bytes() + jars.encode()).hexdigest()[:16]
    classes = jars_home() / "classes" / f"order-processor-{digest}-java{java.version}"
    if not classes.is_dir():
        _compile(java.compiler or Path("javac"), jars, classes)
    options = [f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", *_LOG_OPTIONS]
    return [str(java.executable), *options, "-cp", f"{jars}:{classes}", "OrderProcessor"]


def _compile(javac: Path, jars: str, classes: Path) -> None:
    classes.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=classes.parent) as temporary:
        target = Path(temporary) / "classes"
        _run(
            [str(javac), "-cp", jars, "-d", str(target), str(SOURCE)], timeout_s=_COMPILE_TIMEOUT_S
        )
        try:
            os.rename(target, classes)
        except OSError:
            if not classes.is_dir():  # else another process was quicker
                raise


def _run(command: list[str], *, timeout_s: float) -> str:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise ProcessError(
            f"{command[0]} did not end within {timeout_s:g} s.", remedy="Try again."
        ) from error
    except subprocess.CalledProcessError as error:
        raise ProcessError(
            f"{command[0]} failed: {(error.stderr or error.stdout).strip()}",
            remedy="Check the JDK (17 or 21) and the jars: make setup.",
        ) from error
    return result.stdout
