"""A restore that keeps to a rate, from the plan to what was compared."""

import random
import time
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from kstreams_assets.model.restores import RestoreState
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.settings import ApplicationSettings, RestoreSettings
from tests.restore.trial import own_names, restored
from tests.streams.workbench import Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

COUNT = 4_000
BYTES = 1_000
RATE = 1_000_000


@pytest.mark.usefixtures("closed_in_order")
def test_what_is_written_and_read_back_keeps_to_the_rate(workbench: Workbench) -> None:
    orders = workbench.topic("orders")
    source = random.Random(7)
    producer = Producer({"bootstrap.servers": workbench.bootstrap_servers})
    for _ in range(COUNT):
        producer.produce(orders, source.randbytes(BYTES))
    assert producer.flush(30) == 0
    workbench.cluster.commit_group_offsets(
        workbench.application_id, {TopicPartitionId(orders, 0): CommittedOffset(COUNT, "AgAB")}
    )
    workbench.back_up(workbench.close_window())
    settings = workbench.application_settings
    free_s = _restore(workbench, settings, "free")
    throttled = replace(settings, restore=RestoreSettings(bytes_per_second=RATE))
    throttled_s = _restore(workbench, throttled, "slow")
    # What is written and what is read back count; a second of it may come at once.
    moved_s = 2 * COUNT * BYTES / RATE
    assert throttled_s > moved_s - 2
    assert throttled_s < moved_s + free_s + 30


def _restore(workbench: Workbench, settings: ApplicationSettings, name: str) -> float:
    request = own_names(name, workbench.points()[-1])
    plan = plan_restore(settings, request, settings.connection)
    assert [str(blocker) for blocker in plan.blockers] == []
    began = time.monotonic()
    assert restored(settings, plan, workbench.spark) is RestoreState.VERIFIED
    return time.monotonic() - began
