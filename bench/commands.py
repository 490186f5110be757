"""CPU time of commands that cron and people run often, on the order processor's YAML."""

import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.machine import write_result
from bench.memory import of_children
from examples.demo.place import DEFS
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.topics import TopicSpec
from kstreams_assets.local.cluster import LocalCluster

_REPEATS = 7
_PARTITIONS = 2
_COMMANDS = {
    "--help": (0.5, False),
    "recovery-points take": (1.5, True),
    "recovery-points list": (1.5, True),
    "windows": (1.5, True),
    "ready": (1.5, True),
    "ktables list": (1.5, True),
}
"""Seconds that it may take, and whether it is given the application."""
_IN_ISSUE = {"--help": 3.0, "recovery-points take": 4.4, "windows": 3.7, "ready": 3.7}


def main() -> None:
    """Measure and write bench/results/command_line.md."""
    rows: list[list[object]] = []
    with (
        TemporaryDirectory(prefix="kstreams-bench-") as folder,
        LocalCluster(Path(folder) / "kafka", heap_mb=512) as local,
    ):
        servers = local.bootstrap_servers
        app = ["--app", str(DEFS), "--bootstrap", servers, "--warehouse", f"{folder}/warehouse"]
        settings = load_settings(DEFS)
        with KafkaCluster(KafkaConnection(bootstrap_servers=servers)) as cluster:
            topics = [TopicSpec(t.name, _PARTITIONS, 1) for t in settings.application.topics]
            cluster.create_topics(topics)
        for command, (budget, has_app) in _COMMANDS.items():
            words = [*command.split(), *(app if has_app else [])]
            times = [_cpu_s(words) for _ in range(_REPEATS)]
            earlier = _IN_ISSUE.get(command, "")
            rows.append([f"`{command}`", earlier, min(times), median(times), max(times), budget])
            print(rows[-1], flush=True)
    write_result(
        "command_line",
        title="CPU time of commands",
        command="python -m bench commands",
        columns=["command", "before the redesign", "least", "median", "most", "budget"],
        rows=rows,
        notes=[
            f"User and system CPU in seconds of {_REPEATS} processes each, Python's start included;"
            f" a real broker, the topics of the order processor with {_PARTITIONS} partitions each,"
            " a warehouse with the points that `take` has just taken.",
            "The figures before the redesign are those of its issue, not measured again here.",
        ],
    )


def _cpu_s(words: list[str]) -> float:
    before = of_children()
    done = subprocess.run(
        [sys.executable, "-m", "kstreams_assets.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode not in {0, 1}:
        raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr}")
    return of_children() - before


if __name__ == "__main__":
    main()
