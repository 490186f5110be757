"""What speaks against calling a cut exact counts whichever method found it; on a real broker."""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as data_field

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from kstreams_assets.app.model import TopicRole
from kstreams_assets.kafka.coordinator_log import CONSUMER_OFFSETS, coordinator_partition
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import Guarantee, Method, RecoveryPoint
from kstreams_assets.model.restores import (
    PartitionProduced,
    RestoreMode,
    RestoreState,
    StoredRestore,
    StoredTopic,
)
from kstreams_assets.offsets import CommittedOffset, OffsetRun, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from tests.backup.writing import write
from tests.kafka.transacting import settled_end, transactional_producer
from tests.streams.cluster import unique_name
from tests.streams.workbench import NoSpark, Workbench
from tests.timing import eventually

pytestmark = pytest.mark.kafka

METADATA = "AgAAAZqzbB4A"


@dataclass
class App:
    """An exactly-once application without code: two inputs, a changelog, and its transactions."""

    bench: Workbench
    source: str
    other: str
    changelog: str
    _sender: list[Producer] = data_field(default_factory=list)

    def process(self, *read: tuple[str, int, int], records: int = 1) -> None:
        """One transaction: changelog records, and these offsets (topic, partition, offset)."""
        if not self._sender:
            sender = transactional_producer(self.bench.bootstrap_servers, unique_name("tx"))
            self._sender.append(sender)
        sender = self._sender[0]
        member = Consumer(
            {
                "bootstrap.servers": self.bench.bootstrap_servers,
                "group.id": self.bench.application_id,
            }
        )
        sender.begin_transaction()
        for number in range(records):
            sender.produce(self.changelog, b"state", key=b"k%d" % number, partition=0)
        offsets = [TopicPartition(*one) for one in read]
        sender.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), 20)
        sender.commit_transaction(20)
        member.close()
        if records:
            settled_end(self.bench.cluster, TopicPartitionId(self.changelog, 0))
        topics = self.bench.cluster.topics()
        number = coordinator_partition(self.bench.application_id, topics[CONSUMER_OFFSETS])
        settled_end(self.bench.cluster, TopicPartitionId(CONSUMER_OFFSETS, number))

    def take(self) -> RecoveryPoint:
        return self.bench.take_point()

    def delete_offsets(self, *partitions: tuple[str, int]) -> None:
        wanted = [TopicPartitionId(*one) for one in partitions]
        self.bench.cluster.delete_group_offsets(self.bench.application_id, wanted)

    def delete_group(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bench.bootstrap_servers})
        for answer in admin.delete_consumer_groups([self.bench.application_id]).values():
            answer.result(20)


@pytest.fixture
def app(workbench: Workbench) -> App:
    """The application, which has processed a part of its inputs."""
    workbench.spark = NoSpark()
    app = App(
        workbench,
        workbench.topic("in", partitions=2),
        workbench.topic("other"),
        workbench.topic("app-totals-changelog", partitions=2, role=TopicRole.CHANGELOG),
    )
    for topic, partition in ((app.source, 0), (app.source, 1), (app.other, 0)):
        write(workbench, topic, 10, partition=partition)
    app.process((app.source, 0, 8), (app.source, 1, 8), (app.other, 0, 8))
    return app


def test_there_are_no_blockers(app: App) -> None:
    point = app.take()
    assert (point.method, point.guarantee) == (Method.TRANSACTIONS, Guarantee.EXACT)


def _delete_group(app: App) -> None:
    app.delete_group()


def _delete_one_topic(app: App) -> None:
    app.delete_offsets((app.other, 0))


def _delete_one_partition(app: App) -> None:
    app.delete_offsets((app.source, 1))


def _empty_inputs_and_delete_group(app: App) -> None:
    app.bench.delete_records(app.source, 10)
    app.bench.delete_records(app.source, 10, partition=1)
    app.bench.delete_records(app.other, 10)
    app.delete_group()


def _beyond_the_end(app: App) -> None:
    app.process((app.source, 0, 8), (app.source, 1, 8), (app.other, 0, 99))


def _delete_unread_input(app: App) -> None:
    app.bench.delete_records(app.source, 9)


def _set_by_hand(app: App) -> None:
    offsets = {TopicPartitionId(app.source, 0): CommittedOffset(2, "")}
    app.bench.cluster.commit_group_offsets(app.bench.application_id, offsets)


OBJECTIONS: dict[str, tuple[Callable[[App], None], str]] = {
    "the group was deleted": (_delete_group, "no committed offsets, although"),
    "and its inputs are empty": (_empty_inputs_and_delete_group, "no committed offsets, although"),
    "offsets of one topic": (_delete_one_topic, "the committed offset for other"),
    "offsets of one partition": (_delete_one_partition, "the committed offset for in"),
    "beyond the end": (_beyond_the_end, "is beyond the end of its log (10)"),
    "unread input was deleted": (_delete_unread_input, "were deleted before the application"),
    "set by hand": (_set_by_hand, "was committed outside of transactions"),
}


