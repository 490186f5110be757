"""What a measurement was made on, and how it is written down."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from spark_resources.java import find_java

RESULTS = Path(__file__).with_name("results")
_PACKAGES = ("pyspark", "delta-spark", "deltalake", "confluent-kafka", "kafka-python", "dagster")


def machine() -> list[str]:
    """Lines that name machine, versions and commit."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
        cwd=RESULTS,
    ).stdout.strip()
    java = find_java()
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return [
        f"- {datetime.now(tz=UTC):%Y-%m-%d %H:%M} UTC, commit {commit}",
        f"- {platform.system()} {platform.machine()}, {os.cpu_count()} cores shared by broker,"
        f" Spark and Python; Java {java.version}, Python {platform.python_version()}",
        f"- {packages}; broker and Streams 4.3.1",
    ]


def write_result(
    name: str,
    *,
    title: str,
    command: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    notes: Sequence[str] = (),
) -> Path:
    """Write one result as Markdown into bench/results and return its path."""
    lines = [f"# {title}", "", f"`{command}`", "", *machine(), ""]
    lines += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    lines += ["", *notes, ""]
    path = RESULTS / f"{name}.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
