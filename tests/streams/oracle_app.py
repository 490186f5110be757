"""Starts and stops OracleApp.java, built against today's or older Kafka jars; makes its topics."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.order_processor.application import Guarantee
from examples.streams.process import StreamsProcess
from spark_resources.jars import JarSet
from spark_resources.java import JavaProgram

SOURCE: Final = Path(__file__).with_name("OracleApp.java")

_ADMIN_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class OracleTopics:
    """The names of every topic of one OracleApp."""

    application_id: str
    prefix: str = ""

    @property
    def orders(self) -> str:
        """Input: key order id, value "customer,amount"."""
        return f"{self.prefix}orders"

    @property
    def quiet(self) -> str:
        """Input of the tasks that only tick."""
        return f"{self.prefix}quiet"

    @property
    def repartition(self) -> str:
        """Orders by customer, values as in `orders`."""
        return f"{self.application_id}-by-customer-repartition"

    @property
    def changelog(self) -> str:
        """Changelog of the store `totals`: key customer, value "count,sum"."""
        return f"{self.application_id}-totals-changelog"

    @property
    def ticks_changelog(self) -> str:
        """Changelog of the store `ticks`: key "task-<partition>", value counter."""
        return f"{self.application_id}-ticks-changelog"

    @property
    def totals(self) -> str:
        """Output with every change of the store `totals`."""
        return f"{self.prefix}totals"

    @property
    def ticks(self) -> str:
        """Output with every change of the store `ticks`."""
        return f"{self.prefix}ticks"


def create_topics(
    bootstrap_servers: str,
    topics: OracleTopics,
    *,
    partitions: int = 4,
    quiet_partitions: int | None = None,
    replication_factor: int = 1,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create inputs and outputs; `configs` are topic properties of all of them.

    `quiet` and `ticks` get `quiet_partitions`, by default as many as the others. Topics that the
    application creates take theirs from its properties `topic.<name>`.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    counts = dict.fromkeys((topics.orders, topics.totals), partitions)
    counts |= dict.fromkeys((topics.quiet, topics.ticks), quiet_partitions or partitions)
    new = [
        NewTopic(name, count, replication_factor, config=dict(configs or {}))
        for name, count in counts.items()
    ]
    for created in admin.create_topics(new, request_timeout=_ADMIN_TIMEOUT_S).values():
        created.result(timeout=_ADMIN_TIMEOUT_S)


class OracleApp(StreamsProcess):
    """One instance of the application, as a context manager; it needs its topics.

    `jar_set` says which Kafka Streams it is built and run with. With `punctuate_ms` every task of
    `quiet` counts on at that interval. A stopped instance stays a member of the group until its
    session times out: set `session.timeout.ms` in `config` (further Streams properties). `program`
    runs in its place where it takes the same arguments.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: OracleTopics,
        *,
        state_dir: Path,
        jar_set: JarSet = "kafka",
        guarantee: Guarantee = "exactly_once_v2",
        commit_interval_ms: int = 100,
        threads: int = 1,
        punctuate_ms: int | None = None,
        config: Mapping[str, str] | None = None,
        heap_mb: int = 256,
        program: JavaProgram | None = None,
    ) -> None:
        self.state_dir: Final = state_dir.absolute()
        arguments = [
            *("--bootstrap", bootstrap_servers),
            *("--application-id", topics.application_id),
            *("--topic-prefix", topics.prefix),
            *("--guarantee", guarantee),
            *("--state-dir", str(self.state_dir)),
            *("--commit-interval-ms", str(commit_interval_ms)),
            *("--threads", str(threads)),
            *("--punctuate-ms", str(punctuate_ms or 0)),
        ]
        for key, value in (config or {}).items():
            arguments += ["--config", f"{key}={value}"]
        log_file = self.state_dir.parent / f"{self.state_dir.name}-oracle-app.log"
        super().__init__(
            program or JavaProgram(SOURCE, jar_set),
            arguments,
            log_file=log_file,
            heap_mb=heap_mb,
        )

    def wipe_state(self) -> None:
        """Delete the local stores of an instance that does not run."""
        assert not self.running
        shutil.rmtree(self.state_dir, ignore_errors=True)
