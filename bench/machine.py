"""What a measurement was made on, and how the older benchmarks are written down."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

from spark_resources.jars import kafka_release
from spark_resources.java import find_java

RESULTS = Path(__file__).with_name("results")
_PACKAGES = ("pyspark", "delta-spark", "deltalake", "confluent-kafka", "kafka-python", "dagster")


def machine() -> dict[str, str]:
    """Machine, versions and commit."""
    git = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    commit = subprocess.run(
        git, capture_output=True, text=True, check=False, timeout=10, cwd=RESULTS
    ).stdout.strip()
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    memory_gib = psutil.virtual_memory().total / 2**30
    return {
        "measured": f"{datetime.now(tz=UTC):%Y-%m-%d %H:%M} UTC, commit {commit}",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores shared by"
        f" broker, Spark and Python, {memory_gib:.0f} GiB",
        "versions": f"Java {find_java().version}, Python {platform.python_version()}, {packages};"
        f" broker and Streams {kafka_release('kafka')}",
    }


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
    facts = [f"- {value}" for value in machine().values()]
    lines = [f"# {title}", "", f"`{command}`", "", *facts, ""]
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
