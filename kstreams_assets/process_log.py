"""Find out from the log of a program why it ended, in one line."""

import re
from pathlib import Path
from typing import Final

_ENDED_ITSELF: Final = (
    re.compile(r"^((?:Invalid|Unrecognized|Conflicting) .+)$", re.MULTILINE),
    re.compile(r"^(.*(?:insufficient memory|OutOfMemoryError).*)$", re.MULTILINE),
    re.compile(r"^(No executor of .+)$", re.MULTILINE),
    re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE),
    re.compile(r'^Exception in thread "[^"]*" (.+)$', re.MULTILINE),
    re.compile(r"^((?:\w+\.)*\w*(?:Exception|Error): .+)$", re.MULTILINE),
    re.compile(r"^Error: (?!A fatal exception|A JNI error)(.+)$", re.MULTILINE),
)
"""The last lines of a JVM, Spark and Python before they end, most specific first."""
_READ_BYTES: Final = 256 * 1024
_LONGEST: Final = 300


def cause_in_log(log: Path) -> str:
    """The reason in the log why a program ended, without a period; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _READ_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    for pattern in _ENDED_ITSELF:
        if found := pattern.findall(text):
            line = " ".join(found[-1].split()).rstrip(".")
            return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
    return ""
