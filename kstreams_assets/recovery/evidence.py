"""Evaluates what the logs show about a cut, which decides its guarantee. Independent of methods.

A method finds ends and offsets. Whether state and offsets belong to the same transactions depends
on the processing guarantee (`processing`) and on the committed offsets (`gather`).
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from kstreams_assets.kafka.coordinator_log import GroupCommit, group_commits
from kstreams_assets.kafka.raw_batch import RawBatch
from kstreams_assets.kafka.raw_log import UNREADABLE, LoadedBatch
from kstreams_assets.model.point import Guarantee, PartitionCut, RecoveryPoint, topic_id_of
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.scene import NO_INTERNAL, READ_S, Offsets, Positions, Scene

_FIRST_STEP = 10_000
_COMMITS_BYTES = 32 * 1024**2
"""How much of the offsets topic is searched for the newest commits of a group."""
_MARKERS = 3
"""This many offsets below the start of an empty log may have been transaction markers alone."""
_FEW = 3

GroupOffsets = Mapping[TopicPartitionId, CommittedOffset]


@dataclass(frozen=True, slots=True)
class Processing:
    """The processing guarantee that the logs show.

    `uncertainty` says why they do not show an exactly-once application; empty if they do.
    `restored` is the guarantee of the restored state, if the application has written nothing
    since a restore.
    """

    uncertainty: str = ""
    restored: Guarantee | None = None

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of a cut without undecided transactions."""
        if self.uncertainty:
            return Guarantee.AT_LEAST_ONCE
        return self.restored or Guarantee.EXACT

    @property
    def note(self) -> str:
        """What a point reports about it."""
        if self.restored is None or self.uncertainty:
            return ""
        text = "The application has written nothing since it was restored"
        if self.restored is Guarantee.EXACT:
            return f"{text}."
        return f"{text}, and what was restored is {self.restored} only."


def processing(scene: Scene, ends: Offsets, committed: GroupOffsets) -> Processing:
    """Return what the newest records of internal topics show.

    An at_least_once application commits offsets long after its changelogs, so reading the same
    offsets twice proves nothing. Records and group offsets written by a restore show nothing; if
    there are no others, the application is in its restored state.
    """
    uncertainty = _newest_records(scene, scene.internal, ends)
    if uncertainty != NO_INTERNAL:
        return Processing(uncertainty)
    restored = restored_guarantee(scene, ends, committed)
    if restored is not None:
        uncertainty = _newest_records(scene, scene.outputs, ends)
        if uncertainty and uncertainty != NO_INTERNAL:
            return Processing(f"since the restore {uncertainty}")
        return Processing(restored=restored)
    if not any(scene.restored_end(p, ends[p]) for p in scene.internal):
        return Processing(NO_INTERNAL)
    # Its state is the restored one, but its offsets have moved.
    commits = latest_commits(scene, committed)
    plain = _outside_of_transactions(scene, committed, commits)
    if plain:
        return Processing(plain)
    unseen = sorted(
        p for p in committed if p not in commits and not _is_restored(scene, p, committed)
    )
    if unseen:
        return Processing(_not_found(unseen[0]))
    shown = any(c.in_transaction for p, c in commits.items() if p in committed)
    return Processing() if shown else Processing(NO_INTERNAL)


def restored_guarantee(scene: Scene, ends: Offsets, committed: GroupOffsets) -> Guarantee | None:
    """Return the restored guarantee if internal topics and offsets are still the same."""
    read = set(scene.read)
    now = {(p, o.offset, o.metadata) for p, o in committed.items() if p in read}
    for restore in reversed(scene.restored.committed_for(scene.group)):
        then = {(o.id, o.offset, o.metadata) for o in restore.group.offsets if o.id in read}
        ranges = {
            one.target: one.offsets
            for p in scene.internal
            for one in scene.restored.in_partition(p, scene.incarnation(p))
            if (one.application_id, one.restore_id) == (restore.application_id, restore.restore_id)
        }
        same = all(ends[p] == (ranges[p].end if p in ranges else 0) for p in scene.internal)
        if restore.is_committed and same and now == then:
            return restore.guarantee
    return None


