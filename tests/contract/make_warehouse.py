"""Writes the warehouse of the contract's tests: `python -m tests.contract.make_warehouse`.

It was run once, at the commit that `warehouse/COMMIT` names, with a live application: later code
has to read what that commit wrote. Run it again only when a release is to be added.
"""

import json
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from examples.order_processor.application import OrderProcessor, create_topics
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.local_cluster import LocalCluster
from tests.contract.stored import (
    APPLICATION_ID,
    ARCHIVE,
    EARLIER_CLUSTER_ID,
    FOLDER,
    OFFLINE,
    answer,
    expected_file,
    run,
    target_cluster,
    unpacked,
)

_ORDERS = 400


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _back_up(place)
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            archive.add(place / "warehouse", "warehouse")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        unpacked(place)
        listed = answer(place, "recovery-points", "list")
        (FOLDER / "POINT").write_text(listed["json"]["recovery_points"][0]["id"], encoding="utf-8")
        for name, command in OFFLINE.items():
            _expect(name, answer(place, *command))
        with target_cluster(place / "target") as cluster:
            for name in ("plan", "run"):
                _expect(f"restore_{name}", answer(place, "restore", name, cluster=cluster))
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True)
    (FOLDER / "COMMIT").write_text(commit, encoding="utf-8")


def _expect(name: str, document: Any) -> None:
    expected_file(name).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _back_up(place: Path) -> None:
    """Three windows with points, tables, evaluations of rules, a restore; then one more window."""
    generator = OrderGenerator(seed=15, customers=40, invalid_share=0.02)
    with LocalCluster(place / "source") as source, KafkaCluster(source.connection) as asked:
        bootstrap = source.bootstrap_servers
        create_topics(bootstrap)
        state = place / "state"
        with OrderProcessor(
            bootstrap, state_dir=state, application_id=APPLICATION_ID, commit_interval_ms=100
        ):
            for number in range(3):
                produce_orders(
                    bootstrap, generator, count=_ORDERS, first_index=number * _ORDERS, rate=200
                )
                _await_drained(asked)
                _run(place, bootstrap, "recovery-points", "take")
                time.sleep(61 - time.time() % 60)
                _run(place, bootstrap, "backup")
                if number == 1:
                    _run(place, bootstrap, "ktables", "make")
                    _run(place, bootstrap, "completeness", "check")
                    _run(place, bootstrap, "governance")
                    with target_cluster(place / "earlier", cluster_id=EARLIER_CLUSTER_ID) as to:
                        target = to.bootstrap_servers
                        _run(place, bootstrap, "restore", "run", "--target", target)


def _run(place: Path, bootstrap: str, *command: str) -> None:
    options = ["--app", str(FOLDER / "defs.yaml"), "--warehouse", str(place / "warehouse")]
    done = run(*command, *options, "--bootstrap", bootstrap)
    sys.stderr.write(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}\n")


def _await_drained(cluster: KafkaCluster) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        committed = cluster.group_offsets(APPLICATION_ID)
        ends = cluster.last_stable_offsets(list(committed))
        if committed and all(ends[p] - committed[p].offset <= 1 for p in committed):
            return
        time.sleep(0.2)
    raise TimeoutError


if __name__ == "__main__":
    main()
