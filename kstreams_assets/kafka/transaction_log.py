"""What `__transaction_state` holds: the states every transaction went through.

Values come in version 0, and 1 with tagged fields (TransactionLogValue).
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kstreams_assets.errors import CoordinatorRecordError
from kstreams_assets.kafka.coordinator_partition import TRANSACTION_STATE
from kstreams_assets.kafka.coordinator_record import FieldReader
from kstreams_assets.kafka.raw_record import RawRecord
from kstreams_assets.offsets import TopicPartitionId

_TRANSACTIONAL_ID_KEY: Final = 0
_FLEXIBLE_SINCE: Final = 1
_LATEST_VALUE: Final = 1
_PREVIOUS_PRODUCER_ID: Final = 0
_NEXT_PRODUCER_ID: Final = 1
_CLIENT_TRANSACTION_VERSION: Final = 2
_INT16: Final = struct.Struct(">h")
_INT64: Final = struct.Struct(">q")
_ABSENT: Final = -1


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

    `partitions` of the transaction, `__consumer_offsets` among them; Complete states have none.
    `append_time_ms` is the record's timestamp (those inside the value are taken earlier).
    `offset` where the record lies in its partition of `__transaction_state`.
    `previous_producer_id` and `next_producer_id` None unless the producer id changes or did.
    `client_transaction_version` 2 when the producer gets a new epoch with every transaction;
    version 0 of the record does not tell it, and says 0.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    status: TransactionStatus
    partitions: frozenset[TopicPartitionId]
    append_time_ms: int
    offset: int
    previous_producer_id: int | None = None
    next_producer_id: int | None = None
    client_transaction_version: int = 0


def transaction_state(record: RawRecord) -> TransactionStateRecord | None:
    """The state that a data record holds, None for a tombstone and for keys of other kinds.

    Raises CoordinatorRecordError for bytes that are no such state, and for versions not known
    here.
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
    tagged = value.tagged_fields()
    return TransactionStateRecord(
        transactional_id,
        producer_id,
        producer_epoch,
        status,
        partitions,
        append_time_ms=record.timestamp_ms,
        offset=record.offset,
        previous_producer_id=_producer_id(tagged.get(_PREVIOUS_PRODUCER_ID)),
        next_producer_id=_producer_id(tagged.get(_NEXT_PRODUCER_ID)),
        client_transaction_version=_int16(tagged.get(_CLIENT_TRANSACTION_VERSION)),
    )


def _partitions(value: FieldReader) -> frozenset[TopicPartitionId]:
    found: list[TopicPartitionId] = []
    for _ in range(value.array_length()):
        topic = value.string()
        found += [TopicPartitionId(topic, value.int32()) for _ in range(value.array_length())]
        value.tagged_fields()
    return frozenset(found)


def _producer_id(data: bytes | None) -> int | None:
    if data is None:
        return None
    (producer_id,) = _INT64.unpack(data)
    return None if producer_id == _ABSENT else producer_id


def _int16(data: bytes | None) -> int:
    return 0 if data is None else _INT16.unpack(data)[0]
