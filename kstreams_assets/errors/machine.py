"""What is missing on this machine."""

from collections.abc import Iterable
from pathlib import Path

from kstreams_assets.errors.base import KStreamsAssetsError


class JavaNotFoundError(KStreamsAssetsError):
    """No JDK 17 or 21 was found through JAVA_HOME or PATH."""


class ProcessError(KStreamsAssetsError):
    """A program of this machine could not be started or failed."""


class JarsMissingError(KStreamsAssetsError):
    """Jars of the lock file are missing or differ from it."""

    def __init__(self, *, directory: Path, missing: Iterable[str], command: str) -> None:
        self.directory = directory
        self.missing = tuple(missing)
        self.command = command
        names = ", ".join(self.missing[:5]) + (" ..." if len(self.missing) > 5 else "")
        super().__init__(
            f"{len(self.missing)} jar(s) missing or different in {directory}: {names}.",
            remedy=f"Run: {command}",
        )


class WarehouseError(KStreamsAssetsError):
    """A folder or table of the warehouse cannot be read or written.

    `path` is what could not be used; `reason` is one line, as the system or the library gave it.
    """

    def __init__(self, *, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path} cannot be used: {reason}.", remedy=remedy)
        self.path = path
        self.reason = reason


class StoredDataError(KStreamsAssetsError):
    """Stored data is missing, or does not match what was noted when it was written.

    `subject` names the data (a span of a window, a row, a snapshot), `found` what is wrong with it.
    Nothing of it was used.
    """

    def __init__(self, *, subject: str, problem: str, remedy: str) -> None:
        super().__init__(f"{subject} cannot be used: {problem}.", remedy=remedy)
        self.subject = subject
        self.found = problem
