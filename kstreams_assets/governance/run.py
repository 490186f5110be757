"""Gathers facts from the cluster of an application, evaluates them, and stores the findings."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.app.model import TopicRole
from kstreams_assets.app.names import is_internal_name
from kstreams_assets.app.store_format import format_of
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.governance.evaluation import evaluate
from kstreams_assets.governance.facts import (
    BackedUpRecords,
    Declared,
    GovernanceFacts,
    PartitionState,
    StoreRows,
    TopicState,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.coordinator_log import TRANSACTION_STATE
from kstreams_assets.kafka.metadata import Replicas
from kstreams_assets.model.governance_report import GovernanceReport
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.lineage import require_lineage
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings

_LOG_TIMEOUT_S: Final = 15.0
_NEWEST_WINDOWS: Final = 24
"""Number of windows per topic for shares of tombstones and partitions."""


def gather(settings: ApplicationSettings, cluster: KafkaCluster) -> GovernanceFacts:
    """Gather the present facts.

    This requires DESCRIBE and DESCRIBE_CONFIGS on the topics, and DESCRIBE on the group.

    Raises:
        ClusterUnavailableError: No broker answered in time.
        AuthorizationFailedError: A permission is missing; the error names the topics or the group.
        UnstableGroupOffsetsError: A transaction of the application stays undecided.
    """
    application = settings.application
    names = {topic.name for topic in application.topics}
    replicas = cluster.replicas(names)
    configs = cluster.topic_configs({part.topic for part in replicas})
    topics = {name: _state(name, said, replicas) for name, said in configs.items()}
    metadata = cluster.metadata()
    reads = [
        TopicPartitionId(topic.name, number)
        for topic in application.topics
        if topic.name in topics and topic.roles & {TopicRole.INPUT, TopicRole.REPARTITION}
        for number in range(topics[topic.name].partitions)
    ]
    # Read the start before the offset, because an application deletes processed records from
    # repartition topics.
    starts = cluster.log_start_offsets(reads)
    committed = cluster.group_offsets(application.application_id)
    ends = cluster.last_stable_offsets(reads)
    log = metadata.topics.get(TRANSACTION_STATE)
    with cluster.raw_log() as reader:
        written = cluster.written_topics(
            application.application_id,
            reader,
            log_partitions=None if log is None else log.partitions,
            timeout_s=_LOG_TIMEOUT_S,
        )
    points = Repository.open(settings).points.newest()
    for newest in points[:1]:
        written = replace(written, topics=written.topics | {*newest.written_topics})
    return GovernanceFacts(
        bootstrap_servers=settings.connection.bootstrap_servers,
        cluster_id=metadata.cluster_id,
        taken_at_ms=time.time_ns() // 1_000_000,
        brokers=len(cluster.broker_ids()),
        topics=topics,
        cluster_topics=frozenset(metadata.topics),
        reads={
            part: PartitionState(
                starts[part], ends[part], committed[part].offset if part in committed else None
            )
            for part in reads
        },
        committed_topics=frozenset(part.topic for part in committed),
        written_topics=written.topics & metadata.topics.keys(),
        other_application_ids=_others(cluster, application.application_id, metadata.topics, names),
        backed_up=backed_up(settings, names),
        store_rows=store_rows(settings),
    )


def _others(
    cluster: KafkaCluster, application_id: str, there: Iterable[str], mine: Collection[str]
) -> frozenset[str]:
    """Return groups whose ids start with the application id, if such internal topics exist.

    Without such a topic no broker is asked: the list requires all brokers, and one may be down.
    """
    if not any(is_internal_name(application_id, topic) for topic in there if topic not in mine):
        return frozenset()
    return frozenset(g for g in cluster.group_ids() if g.startswith(f"{application_id}-"))


def _state(
    name: str, configs: Mapping[str, str], replicas: Mapping[TopicPartitionId, Replicas]
) -> TopicState:
    kept = {part.partition: found for part, found in replicas.items() if part.topic == name}
    return TopicState(
        name=name,
        partitions=len(kept),
        replication_factor=min(len(part.brokers) for part in kept.values()),
        in_sync=min(len(part.in_sync) for part in kept.values()),
        configs=configs,
        lagging=tuple(sorted(n for n, p in kept.items() if len(p.in_sync) < len(p.brokers))),
    )


def backed_up(
    settings: ApplicationSettings, topics: Collection[str]
) -> dict[TopicPartitionId, BackedUpRecords]:
    """Return records and tombstones of each partition in the newest windows of the ledger."""
    columns = ["window_end_ms", "topic", "partition", "records", "tombstones"]
    ledger = Repository.open(settings).ledger
    rows = ledger.span_rows(topics, columns=columns)
    windows = sorted(set(rows["window_end_ms"].to_pylist()))[-_NEWEST_WINDOWS:]
    if not windows:
        return {}
    newest: pa.Table = rows.filter(pc.field("window_end_ms") >= windows[0])
    sums = newest.group_by(["topic", "partition"]).aggregate(
        [("records", "sum"), ("tombstones", "sum")]
    )
    return {
        TopicPartitionId(row["topic"], row["partition"]): BackedUpRecords(
            row["records_sum"], row["tombstones_sum"]
        )
        for row in sums.to_pylist()
    }


def store_rows(settings: ApplicationSettings) -> dict[str, StoreRows]:
    """Return the rows of the two newest snapshots of each store."""
    rows: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for snapshot in Repository.open(settings).snapshots.of():
        rows[snapshot.store].append((snapshot.window.key, snapshot.rows))
    return {
        store: StoreRows(*found[-2], *found[-1]) for store, found in rows.items() if len(found) > 1
    }


def check_governance(
    settings: ApplicationSettings, *, run_id: str
) -> tuple[GovernanceReport, GovernanceFacts]:
    """Evaluate all checks of an application, store the report, and return it with its facts.

    Raises:
        ClusterUnavailableError: No broker answered in time; nothing was stored.
        AuthorizationFailedError: A permission is missing; the error names the resource.
        OtherClusterError: The backups are of another cluster; nothing was stored.
        KStreamsAssetsError: As for `gather`.
    """
    with KafkaCluster(settings.connection) as cluster:
        require_lineage(settings.warehouse, settings.application_id, cluster)
        facts = gather(settings, cluster)
    report = GovernanceReport(
        application_id=settings.application_id,
        run_id=run_id,
        cluster_id=facts.cluster_id,
        judged_at_ms=facts.taken_at_ms,
        evaluations=evaluate(facts, declared_of(settings)),
    )
    Repository.open(settings).findings.record(report)
    return report, facts


def declared_of(settings: ApplicationSettings) -> Declared:
    """Return the declaration in the settings of an application."""
    window = WindowCalendar(settings.windows).newest_closed()
    stores = settings.application.stores
    return Declared(
        application=settings.application,
        governance=settings.governance,
        formats={s.name: format_of(s.name, settings.store_formats) for s in stores},
        owners=settings.owners,
        objective_s=settings.recovery_points.objective_seconds,
        recovery_time_s=settings.drill.objective_seconds,
        window_ms=None if window is None else window.end_ms - window.start_ms,
        backed_up_topics=frozenset(topic.name for topic in settings.topics),
    )
