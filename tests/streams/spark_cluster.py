"""A standalone cluster of the installed Spark on this machine: a master and two workers."""

import os
import secrets
import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import psutil
import pyspark
from pyspark.sql import SparkSession

from kstreams_assets.local.process import GuardedProcess
from spark_resources.java import PASSED_ON, find_java
from spark_resources.partition_tasks import run_partition_tasks

WORKERS = 2
_START_S = 180.0
_READY = {
    "deploy.master.Master": "I have been elected leader",
    "deploy.worker.Worker": "Successfully registered with master",
    "deploy.SparkSubmit": "Spark Connect server started at",
}
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class StandaloneCluster:
    """Master and workers, which know each other, and engines, by a secret; all on 127.0.0.1."""

    def __init__(self, folder: Path, *, cores: int = 1) -> None:
        self.folder = folder
        self.secret = secrets.token_hex(16)
        self.secret_file = folder / "secret"
        self._port = free_port()
        self._stack = ExitStack()
        folder.mkdir(parents=True, exist_ok=True)
        settings = folder / "daemons.conf"
        for file, text in (
            (self.secret_file, self.secret),
            (
                settings,
                "spark.authenticate true\n"
                f"spark.authenticate.secret {self.secret}\n"
                "spark.network.crypto.enabled true\n",
            ),
        ):
            file.touch(mode=0o600)
            file.write_text(text)
        common = ["--host", "127.0.0.1", "--webui-port", "0", "--properties-file", str(settings)]
        self._daemon("master", "deploy.master.Master", "--port", str(self._port), *common)
        self.workers = [
            self._daemon(
                f"worker-{number}",
                "deploy.worker.Worker",
                *common,
                *("--cores", str(cores), "--memory", "1g"),
                *("--work-dir", str(folder / f"work-{number}")),
                self.master,
            )
            for number in range(WORKERS)
        ]

    @property
    def master(self) -> str:
        """The URL of its master."""
        return f"spark://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """With this the project's commands and resources use it."""
        return {
            "KSTREAMS_ASSETS_SPARK_MASTER": self.master,
            "KSTREAMS_ASSETS_SPARK_CLUSTER_SECRET_FILE": str(self.secret_file),
        }

    def executors(self) -> list[int]:
        """The process ids of the executors that run, the oldest first."""
        found = [
            process
            for worker in self.workers
            for process in psutil.Process(worker.pid).children()
            if _EXECUTOR in _arguments(process)
        ]
        return [one.pid for one in sorted(found, key=lambda one: one.create_time())]

    def await_executors(self, spark: SparkSession) -> None:
        """Wait until each worker has an executor that takes tasks."""

        def executor(_: int) -> int:
            time.sleep(0.3)  # else one of them does it all
            daemon = psutil.Process(os.getppid())
            return daemon.ppid()

        deadline = time.monotonic() + _START_S
        while len({*run_partition_tasks(spark, range(2 * WORKERS), executor)}) < WORKERS:
            assert time.monotonic() < deadline, self.log_tail()

    def logs(self) -> str:
        """All that master, workers and executors have printed."""
        files = (*self.folder.glob("*.log"), *self.folder.glob("work-*/*/*/std*"))
        return "".join(file.read_text(errors="replace") for file in files)

    def log_tail(self) -> str:
        """What its daemons said last."""
        return "\n".join(file.read_text()[-1_500:] for file in self.folder.glob("*.log"))

    def close(self) -> None:
        """End all of it."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect_server(self, port: int, *jars: Path) -> None:
        """Start a Spark Connect server of somebody else's: our jars, none of our packages."""
        self._daemon(
            "connect-server",
            "deploy.SparkSubmit",
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--master", self.master, "--properties-file", str(self.folder / "daemons.conf")),
            *("--jars", ",".join(map(str, jars))),
            *_options(
                {
                    "spark.driver.host": "127.0.0.1",
                    "spark.driver.bindAddress": "127.0.0.1",
                    "spark.driver.memory": "1g",
                    "spark.ui.enabled": "false",
                    "spark.connect.grpc.binding.address": "127.0.0.1",
                    "spark.connect.grpc.binding.port": str(port),
                    "spark.executor.memory": "512m",
                    "spark.cores.max": str(WORKERS),
                    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                    "spark.sql.catalog.spark_catalog": (
                        "org.apache.spark.sql.delta.catalog.DeltaCatalog"
                    ),
                }
            ),
            "spark-internal",
        )

    def _daemon(self, name: str, what: str, *arguments: str) -> GuardedProcess:
        home = Path(pyspark.__file__).parent
        told = {name: value for name in PASSED_ON if (value := os.environ.get(name))}
        java_home, local = str(find_java().home), "127.0.0.1"
        process = GuardedProcess(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.{what}", *arguments],
            working_directory=self.folder,
            log_file=self.folder / f"{name}.log",
            environment=told
            | {"JAVA_HOME": java_home, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": local}
            | {"PYSPARK_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1"},
        )
        self._stack.enter_context(process)
        deadline = time.monotonic() + _START_S
        while not process.has_logged(_READY[what]):
            assert process.running and time.monotonic() < deadline, process.log_tail()  # noqa: PT018
            time.sleep(0.1)
        return process


def _options(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def python_workers_of(executor: int) -> list[int]:
    """The Python workers that an executor has forked by its daemon."""
    with suppress(psutil.NoSuchProcess):
        below = psutil.Process(executor).children(recursive=True)
        return [one.pid for one in below if one.ppid() != executor]
    return []


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