@pytest.mark.parametrize(
    ("case", "with_exact_point"),
    [
        ("the group was deleted", False),
        ("set by hand", False),
        *((case, True) for case in OBJECTIONS),
    ],
)
def test_an_objection_counts_for_every_method(app: App, case: str, with_exact_point: bool) -> None:
    change, words = OBJECTIONS[case]
    if with_exact_point:
        assert app.take().guarantee is Guarantee.EXACT
    change(app)
    for _ in range(2):  # also where the newest point is not exact any more
        point = app.take()
        assert point.guarantee is Guarantee.AT_LEAST_ONCE, point.reason
        assert point.guarantee_of_cut is Guarantee.AT_LEAST_ONCE
        assert words in point.reason
    app.process((app.source, 0, 9), (app.source, 1, 9), (app.other, 0, 9))
    if case != "set by hand":  # its commit stays in the lookback
        assert app.take().guarantee is Guarantee.EXACT


def test_a_partition_that_was_added_has_no_offset_yet(app: App) -> None:
    assert app.take().guarantee is Guarantee.EXACT
    admin = AdminClient({"bootstrap.servers": app.bench.bootstrap_servers})
    for answer in admin.create_partitions([NewPartitions(app.source, 3)]).values():
        answer.result(20)
    assert eventually(lambda: app.bench.cluster.topics()[app.source] == 3)
    write(app.bench, app.source, 5, partition=2)
    assert app.take().guarantee is Guarantee.EXACT
    app.process((app.source, 2, 5))
    app.delete_offsets((app.source, 2))
    point = app.take()
    assert point.guarantee is Guarantee.AT_LEAST_ONCE
    assert f"the committed offset for {app.source}-2 is missing" in point.reason


def test_an_application_that_never_ran_is_exact(workbench: Workbench) -> None:
    workbench.topic("app-x-changelog", role=TopicRole.CHANGELOG)
    write(workbench, workbench.topic("in"), 5)
    assert workbench.take_point().guarantee is Guarantee.EXACT


def test_offsets_of_a_topic_that_was_recreated_name_other_records(app: App) -> None:
    assert app.take().guarantee is Guarantee.EXACT
    app.bench.recreate(app.other)
    write(app.bench, app.other, 20)
    # as if the coordinator had not deleted them with the topic
    app.process((app.other, 0, 8))
    point = app.take()
    assert point.guarantee is Guarantee.AT_LEAST_ONCE
    assert "before the topic was recreated" in point.reason


def test_tombstones_of_a_deleted_input_are_no_evidence(app: App) -> None:
    assert app.take().method is Method.TRANSACTIONS
    app.bench.delete(app.other)
    cluster, group = app.bench.cluster, app.bench.application_id
    assert eventually(lambda: all(p.topic != app.other for p in cluster.group_offsets(group)))
    point = app.take()
    assert (point.method, point.guarantee_of_cut) == (Method.TRANSACTIONS, Guarantee.EXACT)
    app.bench.roles.pop(app.other)
    point = app.take()
    assert (point.method, point.guarantee) == (Method.TRANSACTIONS, Guarantee.EXACT)
    app.process((app.source, 0, 9))
    point = app.take()
    assert (point.method, point.guarantee) == (Method.TRANSACTIONS, Guarantee.EXACT)


@pytest.fixture
def restored(workbench: Workbench) -> App:
    """An application whose topics and offsets a restore wrote: a static table, and an input."""
    workbench.spark = NoSpark()
    app = App(
        workbench,
        workbench.topic("in", partitions=2),
        workbench.topic("other"),
        workbench.topic("app-totals-changelog", partitions=2, role=TopicRole.CHANGELOG),
    )
    for number in range(2):
        write(workbench, app.source, 10, partition=number)
        write(workbench, app.changelog, 10, partition=number)
    commit(app, 4)
    return app


def commit(app: App, offset: int, metadata: str = METADATA) -> None:
    """Offsets of both partitions of the input, outside of transactions."""
    app.bench.cluster.commit_group_offsets(
        app.bench.application_id,
        {
            TopicPartitionId(app.source, number): CommittedOffset(offset, metadata)
            for number in range(2)
        },
    )


