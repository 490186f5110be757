"""Consumer groups: committed offsets with their metadata, state and members."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import kafka.errors as client_errors
from confluent_kafka.admin import AclOperation  # pyright: ignore[reportPrivateImportUsage]
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest

from kstreams_assets.errors import AuthorizationFailedError, UnstableGroupOffsetsError
from kstreams_assets.kafka.group_coordinator import (
    GROUP_ID_NOT_FOUND,
    TOPIC_NOT_ALLOWED,
    ask_coordinator,
    by_topic,
    group_refused,
)
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId

# An orphaned transaction is aborted after Streams' transaction.timeout.ms of 10 s plus up to 10 s
# until the coordinator looks again.
UNSTABLE_LIMIT_S = 25.0

_FIRST_RETRY_S = 0.02
_LONGEST_RETRY_S = 0.5
_NO_OFFSET = -1
_UNSTABLE = client_errors.UnstableOffsetCommitError.errno
_OFFSET_FETCH = "group_offsets"
_DESCRIBE = "group_state"
_OPERATIONS = "group_operations"
# From version 6 on a group that is absent, or of another protocol, has no operations either.
_DESCRIBE_ANY_VERSION = 5


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as its coordinator sees it.

    `type` is `classic`, `consumer`, `streams` or `share`; `state` in Kafka's words (`Empty`,
    `Stable` ...); `member_count` None where only the newer protocols' own requests would tell it.
    """

    group: str
    type: str
    state: str
    member_count: int | None

    @property
    def is_empty(self) -> bool:
        """Whether the group has no member."""
        return self.state in ("Empty", "Dead")


def group_offsets(
    wire: WireClient,
    group: str,
    *,
    partitions: Iterable[TopicPartitionId] | None = None,
    before_retry: Callable[[], None] | None = None,
) -> dict[TopicPartitionId, CommittedOffset]:
    """What the group has committed, by partition; partitions without an offset are absent.

    Offsets of transactions still undecided make the coordinator refuse (`require_stable`); it is
    asked again for up to 25 s, and `before_retry` is called each time before that. Without
    `partitions` it answers for all that have an offset, and then does not mention one whose very
    first offset is still undecided. Partitions of topics this user may not describe are left out by
    Kafka without a word, or refused when asked for by name. Raises UnstableGroupOffsetsError,
    AuthorizationFailedError, ClusterUnavailableError.
    """
    wanted = None if partitions is None else by_topic(partitions)
    started = time.monotonic()
    retry_s = _FIRST_RETRY_S
    while True:
        answer = _fetch_offsets(wire, group, wanted)
        if answer.error_code == GROUP_ID_NOT_FOUND:
            return {}
        if answer.error_code:
            raise group_refused(_OFFSET_FETCH, group, answer.error_code)
        unstable = _unstable_partitions(answer)
        if not unstable:
            return _committed(answer, group)
        waited_s = time.monotonic() - started
        if waited_s + retry_s > UNSTABLE_LIMIT_S:
            raise UnstableGroupOffsetsError(
                group=group, partitions=map(str, unstable), waited_s=waited_s
            )
        time.sleep(retry_s)
        retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
        if before_retry is not None:
            before_retry()


def group_state(wire: WireClient, group: str) -> GroupState | None:
    """State of a group, None when the cluster has none of that name.

    Raises AuthorizationFailedError (DESCRIBE), ClusterUnavailableError, KafkaRequestError.
    """
    listed = ask_coordinator(
        wire, group, ListGroupsRequest, lambda response: [response.error_code], _DESCRIBE
    )
    if listed.error_code:
        raise group_refused(_DESCRIBE, group, listed.error_code)
    entry = next((entry for entry in listed.groups if entry.group_id == group), None)
    if entry is None:
        return None
    kind = (entry.group_type or "classic").lower()
    empty = entry.group_state in ("Empty", "Dead")
    if kind != "classic":
        return GroupState(group, kind, entry.group_state, 0 if empty else None)
    described = ask_coordinator(
        wire,
        group,
        lambda: DescribeGroupsRequest(groups=[group]),
        lambda response: [response.groups[0].error_code],
        _DESCRIBE,
    )
    answer = described.groups[0]
    if answer.error_code == GROUP_ID_NOT_FOUND:
        return None
    if answer.error_code:
        raise group_refused(_DESCRIBE, group, answer.error_code)
    return GroupState(group, kind, answer.group_state, len(answer.members))


def group_operations(wire: WireClient, group: str) -> frozenset[str]:
    """What this user may do with a group, there or not: `READ`, `DESCRIBE`, `DELETE` ...

    Raises AuthorizationFailedError without DESCRIBE, ClusterUnavailableError, KafkaRequestError.
    """
    described = ask_coordinator(
        wire,
        group,
        lambda: DescribeGroupsRequest(
            groups=[group],
            include_authorized_operations=True,
            min_version=3,
            max_version=_DESCRIBE_ANY_VERSION,
        ),
        lambda response: [response.groups[0].error_code],
        _OPERATIONS,
    )
    answer = described.groups[0]
    if answer.error_code:
        raise group_refused(_OPERATIONS, group, answer.error_code)
    codes = answer.authorized_operations  # kafka-python has read the bits already
    return frozenset(operation.name for operation in AclOperation if operation.value in codes)


def group_ids(wire: WireClient) -> frozenset[str]:
    """Every group of the cluster that this user may describe, of whatever type.

    Raises ClusterUnavailableError.
    """
    found: set[str] = set()
    for broker in wire.broker_ids(operation=_DESCRIBE):
        listed = wire.request(ListGroupsRequest, operation=_DESCRIBE, node=broker)
        found |= {entry.group_id for entry in listed.groups}
    return frozenset(found)


def _fetch_offsets(wire: WireClient, group: str, topics: dict[str, list[int]] | None) -> Any:  # noqa: ANN401
    entry = OffsetFetchRequest.OffsetFetchRequestGroup
    named = entry.OffsetFetchRequestTopics
    wanted = entry(
        group_id=group,
        topics=None
        if topics is None
        else [named(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
    )
    response = ask_coordinator(
        wire,
        group,
        # version 10 names topics by id only
        lambda: OffsetFetchRequest(
            groups=[wanted], require_stable=True, min_version=8, max_version=9
        ),
        lambda response: [response.groups[0].error_code],
        _OFFSET_FETCH,
    )
    return response.groups[0]


def _unstable_partitions(answer: Any) -> list[TopicPartitionId]:  # noqa: ANN401
    return [
        TopicPartitionId(topic.name, partition.partition_index)
        for topic in answer.topics
        for partition in topic.partitions
        if partition.error_code == _UNSTABLE
    ]


def _committed(answer: Any, group: str) -> dict[TopicPartitionId, CommittedOffset]:  # noqa: ANN401
    committed = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.error_code == TOPIC_NOT_ALLOWED:
                raise AuthorizationFailedError(
                    operation=_OFFSET_FETCH, resource=f"topic {topic.name}", needed="DESCRIBE"
                )
            if partition.error_code:
                raise group_refused(_OFFSET_FETCH, group, partition.error_code)
            if partition.committed_offset == _NO_OFFSET:
                continue
            epoch = partition.committed_leader_epoch
            committed[TopicPartitionId(topic.name, partition.partition_index)] = CommittedOffset(
                offset=partition.committed_offset,
                metadata=partition.metadata or "",
                leader_epoch=epoch if epoch >= 0 else None,
            )
    return dict(sorted(committed.items()))
