"""Exact cuts and a restore on each release of Kafka that is supported, and with what is new in it.

A case that passes is written to `releases.json`, from which docs/reference/releases.md is made.
"""

import time
from pathlib import Path

import pytest

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import Guarantee, Method
from spark_resources.jars import verify_jars
from spark_resources.resource import SparkSessionResource
from tests.recovery.trial import (
    NO_PURGE,
    QUICK_SESSIONS,
    Trial,
    application_of,
    methods,
    new_trial,
    random_delays,
    reasons,
    running,
    wrong_points,
)
from tests.restore.control import by_key, newest
from tests.restore.releases import CASES, Release, passed
from tests.restore.trial import Restored, Source, SourceRun, own_names, restore, settings_of
from tests.streams.cluster import connection_to
from tests.streams.oracle_app import OracleApp, OracleTopics

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.e2e, pytest.mark.drill]

_POINTS = 15
_BY_TRANSACTIONS = 12


def _instances(release: Release, trial: Trial, topics: OracleTopics, label: str) -> list[OracleApp]:
    """Two of the release's clients; those of a streams group have no session of their own."""
    sessions = {} if release.is_streams_group else QUICK_SESSIONS
    return [
        OracleApp(
            trial.bootstrap_servers,
            topics,
            state_dir=trial.folder / f"{label}{number}",
            jar_set=release.clients,
            threads=2,
            config={
                **sessions,
                **NO_PURGE,
                **release.config,
                **({"group.instance.id": f"static-{number}"} if release.is_static else {}),
            },
        )
        for number in range(2)
    ]


def _run(
    release: Release, trial: Trial, cluster: KafkaCluster, spark: SparkSessionResource
) -> SourceRun:
    """The application under load, its points judged; the restored one is held against its end."""
    trial.create_topics(configs=release.topic_configs)
    application = application_of(trial.topics, ticks=False)
    source = Source(settings_of(application, trial.bootstrap_servers, trial.folder), cluster)
    with running(_instances(release, trial, trial.topics, "i")), trial.load(rate=1_000) as load:
        time.sleep(3)
        trial.take(_POINTS, every_s=0.3)
        load.stop()
        source.drain()
        group = cluster.group_state(application.application_id)
        assert group is not None
        assert (group.type == "streams") == release.is_streams_group
    points = trial.points()
    assert len(points) == _POINTS
    assert wrong_points(trial, trial.history(), points) == {}
    assert methods(points)[Method.TRANSACTIONS] >= _BY_TRANSACTIONS, reasons(points)
    half = next(p for p in points[_POINTS // 2 :] if p.guarantee is Guarantee.EXACT)
    source.back_up(points[-1], spark)
    return source.ended({"half": half})


def _go_on(release: Release, trial: Trial, restored: Restored) -> None:
    """The restored application, to the end of the input."""
    name = restored.plan.group
    topics = OracleTopics(name, f"{name}.{trial.topics.prefix}")
    with running(_instances(release, trial, topics, "r")):
        assert restored.replay() > 0
        restored.drain()


@pytest.mark.parametrize("release", CASES, ids=str)
def test_cuts_are_exact_and_a_restore_goes_on(
    release: Release, spark: SparkSessionResource, tmp_path: Path
) -> None:
    jars = verify_jars(release.broker, hashes=False)
    with LocalCluster(tmp_path / "cluster", jars=jars) as local:
        servers = local.bootstrap_servers
        trial = new_trial(servers, tmp_path, between=random_delays(0.15))
        with KafkaCluster(connection_to(servers)) as cluster:
            run = _run(release, trial, cluster, spark)
            half = run.points["half"]
            restored = restore(run, connection_to(servers), spark, own_names("restored", half))
            restored.commit()

            _go_on(release, trial, restored)

            names = restored.names
            orders, totals = trial.topics.orders, trial.topics.totals
            (plan,) = (topic for topic in restored.plan.topics if topic.source == orders)
            there = cluster.topic_configs([names[orders]])[names[orders]]
            assert release.topic_configs.items() <= {**there, **plan.put_back}.items()
        found = restored.written(totals, trial.topics.changelog)
    assert newest(found[trial.topics.changelog]) == newest(run.written[trial.topics.changelog])
    assert newest(found[totals]) == newest(run.written[totals])
    counts = {key: len(records) for key, records in by_key(run.written[totals]).items()}
    assert {key: len(records) for key, records in by_key(found[totals]).items()} == counts
    passed(release)
