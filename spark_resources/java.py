"""Finds the Java this project runs on."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.errors import JavaNotFoundError

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
    """Run a Java program for its version; a text says why it is none."""
    try:
        result = subprocess.run(
            [str(executable), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
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
        return f"does not tell its version (exit code {result.returncode})"
    return Java(executable=executable, home=Path(home[1].strip()), version=int(version[1]))
