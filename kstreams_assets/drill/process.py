"""The application of a drill as a process that cannot outlive the drill, watched and measured."""

import contextlib
import threading
import time
from pathlib import Path
from typing import Final, Self

from kstreams_assets.drill.command import DrillCommand
from kstreams_assets.drill.measure import TreeMeter, TreeUse
from kstreams_assets.drill.streams_log import StreamsLog
from kstreams_assets.kafka.guarded_process import GuardedProcess

_LOOK_S: Final = 0.05
_MEASURE_EVERY: Final = 8
"""Looks from one measurement to the next: 0.4 s."""
_STOP_S: Final = 30.0
_JOIN_S: Final = 10.0
_TAIL_LINES: Final = 20


class DrilledApplication:
    """Runs the command from the start of the block to its end, as a context manager.

    A thread reads its output and measures it. Raises ProcessError when it cannot be started.
    """

    def __init__(self, command: DrillCommand, *, log_file: Path, running_line: str) -> None:
        self.started_s: Final = time.monotonic()
        self.log: Final = StreamsLog(running_line)
        self._process = GuardedProcess(
            command.arguments,
            log_file=log_file,
            environment=command.environment,
            working_directory=command.working_directory,
        )
        self._log_file = log_file
        self._meter = TreeMeter(self._process.pid)
        self._use = TreeUse()
        self._ended = threading.Event()
        self._use_at_running: TreeUse | None = None
        self._thread = threading.Thread(target=self._watch, name="drill", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def exit_code(self) -> int | None:
        """None while it runs, then its exit code, or the negative signal number."""
        return self._process.returncode

    @property
    def running_s(self) -> float | None:
        """Seconds from its start to RUNNING, None as long as it has not said so."""
        at_s = self.log.running_at_s
        return None if at_s is None else at_s - self.started_s

    @property
    def use(self) -> TreeUse:
        """What it has used, as last measured."""
        return self._use

    @property
    def use_at_running(self) -> TreeUse | None:
        """What it had used when it was RUNNING, None as long as it is not."""
        return self._use_at_running

    def last_lines(self) -> tuple[str, ...]:
        """The end of its output."""
        return tuple(self._process.log_tail(_TAIL_LINES).splitlines())

    def stop(self) -> None:
        """Close it in an orderly way (SIGTERM), after 30 s SIGKILL; read its output to the end."""
        self._process.stop(timeout_s=_STOP_S)
        self._ended.set()
        self._thread.join(_JOIN_S)

    def _watch(self) -> None:
        looks, rest = 0, ""
        with contextlib.closing(
            self._log_file.open("r", encoding="utf-8", errors="replace")
        ) as log:
            while True:
                ended = self._ended.is_set()
                *lines, rest = (rest + log.read()).split("\n")
                now_s = time.monotonic()
                for line in lines:
                    self.log.take(line, now_s)
                if looks % _MEASURE_EVERY == 0 or self._is_just_running():
                    self._use = self._meter.sample()
                if self._is_just_running():
                    self._use_at_running = self._use
                if ended:
                    return
                looks += 1
                self._ended.wait(_LOOK_S)

    def _is_just_running(self) -> bool:
        return self._use_at_running is None and self.log.running_at_s is not None
