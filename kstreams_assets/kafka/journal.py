"""Read the journal of an application's commits, which its companion writes (`companion/`)."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.offsets import OffsetRange, TopicPartitionId

_VERSION: Final = 1
_MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError)


def journal_topic(application_id: str) -> str:
    """Return the default name of an application's journal topic."""
    return f"{application_id}-commit-journal"


def journal_partition(application_id: str, topic: str | None = None) -> TopicPartitionId:
    """Return the partition to which the companion writes; `topic`: its name if configured."""
    return TopicPartitionId(topic or journal_topic(application_id), 0)


@dataclass(frozen=True, slots=True)
class CommitBoundary:
    """What one commit of one stream thread separates from all later work of this thread.

    `acknowledged` are the ends (exclusive) that the thread's producer had written in each partition
    since the thread started. `run` identifies this start; `number` counts its commits from 1 and
    skips a boundary that was dropped. A boundary that is not `regular` leaves tasks of the thread
    out of `committed` (tasks were revoked or corrupted), or a record before it was not
    acknowledged. `record_offset` is its position in the journal. `request` is the newest request of
    a recorder that the application had received before the commit, "" if none; `held` the one for
    which the thread stopped after it.
    """

    thread: str
    run: str
    number: int
    timestamp_ms: int
    regular: bool
    committed: Mapping[TopicPartitionId, int]
    acknowledged: Mapping[TopicPartitionId, int]
    record_offset: int
    request: str = ""
    held: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """How a thread's stop after a boundary ended: released by the recorder, or by itself."""

    run: str
    held: str
    by_recorder: bool


@dataclass(frozen=True, slots=True)
class JournalPart:
    """Boundaries in the order of the journal: those of one thread are in the order of its commits.

    `releases` are those of threads that had stopped for a recorder. The next part starts at
    `next_offset`. `unreadable` records have another format, such as that of a later release.
    """

    boundaries: tuple[CommitBoundary, ...]
    next_offset: int
    unreadable: int = 0
    releases: tuple[Release, ...] = ()


def read_journal(
    cluster: KafkaCluster,
    application_id: str,
    *,
    start: int = 0,
    topic: str | None = None,
    reader: RawLogReader | None = None,
    deadline_s: float,
) -> JournalPart:
    """Read the boundaries of an application from an offset of its journal to the end.

    Retention may have deleted records from `start` on. A boundary that a retry wrote twice counts
    once if both are in this part. `topic` is the name where it is not the default. `reader` saves
    new connections. Needs DESCRIBE and READ on the topic. Raises TopicNotFoundError if the
    companion has written nothing yet, and the errors of `RawLogReader.read`.

    Example:
        part = read_journal(cluster, "shop", deadline_s=10)
        later = read_journal(cluster, "shop", start=part.next_offset, deadline_s=10)
    """
    partition = journal_partition(application_id, topic)
    end = cluster.high_watermarks([partition])[partition]
    if start >= end:
        return JournalPart((), start)
    first = max(start, cluster.log_start_offsets([partition])[partition])
    if first >= end:
        return JournalPart((), end)
    with ExitStack() as stack:
        reader = reader or stack.enter_context(cluster.raw_log())
        batches = reader.read({partition: OffsetRange(first, end)}, deadline_s=deadline_s)
        records = [
            record
            for batch in batches[partition]
            if not batch.header.is_control
            for record in batch.records()
            if first <= record.offset < end
        ]
    boundaries: dict[tuple[str, int], CommitBoundary] = {}
    releases: list[Release] = []
    unreadable = 0
    for record in records:
        try:
            document = json.loads(record.value or b"")
            if document["version"] != _VERSION:
                unreadable += 1
            elif document["application"] != application_id:
                continue
            elif "released" in document:
                releases.append(_release(document))
            else:
                boundary = _boundary(document, record.offset)
                boundaries.setdefault((boundary.run, boundary.number), boundary)
        except _MALFORMED:
            unreadable += 1
    return JournalPart(tuple(boundaries.values()), end, unreadable, tuple(releases))


@dataclass(slots=True)
class JournalReader:
    """Reads a journal part by part, with the connections of `reader`; arguments as above."""

    cluster: KafkaCluster
    application_id: str
    topic: str | None
    reader: RawLogReader
    deadline_s: float
    next_offset: int = 0

    def end(self) -> int:
        """Return the end of the journal; raises TopicNotFoundError."""
        partition = journal_partition(self.application_id, self.topic)
        return self.cluster.high_watermarks([partition])[partition]

    def read(self) -> JournalPart:
        """Return what was written since the last part."""
        part = read_journal(
            self.cluster,
            self.application_id,
            start=self.next_offset,
            topic=self.topic,
            reader=self.reader,
            deadline_s=self.deadline_s,
        )
        self.next_offset = part.next_offset
        return part


def _boundary(document: Mapping[str, Any], record_offset: int) -> CommitBoundary:
    return CommitBoundary(
        thread=str(document["thread"]),
        run=str(document["run"]),
        number=int(document["number"]),
        timestamp_ms=int(document["timestamp_ms"]),
        regular=document["regular"] is True,
        committed=_offsets(document["committed"]),
        acknowledged=_offsets(document["acknowledged"]),
        record_offset=record_offset,
        request=str(document.get("request", "")),
        held=str(document.get("held", "")),
    )


def _release(document: Mapping[str, Any]) -> Release:
    return Release(
        run=str(document["run"]),
        held=str(document["held"]),
        by_recorder=document["released"] is True,
    )


def _offsets(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartitionId, int]:
    return {
        TopicPartitionId(topic, int(number)): int(offset)
        for topic, partitions in topics.items()
        for number, offset in partitions.items()
    }
