"""Topics and an application with names as long as Kafka allows, from a broker and back to it."""

import pytest
from confluent_kafka import Producer

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.app.names import LONGEST_NAME
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.restore.request import RestoreRequest
from tests.restore.trial import restored
from tests.streams.workbench import Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.drill]

COUNT = 50
PREFIX = "r."


def _filled(begin: str, end: str, length: int) -> str:
    return begin + "x" * (length - len(begin) - len(end)) + end


@pytest.mark.usefixtures("closed_in_order")
def test_names_of_249_characters(workbench: Workbench) -> None:
    """What is restored has long names, too: a disk takes 255 bytes, and files have endings."""
    suffix = f"-{workbench.application_id[-6:]}"
    workbench.application_id = _filled("app-", suffix, LONGEST_NAME - len("-s-changelog"))
    orders = _filled("orders-", suffix, LONGEST_NAME - len(PREFIX))
    totals = f"{workbench.application_id}-s-changelog"
    assert len(totals) == LONGEST_NAME
    workbench.cluster.create_topics([TopicSpec(orders, 1), TopicSpec(totals, 1)])
    workbench.roles |= {
        orders: TopicRoles({TopicRole.INPUT}),
        totals: TopicRoles({TopicRole.CHANGELOG}),
    }
    producer = Producer({"bootstrap.servers": workbench.bootstrap_servers})
    for number in range(COUNT):
        producer.produce(orders, b"order %d" % number, b"k%d" % number)
        producer.produce(totals, b"total %d" % number, b"k%d" % number)
    assert producer.flush(30) == 0
    workbench.cluster.commit_group_offsets(
        workbench.application_id, {TopicPartitionId(orders, 0): CommittedOffset(COUNT, "AgAB")}
    )
    workbench.back_up(workbench.close_window())
    settings = workbench.application_settings
    request = RestoreRequest(
        point_id=workbench.points()[-1].id,
        application_id=f"r{workbench.application_id[1:]}",
        prefix=PREFIX,
    )
    plan = plan_restore(settings, request, settings.connection)
    assert [str(blocker) for blocker in plan.blockers] == []
    assert restored(settings, plan, workbench.spark) is RestoreState.VERIFIED
    assert {len(topic.target) for topic in plan.topics} == {LONGEST_NAME}
