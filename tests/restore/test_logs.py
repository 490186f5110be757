"""Restores in mode `logs` on a real broker: inputs and outputs return, the group stays as it is."""

from collections.abc import Iterator

import pytest

from kstreams_assets.completeness.on_restores import evaluate_restore, require_complete
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.restores import RestoreMode, RestoreState
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.restore.finish import finish
from kstreams_assets.restore.job import RestoreJob, RunContext
from kstreams_assets.restore.watch import follow
from spark_resources.resource import SparkSessionResource
from tests.restore.control import read
from tests.restore.planned_application import PlannedApplication, planned_application
from tests.streams.cluster import connection_to, unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def app(
    kafka_cluster: LocalCluster,
    spark: SparkSessionResource,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[PlannedApplication]:
    """An application that is backed up; it is restored beside itself."""
    connection = connection_to(kafka_cluster.bootstrap_servers)
    with planned_application(connection, spark, tmp_path_factory.mktemp("warehouse")) as made:
        yield made


def test_inputs_and_outputs_come_back_and_the_group_keeps_its_offsets(
    app: PlannedApplication,
) -> None:
    cluster, copy = app.bench.cluster, unique_name("copy")
    elsewhere = TopicPartitionId(app.names["rates"], 0)
    cluster.commit_group_offsets(copy, {elsewhere: CommittedOffset(1, "of another reader")})
    plan = app.plan(
        mode=RestoreMode.LOGS, newest=True, application_id=copy, prefix=f"{copy}.", accept=None
    )
    assert plan.blockers == ()
    job = RestoreJob(evaluate_restore, require_complete)
    context = RunContext(app.settings, app.target, app.bench.spark, unique_name("run"))
    result = job.run(context, plan, lambda _progress: None)

    restore = result.committed
    assert restore is not None
    assert (restore.state, restore.committed) == (RestoreState.COMMITTED, ())
    logs = ["orders", "rates", "totals"]
    sources, targets = [app.names[n] for n in logs], [f"{copy}.{app.names[n]}" for n in logs]
    assert [topic.target for topic in restore.topics] == sorted(targets)
    written, restored = read(app.target, sources), read(app.target, targets)
    for source, target in zip(sources, targets, strict=True):
        expected = written[source]
        if source == app.names["orders"]:
            expected = expected[:-1]  # produced after the newest covered point
        assert [(r.key, r.value) for r in restored[target]] == [(r.key, r.value) for r in expected]
    assert cluster.group_offsets(copy) == {elsewhere: CommittedOffset(1, "of another reader")}

    with pytest.raises(KStreamsAssetsError, match="has mode logs: it commits no group offsets"):
        next(follow(app.settings, restore, cluster))
    done = finish(app.settings, restore, cluster)
    assert (done.restore.state, done.assessment) == (RestoreState.FINISHED, None)
    assert done.put_back.keys() == set(targets)