def runs_at(
    scene: Scene, ends: Offsets, committed: GroupOffsets, *, has_transactional_ids: bool
) -> Guarantee | None:
    """Return the guarantee that the application itself runs at, as its newest records show it.

    One partition of an internal topic whose newest record was written outside of transactions is
    enough for `at_least_once`: while instances are replaced by others with another
    `processing.guarantee`, both kinds write. Without internal topics the group's newest commits
    show it. Offsets that were set by hand look like those of an at_least_once application: if
    transactional ids of the application are known, they show nothing.

    Returns:
        None if nothing shows it; records written by a restore do not.
    """
    try:
        newest = _newest_batches(scene, scene.internal, ends)
    except UNREADABLE:
        return None
    if newest:
        in_transactions = all(batch.is_transactional for batch in newest.values())
        return Guarantee.EXACT if in_transactions else Guarantee.AT_LEAST_ONCE
    commits = {
        p: latest
        for p, latest in latest_commits(scene, committed).items()
        if latest.commit.offset is not None and not _is_restored(scene, p, committed)
    }
    if not commits:
        return None
    if all(latest.in_transaction for latest in commits.values()):
        return Guarantee.EXACT
    return None if has_transactional_ids else Guarantee.AT_LEAST_ONCE


def _newest_batches(
    scene: Scene, partitions: Sequence[TopicPartitionId], ends: Offsets
) -> dict[TopicPartitionId, RawBatch] | None:
    """Return the newest batch of each partition that has more than the records of a restore.

    Returns:
        None if no log has more; partitions without their newest record (compaction) are left out.

    Raises:
        UNREADABLE: Any of these.
    """
    written = [p for p in partitions if ends[p] > scene.restored_end(p, ends[p])]
    starts = scene.cluster.log_start_offsets(written) if written else {}
    newest = {p: OffsetRange(ends[p] - 1, ends[p]) for p in written if ends[p] > starts[p]}
    if not newest:
        return None
    raw = scene.reader.read(newest, deadline_s=READ_S)
    return {p: batches[-1].header for p, batches in raw.items() if batches}


def _newest_records(scene: Scene, partitions: Sequence[TopicPartitionId], ends: Offsets) -> str:
    """Return why newest batches do not show an exactly-once application; empty if all do."""
    try:
        batches = _newest_batches(scene, partitions, ends)
    except UNREADABLE as error:
        return error.problem.rstrip(".")
    if batches is None:
        return NO_INTERNAL
    if not batches:
        return "compaction removed every record that shows the processing guarantee"
    plain = [p for p, batch in batches.items() if not batch.is_transactional]
    if plain:
        return f"{plain[0]} is written without transactions (processing.guarantee at_least_once)"
    return ""


class LatestCommit(NamedTuple):
    """The newest commit of the group for a partition, or the tombstone that deleted its offset."""

    commit: GroupCommit
    in_transaction: bool


def latest_commits(
    scene: Scene, partitions: Iterable[TopicPartitionId]
) -> Mapping[TopicPartitionId, LatestCommit]:
    """Return the newest commit of the group for each partition.

    Searches the group's partition of `__consumer_offsets` backwards, up to 32 MiB. Commits that
    are not found or not readable are left out.
    """
    partition = scene.group_log
    search = _CommitSearch(scene.group, set(partitions))
    if partition is None or not search.missing:
        return {}
    deadline, left, step = time.monotonic() + READ_S, _COMMITS_BYTES, _FIRST_STEP
    try:
        log_start = scene.cluster.log_start_offsets([partition])[partition]
        end = scene.cluster.high_watermarks([partition])[partition]
        while search.missing and log_start < end and left > 0:
            start = max(log_start, end - step)
            batches = scene.reader.read(
                {partition: OffsetRange(start, end)},
                deadline_s=max(0.0, deadline - time.monotonic()),
                limit_bytes=left,
            )[partition]
            for batch in reversed(batches):
                search.look_at(batch)
            left -= sum(len(batch.data) for batch in batches)
            end, step = start, 2 * step
    except UNREADABLE:
        return search.found
    return search.found


class _CommitSearch:
    """Finds the newest commit for each partition in batches that arrive newest first."""

    def __init__(self, group: str, missing: set[TopicPartitionId]) -> None:
        self.missing = missing
        self.found: dict[TopicPartitionId, LatestCommit] = {}
        self._group = group
        self._is_committed: dict[int, bool] = {}
        self._below: int | None = None

    def look_at(self, batch: LoadedBatch) -> None:
        """Inspect a batch; a batch shared by two reads is inspected once."""
        header = batch.header
        if self._below is not None and header.base_offset >= self._below:
            return
        self._below = header.base_offset
        if header.is_control:
            if header.control_type is not None:
                self._is_committed[header.producer_id] = header.control_type == "commit"
        elif not header.is_transactional or self._is_committed.get(header.producer_id):
            for commit in reversed(group_commits(batch, self._group)):
                partition = TopicPartitionId(commit.topic, commit.partition)
                if partition in self.missing:
                    self.missing.discard(partition)
                    self.found[partition] = LatestCommit(commit, header.is_transactional)


