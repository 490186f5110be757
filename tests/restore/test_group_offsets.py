"""restore/group_offsets.py: nothing is committed that was not verified, on a real broker."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from kstreams_assets.errors import (
    GroupNotEmptyError,
    GroupOffsetsDifferError,
    RestoreNotVerifiedError,
    TargetTopicChangedError,
)
from kstreams_assets.kafka.local_cluster import LocalCluster
from kstreams_assets.kafka.positions import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.point import GroupOffset
from kstreams_assets.restore.group_offsets import GroupOffsetsCommit
from kstreams_assets.restore.restores_table import RestoreState, StoredRestore
from tests.restore.after_commit import AfterCommit, after_commit, now_ms
from tests.streams.cluster import unique_name

pytestmark = pytest.mark.kafka

METADATA = "AgAAAZOxK\u00e9\x01=="


@pytest.fixture
def bench(kafka_cluster: LocalCluster, tmp_path: Path) -> Iterator[AfterCommit]:
    with after_commit(kafka_cluster.bootstrap_servers, tmp_path / "warehouse") as bench:
        yield bench


@pytest.fixture
def topic(bench: AfterCommit) -> str:
    """Three partitions of nine records."""
    return bench.topic(unique_name("offsets"), partitions=3, timestamps_ms=[now_ms()] * 9)


def verified(bench: AfterCommit, *offsets: GroupOffset) -> StoredRestore:
    restore = bench.restore({}, state=RestoreState.VERIFIED, former=None)
    return replace(restore, committed=None, to_commit=offsets)


def commit(bench: AfterCommit, restore: StoredRestore) -> StoredRestore:
    return GroupOffsetsCommit(bench.settings.warehouse, bench.cluster).execute(restore)


def offsets(bench: AfterCommit) -> dict[TopicPartitionId, CommittedOffset]:
    return dict(bench.cluster.group_offsets(bench.group))


def test_committed_with_metadata_and_the_former_ones_noted(bench: AfterCommit, topic: str) -> None:
    first, second, third = (TopicPartitionId(topic, number) for number in range(3))
    other = TopicPartitionId(bench.topic(unique_name("other"), timestamps_ms=[now_ms()]), 0)
    bench.topics.pop()  # not of this restore
    bench.cluster.commit_group_offsets(
        bench.group,
        {
            first: CommittedOffset(1, "old"),
            third: CommittedOffset(2, ""),
            other: CommittedOffset(1, ""),
        },
    )
    wanted = GroupOffset(topic, 0, 4, METADATA), GroupOffset(topic, 1, 9, "")

    done = commit(bench, verified(bench, *wanted))

    # the third had no offset at the recovery point, so it has none now
    assert offsets(bench) == {
        first: CommittedOffset(4, METADATA),
        second: CommittedOffset(9, ""),
        other: CommittedOffset(1, ""),
    }
    assert done.state is RestoreState.COMMITTED
    assert done.committed == wanted
    assert {(o.topic, o.partition, o.offset) for o in done.former_offsets or ()} == {
        (topic, 0, 1),
        (topic, 2, 2),
        (other.topic, 0, 1),
    }
    again = commit(bench, done)
    assert again.former_offsets == done.former_offsets
    assert bench.stored(done) == again


@pytest.mark.parametrize(
    "state", [s for s in RestoreState if s not in (RestoreState.VERIFIED, RestoreState.COMMITTED)]
)
def test_only_what_was_verified(bench: AfterCommit, topic: str, state: RestoreState) -> None:
    restore = replace(verified(bench, GroupOffset(topic, 0, 4, "")), state=state)

    with pytest.raises(RestoreNotVerifiedError, match=state.value):
        commit(bench, restore)

    assert offsets(bench) == {}


def test_not_while_the_group_has_members(bench: AfterCommit, topic: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bench.cluster.connection.bootstrap_servers,
            "group.id": bench.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        assert consumer.poll(30) is not None

        with pytest.raises(GroupNotEmptyError, match=bench.group):
            commit(bench, verified(bench, GroupOffset(topic, 0, 4, "")))
    finally:
        consumer.close()

    assert offsets(bench) == {}


def test_not_into_a_topic_made_anew(bench: AfterCommit, topic: str) -> None:
    other = replace(bench.topics[0], target_topic_id="AAAAAAAAAAAAAAAAAAAAAA")
    restore = replace(verified(bench, GroupOffset(topic, 0, 4, "")), topics=(other,))

    with pytest.raises(TargetTopicChangedError, match=topic):
        commit(bench, restore)

    assert offsets(bench) == {}


def test_not_on_another_cluster(bench: AfterCommit, topic: str) -> None:
    restore = verified(bench, GroupOffset(topic, 0, 4, ""))

    with pytest.raises(TargetTopicChangedError, match="somewhere-else"):
        commit(bench, replace(restore, target_cluster_id="somewhere-else"))

    assert offsets(bench) == {}


@pytest.mark.parametrize("offset", [2, 10])
def test_not_outside_the_log(bench: AfterCommit, topic: str, offset: int) -> None:
    bench.cluster.delete_records({TopicPartitionId(topic, 1): 3})

    with pytest.raises(GroupOffsetsDifferError, match=f"{topic}-1 offset {offset}"):
        commit(bench, verified(bench, GroupOffset(topic, 1, offset, "")))

    assert offsets(bench) == {}


def test_what_is_read_back_differs(
    bench: AfterCommit, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a client that changes the metadata on its way."""
    true = bench.cluster.commit_group_offsets

    def with_a_nul(group: str, wanted: dict[TopicPartitionId, CommittedOffset]) -> None:
        true(group, {p: replace(o, metadata=o.metadata + "\0") for p, o in wanted.items()})

    monkeypatch.setattr(bench.cluster, "commit_group_offsets", with_a_nul)
    restore = verified(bench, GroupOffset(topic, 0, 4, METADATA))

    with pytest.raises(GroupOffsetsDifferError, match=f"{topic}-0"):
        commit(bench, restore)

    stored = bench.stored(restore)
    assert stored is not None
    assert stored.state is RestoreState.VERIFIED
