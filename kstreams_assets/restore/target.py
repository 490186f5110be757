"""The target cluster of a restore: which it is, what is on it, and what of it is its own."""

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
    """A topic that is on the target; `starts` and `ends` (high watermarks) are by partition."""

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
        """How many it has."""
        return len(self.ends)

    @property
    def holds_records(self) -> bool:
        """Whether a partition's log holds any offset."""
        return self.starts != self.ends


@dataclass(frozen=True, slots=True)
class TargetState:
    """The target cluster as it is now.

    `group` is None when there is none of that name. `unseen` are topics that are there and that
    this user may not look at; `problems` say so of them and of the group.
    """

    cluster_id: str
    bootstrap_servers: str
    brokers: int
    topics: Mapping[str, TargetTopic] = field(default_factory=dict)
    group: GroupState | None = None
    group_operations: frozenset[str] | None = None
    """None where they were not told."""
    group_offsets: Mapping[TopicPartitionId, CommittedOffset] = field(default_factory=dict)
    unseen: frozenset[str] = frozenset()
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """The brokers' defaults of configs that decide about records, as far as they are reported."""
    problems: tuple[Finding, ...] = ()


T = TypeVar("T")


def inspect_target(cluster: KafkaCluster, names: Iterable[str], group: str) -> TargetState:
    """The target as it is now; `names` are the topics that matter, whether they are there or not.

    What this user may not look at becomes one of the state's problems. A topic that this user may
    not DESCRIBE looks absent.
    """
    problems: list[Finding] = []
    metadata = cluster.metadata()
    present = sorted(name for name in set(names) if name in metadata.topics)
    described = _described(cluster, present, problems)
    state = _tried(lambda: cluster.group_state(group), problems)
    operations = _tried(lambda: cluster.group_operations(group), problems)
    # A live group may be in the midst of a transaction, which would have to be waited for.
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
    """What the brokers say against topics that are to be created; they create none."""
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
    """Those of the topics that this user may look at, by one question if it may look at all."""
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
    """Refuse a restore of another application, and a cluster that was not restored into.

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
    """Refuse a cluster that was not restored into; raises KStreamsAssetsError."""
    found = target.cluster_id()
    if found != restore.target_cluster_id:
        subject = f"cluster {target.connection.bootstrap_servers}"
        raise target_changed(subject, expected=restore.target_cluster_id, found=found)


def target_changed(subject: str, *, expected: str, found: str | None) -> KStreamsAssetsError:
    """The error for a cluster or topic that was restored into and is not there any more."""
    return KStreamsAssetsError(
        f"The {subject} is not the one of the restore: its id is"
        f" {found or 'unknown, it is absent'}, not {expected}.",
        remedy="It was deleted or recreated since. Run the restore again.",
    )


def require_empty_group(group: str, target: KafkaCluster, *, operation: str) -> None:
    """Refuse a group that has members; raises KafkaError."""
    state = target.group_state(group)
    if state is not None and not state.is_empty:
        raise group_in_use(group, state, operation)


def roles_of(topic: StoredTopic) -> TopicRoles:
    """The roles of a restored topic."""
    return TopicRoles(TopicRole(role) for role in topic.roles)


def partitions_of(topic: StoredTopic) -> list[TopicPartitionId]:
    """Every partition of a restored topic on the target."""
    return [TopicPartitionId(topic.target, number) for number in range(len(topic.base_offsets))]


_CLUSTER_ID: Final = "cluster.id"


def target_connection(settings: ApplicationSettings, target: str | None) -> KafkaConnection:
    """The target cluster, by the name of a declared target or host:port; None for the default.

    Servers that no target has are reached with the settings of the default target. Without one they
    are reached in PLAINTEXT: the source's secrets are not sent to another cluster.

    Raises:
        ConfigurationError: It is not clear which cluster is meant, `target` is no host:port, or the
            credentials of the default target may not go there (`KafkaConnection.at`).
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
    """The target of a request, for the block; a local cluster is stopped at its end.

    Raises ConfigurationError, and for a local cluster what `local_target` raises, and
    WarehouseError where there is no backup: its folder would look like the beginning of one.
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
    """The cluster that a restore went to, for the block; `target` if it has other addresses now.

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
    """Name of the local cluster that a restore went to, None when it went to another cluster."""
    for found in local_targets(settings):
        cluster_id = (found.directory / _CLUSTER_ID).read_text(encoding="utf-8").strip()
        if cluster_id == restore.target_cluster_id:
            return found.name
    return None
