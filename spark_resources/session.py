"""The Spark session of a process, by Spark Connect: on this host's engine, or another server."""

import contextlib
import logging
import os
import tempfile
import threading
import time
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from kstreams_assets.errors import ConfigurationError, EngineError
from kstreams_assets.store import file_digest
from spark_resources.engine import Lease, lease
from spark_resources.executors import LOOPBACK, is_local, write_package_archive
from spark_resources.failures import SPARK_FAILURES, cause_of
from spark_resources.jars import class_path
from spark_resources.java import find_java
from spark_resources.settings import SparkSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import RetryPolicy


_RETRIES: Final = 5
"""From 50 ms on, each pause four times the previous one: 17 s."""
_REMOTE_RETRIES: Final = 125
_REMOTE_PAUSE_MS: Final = 5_000
_ATTEMPTS: Final = 3
"""Number of engines that are tried: one may die while a session starts."""
_LOOK_S: Final = 1.0
"""A session that answered within this time is not checked again."""

_log = logging.getLogger(__name__)

_MOST_CORES: Final = 100_000
_CORES: Final = "kstreams_assets.cores"
"""A setting of this project: the measured cores of a server that does not report them."""

_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""They print errors as JSON that are raised anyway."""


class LazySession:
    """A session that starts when it is first used, so a run with nothing to do has no costs.

    Its settings and temp views are its own; the JVM is shared. It has only what Spark Connect
    offers: no `sparkContext`, no RDDs. Threads may share it.
    """

    def __init__(self, settings: SparkSettings | None = None) -> None:
        self._settings = settings or SparkSettings.from_environment()
        self._session: SparkSession | None = None
        self._lease: Lease | None = None
        self._answered = float("-inf")
        self._one_at_a_time = threading.RLock()

    @property
    def spark_session(self) -> "SparkSession":
        """The session; on first use, or if its server is gone, an engine is found or started.

        So a job that failed because its engine died can be repeated.

        Raises:
            EngineError: No engine could be started or used.
            ConfigurationError: The server in the settings cannot be used.
        """
        with self._one_at_a_time:
            if self._session is not None and not self._answers(self._session):
                _log.warning("The Spark session is gone with its server; another one starts.")
                self._end(is_there=False)
            if self._session is None:
                self._session = self._begun()
                self._answered = time.monotonic()
            return self._session

    @property
    def is_started(self) -> bool:
        """Whether Spark was needed so far."""
        return self._session is not None

    def check(self) -> None:
        """Check for jars and Java without starting anything.

        Raises JarsMissingError, JavaNotFoundError.
        """
        if self._session is None and not self._settings.remote:
            class_path("spark")
            find_java()

    def stop(self) -> None:
        """End the session; a later use starts another."""
        self._end(is_there=self._lease is None or self._lease.is_alive())

    def _end(self, *, is_there: bool) -> None:
        with self._one_at_a_time:
            session, self._session = self._session, None
            held, self._lease = self._lease, None
        try:
            if session is not None and is_there:
                session.stop()
            elif session is not None:
                session.client.close()  # the server has lost its state
        finally:
            if held is not None:
                held.close()

    def _answers(self, session: "SparkSession") -> bool:
        """Whether its server still has the session."""
        if self._lease is not None and not self._lease.is_alive():
            return False
        if time.monotonic() - self._answered < _LOOK_S:
            return True
        try:
            session.conf.get("spark.sql.session.timeZone")
        except (*SPARK_FAILURES, ValueError):  # ValueError: gRPC's, of a channel that is closed
            return False
        self._answered = time.monotonic()
        return True

    def interrupt(self) -> None:
        """End running jobs, before a stop in the middle of one."""
        if self._session is not None:
            with contextlib.suppress(PySparkException):
                self._session.interruptAll()

    def jvm_pid(self) -> int | None:
        """Process id of the engine's JVM, None for another server."""
        if self._settings.remote:
            return None
        _ = self.spark_session
        return None if self._lease is None else self._lease.engine.jvm_pid

    def _begun(self) -> "SparkSession":
        from pyspark.logger import PySparkLogger

        for name in _LOGGERS:
            PySparkLogger.getLogger(name).disabled = True
        # pyspark's own messages about errors that are raised anyway.
        warnings.filterwarnings("ignore", message=".*RETRIES_EXCEEDED")
        if self._settings.remote is not None:
            try:
                return self._connected(self._settings.remote)
            except SPARK_FAILURES as error:
                raise ConfigurationError(
                    f"Spark Connect at {_without_token(self._settings.remote)} cannot be used:"
                    f" {cause_of(error)}.",
                    remedy="Check that it runs and that this is its address (`remote`, or"
                    " KSTREAMS_ASSETS_SPARK_REMOTE); without one, this host's engine is used"
                    " (`kstreams-assets engine status`).",
                ) from None
        attempt = 1
        while True:
            self._lease = lease(self._settings)
            try:
                return self._connected(self._lease.engine.url)
            except SPARK_FAILURES as error:
                held, self._lease = self._lease, None
                held.close()
                problem = f"{held.engine} cannot be used: {cause_of(error)}"
                if attempt == _ATTEMPTS:
                    raise EngineError(problem, held.log) from None
                _log.warning("%s. Another engine is tried.", problem)
                attempt += 1

    def _connected(self, url: str) -> "SparkSession":
        """Return a session of the server at `url`, with this session's settings."""
        session = _session_at(url, is_engine=self._lease is not None)
        close_at_exit(session)
        try:
            session.client.set_retry_policies([_retry_policy(self._lease)])
            configure(session, self._settings.session_settings())
            if self._settings.remote:
                _send_packages(session)
            if self._is_elsewhere:
                self._fit_to(session, _ask_cores(session))
        except SPARK_FAILURES:
            session.client.close()
            raise
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


