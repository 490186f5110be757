"""Recovery points of a real broker."""

import threading
import time
import tracemalloc
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.errors import (
    ClusterUnavailableError,
    KafkaError,
    TopicNotFoundError,
    UnstableGroupOffsetsError,
)
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.coordinator_log import CONSUMER_OFFSETS, coordinator_partition
from kstreams_assets.model.groups import ConsumerGroup, GroupOffset
from kstreams_assets.model.point import Guarantee, Method
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery import completion
from kstreams_assets.recovery.methods import quiesced
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.recovery.scene import Positions, Scene
from kstreams_assets.settings import RecoveryPointSettings
from tests.backup.writing import await_end, open_transaction, producer, send, write
from tests.kafka.transacting import settled_end, transactional_producer
from tests.streams.cluster import unique_name
from tests.streams.workbench import NoSpark, Workbench

pytestmark = pytest.mark.kafka


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    """A workbench that never starts Spark."""
    workbench.spark = NoSpark()
    return workbench


def _ends(bench: Workbench) -> dict[tuple[str, int], tuple[int, int]]:
    cuts = bench.take_point().partitions
    return {(cut.topic, cut.partition): (cut.log_start, cut.end) for cut in cuts}


def _quiesced(bench: Workbench) -> Positions:
    """What the method for stopped applications finds, whether a better one works or not."""
    present = bench.cluster.metadata().topics
    with bench.cluster.raw_log() as reader:
        found = quiesced(Scene(bench.application, bench.cluster, reader, present))
    assert isinstance(found, Positions)
    return found


def test_a_point_stands_at_the_last_stable_offset_of_every_partition(bench: Workbench) -> None:
    topic, other = bench.topic("t", partitions=2), bench.topic("other")
    write(bench, topic, 5)
    write(bench, other, 3)
    bench.delete_records(other, 2)
    sender = open_transaction(bench)
    send(sender, topic, b"open")
    send(producer(bench.bootstrap_servers), topic, b"behind it")
    assert _ends(bench) == {(topic, 0): (0, 5), (topic, 1): (0, 0), (other, 0): (2, 3)}
    sender.abort_transaction(20)


def test_committed_offsets_are_kept_with_their_metadata(bench: Workbench) -> None:
    topic = bench.topic("t", partitions=2)
    write(bench, topic, 5)
    assert bench.take_point().group_offsets == ()
    group = {"bootstrap.servers": bench.bootstrap_servers, "group.id": bench.application_id}
    member = Consumer(group)
    # as Kafka Streams writes it: version and partition time
    offset = TopicPartition(topic, 0, 4, metadata="AgAAAZqzbB4A")
    member.commit(offsets=[offset], asynchronous=False)
    member.close()
    point = bench.take_point()
    # librdkafka appends a NUL: such a one is to be told apart, not tidied up
    assert point.group_offsets == (GroupOffset(topic, 0, 4, "AgAAAZqzbB4A\0"),)
    assert point.method is Method.QUIESCED
    assert [p.id for p in bench.points()][-1] == point.id
    assert bench.points()[-1] == point


