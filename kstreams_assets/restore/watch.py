"""Follows an application that was started on a restore until it is seen to be healthy, or not."""

import time
from collections.abc import Callable, Generator, Mapping
from typing import Final

from kstreams_assets.app.model import TopicRole
from kstreams_assets.errors import (
    OffsetOutOfRangeError,
    RawReadTimeoutError,
    UnstableGroupOffsetsError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.kafka.visible import content_of_range
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.restore.own_target import partitions_of, require_own_target, roles_of
from kstreams_assets.restore.restores_table import RestoreState, StoredRestore
from kstreams_assets.restore.watch_judge import Judge
from kstreams_assets.restore.watch_signs import (
    Assessment,
    Expected,
    Limits,
    Observation,
    PartitionSeen,
)
from kstreams_assets.settings import ApplicationSettings

# What is counted of the raw log in one observation: lag matters exactly only when it is small.
_COUNTED_OFFSETS: Final = 50_000
_COUNTING_S: Final = 5.0
_READ_BY_GROUP: Final = {TopicRole.INPUT, TopicRole.REPARTITION}
_STATE: Final = {TopicRole.CHANGELOG, TopicRole.GLOBAL}


def watch(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaCluster,
    *,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    report: Callable[[Assessment], None] | None = None,
) -> Assessment:
    """Follow the application until it is healthy or not, or time is up; the last assessment.

    `report` gets every assessment, one each `limits.every_s`. Needs DESCRIBE on the group and READ
    on the topics it reads. Raises what `follow` raises.
    """
    assessments = follow(settings, restore, target, limits=limits)
    while True:
        assessment = next(assessments)
        if report is not None:
            report(assessment)
        if assessment.has_ended:
            assessments.close()
            return assessment


def follow(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaCluster,
    *,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
) -> Generator[Assessment, None, None]:
    """Assess the application every `limits.every_s` seconds; the last one has ended.

    Raises what `require_own_target` raises, and KafkaError where the target does not answer or
    rights are missing.
    """
    require_own_target(settings, restore, target)
    expected = expected_of(restore)
    judge = Judge(expected, limits)
    observer = _Observer(target, expected)
    give_up_s = time.monotonic() + limits.timeout_s
    while True:
        began = time.monotonic()
        try:
            assessment = judge.judge(observer.observe())
        except UnstableGroupOffsetsError:
            if time.monotonic() > give_up_s:
                raise
            continue  # commits are going on: it asked for 25 s, and asks again
        yield assessment
        if assessment.has_ended:
            return
        time.sleep(max(0.0, limits.every_s - (time.monotonic() - began)))


def expected_of(restore: StoredRestore) -> Expected:
    """What a restore left on its target.

    The group has to read what it had offsets for; where none were committed (everything is
    recomputed), all its inputs.
    """
    committed = {TopicPartitionId(o.topic, o.partition): o.offset for o in restore.committed or ()}
    inputs = frozenset(
        id_
        for topic in restore.topics
        if roles_of(topic) & _READ_BY_GROUP
        for id_ in partitions_of(topic)
    )
    is_relaxed = restore.state is not RestoreState.FINISHED
    return Expected(
        group=restore.group,
        topic_ids={topic.target: topic.target_topic_id for topic in restore.topics},
        committed=committed,
        required=frozenset(committed) or inputs,
        changelog_records={
            topic.target: topic.records
            for topic in restore.topics
            if TopicRole.CHANGELOG in roles_of(topic)
        },
        kept_from={
            id_: base
            for topic in restore.topics
            if is_relaxed and roles_of(topic) & _STATE
            for id_, base in zip(partitions_of(topic), topic.base_offsets, strict=True)
        },
        committed_at_ms=(
            restore.changed_at_ms if restore.state is RestoreState.COMMITTED else None
        ),
    )


class _Observer:
    """Looks at one group and its logs."""

    def __init__(self, cluster: KafkaCluster, expected: Expected) -> None:
        self._cluster = cluster
        self._expected = expected
        self._raw = cluster.raw_log()
        self._read_by_group = set(expected.required)
        self._groups_at_first: frozenset[str] | None = None

    def observe(self) -> Observation:
        """The cluster as it is now."""
        expected, cluster = self._expected, self._cluster
        present = cluster.metadata().topics
        state = cluster.group_state(expected.group)
        is_idle = state is None or state.is_empty
        kept = [id_ for id_ in expected.kept_from if id_.topic in present]
        wanted = {id_ for id_ in self._read_by_group if id_.topic in present}
        # log starts first: the application deletes what it has committed to have processed
        starts = dict(cluster.log_start_offsets({*kept, *wanted}))
        committed = {
            id_: offset
            for id_, offset in cluster.group_offsets(expected.group).items()
            if id_.topic in present
        }
        self._read_by_group |= committed.keys()
        return Observation(
            at_s=time.monotonic(),
            at_ms=time.time_ns() // 1_000_000,
            group_type=None if state is None else state.type,
            group_state=None if state is None else state.state,
            members=None if state is None else state.member_count,
            topic_ids={name: topic.topic_id for name, topic in present.items()},
            partitions=self._partitions({*wanted, *committed}, starts, committed),
            log_starts={id_: starts[id_] for id_ in kept},
            new_groups=self._new_groups() if is_idle else (),
        )

    def _partitions(
        self,
        wanted: set[TopicPartitionId],
        starts: dict[TopicPartitionId, int],
        committed: Mapping[TopicPartitionId, CommittedOffset],
    ) -> dict[TopicPartitionId, PartitionSeen]:
        late = wanted - starts.keys()
        if late:  # the group has just begun to commit these: their log starts may have moved since
            starts |= {
                id_: min(start, committed[id_].offset)
                for id_, start in self._cluster.log_start_offsets(late).items()
            }
        ends = self._cluster.last_stable_offsets(wanted)
        highs = self._cluster.high_watermarks(wanted)
        epochs = self._cluster.leader_epochs({id_.topic for id_ in wanted})
        positions = {
            id_: committed[id_].offset if id_ in committed else starts[id_] for id_ in wanted
        }
        left = self._left(positions, starts, ends)
        return {
            id_: PartitionSeen(
                committed=committed[id_].offset if id_ in committed else None,
                log_start=starts[id_],
                end=ends[id_],
                high_watermark=highs[id_],
                next_record=left[id_][0],
                records_left=left[id_][1],
                leader_epoch=committed[id_].leader_epoch if id_ in committed else None,
                current_epoch=epochs.get(id_),
            )
            for id_ in sorted(wanted)
        }

    def _left(
        self,
        positions: Mapping[TopicPartitionId, int],
        starts: Mapping[TopicPartitionId, int],
        ends: Mapping[TopicPartitionId, int],
    ) -> dict[TopicPartitionId, tuple[int | None, int | None]]:
        """Next record and number of records left of each partition; the shortest rest first."""
        deadline = time.monotonic() + _COUNTING_S
        left: dict[TopicPartitionId, tuple[int | None, int | None]] = {}
        for id_ in sorted(positions, key=lambda id_: ends[id_] - positions[id_]):
            start, end = max(positions[id_], starts[id_]), ends[id_]
            limit_s = deadline - time.monotonic()
            if start >= end:
                left[id_] = (None, 0)
            elif end - start > _COUNTED_OFFSETS or limit_s <= 0:
                left[id_] = (start, None)
            else:
                left[id_] = records_left(self._raw, id_, start, end, deadline_s=limit_s)
        return left

    def _new_groups(self) -> tuple[str, ...]:
        found = self._cluster.group_ids()
        if self._groups_at_first is None:
            self._groups_at_first = found | {self._expected.group}
        return tuple(sorted(found - self._groups_at_first))


def records_left(
    raw: RawLogReader, partition: TopicPartitionId, start: int, end: int, *, deadline_s: float
) -> tuple[int | None, int | None]:
    """The first committed record in [start, end), and how many there are; None for none.

    Control records, aborted data and what compaction removed do not count. Not counted, and
    `start` for the first, when `deadline_s` is over or the log moved on.
    """
    try:
        batches = list(raw.scan(partition, start, end, deadline_s=deadline_s))
    except (RawReadTimeoutError, OffsetOutOfRangeError):
        return start, None
    return _first_visible(batches, start, end), content_of_range(batches, start, end).visible


def _first_visible(batches: list[RawBatch], start: int, end: int) -> int | None:
    for batch in batches:
        if batch.is_control or batch.aborted is not False:
            continue
        offsets = batch.record_offsets
        if offsets is None:
            offsets = range(batch.base_offset, batch.last_offset + 1)
        first = next((offset for offset in offsets if start <= offset < end), None)
        if first is not None:
            return first
    return None
