"""What `__consumer_offsets` holds of a group: its offset commits.

Keys 0 and 1 are commits (OffsetCommitKey, and its predecessor of the same layout); all others
are membership and metadata. Values come in versions 0 to 4 (OffsetCommitValue); Kafka 4.3 writes
4, or 1 where the commit has a time at which it expires. A busy group leaves hundreds of commits a
second, so those that Streams makes are read without a call per field.
"""

import struct
from typing import Final, NamedTuple

from kstreams_assets.errors import CoordinatorRecordError
from kstreams_assets.kafka.coordinator_partition import CONSUMER_OFFSETS
from kstreams_assets.kafka.coordinator_record import FieldReader
from kstreams_assets.kafka.raw_range import LoadedBatch
from kstreams_assets.kafka.raw_record import RawRecord, uncompressed

_OFFSET_COMMIT_KEYS: Final = (b"\0\1", b"\0\0")
_LEADER_EPOCH_SINCE: Final = 3
_FLEXIBLE_SINCE: Final = 4
_LATEST_VALUE: Final = 4
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_FLEXIBLE_HEAD: Final = struct.Struct(">hqiB")
_BROKEN: Final = (struct.error, UnicodeDecodeError)


class GroupCommit(NamedTuple):
    """One offset commit, as it lies in the log (its transaction may be open or aborted).

    `offset` None: the offset was deleted (then `metadata` is empty). `metadata` exactly as
    committed. `record_offset` where the commit lies in `__consumer_offsets`. `leader_epoch` None
    when none was committed.
    """

    group: str
    topic: str
    partition: int
    offset: int | None
    metadata: str
    record_offset: int
    leader_epoch: int | None = None


def offset_commit(record: RawRecord) -> GroupCommit | None:
    """The commit that a data record holds, None for what is no offset commit.

    Control records are not for here: their keys look like those of commits. Raises
    CoordinatorRecordError for bytes that are no commit, and for versions not known here.
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


def mentions_group(batch: LoadedBatch, group: str) -> bool:
    """Whether a data batch seems to have commits of a group.

    A search for the start of their keys in the bytes, far cheaper than decoding; metadata that
    somebody committed may look the same. (The first key alone would not do: outside of
    transactions the coordinator puts commits of several groups into one batch.) Raises
    CorruptBatchError.
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
    if version == _FLEXIBLE_SINCE and 0 < length < 0x80 and end <= len(value):
        metadata = value[_FLEXIBLE_HEAD.size : end].decode()
    else:
        offset, epoch, metadata = _fields(value)
    # what follows (times, the topic id) is not needed
    return GroupCommit(
        group, topic, partition, offset, metadata, record_offset, epoch if epoch >= 0 else None
    )


def _fields(data: bytes) -> tuple[int, int, str]:
    """Offset, leader epoch and metadata of a commit of any version."""
    value = FieldReader(data)
    version = value.int16()
    if not 0 <= version <= _LATEST_VALUE:
        message = f"version {version} of a commit"
        raise struct.error(message)
    value.flexible = version >= _FLEXIBLE_SINCE
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
