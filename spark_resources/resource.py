"""The Spark session of a run as a Dagster resource."""

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr

from spark_resources.session import LazySession, SparkSettings


class SparkSessionResource(SparkSettings, LazyPySparkResource):
    """A Spark session with Delta Lake and the Kafka source on its class path.

    The JVM starts when `spark_session` is first used, so a run with nothing to do never pays for
    it; it is stopped when the run ends. With `remote` set, a Spark Connect server is used, which
    must have the same jars on its class path.
    """

    _lazy: LazySession | None = PrivateAttr(default=None)

    @property
    def session(self) -> LazySession:
        """The session of this process."""
        if self._lazy is None:
            self._lazy = LazySession(self)
        return self._lazy

    def _init_session(self) -> None:
        self._spark_session = self.session.spark_session

    @property
    def is_started(self) -> bool:
        """Whether this run has needed Spark so far."""
        return self.session.is_started

    def check(self) -> None:
        """As `LazySession.check`."""
        self.session.check()

    def hush(self) -> None:
        """As `LazySession.hush`."""
        self.session.hush()

    def jvm_pid(self) -> int | None:
        """As `LazySession.jvm_pid`."""
        return self.session.jvm_pid()

    def stop(self) -> None:
        """Stop the session if this resource started it; a later use starts another."""
        self._spark_session = None
        self.session.stop()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session this resource started."""
        self.stop()
