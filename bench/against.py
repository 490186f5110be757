"""The same backups by an earlier checkout and by this one, in turn on this machine.

`python -m bench.against TREE`: TREE is a checkout of an earlier commit with its own .venv and .jars
(links will do). Each measurement is a process and a broker of its own.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from confluent_kafka import Producer

from bench import backup
from bench.machine import write_result
from bench.setting import setting
from kstreams_assets.kafka.topics import TopicSpec
from kstreams_assets.layout import Warehouse

_TOPICS = ("orders", "by-customer-repartition", "totals-changelog", "rejected", "totals")
_PARTITIONS = 4
_SMALL = 6_000
_LARGE = 1_000_000
_ROUNDS = 3
_WARM = 3
_RESULT = "RESULT "
_LIMIT_S = 900
_ROWS = {
    "small": [
        ("start", "start of the Spark session"),
        ("first", f"{_SMALL:,} records of five topics, first window of a new JVM"),
        ("warm", f"{_SMALL:,} records of five topics, warm JVM"),
    ],
    "large": [
        ("first", f"{_LARGE:,} records, first window of a new JVM"),
        ("warm", f"{_LARGE:,} records, warm JVM"),
    ],
}


def main(earlier: Path) -> None:
    """Measure and write bench/results/against.md."""
    trees = {"earlier": earlier, "now": Path(__file__).parents[1]}
    rows: list[list[object]] = []
    for kind, measures in _ROWS.items():
        found: dict[str, list[dict[str, float]]] = {side: [] for side in trees}
        for number in range(_ROUNDS):
            for side, tree in trees.items():
                found[side].append(_ask(tree, kind))
                print(kind, number + 1, side, found[side][-1], flush=True)
        for key, what in measures:
            then, now = (median(one[key] for one in found[side]) for side in trees)
            rows.append([what, then, now, now / then])
    commit = subprocess.run(
        ["git", "-C", str(earlier), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.strip()
    write_result(
        "against",
        title="Backups by an earlier commit and now",
        command="python -m bench.against TREE",
        columns=["what", f"{commit}, seconds", "now, seconds", "ratio"],
        rows=rows,
        notes=[
            f"Medians of {_ROUNDS} processes of each side, run in turn; of its {_WARM} warm runs a"
            " process counts the best. A run is everything: plan, Spark job, commit, ledger and the"
            " recovery point at its end.",
            f"The five topics have {_PARTITIONS} partitions each, their records 200 bytes; the"
            f" {_LARGE:,} records are those of `python -m bench backup`, of about 1 KB.",
        ],
    )


def _ask(tree: Path, kind: str) -> dict[str, float]:
    """What a process that runs this file with the code of a tree has measured."""
    done = subprocess.run(
        [str(tree / ".venv/bin/python"), str(Path(__file__).resolve()), kind],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith(_RESULT)]
    if not told:
        raise RuntimeError(f"{tree} measured nothing:\n{done.stderr[-2000:]}")
    return json.loads(told[-1].removeprefix(_RESULT))


def _measure(kind: str) -> dict[str, float]:
    topics = _TOPICS if kind == "small" else ("orders",)
    with setting(topics, driver_memory="4g") as place:
        place.cluster.create_topics([TopicSpec(t, _PARTITIONS, 1) for t in topics])
        warehouse = Warehouse(place.folder / "warehouse")
        place.dated_point(warehouse, 0)
        servers = place.bootstrap_servers
        if kind == "large":
            backup.produce_records(servers, "orders", _LARGE, _PARTITIONS)
        began = time.monotonic()
        _ = place.spark.spark_session
        start = time.monotonic() - began
        seconds = []
        for number in range(1, 2 + _WARM):
            if kind == "small":
                _produce(servers)
            else:
                warehouse = Warehouse(place.folder / f"warehouse-{number}")
            window = place.dated_point(warehouse, number)
            began = time.monotonic()
            place.back_up(warehouse, [window])
            seconds.append(time.monotonic() - began)
    return {"start": start, "first": seconds[0], "warm": min(seconds[1:])}


def _produce(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in range(_SMALL):
        topic = _TOPICS[number % len(_TOPICS)]
        producer.produce(topic, b"v" * 200, b"key-%d" % number, partition=number % _PARTITIONS)
    if producer.flush(60):
        raise RuntimeError("not every record was delivered")


if __name__ == "__main__":
    argument = sys.argv[1]
    if argument in _ROWS:
        print(_RESULT + json.dumps(_measure(argument)), flush=True)
    else:
        main(Path(argument).resolve())
