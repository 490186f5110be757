"""Cuts of applications that commit every 30 s, the default of Kafka Streams, side by side."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.recovery.passive_method import CommitHistory, PassiveCommits, Watched
from kstreams_assets.recovery.scene import Scene
from tests.recovery.test_passive_commits import judge, wait_for_offsets, watched
from tests.recovery.vector_oracle import read_vectors
from tests.streams.cluster import connection_to, unique_name
from tests.streams.vector_app import VectorApp, VectorTopics, orders

pytestmark = [pytest.mark.kafka, pytest.mark.drill]

APPLICATIONS: Final = 4
CUTS_OF_EACH: Final = 15
WAIT_S: Final = 240.0


def cuts_of(servers: str, topics: VectorTopics) -> list[Watched]:
    """A cut takes one commit for each level; it is not tried again for a proof."""
    with KafkaCluster(connection_to(servers)) as cluster, cluster.raw_log() as reader:
        wait_for_offsets(cluster, topics)
        scene = Scene(topics.application, cluster, reader, cluster.metadata().topics)
        history = CommitHistory()
        return [
            watched(PassiveCommits(scene, WAIT_S, retry_s=0, history=history))
            for _ in range(CUTS_OF_EACH)
        ]


@pytest.mark.timeout(2700)
def test_each_cut_is_what_it_says(kafka_cluster: LocalCluster, tmp_path: Path) -> None:
    """Nothing is configured in the applications, nor on the brokers."""
    servers = kafka_cluster.bootstrap_servers
    every = [
        VectorTopics(unique_name("vector"), unique_name("v") + ".") for _ in range(APPLICATIONS)
    ]
    with KafkaCluster(connection_to(servers)) as cluster, ExitStack() as stack:
        for number, topics in enumerate(every):
            topics.create(cluster)
            config = {"commit.interval.ms": "30000"}
            folder = tmp_path / f"app{number}"
            stack.enter_context(VectorApp(servers, topics, state_dir=folder, config=config))
            stack.enter_context(orders(servers, topics, rate=200))
        with ThreadPoolExecutor(APPLICATIONS) as pool:
            found = list(pool.map(cuts_of, [servers] * APPLICATIONS, every))
        stack.close()
        verdicts = [
            judge(history, one)
            for topics, cuts in zip(every, found, strict=True)
            for history in [read_vectors(cluster, topics)]
            for one in cuts
        ]
    shown = Counter("proven" if bound == 0 else "bounded" for _, bound in verdicts)
    exact = sum(verdict.repeats == 0 for verdict, _ in verdicts)
    print(f"{len(verdicts)} cuts, {exact} exact, {dict(shown)}")  # noqa: T201
    assert [verdict for verdict, _ in verdicts if verdict.losses] == []
    assert [pair for pair in verdicts if pair[0].repeats > pair[1]] == []
    assert sum(verdict.in_flight for verdict, _ in verdicts) > 0
