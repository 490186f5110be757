"""The Spark session of a run: started on first use, stopped at the end of the run."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from py4j.protocol import Py4JError
from pydantic import Field, PrivateAttr
from pyspark.sql import SparkSession

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.warehouse.layout import keep_private
from spark_resources.jars import class_path
from spark_resources.java import find_java
from spark_resources.jvm import launch_jvm

_REDACTED = "(?i)secret|password|token|access[.]?key|jaas|private|ssl[.].*key"
"""Spark's default leaves the PEM key of a Kafka client readable in logs and plans."""
_LOG4J = Path(__file__).with_name("log4j2.properties")


class SparkSessionResource(LazyPySparkResource):
    """A Spark session with Delta Lake and the Kafka source on its class path.

    The JVM starts when `spark_session` is first used, so a run with nothing to do never pays for
    it; it is stopped when the run ends. With `remote` set, a Spark Connect server is used, which
    must have the same jars on its class path.
    """

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
    _started_here: bool = PrivateAttr(default=False)

    def _init_session(self) -> None:
        if self._spark_session is None:
            self._spark_session = self._connect() if self.remote else self._start()

    @property
    def is_started(self) -> bool:
        """Whether this run has needed Spark so far."""
        return self._spark_session is not None

    def check(self) -> None:
        """Look for jars and Java without starting anything.

        Raises JarsMissingError, JavaNotFoundError.
        """
        if self._spark_session is None and not self.remote:
            class_path("spark")
            find_java()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session this resource started."""
        self.stop()

    def stop(self) -> None:
        """Stop the session if this resource started it; a later use starts another."""
        session, self._spark_session = self._spark_session, None
        if session is not None and self._started_here:
            session.stop()
        self._started_here = False

    def hush(self) -> None:
        """Before a stop in the middle of a job: what killed tasks log then is no news."""
        if self._spark_session is not None and self._started_here and not self.remote:
            with contextlib.suppress(Py4JError, OSError):
                self._spark_session.sparkContext.setLogLevel("OFF")

    def jvm_pid(self) -> int | None:
        """Process id of the driver JVM, None with Spark Connect."""
        if self.remote:
            return None
        jvm = self.spark_session._jvm  # noqa: SLF001 - no public way to the driver's JVM
        return int(jvm.java.lang.ProcessHandle.current().pid())

    def _connect(self) -> SparkSession:
        session = SparkSession.builder.remote(self.remote or "").getOrCreate()
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
        builder = SparkSession.builder.appName("kstreams-assets").master(self.master)
        settings = {**self._launch_settings(), **self._runtime_settings(), **self.spark_config}
        for key, value in settings.items():
            builder = builder.config(key, value)
        launch_jvm({"spark.master": self.master, **settings})
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
        if self.class_data_archive:
            options.append(f"-XX:SharedArchiveFile={self.class_data_archive}")
        return {
            "spark.driver.memory": self.driver_memory,
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
            "spark.sql.shuffle.partitions": str(self.shuffle_partitions),
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            # Parquet checks no page on its own.
            "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
            "spark.databricks.delta.snapshotPartitions": "2",
        }
