"""How a point is taken of an application that rests, is stopped, or runs at least once."""

import time
from collections.abc import Iterable, Mapping, Sequence

from kstreams_assets.kafka.coordinator_log import group_commits
from kstreams_assets.kafka.raw_log import LoadedBatch
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.scene import (
    NO_INTERNAL,
    READ_S,
    UNREADABLE,
    NotTaken,
    Offsets,
    Positions,
    Scene,
)
from kstreams_assets.warehouse.point import Guarantee, Method

_REST_S = 1.5
_STABLE_S = 25.0
"""An orphaned transaction is aborted after 10 s plus up to 10 s until the coordinator looks."""
_POLL_S = 0.05
_MOST = 5
_FIRST_STEP = 10_000
_COMMITS_BYTES = 32 * 1024**2
"""How much of the offsets topic is looked through for the newest commits of a stopped group."""


def sandwich(scene: Scene) -> Positions | NotTaken:
    """Offsets, a moment in which nothing is open or written, the same offsets again.

    At that moment every transaction is wholly in the logs or not begun, and since the offsets
    before and after are the same, they belong to it. For exactly-once applications only.
    """
    cluster, written = scene.cluster, scene.written
    doubt = scene.why_not_exactly_once(cluster.high_watermarks(written))
    if doubt:
        return NotTaken(doubt)
    deadline = time.monotonic() + _REST_S
    while True:
        before = scene.committed_offsets()
        first = cluster.high_watermarks(written)
        stable = cluster.last_stable_offsets(written)
        ends = cluster.high_watermarks(written)
        if first == stable == ends and scene.committed_offsets() == before:
            doubt = scene.why_not_exactly_once(ends)
            if doubt:
                return NotTaken(doubt)
            return Positions(Method.SANDWICH, Guarantee.EXACT, ends, before, ends)
        if time.monotonic() > deadline:
            return NotTaken(f"the application did not rest for a moment within {_REST_S:g} s")
        time.sleep(_POLL_S)


def quiesced(scene: Scene) -> Positions | NotTaken:
    """The group is empty, and nothing is undecided.

    Exact only where the logs show an exactly-once application. Of an `at_least_once` one that was
    killed, changelogs and outputs run ahead of the committed offsets by up to a commit interval;
    if it was closed in an orderly way they do not, but nothing in Kafka tells the two apart.
    """
    cluster, written = scene.cluster, scene.written
    refusal = _why_not_empty(scene)
    if refusal:
        return NotTaken(refusal)
    stable = cluster.last_stable_offsets(written)
    committed = scene.committed_offsets()
    ends = cluster.high_watermarks(written)
    if stable != ends:
        return NotTaken("a transaction of the stopped application is not decided yet")
    refusal = _why_not_empty(scene)
    if refusal:
        return NotTaken(refusal)
    if not committed and any(ends.values()):
        return NotTaken("the group has no committed offsets, although its topics hold records")
    doubt = _why_not_exact(scene, committed, ends)
    if not doubt:
        return Positions(Method.QUIESCED, Guarantee.EXACT, ends, committed, ends)
    note = (
        f"The group is empty, but {doubt}: the logs may be ahead of the committed offsets by up"
        " to one commit interval. The point is exact if the application was closed in an"
        " orderly way, not killed."
    )
    return Positions(Method.QUIESCED, Guarantee.AT_LEAST_ONCE, ends, committed, ends, note=note)


def _why_not_empty(scene: Scene) -> str:
    state = scene.cluster.group_state(scene.group)
    if state is None or state.is_empty:
        return ""
    return f"the group is {state.state} (type {state.type})"


def _why_not_exact(
    scene: Scene, committed: Mapping[TopicPartitionId, CommittedOffset], ends: Offsets
) -> str:
    """Why the logs do not show an exactly-once application; empty if they do.

    Internal topics that were written in transactions show it, unless an offset was committed
    outside of one since. Without internal topics every committed offset has to show it.
    """
    doubt = scene.why_not_exactly_once(ends)
    if doubt and doubt != NO_INTERNAL:
        return doubt
    if not committed and not any(ends.values()):
        return ""  # it has never processed anything
    in_transaction = newest_commits(scene, committed)
    plain = sorted(p for p, inside in in_transaction.items() if not inside)
    if plain:
        return (
            f"the offset of {plain[0]} was committed outside of transactions"
            " (processing.guarantee at_least_once, or set by hand)"
        )
    unseen = sorted(committed.keys() - in_transaction.keys())
    if doubt and unseen:
        return f"{doubt}, and the newest commit for {unseen[0]} was not found in the logs"
    return ""


