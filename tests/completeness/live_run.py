"""Example applications under live load with many recovery points, backed up in short windows.

What is in the backup can be changed in a copy of its warehouse (`seeding`).
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from examples.order_processor.application import PROGRAM, TOPICS
from examples.orders_created.orders import TOPIC as CREATED
from examples.orders_risk_scoring.application import EXAMPLE as RISK_SCORING
from examples.streams.application import Example
from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.completeness.evaluate import Evaluator
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.rule_results import RuleResult
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.settings import ApplicationSettings
from spark_resources.work import Spark
from tests.examples.orders_created.records import created
from tests.restore.example_definition import Definition
from tests.restore.example_trial import PARTITIONS, ExampleTrial, InputFeed
from tests.restore.trial import Source, named
from tests.streams.cluster import connection_to, unique_name
from tests.streams.feed import Feed
from tests.streams.orders import orders

ORDER_PROCESSOR: Final = ExampleTrial(
    Definition(
        Example(PROGRAM.source, "order-processor", {topic: {} for topic in TOPICS}),
        "order_processor",
    ),
    [InputFeed("orders", orders(seed=7), 600)],
)
ORDERS_RISK_SCORING: Final = ExampleTrial(
    Definition(RISK_SCORING, "orders_risk_scoring"), [InputFeed(CREATED, created(), 600)]
)

_START_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class LiveRun:
    """What is left when the cluster is gone: all of it was live, nothing had come to rest."""

    settings: ApplicationSettings
    prefix: str
    points: tuple[RecoveryPoint, ...]
    windows: tuple[Window, ...]


def run_live(
    trial: ExampleTrial,
    folder: Path,
    spark: Spark,
    *,
    points: int,
    windows: int,
    between_s: float,
) -> LiveRun:
    """Take points under load, and back up windows each of which ends just after one of them."""
    name = unique_name(trial.definition.example.application_id)
    prefix = f"{unique_name('p')}."
    with (
        LocalCluster(folder / "source") as local,
        KafkaCluster(connection_to(local.bootstrap_servers)) as cluster,
        ExitStack() as stack,
    ):
        servers = local.bootstrap_servers
        settings = trial.definition.settings(servers, name, prefix, folder)
        trial.definition.example.create_topics(servers, topic_prefix=prefix, partitions=PARTITIONS)
        source = Source(settings, cluster)
        application = trial.application(servers, name, prefix, folder / "state")
        stack.enter_context(application)
        for feed in trial.feeds:
            stack.enter_context(Feed(servers, prefix + feed.topic, feed.record, rate=feed.rate))
        _await_state(source)
        taken = []
        for _ in range(points):
            time.sleep(between_s)
            taken.append(source.take())
        ends = [taken[(number + 1) * points // windows - 1] for number in range(windows)]
        tiled = _windows(source.began_ms, ends)
        BackupJob(settings, spark, unique_name("backup")).run(tiled)
    return LiveRun(settings, prefix, tuple(taken), tiled)


def evaluated(
    run: LiveRun,
    settings: ApplicationSettings,
    spark: Spark,
    *,
    points: Sequence[RecoveryPoint] = (),
    windows: Sequence[Window] = (),
) -> dict[str, list[RuleResult]]:
    """Every rule at each of these points and windows, by id and key."""
    with Evaluator(settings, spark=spark, run_id=unique_name("evaluation")) as evaluator:
        found = {point.id: evaluator.point(point.id) for point in points}
        return found | {window.key: evaluator.window(window) for window in windows}


def _await_state(source: Source) -> None:
    """Points of an application that has not done anything yet would prove nothing."""
    changelogs = named(source.settings.application, TopicRole.CHANGELOG)
    partitions = [TopicPartitionId(topic, n) for topic in changelogs for n in range(PARTITIONS)]
    deadline = time.monotonic() + _START_S
    while not all(source.cluster.last_stable_offsets(partitions).values()):
        assert time.monotonic() < deadline, f"nothing is in {changelogs}"
        time.sleep(0.1)


def _windows(began_ms: int, ends: Sequence[RecoveryPoint]) -> tuple[Window, ...]:
    edges = [began_ms, *(point.taken_at_ms + 1 for point in ends)]
    return tuple(
        Window(start, end, f"w{number:04d}") for number, (start, end) in enumerate(pairwise(edges))
    )
