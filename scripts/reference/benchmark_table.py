"""The benchmark table of README.md, from the tables under bench/results."""

import re
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[2]
_RESULTS = _CHECKOUT / "bench" / "results"
README = _CHECKOUT / "README.md"
_BLOCK = re.compile(r"(<!-- bench -->\n).*?(<!-- /bench -->)", re.DOTALL)

_ROWS = (
    ("backup.md", "Kafka's ConsumerPerformance", "Kafka's consumer alone"),
    ("backup.md", "first backup in a new JVM", "backup, first one in a new JVM"),
    ("backup.md", "backup, warm JVM", "backup, warm JVM"),
    (
        "restore.md",
        "plain loop of two processes",
        "plain loop: two processes, files into producers",
    ),
    ("restore.md", "restore, first one in its JVM", "restore, first one in a new JVM"),
    ("restore.md", "restore without verification", "restore, warm JVM"),
    ("restore.md", "restore with verification", "restore and comparison of every record"),
)
"""File of results, how its rows begin (the fastest counts), and what README calls it. The first one
of each file is what its others are compared with."""
_UNITS = {"backup.md": "Kafka's consumer", "restore.md": "the plain loop"}


def readme() -> str:
    """README.md with its benchmark table made anew.

    Raises:
        ValueError: A result that the table wants, or the table's place in README.md, is missing.
    """
    text, count = _BLOCK.subn(rf"\g<1>{_table()}\g<2>", README.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError("README.md has no place '<!-- bench -->' for the benchmark table")
    return text


def _table() -> str:
    lines = [
        "| 1 M records, about 1 GB, 4 partitions | seconds | records/s | time, compared with |",
        "|---|---|---|---|",
    ]
    units: dict[str, float] = {}
    for file, begins, name in _ROWS:
        seconds, rate = _fastest(file, begins)
        compared = f"{seconds / units[file]:.1f} times {_UNITS[file]}" if file in units else "1.0"
        units.setdefault(file, seconds)
        lines.append(f"| {name} | {seconds:.1f} | {rate} | {compared} |")
    return "\n".join(lines) + "\n"


def _fastest(file: str, begins: str) -> tuple[float, str]:
    """Seconds, and records a second as the file of results has them."""
    lines = (_RESULTS / file).read_text(encoding="utf-8").splitlines()
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    found = [(float(row[1]), row[2]) for row in rows if row[0].startswith(begins)]
    if not found:
        raise ValueError(f"bench/results/{file} has no row that begins with {begins!r}")
    return min(found)
