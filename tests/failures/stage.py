"""One example application on a broker: it is run, damaged, backed up, restored beside itself."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from examples.streams.application import ExampleApplication
from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.settings import ApplicationSettings
from spark_resources.work import Spark
from tests.restore.control import read
from tests.restore.example_trial import PARTITIONS, ExampleTrial
from tests.restore.trial import Source, named
from tests.streams.cluster import unique_name
from tests.streams.feed import Feed, Record

_TIMEOUT_S: Final = 120.0
_EXCEPTION: Final = re.compile(r"(?:[a-z]\w*\.)+([A-Z]\w+(?:Exception|Error))\b")


@dataclass(slots=True)
class Stage:
    """An application with a warehouse of its own, and the points and windows of it so far."""

    trial: ExampleTrial
    source: Source
    prefix: str
    folder: Path
    windows: list[Window] = field(default_factory=list)
    points: dict[str, RecoveryPoint] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        trial: ExampleTrial,
        cluster: KafkaCluster,
        folder: Path,
        *,
        saying: Callable[[str], Mapping[str, Any]] = lambda _prefix: {},
    ) -> "Stage":
        """Make its topics; nothing runs yet.

        `saying` gives attributes that replace those of the YAML, from the prefix of the topics.
        """
        example = trial.definition.example
        name, prefix = unique_name(example.application_id), f"{unique_name('p')}."
        trial = replace(trial, definition=replace(trial.definition, attributes=saying(prefix)))
        servers = cluster.connection.bootstrap_servers
        example.create_topics(servers, topic_prefix=prefix, partitions=PARTITIONS)
        settings = trial.definition.settings(servers, name, prefix, folder)
        return cls(trial, Source(settings, cluster), prefix, folder)

    @property
    def settings(self) -> ApplicationSettings:
        """The application as it is configured."""
        return self.source.settings

    def declare(self, **changes: Any) -> None:
        """Change the settings, such as `governance`."""
        self.source.settings = replace(self.settings, **changes)

    @property
    def servers(self) -> str:
        """The brokers, host:port."""
        return self.settings.connection.bootstrap_servers

    @property
    def name(self) -> str:
        """The application as users know it."""
        return self.trial.definition.example.application_id

    def topic(self, name: str) -> str:
        """A topic that the application does not create itself."""
        return self.prefix + name

    @property
    def input(self) -> str:
        """The topic that is fed."""
        return self.topic(self.trial.feeds[0].topic)

    @property
    def changelog(self) -> str:
        """The first changelog."""
        return named(self.settings.application, TopicRole.CHANGELOG)[0]

    @property
    def repartition(self) -> str:
        """The first repartition topic."""
        return named(self.settings.application, TopicRole.REPARTITION)[0]

    def instance(self, number: int = 0, *, queries: bool = False) -> ExampleApplication:
        """An instance with a state directory of its own."""
        return self.trial.application(
            self.servers,
            self.settings.application_id,
            self.prefix,
            self.state_dir(number),
            queries=queries,
        )

    def state_dir(self, number: int = 0) -> Path:
        """The state directory of an instance."""
        return self.folder / f"state-{number}"

    def feed(self, *, first: int = 0) -> Feed:
        """Orders at the rate of the trial, from the one with this index on."""
        feed = self.trial.feeds[0]
        return Feed(
            self.servers, self.input, lambda index: feed.record(first + index), rate=feed.rate
        )

    def await_results(self) -> None:
        """Wait until the application has written state: before, a point would prove nothing."""
        partitions = [TopicPartitionId(self.changelog, number) for number in range(PARTITIONS)]
        deadline = time.monotonic() + _TIMEOUT_S
        while not any(self.source.cluster.last_stable_offsets(partitions).values()):
            assert time.monotonic() < deadline, "the application writes no state"
            time.sleep(0.1)

    def take_any(self, label: str) -> RecoveryPoint:
        """Take a point, whatever its guarantee."""
        recorder = recorder_of(self.settings, self.source.cluster)
        self.points[label] = recorder.take()
        return self.points[label]

    def take(self, label: str) -> RecoveryPoint:
        """Take an exact point."""
        self.points[label] = self.source.take()
        return self.points[label]

    def back_up(self, newest: RecoveryPoint, spark: Spark) -> list[WindowBackup]:
        """Back up what is new since the window before, up to a point."""
        began_ms = self.windows[-1].end_ms if self.windows else self.source.began_ms
        window = Window(began_ms, newest.taken_at_ms + 1, f"w{len(self.windows):04d}")
        self.windows.append(window)
        job = BackupJob(self.settings, spark, unique_name("backup"))
        return [*job.run([window]).windows]

    def written(self, topic: str) -> list[Record]:
        """Every committed record of a topic now."""
        return read(self.servers, [topic])[topic]

    def committed(self) -> dict[TopicPartitionId, int]:
        """What the group has committed."""
        found = self.source.cluster.group_offsets(self.settings.application_id)
        return {id_: offset.offset for id_, offset in found.items()}

    def lag(self) -> int:
        """Offsets of the fed topic that the application has not taken in."""
        partitions = [TopicPartitionId(self.input, number) for number in range(PARTITIONS)]
        ends, committed = self.source.cluster.high_watermarks(partitions), self.committed()
        return sum(ends[id_] - committed.get(id_, 0) for id_ in partitions)


@contextmanager
def running(*instances: ExampleApplication) -> Iterator[None]:
    """Instances that start together, and are gone at the end."""
    try:
        with ThreadPoolExecutor(len(instances)) as pool:
            list(pool.map(ExampleApplication.start, instances))
        yield
    finally:
        for instance in instances:
            instance.kill()


def await_end(application: ExampleApplication, *, timeout_s: float = 60.0) -> None:
    """Wait until an instance has ended by itself."""
    deadline = time.monotonic() + timeout_s
    while application.running:
        assert time.monotonic() < deadline, f"it still runs: {application.log_file}"
        time.sleep(0.1)


def exceptions(application: ExampleApplication) -> list[str]:
    """The kinds of exceptions in the log of an instance, in the order they first came."""
    text = application.log_file.read_text(encoding="utf-8", errors="replace")
    return list(dict.fromkeys(_EXCEPTION.findall(text)))
