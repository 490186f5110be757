"""Finds the Java this project runs on, compiles and runs programs with it."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.errors import JavaNotFoundError, KStreamsAssetsError, ProcessError
from spark_resources.jars import JarSet, class_path, jars_home

PASSED_ON: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR"),
    "JAVA_HOME",
)
"""Variables of this process's environment for programs that it starts: no secrets."""
OF_A_JVM: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
"""JVM options set by the user for every JVM, including those of local brokers."""
SUPPORTED_VERSIONS: Final = (17, 21)
_VERSION_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Java:
    """An installed Java: its program, its home and its major version."""

    executable: Path
    home: Path
    version: int

    @property
    def compiler(self) -> Path | None:
        """The `javac` of the same installation; None for a runtime without compiler."""
        javac = self.home / "bin" / "javac"
        return javac if javac.is_file() else None


def small_environment(
    pass_on: Iterable[str] = (), own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the complete environment of a program that this process starts.

    It has the variables of `PASSED_ON` and those in `pass_on` with the values of this process, and
    `own`. Passwords of Kafka and of the store, which this process may have, are not included.
    """
    names = (*PASSED_ON, *pass_on)
    return {**{name: os.environ[name] for name in names if name in os.environ}, **(own or {})}


def find_java(*, compiler: bool = False) -> Java:
    """Find Java 17 or 21 through JAVA_HOME, then PATH; with `compiler`, one that has `javac`.

    Every candidate is run once (at most 20 s) and asked for its version. Raises JavaNotFoundError.
    """
    seen: list[str] = []
    for candidate, source in _candidates():
        found = _inspect(candidate)
        if isinstance(found, str):
            seen.append(f"{source} gives {candidate}, which {found}")
        elif found.version not in SUPPORTED_VERSIONS:
            seen.append(f"{source} gives {candidate}, which is Java {found.version}")
        elif compiler and found.compiler is None:
            seen.append(f"{source} gives {candidate}, which has no compiler (javac)")
        else:
            return found
    what = "; ".join(seen) if seen else "JAVA_HOME is not set and PATH has no java"
    raise JavaNotFoundError(
        f"No JDK 17 or 21: {what}.",
        remedy="Install one (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless; macOS: brew"
        " install openjdk@17) and set JAVA_HOME to it.",
    )


def is_present(jar_set: JarSet) -> bool:
    """Return whether the jars of a set and any Java are there; does not run Java."""
    try:
        class_path(jar_set)
    except KStreamsAssetsError:
        return False
    return any(candidate.is_file() for candidate, _ in _candidates())


def _candidates() -> list[tuple[Path, str]]:
    candidates: list[tuple[Path, str]] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        candidates.append((Path(home) / "bin" / "java", "JAVA_HOME"))
    on_path = shutil.which("java")
    if on_path:
        candidates.append((Path(on_path), "PATH"))
    return candidates


def _inspect(executable: Path) -> Java | str:
    """Run a Java program for its version; return a text if it is unusable."""
    try:
        result = subprocess.run(
            [str(executable), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            env=small_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not answer within {_VERSION_TIMEOUT_S:g} s"
    except OSError as error:
        return f"cannot be run ({error.strerror})"
    output = result.stderr + result.stdout
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", output)
    home = re.search(r"java\.home = (.+)", output)
    if result.returncode != 0 or version is None or home is None:
        return f"does not report its version (exit code {result.returncode})"
    return Java(executable=executable, home=Path(home[1].strip()), version=int(version[1]))


_COMPILE_TIMEOUT_S: Final = 120.0
_LOG_OPTIONS: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """A Java source file whose main class has the file's name, on the class path of a jar set.

    `also` are further sources that it uses, `jars` further jars of its class path at run time.
    """

    source: Path
    jar_set: JarSet = "kafka"
    also: tuple[Path, ...] = ()
    jars: tuple[Path, ...] = ()

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
            self._compile(java, jars, classes)
        options = [f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", *_LOG_OPTIONS]
        path = ":".join(map(str, (jars, classes, *self.jars)))
        return [str(java.executable), *options, "-cp", path, self.source.stem]

    def run(self, arguments: Sequence[str], *, timeout_s: float, heap_mb: int = 128) -> str:
        """Run the program to its end and return its output; raises what `command` raises."""
        return _run([*self.command(heap_mb=heap_mb), *arguments], timeout_s=timeout_s)

    def _compile(self, java: Java, jars: str, classes: Path) -> None:
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=classes.parent) as temporary:
            target = Path(temporary) / "classes"
            compile_java(java, (self.source, *self.also), target, class_path=jars)
            try:
                os.rename(target, classes)
            except OSError:
                if not classes.is_dir():  # else another process was faster
                    raise


def compile_java(
    java: Java,
    sources: Iterable[Path],
    classes: Path,
    *,
    class_path: str,
    options: Sequence[str] = (),
) -> None:
    """Compile sources into the folder `classes`; raise ProcessError if they do not compile."""
    command = [str(java.compiler or "javac"), "-cp", class_path, "-d", str(classes), *options]
    _run([*command, *map(str, sources)], timeout_s=_COMPILE_TIMEOUT_S)


def _run(command: list[str], *, timeout_s: float) -> str:
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=small_environment(),
            check=True,
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
