"""Plans on real brokers: what is planned, all that is refused, and that nothing is written."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AclOperation,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import RestoreMode, RestoreState, StoredRestore, StoredTopic
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.plan import PartitionPlan, RestorePlan, TopicPlan
from kstreams_assets.restore.request import InputsExtent
from spark_resources.resource import SparkSessionResource
from tests.backup.acls import Acls
from tests.kafka.transacting import await_assignment
from tests.restore.planned_application import PlannedApplication, give, planned_application
from tests.streams.cluster import connection_to, unique_name
from tests.streams.guarded import connection_of

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture(scope="module")
def app(
    kafka_cluster: LocalCluster,
    guarded_cluster: LocalCluster,
    spark: SparkSessionResource,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[PlannedApplication]:
    """The application, backed up."""
    source = connection_to(kafka_cluster.bootstrap_servers)
    target = connection_to(guarded_cluster.internal_bootstrap_servers)
    folder = tmp_path_factory.mktemp("warehouse")
    with planned_application(source, spark, folder, target=target) as made:
        yield made


def _topic(app: PlannedApplication, plan: RestorePlan, name: str) -> TopicPlan:
    return next(topic for topic in plan.topics if topic.source == app.names[name])


def _partition(app: PlannedApplication, plan: RestorePlan, name: str) -> PartitionPlan:
    return _topic(app, plan, name).partitions[0]


class TestPlanned:
    def test_the_state_as_of_a_time(self, app: PlannedApplication) -> None:
        plan = app.plan()
        assert plan.blockers == ()
        assert plan.point == app.points[0]
        assert (plan.restorability, plan.group) == (
            Restorability.AT_LEAST_ONCE,
            app.bench.application_id,
        )
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
        assert plan.blockers == ()
        orders = _topic(app, plan, "orders")
        assert (orders.records, orders.windows) == (28, 2)
        assert _topic(app, plan, "repartition").records == 0

    def test_the_newest_that_is_covered(self, app: PlannedApplication) -> None:
        plan = app.plan(newest=True, accept_replaced_timestamps=True)
        assert plan.blockers == ()
        assert plan.point == app.newest_covered
        assert any("1 newer point(s) cannot be restored" in note for note in plan.notes)

    def test_the_tail_of_the_inputs(self, app: PlannedApplication) -> None:
        plan = app.plan(inputs=InputsExtent.TAIL)
        assert plan.blockers == ()
        assert _partition(app, plan, "orders").ranges == (OffsetRange(12, 20),)
        assert (_topic(app, plan, "orders").records, _topic(app, plan, "rates").records) == (8, 3)

    def test_a_rebuild_takes_the_inputs_and_makes_the_outputs(
        self, app: PlannedApplication
    ) -> None:
        plan = app.plan(mode=RestoreMode.REBUILD)
        assert plan.blockers == ()
        found = {topic.source: topic.records for topic in plan.topics}
        names = app.names
        assert found == {names["orders"]: 20, names["rates"]: 3, names["totals"]: 0}
        committed = _partition(app, plan, "orders").committed
        assert committed is not None
        assert (committed.offset, committed.metadata) == (0, "")

    def test_another_application_id_on_the_source_cluster(self, app: PlannedApplication) -> None:
        source, other = app.bench.cluster.connection, unique_name("other")
        plan = app.plan(target=source, application_id=other, prefix=f"{other}.")
        assert plan.blockers == ()
        assert _topic(app, plan, "changelog").target == f"{other}-sums-changelog"
        assert _topic(app, plan, "orders").target == f"{other}.{app.names['orders']}"


class TestRefused:
    def test_the_source_cluster_itself(self, app: PlannedApplication) -> None:
        listed = app.blockers(target=app.bench.cluster.connection)
        assert any("It is the source cluster" in text for text in listed)
        assert sum("It is not empty" in text for text in listed) == 5

    def test_a_topic_with_records(self, app: PlannedApplication) -> None:
        with app.existing("totals", records=3) as name:
            (text,) = app.blockers()
        assert text.startswith(f"topic {name}: It is not empty on the target: its logs hold 3")

    @pytest.mark.parametrize(("limit", "refused"), [(50_000, True), (61_000, False)])
    def test_records_that_are_too_large(
        self, app: PlannedApplication, limit: int, refused: bool
    ) -> None:
        with app.existing("orders", configs={"max.message.bytes": str(limit)}):
            listed = app.blockers()
        assert len(listed) == refused
        assert all("largest record to restore takes 600" in text for text in listed)

    def test_everything_is_listed_together(self, app: PlannedApplication) -> None:
        configs = {"message.timestamp.type": "LogAppendTime"}
        with app.existing("orders", configs=configs, records=1, partitions=1):
            listed = app.blockers(point_id=app.points[1].id, replication_factor=9)
        assert len(listed) == 4

    def test_without_a_point_what_is_on_the_target_is_listed_too(
        self, app: PlannedApplication
    ) -> None:
        with app.existing("orders", records=1) as name:
            listed = app.blockers(as_of_ms=1)
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
                (text,) = app.blockers()
            finally:
                consumer.close()
            assert f"group {group}: It is in use on the target (classic group" in text
            assert app.blockers() == []


class TestRights:
    def test_each_missing_one_is_named_and_with_all_of_them_it_is_planned(
        self, app: PlannedApplication, guarded_cluster: LocalCluster
    ) -> None:
        bob, group = connection_of(guarded_cluster, "bob"), app.bench.application_id
        acls = Acls(guarded_cluster.internal_bootstrap_servers)
        with app.existing("orders") as orders:
            text = "\n".join(app.blockers(target=bob))
            assert f"Not allowed: group_state on group {group}" in text
            changelog = app.names["changelog"]
            assert f"topic {changelog}: It cannot be created: Not allowed" in text
            give(acls, ResourceType.TOPIC, orders, AclOperation.DESCRIBE)
            acls.allow(ResourceType.GROUP, group, AclOperation.DESCRIBE)
            acls.allow(ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE)
            text = "\n".join(app.blockers(target=bob))
            assert f"right DESCRIBE_CONFIGS on topic {orders}" in text
            assert "It cannot be created" not in text
            assert f"no right READ on it. Give it the right READ on group {group}" in text
            acls.allow(ResourceType.GROUP, group, AclOperation.READ)
            give(acls, ResourceType.TOPIC, orders, AclOperation.DESCRIBE_CONFIGS)
            (text,) = app.blockers(target=bob)
            assert f"topic {orders}: The user of the target connection has no right" in text
            assert "READ, WRITE, ALTER_CONFIGS" in text
            rights = (AclOperation.READ, AclOperation.WRITE, AclOperation.ALTER_CONFIGS)
            give(acls, ResourceType.TOPIC, orders, *rights)
            assert app.blockers(target=bob) == []


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
        Repository(app.bench.warehouse, plan.application_id).restores.append(
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
            assert (again.restore_id, again.blockers) == (begun.restore_id, ())
            assert any(f"Restore {begun.restore_id} is unfinished" in note for note in again.notes)
            orders = _topic(app, again, "orders")
            assert (orders.exists, orders.put_back) == (True, {"retention.ms": "77"})
            other = app.plan(newest=True, inputs=InputsExtent.TAIL, **accept)
            assert other.point == app.newest_covered
            assert "(written by restore" in str(other.blockers[0])
            named = app.plan(point_id=app.points[1].id, **accept)
            assert [r.subject for r in named.blockers] == [f"topic {name}"]
        gone = app.plan(newest=True, **accept)
        assert (gone.point, gone.blockers) == (app.newest_covered, ())

    def test_a_finished_one_is_not(self, app: PlannedApplication) -> None:
        request: dict[str, Any] = {"accept_replaced_timestamps": True, "prefix": ""}
        with app.existing("orders", records=4) as name, app.on_target() as cluster:
            topic_id = cluster.describe_topics([name])[name].topic_id
            begun = app.plan(**request)
            self._begin(app, begun, topic_id, RestoreState.FINISHED)
            assert app.plan(newest=True, **request).point == app.newest_covered