def why_not_exact(scene: Scene, committed: GroupOffsets, ends: Offsets, found: Processing) -> str:
    """Return why the logs of a stopped application do not prove it exact; empty if they do.

    Internal topics written in transactions prove it, unless an offset was committed outside of a
    transaction since. Without internal topics every committed offset has to prove it.
    """
    if found.restored is not None or (found.uncertainty and found.uncertainty != NO_INTERNAL):
        return found.uncertainty
    if not committed and not any(ends.values()):
        return ""  # it has never processed anything
    commits = latest_commits(scene, committed)
    plain = _outside_of_transactions(scene, committed, commits)
    if plain:
        return plain
    unseen = sorted(committed.keys() - commits.keys())
    return (
        f"{found.uncertainty}, and {_not_found(unseen[0])}" if found.uncertainty and unseen else ""
    )


def _not_found(partition: TopicPartitionId) -> str:
    return f"the newest commit for {partition} was not found in the logs"


def _outside_of_transactions(
    scene: Scene,
    committed: GroupOffsets,
    commits: Mapping[TopicPartitionId, LatestCommit],
) -> str:
    """Return the first offset committed neither in a transaction nor by a restore, in words."""
    plain = sorted(
        p
        for p, latest in commits.items()
        if p in committed
        and not latest.in_transaction
        and latest.commit.offset is not None
        and not _is_restored(scene, p, committed)
    )
    if not plain:
        return ""
    return (
        f"the offset of {plain[0]} was committed outside of transactions"
        " (processing.guarantee at_least_once, or set by hand)"
    )


def _is_restored(scene: Scene, partition: TopicPartitionId, committed: GroupOffsets) -> bool:
    offset = committed[partition]
    return scene.is_restored_offset(partition, offset.offset, offset.metadata)