def test_offsets_of_other_groups_are_recorded_with_the_point(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group without offsets says so; one that cannot be read keeps nobody from a point."""
    topic = bench.topic("out", role=TopicRole.OUTPUT)
    write(bench, topic, 5)
    reader, silent, undecided = unique_name("reader"), unique_name("new"), unique_name("undecided")
    id_ = TopicPartitionId(topic, 0)
    bench.cluster.commit_group_offsets(reader, {id_: CommittedOffset(3, "\u00e9\0")})
    group_offsets = KafkaCluster.group_offsets

    def unstable(cluster, group, **options):
        if group == undecided:
            waited_s = options["unstable_limit_s"]
            raise UnstableGroupOffsetsError(group=group, partitions=[topic], waited_s=waited_s)
        return group_offsets(cluster, group, **options)

    monkeypatch.setattr(KafkaCluster, "group_offsets", unstable)
    names = (undecided, reader, silent, bench.application_id)
    settings = RecoveryPointSettings(other_groups=names)
    taken = Recorder(bench.application, bench.cluster, bench.warehouse, settings).take()
    recorded = {
        ConsumerGroup(reader, (GroupOffset(topic, 0, 3, "\u00e9\0"),)),
        ConsumerGroup(silent),
    }
    assert {*taken.other_groups} == recorded
    assert taken.group == ConsumerGroup(bench.application_id)
    assert bench.points() == [taken]


def test_a_stopped_application_without_stores_is_exact_if_all_its_commits_are_transactions(
    bench: Workbench,
) -> None:
    """Nothing else shows that its outputs and its offsets belong together."""
    topic, output = bench.topic("in", partitions=2), bench.topic("out", role=TopicRole.OUTPUT)
    write(bench, topic, 5)
    write(bench, topic, 5, partition=1)
    group = {"bootstrap.servers": bench.bootstrap_servers, "group.id": bench.application_id}
    member = Consumer(group)
    sender = open_transaction(bench)
    send(sender, output, b"done")
    offsets = [TopicPartition(topic, number, 5) for number in range(2)]
    sender.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), 20)
    sender.commit_transaction(20)
    await_end(bench, output, 2)
    assert _quiesced(bench).guarantee is Guarantee.EXACT

    # one transaction is aborted later: what counts is what was committed before it
    sender.begin_transaction()
    sender.send_offsets_to_transaction(offsets[:1], member.consumer_group_metadata(), 20)
    sender.abort_transaction(20)
    assert _quiesced(bench).guarantee is Guarantee.EXACT

    member.commit(offsets=[TopicPartition(topic, 1, 4)], asynchronous=False)
    member.close()
    assert _quiesced(bench).guarantee is Guarantee.AT_LEAST_ONCE
    point = bench.take_point()
    assert (point.method, point.guarantee) == (Method.QUIESCED, Guarantee.AT_LEAST_ONCE)
    assert f"the offset of {topic}-1 was committed outside of transactions" in point.reason


def test_a_first_commit_in_an_open_transaction_is_waited_for(bench: Workbench) -> None:
    """Asked without the partition's name, the coordinator would just leave it out."""
    topic = bench.topic("t")
    write(bench, topic, 5)
    member = Consumer(
        {"bootstrap.servers": bench.bootstrap_servers, "group.id": bench.application_id}
    )
    sender = open_transaction(bench)
    send(sender, topic, b"open")
    metadata = member.consumer_group_metadata()
    sender.send_offsets_to_transaction([TopicPartition(topic, 0, 3)], metadata, 20)
    committing = threading.Timer(2.0, lambda: sender.commit_transaction(20))
    committing.start()
    point = bench.take_point()
    committing.join(20)
    member.close()
    assert [(o.topic, o.offset) for o in point.group_offsets] == [(topic, 3)]


def test_a_changelog_too_long_to_be_saved_leaves_the_point_unsealed(bench: Workbench) -> None:
    """Its 16 MB are not read to find that out."""
    topic = bench.topic("app-s-changelog", partitions=4, role=TopicRole.CHANGELOG)
    sender = producer(bench.bootstrap_servers, linger_ms=5)
    for number in range(4_000):
        sender.produce(topic, bytes(4_000), key=b"%d" % number, partition=number % 4)
    assert sender.flush(30) == 0
    recorder = Recorder(bench.application, bench.cluster, bench.warehouse)
    recorder.take(seal_bytes=0)  # connections and classes are there from now on
    tracemalloc.start()
    try:
        point = recorder.take(seal_bytes=500_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not point.sealed
    assert point.unsealed_because == "there are more than 500000 bytes to save"
    assert [cut.end for cut in point.partitions] == [1_000] * 4
    assert peak < 8_000_000  # 3 to 6 MB, whatever the length
    assert recorder.take(seal_bytes=32_000_000).sealed


def test_a_changelog_that_takes_too_long_to_read_leaves_the_point_unsealed(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = bench.topic("app-s-changelog", role=TopicRole.CHANGELOG)
    write(bench, topic, 5)
    monkeypatch.setattr(completion, "_READ_S", 0.0)
    point = bench.take_point()
    assert not point.sealed
    assert f"{topic}-0 was read up to offset 0 of 5" in point.unsealed_because
    monkeypatch.undo()
    assert bench.take_point().sealed


def test_a_backlog_too_long_to_be_saved_is_left_to_the_backup(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application does not process its 8 MB, so they stay in Kafka."""
    topic = bench.topic("app-by-key-repartition", partitions=2, role=TopicRole.REPARTITION)
    sender = transactional_producer(bench.bootstrap_servers, unique_name("tx"))
    sender.begin_transaction()
    for number in range(2_000):
        sender.produce(topic, bytes(4_000), key=b"%d" % number, partition=number % 2)
    sender.commit_transaction(20)
    recorder = Recorder(bench.application, bench.cluster, bench.warehouse)
    monkeypatch.setattr(completion, "_IN_FLIGHT_BYTES", 500_000)
    recorder.take(seal_bytes=400_000)  # connections and classes are there from now on
    tracemalloc.start()
    try:
        left = recorder.take(seal_bytes=400_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000  # 3 to 6 MB, whatever the length
    assert (left.guarantee, left.guarantee_of_cut) == (Guarantee.AT_LEAST_ONCE, Guarantee.EXACT)
    assert not left.sealed
    assert "there are more than 500000 bytes to save" in left.unsealed_because
    assert "still finds them in Kafka" in left.reason
    assert left.in_flight >= 2_000
    assert [cut.saved_from for cut in left.partitions] == [None, None]
    monkeypatch.undo()
    saved = recorder.take()
    assert (saved.guarantee, saved.sealed, saved.in_flight) == (Guarantee.EXACT, True, 2_000)


def test_points_are_ordered_even_if_the_clock_is_set_back(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic("t")
    first = bench.take_point()
    monkeypatch.setattr(time, "time_ns", lambda: (first.taken_at_ms - 60_000) * 1_000_000)
    assert bench.take_point().taken_at_ms == first.taken_at_ms + 1


def test_at_least_once_after_exactly_once_is_seen_below_the_last_stable_offset(
    bench: Workbench,
) -> None:
    source, changelog = bench.topic("in"), bench.topic("changelog", role=TopicRole.CHANGELOG)
    sender = transactional_producer(bench.bootstrap_servers, unique_name("tx"))
    write(bench, source, 10)
    _transact(bench, sender, source, changelog, 3)
    assert bench.take_point().guarantee is Guarantee.EXACT
    write(bench, changelog, 5)  # state ahead of the offsets, and all of it stable
    point = bench.take_point()
    assert point.guarantee is Guarantee.AT_LEAST_ONCE
    assert f"{changelog}-0 has records outside of transactions" in point.reason
    _transact(bench, sender, source, changelog, 8)
    assert bench.take_point().guarantee is Guarantee.EXACT


def _transact(bench: Workbench, sender: Producer, source: str, changelog: str, offset: int) -> None:
    member = Consumer(
        {"bootstrap.servers": bench.bootstrap_servers, "group.id": bench.application_id}
    )
    sender.begin_transaction()
    sender.produce(changelog, b"state", key=b"k")
    offsets = [TopicPartition(source, 0, offset)]
    sender.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), 20)
    sender.commit_transaction(20)
    member.close()
    settled_end(bench.cluster, TopicPartitionId(changelog, 0))
    group_log = coordinator_partition(
        bench.application_id, bench.cluster.topics()[CONSUMER_OFFSETS]
    )
    settled_end(bench.cluster, TopicPartitionId(CONSUMER_OFFSETS, group_log))


def test_a_point_of_a_clock_that_was_ahead_does_not_drag_later_ones_along(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic("t")
    first = bench.take_point()
    year_ns = 365 * 86_400 * 10**9
    with monkeypatch.context() as ahead:
        now = time.time_ns
        ahead.setattr(time, "time_ns", lambda: now() + year_ns)
        wrong = bench.take_point()
    later = [bench.take_point(), bench.take_point()]
    assert wrong.taken_at_ms > first.taken_at_ms + year_ns // 10**6
    assert first.taken_at_ms < later[0].taken_at_ms < later[1].taken_at_ms < wrong.taken_at_ms
    assert [p.sequence for p in (first, wrong, *later)] == [1, 2, 3, 4]
    assert bench.points() == [first, wrong, *later]


def test_a_topic_that_is_gone_is_noted_and_the_others_go_on(bench: Workbench) -> None:
    topic, other = bench.topic("gone"), bench.topic("other")
    bench.take_point()
    bench.delete(topic)
    for _ in range(2):  # also when the newest point no longer has it
        point = bench.take_point()
        assert point.absent_topics == (topic,)
        assert {cut.topic for cut in point.partitions} == {other}
        assert topic in point.reason


def test_the_first_point_wants_every_topic_and_later_ones_go_on_without(bench: Workbench) -> None:
    """Names are just written down at the first; later on one topic must not stop the recorder."""
    never = bench.topic("never")
    bench.delete(never)
    with pytest.raises(TopicNotFoundError, match=never):
        bench.take_point()
    bench.roles.pop(never)
    bench.topic("other")
    assert bench.take_point().guarantee is Guarantee.EXACT
    bench.roles[never] = TopicRoles({TopicRole.CHANGELOG})
    point = bench.take_point()
    assert point.absent_topics == (never,)
    assert (point.guarantee, point.guarantee_of_cut) == (Guarantee.AT_LEAST_ONCE, Guarantee.EXACT)
    assert f"topic {never} is declared, but was not visible" in point.reason


def test_a_changelog_that_was_deleted_caps_the_guarantee_until_it_is_no_longer_declared(
    bench: Workbench,
) -> None:
    changelog = bench.topic("c", role=TopicRole.CHANGELOG)
    output = bench.topic("o", role=TopicRole.OUTPUT)
    bench.topic("i")
    assert bench.take_point().guarantee is Guarantee.EXACT
    bench.delete(output)
    assert bench.take_point().guarantee is Guarantee.EXACT  # a restore makes it anew
    bench.delete(changelog)
    point = bench.take_point()
    assert point.guarantee is Guarantee.AT_LEAST_ONCE
    assert f"topic {changelog} is declared, but was not visible" in point.reason
    assert "remove it from the YAML" in point.reason
    bench.roles.pop(changelog)
    assert bench.take_point().guarantee is Guarantee.EXACT


def test_topics_of_the_application_that_nobody_declared_cap_the_guarantee(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new store, a topic that is read; not what is another application's, nor what is denied."""
    bench.topic("i")
    assert bench.take_point().undeclared_topics == ()
    id_ = bench.application_id
    new, others, left_over = f"{id_}-new-changelog", f"{id_}-eu-x-changelog", f"{id_}-old-changelog"
    data = unique_name("data")
    bench.cluster.create_topics([TopicSpec(t, 1) for t in (new, others, left_over, data)])
    read = {TopicPartitionId(data, 0): CommittedOffset(0, "")}
    bench.cluster.commit_group_offsets(f"{id_}-eu", read)
    point = bench.take_point()
    assert (point.guarantee, point.guarantee_of_cut) == (Guarantee.AT_LEAST_ONCE, Guarantee.EXACT)
    assert point.undeclared_topics == tuple(sorted((new, left_over)))
    assert f"topic {new} belongs to the application (by its name)" in point.reason
    bench.cluster.commit_group_offsets(id_, read)
    point = bench.take_point()
    assert point.undeclared_topics == tuple(sorted((new, left_over, data)))
    assert f"topic {data} belongs to the application (the group has" in point.reason

    def unavailable(_cluster: KafkaCluster) -> frozenset[str]:
        raise ClusterUnavailableError(
            bootstrap_servers="x", operation="list groups", timeout_s=1, reason="it is down"
        )

    with monkeypatch.context() as patched:
        patched.setattr(KafkaCluster, "group_ids", unavailable)
        assert others in (bench.take_point().undeclared_topics or ())
    bench.roles[new] = TopicRoles({TopicRole.CHANGELOG})
    denied = replace(bench.application, not_mine=frozenset({left_over, data}))
    fine = Recorder(denied, bench.cluster, bench.warehouse).take()
    assert (fine.undeclared_topics, fine.guarantee) == ((), fine.guarantee_of_cut)


def test_a_topic_deleted_under_the_point_leads_to_another_try(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, other = bench.topic("going"), bench.topic("other")
    bench.take_point()
    group_offsets = KafkaCluster.group_offsets

    def deleting(cluster, group, **options):
        if topic in cluster.topics():
            bench.delete(topic)
        return group_offsets(cluster, group, **options)

    monkeypatch.setattr(KafkaCluster, "group_offsets", deleting)
    assert {cut.topic for cut in bench.take_point().partitions} == {other}


def test_topics_that_do_not_come_to_rest(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = bench.topic("restless")
    group_offsets = KafkaCluster.group_offsets

    def recreating(cluster, group, **options):
        bench.recreate(topic)
        return group_offsets(cluster, group, **options)

    monkeypatch.setattr(KafkaCluster, "group_offsets", recreating)
    with pytest.raises(KafkaError, match=f"Topic {topic} changed"):
        bench.take_point()
    assert bench.points() == []
