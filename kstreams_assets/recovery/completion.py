"""Completes the positions of a method: other topics' ends, and the records that cannot wait."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kstreams_assets.errors import (
    CorruptBatchError,
    KafkaRequestError,
    OffsetOutOfRangeError,
    RawReadLimitError,
    RawReadTimeoutError,
)
from kstreams_assets.kafka.raw_batch import RawRecord, content_of_range
from kstreams_assets.kafka.raw_log import LoadedBatch, RawLogReader
from kstreams_assets.model.groups import ConsumerGroup
from kstreams_assets.model.point import PartitionCut, RecoveryPoint
from kstreams_assets.model.saved_records import SavedTail
from kstreams_assets.model.spans import Position
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.recovery.scene import NotTaken, Offsets, Positions, Scene
from kstreams_assets.recovery.segments import tail_of

_READ_S = 30.0
"""For everything that one capture reads: a tick of a sensor has 60 s in all."""
_IN_FLIGHT_BYTES = 64 * 1024**2
"""How much in flight may be saved, or as much as of the changelogs where that is more."""


@dataclass(frozen=True, slots=True)
class Saving:
    """Records `[read_from, end)` are to be read; then all from `saved_from` on are saved."""

    saved_from: int
    read_from: int


@dataclass(frozen=True, slots=True)
class Safe:
    """What was safe before the point: earlier points' saved records, and backups.

    `newest` is the newest point (it saved its records in flight), `sealed` the newest sealed one:
    it counts for the changelogs where `newest` saved nothing of them. `held` is how far backups
    that were read already hold each changelog.
    """

    newest: RecoveryPoint | None
    sealed: RecoveryPoint | None
    held: Mapping[TopicPartitionId, Position]

    def changelog(
        self, partition: TopicPartitionId, topic_id: str, log_start: int, end: int
    ) -> Saving:
        """The tail of a changelog: from the later of backup and previous sealed point.

        Holes below that do no harm: what removed those records was there before this point.
        """
        held = self.held.get(partition)
        backed_up = held.offset if held and held.topic_id == topic_id else log_start
        backed_up = min(backed_up, end)
        cut = self.newest.cut(partition) if self.newest else None
        if cut is None or cut.saved_from is None:
            cut = self.sealed.cut(partition) if self.sealed else None
        if cut is None or cut.topic_id != topic_id or cut.saved_from is None:
            return Saving(backed_up, backed_up)
        read_from = min(cut.whole_below, end)
        if backed_up >= read_from:
            return Saving(backed_up, backed_up)
        return Saving(max(cut.saved_from, backed_up), read_from)

    def in_flight(
        self, partition: TopicPartitionId, topic_id: str, committed: int, end: int
    ) -> Saving:
        """The records of a repartition topic that were not processed at the point."""
        cut = self.newest.cut(partition) if self.newest else None
        if (
            cut is None
            or cut.topic_id != topic_id
            or cut.saved_from is None
            or cut.saved_from > committed
        ):
            return Saving(committed, committed)
        return Saving(committed, max(committed, min(cut.whole_below, end)))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets `[start, end)` of a partition outside `excluded`; decided below `decided`."""

    partition: TopicPartitionId
    start: int
    end: int
    decided: int
    excluded: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Captured:
    """The committed records of stretches, None when they could not be read.

    `lacking` says why they are not whole, empty if they are. `unread`: reading was given up, for
    the number of bytes, the time, or because nobody can read them; all may still be there.
    """

    records: Mapping[TopicPartitionId, list[RawRecord]] | None
    lacking: str = ""
    unread: bool = False


def capture(
    reader: RawLogReader, stretches: Sequence[Stretch], limit_bytes: int | None = None
) -> Captured:
    """The committed records of stretches that the log still holds, read right after a cut.

    The limit counts the bytes as they lie in the logs while these are read, and what keys, values
    and headers of the decoded records take: compression does not get round it. Beyond it at most
    one batch for each broker is held.
    """
    ranges = {
        one.partition: OffsetRange(one.start, max(one.end, one.decided))
        for one in stretches
        if one.start < one.end
    }
    try:
        read = reader.read(ranges, deadline_s=_READ_S, limit_bytes=limit_bytes) if ranges else {}
        return _committed(stretches, read, limit_bytes)
    except RawReadLimitError:
        return Captured(None, f"there are more than {limit_bytes} bytes to save", unread=True)
    except RawReadTimeoutError as error:
        return Captured(None, error.problem.rstrip("."), unread=True)
    except (CorruptBatchError, KafkaRequestError) as error:
        # It may stay so for good: the point is taken without it, and is not sealed.
        return Captured(None, error.problem.rstrip("."), unread=True)
    except OffsetOutOfRangeError as error:
        return Captured(None, error.problem.rstrip("."))


