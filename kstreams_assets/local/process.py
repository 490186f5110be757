"""Child processes that never outlive their owner, however it ends."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from kstreams_assets.errors import ProcessError
from spark_resources.java import OF_A_JVM, small_environment

_GUARDIAN: Final = Path(__file__).with_name("guardian.py")
_START_TIMEOUT_S: Final = 20.0
_TAIL_BYTES: Final = 1024 * 1024


class GuardedProcess:
    """A program that runs under a guardian process, its output appended to a log file.

    It is killed (with its process group) when the owner exits, is killed, or drops this object. It
    gets no input and does not see the terminal's Ctrl-C. Its environment is `environment`, by
    default `small_environment` and the options of JVMs, never the whole environment of this
    process. Methods may be called from any thread. Raises ProcessError if the program cannot be
    started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_file: Path,
        environment: Mapping[str, str] | None = None,
        working_directory: Path | None = None,
    ) -> None:
        self.command: Final = tuple(command)
        self.log_file: Final = log_file
        self._lock = threading.Lock()
        self._status = b""
        self._returncode: int | None = None
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as log:
            self._log_start = log.tell()
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARDIAN), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=small_environment(OF_A_JVM) if environment is None else dict(environment),
                cwd=working_directory,
                start_new_session=True,
            )
        self.pid: Final = self._await_start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def guardian_pid(self) -> int:
        """The process id of the guardian."""
        return self._guardian.pid

    @property
    def returncode(self) -> int | None:
        """None while the program runs, then its exit code, or the negative signal number."""
        with self._lock:
            self._read_status(0.0)
            return self._returncode

    @property
    def running(self) -> bool:
        """Whether the program has not exited yet."""
        return self.returncode is None

    def wait(self, *, timeout_s: float) -> int:
        """Return the exit code once the program has exited; raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._read_status(min(0.2, max(0.0, deadline - time.monotonic())))
                if self._returncode is not None:
                    return self._returncode
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"{self.command[0]} (process {self.pid}) still runs after {timeout_s:g} s"
                )

    def terminate(self) -> None:
        """Send SIGTERM, without waiting; does nothing if the program has exited."""
        self._ask(b"T")

    def kill(self, *, timeout_s: float = 10.0) -> int:
        """Send SIGKILL to the process group and return the exit code; raises TimeoutError."""
        self._ask(b"K")
        return self.wait(timeout_s=timeout_s)

    def stop(self, *, timeout_s: float = 10.0) -> int:
        """Send SIGTERM, after `timeout_s` SIGKILL, and return the exit code."""
        self.terminate()
        try:
            return self.wait(timeout_s=timeout_s)
        except TimeoutError:
            return self.kill()

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of this process in the log file (from its last MiB)."""
        with self.log_file.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-lines:])

    def has_logged(self, text: str) -> bool:
        """Return whether this process has written the text to the log file."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            return text.encode() in log.read()

    def _ask(self, wish: bytes) -> None:
        with self._lock:
            stdin = self._guardian.stdin
            if stdin is not None and not stdin.closed:
                with contextlib.suppress(BrokenPipeError):
                    stdin.write(wish)

    def _await_start(self) -> int:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while b"\n" not in self._status and time.monotonic() < deadline:
            if not self._read_status(0.2):
                break
        word, _, rest = self._status.partition(b"\n")[0].decode("utf-8", "replace").partition(" ")
        if word == "started":
            return int(rest)
        self._guardian.kill()
        self._close()
        raise ProcessError(
            f"Cannot start {self.command[0]}: {rest or self.log_tail(3) or 'no answer'}.",
            remedy=f"Check that it exists and may be run; its log is {self.log_file}.",
        )

    def _read_status(self, timeout_s: float) -> bool:
        """Read the guardian's reports; False at their end."""
        stdout = self._guardian.stdout
        if stdout is None or stdout.closed:
            return False
        while select.select([stdout], [], [], timeout_s)[0]:
            timeout_s = 0.0
            chunk = os.read(stdout.fileno(), 4096)
            if not chunk:
                self._finish()
                return False
            self._status += chunk
        return True

    def _finish(self) -> None:
        """Read the exit code from the guardian's last report."""
        for line in self._status.decode("utf-8", "replace").splitlines():
            word, _, rest = line.partition(" ")
            if word == "exited":
                self._returncode = int(rest)
        if self._returncode is None and hasattr(self, "pid"):
            # The guardian was killed; only Linux kills the child with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._returncode = -signal.SIGKILL
        self._close()

    def _close(self) -> None:
        for pipe in (self._guardian.stdin, self._guardian.stdout):
            if pipe is not None:
                pipe.close()
        self._guardian.wait(timeout=10.0)
