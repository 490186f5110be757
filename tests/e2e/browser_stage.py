"""What a stranger finds in the browser: a backed-up application, its clusters, Dagster's pages."""

import contextlib
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from examples.demo.place import CHECKOUT, CONFIG, DEFS
from examples.order_processor.application import OrderProcessor, create_topics
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.app_file.read import load_settings
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.local.process import GuardedProcess
from kstreams_assets.repository.coverage import newest_restorable
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from tests.e2e.test_command_line import await_committed, run
from tests.streams.cluster import connection_to, passing_cluster
from tests.streams.spark_cluster import free_port
from tests.timing import eventually

APPLICATION: Final = "order-processor"
MODULE: Final = "backups"
IN_WINDOW: Final = 2_000
"""Orders of the window that is restored."""
LATER: Final = 500
"""Orders of the window after it, which a restore of the first must leave out."""
_POINT_EVERY_S: Final = 5
_FEW_POINTS: Final = 100


@dataclass
class Stage:
    """An application on `source`, backed up by a follower, and Dagster's pages at `address`.

    `target` is the empty cluster of the only declared target, `dr`. `window` has a recovery point
    after the first `IN_WINDOW` orders.
    """

    folder: Path
    source: LocalCluster
    target: LocalCluster
    address: str
    window: str = ""
    generator: OrderGenerator = field(
        default_factory=lambda: OrderGenerator(seed=36, customers=100, invalid_share=0.02)
    )

    @property
    def project(self) -> Path:
        """What `kstreams-assets init` wrote."""
        return self.folder / MODULE

    @property
    def app_file(self) -> Path:
        """The application's YAML."""
        return self.project / MODULE / "defs" / "order_processor" / "defs.yaml"

    @property
    def settings(self) -> ApplicationSettings:
        """The application as its YAML declares it."""
        return load_settings(self.app_file)

    def topics_on_target(self) -> set[str]:
        """The topics of the target, without Kafka's own."""
        with KafkaCluster(connection_to(self.target.bootstrap_servers)) as cluster:
            return {name for name in cluster.topics() if not name.startswith("__")}

    def processor_on(self, cluster: LocalCluster, state: str) -> OrderProcessor:
        """The application; not yet started."""
        return OrderProcessor(
            cluster.bootstrap_servers,
            state_dir=self.folder / state,
            application_id=APPLICATION,
            commit_interval_ms=100,
            config=CONFIG,
        )

    def order(self, cluster: LocalCluster, *, first: int, count: int) -> None:
        """Send orders, and wait until the application has committed all of them."""
        servers = cluster.bootstrap_servers
        produce_orders(servers, self.generator, first_index=first, count=count)
        await_committed(KafkaConnection(bootstrap_servers=servers), APPLICATION, {"orders"})

    def _await_point(self) -> str:
        """The window of a restorable point that is taken from now on, once there is one."""
        began_ms = time.time_ns() // 1_000_000
        found: list[str] = []

        def is_there() -> bool:
            status = newest_restorable(self.settings).exact
            if status is None or status.taken_at_ms < began_ms:
                return False
            points = Repository.open(self.settings).points.newest(_FEW_POINTS)
            (point,) = [point for point in points if point.id == status.id]
            found.append(WindowCalendar(self.settings.windows).key_at(point.effective_at_ms))
            return True

        assert eventually(is_there), (self.folder / "follow.log").read_text("utf-8")
        return found[0]

    def _write_project(self) -> None:
        """As a stranger would: `init`, then the application's files."""
        made = run("init", str(self.project))
        assert made.returncode == 0, made.stderr
        self.app_file.parent.mkdir()
        (self.app_file.parent / "topology.txt").write_bytes(
            DEFS.with_name("topology.txt").read_bytes()
        )
        document: dict[str, Any] = yaml.safe_load(DEFS.read_text("utf-8"))
        attributes = document["attributes"]
        attributes |= {
            "connection": {"bootstrap_servers": self.source.bootstrap_servers},
            "warehouse": str(self.folder / "warehouse"),
            "windows": {"every": "minute"},
            "targets": {"dr": {"connection": {"bootstrap_servers": self.target.bootstrap_servers}}},
            "recovery_points": {"every_seconds": _POINT_EVERY_S, "objective_seconds": 600},
            "sensors": "stopped",
        }
        for left_out in ("drill", "governance"):
            del attributes[left_out]
        attributes["completeness"] = [
            rule for rule in attributes["completeness"] if "balance" in rule
        ]
        self.app_file.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")

    def _command(self, *words: str) -> GuardedProcess:
        """A command of ours that goes on beside the test."""
        program = [sys.executable, "-m", "kstreams_assets.cli.main", *words]
        log = self.folder / f"{words[0]}.log"
        return GuardedProcess(program, log_file=log, environment=os.environ)

    def _dagster(self) -> GuardedProcess:
        """`dagster dev`: the pages, and the daemon with its sensors."""
        port = self.address.rpartition(":")[2]
        program = [sys.executable, "-m", "dagster", "dev", "--host", "127.0.0.1", "--port", port]
        return GuardedProcess(
            program,
            log_file=self.folder / "dagster.log",
            environment={
                **os.environ,
                "DAGSTER_HOME": str(self.project),
                "PYTHONPATH": str(CHECKOUT),  # this one, whichever the environment was made for
            },
            working_directory=self.project,
        )

    def _await_pages(self) -> None:
        """Wait until Dagster answers."""

        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"{self.address}/server_info", timeout=10):  # noqa: S310 - ours
                    return True
            except (urllib.error.URLError, OSError):
                return False

        assert eventually(answers, within_s=120), (self.folder / "dagster.log").read_text("utf-8")

    def _live(self) -> None:
        """Run application and follower until there is a window to restore, and something later."""
        calendar = WindowCalendar(self.settings.windows)
        with (
            self.processor_on(self.source, "state"),
            self._command("follow", "--app", str(self.app_file)),
        ):
            self.order(self.source, first=0, count=IN_WINDOW)
            self.window = self._await_point()
            assert eventually(lambda: calendar.has_closed(self.window), within_s=90)
            self.order(self.source, first=IN_WINDOW, count=LATER)
            assert self._await_point() > self.window
        checked = run("completeness", "check", "--app", str(self.app_file))
        assert checked.returncode == 0, checked.stdout + checked.stderr


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """An application that has lost its cluster, after a closed window and half of the next one."""
    with (
        pytest.MonkeyPatch.context() as environment,
        passing_cluster(folder / "source") as source,
        passing_cluster(folder / "target") as target,
    ):
        # The engine of a stranger's machine, with default settings.
        environment.delenv("KSTREAMS_ASSETS_SPARK_MASTER", raising=False)
        stage = Stage(folder, source, target, f"http://127.0.0.1:{free_port()}")
        stage._write_project()
        create_topics(source.bootstrap_servers)
        with stage._dagster(), stage._command("engine", "start"):
            stage._live()
            source.stop(timeout_s=0.0)
            stage._await_pages()
            yield stage
