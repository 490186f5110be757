"""Shared state of the parts of a backup run."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kstreams_assets.app.model import AppTopic
from kstreams_assets.backup.amounts import Pace, Phase, Progress, expected_pace
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.throttle import Throttle, throttle
from kstreams_assets.model.spans import Window
from kstreams_assets.model.tables import Lock
from kstreams_assets.recovery.lineage import require_lineage
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath
from kstreams_assets.store.locks import LockHandle
from spark_resources.work import Spark

_LEAST_FREE_BYTES: Final = 64 * 1024**2
"""With less free space a run is refused: even an empty run writes a few files."""


@dataclass(frozen=True)
class RunContext:
    """The application, its topics to back up, the cluster, Spark, and the run's id.

    `begins_ms` is the start of the first window of the schedule (epoch milliseconds). `check` is
    called regularly while this process reads or writes files, and may raise. `on_phase` is called
    when a phase starts, and around each commit of a long run. `new_lineage` accepts a cluster
    that neither the backups nor a restore of them lead to.
    """

    settings: ApplicationSettings
    topics: tuple[AppTopic, ...]
    cluster: KafkaCluster
    spark: Spark
    run_id: str
    begins_ms: int
    check: Callable[[], None] = lambda: None
    on_phase: Callable[[Progress], None] = lambda _: None
    new_lineage: bool = False

    @cached_property
    def repo(self) -> Repository:
        """The warehouse of the application."""
        return Repository.open(self.settings)

    @property
    def records(self) -> StorePath:
        """The records table."""
        return self.settings.warehouse.records(self.settings.application_id)

    @property
    def names(self) -> set[str]:
        """The names of the topics."""
        return {topic.name for topic in self.topics}

    def topics_of(self, names: Collection[str]) -> tuple[AppTopic, ...]:
        """The topics of the run with these names."""
        return tuple(topic for topic in self.topics if topic.name in names)

    def missing(self, window: Window) -> set[str]:
        """Return the topics that the ledger does not have in a window."""
        return self.names - self.repo.ledger.done(self.names, windows=[window]).get(window, set())

    def present(self) -> list[str]:
        """Return the topics that exist on the cluster, in order."""
        return sorted(self.names & set(self.cluster.topics()))

    @property
    def throttle(self) -> Throttle | None:
        """The throttle that all reads share; None without a limit."""
        backup = self.settings.backup
        return throttle(
            f"backup {self.settings.application_id}",
            backup.bytes_per_second,
            backup.broker_bytes_per_second,
            tasks=backup.tasks,
        )

    def start(self, phase: Phase) -> None:
        """Report that a phase starts."""
        self.on_phase(Progress(phase))

    def has_read(self, size: float, left: float) -> None:
        """Report how many bytes were read, and about how many are left."""
        self.on_phase(Progress(Phase.RECORDS, size, left, self.expected_pace()))

    def expected_pace(self) -> Pace | None:
        """Return how fast records are expected to be read; None if unknown."""
        settings = self.settings
        return expected_pace(settings.backup, settings.warehouse, settings.application_id)

    def provenance(self, windows: Iterable[Window]) -> dict[str, object]:
        """Return what a commit of these windows says about its origin."""
        return {
            "run_id": self.run_id,
            "application_id": self.settings.application_id,
            "windows": sorted({window.key for window in windows}),
        }

    @contextmanager
    def writing(self) -> Iterator[LockHandle]:
        """Hold the application's lock, with a checked warehouse and a cluster that answers.

        Runs that cannot succeed fail here, before a recovery point is taken for them.

        Raises:
            AuthorizationFailedError: The right to READ a topic is missing.
            OtherClusterError: The backups are of another cluster.
            WarehouseLockedError: Another run held the application's lock for too long.
        """
        settings = self.settings
        purpose, wait_s = f"backup run {self.run_id}", settings.backup.lock_wait_seconds
        with self.repo.writing(Lock.APPLICATION, purpose=purpose, wait_s=wait_s) as lock:
            if settings.spark.needs_spark(0):
                self.spark.check()
            settings.warehouse.require_space(_LEAST_FREE_BYTES)
            self.cluster.require_read(self.present())
            if not self.new_lineage:
                require_lineage(settings.warehouse, settings.application_id, self.cluster)
            yield lock
