"""restore/watch.py: applications started on a real broker after their offsets were committed."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.structs import OffsetAndMetadata, TopicPartition

from examples.order_processor.application import OrderProcessor, create_topics
from examples.order_processor.load import produce_orders
from examples.order_processor.orders import OrderGenerator
from kstreams_assets.app.model import TopicRole
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.kafka.admin import TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.restore.watch import (
    Assessment,
    Health,
    Limits,
    Sign,
    follow,
    records_left,
    watch,
)
from tests.kafka.transacting import transact, transactional_producer
from tests.restore.after_commit import AfterCommit, after_commit, now_ms
from tests.streams.cluster import unique_name
from tests.timing import eventually

pytestmark = pytest.mark.kafka

PARTITIONS = 4
ORDERS = 400
QUICK = Limits(every_s=0.3, timeout_s=60, not_started_after_s=1, not_moving_after_s=4)


def orders_at(bench: AfterCommit, prefix: str) -> dict[TopicPartitionId, CommittedOffset]:
    """Inputs of the order processor with records, and offsets in the midst of them."""
    servers = bench.cluster.connection.bootstrap_servers
    create_topics(servers, topic_prefix=prefix, partitions=PARTITIONS)
    generator = OrderGenerator(seed=3, customers=20, invalid_share=0)
    produce_orders(servers, generator, topic=f"{prefix}orders", count=ORDERS)
    bench.adopt(f"{prefix}orders", records=ORDERS)
    return {
        TopicPartitionId(f"{prefix}orders", partition): CommittedOffset(5, "")
        for partition in range(PARTITIONS)
    }


def order_processor(bench: AfterCommit, prefix: str, state_dir: Path) -> OrderProcessor:
    return OrderProcessor(
        bench.cluster.connection.bootstrap_servers,
        state_dir=state_dir,
        application_id=bench.group,
        topic_prefix=prefix,
        commit_interval_ms=100,
    )


def test_an_application_that_catches_up_is_healthy(bench: AfterCommit, tmp_path: Path) -> None:
    prefix = unique_name("watch") + "."
    restore = bench.restore(orders_at(bench, prefix))
    seen: list[Assessment] = []
    application = order_processor(bench, prefix, tmp_path / "state")

    def report(assessment: Assessment) -> None:
        seen.append(assessment)
        if len(seen) == 1:
            application.start()

    try:
        patient = replace(QUICK, timeout_s=120, not_moving_after_s=60)
        last = watch(bench.settings, restore, bench.cluster, limits=patient, report=report)
    finally:
        application.stop()
    assert seen[0].health is Health.WAITING
    assert (seen[0].records_left, seen[0].counted) == (ORDERS - 5 * PARTITIONS, True)
    assert last.health is Health.HEALTHY, str(last)
    assert last.troubles == ()
    # Passed are the ends of the input; repartition topics may have grown since they were looked at.
    orders = [p for id_, p in last.observation.partitions.items() if id_.topic.endswith("orders")]
    assert [partition.at_most_left for partition in orders] == [0] * PARTITIONS
    repartition = [id_ for id_ in last.observation.partitions if id_.topic.endswith("-repartition")]
    assert repartition  # the restore committed nothing for it, the application does
    assert last.moved == last.partitions == PARTITIONS + len(repartition)


def test_a_stale_leader_epoch_is_named(bench: AfterCommit, tmp_path: Path) -> None:
    prefix = unique_name("watch") + "."
    committed = orders_at(bench, prefix)
    restore = bench.restore(committed)
    admin = KafkaAdminClient(bootstrap_servers=bench.cluster.connection.bootstrap_servers)
    try:
        admin.alter_group_offsets(  # pyright: ignore[reportAttributeAccessIssue]
            bench.group,
            {
                TopicPartition(id_.topic, id_.partition): OffsetAndMetadata(offset.offset, "", 7)
                for id_, offset in committed.items()
            },
        )
    finally:
        admin.close()
    with order_processor(bench, prefix, tmp_path / "state"):
        last = watch(bench.settings, restore, bench.cluster, limits=QUICK)
        time.sleep(3)
        after = bench.cluster.group_offsets(bench.group)
    assert last.health is Health.UNHEALTHY
    assert [trouble.subject for trouble in last.troubles] == [Sign.STALE_LEADER_EPOCH]
    assert f"{prefix}orders-0 (offset 5 with epoch 7, the partition has 0)" in str(last.troubles[0])
    # what the sign says: the application runs and reads nothing
    assert {id_: offset.offset for id_, offset in after.items()} == dict.fromkeys(committed, 5)


def test_deleted_offsets_and_passed_log_starts_are_named(bench: AfterCommit) -> None:
    gone = bench.topic(unique_name("gone"), timestamps_ms=[now_ms()] * 3)
    passed = bench.topic(unique_name("passed"), timestamps_ms=[now_ms()] * 9)
    changelog = bench.topic(
        unique_name("changelog"), role=TopicRole.CHANGELOG, timestamps_ms=[now_ms()] * 4
    )
    ids = {name: TopicPartitionId(name, 0) for name in (gone, passed, changelog)}
    restore = bench.restore(
        {ids[gone]: CommittedOffset(1, ""), ids[passed]: CommittedOffset(2, "")}
    )
    bench.cluster.delete_group_offsets(bench.group, [ids[gone]])
    bench.cluster.delete_records({ids[passed]: 5, ids[changelog]: 1})
    last = watch(bench.settings, restore, bench.cluster, limits=QUICK)
    signs = {trouble.subject: trouble.found for trouble in last.troubles}
    assert signs.keys() == {Sign.OFFSETS_GONE, Sign.OFFSETS_OUT_OF_RANGE, Sign.RECORDS_DELETED}
    assert f"{gone}-0 (1 was committed)" in signs[Sign.OFFSETS_GONE]
    assert f"{passed}-0 (2; the log holds 5 to 9)" in signs[Sign.OFFSETS_OUT_OF_RANGE]
    assert f"{changelog}-0 (log start 1, restored from 0)" in signs[Sign.RECORDS_DELETED]


def test_a_group_nobody_joins_times_out_and_names_new_groups(bench: AfterCommit) -> None:
    topic = bench.topic(unique_name("watch"), timestamps_ms=[now_ms()] * 3)
    restore = bench.restore({TopicPartitionId(topic, 0): CommittedOffset(0, "")})
    limits = Limits(every_s=0.2, timeout_s=2, not_started_after_s=1)
    other = unique_name("other-app")
    seen = []
    for assessment in follow(bench.settings, restore, bench.cluster, limits=limits):
        seen.append(assessment)
        if len(seen) == 1:
            bench.cluster.commit_group_offsets(
                other, {TopicPartitionId(topic, 0): CommittedOffset(0, "")}
            )
    assert {assessment.health for assessment in seen[:-1]} == {Health.WAITING}
    assert seen[-1].health is Health.TIMED_OUT
    (trouble,) = seen[-1].troubles
    assert trouble.subject == Sign.NOT_STARTED
    assert other in trouble.found


def test_records_left_are_records_not_offsets(bench: AfterCommit) -> None:
    topic = unique_name("watch")
    bench.cluster.create_topics([TopicSpec(topic, 1)])
    id_ = TopicPartitionId(topic, 0)
    producer = transactional_producer(
        bench.cluster.connection.bootstrap_servers, unique_name("transactions")
    )
    for commit in (True, False, True, True):  # each a record and a marker
        transact(producer, bench.group, {id_: (0, "")}, commit=commit)
    assert eventually(lambda: bench.cluster.last_stable_offsets([id_])[id_] >= 8)
    with bench.cluster.raw_log() as raw:
        found = {start: records_left(raw, id_, start, 8, deadline_s=10) for start in (0, 1, 5, 7)}
    assert found == {0: (0, 3), 1: (4, 2), 5: (6, 1), 7: (None, 0)}


def test_only_its_own_application_on_its_own_target(
    bench: AfterCommit, kafka_cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = bench.topic(unique_name("watch"))
    restore = bench.restore({TopicPartitionId(topic, 0): CommittedOffset(0, "")})
    with (
        after_commit(kafka_cluster.bootstrap_servers, tmp_path / "other") as other,
        pytest.raises(ConfigurationError, match="belongs to application"),
    ):
        next(follow(other.settings, restore, bench.cluster))
    elsewhere = replace(restore, target_cluster_id="elsewhere")
    with pytest.raises(KStreamsAssetsError, match=r"The cluster .*not elsewhere"):
        next(follow(bench.settings, elsewhere, bench.cluster))


def remake(cluster: KafkaCluster, topic: str) -> None:
    """Delete a topic and create another one of the same name."""
    delete(cluster, topic)
    cluster.create_topics([TopicSpec(topic, 1)])


def delete(cluster: KafkaCluster, topic: str) -> None:
    """Delete a topic and wait until the broker knows: its metadata follow a moment later."""
    cluster.delete_topics([topic])
    assert eventually(lambda: topic not in cluster.topics())