def _committed(
    stretches: Sequence[Stretch],
    read: dict[TopicPartitionId, tuple[LoadedBatch, ...]],
    limit_bytes: int | None,
) -> Captured:
    found: dict[TopicPartitionId, list[RawRecord]] = {}
    first_hole = ""
    held = 0
    for stretch in stretches:
        batches = read.pop(stretch.partition, ())
        headers = [batch.header for batch in batches]
        absent = content_of_range(headers, stretch.start, stretch.end).first_absent
        if absent is not None and not first_hole:
            first_hole = (
                f"{stretch.partition} no longer holds offset {absent}, which belongs to the point"
            )
        records = found[stretch.partition] = []
        for fresh in _decoded(stretch, batches):
            held += sum(map(_bytes_of, fresh))
            if limit_bytes is not None and held > limit_bytes:
                raise RawReadLimitError(limit_bytes=limit_bytes)
            records += fresh
    return Captured(found, first_hole)


def _decoded(stretch: Stretch, batches: Sequence[LoadedBatch]) -> Iterator[list[RawRecord]]:
    """The committed records of a stretch, batch by batch."""
    tail = tail_of(stretch.partition, (batch.header for batch in batches), below=stretch.end)
    aborted = [s for s in tail.segments if s.marker and not s.marker.committed]
    bad = RangeSet([*stretch.excluded, *(r for s in aborted for r in s.ranges)])
    for batch in batches:
        header = batch.header
        if header.base_offset >= stretch.end:
            return  # what lies behind the end was read for its markers only
        if not header.is_control and not bad.holds(header.base_offset):
            yield [r for r in batch.records() if stretch.start <= r.offset < stretch.end]


def _bytes_of(record: RawRecord) -> int:
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)


@dataclass(frozen=True, slots=True)
class Completed:
    """What a point consists of beyond its method; `tails` are the records to save with it.

    `left_in_kafka` says why the records in flight were not saved; empty if they were.
    """

    partitions: tuple[PartitionCut, ...]
    group: ConsumerGroup
    tails: tuple[SavedTail, ...]
    in_flight: int
    unsealed_because: str
    left_in_kafka: str


def complete(
    scene: Scene, positions: Positions, safe: Safe, seal_bytes: int
) -> Completed | NotTaken:
    """Read what belongs to a point right after its positions were found.

    NotTaken when records in flight were purged meanwhile. A backlog that is too long or too slow to
    read is left to the backup: what the application has not processed it does not purge. Such a
    point is not sealed.
    """
    in_flight = _in_flight(scene, positions, safe)
    limit = max(_IN_FLIGHT_BYTES, seal_bytes)
    captured = capture(scene.reader, _stretches(positions, in_flight), limit)
    left_in_kafka = ""
    if captured.lacking:
        left_in_kafka = f"records in flight could not be saved: {captured.lacking}"
        if not captured.unread:
            return NotTaken(left_in_kafka, again=True)
    found = captured.records or {}
    starts = scene.cluster.log_start_offsets(scene.partitions)
    changelogs = {
        p: safe.changelog(p, scene.incarnation(p), starts[p], positions.ends[p])
        for p in scene.changelogs
    }
    tails = _tails(scene, positions, changelogs, starts, seal_bytes)
    saved_from = {
        p: saving.saved_from
        for savings in (
            {} if left_in_kafka else in_flight,
            {} if tails.records is None else changelogs,
        )
        for p, saving in savings.items()
    }
    ends = _ends(scene, positions)
    return Completed(
        partitions=tuple(
            PartitionCut(
                topic=partition.topic,
                partition=partition.partition,
                topic_id=scene.incarnation(partition),
                # A repartition topic may have been purged (KIP-811) after its records were read:
                # what was saved belongs to the point all the same.
                log_start=min(
                    starts[partition],
                    ends[partition],
                    *([in_flight[partition].saved_from] if partition in in_flight else []),
                ),
                end=ends[partition],
                roles=scene.roles(partition),
                excluded=tuple(positions.excluded.get(partition, ())),
                saved_from=saved_from.get(partition),
                leader_epoch=scene.cluster.reported_epoch(partition),
            )
            for partition in scene.partitions
        ),
        group=ConsumerGroup.of(scene.group, positions.committed),
        tails=tuple(
            SavedTail(p, scene.incarnation(p), records)
            for p, records in {**found, **(tails.records or {})}.items()
            if records
        ),
        in_flight=_count(found, in_flight, positions),
        unsealed_because="; ".join(filter(None, [left_in_kafka, tails.lacking])),
        left_in_kafka=left_in_kafka,
    )


