"""Plans on real brokers: what is planned, all that is refused, and that nothing is written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from examples.order_processor.application import OrderProcessor, create_topics
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.restore.plan import PartitionPlan, RestorePlan, TopicPlan
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.restore.report import document, markdown
from kstreams_assets.restore.request import InputsExtent, RestoreRequest
from kstreams_assets.warehouse.judge import Restores
from kstreams_assets.warehouse.restores import (
    RestoreMode,
    RestoresTable,
    RestoreState,
    StoredRestore,
    StoredTopic,
)
from spark_resources.resource import SparkSessionResource
from tests.backup.acls import Acls
from tests.kafka.transacting import await_assignment
from tests.restore.planned_application import (
    AUTHORIZER,
    BOB,
    PlannedApplication,
    connection_of_bob,
    give,
)
from tests.streams.cluster import unique_name
from tests.streams.workbench import Workbench
from tests.timing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture(scope="module")
def target_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Another cluster; by its inner listener everything is allowed, bob has no rights."""
    with LocalCluster(
        tmp_path_factory.mktemp("target"),
        client_protocol="SASL_PLAINTEXT",
        scram_users={"bob": BOB},
        properties={**AUTHORIZER, "auto.create.topics.enable": "false"},
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def app(
    kafka_cluster: LocalCluster,
    target_cluster: LocalCluster,
    spark: SparkSessionResource,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[PlannedApplication]:
    """The application, backed up."""
    source = KafkaConnection(
        bootstrap_servers=kafka_cluster.bootstrap_servers, request_timeout_seconds=20
    )
    target = KafkaConnection(
        bootstrap_servers=target_cluster.internal_bootstrap_servers, request_timeout_seconds=20
    )
    with KafkaCluster(source) as cluster:
        warehouse = Warehouse(tmp_path_factory.mktemp("warehouse"))
        bench = Workbench(cluster, warehouse, spark, unique_name("app"))
        made = PlannedApplication(bench, target)
        made.prepare()
        yield made


def _topic(app: PlannedApplication, plan: RestorePlan, name: str) -> TopicPlan:
    return next(topic for topic in plan.topics if topic.source == app.names[name])


def _partition(app: PlannedApplication, plan: RestorePlan, name: str) -> PartitionPlan:
    return _topic(app, plan, name).partitions[0]


class TestPlanned:
    def test_the_state_as_of_a_time(self, app: PlannedApplication) -> None:
        plan = app.plan()
        assert plan.refusals == ()
        assert plan.point == app.points[0]
        assert (plan.gives, plan.group) == (Restores.AT_LEAST_ONCE, app.bench.application_id)
        counts = {name: _topic(app, plan, name).records for name in app.names}
        assert counts == {
            "orders": 20,
            "rates": 3,
            "totals": 5,
            "changelog": 10,
            "repartition": 4,
        }
        assert plan.records == 42
        assert all(len(topic.partitions) == 2 and not topic.exists for topic in plan.topics)
        assert _partition(app, plan, "repartition").ranges == (OffsetRange(6, 10),)
        orders = _partition(app, plan, "orders")
        assert orders.bytes > 60_000
        assert orders.committed is not None
        assert (orders.committed.offset, orders.committed.metadata) == (12, "metadata of orders")
        changelog = _topic(app, plan, "changelog")
        assert changelog.configs["cleanup.policy"] == "compact"
        assert changelog.configs["retention.ms"] == "-1"
        assert sum(file.records for file in orders.files) == 20

    def test_a_later_point_takes_both_windows(self, app: PlannedApplication) -> None:
        plan = app.plan(point_id=app.points[1].id, accept_replaced_timestamps=True)
        assert plan.refusals == ()
        orders = _topic(app, plan, "orders")
        assert (orders.records, orders.windows) == (28, 2)
        assert _topic(app, plan, "repartition").records == 0

    def test_the_newest_that_is_covered(self, app: PlannedApplication) -> None:
        plan = app.plan(newest=True, accept_replaced_timestamps=True)
        assert plan.refusals == ()
        assert plan.point == app.newest_covered
        assert any("1 newer point(s) cannot be restored" in note for note in plan.notes)

    def test_the_tail_of_the_inputs(self, app: PlannedApplication) -> None:
        plan = app.plan(inputs=InputsExtent.TAIL)
        assert plan.refusals == ()
        assert _partition(app, plan, "orders").ranges == (OffsetRange(12, 20),)
        assert (_topic(app, plan, "orders").records, _topic(app, plan, "rates").records) == (8, 3)

    def test_a_rebuild_takes_the_inputs_and_makes_the_outputs(
        self, app: PlannedApplication
    ) -> None:
        plan = app.plan(mode=RestoreMode.REBUILD)
        assert plan.refusals == ()
        found = {topic.source: topic.records for topic in plan.topics}
        names = app.names
        assert found == {names["orders"]: 20, names["rates"]: 3, names["totals"]: 0}
        committed = _partition(app, plan, "orders").committed
        assert committed is not None
        assert (committed.offset, committed.metadata) == (0, "")

    def test_another_application_id_on_the_source_cluster(self, app: PlannedApplication) -> None:
        source, other = app.bench.cluster.connection, unique_name("other")
        plan = app.plan(target=source, application_id=other, prefix=f"{other}.")
        assert plan.refusals == ()
        assert _topic(app, plan, "changelog").target == f"{other}-sums-changelog"
        assert _topic(app, plan, "orders").target == f"{other}.{app.names['orders']}"

    def test_an_empty_topic_is_used_as_it_is(self, app: PlannedApplication) -> None:
        with app.existing("orders", configs={"retention.ms": "1234"}) as name:
            plan = app.plan()
        assert plan.refusals == ()
        topic = _topic(app, plan, "orders")
        assert (topic.target, topic.exists) == (name, True)
        assert topic.put_back["retention.ms"] == "1234"

    def test_the_same_request_is_the_same_restore(self, app: PlannedApplication) -> None:
        assert app.plan().restore_id == app.plan(point_id=app.points[0].id).restore_id
        assert app.plan().restore_id != app.plan(inputs=InputsExtent.TAIL).restore_id

    def test_shown_to_people_and_machines(self, app: PlannedApplication) -> None:
        plan = app.plan()
        assert app.names["changelog"] in markdown(plan)
        assert document(plan)["records"] == 42


class TestRefused:
    def test_the_source_cluster_itself(self, app: PlannedApplication) -> None:
        listed = app.refusals(target=app.bench.cluster.connection)
        assert any("It is the source cluster" in text for text in listed)
        assert sum("It is not empty" in text for text in listed) == 5

    def test_a_topic_with_records(self, app: PlannedApplication) -> None:
        with app.existing("totals", records=3) as name:
            (text,) = app.refusals()
        assert text.startswith(f"topic {name}: It is not empty on the target: its logs hold 3")

    def test_another_number_of_partitions(self, app: PlannedApplication) -> None:
        with app.existing("changelog", partitions=3) as name:
            (text,) = app.refusals()
        assert f"topic {name}: It has 3 partition(s) on the target, the source had 2" in text

    def test_log_append_time(self, app: PlannedApplication) -> None:
        with app.existing("rates", configs={"message.timestamp.type": "LogAppendTime"}):
            (text,) = app.refusals()
        assert "LogAppendTime" in text

    @pytest.mark.parametrize(("limit", "refused"), [(50_000, True), (61_000, False)])
    def test_records_that_are_too_large(
        self, app: PlannedApplication, limit: int, refused: bool
    ) -> None:
        with app.existing("orders", configs={"max.message.bytes": str(limit)}):
            listed = app.refusals()
        assert len(listed) == refused
        assert all("largest record to restore takes 600" in text for text in listed)

    def test_replicas_that_can_never_be_in_sync(self, app: PlannedApplication) -> None:
        with app.existing("orders", configs={"min.insync.replicas": "2"}):
            (text,) = app.refusals()
        assert "min.insync.replicas is 2, but it has 1 replica(s)" in text

    def test_timestamps_of_zero_or_below_are_none(self, app: PlannedApplication) -> None:
        assert app.plan(point_id=app.points[1].id).refusals == ()

    def test_a_time_before_all_points(self, app: PlannedApplication) -> None:
        plan = app.plan(as_of_ms=app.points[0].taken_at_ms - 1)
        assert (plan.point, plan.topics, plan.restore_id) == (None, (), "")
        assert f"{app.points[0].id} after it" in plan.refusals[0].action

    def test_a_point_that_is_not_backed_up(self, app: PlannedApplication) -> None:
        (text,) = app.refusals(point_id=app.points[2].id)
        assert "It is not covered by backups" in text
        assert f"{app.newest_covered.id} before it" in text

    def test_unknown_names(self, app: PlannedApplication) -> None:
        listed = app.refusals(topics={"nothing": "x"}, exclude=("no-such-*",))
        assert sorted(text.split(":")[0] for text in listed) == ["exclude", "topics"]

    def test_a_name_that_kafka_does_not_take(self, app: PlannedApplication) -> None:
        listed = app.refusals(prefix="a/")
        assert len(listed) == 3
        assert all("other characters" in text for text in listed)

    def test_more_replicas_than_brokers(self, app: PlannedApplication) -> None:
        (text,) = app.refusals(replication_factor=2)
        assert "The target has 1 broker(s)" in text

    def test_state_that_a_rebuild_would_go_on_from(self, app: PlannedApplication) -> None:
        with app.existing("changelog", records=1) as name:
            (text,) = app.refusals(mode=RestoreMode.REBUILD)
        assert text.startswith(f"topic {name}: It is an internal topic")

    def test_everything_is_listed_together(self, app: PlannedApplication) -> None:
        configs = {"message.timestamp.type": "LogAppendTime"}
        with app.existing("orders", configs=configs, records=1, partitions=1):
            listed = app.refusals(point_id=app.points[1].id, replication_factor=9)
        assert len(listed) == 4

    def test_without_a_point_what_is_on_the_target_is_listed_too(
        self, app: PlannedApplication
    ) -> None:
        with app.existing("orders", records=1) as name:
            listed = app.refusals(as_of_ms=1)
        assert [text.split(":")[0] for text in listed] == ["recovery point", f"topic {name}"]


class TestGroup:
    def test_with_a_consumer(self, app: PlannedApplication) -> None:
        group = app.bench.application_id
        with app.existing("orders") as name:
            consumer = Consumer(
                {
                    "bootstrap.servers": app.target.bootstrap_servers,
                    "group.id": group,
                    "session.timeout.ms": 6000,
                }
            )
            try:
                consumer.subscribe([name])
                await_assignment(consumer)
                (text,) = app.refusals()
            finally:
                consumer.close()
            assert f"group {group}: It is in use on the target (classic group" in text
            assert app.refusals() == []

    def test_with_an_application_of_the_streams_protocol(
        self, app: PlannedApplication, tmp_path: Path
    ) -> None:
        """librdkafka reports such a group as dead."""
        servers, prefix = app.target.bootstrap_servers, unique_name("streams") + "."
        create_topics(servers, topic_prefix=prefix)
        with OrderProcessor(
            servers,
            state_dir=tmp_path / "state",
            application_id=app.bench.application_id,
            topic_prefix=prefix,
            config={"group.protocol": "streams"},
        ):
            assert eventually(lambda: _of_live_group(app))
            (text,) = _of_live_group(app)
        assert "It is in use on the target (streams group" in text

    def test_offsets_that_are_there_are_told(self, app: PlannedApplication) -> None:
        with app.existing("orders") as name, app.on_target() as cluster:
            offsets = {TopicPartitionId(name, 0): CommittedOffset(0, "")}
            cluster.commit_group_offsets(app.bench.application_id, offsets)
            plan = app.plan()
            cluster.delete_group_offsets(app.bench.application_id, offsets)
        assert plan.refusals == ()
        assert any("has 1 committed offset(s) on the target" in note for note in plan.notes)


def _of_live_group(app: PlannedApplication) -> list[str]:
    """Without the check that nothing is written: the application itself does write."""
    with app.on_target() as cluster:
        state = cluster.group_state(app.bench.application_id)
    if state is None or state.is_empty:
        return []
    plan = plan_restore(app.settings, app.request(), app.target)
    return [str(refusal) for refusal in plan.refusals]


class TestRights:
    def test_each_missing_one_is_named_and_with_all_of_them_it_is_planned(
        self, app: PlannedApplication, target_cluster: LocalCluster
    ) -> None:
        bob, group = connection_of_bob(target_cluster), app.bench.application_id
        acls = Acls(target_cluster.internal_bootstrap_servers)
        with app.existing("orders") as orders:
            text = "\n".join(app.refusals(target=bob))
            assert f"Not allowed: group_state on group {group}" in text
            changelog = app.names["changelog"]
            assert f"topic {changelog}: It cannot be created: Not allowed" in text
            give(acls, ResourceType.TOPIC, orders, AclOperation.DESCRIBE)
            acls.allow(ResourceType.GROUP, group, AclOperation.DESCRIBE)
            acls.allow(ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE)
            text = "\n".join(app.refusals(target=bob))
            assert f"right DESCRIBE_CONFIGS on topic {orders}" in text
            assert "It cannot be created" not in text
            assert f"no right READ on it. Give it the right READ on group {group}" in text
            acls.allow(ResourceType.GROUP, group, AclOperation.READ)
            give(acls, ResourceType.TOPIC, orders, AclOperation.DESCRIBE_CONFIGS)
            (text,) = app.refusals(target=bob)
            assert f"topic {orders}: The user of the target connection has no right" in text
            assert "READ, WRITE, ALTER_CONFIGS" in text
            rights = (AclOperation.READ, AclOperation.WRITE, AclOperation.ALTER_CONFIGS)
            give(acls, ResourceType.TOPIC, orders, *rights)
            assert app.refusals(target=bob) == []


class TestUnfinished:
    def _begin(
        self, app: PlannedApplication, plan: RestorePlan, topic_id: str, state: RestoreState
    ) -> None:
        assert plan.point is not None
        orders = _topic(app, plan, "orders")
        stored = StoredTopic(
            source=orders.source,
            target=orders.target,
            target_topic_id=topic_id,
            base_offsets=(0, 0),
            records=orders.records,
            put_back={"retention.ms": "77"},
        )
        RestoresTable(app.bench.warehouse).append(
            StoredRestore(
                application_id=plan.application_id,
                restore_id=plan.restore_id,
                state=state,
                changed_at_ms=1,
                created_at_ms=1,
                run_id="run",
                point_id=plan.point.id,
                group=plan.group,
                target_cluster_id=plan.target_cluster_id,
                target_bootstrap_servers=plan.target_bootstrap_servers,
                mode=plan.request.mode,
                request="{}",
                topics=(stored,),
            )
        )

    def test_it_is_gone_on_with_while_its_topics_are_there(self, app: PlannedApplication) -> None:
        accept: dict[str, Any] = {"accept_replaced_timestamps": True}
        with app.existing("orders", records=4) as name, app.on_target() as cluster:
            topic_id = cluster.describe_topics([name])[name].topic_id
            begun = app.plan(**accept)
            self._begin(app, begun, topic_id, RestoreState.PLANNED)
            again = app.plan(newest=True, **accept)
            assert again.point == app.points[0]
            assert (again.restore_id, again.refusals) == (begun.restore_id, ())
            assert any(f"Restore {begun.restore_id} was begun" in note for note in again.notes)
            orders = _topic(app, again, "orders")
            assert (orders.exists, orders.put_back) == (True, {"retention.ms": "77"})
            other = app.plan(newest=True, inputs=InputsExtent.TAIL, **accept)
            assert other.point == app.newest_covered
            assert "(written by restore" in str(other.refusals[0])
            named = app.plan(point_id=app.points[1].id, **accept)
            assert [r.subject for r in named.refusals] == [f"topic {name}"]
        gone = app.plan(newest=True, **accept)
        assert (gone.point, gone.refusals) == (app.newest_covered, ())

    def test_a_finished_one_is_not(self, app: PlannedApplication) -> None:
        request: dict[str, Any] = {"accept_replaced_timestamps": True, "prefix": ""}
        with app.existing("orders", records=4) as name, app.on_target() as cluster:
            topic_id = cluster.describe_topics([name])[name].topic_id
            begun = app.plan(**request)
            self._begin(app, begun, topic_id, RestoreState.FINISHED)
            assert app.plan(newest=True, **request).point == app.newest_covered


def test_a_request_without_anything_is_a_dry_full_restore() -> None:
    assert RestoreRequest().mode is RestoreMode.STATE
