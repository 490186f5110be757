"""A Kafka Streams application of the examples as a child process."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from kstreams_assets.errors import ProcessError
from kstreams_assets.local.process import GuardedProcess
from spark_resources.java import JavaProgram

_RUNNING: Final = "STATE RUNNING"


class StreamsProcess:
    """Starts and stops an application, as a context manager.

    The program has to write `STATE RUNNING` once its KafkaStreams is in that state; what it writes
    goes to `log_file`. Raises ProcessError, JarsMissingError, JavaNotFoundError.
    """

    def __init__(
        self, program: JavaProgram, arguments: Sequence[str], *, log_file: Path, heap_mb: int
    ) -> None:
        self.log_file: Final = log_file
        self._program = program
        self._arguments = tuple(arguments)
        self._heap_mb = heap_mb
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
        """Start the application, if it does not run, and wait until RUNNING (3 s as a rule)."""
        if self.running:
            return
        self._process = GuardedProcess(
            [*self._program.command(heap_mb=self._heap_mb), *self._arguments],
            log_file=self.log_file,
        )
        deadline = time.monotonic() + timeout_s
        while not self._process.has_logged(_RUNNING):
            if not self._process.running or time.monotonic() > deadline:
                tail = self._process.log_tail(5)
                self._process.stop(timeout_s=2.0)
                raise ProcessError(
                    f"{self._program.source.stem} is not RUNNING: {tail}",
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
