"""Example applications as the tests of backups and restores run them: one run, five live points.

`run_example` makes a source run on a cluster of its own, `assert_restored_as_control` restores it
from points of that run. What its stores hold is compared in `example_snapshots`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

from examples.streams.application import ExampleApplication
from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.request import ChangelogSource, RestoreRequest
from kstreams_assets.settings import ApplicationSettings
from spark_resources.work import Spark
from tests.restore.example_comparison import differences_from_control
from tests.restore.example_definition import Definition
from tests.restore.example_queries import Rows, answers_at_rest
from tests.restore.trial import Restored, Source, SourceRun, named, own_names, restore
from tests.streams.cluster import connection_to, unique_name
from tests.streams.feed import Feed, Record, produce

PARTITIONS: Final = 4
LIVE: Final = ("live 1", "live 2", "live 3", "live 4", "live 5")
"""Points under load; the first window ends at the last of them."""
QUIET: Final = "quiet"
"""The point at which everything is processed; the second window ends at it."""

_THREADS: Final = 2
_COMMIT_INTERVAL_MS: Final = 100
_FIRST_S: Final = 2.0
_BETWEEN_S: Final = 0.8
_LAST_S: Final = 1.5
_START_S: Final = 180.0
# Every update is one changelog record and one output record, whenever it is committed.
_CONFIG: Final = {"statestore.cache.max.bytes": "0"}


@dataclass(frozen=True, slots=True)
class InputFeed:
    """What goes into one input topic (named without prefix): records by index, at a rate.

    Records of one key in one partition, or its sequence of results depends on chance.
    """

    topic: str
    record: Callable[[int], Record]
    rate: float


@dataclass(frozen=True, slots=True)
class ExampleTrial:
    """How an example is run.

    `before` are records produced before the application starts, by topic without prefix. `awaited`
    are topics that hold something when the first point is taken. `config` are further Streams
    properties. `closing` are produced when the feeds have ended, such as
    records that move stream time on. `not_compared` are changelogs, by store, whose content no
    restore can give back.
    """

    definition: Definition
    feeds: Sequence[InputFeed]
    before: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    awaited: Sequence[str] = ()
    closing: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    not_compared: frozenset[str] = frozenset()

    def application(
        self,
        bootstrap_servers: str,
        application_id: str,
        prefix: str,
        state_dir: Path,
        *,
        queries: bool = False,
    ) -> ExampleApplication:
        """An instance whose outputs follow from its inputs: one record for every update."""
        return ExampleApplication(
            self.definition.example,
            bootstrap_servers,
            state_dir=state_dir,
            application_id=application_id,
            topic_prefix=prefix,
            commit_interval_ms=_COMMIT_INTERVAL_MS,
            threads=_THREADS,
            config={**_CONFIG, **self.config},
            queries=queries,
        )


@dataclass(frozen=True, slots=True)
class ExampleRun:
    """A source run, its cluster gone: points `live 1` to `live 5` and `quiet`, two windows.

    `answers` is what each store answered at point `quiet`.
    """

    trial: ExampleTrial
    source: SourceRun
    prefix: str
    windows: tuple[Window, Window]
    answers: Mapping[str, Rows]

    @property
    def settings(self) -> ApplicationSettings:
        """The application as it ran."""
        return self.source.settings

    def after(self, point: RecoveryPoint) -> Mapping[str, Sequence[Record]]:
        """What was fed and a point does not hold, by topic."""
        topics = {*(f.topic for f in self.trial.feeds), *self.trial.closing, *self.trial.before}
        return {
            self.prefix + topic: [
                record
                for record in self.source.written[self.prefix + topic]
                if not holds(point, self.prefix + topic, record)
            ]
            for topic in sorted(topics)
        }


def holds(point: RecoveryPoint, topic: str, record: Record) -> bool:
    """Whether a record of a topic belongs to a point."""
    cut = point.cut(TopicPartitionId(topic, record.partition))
    return cut is not None and cut.holds(record.offset)


def run_example(trial: ExampleTrial, folder: Path, spark: Spark) -> ExampleRun:
    """Run it on a cluster of its own, take the points, let it finish, ask its stores, back up."""
    name = unique_name(trial.definition.example.application_id)
    prefix = f"{unique_name('p')}."
    with (
        LocalCluster(folder / "source") as local,
        KafkaCluster(connection_to(local.bootstrap_servers)) as cluster,
    ):
        servers = local.bootstrap_servers
        settings = trial.definition.settings(servers, name, prefix, folder)
        trial.definition.example.create_topics(servers, topic_prefix=prefix, partitions=PARTITIONS)
        source = Source(settings, cluster)
        _produce(servers, prefix, trial.before)
        state_dir = folder / "state"
        with trial.application(servers, name, prefix, state_dir, queries=True) as application:
            points = _live_points(trial, source, prefix)
            _produce(servers, prefix, trial.closing)
            source.drain()
            points[QUIET] = source.take()
            answers = answers_at_rest(source, application)
        windows = _windows(source.began_ms, points)
        _back_up(settings, windows, spark)
        return ExampleRun(trial, source.ended(points), prefix, windows, answers)


def assert_restored_as_control(
    run: ExampleRun,
    labels: Sequence[str],
    target: KafkaConnection,
    spark: Spark,
    folder: Path,
    *,
    outputs: Literal["sequences", "newest"] = "sequences",
    source: ChangelogSource = ChangelogSource.RAW,
    change: Callable[[RestoreRequest], RestoreRequest] = lambda request: request,
) -> Mapping[str, Restored]:
    """Restore each of these points under names of its own, and let all of them go on at once.

    Outputs are compared with the uninterrupted run record by record for every key, or (`newest`)
    by the last record of every key; changelogs by what the stores then hold. From snapshots only
    points restore that close a window: the last live one and the quiet one. `change` completes the
    request of a restore. Completeness rules must hold on the first of them, before it goes on.
    Returns what was restored, by label, for what a test compares beside.
    """
    all_restored: dict[str, Restored] = {}
    for label in labels:
        request = own_names("restored", run.source.points[label])
        request = request.model_copy(
            update={"changelog_source": source, "skip_completeness": label != labels[0]}
        )
        all_restored[label] = restore(run.source, target, spark, change(request))
        all_restored[label].commit()
    with ExitStack() as stack:
        applications = [
            _restored_application(run, restored, folder) for restored in all_restored.values()
        ]
        for application in applications:
            stack.callback(application.kill)
        with ThreadPoolExecutor(len(applications)) as pool:
            list(pool.map(partial(ExampleApplication.start, timeout_s=_START_S), applications))
        for label, restored in all_restored.items():
            assert _replay(run, restored) > 0 or label == QUIET, label
        wrong = {}
        for label, restored in all_restored.items():
            restored.drain()
            wrong[label] = differences_from_control(
                restored, not_compared=run.trial.not_compared, by_last=outputs == "newest"
            )
        assert {label: texts for label, texts in wrong.items() if texts} == {}
        for application in applications:
            application.stop()
    return all_restored


def _live_points(trial: ExampleTrial, source: Source, prefix: str) -> dict[str, RecoveryPoint]:
    """Take the points under load, then feed a little longer."""
    servers = source.settings.connection.bootstrap_servers
    points: dict[str, RecoveryPoint] = {}
    with ExitStack() as stack:
        feeds = [
            stack.enter_context(Feed(servers, prefix + f.topic, f.record, rate=f.rate))
            for f in trial.feeds
        ]
        _await_results(source, named(source.settings.application, TopicRole.CHANGELOG))
        for topic in trial.awaited:
            _await_results(source, [prefix + topic])
        time.sleep(_FIRST_S)
        for label in LIVE:
            time.sleep(_BETWEEN_S)
            points[label] = source.take()
        time.sleep(_LAST_S)
        for feed in feeds:
            feed.stop()
    return points


def _await_results(source: Source, topics: Sequence[str]) -> None:
    """Points of an application that has not done anything yet would prove nothing."""
    partitions = [TopicPartitionId(topic, n) for topic in topics for n in range(PARTITIONS)]
    deadline = time.monotonic() + _START_S
    while not any(source.cluster.last_stable_offsets(partitions).values()):
        assert time.monotonic() < deadline, f"nothing is in any of {topics}"
        time.sleep(0.1)


def _produce(bootstrap_servers: str, prefix: str, records: Mapping[str, Sequence[Record]]) -> None:
    for topic, of_topic in records.items():
        produce(bootstrap_servers, prefix + topic, of_topic)


def _windows(began_ms: int, points: Mapping[str, RecoveryPoint]) -> tuple[Window, Window]:
    """One window up to the last live point, one up to the quiet point."""
    middle_ms, end_ms = points[LIVE[-1]].taken_at_ms + 1, points[QUIET].taken_at_ms + 1
    return Window(began_ms, middle_ms, "w0000"), Window(middle_ms, end_ms, "w0001")


def _back_up(settings: ApplicationSettings, windows: Sequence[Window], spark: Spark) -> None:
    backups = BackupJob(settings, spark, unique_name("backup")).run(windows).windows
    assert all(backup.records > 0 for backup in backups)


def _restored_application(run: ExampleRun, restored: Restored, folder: Path) -> ExampleApplication:
    name = restored.plan.group
    some = run.prefix + run.trial.feeds[0].topic
    prefix = restored.names[some].removesuffix(run.trial.feeds[0].topic)
    return run.trial.application(
        restored.target.bootstrap_servers, name, prefix, folder / f"state-{name}"
    )


def _replay(run: ExampleRun, restored: Restored) -> int:
    """Produce what was fed and the point does not hold, as its producers would; how much."""
    return sum(
        produce(restored.target.bootstrap_servers, restored.names[topic], records)
        for topic, records in run.after(restored.point).items()
    )
