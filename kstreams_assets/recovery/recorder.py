"""Takes recovery points: control plane only, no JVM, tens of milliseconds."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.errors import KafkaError, TopicNotFoundError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.positions import CommittedOffset, TopicPartitionId
from kstreams_assets.kafka.topics import TopicDescription
from kstreams_assets.recovery.point import (
    GroupOffset,
    Guarantee,
    Method,
    PartitionCut,
    RecoveryPoint,
    new_point_id,
)
from kstreams_assets.recovery.table import RecoveryPointTable
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.lock import warehouse_lock

_ATTEMPTS = 3
_LOCK_WAIT_S = 30.0

_log = logging.getLogger(__name__)


class TopicChangedWhileReadingError(KafkaError):
    """A topic was deleted, recreated or given partitions while a point was being taken."""

    def __init__(self, *, topics: Iterable[str]) -> None:
        self.topics = tuple(sorted(topics))
        super().__init__(
            f"Topic {', '.join(self.topics)} changed (was deleted, or has another id or number of"
            f" partitions) while the recovery point was taken, {_ATTEMPTS} times in a row.",
            remedy="Let the change of the topics come to rest, then try again.",
        )


@dataclass(frozen=True, slots=True)
class Recorder:
    """Takes and stores recovery points of one application.

    Points of one application are taken one after the other (a lock in the warehouse), so that a
    later point never stands behind an earlier one.
    """

    application: StreamsApplication
    cluster: KafkaCluster
    warehouse: Warehouse

    def take(self, *, closes_window_end_ms: int | None = None) -> RecoveryPoint:
        """Take a point now and store it.

        Args:
            closes_window_end_ms: Exclusive end of the closed window that the point is taken for,
                epoch milliseconds.

        Raises:
            ClusterUnavailableError: No broker answered in time.
            TopicNotFoundError: A topic of the application is not on the cluster and never was in
                an earlier point (one that was is noted as absent: the others go on).
            AuthorizationFailedError: A right is missing.
            TopicChangedWhileReadingError: Topics would not come to rest.
            WarehouseLockedError: Another recorder of the application does not come to an end.
        """
        application_id = self.application.application_id
        lock = self.warehouse.lock_file(f"recorder/{application_id}")
        with warehouse_lock(lock, purpose="recovery point", wait_s=_LOCK_WAIT_S):
            table = RecoveryPointTable(self.warehouse)
            newest = next(iter(table.newest(application_id)), None)
            point = self._settled(newest, closes_window_end_ms)
            table.append(point)
        _log.info(
            "Recovery point %s of %s: %s, %d partitions, %d committed offsets, %d ms.",
            point.id,
            application_id,
            point.guarantee,
            len(point.partitions),
            len(point.group_offsets),
            point.took_ms,
        )
        return point

    def _settled(
        self, newest: RecoveryPoint | None, closes_window_end_ms: int | None
    ) -> RecoveryPoint:
        """Try again while topics come and go."""
        changed: Sequence[str] = ()
        for _ in range(_ATTEMPTS):
            names, absent = self._names(newest)
            try:
                return self._offsets_first(names, absent, newest, closes_window_end_ms)
            except TopicChangedWhileReadingError as error:
                changed = error.topics
            except TopicNotFoundError as error:  # deleted since the names were listed
                changed = error.topics
        raise TopicChangedWhileReadingError(topics=changed)

    def _names(self, newest: RecoveryPoint | None) -> tuple[list[str], list[str]]:
        """The application's topics that are there, and those that were there once."""
        present = self.cluster.topics()
        names = [topic.name for topic in self.application.topics]
        missing = {name for name in names if name not in present}
        known = {cut.topic for cut in newest.partitions} | {*newest.absent_topics} if newest else {}
        if missing - set(known):
            raise TopicNotFoundError(
                topics=missing - set(known), cluster=self.cluster.connection.bootstrap_servers
            )
        return [name for name in names if name not in missing], sorted(missing)

    def _offsets_first(
        self,
        names: Sequence[str],
        absent: Sequence[str],
        newest: RecoveryPoint | None,
        closes_window_end_ms: int | None,
    ) -> RecoveryPoint:
        """Committed offsets, then ends: a restore loses nothing and may repeat.

        Read the other way round, the state would lack effects of records below the offsets.
        """
        # A clock that was set back must not let a later point sort before an earlier one.
        newest_ms = newest.taken_at_ms if newest else 0
        taken_at_ms = max(time.time_ns() // 1_000_000, newest_ms + 1)
        began = time.monotonic()
        before = self.cluster.describe_topics(names)
        partitions = partitions_of(before.values())
        group = self._committed(partitions)
        ends = self.cluster.last_stable_offsets(partitions)
        starts = self.cluster.log_start_offsets(partitions)
        changed = _changed(before, self.cluster.describe_topics(names))
        if changed:
            raise TopicChangedWhileReadingError(topics=changed)
        return RecoveryPoint(
            id=new_point_id(taken_at_ms),
            application_id=self.application.application_id,
            cluster_id=self.cluster.cluster_id(),
            taken_at_ms=taken_at_ms,
            method=Method.OFFSETS_FIRST,
            guarantee=Guarantee.AT_LEAST_ONCE,
            reason=_reason(bool(group), absent),
            took_ms=round((time.monotonic() - began) * 1000),
            partitions=tuple(
                PartitionCut(
                    topic=partition.topic,
                    partition=partition.partition,
                    topic_id=before[partition.topic].topic_id,
                    log_start=starts[partition],
                    end=ends[partition],
                )
                for partition in partitions
            ),
            group_offsets=tuple(
                GroupOffset(
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=committed.offset,
                    metadata=committed.metadata,
                )
                for partition, committed in sorted(group.items())
            ),
            closes_window_end_ms=closes_window_end_ms,
            absent_topics=tuple(absent),
        )

    def _committed(
        self, partitions: Iterable[TopicPartitionId]
    ) -> Mapping[TopicPartitionId, CommittedOffset]:
        """What the group has committed, also for topics that nobody declared.

        The application's own are asked for by name: a partition whose very first offset is still
        in an open transaction would otherwise be left out without a word.
        """
        application_id = self.application.application_id
        read = {
            topic.name
            for topic in self.application.topics
            if topic.roles & {TopicRole.INPUT, TopicRole.REPARTITION}
        }
        named = [partition for partition in partitions if partition.topic in read]
        others = self.cluster.group_offsets(application_id)
        return {**others, **self.cluster.group_offsets(application_id, partitions=named)}


def partitions_of(topics: Iterable[TopicDescription]) -> Sequence[TopicPartitionId]:
    """Every partition of these topics, in order."""
    return sorted(
        TopicPartitionId(topic.name, number)
        for topic in topics
        for number in range(topic.partitions)
    )


def _changed(
    before: Mapping[str, TopicDescription], after: Mapping[str, TopicDescription]
) -> set[str]:
    return {
        name
        for name, topic in before.items()
        if (after[name].topic_id, after[name].partitions) != (topic.topic_id, topic.partitions)
    }


def _reason(has_offsets: bool, absent: Sequence[str]) -> str:
    reason = "The application's group has no committed offsets."
    if has_offsets:
        reason = (
            "Committed offsets were read before the ends of the logs: a restore loses nothing and"
            " may repeat up to one commit interval."
        )
    return f"{reason} No longer on the cluster: {', '.join(absent)}." if absent else reason