def _in_flight(scene: Scene, positions: Positions, safe: Safe) -> dict[TopicPartitionId, Saving]:
    """What of the repartition topics is committed but not processed."""
    without = [p for p in scene.repartitions if p not in positions.committed]
    starts = scene.cluster.log_start_offsets(without) if without else {}
    return {
        p: safe.in_flight(
            p,
            scene.incarnation(p),
            positions.committed[p].offset
            if p in positions.committed
            else min(starts[p], positions.ends[p]),
            positions.ends[p],
        )
        for p in scene.repartitions
    }


def _tails(
    scene: Scene,
    positions: Positions,
    savings: Mapping[TopicPartitionId, Saving],
    starts: Offsets,
    seal_bytes: int,
) -> Captured:
    """The ends of the changelogs, None when they are too long, or take too long to read.

    With a hole in them the point is not sealed, but they are saved all the same: what removed
    those records lies before the next point, which can be sealed again.
    """
    late = [p for p, saving in savings.items() if saving.read_from < starts[p]]
    reachable = {
        p: replace(saving, read_from=max(saving.read_from, min(starts[p], positions.ends[p])))
        for p, saving in savings.items()
    }
    found = capture(scene.reader, _stretches(positions, reachable), seal_bytes)
    if late and found.records is not None:
        hole = (
            f"the log of {late[0]} now begins at offset {starts[late[0]]}: what lay before was"
            " deleted before they were saved"
        )
        return replace(found, lacking=hole)
    return found


def _ends(scene: Scene, positions: Positions) -> Offsets:
    """Ends of every partition: inputs at their last stable offset, read after the offsets.

    So does a source topic that serves as changelog: of it Kafka Streams restores the records
    below the committed offset by itself (`StoreChangelogReader`, `ChangelogMetadata`: the
    smaller of end and committed offset) and processes the others. An at_least_once application
    reads uncommitted records too: what it has put into a table belongs to the point.
    """
    inputs = dict(scene.cluster.last_stable_offsets(scene.inputs))
    beyond = {
        p: committed.offset
        for p, committed in positions.committed.items()
        if p in inputs and committed.offset > inputs[p] and scene.roles(p).is_changelog
    }
    if beyond:
        there = scene.cluster.high_watermarks(beyond)
        inputs |= {p: max(inputs[p], min(read, there[p])) for p, read in beyond.items()}
    return {**positions.ends, **inputs}


def _count(
    found: Mapping[TopicPartitionId, list[RawRecord]],
    savings: Mapping[TopicPartitionId, Saving],
    positions: Positions,
) -> int:
    """Records in flight, with those that this point has not read (markers among them)."""
    count = 0
    for partition, saving in savings.items():
        end, records = positions.ends[partition], found.get(partition)
        unread_to = end if records is None else min(saving.read_from, end)
        count += max(0, unread_to - saving.saved_from) + len(records or ())
    return count


def _stretches(positions: Positions, savings: Mapping[TopicPartitionId, Saving]) -> list[Stretch]:
    return [
        Stretch(
            partition=partition,
            start=saving.read_from,
            end=positions.ends[partition],
            decided=positions.high_watermarks[partition],
            excluded=tuple(positions.excluded.get(partition, ())),
        )
        for partition, saving in savings.items()
    ]