@dataclass(frozen=True)
class Evidence:
    """The reasons against calling a cut exact, independent of its method.

    `newest_exact` is the newest exact point of the application on this cluster, None without one;
    it is called only if it matters.
    """

    scene: Scene
    positions: Positions
    cuts: Sequence[PartitionCut]
    newest_exact: Callable[[], RecoveryPoint | None] = lambda: None

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the cut."""
        return Guarantee.AT_LEAST_ONCE if self.objections else self.positions.guarantee

    @cached_property
    def objections(self) -> tuple[str, ...]:
        """Why state and offsets do not belong together, or what was lost; in words."""
        if self._is_as_restored:
            return ()
        return tuple(
            filter(
                None,
                (
                    self._offsets_gone(),
                    self._offsets_of_other_logs(),
                    *self._offsets_outside(),
                    self._offsets_set_by_hand(),
                    *self._truncated(),
                ),
            )
        )

    def applied(self) -> Positions:
        """Return the positions with the guarantee that the evidence allows, and the reasons."""
        if not self.objections:
            return self.positions
        note = f"Not called exact: {'; '.join(self.objections)}."
        return replace(
            self.positions,
            guarantee=self.guarantee,
            repeats_bound=None,
            note=" ".join(filter(None, (self.positions.note, note))),
        )

    @cached_property
    def _is_as_restored(self) -> bool:
        positions = self.positions
        return restored_guarantee(self.scene, positions.ends, positions.committed) is not None

    @cached_property
    def _cut_of(self) -> Mapping[TopicPartitionId, PartitionCut]:
        return {cut.id: cut for cut in self.cuts}

    @cached_property
    def _before(self) -> RecoveryPoint | None:
        return self.newest_exact()

    @cached_property
    def _offsets_before(self) -> GroupOffsets:
        """The offsets that the group had committed at the newest exact point."""
        if self._before is None:
            return {}
        return self._before.group.committed

    @cached_property
    def _is_stopped(self) -> bool:
        state = self.scene.cluster.group_state(self.scene.group)
        return state is None or state.is_empty

    def _offsets_gone(self) -> str:
        """Return expired or deleted offsets: their records would be processed again."""
        committed, ends = self.positions.committed, self.positions.ends
        read = [p for p in self.scene.read if p in self._cut_of]
        if not any(p in committed for p in read):
            fed = any(self._cut_of[p].end for p in read if p not in ends)
            own = any(ends[p] for p in self.scene.internal)
            if fed and (own or (any(ends.values()) and self._is_stopped)):
                return (
                    "the group has no committed offsets, although its topics have records"
                    " (they expired, or were deleted): a restored application would process again"
                    " what its state already contains, or skip records (auto.offset.reset)"
                )
        if self.positions.guarantee is not Guarantee.EXACT:
            return ""
        absent = [
            p
            for p in read
            if p not in committed and self._cut_of[p].log_start < self._cut_of[p].end
        ]
        gone = sorted(self._gone(absent)) if absent else []
        if not gone:
            return ""
        return (
            f"the committed offset for {_listed(gone)} is missing, although there are"
            " records (offsets expired, or were deleted): a restored application would process"
            " again what its state already contains, or skip records (auto.offset.reset)"
        )

    def _gone(self, absent: Sequence[TopicPartitionId]) -> Iterable[TopicPartitionId]:
        """Return partitions with records whose offset was committed once.

        A running application that has processed a record has committed an offset for it. Offsets of
        a stopped one may have expired unnoticed. An earlier exact point proves that there was none,
        and so does a group without any offset.
        """
        known = {p for p in absent if self._was_known(p)}
        gone = {p for p in known if p in self._offsets_before}
        rest = [p for p in absent if p not in gone]
        if not rest or not self._is_stopped:
            return gone
        if self.positions.committed:
            gone |= {p for p in rest if p not in known}
        return gone | set(latest_commits(self.scene, [p for p in rest if p not in gone]))

    def _was_known(self, partition: TopicPartitionId) -> bool:
        """Whether the newest exact point shows the partition, or that it was added since."""
        if self._before is None:
            return False
        cut = self._before.cut(partition)
        if cut is not None:
            return cut.topic_id == self.scene.incarnation(partition)
        topic_id = self.scene.described[partition.topic].topic_id
        return any(
            one.topic == partition.topic and topic_id_of(one.topic_id) == topic_id
            for one in self._before.partitions
        )

    def _offsets_of_other_logs(self) -> str:
        """Return offsets from before a topic was recreated or its log truncated."""
        before = self._before if self.positions.guarantee is Guarantee.EXACT else None
        if before is None:
            return ""
        stale = sorted(
            p
            for p, offset in self.positions.committed.items()
            if p in self._cut_of
            and offset.offset > 0
            and not _is_restored(self.scene, p, self.positions.committed)
            and self._offsets_before.get(p) == CommittedOffset(offset.offset, offset.metadata)
            and (cut := before.cut(p)) is not None
            and cut.topic_id != self.scene.incarnation(p)
        )
        if not stale:
            return ""
        return (
            f"the committed offset of {_listed(stale)} was committed before the topic was recreated"
            " or its log truncated, so it refers to other records now"
        )

    def _offsets_outside(self) -> Iterable[str]:
        """Yield committed offsets that are outside of their logs."""
        above: list[TopicPartitionId] = []
        for p, offset in sorted(self.positions.committed.items()):
            cut = self._cut_of.get(p)
            if cut is None:
                if p.topic in self.scene.described:
                    above.append(p)  # the topic has fewer partitions now
                continue
            if offset.offset > cut.end:
                above.append(p)
            lost = cut.log_start - offset.offset
            if lost > (_MARKERS if cut.log_start == cut.end else 0):
                yield (
                    f"offsets {offset.offset} to {cut.log_start - 1} of {p} were deleted before the"
                    " application had processed them: that input is lost"
                )
        there = [p for p in above if p in self._cut_of]
        ends = self.scene.cluster.high_watermarks(there) if there else {}
        for p in above:
            offset = self.positions.committed[p].offset
            if p not in ends:
                yield f"the group has a committed offset of {p}, a partition that does not exist"
            elif offset > ends[p]:
                yield (
                    f"the committed offset {offset} of {p} is beyond the end of its log"
                    f" ({ends[p]}): the topic was recreated, or its log truncated"
                )

    def _offsets_set_by_hand(self) -> str:
        """Return offsets that were committed outside of transactions since the newest exact point.

        Not checked if transactions were just seen, if no offset has moved since then, or if the cut
        consists of such commits of the members.
        """
        positions = self.positions
        if positions.method.is_at_commits:
            return ""
        if positions.guarantee is not Guarantee.EXACT or positions.shows_transactions:
            return ""
        moved = {
            p: offset
            for p, offset in positions.committed.items()
            if self._offsets_before.get(p) != CommittedOffset(offset.offset, offset.metadata)
            and not _is_restored(self.scene, p, positions.committed)
        }
        if not moved:
            return ""
        return _outside_of_transactions(self.scene, moved, latest_commits(self.scene, moved))

    def _truncated(self) -> Iterable[str]:
        """Yield logs that the cut needs and that were truncated since the newest point."""
        logs = self.scene.logs
        for p, text in logs.truncated.items():
            offset = self.positions.committed.get(p)
            if p in self.scene.internal or (
                offset is not None and offset.offset > logs.left.get(p, 0)
            ):
                yield text


def _listed(partitions: Sequence[TopicPartitionId]) -> str:
    more = f" and {len(partitions) - _FEW} more" if len(partitions) > _FEW else ""
    return ", ".join(map(str, partitions[:_FEW])) + more