def note(
    app: App,
    *,
    state: RestoreState = RestoreState.COMMITTED,
    request: str = '{"accept": "exact"}',
    end: int = 10,
    metadata: str = METADATA,
) -> None:
    """What a restore stores of itself."""
    cluster = app.bench.cluster
    topics = cluster.metadata().topics
    offsets = tuple(GroupOffset(app.source, number, 4, metadata) for number in range(2))
    Repository(app.bench.warehouse, "origin").offset_maps.record(
        "r1",
        [
            PartitionProduced(
                source=TopicPartitionId(topic, number),
                target=TopicPartitionId(topic, number),
                runs=(OffsetRun(100, 0, end),) if topic != app.other else (),
                records=end,
                resumed=0,
                end=end if topic != app.other else 0,
            )
            for topic in (app.source, app.other, app.changelog)
            for number in range(topics[topic].partitions)
        ],
    )
    Repository(app.bench.warehouse, "origin").restores.append(
        StoredRestore(
            application_id="origin",
            restore_id="r1",
            state=state,
            changed_at_ms=2,
            created_at_ms=1,
            run_id="run",
            point_id="p",
            group=app.bench.application_id,
            target_cluster_id=cluster.cluster_id(),
            target_bootstrap_servers=app.bench.bootstrap_servers,
            mode=RestoreMode.STATE,
            request=request,
            topics=tuple(
                StoredTopic(name, name, topics[name].topic_id, (0,) * topics[name].partitions, end)
                for name in (app.source, app.other, app.changelog)
            ),
            to_commit=offsets,
            committed=offsets if state is RestoreState.COMMITTED else None,
        )
    )


def found(app: App) -> tuple[Method, Guarantee]:
    point = app.take()
    return point.method, point.guarantee


EXACT = (Method.TRANSACTIONS, Guarantee.EXACT)


def test_what_a_restore_wrote_is_no_evidence_against_exactly_once(restored: App) -> None:
    assert found(restored) == (Method.QUIESCED, Guarantee.AT_LEAST_ONCE)
    note(restored)
    point = restored.take()
    assert (point.method, point.guarantee) == EXACT, point.reason
    assert "has written nothing since it was restored" in point.reason
    # the changelog of a static table stays as it was restored
    restored.process((restored.source, 0, 5), records=0)
    point = restored.take()
    assert (point.method, point.guarantee) == EXACT, point.reason
    assert "since it was restored" not in point.reason
    restored.process((restored.source, 1, 5))
    assert found(restored) == EXACT


def test_what_the_application_writes_above_a_restore_counts(restored: App) -> None:
    note(restored)
    write(restored.bench, restored.changelog, 1, partition=1)
    point = restored.take()
    assert point.guarantee is Guarantee.AT_LEAST_ONCE
    assert f"{restored.changelog}-1 is written without transactions" in point.reason
    restored.process((restored.source, 0, 5))
    assert restored.take().guarantee is Guarantee.AT_LEAST_ONCE


def test_other_offsets_than_the_restored_ones_count(restored: App) -> None:
    note(restored)
    commit(restored, 5)
    point = restored.take()
    assert point.guarantee is Guarantee.AT_LEAST_ONCE
    assert "outside of transactions" in point.reason


def test_an_output_that_is_written_above_a_restore_counts(restored: App) -> None:
    output = restored.bench.topic("out", role=TopicRole.OUTPUT)
    note(restored)
    assert found(restored) == EXACT
    write(restored.bench, output, 1)
    assert restored.take().guarantee is Guarantee.AT_LEAST_ONCE


def test_restored_offsets_that_are_gone_are_missed(restored: App) -> None:
    note(restored)
    restored.delete_offsets((restored.source, 1))
    point = restored.take()
    assert point.guarantee is Guarantee.AT_LEAST_ONCE
    restored.delete_group()
    point = restored.take()
    assert point.guarantee is Guarantee.AT_LEAST_ONCE
    assert "no committed offsets, although" in point.reason


@pytest.mark.parametrize(
    "state", [RestoreState.PLANNED, RestoreState.PRODUCED, RestoreState.FAILED_VERIFICATION]
)
def test_a_restore_that_does_not_match_the_backup_explains_nothing(
    restored: App, state: RestoreState
) -> None:
    note(restored, state=state)
    assert restored.take().guarantee is Guarantee.AT_LEAST_ONCE


def test_an_untouched_restore_is_worth_what_was_restored(restored: App) -> None:
    note(restored, request='{"accept": "at_least_once"}')
    point = restored.take()
    assert (point.method, point.guarantee) == (Method.TRANSACTIONS, Guarantee.AT_LEAST_ONCE)
    assert "what was restored is at_least_once only" in point.reason
    restored.process((restored.source, 0, 5))
    assert found(restored) == EXACT


def test_a_log_that_ends_below_what_was_restored_is_another_one(restored: App) -> None:
    note(restored, end=12)
    assert restored.take().guarantee is Guarantee.AT_LEAST_ONCE


def test_a_restore_back_to_the_first_cluster(restored: App) -> None:
    """The same offsets as at the newest exact point there, in topics that were made anew."""
    note(restored)
    restored.process((restored.source, 0, 4), (restored.source, 1, 4))
    before = restored.take()
    assert before.guarantee is Guarantee.EXACT
    for topic in (restored.source, restored.changelog):
        restored.bench.recreate(topic, partitions=2)
        for number in range(2):
            write(restored.bench, topic, 10, partition=number)
    metadata = before.group_offsets[0].metadata
    commit(restored, 4, metadata)
    note(restored, metadata=metadata)
    assert found(restored) == EXACT
    restored.process((restored.source, 0, 5))
    point = restored.take()
    assert (point.method, point.guarantee) == EXACT, point.reason
