"""CPU time of commands that cron and people run often, on the order processor's YAML."""

import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.machine import write_result
from bench.memory import of_children
from examples.demo.place import DEFS
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster

_REPEATS = 7
_PARTITIONS = 2
_COMMANDS = {
    "--help": (),
    "recovery-points take": ("--app", "--warehouse", "--bootstrap"),
    "recovery-points list": ("--app", "--warehouse", "--bootstrap"),
    "windows": ("--app", "--warehouse", "--bootstrap"),
    "ready": ("--app", "--warehouse", "--bootstrap"),
    "info": ("--app", "--warehouse"),
    "ktables list": ("--app", "--warehouse", "--bootstrap"),
}
"""With the options that each is given."""
_HELP_S = 0.3
_TIMES_PYARROW = 6.0


def main(beside: Path | None = None) -> None:
    """Measure and write bench/results/command_line.md; `beside` is an earlier checkout."""
    here = Path(__file__).resolve().parents[1]
    roots = [here] if beside is None else [here, beside.resolve()]
    rows: list[list[object]] = []
    with (
        TemporaryDirectory(prefix="kstreams-bench-") as folder,
        LocalCluster(Path(folder) / "kafka", heap_mb=512) as local,
    ):
        servers = local.bootstrap_servers
        given = {"--app": DEFS, "--warehouse": f"{folder}/warehouse", "--bootstrap": servers}
        settings = load_settings(DEFS)
        with KafkaCluster(KafkaConnection(bootstrap_servers=servers)) as cluster:
            topics = [TopicSpec(t.name, _PARTITIONS, 1) for t in settings.application.topics]
            cluster.create_topics(topics)
        for command, options in _COMMANDS.items():
            words = [*command.split(), *(str(w) for o in options for w in (o, given[o]))]
            pyarrow_s: list[float] = []
            times: dict[Path, list[float]] = {root: [] for root in roots}
            for root in roots:
                _cpu_s(root, [*_PROGRAM, *words])
            for _ in range(_REPEATS):
                pyarrow_s.append(_cpu_s(here, ["-c", "import pyarrow"]))
                for root in roots:
                    times[root].append(_cpu_s(root, [*_PROGRAM, *words]))
            seconds = times[here]
            ratio = median(seconds) / median(pyarrow_s)
            met = min(seconds) <= _HELP_S if command == "--help" else ratio <= _TIMES_PYARROW
            earlier = [f"{median(times[root]):.2f}" for root in roots[1:]] or [""]
            least, most = f"{min(seconds):.2f}", f"{max(seconds):.2f}"
            row = [f"`{command}`", least, f"{median(seconds):.2f}", most, *earlier]
            rows.append([*row, f"{ratio:.1f}", "yes" if met else "NO"])
            print(rows[-1], flush=True)
    write_result(
        "command_line",
        title="CPU time of commands",
        command="python -m bench commands",
        columns=["command", "least", "median", "most", "before", "times pyarrow", "within"],
        rows=rows,
        notes=[
            f"User and system CPU in seconds of {_REPEATS} processes each, Python's start included;"
            f" a real broker, the topics of the order processor with {_PARTITIONS} partitions each,"
            " a warehouse with the points that `take` has just taken.",
            "`before`: median of an earlier checkout (`--beside`), in the same rounds. `times"
            " pyarrow`: median, by that of `python -c 'import pyarrow'` in the same rounds.",
            f"Within: `--help` at most {_HELP_S} s (least), the others at most {_TIMES_PYARROW:.0f}"
            " times pyarrow.",
        ],
    )


_PROGRAM = ("-m", "kstreams_assets.cli.main")


def _cpu_s(root: Path, words: list[str]) -> float:
    # As where it is installed: modules are compiled once.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before = of_children()
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**environment, "PYTHONPATH": str(root)},
    )
    if done.returncode not in {0, 1}:
        raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr}")
    return of_children() - before


if __name__ == "__main__":
    main()
