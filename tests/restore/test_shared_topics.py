"""Two applications that read one topic, restored onto one cluster under one set of names."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.completeness.on_restores import require_complete
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import InputsAt, StoredRestore
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.restore.context import RunContext
from kstreams_assets.restore.group_offsets import commit_group_offsets
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.planner import plan_restore
from kstreams_assets.restore.records import restore_records
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from spark_resources.resource import SparkSessionResource
from tests.restore.after_commit import now_ms, write
from tests.streams.cluster import connection_to, unique_name
from tests.streams.workbench import Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_DELETED = 5
"""Records of the shared topic that retention had deleted: offsets on the target are others."""
_BILLING, _SHIPPING, _LATER = 12, 15, 25


@dataclass
class Shared:
    """`billing` and `shipping` read `orders`; a second point of `shipping` has read further than
    the one point of `billing`."""

    billing: Workbench
    shipping: Workbench
    orders: str
    prefix: str

    def prepare(self) -> None:
        """Write, commit, take points, back up."""
        cluster = self.billing.cluster
        self.shipping.roles[self.orders] = TopicRoles({TopicRole.INPUT})
        for bench in (self.billing, self.shipping):
            bench.roles[bench.topic("out", role=TopicRole.OUTPUT)] = TopicRoles({TopicRole.OUTPUT})
        write(cluster, self.orders, [now_ms()] * 20)
        self.billing.delete_records(self.orders, _DELETED)
        self._commit(self.billing, _BILLING)
        self._commit(self.shipping, _SHIPPING)
        for bench in (self.billing, self.shipping):
            bench.back_up(bench.close_window())
        write(cluster, self.orders, [now_ms()] * 10)
        self._commit(self.shipping, _LATER)
        self.shipping.back_up(self.shipping.close_window())

    def points(self, bench: Workbench) -> list[RecoveryPoint]:
        """Those that are covered by backups."""
        wanted = {window.end_ms - 1 for window in bench.windows}
        return [point for point in bench.points() if point.taken_at_ms in wanted]

    def settings(self, bench: Workbench) -> ApplicationSettings:
        """An application as it is configured."""
        return ApplicationSettings(
            application=bench.application,
            topics=bench.application.topics,
            connection=bench.cluster.connection,
            warehouse=bench.warehouse,
            windows=WindowSchedule.every("day", start="2026-11-01"),
        )

    def plan(
        self,
        bench: Workbench,
        *,
        point: int = 0,
        exclude: bool = False,
        inputs_are_at: InputsAt | None = None,
    ) -> RestorePlan:
        """A restore of one application, beside the source under the names of both."""
        request = RestoreRequest(
            point_id=self.points(bench)[point].id,
            application_id=f"{self.prefix}{bench.application_id}",
            prefix=self.prefix,
            exclude=(self.orders,) if exclude else (),
            inputs_are_at=inputs_are_at,
            accept=Restorability.AT_LEAST_ONCE,  # nothing in these logs shows exactly-once
        )
        return plan_restore(self.settings(bench), request, bench.cluster.connection)

    def run(self, bench: Workbench, plan: RestorePlan) -> StoredRestore:
        """Restore up to the verification."""
        assert [str(blocker) for blocker in plan.blockers] == []
        result = restore_records(
            RunContext(
                self.settings(bench), bench.cluster.connection, bench.spark, unique_name("run")
            ),
            plan,
            log=lambda _line: None,
        )
        assert result.problems == ()
        return result.restore

    def commit(self, bench: Workbench, restore: StoredRestore) -> dict[str, int]:
        """Commit; the group's offsets by topic."""
        done = commit_group_offsets(
            self.settings(bench), restore, bench.cluster.connection, gate=require_complete
        )
        offsets = bench.cluster.group_offsets(done.group)
        assert {(id_.topic, found.metadata) for id_, found in offsets.items()} == {
            (self.target, f"metadata of {bench.application_id}")
        }
        return {id_.topic: found.offset for id_, found in offsets.items()}

    @property
    def target(self) -> str:
        """The shared topic on the target."""
        return self.prefix + self.orders

    def _commit(self, bench: Workbench, offset: int) -> None:
        committed = CommittedOffset(offset, f"metadata of {bench.application_id}")
        id_ = TopicPartitionId(self.orders, 0)
        bench.cluster.commit_group_offsets(bench.application_id, {id_: committed})


@pytest.fixture(scope="module")
def shared(
    kafka_cluster: LocalCluster,
    spark: SparkSessionResource,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shared]:
    """Both, backed up; `billing` is restored already."""
    connection = connection_to(kafka_cluster.bootstrap_servers)
    with KafkaCluster(connection) as cluster:
        warehouse = Warehouse(tmp_path_factory.mktemp("warehouse"))
        billing, shipping = (
            Workbench(cluster, warehouse, spark, unique_name(name))
            for name in ("billing", "shipping")
        )
        made = Shared(billing, shipping, billing.topic("orders"), f"{unique_name('dr')}.")
        made.prepare()
        restore = made.run(billing, made.plan(billing))
        assert made.commit(billing, restore) == {made.target: _BILLING - _DELETED}
        yield made


def test_the_second_is_refused_and_told_what_to_do(shared: Shared) -> None:
    (blocker,) = shared.plan(shared.shipping).blockers
    assert f"of application {shared.billing.application_id} (committed)" in blocker.found
    assert f"--exclude {shared.orders} --inputs-are-at mapped" in blocker.action


def test_excluded_without_a_word_it_is_refused(shared: Shared) -> None:
    (blocker,) = shared.plan(shared.shipping, exclude=True).blockers
    assert blocker.subject == f"topic {shared.orders}"
    assert "auto.offset.reset" in blocker.found


def test_mapped_behind_what_the_first_brought_back(shared: Shared) -> None:
    """It would read again what it had read, once the producers send it again."""
    plan = shared.plan(shared.shipping, point=1, exclude=True, inputs_are_at=InputsAt.MAPPED)
    (blocker,) = plan.blockers
    assert f"committed offset {_LATER}" in blocker.found
    assert f"restored {_DELETED} to 20" in blocker.found


def test_mapped_it_goes_on_at_the_same_record(shared: Shared) -> None:
    plan = shared.plan(shared.shipping, exclude=True, inputs_are_at=InputsAt.MAPPED)
    assert [topic.source for topic in plan.topics] != [shared.orders]
    restore = shared.run(shared.shipping, plan)
    assert shared.commit(shared.shipping, restore) == {shared.target: _SHIPPING - _DELETED}
    ends = shared.shipping.cluster.high_watermarks([TopicPartitionId(shared.target, 0)])
    assert set(ends.values()) == {20 - _DELETED}
    assert shared.commit(shared.shipping, restore) == {shared.target: _SHIPPING - _DELETED}


def test_latest_it_goes_on_at_the_end_and_is_not_called_exact(shared: Shared) -> None:
    plan = shared.plan(shared.shipping, point=1, exclude=True, inputs_are_at=InputsAt.LATEST)
    assert plan.restorability is Restorability.UNPROVEN
    assert any("Its existing records are never read" in note for note in plan.notes)
    restore = shared.run(shared.shipping, plan)
    # what comes before the commit is read
    write(shared.shipping.cluster, shared.target, [now_ms()])
    assert shared.commit(shared.shipping, restore) == {shared.target: 20 - _DELETED}
