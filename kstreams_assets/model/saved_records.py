"""Records that are saved with recovery points, because they could not wait for a backup."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np
import pyarrow as pa

from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.model.column import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TIMESTAMP_TYPE,
    VALUE,
    ApplicationId,
    Column,
    TopicId,
    TopicName,
)
from kstreams_assets.offsets import TopicPartitionId


@dataclass(frozen=True, slots=True)
class Header:
    """A header of a record."""

    key: str
    value: bytes | None
    key_bytes: bytes | None = None


@dataclass(frozen=True, slots=True)
class SavedRecord:
    """A row of the table; there are many, so they are written and read as columns."""

    application_id: ApplicationId
    recovery_point_id: Annotated[
        str, Column("The point that saved the record; later ones refer to it by offset.")
    ]
    topic: TopicName
    topic_id: TopicId
    partition: Annotated[int, PARTITION]
    offset: Annotated[int, OFFSET]
    timestamp_ms: Annotated[int, TIMESTAMP]
    timestamp_type: Annotated[int, TIMESTAMP_TYPE]
    headers: Annotated[tuple[Header, ...], HEADERS]
    key: Annotated[bytes | None, KEY]
    value: Annotated[bytes | None, VALUE]
    digest: Annotated[
        bytes | None,
        Column(
            "BLAKE2b (16 bytes) of the record with its topic and partition; verified when it is"
            " read. Null in rows of earlier releases."
        ),
    ]


@dataclass(frozen=True, slots=True)
class SavedTail:
    """Records of one partition that one point saves, in offset order."""

    partition: TopicPartitionId
    topic_id: str
    records: Sequence[RawRecord]


def by_partition(saved: pa.Table) -> dict[TopicPartitionId, pa.Table]:
    """Divide saved records, which are ordered by topic, partition and offset, into partitions."""
    if saved.num_rows == 0:
        return {}
    saved = saved.combine_chunks()
    topics = saved["topic"].combine_chunks().dictionary_encode().indices.to_numpy()
    partitions = saved["partition"].to_numpy()
    changes = (topics[1:] != topics[:-1]) | (partitions[1:] != partitions[:-1])
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), saved.num_rows]
    found = {}
    for start, end in pairwise(starts):
        rows = saved.slice(start, end - start)
        found[TopicPartitionId(rows["topic"][0].as_py(), rows["partition"][0].as_py())] = rows
    return found