def _retry_policy(held: Lease | None) -> "RetryPolicy":
    """Retry on an engine while it runs; a dead one does not restart at its address.

    Another server may restart there, and is retried for 10 minutes. Spark itself waits up to a
    minute between two tries, and then notices late.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy

    if held is None:
        return DefaultPolicy(max_retries=_REMOTE_RETRIES, max_backoff=_REMOTE_PAUSE_MS)

    class WhileAlive(DefaultPolicy):
        def can_retry(self, e: BaseException) -> bool:
            return super().can_retry(e) and held.is_alive()

    return WhileAlive(max_retries=_RETRIES)


def _session_at(url: str, *, is_engine: bool) -> "SparkSession":
    """Return a session; for an engine it connects to the address of engines."""
    from typing import cast

    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    if not is_engine:
        return SparkSession.builder.remote(url).create()
    # Like the builder of `remote`: functions of pyspark then build plans for Connect.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    session = ConnectSession.Builder().channelBuilder(loopback_channel(url)).create()
    return cast("SparkSession", session)


def loopback_channel(url: str) -> "DefaultChannelBuilder":
    """Connections to an engine at LOOPBACK, whatever `localhost` means on this host."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    class OnLoopback(DefaultChannelBuilder):
        @property
        def endpoint(self) -> str:
            return f"{LOOPBACK}:{self._port}"

    return OnLoopback(url)


def _send_packages(session: "SparkSession") -> None:
    """Send the client's packages to Python on a server's executors."""
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
    """Close the connection of a running session before the process ends.

    Left to the interpreter's shutdown, gRPC waits forever for a thread that has ended already.
    """
    weakref.finalize(session, session.client.close)


def end_session(beside: "SparkSession") -> None:
    """End a session beside another one, on the server too; pyspark cannot `stop` a cloned one."""
    with contextlib.suppress(*SPARK_FAILURES):
        beside.client.release_session()
    beside.client.close()


def cores_of(session: "SparkSession") -> int:
    """Return how many tasks the server runs at the same time, as far as it reports that."""
    for name in (_CORES, "spark.default.parallelism", "spark.sql.shuffle.partitions"):
        value = session.conf.get(name, None)
        if value:
            return int(value)
    return 1


def _ask_cores(session: "SparkSession") -> int:
    """Count the default partitions of a range; clients have no other way to find the cores."""
    parts = session.range(_MOST_CORES).selectExpr("spark_partition_id() AS part")
    return int(parts.groupBy().max("part").collect()[0][0]) + 1


def _without_token(url: str) -> str:
    return url.split(";")[0]
