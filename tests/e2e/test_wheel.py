"""The package as a user gets it: the wheel in an empty environment, far from any checkout."""

import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.order_processor.application import OrderProcessor, create_topics, describe_topology
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from spark_resources.companion import build_companion
from tests.e2e.test_command_line import await_committed
from tests.streams.cluster import unique_name

pytestmark = [pytest.mark.e2e, pytest.mark.drill, pytest.mark.sample, pytest.mark.timeout(2400)]

ROOT = Path(__file__).resolve().parents[2]
ORDERS = 2_000


@dataclass(frozen=True, slots=True)
class Installed:
    """The program of an installed wheel; `home` is an empty folder that stands for the user's."""

    program: Path
    home: Path

    def __call__(
        self, *arguments: str, timeout_s: float = 600
    ) -> "subprocess.CompletedProcess[str]":
        """Run it as a shell would, with nothing of this checkout on any path."""
        return _run([str(self.program), *arguments], self.home, timeout_s=timeout_s)


def _run(
    command: list[str], folder: Path, *, timeout_s: float
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=folder,
        env=_environment(folder),
    )


def _environment(home: Path) -> Mapping[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV", "KSTREAMS_ASSETS_JARS", "XDG_CACHE_HOME")
    }
    return kept | {"HOME": str(home), "COLUMNS": "200"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel of this checkout, installed with its dependencies and nothing else."""
    folder = tmp_path_factory.mktemp("elsewhere")
    home = folder / "home"
    home.mkdir()
    build_companion()
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    built = _run([*build, "-w", str(folder), str(ROOT)], home, timeout_s=120)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("kstreams_assets-*.whl")
    venv.create(folder / "venv", with_pip=True)
    install = [str(folder / "venv/bin/python"), "-m", "pip", "install", "-q", str(wheel)]
    done = _run([*install, "-c", str(ROOT / "constraints.txt")], home, timeout_s=1200)
    assert done.returncode == 0, done.stderr
    return Installed(folder / "venv/bin/kstreams-assets", home)


def test_five_steps_without_a_checkout(installed: Installed, kafka_cluster: LocalCluster) -> None:
    application_id = unique_name("orders-wheel")
    prefix = f"{application_id}-"
    bootstrap = kafka_cluster.bootstrap_servers
    home = installed.home
    (home / "topology.txt").write_text(describe_topology(topic_prefix=prefix), "utf-8")
    create_topics(bootstrap, topic_prefix=prefix)

    version = installed("--version")
    assert version.returncode == 0, version.stderr
    assert version.stdout.split()[0] == "kstreams-assets"
    companion = installed("companion", "path")
    assert companion.returncode == 0, companion.stderr
    assert Path(companion.stdout.strip()).is_file()

    with OrderProcessor(
        bootstrap,
        state_dir=home / "state",
        application_id=application_id,
        topic_prefix=prefix,
        commit_interval_ms=100,
    ):
        produce_orders(
            bootstrap, OrderGenerator(seed=5, customers=50), topic=f"{prefix}orders", count=ORDERS
        )
        await_committed(
            KafkaConnection(bootstrap_servers=bootstrap), application_id, {f"{prefix}orders"}
        )
        discovered = installed(
            *("discover", "--application-id", application_id, "--bootstrap", bootstrap),
            *("--topology", "topology.txt", "--warehouse", str(home / "warehouse")),
            *("--output", "defs.yaml"),
        )
        assert discovered.returncode == 0, discovered.stderr
        definition = home / "defs.yaml"
        text = definition.read_text("utf-8")
        assert "every: hour" in text
        # A backup this small would not need Spark, and so no jars.
        always_spark = "every: minute\n  spark:\n    from_offsets: 0"
        definition.write_text(text.replace("every: hour", always_spark), "utf-8")

        taken = installed("recovery-points", "take", "--app", "defs.yaml", "--json")
        assert taken.returncode == 0, taken.stderr
        assert json.loads(taken.stdout)["guarantee"] == "exact"

    time.sleep(61 - time.time() % 60)  # until the window of that point has closed
    lacking = installed("backup", "--app", "defs.yaml")
    assert lacking.returncode == 2
    assert "Run: kstreams-assets jars fetch spark" in lacking.stderr
    assert "delta-spark" in lacking.stderr

    fetched = installed("jars", "fetch", "spark", timeout_s=600)
    assert fetched.returncode == 0, fetched.stderr
    assert str(home) in fetched.stdout

    backed_up = installed("backup", "--app", "defs.yaml", "--json")
    assert backed_up.returncode == 0, backed_up.stderr + backed_up.stdout
    backed_up_topics = json.loads(backed_up.stdout)["windows"][0]["topics"]
    records = {topic["topic"]: topic["records"] for topic in backed_up_topics}
    assert records[f"{prefix}orders"] == ORDERS

    listed = installed("windows", "--app", "defs.yaml", "--json")
    assert listed.returncode == 0, listed.stderr
    newest = [w for w in json.loads(listed.stdout)["windows"] if w["records"]]
    assert sum(w["records"] for w in newest) == sum(records.values())
