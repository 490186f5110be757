"""Plans and results of a restore of the application `shop`, made by hand."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.checks import Finding
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.restores import (
    PartitionProduced,
    RestoreMode,
    RestoreState,
    StoredRestore,
    StoredTopic,
)
from kstreams_assets.offsets import OffsetRange, OffsetRun, TopicPartitionId
from kstreams_assets.restore.plan import PartitionPlan, RestorePlan, SnapshotSource, TopicPlan
from kstreams_assets.restore.request import ChangelogSource, RestoreRequest
from kstreams_assets.restore.result import RestoredRecords
from kstreams_assets.settings import ApplicationSettings, RestoreSettings, WindowSchedule
from spark_resources.partition_records import Difference, PartitionVerified
from tests.backup.samples import application, point

TARGET = "target:1"
ORDERS, TOTALS, BETWEEN = "orders", "shop-totals-changelog", "shop-by-customer-repartition"
TOPICS = (
    AppTopic(ORDERS, TopicRoles({TopicRole.INPUT})),
    AppTopic(BETWEEN, TopicRoles({TopicRole.REPARTITION})),
    AppTopic(TOTALS, TopicRoles({TopicRole.CHANGELOG})),
)
RECORDS = {ORDERS: 90, TOTALS: 9, BETWEEN: 1}


def settings(folder: Path, *, target: str | None = TARGET) -> ApplicationSettings:
    """The application; `shop-by-customer-repartition` is not among its backups."""
    return ApplicationSettings(
        application=application(*TOPICS),
        topics=(TOPICS[0], TOPICS[2]),
        connection=KafkaConnection(bootstrap_servers="source:1"),
        warehouse=Warehouse(folder),
        windows=WindowSchedule.every("hour", start="2026-10-20"),
        restore=RestoreSettings(
            target=None if target is None else KafkaConnection(bootstrap_servers=target)
        ),
    )


def topic_plan(topic: AppTopic) -> TopicPlan:
    """One partition; the input's committed offset is 80, source offsets begin at 10."""
    name, records = topic.name, RECORDS[topic.name]
    partition = PartitionPlan(
        source=TopicPartitionId(name, 0),
        target=TopicPartitionId(f"new-{name}", 0),
        topic_id="life-1",
        ranges=(OffsetRange(10, 10 + records),),
        files=(),
        records=records,
        bytes=100 * records,
        saved_records=1,
        committed=GroupOffset(name, 0, 80, "AgAB") if name == ORDERS else None,
    )
    return TopicPlan(
        source=name,
        target=f"new-{name}",
        roles=topic.roles,
        partitions=(partition,),
        replication_factor=1,
        target_topic_id=None,
    )


def from_snapshot(topic: TopicPlan) -> TopicPlan:
    """The same written from a snapshot of 9 records, whose raw log has 40."""
    source = SnapshotSource("totals", "w-7", raw_records=40, raw_bytes=4_100)
    return replace(topic, snapshot=source)


def plan(
    request: RestoreRequest,
    *blockers: Finding,
    topics: Sequence[AppTopic] = TOPICS,
    target: str = TARGET,
) -> RestorePlan:
    """A plan of these topics; the changelog is written from where the request says."""
    planned = [topic_plan(topic) for topic in topics]
    if request.changelog_source is ChangelogSource.SNAPSHOT:
        planned = [from_snapshot(t) if t.source == TOTALS else t for t in planned]
    return RestorePlan(
        restore_id="point-1-0123abcd",
        application_id="shop",
        group="shop",
        target_cluster_id="target-cluster",
        target_bootstrap_servers=target,
        request=request,
        point=point(1_760_000_000_000, point_id="point-1"),
        restorability=Restorability.EXACT,
        topics=tuple(planned),
        blockers=blockers,
    )


def stored(planned: RestorePlan, state: RestoreState, *, run_id: str = "run-1") -> StoredRestore:
    """The restore in a state."""
    return StoredRestore(
        application_id=planned.application_id,
        restore_id=planned.restore_id,
        state=state,
        changed_at_ms=1_760_000_100_000,
        created_at_ms=1_760_000_090_000,
        run_id=run_id,
        point_id="point-1",
        group=planned.group,
        target_cluster_id=planned.target_cluster_id,
        target_bootstrap_servers=planned.target_bootstrap_servers,
        mode=RestoreMode(planned.request.mode),
        request=json.dumps(planned.request.model_dump(mode="json")),
        topics=tuple(
            StoredTopic(
                source=topic.source,
                target=topic.target,
                target_topic_id="id",
                base_offsets=(0,),
                records=topic.records,
                roles=tuple(sorted(role.value for role in topic.roles)),
            )
            for topic in planned.topics
        ),
        to_commit=(GroupOffset(f"new-{ORDERS}", 0, 70, "AgAB"),),
    )


def produced(topic: TopicPlan) -> PartitionProduced:
    """All records of the one partition, from target offset 0 on; 5 were there already."""
    (partition,) = topic.partitions
    runs = (OffsetRun(partition.ranges[0].start, 0, topic.records),)
    return PartitionProduced(
        partition.source, partition.target, runs, topic.records, resumed=5, end=topic.records
    )


def result(
    planned: RestorePlan,
    *differences: Difference,
    state: RestoreState = RestoreState.VERIFIED,
    run_id: str = "run-1",
) -> RestoredRecords:
    """A restore that ran to its end; with differences it has failed its verification."""
    if differences:
        state = RestoreState.FAILED_VERIFICATION
    verified = tuple(
        PartitionVerified(
            target=topic.partitions[0].target,
            records=topic.records,
            compared=topic.records,
            differing=sum(d.target.topic == topic.target for d in differences),
            differences=tuple(d for d in differences if d.target.topic == topic.target),
        )
        for topic in planned.topics
    )
    return RestoredRecords(
        restore=stored(planned, state, run_id=run_id),
        produced=tuple(produced(topic) for topic in planned.topics),
        verified=verified,
        problems=differences,
        took_s={"topics": 0.5, "produce": 2.0, "verify": 1.0},
    )
