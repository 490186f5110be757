"""Applications, recovery points and targets made by hand, for plans."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kstreams_assets.app.model import AppTopic, StreamsApplication, TopicRole, TopicRoles
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import Guarantee, Method, PartitionCut, RecoveryPoint
from kstreams_assets.model.restorability import PointStatus, Restorability
from kstreams_assets.model.restores import RestoreState, StoredRestore, StoredTopic
from kstreams_assets.model.spans import NotedFacts, TopicFacts
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.repository.contents import PartitionContents
from kstreams_assets.restore.preconditions import Facts
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.restore.selection import roles_at, select
from kstreams_assets.restore.target import TargetState, TargetTopic
from kstreams_assets.restore.target_topics import target_names

INPUT, GLOBAL = TopicRole.INPUT, TopicRole.GLOBAL
CHANGELOG, REPARTITION, OUTPUT = TopicRole.CHANGELOG, TopicRole.REPARTITION, TopicRole.OUTPUT
SOURCE_CLUSTER, TARGET_CLUSTER = "source-cluster", "target-cluster"

ROLES: Mapping[str, TopicRoles] = {
    "orders": TopicRoles({INPUT}),
    "rates": TopicRoles({GLOBAL}),
    "names": TopicRoles({INPUT, CHANGELOG}),
    "between": TopicRoles({INPUT, OUTPUT}),
    "totals": TopicRoles({OUTPUT}),
    "shop-sums-changelog": TopicRoles({CHANGELOG}),
    "shop-sums-repartition": TopicRoles({REPARTITION}),
}
"""Of an application `shop` with a topic of every kind, in one partition each."""

INTERNAL = {"shop-sums-changelog", "shop-sums-repartition"}
COMMITTED = {"orders": 60, "names": 100, "between": 70, "shop-sums-repartition": 80}
RIGHTS = frozenset({"READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"})


def application(roles: Mapping[str, TopicRoles] = ROLES) -> StreamsApplication:
    """The application of these topics."""
    topics = tuple(AppTopic(name, of_topic) for name, of_topic in sorted(roles.items()))
    return StreamsApplication("shop", topics)


def point(
    *,
    excluded: Mapping[str, Sequence[OffsetRange]] = {},
    committed: Mapping[str, int] = COMMITTED,
    topics: Iterable[str] = ROLES,
    absent: Sequence[str] = (),
) -> RecoveryPoint:
    """A point whose logs go from 10 to 100."""
    return RecoveryPoint(
        id="20261121T100000.000Z-aaaaaa",
        application_id="shop",
        cluster_id=SOURCE_CLUSTER,
        taken_at_ms=1_000_000,
        method=Method.TRANSACTIONS,
        guarantee=Guarantee.EXACT,
        reason="",
        took_ms=1,
        partitions=tuple(
            PartitionCut(
                topic, 0, f"{topic}-id", 10, 100, ROLES[topic], tuple(excluded.get(topic, ()))
            )
            for topic in topics
        ),
        group_offsets=tuple(
            GroupOffset(topic, 0, offset, f"metadata of {topic}")
            for topic, offset in committed.items()
        ),
        absent_topics=tuple(absent),
    )


def status(restorability: Restorability = Restorability.EXACT) -> PointStatus:
    """What the point gives."""
    taken = point()
    return PointStatus(
        taken.id,
        taken.taken_at_ms,
        taken.method,
        taken.guarantee,
        True,
        True,
        restorability,
        "Because.",
    )


def there(name: str, **changes: Any) -> TargetTopic:
    """An empty topic on the target, in one partition, that this user may do everything with."""
    facts: dict[str, Any] = {
        "topic_id": f"{name}-there",
        "replication_factor": 1,
        "explicit_configs": {},
        "effective_configs": {
            "max.message.bytes": "1048588",
            "message.timestamp.type": "CreateTime",
            "min.insync.replicas": "1",
        },
        "operations": RIGHTS,
        "starts": (0,),
        "ends": (0,),
    }
    return TargetTopic(name, **facts | changes)


def target(*topics: TargetTopic, **changes: Any) -> TargetState:
    """A target cluster of one broker with these topics and no group."""
    facts: dict[str, Any] = {
        "brokers": 1,
        "group_operations": frozenset({"READ", "DESCRIBE"}),
    }
    by_name = {topic.name: topic for topic in topics}
    return TargetState(TARGET_CLUSTER, "there:9092", topics=by_name, **facts | changes)


def findings(request: RestoreRequest | None = None, **changes: Any) -> Facts:
    """What a plan for the point is made from; each partition holds 5 records of 50 bytes."""
    asked = request or RestoreRequest()
    taken = changes.pop("taken", None) or point()
    names = target_names("shop", roles_at(application(), taken), INTERNAL, asked)
    selection = select(application(), set(ROLES), taken, asked, names.excluded)
    facts: dict[str, Any] = {
        "names": names,
        "target": target(),
        "point": taken,
        "status": status(),
        "selection": selection,
        "holdings": {
            partition.cut.id: PartitionContents(
                records=5, bytes=50, windows=frozenset({"w1", "w2"})
            )
            for topic in selection.topics
            for partition in topic.partitions
        },
        "facts": {
            topic.source: noted(topic.source, {"retention.ms": "1000"})
            for topic in selection.topics
        },
    }
    return Facts("shop", asked, **facts | changes)


def noted(
    topic: str, configs: Mapping[str, str], *, later: bool = False, replicas: int = 1
) -> NotedFacts:
    """What a backup noted of a topic."""
    return NotedFacts(TopicFacts(f"{topic}-id", 1, replicas, tuple(configs.items())), later)


def stored(*topics: StoredTopic, **changes: Any) -> StoredRestore:
    """A restore that was begun."""
    facts: dict[str, Any] = {
        "application_id": "shop",
        "restore_id": "begun",
        "state": RestoreState.PLANNED,
        "changed_at_ms": 1,
        "created_at_ms": 1,
        "run_id": "run",
        "point_id": point().id,
        "group": "shop",
        "target_cluster_id": TARGET_CLUSTER,
        "target_bootstrap_servers": "there:9092",
        "mode": RestoreRequest().mode,
        "request": "{}",
        "topics": topics,
    }
    return StoredRestore(**facts | changes)


def stored_topic(name: str, **changes: Any) -> StoredTopic:
    """One topic of it, which went on from offset 0."""
    facts: dict[str, Any] = {
        "target_topic_id": f"{name}-there",
        "base_offsets": (0,),
        "records": 5,
        "put_back": {"retention.ms": "77"},
    }
    return StoredTopic(name, name, **facts | changes)


def partition_of(topic: str) -> TopicPartitionId:
    """The one partition of a topic."""
    return TopicPartitionId(topic, 0)
