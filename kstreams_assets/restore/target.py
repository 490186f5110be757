"""The target cluster of a restore: its identity, its contents, and the restore's own topics."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final, TypeVar

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.app.names import name_problem
from kstreams_assets.checks import Finding
from kstreams_assets.errors import (
    AuthorizationFailedError,
    ConfigurationError,
    KStreamsAssetsError,
    UnstableGroupOffsetsError,
)
from kstreams_assets.kafka.admin import TopicDescription, TopicSpec
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.groups import GroupState, group_in_use
from kstreams_assets.local.target import local_target, local_targets
from kstreams_assets.model.restores import StoredRestore, StoredTopic
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId, offsets_of_topic
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.command_sources import targets_meant
from kstreams_assets.restore.plan import TopicPlan
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.settings import LOCAL, ApplicationSettings


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """An existing topic of the target; `starts` and `ends` (high watermarks) are by partition."""

    name: str
    topic_id: str
    replication_factor: int
    explicit_configs: Mapping[str, str]
    effective_configs: Mapping[str, str]
    operations: frozenset[str]
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.ends)

    @property
    def holds_records(self) -> bool:
        """Whether a partition's log has any offset."""
        return self.starts != self.ends


@dataclass(frozen=True, slots=True)
class TargetState:
    """The present state of the target cluster.

    `group` is None if it does not exist. `unseen` are existing topics that this user may not
    inspect; `problems` describe them and the group.
    """

    cluster_id: str
    bootstrap_servers: str
    brokers: int
    topics: Mapping[str, TargetTopic] = field(default_factory=dict)
    group: GroupState | None = None
    group_operations: frozenset[str] | None = None
    """None if they were not reported."""
    group_offsets: Mapping[TopicPartitionId, CommittedOffset] = field(default_factory=dict)
    unseen: frozenset[str] = frozenset()
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """The brokers' defaults of configs that affect records, as far as they are reported."""
    problems: tuple[Finding, ...] = ()


T = TypeVar("T")


def inspect_target(cluster: KafkaCluster, names: Iterable[str], group: str) -> TargetState:
    """Return the target's present state; `names` are the relevant topics, existing or not.

    Objects that this user may not inspect become problems of the state. A topic that this user may
    not DESCRIBE looks absent.
    """
    problems: list[Finding] = []
    metadata = cluster.metadata()
    present = sorted(name for name in set(names) if name in metadata.topics)
    described = _described(cluster, present, problems)
    state = _tried(lambda: cluster.group_state(group), problems)
    operations = _tried(lambda: cluster.group_operations(group), problems)
    # A live group may have an open transaction, which would have to be waited for.
    settled = state is None or state.is_empty
    committed = _tried(lambda: cluster.group_offsets(group), problems) if settled else None
    return TargetState(
        cluster_id=metadata.cluster_id,
        bootstrap_servers=cluster.connection.bootstrap_servers,
        brokers=len(cluster.broker_ids()),
        topics=_topics(cluster, described),
        group=state,
        group_operations=operations,
        group_offsets=committed or {},
        unseen=frozenset(present) - described.keys(),
        topic_defaults=cluster.topic_defaults(),
        problems=tuple(dict.fromkeys(problems)),
    )


def refused_topics(
    cluster: KafkaCluster, state: TargetState, topics: Iterable[TopicPlan]
) -> list[Finding]:
    """Return the brokers' objections to topics that are to be created; they create none."""
    specs = [
        TopicSpec(topic.target, len(topic.partitions), topic.replication_factor, topic.configs)
        for topic in topics
        if not topic.exists
        and topic.target not in state.unseen
        and name_problem(topic.target) is None
    ]
    found = cluster.validate_topics(specs)
    return [
        Finding(f"topic {name}", f"It cannot be created: {error.problem}", action=error.remedy)
        for name, error in sorted(found.items())
    ]


def _described(
    cluster: KafkaCluster, names: Sequence[str], problems: list[Finding]
) -> dict[str, TopicDescription]:
    """Return the topics that this user may inspect, with one request if it may inspect all."""
    found: list[Finding] = []
    together = _tried(lambda: cluster.describe_topics(names), found)
    if together is not None or len(names) == 1:
        problems += found
        return dict(together or {})
    described: dict[str, TopicDescription] = {}
    for name in names:
        described |= _described(cluster, [name], problems)
    return described


def _tried(ask: Callable[[], T], problems: list[Finding]) -> T | None:
    try:
        return ask()
    except AuthorizationFailedError as error:
        problems.append(_problem(error, error.resource))
    except UnstableGroupOffsetsError as error:
        problems.append(_problem(error, f"group {error.group}"))
    return None


def _problem(error: KStreamsAssetsError, subject: str) -> Finding:
    return Finding(subject, error.problem, action=error.remedy)


def _topics(
    cluster: KafkaCluster, described: Mapping[str, TopicDescription]
) -> dict[str, TargetTopic]:
    partitions = [
        TopicPartitionId(name, number)
        for name, topic in described.items()
        for number in range(topic.partitions)
    ]
    starts = cluster.log_start_offsets(partitions) if partitions else {}
    ends = cluster.high_watermarks(partitions) if partitions else {}
    return {
        name: TargetTopic(
            name=name,
            topic_id=topic.topic_id,
            replication_factor=topic.replication_factor,
            explicit_configs=topic.explicit_configs,
            effective_configs=topic.effective_configs,
            operations=topic.authorized_operations,
            starts=offsets_of_topic(starts, name),
            ends=offsets_of_topic(ends, name),
        )
        for name, topic in described.items()
    }


