"""The Spark session of a process: started on first use, in a JVM of its own or by a server."""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
from py4j.protocol import Py4JError
from pydantic import BaseModel, Field
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.layout import keep_private
from spark_resources.jars import class_path
from spark_resources.java import find_java

_REDACTED = "(?i)secret|password|token|access[.]?key|jaas|private|ssl[.].*key"
"""Spark's default leaves the PEM key of a Kafka client readable in logs and plans."""
_LOG4J = Path(__file__).with_name("log4j2.properties")
_IDLE: Final = (b"WARNING: Using incubator modules: jdk.incubator.vector",)
"""Spark's launcher adds this module itself, and no option of the JVM hides that it does."""
_STANDARD_ERROR: Final = 2
_SHELL: Final = "pyspark-shell"
"""An argument of the script that starts the driver's JVM, and of that JVM."""


class SparkSettings(BaseModel):
    """How Spark is started, or reached."""

    spark_config: dict[str, Any] = Field(
        default_factory=dict,
        description="Further Spark settings, passed unchanged. Secrets do not belong here.",
    )
    master: str = Field(default="local[*]", description="Spark master URL.")
    remote: str | None = Field(
        default=None, description="Spark Connect URL (sc://host:port); replaces `master`."
    )
    driver_memory: str = Field(default="2g", description="Heap of the driver JVM.")
    shuffle_partitions: int = Field(default=4, description="Tasks after a shuffle.")
    class_data_archive: str | None = Field(
        default=None,
        description="A JVM class-data-sharing archive; it shortens the start of the JVM.",
    )


class LazySession:
    """A Spark session with Delta Lake and the Kafka source on its class path.

    The JVM starts when `spark_session` is first used, so a run with nothing to do never pays for
    it. With `remote` set, a Spark Connect server is used, which must have the same jars on its
    class path.
    """

    def __init__(self, settings: SparkSettings | None = None) -> None:
        self._settings = settings or SparkSettings()
        self._session: SparkSession | None = None
        self._started_here = False

    @property
    def spark_session(self) -> SparkSession:
        """The session; starts the JVM on first use."""
        if self._session is None:
            self._session = self._connect() if self._settings.remote else self._start()
        return self._session

    @property
    def is_started(self) -> bool:
        """Whether Spark was needed so far."""
        return self._session is not None

    def check(self) -> None:
        """Look for jars and Java without starting anything.

        Raises JarsMissingError, JavaNotFoundError.
        """
        if self._session is None and not self._settings.remote:
            class_path("spark")
            find_java()

    def stop(self) -> None:
        """Stop the session if it was started here; a later use starts another."""
        session, self._session = self._session, None
        if session is not None and self._started_here:
            session.stop()
        self._started_here = False

    def hush(self) -> None:
        """Before a stop in the middle of a job: what killed tasks log then is no news."""
        if self._session is not None and self._started_here and not self._settings.remote:
            with contextlib.suppress(Py4JError, OSError):
                self._session.sparkContext.setLogLevel("OFF")

    def jvm_pid(self) -> int | None:
        """Process id of the driver JVM, None with Spark Connect."""
        if self._settings.remote:
            return None
        jvm: Any = self.spark_session._jvm  # noqa: SLF001 - no public way to the driver's JVM
        return int(jvm.java.lang.ProcessHandle.current().pid())

    def _connect(self) -> SparkSession:
        session = SparkSession.builder.remote(self._settings.remote or "").getOrCreate()
        for key, value in self._runtime_settings().items():
            session.conf.set(key, value)
        self._started_here = True
        return session

    def _start(self) -> SparkSession:
        active = SparkSession.getActiveSession()
        if active is not None:
            self._apply_to(active)
            return active
        keep_private()  # The JVM and the Python workers inherit it.
        # pyspark's launcher and its workers take these from the environment only.
        os.environ["JAVA_HOME"] = str(find_java().home)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        builder = SparkSession.builder.appName("kstreams-assets").master(self._settings.master)
        settings = {
            **self._launch_settings(),
            **self._runtime_settings(),
            **self._settings.spark_config,
        }
        for key, value in settings.items():
            builder = builder.config(key, value)
        launch_jvm({"spark.master": self._settings.master, **settings})
        session = builder.getOrCreate()
        self._started_here = True
        return session

    def _apply_to(self, active: SparkSession) -> None:
        extensions = active.conf.get("spark.sql.extensions", "") or ""
        if "DeltaSparkSessionExtension" not in extensions:
            raise ConfigurationError(
                "This process already has a Spark session without Delta Lake.",
                remedy="Stop that session first, or run the backup in a process of its own.",
            )
        for key, value in self._runtime_settings().items():
            active.conf.set(key, value)

    def _launch_settings(self) -> dict[str, str]:
        options = [
            "-XX:+UseParallelGC",
            "-Duser.timezone=UTC",
            f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
        ]
        if self._settings.class_data_archive:
            options.append(f"-XX:SharedArchiveFile={self._settings.class_data_archive}")
        return {
            "spark.driver.memory": self._settings.driver_memory,
            "spark.driver.extraClassPath": class_path("spark"),
            "spark.driver.extraJavaOptions": " ".join(options),
            # Hadoop sets the modes of files and folders itself, whatever the umask of the JVM is.
            "spark.hadoop.fs.permissions.umask-mode": "077",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.speculation": "false",
            "spark.redaction.regex": _REDACTED,
            "spark.sql.redaction.options.regex": _REDACTED,
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": f"{tempfile.gettempdir()}/kstreams-assets-spark-warehouse",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }

    def _runtime_settings(self) -> dict[str, str]:
        return {
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(self._settings.shuffle_partitions),
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            # Parquet checks no page on its own.
            "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
            "spark.databricks.delta.snapshotPartitions": "2",
        }


def launch_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process's Spark driver, unless there is one.

    Without this, pyspark starts it with the process's own standard error: a line of the JVM for
    every run, which cron mails. Raises PySparkRuntimeError when the JVM ends at once.
    """
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:  # noqa: SLF001
        return
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, str(value))
    before = {child.pid for child in psutil.Process().children()}
    reading, writing = os.pipe()
    threading.Thread(target=_hand_on, args=(reading,), name="jvm-stderr", daemon=True).start()
    try:
        gateway = launch_gateway(conf, popen_kwargs={"stderr": writing})
    except BaseException:
        # At Ctrl-C pyspark forgets the JVM that it waits for, which then lives on for ever: it
        # cannot say its port to anyone.
        _kill_launched(before)
        raise
    finally:
        os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


def _kill_launched(before: Collection[int]) -> None:
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.pid not in before and _SHELL in child.cmdline():
                child.kill()


def _hand_on(reading: int) -> None:
    """Copy lines to standard error, as they come, until the JVM has ended."""
    with os.fdopen(reading, "rb", buffering=0) as file:
        begun = b""
        while chunk := file.read(65_536):
            *lines, begun = (begun + chunk).split(b"\n")
            for line in lines:
                if line.rstrip() not in _IDLE:
                    os.write(_STANDARD_ERROR, line + b"\n")
        if begun:
            os.write(_STANDARD_ERROR, begun)
