"""The Spark session of a run as a Dagster resource."""

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr

from spark_resources.session import LazySession
from spark_resources.settings import SparkSettings


class SparkSessionResource(SparkSettings, LazyPySparkResource):
    """A Spark session with Delta Lake on its class path.

    It starts when `spark_session` is first used, on this host's engine, which is started if
    necessary; so a run with nothing to do has no costs. With `remote` set, that Spark Connect
    server is used, which must have the same jars and packages. Fields that are not set come from
    the environment, as for commands, so that both use the same engine.
    """

    _lazy: LazySession | None = PrivateAttr(default=None)

    @property
    def session(self) -> LazySession:
        """The session of this process."""
        if self._lazy is None:
            given = self.model_fields_set & SparkSettings.model_fields.keys()
            self._lazy = LazySession(
                SparkSettings.from_environment(**self.model_dump(include=given))
            )
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

    def interrupt(self) -> None:
        """As `LazySession.interrupt`."""
        self.session.interrupt()

    def jvm_pid(self) -> int | None:
        """As `LazySession.jvm_pid`."""
        return self.session.jvm_pid()

    def stop(self) -> None:
        """Stop the session if this resource started it; a later use starts another."""
        self._spark_session = None
        if self._lazy is not None:
            self._lazy.stop()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session this resource started."""
        self.stop()
