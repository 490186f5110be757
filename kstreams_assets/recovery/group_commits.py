"""The transactions of one group in its partition of `__consumer_offsets`. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from kstreams_assets.kafka.coordinator_log import GroupCommit, group_commits, mentions_group
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.kafka.raw_log import LoadedBatch
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.segments import Segment, Tail, tail_of


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """A control batch, or a batch with offset commits of the group; `read` decodes these."""

    header: RawBatch
    read: Callable[[], Sequence[GroupCommit]] = tuple


def batches_of_group(batches: Iterable[LoadedBatch], group: str) -> list[GroupBatch]:
    """Return the batches of the offsets topic for a group: its commits, and all markers."""
    found: list[GroupBatch] = []
    for batch in batches:
        if batch.header.is_control:
            found.append(GroupBatch(batch.header))
        elif _has_commits(batch, group):
            found.append(GroupBatch(batch.header, partial(group_commits, batch, group)))
    return found


@dataclass(frozen=True, slots=True)
class GroupLog:
    """The group's partition of `__consumer_offsets`, as read from `start` on.

    `end` is the high watermark that decides what is committed; batches may extend beyond it.
    `applied` is an older one: the offsets reported by the coordinator include commits whose marker
    is below it.
    """

    partition: TopicPartitionId
    start: int
    end: int
    applied: int
    batches: Sequence[GroupBatch]
    tail: Tail = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        headers = (batch.header for batch in self.batches)
        object.__setattr__(self, "tail", tail_of(self.partition, headers, below=self.end))

    @property
    def committed(self) -> tuple[Segment, ...]:
        """Transactions whose commit marker lies below the end."""
        return tuple(s for s in self.tail.segments if self._is_committed(s))

    @property
    def undecided(self) -> tuple[Segment, ...]:
        """Transactions with offset commits without a marker below the end."""
        return tuple(
            s for s in self.tail.segments if s.marker is None or s.marker.offset >= self.end
        )

    def has_commit_outside_transaction(self) -> bool:
        """Whether the group commits offsets without transactions (at least once, or by hand).

        Tombstones show nothing: the coordinator writes them, always outside of transactions, when
        offsets expire or their topic is deleted.
        """
        return any(
            not commits or any(commit.offset is not None for commit in commits)
            for commits in (batch.read() for batch in self._plain)
        )

    @property
    def _plain(self) -> Iterator[GroupBatch]:
        """Yield batches below the end that were written outside of transactions."""
        for batch in self.batches:
            header = batch.header
            if not (header.is_control or header.is_transactional) and header.base_offset < self.end:
                yield batch

    def offsets(
        self, reported: Mapping[TopicPartitionId, CommittedOffset]
    ) -> dict[TopicPartitionId, CommittedOffset]:
        """Return the committed offsets at `end`, given those reported a little earlier.

        For each group partition the commit with the higher record offset wins, whenever its marker
        was written: the broker's own rule (OffsetMetadataManager). Only transactions that can
        matter are decoded: those decided after `applied`, and those written since the first of
        them. Outside of transactions a commit or tombstone counts at its own offset.
        """
        late = [s for s in self.committed if s.marker and s.marker.offset >= self.applied]
        plain = list(self._plain)
        starts = [segment.start for segment in late]
        starts += [b.header.base_offset for b in plain if b.header.base_offset >= self.applied]
        first = min(starts, default=self.end)
        groups = [self._commits(segment) for segment in self.committed if segment.end > first]
        groups += [batch.read() for batch in plain if batch.header.last_offset >= first]
        winners: dict[TopicPartitionId, GroupCommit] = {}
        for commit in chain.from_iterable(groups):
            if commit.record_offset < first:
                continue  # reported; a later winner may be in a segment that was skipped
            target = TopicPartitionId(commit.topic, commit.partition)
            known = winners.get(target)
            if known is None or known.record_offset < commit.record_offset:
                winners[target] = commit
        offsets = dict(reported)
        for target, commit in winners.items():
            if commit.offset is None:
                offsets.pop(target, None)
            else:
                offsets[target] = CommittedOffset(commit.offset, commit.metadata)
        return dict(sorted(offsets.items()))

    def _is_committed(self, segment: Segment) -> bool:
        marker = segment.marker
        return marker is not None and marker.committed and marker.offset < self.end

    def _commits(self, segment: Segment) -> Iterable[GroupCommit]:
        for batch in self.batches:
            header = batch.header
            if header.is_control or header.producer_id != segment.producer_id:
                continue
            if any(one.start <= header.base_offset < one.end for one in segment.ranges):
                yield from batch.read()


def _has_commits(batch: LoadedBatch, group: str) -> bool:
    # transactions contain only commits, other batches membership and metadata too
    if batch.header.is_transactional:
        return mentions_group(batch, group)
    return bool(group_commits(batch, group))
