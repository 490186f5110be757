"""Completes the positions of a method: ends of other topics, and records that cannot wait."""

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
"""For all reads of one capture: a tick of a sensor has 60 s in all."""
_IN_FLIGHT_BYTES = 64 * 1024**2
"""Limit for saved records in flight, or the limit for changelogs if that is higher."""

NOTHING_KEPT: Mapping[TopicPartitionId, Sequence[LoadedBatch]] = {}


@dataclass(frozen=True, slots=True)
class Saving:
    """Records `[read_from, end)` are read; all records from `saved_from` on are then saved."""

    saved_from: int
    read_from: int


@dataclass(frozen=True, slots=True)
class Safe:
    """Records that were safe before the point: those saved by earlier points, and backups.

    `newest` is the newest point (it saved its records in flight). `sealed` is the newest sealed
    point: it counts for changelogs of which `newest` saved nothing. `held` is the end of each
    changelog in the backups, as read before the point.
    """

    newest: RecoveryPoint | None
    sealed: RecoveryPoint | None
    held: Mapping[TopicPartitionId, Position]

    def changelog(
        self, partition: TopicPartitionId, topic_id: str, log_start: int, end: int
    ) -> Saving:
        """Return the tail of a changelog, from the later of backup and previous sealed point on.

        Holes below it do no harm: the records that caused them are older than this point.
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
        """Return the records of a repartition topic that were not processed at the point."""
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
class Extent:
    """Offsets `[start, end)` of a partition outside `excluded`; decided below `decided`."""

    partition: TopicPartitionId
    start: int
    end: int
    decided: int
    excluded: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Captured:
    """The committed records of partition ranges, None if they could not be read.

    `missing` says why they are incomplete, empty if they are complete. `unread` means that
    reading was given up: too many bytes, too slow, or unreadable. All records may still be there.
    """

    records: Mapping[TopicPartitionId, list[RawRecord]] | None
    missing: str = ""
    unread: bool = False


def capture(
    reader: RawLogReader,
    extents: Sequence[Extent],
    limit_bytes: int | None = None,
    kept: Mapping[TopicPartitionId, Sequence[LoadedBatch]] = NOTHING_KEPT,
) -> Captured:
    """Return the committed records that the log still has of ranges, right after a cut.

    What was `kept` of a partition, from the start of its range on, is not read again.
    The limit applies to the bytes in the logs while they are read, and to keys, values and
    headers of the decoded records, so compression does not bypass it. At most one batch for each
    broker is held beyond it.
    """
    ranges = {
        one.partition: OffsetRange(_read_from(one, kept), max(one.end, one.decided))
        for one in extents
        if one.start < one.end
    }
    try:
        read = reader.read(ranges, deadline_s=_READ_S, limit_bytes=limit_bytes) if ranges else {}
        for partition, batches in read.items():
            read[partition] = (*kept.get(partition, ()), *batches)
        return _committed(extents, read, limit_bytes)
    except RawReadLimitError:
        return Captured(None, f"there are more than {limit_bytes} bytes to save", unread=True)
    except RawReadTimeoutError as error:
        return Captured(None, error.problem.rstrip("."), unread=True)
    except (CorruptBatchError, KafkaRequestError) as error:
        # This may be permanent: the point is taken without the records, and is not sealed.
        return Captured(None, error.problem.rstrip("."), unread=True)
    except OffsetOutOfRangeError as error:
        return Captured(None, error.problem.rstrip("."))


def _read_from(extent: Extent, kept: Mapping[TopicPartitionId, Sequence[LoadedBatch]]) -> int:
    batches = kept.get(extent.partition)
    if not batches:
        return extent.start
    return min(max(extent.start, batches[-1].header.last_offset + 1), extent.end)


def _committed(
    extents: Sequence[Extent],
    read: dict[TopicPartitionId, tuple[LoadedBatch, ...]],
    limit_bytes: int | None,
) -> Captured:
    found: dict[TopicPartitionId, list[RawRecord]] = {}
    first_hole = ""
    held = 0
    for extent in extents:
        batches = read.pop(extent.partition, ())
        headers = [batch.header for batch in batches]
        absent = content_of_range(headers, extent.start, extent.end).first_absent
        if absent is not None and not first_hole:
            first_hole = f"{extent.partition} has lost offset {absent}, which belongs to the point"
        records = found[extent.partition] = []
        for fresh in _decoded(extent, batches):
            held += sum(map(_bytes_of, fresh))
            if limit_bytes is not None and held > limit_bytes:
                raise RawReadLimitError(limit_bytes=limit_bytes)
            records += fresh
    return Captured(found, first_hole)


def _decoded(extent: Extent, batches: Sequence[LoadedBatch]) -> Iterator[list[RawRecord]]:
    """Yield the committed records of a range, batch by batch."""
    tail = tail_of(extent.partition, (batch.header for batch in batches), below=extent.end)
    aborted = [s for s in tail.segments if s.marker and not s.marker.committed]
    bad = RangeSet([*extent.excluded, *(r for s in aborted for r in s.ranges)])
    for batch in batches:
        header = batch.header
        if header.base_offset >= extent.end:
            return  # data beyond the end was read only for its markers
        if not header.is_control and not bad.holds(header.base_offset):
            yield [r for r in batch.records() if extent.start <= r.offset < extent.end]


def _bytes_of(record: RawRecord) -> int:
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)


@dataclass(frozen=True, slots=True)
class Completed:
    """What a point needs beyond its method; `tails` are the records to save with it.

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

    Return NotTaken if records in flight were purged meanwhile. A backlog that is too long or too
    slow to read is left to the backup: the application purges only processed records. Such a
    point is not sealed.
    """
    in_flight = _in_flight(scene, positions, safe)
    limit = max(_IN_FLIGHT_BYTES, seal_bytes)
    captured = capture(scene.reader, _extents(positions, in_flight), limit, positions.kept)
    left_in_kafka = ""
    if captured.missing:
        left_in_kafka = f"records in flight could not be saved: {captured.missing}"
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
                # the saved records belong to the point all the same.
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
        unsealed_because="; ".join(filter(None, [left_in_kafka, tails.missing])),
        left_in_kafka=left_in_kafka,
    )


def _in_flight(scene: Scene, positions: Positions, safe: Safe) -> dict[TopicPartitionId, Saving]:
    """Return the committed but unprocessed records of the repartition topics."""
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
    """Return the ends of the changelogs, None if they are too long or take too long to read.

    A hole in them makes the point unsealed, but they are saved anyway: the cause of the hole is
    older than the next point, which can be sealed again.
    """
    late = [p for p, saving in savings.items() if saving.read_from < starts[p]]
    reachable = {
        p: replace(saving, read_from=max(saving.read_from, min(starts[p], positions.ends[p])))
        for p, saving in savings.items()
    }
    found = capture(scene.reader, _extents(positions, reachable), seal_bytes)
    if late and found.records is not None:
        hole = (
            f"the log of {late[0]} now starts at offset {starts[late[0]]}: earlier records were"
            " deleted before they were saved"
        )
        return replace(found, missing=hole)
    return found


def _ends(scene: Scene, positions: Positions) -> Offsets:
    """Return the ends of every partition; of inputs the last stable offset, read after offsets.

    The same applies to a source topic that serves as a changelog: Kafka Streams restores its
    records below the committed offset by itself (`StoreChangelogReader`, `ChangelogMetadata`: the
    smaller of end and committed offset) and processes the others. An at_least_once application
    reads uncommitted records too: those that it has put into a table belong to the point.
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
    """Return the number of records in flight, including unread ones (and markers) of the point."""
    count = 0
    for partition, saving in savings.items():
        end, records = positions.ends[partition], found.get(partition)
        unread_to = end if records is None else min(saving.read_from, end)
        count += max(0, unread_to - saving.saved_from) + len(records or ())
    return count


def _extents(positions: Positions, savings: Mapping[TopicPartitionId, Saving]) -> list[Extent]:
    return [
        Extent(
            partition=partition,
            start=saving.read_from,
            end=positions.ends[partition],
            decided=positions.high_watermarks[partition],
            excluded=tuple(positions.excluded.get(partition, ())),
        )
        for partition, saving in savings.items()
    ]
