"""A stock at-least-once application goes through README's five steps to green, as any other."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.order_processor.application import OrderProcessor, create_topics, describe_topology
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.local.cluster import LocalCluster
from tests.streams.orders import PARTITIONS

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]

ROOT = Path(__file__).parents[2]
_EXAMPLE = ROOT / "examples/defs/order_processor/defs.yaml"
_RATE = 200.0
_START_S = 400
_EXACT_S = 600


def _command(*words: str, timeout_s: float = 400) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "kstreams_assets.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=ROOT,
    )


def _json(*words: str, exit_code: int = 0) -> dict[str, Any]:
    done = _command(*words, "--json")
    assert done.returncode == exit_code, done.stdout + done.stderr
    return json.loads(done.stdout)


@contextmanager
def _orders(servers: str) -> "Iterator[None]":
    """A load until the end of the block."""
    over = threading.Event()
    generator = OrderGenerator(seed=11, customers=200)
    thread = threading.Thread(
        target=produce_orders, args=(servers, generator), kwargs={"rate": _RATE, "stop": over}
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


@contextmanager
def _followed(app_file: Path, log: Path) -> "Iterator[None]":
    """A follower, once a point is covered, until the end of the block."""
    words = ["follow", "--app", str(app_file)]
    with log.open("w") as out:
        follower = subprocess.Popen(
            [sys.executable, "-m", "kstreams_assets.cli.main", *words], stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + _START_S
        while _command("follow", "status", "--app", str(app_file)).returncode:
            assert follower.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(1)
        yield
    finally:
        follower.send_signal(signal.SIGTERM)
        assert follower.wait(60) == 0, log.read_text()


def _exact_point(app_file: Path) -> str:
    """The newest point by the commits that a restore gives as exact, once there is one."""
    deadline = time.monotonic() + _EXACT_S
    while True:
        listed = _json("recovery-points", "list", "--app", str(app_file), "--last", "50")
        for one in listed["recovery_points"]:
            if (one["method"], one["gives"]) == ("passive_commits", "exact"):
                return one["id"]
        assert time.monotonic() < deadline, listed
        time.sleep(5)


def _with_rules_and_drill(app_file: Path, commit_wait_s: int | None) -> None:
    """Step 5: what must not be lost, and how the application starts."""
    document = yaml.safe_load(app_file.read_text("utf-8"))
    example = yaml.safe_load(_EXAMPLE.read_text("utf-8"))["attributes"]
    attributes = document["attributes"]
    for name in ("topics", "stores"):
        attributes[name] = {**example[name], **(attributes.get(name) or {})}
        for key, value in example[name].items():
            attributes[name][key] = {**(attributes[name].get(key) or {}), **value}
    if commit_wait_s is not None:
        points = {"commit_wait_seconds": commit_wait_s, "objective_seconds": 900}
        attributes["recovery_points"] = {**(attributes.get("recovery_points") or {}), **points}
    attributes["completeness"] = example["completeness"]
    command = [*example["drill"]["command"], "--guarantee", "at_least_once"]
    attributes["drill"] = {
        "command": command,
        "working_directory": str(ROOT),
        "objective_seconds": 600,
    }
    app_file.write_text(yaml.safe_dump(document), "utf-8")


@pytest.mark.parametrize(
    ("commit_interval_ms", "commit_wait_s", "is_followed_exactly"),
    [
        pytest.param(30_000, None, False, id="stock"),
        pytest.param(30_000, 150, True, id="stock-that-waits"),
        # The follower waits for commits that are as frequent as these.
        pytest.param(1_000, None, True, id="frequent-commits"),
    ],
)
def test_the_five_steps_end_with_a_green_ready_and_a_passed_drill(
    tmp_path: Path, commit_interval_ms: int, commit_wait_s: int | None, is_followed_exactly: bool
) -> None:
    topology, app_file = tmp_path / "topology.txt", tmp_path / "defs.yaml"
    topology.write_text(describe_topology(), "utf-8")
    with LocalCluster(tmp_path / "cluster") as local:
        servers = local.bootstrap_servers
        create_topics(servers, partitions=PARTITIONS)
        app = OrderProcessor(
            servers,
            state_dir=tmp_path / "state",
            application_id="order-processor",
            guarantee="at_least_once",
            commit_interval_ms=commit_interval_ms,
        )
        with app, _orders(servers):
            time.sleep(10)
            done = _command(
                *("discover", "--application-id", "order-processor", "--bootstrap", servers),
                *("--topology", str(topology), "--warehouse", str(tmp_path / "warehouse")),
                *("--output", str(app_file)),
            )
            assert done.returncode == 0, done.stderr
            _with_rules_and_drill(app_file, commit_wait_s)
            with _followed(app_file, tmp_path / "follow.log"):
                point = ("--point", _exact_point(app_file)) if is_followed_exactly else ()
                drill = _command("drill", "--app", str(app_file), *point)
                assert drill.returncode == 0, drill.stdout + drill.stderr
                checked = _json("completeness", "check", "--app", str(app_file), "--as-of", _now())
                outcomes = {one["rule"]: one["outcome"] for one in checked["evaluations"]}
                assert outcomes["every_order_counted_or_rejected"] == "passed", checked
                assert "violated" not in outcomes.values(), checked
                ready = _json("ready", "--app", str(app_file))
                assert ready["ready"], ready
                (guarantee,) = [s for s in ready["statements"] if s["subject"] == "guarantee"]
                assert "processes at least once (shown by its records" in guarantee["text"]
                target = ("--target", servers, "--target-application-id", "copy")
                words = ("restore", "plan", "--app", str(app_file), *target, "--prefix", "copy-")
                if is_followed_exactly:
                    plan = _json(*words, *point)
                    assert (plan["gives"], plan["can_run"]) == ("exact", True), plan
                    assert plan["repeats_at_most"] == {}
                    return
                plan = _json(*words)
                assert (plan["gives"], plan["can_run"]) == ("at_least_once", True), plan
                assert plan["repeats_at_most"]["orders"] > 0
                # Who says that it processes exactly once is held to it.
                text = app_file.read_text("utf-8")
                strict = tmp_path / "strict.yaml"
                strict.write_text(
                    text.replace("attributes:\n", "attributes:\n  guarantee: exact\n")
                )
                assert not _json("ready", "--app", str(strict), exit_code=1)["ready"]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
