"""Consumer groups: their state, their committed offsets, and committing for them."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import kafka.errors as client_errors
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.consumer.group import OffsetDeleteRequest

from kstreams_assets.errors import (
    AuthorizationFailedError,
    ClusterUnavailableError,
    KafkaError,
    KafkaRequestError,
    UnstableGroupOffsetsError,
)
from kstreams_assets.kafka.coordinator_log import assigned_partitions
from kstreams_assets.kafka.leaders import answers_in, by_topic
from kstreams_assets.kafka.metadata import MetadataRequests, operation_names
from kstreams_assets.kafka.throttle import unthrottled_time
from kstreams_assets.kafka.wire import (
    COORDINATOR_BUSY,
    TOPIC_NOT_ALLOWED,
    Coordinated,
    topics_not_allowed,
)
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId

GROUP_ID_NOT_FOUND: Final = client_errors.GroupIdNotFoundError.errno
GROUP_NOT_ALLOWED: Final = client_errors.GroupAuthorizationFailedError.errno

_BUSY_RETRY_S = 0.1
_LONGEST_RETRY_S = 0.5


def _group_refused(
    operation: str, group: str, code: int, *, needed: str = "DESCRIBE"
) -> AuthorizationFailedError | KafkaRequestError:
    """The error for a code about the whole group; `needed` is the required right."""
    resource = f"group {group}"
    if code == GROUP_NOT_ALLOWED:
        return AuthorizationFailedError(operation=operation, resource=resource, needed=needed)
    name = client_errors.for_code(code).__name__
    return KafkaRequestError(operation=operation, resource=resource, reason=name)


# An orphaned transaction is aborted after Streams' transaction.timeout.ms of 10 s plus up to 10 s
# until the coordinator checks again.
UNSTABLE_LIMIT_S = 25.0

_FIRST_RETRY_S = 0.02
_NO_OFFSET = -1
_UNSTABLE = client_errors.UnstableOffsetCommitError.errno
_OFFSET_FETCH = "group_offsets"
_DESCRIBE = "group_state"
_OPERATIONS = "group_operations"
# From version 6 on a group that is absent, or of another protocol, has no operations either.
_DESCRIBE_ANY_VERSION = 5
_STABLE: Final = "Stable"
_DEAD: Final = "Dead"
_NO_MEMBER: Final = ("Empty", _DEAD)


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as its coordinator sees it.

    `type` is `classic`, `consumer`, `streams` or `share`; `state` in Kafka's words (`Empty`,
    `Stable` ...); `member_count` None if only the newer protocols' own requests report it.
    """

    group: str
    type: str
    state: str
    member_count: int | None

    @property
    def is_empty(self) -> bool:
        """Whether the group has no member."""
        return self.state in _NO_MEMBER


def group_in_use(group: str, state: GroupState | None, operation: str) -> KafkaError:
    """The error for a group with members, whose offsets must not be changed by others."""
    seen = f" ({state.type} group, state {state.state})" if state else ""
    return KafkaError(
        f"Group {group} is in use{seen}: {operation} is refused.",
        remedy="Stop every instance of the application and wait until its members have left the"
        " group: an instance that was killed counts as a member for session.timeout.ms (45 s by"
        " default); then try again.",
    )


def _unstable_partitions(answer: Any) -> list[TopicPartitionId]:  # noqa: ANN401
    return [id_ for id_, partition in answers_in(answer) if partition.error_code == _UNSTABLE]


def _committed(answer: Any, group: str) -> dict[TopicPartitionId, CommittedOffset]:  # noqa: ANN401
    committed = {}
    for id_, partition in answers_in(answer):
        if partition.error_code == TOPIC_NOT_ALLOWED:
            raise topics_not_allowed(_OFFSET_FETCH, [id_.topic], "DESCRIBE")
        if partition.error_code:
            raise _group_refused(_OFFSET_FETCH, group, partition.error_code)
        if partition.committed_offset == _NO_OFFSET:
            continue
        epoch = partition.committed_leader_epoch
        committed[id_] = CommittedOffset(
            offset=partition.committed_offset,
            metadata=partition.metadata or "",
            leader_epoch=epoch if epoch >= 0 else None,
        )
    return dict(sorted(committed.items()))


