"""Parse the coordinators' own topics: offset commits of groups, states of transactions."""

import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from kstreams_assets.errors import CoordinatorRecordError
from kstreams_assets.kafka.raw_batch import RawRecord, uncompressed
from kstreams_assets.kafka.raw_log import LoadedBatch
from kstreams_assets.offsets import TopicPartitionId

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"

_LOWEST: Final = -(2**31)


def java_string_hash(text: str) -> int:
    """The value of Java's `String.hashCode`: signed 32 bits, over UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def coordinator_partition(name: str, partitions: int) -> int:
    """The partition for a group (of CONSUMER_OFFSETS) or transactional id (of TRANSACTION_STATE).

    Both use `Utils.abs(hashCode) % partitions`, where the abs of the lowest integer is 0 (Kafka's
    GroupCoordinatorService and TransactionStateManager). They do not use `toPositive`, like the
    partitioner of producers.
    """
    value = java_string_hash(name)
    return 0 if value == _LOWEST else abs(value) % partitions


_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class FieldReader:
    """Read one key or value from start to end; struct.error if bytes are missing."""

    __slots__ = ("_data", "_position", "flexible")

    def __init__(self, data: bytes, *, position: int = 0, flexible: bool = False) -> None:
        self._data = data
        self._position = position
        self.flexible = flexible

    def int8(self) -> int:
        """A signed byte."""
        return self._number(_INT8)

    def int16(self) -> int:
        """A signed number of two bytes."""
        return self._number(_INT16)

    def int32(self) -> int:
        """A signed number of four bytes."""
        return self._number(_INT32)

    def int64(self) -> int:
        """A signed number of eight bytes."""
        return self._number(_INT64)

    def string(self) -> str:
        """A string that is not null."""
        length = self._unsigned_varint() - 1 if self.flexible else self.int16()
        return self._bytes(length).decode()

    def array_length(self) -> int:
        """The number of elements of an array, -1 for null."""
        return self._unsigned_varint() - 1 if self.flexible else self.int32()

    def skip_tagged_fields(self) -> None:
        """Skip the tagged fields at the end of a structure; versions without them have none."""
        for _ in range(self._unsigned_varint() if self.flexible else 0):
            self._unsigned_varint()
            self._bytes(self._unsigned_varint())

    def _number(self, kind: struct.Struct) -> int:
        (value,) = kind.unpack_from(self._data, self._position)
        self._position += kind.size
        return value

    def _bytes(self, length: int) -> bytes:
        start, end = self._position, self._position + length
        if length < 0 or end > len(self._data):
            message = f"a field of {length} bytes at {start} of {len(self._data)}"
            raise struct.error(message)
        self._position = end
        return self._data[start:end]

    def _unsigned_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._bytes(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7


_OFFSET_COMMIT_KEYS: Final = (b"\0\1", b"\0\0")
_LEADER_EPOCH_SINCE: Final = 3
_GROUP_FLEXIBLE_SINCE: Final = 4
_LATEST_GROUP_VALUE: Final = 4
_FLEXIBLE_HEAD: Final = struct.Struct(">hqiB")
_BROKEN: Final = (struct.error, UnicodeDecodeError)


class GroupCommit(NamedTuple):
    """One offset commit in the log (its transaction may be open or aborted).

    `offset` None: the offset was deleted (then `metadata` is empty). `metadata` exactly as
    committed. `record_offset` is the position in `__consumer_offsets`. `leader_epoch` None if none
    was committed.
    """

    group: str
    topic: str
    partition: int
    offset: int | None
    metadata: str
    record_offset: int
    leader_epoch: int | None = None


def offset_commit(record: RawRecord) -> GroupCommit | None:
    """The commit in a data record, None for other records.

    Do not pass control records: their keys look like those of commits. Raises
    CoordinatorRecordError for malformed commits and for unknown versions.
    """
    if record.key is None:
        return None
    try:
        return _offset_commit(record.key, record.value, record.offset)
    except _BROKEN as error:
        raise CoordinatorRecordError(
            topic=CONSUMER_OFFSETS, offset=record.offset, reason=str(error)
        ) from error


def group_commits(batch: LoadedBatch, group: str) -> list[GroupCommit]:
    """The commits of one group in a batch, in offset order; none for a control batch.

    Raises CorruptBatchError, CoordinatorRecordError.
    """
    if not mentions_group(batch, group):
        return []
    wanted = _key_starts(group)
    commits = (
        offset_commit(record)
        for record in batch.records()
        if record.key is not None and record.key.startswith(wanted)
    )
    return [commit for commit in commits if commit is not None]


def changes_membership(batch: LoadedBatch, group: str) -> bool:
    """Whether a batch contains a record about the members of a group: it has rebalanced.

    Raises CorruptBatchError.
    """
    name = _INT16.pack(len(group.encode())) + group.encode()
    if batch.header.is_control:
        return False
    if name not in uncompressed(batch.data, partition=str(batch.partition)):
        return False
    return any(
        record.key is not None
        and record.key[: _INT16.size] not in _OFFSET_COMMIT_KEYS
        and record.key[_INT16.size :].startswith(name)
        for record in batch.records()
    )


def assigned_partitions(assignment: bytes) -> frozenset[TopicPartitionId]:
    """The partitions in the assignment of a consumer (ConsumerProtocolAssignment).

    Raises CoordinatorRecordError.
    """
    if not assignment:
        return frozenset()
    reader = FieldReader(bytes(assignment))
    found: list[TopicPartitionId] = []
    try:
        reader.int16()  # version
        for _ in range(reader.array_length()):
            topic = reader.string()
            found += (TopicPartitionId(topic, reader.int32()) for _ in range(reader.array_length()))
    except _BROKEN as error:
        raise CoordinatorRecordError(
            topic=CONSUMER_OFFSETS, offset=0, reason=f"a member's assignment: {error}"
        ) from error
    return frozenset(found)


def mentions_group(batch: LoadedBatch, group: str) -> bool:
    """Whether a data batch seems to contain commits of a group.

    Searches the start of their keys in the bytes, which is far cheaper than decoding; other
    committed metadata may look the same. The first key alone is not enough: outside of transactions
    the coordinator puts commits of several groups into one batch. Raises CorruptBatchError.
    """
    if batch.header.is_control:
        return False
    data = uncompressed(batch.data, partition=str(batch.partition))
    return any(start in data for start in _key_starts(group))


def _key_starts(group: str) -> tuple[bytes, ...]:
    name = group.encode()
    return tuple(kind + _INT16.pack(len(name)) + name for kind in _OFFSET_COMMIT_KEYS)


def _offset_commit(key: bytes, value: bytes | None, record_offset: int) -> GroupCommit | None:
    if len(key) >= _INT16.size and key[: _INT16.size] not in _OFFSET_COMMIT_KEYS:
        return None
    group, position = _string(key, 2)
    topic, position = _string(key, position)
    (partition,) = _INT32.unpack_from(key, position)
    if value is None:
        return GroupCommit(group, topic, partition, None, "", record_offset)
    version, offset, epoch, length = _FLEXIBLE_HEAD.unpack_from(value)
    end = _FLEXIBLE_HEAD.size + length - 1
    if version == _GROUP_FLEXIBLE_SINCE and 0 < length < 0x80 and end <= len(value):
        metadata = value[_FLEXIBLE_HEAD.size : end].decode()
    else:
        offset, epoch, metadata = _fields(value)
    # the rest (times, the topic id) is not needed
    return GroupCommit(
        group, topic, partition, offset, metadata, record_offset, epoch if epoch >= 0 else None
    )


def _fields(data: bytes) -> tuple[int, int, str]:
    """Offset, leader epoch and metadata of a commit of any version."""
    value = FieldReader(data)
    version = value.int16()
    if not 0 <= version <= _LATEST_GROUP_VALUE:
        message = f"version {version} of a commit"
        raise struct.error(message)
    value.flexible = version >= _GROUP_FLEXIBLE_SINCE
    offset = value.int64()
    epoch = value.int32() if version >= _LEADER_EPOCH_SINCE else -1
    return offset, epoch, value.string()


def _string(data: bytes, position: int) -> tuple[str, int]:
    """A string and the position behind it."""
    (length,) = _INT16.unpack_from(data, position)
    start, end = position + _INT16.size, position + _INT16.size + length
    if length < 0 or end > len(data):
        message = f"a field of {length} bytes at {start} of {len(data)}"
        raise struct.error(message)
    return data[start:end].decode(), end


_TRANSACTIONAL_ID_KEY: Final = 0
_FLEXIBLE_SINCE: Final = 1
_LATEST_VALUE: Final = 1


class TransactionStatus(IntEnum):
    """Kafka's states of a transaction, in the numbers of its log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


