"""restore/group_offsets.py: nothing is committed that was not verified, on a real broker."""

from dataclasses import replace

import pytest
from confluent_kafka import Consumer

from kstreams_assets.app.model import TopicRole
from kstreams_assets.errors import GroupOffsetsDifferError, KafkaError, KStreamsAssetsError
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.restores import PartitionProduced, RestoreState, StoredRestore
from kstreams_assets.offsets import CommittedOffset, OffsetRun, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.group_offsets import commit_verified
from tests.backup.samples import point
from tests.restore.after_commit import AfterCommit, now_ms, write
from tests.streams.cluster import unique_name

pytestmark = pytest.mark.kafka

METADATA = "AgAAAZOxK\u00e9\x01=="


@pytest.fixture
def topic(bench: AfterCommit) -> str:
    """Three partitions of nine records."""
    return bench.topic(unique_name("offsets"), partitions=3, timestamps_ms=[now_ms()] * 9)


def verified(bench: AfterCommit, *offsets: GroupOffset) -> StoredRestore:
    """A restore of these committed offsets; every topic has the offsets of its source."""
    restore = bench.restore({}, state=RestoreState.VERIFIED, former=None)
    warehouse, application_id = bench.settings.warehouse, restore.application_id
    made = point(1, point_id="point", application_id=application_id, group_offsets=offsets)
    Repository(warehouse, made.application_id).points.append(made)
    partitions = [TopicPartitionId(t.target, n) for t in bench.topics for n in range(3)]
    produced = [PartitionProduced(p, p, (OffsetRun(0, 0, 9),), 9, 0, 9) for p in partitions]
    Repository(warehouse, application_id).offset_maps.record(restore.restore_id, produced)
    return replace(restore, committed=None, to_commit=offsets)


def commit(bench: AfterCommit, restore: StoredRestore) -> StoredRestore:
    return commit_verified(Repository.open(bench.settings), restore, bench.cluster)


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

    with pytest.raises(
        KStreamsAssetsError, match=f"is {state}: commit of the group offsets is refused"
    ):
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

        with pytest.raises(KafkaError, match=f"Group {bench.group} is in use"):
            commit(bench, verified(bench, GroupOffset(topic, 0, 4, "")))
    finally:
        consumer.close()

    assert offsets(bench) == {}


def test_not_into_a_topic_made_anew(bench: AfterCommit, topic: str) -> None:
    other = replace(bench.topics[0], target_topic_id="AAAAAAAAAAAAAAAAAAAAAA")
    restore = replace(verified(bench, GroupOffset(topic, 0, 4, "")), topics=(other,))

    with pytest.raises(KStreamsAssetsError, match=f"The topic {topic} is not the one"):
        commit(bench, restore)

    assert offsets(bench) == {}


def test_not_on_another_cluster(bench: AfterCommit, topic: str) -> None:
    restore = verified(bench, GroupOffset(topic, 0, 4, ""))

    with pytest.raises(KStreamsAssetsError, match=r"The cluster .*not somewhere-else"):
        commit(bench, replace(restore, target_cluster_id="somewhere-else"))

    assert offsets(bench) == {}


def test_not_one_too_far(bench: AfterCommit, topic: str) -> None:
    true = GroupOffset(topic, 0, 4, METADATA)
    restore = replace(verified(bench, true), to_commit=(replace(true, offset=5),))

    with pytest.raises(GroupOffsetsDifferError, match="different from the offset maps") as one:
        commit(bench, restore)

    assert one.value.partitions == (
        f"{topic}-0 5 (metadata {METADATA!r}) instead of 4 (metadata {METADATA!r})",
    )
    assert offsets(bench) == {}


def test_not_without_the_recovery_point(bench: AfterCommit, topic: str) -> None:
    restore = verified(bench, GroupOffset(topic, 0, 4, ""))

    with pytest.raises(GroupOffsetsDifferError, match="point gone is not stored any more"):
        commit(bench, replace(restore, point_id="gone"))

    assert offsets(bench) == {}


def test_not_behind_records_that_were_deleted(bench: AfterCommit, topic: str) -> None:
    restore = verified(bench, GroupOffset(topic, 1, 4, ""))
    bench.cluster.delete_records({TopicPartitionId(topic, 1): 3})

    with pytest.raises(KStreamsAssetsError, match=f"{topic}-1 starts at offset 3, not 0"):
        commit(bench, restore)

    assert offsets(bench) == {}


def test_not_once_a_record_was_added(bench: AfterCommit) -> None:
    output = bench.topic(
        unique_name("output"), partitions=3, timestamps_ms=[now_ms()] * 9, role=TopicRole.OUTPUT
    )
    restore = verified(bench)
    write(bench.cluster, output, [now_ms()])

    with pytest.raises(KStreamsAssetsError, match=f"{output}-0 ends at offset 10, not 9"):
        commit(bench, restore)


def test_producers_may_write_to_inputs_already(bench: AfterCommit, topic: str) -> None:
    wanted = GroupOffset(topic, 0, 4, "")
    restore = verified(bench, wanted)
    write(bench.cluster, topic, [now_ms()])

    assert commit(bench, restore).committed == (wanted,)


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
