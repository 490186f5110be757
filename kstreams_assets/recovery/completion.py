"""Completes the positions of a method: other topics' ends, and the records that cannot wait."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kstreams_assets.app.model import TopicRole
from kstreams_assets.kafka.raw_record import RawRecord
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.capture import Capture, Captured, Missing, Stretch
from kstreams_assets.recovery.method import NotTaken, Offsets, Positions, Scene
from kstreams_assets.recovery.point import GroupOffset, PartitionCut
from kstreams_assets.recovery.saved_records import SavedTail
from kstreams_assets.recovery.sealing import Safe, Saving

_IN_FLIGHT_BYTES = 64 * 1024**2
"""How much in flight may be saved, or as much as of the changelogs where that is more."""


@dataclass(frozen=True, slots=True)
class Completed:
    """What a point consists of beyond its method; `tails` are the records to save with it.

    `left_in_kafka` says why the records in flight were not saved; empty if they were.
    """

    cluster_id: str
    partitions: tuple[PartitionCut, ...]
    group_offsets: tuple[GroupOffset, ...]
    tails: tuple[SavedTail, ...]
    in_flight: int
    unsealed_because: str
    left_in_kafka: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """Reads what belongs to a point right after its positions were found."""

    scene: Scene
    safe: Safe
    seal_bytes: int

    def complete(self, positions: Positions) -> Completed | NotTaken:
        """The rest of the point; NotTaken when records in flight were purged meanwhile.

        A backlog that is too long or too slow to read is left to the backup: what the application
        has not processed it does not purge. Such a point is not sealed.
        """
        cluster, standing = self.scene.cluster, self.scene.standing
        in_flight = self._in_flight(positions)
        capture = Capture(self.scene.reader, max(_IN_FLIGHT_BYTES, self.seal_bytes))
        found = capture.records(_stretches(positions, in_flight))
        left_in_kafka = ""
        if isinstance(found, Missing):
            problem = f"records in flight could not be saved: {found.reason}"
            if not found.unread:
                return NotTaken(problem, again=True)
            left_in_kafka, found = problem, {}
        starts = cluster.log_start_offsets(standing.partitions)
        changelogs = self._changelogs(positions, starts)
        tails = self._tails(positions, changelogs, starts)
        savings = {
            **({} if left_in_kafka else in_flight),
            **({} if isinstance(tails, Missing) else changelogs),
        }
        unsealed = tails.reason if isinstance(tails, Missing) else tails.hole
        ends = self._ends(positions)
        saved = {**found, **({} if isinstance(tails, Missing) else tails.records)}
        return Completed(
            cluster_id=cluster.cluster_id(),
            partitions=tuple(
                PartitionCut(
                    topic=partition.topic,
                    partition=partition.partition,
                    topic_id=standing.incarnation(partition),
                    log_start=_log_start(
                        starts[partition], ends[partition], in_flight.get(partition)
                    ),
                    end=ends[partition],
                    roles=standing.roles(partition),
                    excluded=tuple(positions.excluded.get(partition, ())),
                    saved_from=savings[partition].saved_from if partition in savings else None,
                    leader_epoch=cluster.reported_epoch(partition),
                )
                for partition in standing.partitions
            ),
            group_offsets=tuple(
                GroupOffset(p.topic, p.partition, committed.offset, committed.metadata)
                for p, committed in sorted(positions.committed.items())
            ),
            tails=tuple(
                SavedTail(p, standing.incarnation(p), records)
                for p, records in saved.items()
                if records
            ),
            in_flight=self._count(found, in_flight, positions),
            unsealed_because="; ".join(filter(None, [left_in_kafka, unsealed])),
            left_in_kafka=left_in_kafka,
        )

    def _in_flight(self, positions: Positions) -> dict[TopicPartitionId, Saving]:
        """What of the repartition topics is committed but not processed."""
        standing = self.scene.standing
        without = [p for p in standing.repartitions if p not in positions.committed]
        starts = self.scene.cluster.log_start_offsets(without) if without else {}
        return {
            partition: self.safe.in_flight(
                partition,
                standing.incarnation(partition),
                positions.committed[partition].offset
                if partition in positions.committed
                else min(starts[partition], positions.ends[partition]),
                positions.ends[partition],
            )
            for partition in standing.repartitions
        }

    def _changelogs(self, positions: Positions, starts: Offsets) -> dict[TopicPartitionId, Saving]:
        standing = self.scene.standing
        return {
            partition: self.safe.changelog(
                partition,
                standing.incarnation(partition),
                starts[partition],
                positions.ends[partition],
            )
            for partition in standing.changelogs
        }

    def _tails(
        self, positions: Positions, savings: Mapping[TopicPartitionId, Saving], starts: Offsets
    ) -> Captured | Missing:
        """The ends of the changelogs; Missing when they are too long, or take too long to read.

        With a hole in them the point is not sealed, but they are saved all the same: what removed
        those records lies before the next point, which can be sealed again.
        """
        late = [p for p, saving in savings.items() if saving.read_from < starts[p]]
        reachable = {
            p: replace(saving, read_from=max(saving.read_from, min(starts[p], positions.ends[p])))
            for p, saving in savings.items()
        }
        capture = Capture(self.scene.reader, self.seal_bytes)
        found = capture.what_is_left(_stretches(positions, reachable))
        if late and isinstance(found, Captured):
            hole = (
                f"the log of {late[0]} now begins at offset {starts[late[0]]}, behind what is safe"
            )
            return replace(found, hole=hole)
        return found

    def _ends(self, positions: Positions) -> Offsets:
        """Ends of every partition: inputs at their last stable offset, read after the offsets.

        So does a source topic that serves as changelog: of it Kafka Streams restores the records
        below the committed offset by itself (`StoreChangelogReader`, `ChangelogMetadata`: the
        smaller of end and committed offset) and processes the others. An at_least_once application
        reads uncommitted records too: what it has put into a table belongs to the point.
        """
        cluster, standing = self.scene.cluster, self.scene.standing
        inputs = dict(cluster.last_stable_offsets(standing.inputs))
        beyond = {
            p: committed.offset
            for p, committed in positions.committed.items()
            if p in inputs
            and committed.offset > inputs[p]
            and TopicRole.CHANGELOG in standing.roles(p)
        }
        if beyond:
            there = cluster.high_watermarks(beyond)
            inputs |= {p: max(inputs[p], min(read, there[p])) for p, read in beyond.items()}
        return {**positions.ends, **inputs}

    def _count(
        self,
        found: Mapping[TopicPartitionId, list[RawRecord]],
        savings: Mapping[TopicPartitionId, Saving],
        positions: Positions,
    ) -> int:
        """Records in flight, with those that this point has not read (markers among them)."""
        count = 0
        for partition, saving in savings.items():
            end = positions.ends[partition]
            records = found.get(partition)
            count += max(
                0, (end if records is None else min(saving.read_from, end)) - saving.saved_from
            )
            count += len(records or ())
        return count


def _log_start(found: int, end: int, in_flight: Saving | None) -> int:
    """Where the records of a point begin.

    The application may have purged its repartition topic (KIP-811) after they were read: what was
    saved belongs to the point all the same.
    """
    return min(found, end, end if in_flight is None else in_flight.saved_from)


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
