"""The Spark session of a process, by Spark Connect: on this host's engine, or on another server."""

import contextlib
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.store import file_digest
from spark_resources.engine import Lease, lease
from spark_resources.executors import is_local, write_package_archive
from spark_resources.failures import SPARK_FAILURES
from spark_resources.jars import class_path
from spark_resources.java import find_java
from spark_resources.settings import SparkSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession


_RETRIES: Final = 5
"""From 50 ms on, each four times as late as the one before: 17 s."""


_MOST_CORES: Final = 100_000
_CORES: Final = "kstreams_assets.cores"
"""A setting of ours: what was found out of a server that does not say how many cores it has."""

_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""They print as JSON what is raised anyway."""


class LazySession:
    """A session that begins when it is first used, so a run with nothing to do never pays for it.

    Its settings and temp views are its own; the JVM is shared. Only what Spark Connect offers is
    there: no `sparkContext`, no RDDs.
    """

    def __init__(self, settings: SparkSettings | None = None) -> None:
        self._settings = settings or SparkSettings.from_environment()
        self._session: SparkSession | None = None
        self._lease: Lease | None = None

    @property
    def spark_session(self) -> "SparkSession":
        """The session; on first use an engine is found or started.

        Raises:
            EngineError: No engine could be started.
            ConfigurationError: The server that the settings name cannot be used.
        """
        if self._session is None:
            self._session = self._begun()
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
        """End the session; a later use begins another."""
        session, self._session = self._session, None
        held, self._lease = self._lease, None
        try:
            if session is not None:
                session.stop()
        finally:
            if held is not None:
                held.close()

    def interrupt(self) -> None:
        """Before a stop in the middle of a job: end what it runs."""
        if self._session is not None:
            with contextlib.suppress(PySparkException):
                self._session.interruptAll()

    def jvm_pid(self) -> int | None:
        """Process id of the engine's JVM, None where another server is used."""
        if self._settings.remote:
            return None
        _ = self.spark_session
        return None if self._lease is None else self._lease.engine.jvm_pid

    def _begun(self) -> "SparkSession":
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession
        from pyspark.sql.connect.client.retries import DefaultPolicy

        for name in _LOGGERS:
            PySparkLogger.getLogger(name).disabled = True
        url = self._settings.remote
        if url is None:
            self._lease = lease(self._settings)
            url = self._lease.engine.url
        try:
            session = SparkSession.builder.remote(url).create()
            close_at_exit(session)
            if self._lease is not None:
                # On this host a server that does not answer is gone: not ten minutes of retries.
                session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
            configure(session, self._settings.session_settings())
            if self._settings.remote:
                _send_packages(session)
            if self._is_elsewhere:
                self._fit_to(session, _ask_cores(session))
        except PySparkException as error:
            raise ConfigurationError(
                f"Spark Connect at {_without_token(url)} cannot be used: {_first_line(error)}.",
                remedy="Check that it runs and that this is its address (`remote`, or"
                " KSTREAMS_ASSETS_SPARK_REMOTE); without one, this host's engine is used"
                " (`kstreams-assets engine status`).",
            ) from None
        return session

    @property
    def _is_elsewhere(self) -> bool:
        """Whether tasks run on other machines than the server."""
        return self._lease is None or not is_local(self._lease.engine.settings["master"])

    def _fit_to(self, session: "SparkSession", cores: int) -> None:
        """Keep all cores of a cluster busy."""
        fitting = {_CORES: str(cores)}
        if "shuffle_partitions" not in self._settings.model_fields_set:
            most = max(cores, self._settings.shuffle_partitions)
            fitting["spark.sql.shuffle.partitions"] = str(most)
        configure(session, fitting)


def _send_packages(session: "SparkSession") -> None:
    """Give Python on a server's executors the code that its client has."""
    with tempfile.TemporaryDirectory(prefix="kstreams-assets-") as folder:
        archive = Path(folder) / "packages.zip"
        write_package_archive(archive)
        # Servers refuse another file of the same name.
        named = archive.with_name(f"kstreams-assets-{file_digest(archive)[:16]}.zip")
        session.addArtifacts(str(archive.rename(named)), pyfile=True)


def configure(session: "SparkSession", settings: "Mapping[str, str]") -> None:
    """Set all of these at once: each `conf.set` is a request of its own."""
    session.conf._set_all(dict(settings), silent=False)  # noqa: SLF001 # pyright: ignore


def close_at_exit(session: "SparkSession") -> None:
    """Close the connection of a session that nobody stopped before the process ends.

    Left to the interpreter's last steps, gRPC waits for ever for a thread that has ended already.
    """
    weakref.finalize(session, session.client.close)


def end_session(beside: "SparkSession") -> None:
    """End a session beside another one, on the server too; pyspark cannot `stop` a cloned one."""
    with contextlib.suppress(*SPARK_FAILURES):
        beside.client.release_session()
    beside.client.close()


def cores_of(session: "SparkSession") -> int:
    """How many tasks the server runs at the same time, as far as it says so."""
    for name in (_CORES, "spark.default.parallelism", "spark.sql.shuffle.partitions"):
        told = session.conf.get(name, None)
        if told:
            return int(told)
    return 1


def _ask_cores(session: "SparkSession") -> int:
    """Count them: so many parts has what nothing else divides. Clients have no other way."""
    parts = session.range(_MOST_CORES).selectExpr("spark_partition_id() AS part")
    return int(parts.groupBy().max("part").collect()[0][0]) + 1


def _without_token(url: str) -> str:
    return url.split(";")[0]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else "no answer"