def require_own_target(
    settings: ApplicationSettings, restore: StoredRestore, target: KafkaCluster
) -> None:
    """Raise for a restore of another application, and for a cluster other than its target.

    Raises:
        ConfigurationError: The restore is of another application than the settings.
        KStreamsAssetsError: The cluster has another id than the restore's target.
    """
    if settings.application_id != restore.application_id:
        raise ConfigurationError(
            f"Restore {restore.restore_id} belongs to application {restore.application_id}, not to"
            f" {settings.application_id}.",
            remedy="Give the YAML of that application, or the id of another restore.",
        )
    require_same_cluster(restore, target)


def require_same_cluster(restore: StoredRestore, target: KafkaCluster) -> None:
    """Raise KStreamsAssetsError for a cluster other than the restore's target."""
    found = target.cluster_id()
    if found != restore.target_cluster_id:
        subject = f"cluster {target.connection.bootstrap_servers}"
        raise target_changed(subject, expected=restore.target_cluster_id, found=found)


def target_changed(subject: str, *, expected: str, found: str | None) -> KStreamsAssetsError:
    """Return the error for a cluster or topic that is not the one of the restore any more."""
    return KStreamsAssetsError(
        f"The {subject} is not the one of the restore: its id is"
        f" {found or 'unknown, it is absent'}, not {expected}.",
        remedy="It was deleted or recreated since. Run the restore again.",
    )


def require_empty_group(group: str, target: KafkaCluster, *, operation: str) -> None:
    """Raise KafkaError for a group that has members."""
    state = target.group_state(group)
    if state is not None and not state.is_empty:
        raise group_in_use(group, state, operation)


def roles_of(topic: StoredTopic) -> TopicRoles:
    """Return the roles of a restored topic."""
    return TopicRoles(TopicRole(role) for role in topic.roles)


def partitions_of(topic: StoredTopic) -> list[TopicPartitionId]:
    """Return every partition of a restored topic on the target."""
    return [TopicPartitionId(topic.target, number) for number in range(len(topic.base_offsets))]


_CLUSTER_ID: Final = "cluster.id"


def target_connection(settings: ApplicationSettings, target: str | None) -> KafkaConnection:
    """Return the target cluster, by declared name or host:port; None means the default.

    Undeclared servers are reached with the settings of the default target. Without one they are
    reached in PLAINTEXT: the source's secrets are not sent to another cluster.

    Raises:
        ConfigurationError: The cluster is ambiguous, `target` is not host:port, or the credentials
            of the default target may not be sent there (`KafkaConnection.at`).
    """
    declared = settings.declared_targets
    meant = targets_meant(settings, target)
    if not meant:
        meant = [declared[settings.default_target]] if settings.default_target else []
        if target is None:
            raise _no_target(settings)
        if ":" not in target:
            raise ConfigurationError(
                f"Target {target!r} is not host:port, and no target of this name is declared.",
                remedy=f"Declared are {', '.join((*declared, LOCAL))}.",
            )
    connection = next((one.connection for one in meant), None)
    if target is None or target in declared:
        if connection is None:
            raise ConfigurationError(
                f"Target {target or settings.default_target!r} is a throwaway cluster, which has no"
                " address while it is not running.",
                remedy=f"Give {LOCAL}:NAME to restore into it, or host:port.",
            )
        return connection
    return (
        KafkaConnection(bootstrap_servers=target) if connection is None else connection.at(target)
    )


def _no_target(settings: ApplicationSettings) -> ConfigurationError:
    names = ", ".join(settings.declared_targets)
    return ConfigurationError(
        f"No target cluster is given for the restore of {settings.application_id}.",
        remedy=(
            f"Choose one of targets ({names}), or set restore.target to its name."
            if names
            else f"Declare it under targets in the YAML, or give target: host:port, or {LOCAL}."
        ),
    )


@contextmanager
def open_target(
    settings: ApplicationSettings, request: RestoreRequest
) -> Iterator[KafkaConnection]:
    """Yield the target of a request; a local cluster is stopped at the end of the block.

    Raises ConfigurationError, and for a local cluster what `local_target` raises, and
    WarehouseError without a backup: its folder would look like the start of one.
    """
    name = request.local_name
    wait_s = settings.restore.lock_wait_seconds
    if name is not None:
        Repository.open(settings).require_backup()
    with (
        nullcontext(target_connection(settings, request.target))
        if name is None
        else local_target(settings, name, wait_s=wait_s)
    ) as connection:
        yield connection


@contextmanager
def open_stored_target(
    settings: ApplicationSettings, restore: StoredRestore, target: str | None = None
) -> Iterator[KafkaConnection]:
    """Yield the cluster that a restore wrote to; `target` if it has other addresses now.

    Raises ConfigurationError, and for a local cluster what `local_target` raises.
    """
    name = local_name_of(settings, restore)
    servers = target or restore.target_bootstrap_servers
    wait_s = settings.restore.lock_wait_seconds
    with (
        nullcontext(target_connection(settings, servers))
        if name is None or target is not None
        else local_target(settings, name, wait_s=wait_s)
    ) as connection:
        yield connection


def local_name_of(settings: ApplicationSettings, restore: StoredRestore) -> str | None:
    """Return the name of a restore's local cluster, None for another cluster."""
    for found in local_targets(settings):
        cluster_id = (found.directory / _CLUSTER_ID).read_text(encoding="utf-8").strip()
        if cluster_id == restore.target_cluster_id:
            return found.name
    return None
