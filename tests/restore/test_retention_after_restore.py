"""Records older than their topic's retention stay after a restore until it is finished."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.restore.finish import finish
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.settings import ApplicationSettings
from spark_resources.resource import SparkSessionResource
from tests.restore.killing import restore
from tests.restore.trial import settings_of
from tests.streams.cluster import connection_to, unique_name
from tests.streams.feed import Record, produce

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.drill]

_MONTH_MS = 30 * 86_400_000
_RECORDS = 200
_NO_CHECKS = {
    "log.retention.check.interval.ms": "3600000",
    "log.initial.task.delay.ms": "3600000",
    "log.cleaner.backoff.ms": "3600000",
}
"""Of the source, which must keep its records until they are backed up."""
_CHECKS = {
    "log.retention.check.interval.ms": "300",
    "log.initial.task.delay.ms": "300",
    "log.cleaner.backoff.ms": "300",
}
_SEEN_CHECKS_S = 10.0
"""More than thirty checks; at the default interval of five minutes two come in ten minutes."""
_DEADLINE_S = 60.0
_OLD = {
    "orders": {"retention.ms": "60000"},
    "app-windows-changelog": {"cleanup.policy": "compact,delete", "retention.ms": "60000"},
    "app-joins-changelog": {"cleanup.policy": "delete", "retention.bytes": "1000"},
}
"""An input, a windowed store's changelog, a join's: all with records of a month ago."""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[KafkaCluster]:
    with (
        LocalCluster(tmp_path / "target", properties=_CHECKS) as cluster,
        KafkaCluster(connection_to(cluster.bootstrap_servers)) as asked,
    ):
        yield asked


@pytest.fixture
def settings(spark: SparkSessionResource, tmp_path: Path) -> ApplicationSettings:
    """Topics with records of a month ago, backed up; their cluster is gone."""
    with LocalCluster(tmp_path / "source", properties=_NO_CHECKS) as cluster:
        return _backed_up(cluster.bootstrap_servers, spark, tmp_path)


def _backed_up(
    bootstrap_servers: str, spark: SparkSessionResource, folder: Path
) -> ApplicationSettings:
    application_id = unique_name("app")
    names = {name: f"{application_id}-{name}" for name in _OLD}
    topics = tuple(AppTopic(names[name], TopicRoles({_role(name)})) for name in sorted(_OLD))
    application = StreamsApplication(application_id, topics)
    found = settings_of(application, bootstrap_servers, folder)
    began_ms = time.time_ns() // 1_000_000
    with KafkaCluster(found.connection) as cluster:
        cluster.create_topics(TopicSpec(names[name], 1, 1, dict(_OLD[name])) for name in _OLD)
        for name in names.values():
            produce(bootstrap_servers, name, map(_record, range(_RECORDS)))
        committed = {TopicPartitionId(names["orders"], 0): CommittedOffset(_RECORDS, "")}
        cluster.commit_group_offsets(application_id, committed)
        point = recorder_of(found, cluster).take()
    BackupJob(found, spark, "source", found.topics).run(
        [Window(began_ms, point.taken_at_ms + 1, "w0000")]
    )
    return found


def _role(name: str) -> TopicRole:
    return TopicRole.CHANGELOG if name.endswith("-changelog") else TopicRole.INPUT


def _record(number: int) -> Record:
    then_ms = time.time_ns() // 1_000_000 - _MONTH_MS
    return Record(0, -1, then_ms + number, str(number % 20).encode(), b"v" * 100)


@pytest.mark.usefixtures("closed_in_order")
def test_old_records_stay_until_the_restore_is_finished(
    settings: ApplicationSettings, target: KafkaCluster, spark: SparkSessionResource
) -> None:
    restored = restore(settings, RestoreRequest(), target.connection, spark)
    ids = [TopicPartitionId(topic.target, 0) for topic in restored.topics]
    bare = TopicPartitionId("bare", 0)
    target.create_topics([TopicSpec("bare", 1, 1, {"retention.ms": "60000"})])
    produce(target.connection.bootstrap_servers, "bare", map(_record, range(_RECORDS)))
    time.sleep(_SEEN_CHECKS_S)

    # without relaxed configs the broker has deleted them meanwhile
    assert target.log_start_offsets([bare]) == {bare: _RECORDS}
    assert target.log_start_offsets(ids) == dict.fromkeys(ids, 0)
    assert target.high_watermarks(ids) == dict.fromkeys(ids, _RECORDS)

    finished = finish(settings, restored, target, force=True)

    assert finished.restore.state is RestoreState.FINISHED
    expiring = [id_ for id_ in ids if not id_.topic.endswith("-joins-changelog")]
    deadline = time.monotonic() + _DEADLINE_S
    while target.log_start_offsets(expiring) != dict.fromkeys(expiring, _RECORDS):
        assert time.monotonic() < deadline, "the original retention does not hold"
        time.sleep(0.2)
