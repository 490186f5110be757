"""Every command of deploy/kubernetes is run as its manifest has it, against live clusters."""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from examples.order_processor.application import OrderProcessor, create_topics
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.repository.repository import Repository
from tests.deploy.api_server import Deployment, serve
from tests.deploy.container import Container, is_possible, send
from tests.deploy.rendered import CHECKOUT, one, pod
from tests.e2e.test_command_line import await_committed

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.drill,
    pytest.mark.sample,
    pytest.mark.timeout(1800),
]

APPLICATION = "order-processor"
ORDERS = 2_000
_TARGET = "--target=target-kafka:9092"


@dataclass
class Stage:
    """Two clusters, the application on both, and the files of the pods."""

    folder: Path
    source: LocalCluster
    target: LocalCluster
    container: Container
    running: list[OrderProcessor] = field(default_factory=list)
    starts: int = 0

    def command(self, owner: str) -> list[str]:
        """The command line of a manifest, with our files and addresses in place of its own."""
        listen = re.compile(r"0\.0\.0\.0:\d+")
        words = [listen.sub("127.0.0.1:0", word) for word in pod(owner).command]
        replaced = [
            word.replace("/etc/kstreams-assets/", f"{self.folder}/application/").replace(
                _TARGET, f"--target={self.target.bootstrap_servers}"
            )
            for word in words
        ]
        assert replaced != words or owner.startswith("none")
        return replaced

    def ours(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """A command that an operator gives in the follower's pod."""
        command = ["kstreams-assets", *words, f"--app={self.folder}/application/defs.yaml"]
        return self.container.run(command, timeout_s=600)

    def run(self, owner: str) -> "subprocess.CompletedProcess[str]":
        return self.container.run(self.command(owner), timeout_s=900)

    def scale(self, replicas: int) -> None:
        """What the deployment of the application on the target does."""
        while self.running and not replicas:
            self.running.pop().stop()
        if replicas and not self.running:
            self.starts += 1
            state = self.folder / f"state-{self.starts}"  # an emptyDir of a new pod
            self.running.append(processor(self.target.bootstrap_servers, state))
            self.running[0].start(timeout_s=120)

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(self.folder / "warehouse")


def processor(bootstrap_servers: str, state: Path) -> OrderProcessor:
    return OrderProcessor(
        bootstrap_servers,
        state_dir=state,
        application_id=APPLICATION,
        commit_interval_ms=100,
        config={"consumer.session.timeout.ms": "10000"},
    )


def write_application(folder: Path, source: LocalCluster) -> None:
    """The files of the ConfigMap, for this machine: cluster, warehouse, how a drill starts it."""
    folder.mkdir()
    for name, text in one("ConfigMap/order-processor")["data"].items():
        (folder / name).write_text(text, "utf-8")
    told = yaml.safe_load((folder / "defs.yaml").read_text("utf-8"))
    attributes = told["attributes"]
    attributes["connection"]["bootstrap_servers"] = source.bootstrap_servers
    attributes["warehouse"] = str(folder.parent / "warehouse")
    attributes["windows"]["start"] = f"{datetime.now(UTC):%Y-%m-%d}"
    java = attributes["drill"]["command"]
    started = ["{python}", "-m", "examples.streams.run", APPLICATION]
    attributes["drill"]["command"] = [*started, *java[java.index("--properties") :]]
    attributes["drill"]["working_directory"] = str(CHECKOUT)
    attributes["drill"]["pass_on"] = ["KSTREAMS_ASSETS_JARS"]  # where the example's jars are
    (folder / "defs.yaml").write_text(yaml.safe_dump(told), "utf-8")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """An application that was followed until its cluster was left alone; 2,000 orders."""
    # Not below /tmp: a pod has a /tmp of its own.
    folder = Path(tempfile.mkdtemp(prefix="kstreams-deploy-", dir="/var/tmp"))
    with contextlib.ExitStack() as opened:
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        source, target = (
            opened.enter_context(LocalCluster(folder / name)) for name in ("source", "target")
        )
        write_application(folder / "application", source)
        for name in ("tmp", "warehouse"):
            (folder / name).mkdir(mode=0o700)
        container = Container(
            (folder / "tmp", folder / "warehouse"), {"KUBECONFIG": str(folder / "kubeconfig")}
        )
        opened.callback(container.close)
        made = Stage(folder, source, target, container)
        opened.callback(made.scale, 0)
        for cluster in (source, target):
            create_topics(cluster.bootstrap_servers)
        with processor(source.bootstrap_servers, folder / "state-0"):
            generator = OrderGenerator(seed=17, customers=100)
            produce_orders(source.bootstrap_servers, generator, topic="orders", count=ORDERS)
            connection = KafkaConnection(bootstrap_servers=source.bootstrap_servers)
            await_committed(connection, APPLICATION, {"orders"})
            follow(made)
        yield made


def follow(stage: Stage) -> None:
    """Run the follower until its probes say that it is alive and ready, then end its pod."""
    log = stage.folder / "follower.log"
    follower = stage.container.start(stage.command("Deployment/kstreams-follower"), log)
    try:
        metrics, health = addresses(follower, log)
        container = pod("Deployment/kstreams-follower").spec["containers"][0]
        assert health.endswith(container["readinessProbe"]["httpGet"]["path"])
        deadline = time.monotonic() + 300
        while (answer := asked(health))[0] != 200:
            assert time.monotonic() < deadline, (answer, log.read_text("utf-8"))
            time.sleep(1)
        live = container["livenessProbe"]["httpGet"]["path"]
        assert asked(health.replace("/health", live))[0] == 200
        time.sleep(5)  # points after the last order
        assert "kstreams_recovery_point_timestamp_seconds" in asked(metrics)[1]
        send(follower, signal.SIGTERM)
        assert (
            follower.wait(
                timeout=pod("Deployment/kstreams-follower").spec["terminationGracePeriodSeconds"]
            )
            == 0
        ), log.read_text("utf-8")
    finally:
        if follower.poll() is None:
            follower.kill()
            follower.wait()


def addresses(follower: "subprocess.Popen[bytes]", log: Path) -> Sequence[str]:
    """Of metrics and health, once it listens."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and follower.poll() is None:
        text = log.read_text("utf-8")
        found = re.search(r"Serving metrics on (\S+), health on (\S+)", text)
        if found is not None:
            return found.groups()
        time.sleep(0.2)
    raise AssertionError(log.read_text("utf-8"))


def asked(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - of our process
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.skipif(not is_possible(), reason="no namespaces can be made here")
def test_a_container_can_write_only_what_is_mounted(stage: Stage) -> None:
    # The script itself ends with 97 where it can write elsewhere; here from within our program.
    target = stage.folder / "application" / "metrics.prom"
    done = stage.ours("metrics", f"--textfile={target}")
    assert done.returncode == 2
    assert "Read-only file system" in done.stderr


def test_the_backup_of_the_cron_job(stage: Stage) -> None:
    done = stage.run("CronJob/kstreams-backup")
    assert done.returncode == 0, done.stderr + done.stdout


def test_the_restore_stops_the_application_and_starts_it(stage: Stage) -> None:
    stage.scale(3)
    with KafkaCluster(KafkaConnection(bootstrap_servers=stage.target.bootstrap_servers)) as there:
        deadline = time.monotonic() + 60
        while (state := there.group_state(APPLICATION)) is None or state.state != "Stable":
            assert time.monotonic() < deadline
            time.sleep(0.5)
        deployment = Deployment(replicas=3, scaled=stage.scale)
        with serve(deployment, stage.folder):
            done = stage.run("Job/restore-order-processor")
        text = done.stderr + done.stdout
        assert done.returncode == 0, text
        assert "is in use on the target" in done.stdout
        assert done.stderr.count("deployment.apps/order-processor scaled") == 2
        assert (deployment.replicas, stage.starts) == (3, 2)
        await_committed(there.connection, APPLICATION, {"orders"})
        orders = [p for p in there.group_offsets(APPLICATION) if p.topic == "orders"]
        assert sum(there.high_watermarks(orders).values()) == ORDERS
    (restore,) = Repository(stage.warehouse, APPLICATION).restores.all()
    assert restore.state.value == "committed"
    watched = stage.ours("restore", "watch")
    assert watched.returncode == 0, watched.stderr + watched.stdout
    finished = stage.ours("restore", "finish", "--json")
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["state"] == "finished"


def test_a_restore_that_is_not_in_time_ends_itself_and_goes_on(stage: Stage) -> None:
    late = ("--target-application-id=late", "--prefix=late-", "--replication-factor=1")
    words = ("restore", "run", f"--target={stage.target.bootstrap_servers}", *late)
    ended = 0
    with KafkaCluster(KafkaConnection(bootstrap_servers=stage.target.bootstrap_servers)) as there:
        for deadline_s in (0.3, 1.5, 3.0):  # before Spark is needed, while it writes, compares
            done = stage.ours(*words, f"--deadline={deadline_s}")
            if done.returncode == 0:
                break
            assert done.returncode == 2, done.stderr + done.stdout
            last = done.stderr.strip().splitlines()[-1]
            assert f"was not verified within {deadline_s:g} s (--deadline)" in last
            assert there.group_offsets("late") == {}
            ended += 1
        assert ended
        done = stage.ours(*words, "--json")
        assert done.returncode == 0, done.stderr + done.stdout
        assert json.loads(done.stdout)["state"] == "committed"
        orders = [p for p in there.group_offsets("late") if p.topic == "late-orders"]
        assert sum(there.high_watermarks(orders).values()) == ORDERS  # nothing twice


def test_the_drill(stage: Stage) -> None:
    done = stage.run("Job/drill-order-processor")
    assert done.returncode == 0, done.stderr + done.stdout
    (report,) = Repository(stage.warehouse, APPLICATION).drills.all()
    assert report.passed
