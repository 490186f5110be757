"""restore/group_offsets.py: the former offsets of a group on a real broker."""

import pytest
from confluent_kafka import Consumer

from kstreams_assets.errors import KafkaError, KStreamsAssetsError
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.restore.group_offsets import restore_previous_offsets
from tests.restore.after_commit import AfterCommit, now_ms
from tests.streams.cluster import unique_name

pytestmark = pytest.mark.kafka

# What Kafka Streams stores in it, with bytes that are no text.
METADATA = "AgAAAZOxK\u00e9\x01=="


def test_the_former_offsets_are_there_again(bench: AfterCommit) -> None:
    topic = bench.topic(unique_name("back"), partitions=3, timestamps_ms=[now_ms()] * 9)
    had, had_none, new = (TopicPartitionId(topic, number) for number in range(3))
    absent = GroupOffset(unique_name("deleted"), 0, 3, "")
    former = [GroupOffset(topic, 0, 7, METADATA), absent]
    restore = bench.restore(
        {had: CommittedOffset(1, "restored"), had_none: CommittedOffset(2, "")}, former=former
    )
    # the application ran and was stopped again
    bench.cluster.commit_group_offsets(
        bench.group, {had: CommittedOffset(4, ""), new: CommittedOffset(5, "")}
    )
    done = restore_previous_offsets(bench.settings, restore, bench.cluster)
    assert bench.cluster.group_offsets(bench.group) == {had: CommittedOffset(7, METADATA)}
    assert done.put_back == (former[0],)
    assert done.absent == (absent,)
    assert set(done.deleted) == {had_none, new}
    assert done.moved == (had, new)
    stored = bench.stored(restore)
    assert stored == done.restore
    assert stored is not None
    assert stored.state is RestoreState.ROLLED_BACK
    again = restore_previous_offsets(bench.settings, stored, bench.cluster)
    assert (again.put_back, again.deleted, again.moved) == ((former[0],), (), ())


def test_a_group_that_had_none_has_none_again(bench: AfterCommit) -> None:
    topic = bench.topic(unique_name("back"))
    restore = bench.restore({TopicPartitionId(topic, 0): CommittedOffset(0, "")}, former=())
    restore_previous_offsets(bench.settings, restore, bench.cluster)
    assert bench.cluster.group_offsets(bench.group) == {}


def test_refused_while_the_group_is_active(bench: AfterCommit) -> None:
    topic = bench.topic(unique_name("back"))
    id_ = TopicPartitionId(topic, 0)
    restore = bench.restore({id_: CommittedOffset(0, "restored")}, former=())
    consumer = Consumer(
        {
            "bootstrap.servers": bench.cluster.connection.bootstrap_servers,
            "group.id": bench.group,
            "enable.auto.commit": False,
        }
    )
    joined: list[object] = []
    consumer.subscribe([topic], on_assign=lambda _, partitions: joined.extend(partitions))
    try:
        for _ in range(100):
            consumer.poll(0.2)
            if joined:
                break
        with pytest.raises(KafkaError, match="restore previous-offsets is refused"):
            restore_previous_offsets(bench.settings, restore, bench.cluster)
    finally:
        consumer.close()
    assert bench.cluster.group_offsets(bench.group) == {id_: CommittedOffset(0, "restored")}
    assert bench.stored(restore) == restore


@pytest.mark.parametrize(
    ("state", "former", "problem"),
    [
        (RestoreState.VERIFIED, None, "never committed"),
        (RestoreState.FINISHED, (), "is finished"),
    ],
)
def test_nothing_to_put_back(
    bench: AfterCommit, state: RestoreState, former: tuple[GroupOffset, ...] | None, problem: str
) -> None:
    id_ = TopicPartitionId(bench.topic(unique_name("back")), 0)
    restore = bench.restore({id_: CommittedOffset(0, "")}, state=state, former=former)
    with pytest.raises(KStreamsAssetsError, match=problem):
        restore_previous_offsets(bench.settings, restore, bench.cluster)
    assert bench.cluster.group_offsets(bench.group) == {id_: CommittedOffset(0, "")}
