"""Small Java programs: compiled once against a set of jars, then run."""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.errors import ProcessError
from spark_resources.jars import JarSet, class_path, jars_home
from spark_resources.java import find_java

_COMPILE_TIMEOUT_S: Final = 120.0
_LOG_OPTIONS: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """A Java source file whose main class has the file's name, on the class path of a jar set.

    `also` are further sources that it uses.
    """

    source: Path
    jar_set: JarSet = "kafka"
    also: tuple[Path, ...] = ()

    def command(self, *, heap_mb: int) -> list[str]:
        """Return the command up to the program's own arguments.

        The source is compiled once: starting from source would take a second more each time.
        Raises ProcessError, JarsMissingError, JavaNotFoundError.
        """
        java = find_java(compiler=True)
        jars = class_path(self.jar_set)
        texts = b"".join(source.read_bytes() for source in (self.source, *self.also))
        digest = hashlib.sha256(texts + jars.encode()).hexdigest()[:16]
        classes = jars_home() / "classes" / f"{self.source.stem}-{digest}-java{java.version}"
        if not classes.is_dir():
            self._compile(java.compiler or Path("javac"), jars, classes)
        options = [f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", *_LOG_OPTIONS]
        return [str(java.executable), *options, "-cp", f"{jars}:{classes}", self.source.stem]

    def run(self, arguments: Sequence[str], *, timeout_s: float, heap_mb: int = 128) -> str:
        """Run the program to its end and return its output; raises what `command` raises."""
        return _run([*self.command(heap_mb=heap_mb), *arguments], timeout_s=timeout_s)

    def _compile(self, javac: Path, jars: str, classes: Path) -> None:
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=classes.parent) as temporary:
            target = Path(temporary) / "classes"
            command = [str(javac), "-cp", jars, "-d", str(target)]
            command += [str(source) for source in (self.source, *self.also)]
            _run(command, timeout_s=_COMPILE_TIMEOUT_S)
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