@dataclass(frozen=True, slots=True)
class TransactionStateRecord:
    """One state of a transactional id.

    `partitions` of the transaction, including `__consumer_offsets`; empty for Complete states.
    `append_time_ms` is the record's timestamp (those inside the value are earlier).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    status: TransactionStatus
    partitions: frozenset[TopicPartitionId]
    append_time_ms: int


def transaction_states(
    batches: Iterable[LoadedBatch], transactional_ids: Collection[str]
) -> Iterator[TransactionStateRecord]:
    """The states of these ids in batches of TRANSACTION_STATE, in the order of the log.

    Raises CorruptBatchError, CoordinatorRecordError.
    """
    for batch in batches:
        for record in () if batch.header.is_control else batch.records():
            state = transaction_state(record)
            if state is not None and state.transactional_id in transactional_ids:
                yield state


def transaction_state(record: RawRecord) -> TransactionStateRecord | None:
    """The state in a data record, None for a tombstone and for keys of other kinds.

    Raises CoordinatorRecordError for malformed states and for unknown versions.
    """
    if record.key is None or record.value is None:
        return None
    try:
        key = FieldReader(record.key)
        if key.int16() != _TRANSACTIONAL_ID_KEY:
            return None
        return _state(key.string(), record.value, record)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise CoordinatorRecordError(
            topic=TRANSACTION_STATE, offset=record.offset, reason=str(error)
        ) from error


def _state(transactional_id: str, data: bytes, record: RawRecord) -> TransactionStateRecord:
    value = FieldReader(data)
    version = value.int16()
    if not 0 <= version <= _LATEST_VALUE:
        raise CoordinatorRecordError(
            topic=TRANSACTION_STATE, offset=record.offset, reason=f"version {version} of a state"
        )
    value.flexible = version >= _FLEXIBLE_SINCE
    producer_id, producer_epoch = value.int64(), value.int16()
    value.int32()  # transaction timeout
    status = TransactionStatus(value.int8())
    partitions = _partitions(value)
    value.int64()  # last update
    value.int64()  # start of the transaction
    value.skip_tagged_fields()
    return TransactionStateRecord(
        transactional_id, producer_id, producer_epoch, status, partitions, record.timestamp_ms
    )


def _partitions(value: FieldReader) -> frozenset[TopicPartitionId]:
    found: list[TopicPartitionId] = []
    for _ in range(value.array_length()):
        topic = value.string()
        found += [TopicPartitionId(topic, value.int32()) for _ in range(value.array_length())]
        value.skip_tagged_fields()
    return frozenset(found)