def newest_commits(
    scene: Scene, wanted: Iterable[TopicPartitionId]
) -> Mapping[TopicPartitionId, bool]:
    """Whether the newest commit of the group for each partition was made in a transaction.

    Looks back through the group's partition of `__consumer_offsets`, up to 32 MiB of it. What is
    not found there, or may not be read, is left out.
    """
    partition = scene.group_log
    search = _CommitSearch(scene.group, set(wanted))
    if partition is None or not search.missing:
        return {}
    deadline, left, step = time.monotonic() + READ_S, _COMMITS_BYTES, _FIRST_STEP
    try:
        log_start = scene.cluster.log_start_offsets([partition])[partition]
        end = scene.cluster.high_watermarks([partition])[partition]
        while search.missing and log_start < end and left > 0:
            start = max(log_start, end - step)
            raw = scene.reader.read(
                {partition: OffsetRange(start, end)},
                deadline_s=max(0.0, deadline - time.monotonic()),
                limit_bytes=left,
            )[partition]
            for batch in reversed(raw.batches):
                search.look_at(batch)
            left -= sum(len(batch.data) for batch in raw.batches)
            end, step = start, 2 * step
    except UNREADABLE:
        return search.found
    return search.found


class _CommitSearch:
    """Finds the newest commit for each partition in batches that come newest first."""

    def __init__(self, group: str, missing: set[TopicPartitionId]) -> None:
        self.missing = missing
        self.found: dict[TopicPartitionId, bool] = {}
        self._group = group
        self._is_committed: dict[int, bool] = {}
        self._below: int | None = None

    def look_at(self, batch: LoadedBatch) -> None:
        """Look at a batch; one that two reads share is looked at once."""
        header = batch.header
        if self._below is not None and header.base_offset >= self._below:
            return
        self._below = header.base_offset
        if header.is_control:
            if header.control_type is not None:
                self._is_committed[header.producer_id] = header.control_type == "commit"
        elif not header.is_transactional or self._is_committed.get(header.producer_id):
            for commit in group_commits(batch, self._group):
                partition = TopicPartitionId(commit.topic, commit.partition)
                if partition in self.missing:
                    self.missing.discard(partition)
                    self.found[partition] = header.is_transactional


def offsets_first(scene: Scene) -> Positions | NotTaken:
    """Committed offsets, then ends: a restore loses nothing and may repeat.

    Read the other way round, the state would lack effects of records below the offsets. Everything
    below the ends of internal topics must be decided, as it is saved with the point: what a
    transaction's offsets cover may lie behind another's open data. All their transactions are the
    application's own, and end within seconds. An output may be held up for ever by somebody else's
    open transaction: its end stands all the same (own records may lie behind that transaction), and
    only the backup of that topic waits until it can be read.
    """
    committed = scene.committed_offsets()
    scene.between("ends")
    ends = scene.cluster.high_watermarks(scene.written)
    deadline = time.monotonic() + _STABLE_S
    while behind := _undecided(scene, scene.internal, ends):
        if time.monotonic() > deadline:
            return NotTaken(
                f"{behind[0]} was not decided up to offset {ends[behind[0]]} within"
                f" {_STABLE_S:g} s (a hanging transaction?)"
            )
        time.sleep(_POLL_S)
    notes = [] if committed else ["The application's group has no committed offsets."]
    held_up = _undecided(scene, scene.outputs, ends)
    if held_up:
        notes.append(
            f"A transaction is open in {', '.join(map(str, held_up[:_MOST]))}: the backup of"
            " that topic has to wait until it has ended."
        )
    return Positions(
        Method.OFFSETS_FIRST,
        Guarantee.AT_LEAST_ONCE,
        ends,
        committed,
        scene.cluster.high_watermarks(scene.written),
        note=" ".join(notes),
    )


def _undecided(
    scene: Scene, partitions: Sequence[TopicPartitionId], ends: Offsets
) -> list[TopicPartitionId]:
    """Partitions in which a transaction below the ends is open."""
    stable = scene.cluster.last_stable_offsets(partitions)
    return sorted(p for p, offset in stable.items() if offset < ends[p])