_COMMIT = "commit_group_offsets"
_DELETE = "delete_group_offsets"
_NO_GENERATION = -1
# The target's epochs are unrelated to the source's: with a stale one an application runs but
# consumes nothing, for ever.
_NO_LEADER_EPOCH = -1
_WITH_LEADER_EPOCH = 6
_WITH_TOPIC_NAMES = 9  # later versions name topics by id only
# The offsets of one request become one batch, which must fit into message.max.bytes (1 MiB by
# default).
_BATCH_BYTES = 500_000
_RECORD_OVERHEAD_BYTES = 100
_ABSENT = client_errors.UnknownTopicOrPartitionError.errno
_METADATA_TOO_LARGE = client_errors.OffsetMetadataTooLargeError.errno
_IN_USE = {
    client_errors.UnknownMemberIdError.errno,
    client_errors.IllegalGenerationError.errno,
    client_errors.RebalanceInProgressError.errno,
    client_errors.StaleMemberEpochError.errno,
    client_errors.FencedMemberEpochError.errno,
    client_errors.FencedInstanceIdError.errno,
    client_errors.NonEmptyGroupError.errno,
    client_errors.GroupSubscribedToTopicError.errno,
}


def _numbers(partitions: Iterable[TopicPartitionId]) -> dict[str, list[int]]:
    """The partitions' numbers by topic, both in order."""
    return by_topic((partition, partition.partition) for partition in sorted(partitions))


def _batches(
    group: str, offsets: Mapping[TopicPartitionId, CommittedOffset]
) -> Iterator[dict[TopicPartitionId, CommittedOffset]]:
    batch: dict[TopicPartitionId, CommittedOffset] = {}
    size = 0
    for partition, offset in sorted(offsets.items(), key=lambda item: item[0]):
        texts = (group, partition.topic, offset.metadata)
        record_bytes = sum(len(text.encode()) for text in texts) + _RECORD_OVERHEAD_BYTES
        if batch and size + record_bytes > _BATCH_BYTES:
            yield batch
            batch, size = {}, 0
        batch[partition] = offset
        size += record_bytes
    if batch:
        yield batch


def _commit_request(
    group: str, offsets: Mapping[TopicPartitionId, CommittedOffset]
) -> OffsetCommitRequest:
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    entries = by_topic(
        (
            partition,
            topic.OffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=_NO_LEADER_EPOCH,
                committed_metadata=offset.metadata,
            ),
        )
        for partition, offset in offsets.items()
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=_NO_GENERATION,
        member_id="",
        group_instance_id=None,
        topics=[topic(name=name, partitions=parts) for name, parts in entries.items()],
        min_version=_WITH_LEADER_EPOCH,
        max_version=_WITH_TOPIC_NAMES,
    )


def _delete_request(group: str, topics: Mapping[str, list[int]]) -> OffsetDeleteRequest:
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    entry = topic.OffsetDeleteRequestPartition
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            topic(name=name, partitions=[entry(partition_index=number) for number in numbers])
            for name, numbers in topics.items()
        ],
    )


def _codes(response: Any) -> dict[TopicPartitionId, int]:  # noqa: ANN401
    return {id_: partition.error_code for id_, partition in answers_in(response)}


def _reason(code: int, metadata_length: int | None) -> str:
    name = client_errors.for_code(code).__name__
    if code == _METADATA_TOO_LARGE:
        return f"{name}: its {metadata_length} characters exceed offset.metadata.max.bytes"
    if code == _ABSENT:
        return f"{name}: not on the cluster"
    return name


