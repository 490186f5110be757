"""Logs that an unclean leader election truncated: same topic, same offsets, other records."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.backup.planner import Planner
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import PartitionCut, RecoveryPoint, topic_id_of
from kstreams_assets.model.spans import GapCause, SpanPlan, Window
from tests.backup.writing import write
from tests.recovery.replicated import LIMIT_S, await_in_sync, await_leader
from tests.streams.cluster import unique_name
from tests.streams.workbench import NoSpark, Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.drill]

UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


@pytest.fixture
def three_brokers(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of its own: brokers are killed."""
    with LocalCluster(tmp_path / "three", nodes=3, heap_mb=256) as cluster:
        yield cluster


def test_a_log_that_was_truncated_and_written_again(
    three_brokers: LocalCluster, tmp_path: Path
) -> None:
    servers = three_brokers.bootstrap_servers
    connection = KafkaConnection(bootstrap_servers=servers, request_timeout_seconds=LIMIT_S)
    with KafkaCluster(connection) as cluster:
        bench = Workbench(cluster, Warehouse(tmp_path / "w"), NoSpark(), unique_name("app"))
        topic = unique_name("t")
        cluster.create_topics([TopicSpec(topic, 1, 2, UNCLEAN)])
        bench.roles[topic] = TopicRoles({TopicRole.INPUT})
        leader, follower = await_in_sync(servers, topic, 2)
        write(bench, topic, 5)
        first = bench.close_window()
        three_brokers.stop_node(follower - 1)
        await_in_sync(servers, topic, 1)
        write(bench, topic, 5)  # offsets 5 to 9, on the leader alone
        second = bench.close_window()
        before = bench.points()
        three_brokers.kill_node(leader - 1)
        three_brokers.start_node(follower - 1)
        assert await_leader(servers, topic, without=[leader]) == follower
        write(bench, topic, 8)  # offsets 5 to 12: the log ends above where it did
        late = _plan(bench, second)
        third = bench.close_window()
        points = bench.points()
        (start, lost, anew) = _plan(bench, first, second, third)
    old, new = (_cut(points[index]) for index in (-2, -1))
    assert [(cut.log_start, cut.end) for cut in (old, new)] == [(0, 10), (0, 13)]
    assert _cut(before[-1]) == old
    assert old.topic_id != new.topic_id
    assert topic_id_of(new.topic_id) == old.topic_id
    assert f"the log of {topic}-0 was truncated" in points[-1].reason
    assert "only offsets below 5 are left" in points[-1].reason
    assert _gaps(late[0]) == [(GapCause.LOG_TRUNCATED, 5, 10)]
    assert late[0].to_read == 0
    assert _gaps(start) == [(GapCause.LOG_TRUNCATED, 0, 5)]
    assert _gaps(lost) == [(GapCause.LOG_TRUNCATED, 5, 10)]
    assert _gaps(anew) == [(GapCause.LOG_TRUNCATED, 10, None)]
    assert (anew.topic_id, anew.read_start, anew.end) == (new.topic_id, 0, 13)


def _plan(bench: Workbench, *windows: Window) -> list[SpanPlan]:
    planner = Planner(bench.run().ctx, stable_wait_s=5.0)
    return [span for topic in planner.plan(windows).topics for span in topic.spans]


def _gaps(span: SpanPlan) -> list[tuple[GapCause, int, int | None]]:
    return [(gap.cause, gap.start, gap.end) for gap in span.gaps]


def _cut(point: RecoveryPoint) -> PartitionCut:
    (cut,) = point.partitions
    return cut
