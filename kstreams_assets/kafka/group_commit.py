"""Setting and deleting the committed offsets of a group that has no members.

By requests of our own: librdkafka appends a NUL byte to the metadata, which Kafka Streams then
discards, cannot delete offsets, and does not raise what is refused for single partitions.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import kafka.errors as client_errors
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.protocol.consumer.group import OffsetDeleteRequest

from kstreams_assets.errors import (
    AuthorizationFailedError,
    GroupNotEmptyError,
    OffsetsRefusedError,
)
from kstreams_assets.kafka.group_coordinator import (
    GROUP_ID_NOT_FOUND,
    GROUP_NOT_ALLOWED,
    TOPIC_NOT_ALLOWED,
    ask_coordinator,
    by_topic,
    group_refused,
)
from kstreams_assets.kafka.groups import group_state
from kstreams_assets.kafka.wire import WireClient
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId

_COMMIT = "commit_group_offsets"
_DELETE = "delete_group_offsets"
_NO_GENERATION = -1
# The target's epochs have nothing to do with the source's: with a stale one an application runs
# and consumes nothing, for ever.
_NO_LEADER_EPOCH = -1
_WITH_LEADER_EPOCH = 6
_WITH_TOPIC_NAMES = 9  # later versions name topics by id only
# What one request sets becomes one batch, which must fit into message.max.bytes (1 MiB by default).
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


def commit_group_offsets(
    wire: WireClient, group: str, offsets: Mapping[TopicPartitionId, CommittedOffset]
) -> None:
    """Set what a group without members has committed; a group that is not there is created.

    Metadata byte for byte, always without a leader epoch. Partitions not named keep theirs. The
    broker takes each partition by itself, so after an error some may be set; setting them again
    does no harm. Needs READ on the group and the topics. Raises GroupNotEmptyError,
    OffsetsRefusedError (names every refused partition), AuthorizationFailedError,
    ClusterUnavailableError.
    """
    codes: dict[TopicPartitionId, int] = {}
    for batch in _batches(group, offsets):
        response = ask_coordinator(
            wire,
            group,
            lambda batch=batch: _commit_request(group, batch),
            lambda response: _codes(response).values(),
            _COMMIT,
        )
        codes |= _codes(response)
    lengths = {partition: len(offset.metadata) for partition, offset in offsets.items()}
    _raise_refusals(wire, group, codes, _COMMIT, lengths)


def delete_group_offsets(
    wire: WireClient, group: str, partitions: Iterable[TopicPartitionId]
) -> None:
    """Delete what a group without members has committed; where there is nothing, nothing is done.

    Needs DELETE on the group and READ on the topics. Raises GroupNotEmptyError,
    OffsetsRefusedError, AuthorizationFailedError, ClusterUnavailableError, KafkaRequestError.
    """
    topics = by_topic(partitions)
    if not topics:
        return
    response = ask_coordinator(
        wire,
        group,
        lambda: _delete_request(group, topics),
        lambda response: [response.error_code, *_codes(response).values()],
        _DELETE,
    )
    if response.error_code == GROUP_ID_NOT_FOUND:
        return
    if response.error_code in _IN_USE:
        raise _in_use(wire, group, _DELETE)
    if response.error_code:
        raise group_refused(_DELETE, group, response.error_code, needed="DELETE")
    answers = {p: 0 if code == _ABSENT else code for p, code in _codes(response).items()}
    _raise_refusals(wire, group, answers, _DELETE, {})


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
    entries: defaultdict[str, list[Any]] = defaultdict(list)
    for partition, offset in offsets.items():
        entries[partition.topic].append(
            topic.OffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=_NO_LEADER_EPOCH,
                committed_metadata=offset.metadata,
            )
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
    return {
        TopicPartitionId(topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }


def _raise_refusals(
    wire: WireClient,
    group: str,
    codes: Mapping[TopicPartitionId, int],
    operation: str,
    metadata_lengths: Mapping[TopicPartitionId, int],
) -> None:
    refused = {partition: code for partition, code in sorted(codes.items()) if code}
    if not refused:
        return
    if _IN_USE & set(refused.values()):
        raise _in_use(wire, group, operation)
    if GROUP_NOT_ALLOWED in refused.values():
        raise group_refused(operation, group, GROUP_NOT_ALLOWED, needed="READ")
    denied = {partition.topic for partition, code in refused.items() if code == TOPIC_NOT_ALLOWED}
    if denied:
        resource = f"topic{'s' if len(denied) > 1 else ''} {', '.join(sorted(denied))}"
        raise AuthorizationFailedError(operation=operation, resource=resource, needed="READ")
    raise OffsetsRefusedError(
        operation=operation,
        group=group,
        refused={
            str(partition): _reason(code, metadata_lengths.get(partition))
            for partition, code in refused.items()
        },
        accepted=[str(partition) for partition in sorted(set(codes) - set(refused))],
    )


def _reason(code: int, metadata_length: int | None) -> str:
    name = client_errors.for_code(code).__name__
    if code == _METADATA_TOO_LARGE:
        return f"{name}: its {metadata_length} characters exceed offset.metadata.max.bytes"
    if code == _ABSENT:
        return f"{name}: not on the cluster"
    return name


def _in_use(wire: WireClient, group: str, operation: str) -> GroupNotEmptyError:
    state = group_state(wire, group)
    return GroupNotEmptyError(
        operation=operation,
        group=group,
        group_type=None if state is None else state.type,
        state=None if state is None else state.state,
    )