class GroupRequests(MetadataRequests):
    """The part of `KafkaCluster` that concerns consumer groups."""

    def group_offsets(
        self,
        group: str,
        *,
        partitions: Iterable[TopicPartitionId] | None = None,
        before_retry: Callable[[], None] | None = None,
        unstable_limit_s: float | None = None,
    ) -> dict[TopicPartitionId, CommittedOffset]:
        """The committed offsets of the group, by partition; partitions without an offset are
        absent.

        Includes metadata, and waits until no open transaction can still change them. Until then the
        coordinator refuses (`require_stable`); the request is repeated for up to `unstable_limit_s`
        (25 s), with a call of `before_retry` each time. Without `partitions` the answer has all
        partitions with an offset, except one whose very first offset is still undecided. Kafka
        silently omits partitions of topics that this user may not describe, or refuses them if they
        are requested by name. Needs DESCRIBE on the group and its topics. Raises
        UnstableGroupOffsetsError.
        """
        wanted = None if partitions is None else _numbers(partitions)
        limit_s = UNSTABLE_LIMIT_S if unstable_limit_s is None else unstable_limit_s
        started = unthrottled_time()
        retry_s = _FIRST_RETRY_S
        while True:
            answer = self._fetch_offsets(group, wanted)
            if answer.error_code == GROUP_ID_NOT_FOUND:
                return {}
            if answer.error_code:
                raise _group_refused(_OFFSET_FETCH, group, answer.error_code)
            unstable = _unstable_partitions(answer)
            if not unstable:
                return _committed(answer, group)
            waited_s = unthrottled_time() - started
            if waited_s + retry_s > limit_s:
                raise UnstableGroupOffsetsError(
                    group=group, partitions=map(str, unstable), waited_s=waited_s
                )
            time.sleep(retry_s)
            retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
            if before_retry is not None:
                before_retry()

    def group_state(self, group: str) -> GroupState | None:
        """State of a group, None if the cluster has no group of that name.

        Needs DESCRIBE.
        """
        listed = self._ask(
            group, ListGroupsRequest, lambda response: [response.error_code], _DESCRIBE
        )
        if listed.error_code:
            raise _group_refused(_DESCRIBE, group, listed.error_code)
        entry = next((entry for entry in listed.groups if entry.group_id == group), None)
        if entry is None:
            return None
        kind = (entry.group_type or "classic").lower()
        empty = entry.group_state in _NO_MEMBER
        if kind != "classic":
            return GroupState(group, kind, entry.group_state, 0 if empty else None)
        answer = self._described_classic(group)
        if answer is None:
            return None
        return GroupState(group, kind, answer.group_state, len(answer.members))

    def group_members(self, group: str) -> Mapping[str, frozenset[TopicPartitionId]] | None:
        """The partitions that each member of a stable group reads, by member id.

        A member of Kafka Streams is a thread. None for a group that is absent or not stable, and
        for the protocol `consumer`, which Kafka Streams does not use. For the protocol `streams`
        (KIP-1071), partitions of topics that a pattern subscribes are absent. Needs DESCRIBE.
        """
        answer = self._described_classic(group, max_version=_DESCRIBE_ANY_VERSION)
        if answer is None or answer.group_state == _DEAD:  # what it says of the other protocols
            return self._streams_members(group)
        if answer.group_state != _STABLE or answer.protocol_type != "consumer":
            return None
        return {m.member_id: assigned_partitions(m.member_assignment) for m in answer.members}

    def _streams_members(self, group: str) -> Mapping[str, frozenset[TopicPartitionId]] | None:
        from kstreams_assets.kafka.messages import StreamsGroupDescribeRequest

        try:
            answer = self._described(group, lambda: StreamsGroupDescribeRequest(group_ids=[group]))
        except client_errors.IncompatibleBrokerVersion:
            return None
        if answer is None or answer.group_state != _STABLE or answer.topology is None:
            return None
        counts = self.topics()
        read_by = {
            one.subtopology_id: [
                *one.source_topics,
                *(t.name for t in one.repartition_source_topics),
            ]
            for one in answer.topology.subtopologies or ()
        }
        return {
            member.member_id: frozenset(
                TopicPartitionId(topic, number)
                for task in member.assignment.active_tasks
                for topic in read_by[task.subtopology_id]
                for number in task.partitions
                if number < counts.get(topic, 0)  # a shorter topic has no part in the last tasks
            )
            for member in answer.members
        }

    def _described_classic(self, group: str, **versions: int) -> Any | None:  # noqa: ANN401
        return self._described(group, lambda: DescribeGroupsRequest(groups=[group], **versions))

    def _described(self, group: str, make: Callable[[], Any]) -> Any | None:  # noqa: ANN401
        """What the coordinator says of a group of the request's protocol; None if there is none."""
        described = self._ask(
            group,
            make,
            lambda response: [response.groups[0].error_code],
            _DESCRIBE,
        )
        answer = described.groups[0]
        if answer.error_code == GROUP_ID_NOT_FOUND:
            return None
        if answer.error_code:
            raise _group_refused(_DESCRIBE, group, answer.error_code)
        return answer

    def group_operations(self, group: str) -> frozenset[str]:
        """This user's rights on a group, existing or not: READ, DELETE ... Needs DESCRIBE."""
        described = self._ask(
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
            raise _group_refused(_OPERATIONS, group, answer.error_code)
        return operation_names(answer.authorized_operations)

    def group_ids(self) -> frozenset[str]:
        """Every group of any type that this user may describe."""
        found: set[str] = set()
        for broker in self._wire.broker_ids(operation=_DESCRIBE):
            listed = self._wire.request(ListGroupsRequest, operation=_DESCRIBE, node=broker)
            found |= {entry.group_id for entry in listed.groups}
        return frozenset(found)

    def commit_group_offsets(
        self, group: str, offsets: Mapping[TopicPartitionId, CommittedOffset]
    ) -> None:
        """Set the committed offsets of a group without members; a missing group is created.

        Metadata is kept byte for byte, always without a leader epoch. Other partitions keep their
        offsets. The broker handles each partition separately, so after an error some may be set;
        setting them again is harmless. Needs READ on the group and its topics. Raises KafkaError,
        KafkaRequestError (names every refused partition).
        """
        codes: dict[TopicPartitionId, int] = {}
        for batch in _batches(group, offsets):
            response = self._ask(
                group,
                lambda batch=batch: _commit_request(group, batch),
                lambda response: _codes(response).values(),
                _COMMIT,
            )
            codes |= _codes(response)
        lengths = {partition: len(offset.metadata) for partition, offset in offsets.items()}
        self._raise_refusals(group, codes, _COMMIT, lengths)

    def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartitionId]) -> None:
        """Delete committed offsets of a group without members; absent offsets are ignored.

        Needs DELETE on the group and READ on its topics. Raises KafkaError,
        KafkaRequestError.
        """
        topics = _numbers(partitions)
        if not topics:
            return
        response = self._ask(
            group,
            lambda: _delete_request(group, topics),
            lambda response: [response.error_code, *_codes(response).values()],
            _DELETE,
        )
        if response.error_code == GROUP_ID_NOT_FOUND:
            return
        if response.error_code in _IN_USE:
            raise group_in_use(group, self.group_state(group), _DELETE)
        if response.error_code:
            raise _group_refused(_DELETE, group, response.error_code, needed="DELETE")
        answers = {p: 0 if code == _ABSENT else code for p, code in _codes(response).items()}
        self._raise_refusals(group, answers, _DELETE, {})

    def _fetch_offsets(self, group: str, topics: dict[str, list[int]] | None) -> Any:  # noqa: ANN401
        entry = OffsetFetchRequest.OffsetFetchRequestGroup
        named = entry.OffsetFetchRequestTopics
        wanted = entry(
            group_id=group,
            topics=None
            if topics is None
            else [named(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
        )
        response = self._ask(
            group,
            # version 10 names topics by id only
            lambda: OffsetFetchRequest(
                groups=[wanted], require_stable=True, min_version=8, max_version=9
            ),
            lambda response: [response.groups[0].error_code],
            _OFFSET_FETCH,
        )
        return response.groups[0]

    def _raise_refusals(
        self,
        group: str,
        codes: Mapping[TopicPartitionId, int],
        operation: str,
        metadata_lengths: Mapping[TopicPartitionId, int],
    ) -> None:
        refused = {partition: code for partition, code in sorted(codes.items()) if code}
        if not refused:
            return
        if _IN_USE & set(refused.values()):
            raise group_in_use(group, self.group_state(group), operation)
        if GROUP_NOT_ALLOWED in refused.values():
            raise _group_refused(operation, group, GROUP_NOT_ALLOWED, needed="READ")
        denied = {
            partition.topic for partition, code in refused.items() if code == TOPIC_NOT_ALLOWED
        }
        if denied:
            raise topics_not_allowed(operation, denied, "READ")
        shown = [
            f"{partition} ({_reason(code, metadata_lengths.get(partition))})"
            for partition, code in refused.items()
        ]
        more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
        raise KafkaRequestError(
            operation=operation,
            resource=f"group {group}",
            reason=", ".join(shown[:5]) + more,
            remedy="Fix the cause and try again. Until then, do not start the application:"
            f" {len(codes) - len(refused)} partition(s) have their new offsets, {len(shown)} have"
            " not.",
        )

    def _ask(
        self,
        group: str,
        make: Callable[[], Any],
        codes_of: Callable[[Any], Iterable[int]],
        operation: str,
    ) -> Any:  # noqa: ANN401
        """The answer of the group's coordinator; repeated until a coordinator is ready.

        `codes_of` returns the answer's error codes. If a coordinator has stopped, the broker that
        takes its place is looked up. Raises ClusterUnavailableError, AuthorizationFailedError.
        """
        deadline = unthrottled_time() + self._wire.timeout_s
        while True:
            try:
                node = self._wire.coordinator(Coordinated.GROUP, group, operation=operation)
                remaining_s = max(_BUSY_RETRY_S, deadline - unthrottled_time())
                response = self._wire.request(
                    make, operation=operation, node=node, timeout_s=remaining_s, retry=False
                )
            except ClusterUnavailableError as error:
                reason = error.reason
            else:
                busy = next((code for code in codes_of(response) if code in COORDINATOR_BUSY), None)
                if busy is None:
                    return response
                reason = client_errors.for_code(busy).__name__
            self._wire.forget_coordinator(Coordinated.GROUP, group)
            if unthrottled_time() + _LONGEST_RETRY_S > deadline:
                raise self._wire.unavailable(operation, self._wire.timeout_s, reason)
            time.sleep(_BUSY_RETRY_S)
