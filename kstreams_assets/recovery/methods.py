"""What the methods of taking a point have in common, and those for an idle application."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kstreams_assets.errors import (
    AuthorizationFailedError,
    CoordinatorRecordError,
    CorruptBatchError,
    OffsetOutOfRangeError,
    RawReadLimitError,
    RawReadTimeoutError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.coordinator_log import (
    CONSUMER_OFFSETS,
    coordinator_partition,
    group_commits,
)
from kstreams_assets.kafka.raw_log import LoadedBatch, RawLogReader
from kstreams_assets.offsets import CommittedOffset, OffsetRange, TopicPartitionId
from kstreams_assets.recovery.standing import Standing
from kstreams_assets.warehouse.point import Guarantee, Method

Offsets = Mapping[TopicPartitionId, int]

UNREADABLE = (
    AuthorizationFailedError,
    CoordinatorRecordError,
    CorruptBatchError,
    OffsetOutOfRangeError,
    RawReadLimitError,
    RawReadTimeoutError,
)
"""Why the raw log of a partition could not be read as a method needs it."""


def _go_on(_step: str) -> None:
    """No pause between the steps."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a method works on. `between` is called between its steps, with the name of the next.

    `group_log` is the group's partition of `__consumer_offsets`, None where that is not visible.
    `exact_ends` are the ends of the logs at an earlier point that is exact.
    """

    cluster: KafkaCluster
    reader: RawLogReader
    standing: Standing
    lookback_s: float = 60.0
    between: Callable[[str], None] = _go_on
    group_log: TopicPartitionId | None = None
    exact_ends: Offsets = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The application's consumer group."""
        return self.standing.application.application_id


@dataclass(frozen=True, slots=True)
class Positions:
    """What a method found: ends (exclusive) of all that the application writes, and offsets.

    `high_watermarks` bound a raw read in which every record below the ends is decided.
    """

    method: Method
    guarantee: Guarantee
    ends: Offsets
    committed: Mapping[TopicPartitionId, CommittedOffset]
    high_watermarks: Offsets
    excluded: Mapping[TopicPartitionId, tuple[OffsetRange, ...]] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Why a method gave no positions, and whether another try may."""

    reason: str
    again: bool = False


def committed_offsets(
    scene: Scene, before_retry: Callable[[], None] | None = None
) -> Mapping[TopicPartitionId, CommittedOffset]:
    """What the group has committed, also for topics that nobody declared; named ones last.

    The application's own are asked for by name: a partition whose very first offset is still in
    an open transaction would otherwise be left out without a word.
    """
    if scene.group_log is not None:
        scene.cluster.high_watermarks([scene.group_log])  # its leader's epoch is noted: it answers
    others = scene.cluster.group_offsets(scene.group, before_retry=before_retry)
    read = scene.standing.read
    if not read:
        return others
    named = scene.cluster.group_offsets(scene.group, partitions=read, before_retry=before_retry)
    asked = set(read)
    return {**{p: o for p, o in others.items() if p not in asked}, **named}


_READ_S = 15.0


def since(
    scene: Scene, partitions: Iterable[TopicPartitionId], lookback_s: float
) -> dict[TopicPartitionId, tuple[int, int]]:
    """For each partition, from which offset on its newest `lookback_s` lie, and its end.

    Counted back from the newest record: it was written by a broker's clock, as the ones looked for,
    so that a wrong clock here does no harm.
    """
    wanted = list(partitions)
    starts = scene.cluster.log_start_offsets(wanted)
    ends = scene.cluster.high_watermarks(wanted)
    newest = scene.reader.read(
        {p: OffsetRange(max(starts[p], ends[p] - 1), ends[p]) for p in wanted}, deadline_s=_READ_S
    )
    times = {
        p: raw.batches[-1].header.max_timestamp - round(lookback_s * 1000)
        for p, raw in newest.items()
        if raw.batches
    }
    found = scene.cluster.offsets_for_times(times)
    return {p: (found.get(p) or starts[p], ends[p]) for p in wanted}


_REST_S = 1.5
_STABLE_S = 25.0
"""An orphaned transaction is aborted after 10 s plus up to 10 s until the coordinator looks."""
_POLL_S = 0.05
_NO_INTERNAL = "no internal topic holds a record that shows the processing guarantee"
_MOST = 5
_FIRST_STEP = 10_000
_COMMITS_BYTES = 32 * 1024**2
"""How much of the offsets topic is looked through for the newest commits of a stopped group."""


@dataclass(frozen=True, slots=True)
class SandwichMethod:
    """Offsets, a moment in which nothing is open or written, the same offsets again.

    At that moment every transaction is wholly in the logs or not begun, and since the offsets
    before and after are the same, they belong to it. For exactly-once applications only.
    """

    scene: Scene

    def take(self) -> Positions | NotTaken:
        """Positions of the application now, or why not."""
        cluster, written = self.scene.cluster, self.scene.standing.written
        doubt = why_not_exactly_once(self.scene, cluster.high_watermarks(written))
        if doubt:
            return NotTaken(doubt)
        deadline = time.monotonic() + _REST_S
        while True:
            before = committed_offsets(self.scene)
            first = cluster.high_watermarks(written)
            stable = cluster.last_stable_offsets(written)
            ends = cluster.high_watermarks(written)
            if first == stable == ends and committed_offsets(self.scene) == before:
                doubt = why_not_exactly_once(self.scene, ends)
                if doubt:
                    return NotTaken(doubt)
                return Positions(Method.SANDWICH, Guarantee.EXACT, ends, before, ends)
            if time.monotonic() > deadline:
                return NotTaken(f"the application did not rest for a moment within {_REST_S:g} s")
            time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class QuiescedMethod:
    """The group is empty, and nothing is undecided.

    Exact only where the logs show an exactly-once application. Of an `at_least_once` one that was
    killed, changelogs and outputs run ahead of the committed offsets by up to a commit interval;
    if it was closed in an orderly way they do not, but nothing in Kafka tells the two apart.
    """

    scene: Scene

    def take(self) -> Positions | NotTaken:
        """Positions of the application now, or why not."""
        cluster, written = self.scene.cluster, self.scene.standing.written
        refusal = self._not_empty()
        if refusal:
            return NotTaken(refusal)
        stable = cluster.last_stable_offsets(written)
        committed = committed_offsets(self.scene)
        ends = cluster.high_watermarks(written)
        if stable != ends:
            return NotTaken("a transaction of the stopped application is not decided yet")
        refusal = self._not_empty()
        if refusal:
            return NotTaken(refusal)
        if not committed and any(ends.values()):
            return NotTaken("the group has no committed offsets, although its topics hold records")
        doubt = self._why_not_exact(committed, ends)
        if not doubt:
            return Positions(Method.QUIESCED, Guarantee.EXACT, ends, committed, ends)
        note = (
            f"The group is empty, but {doubt}: the logs may be ahead of the committed offsets by up"
            " to one commit interval. The point is exact if the application was closed in an"
            " orderly way, not killed."
        )
        return Positions(Method.QUIESCED, Guarantee.AT_LEAST_ONCE, ends, committed, ends, note=note)

    def _why_not_exact(
        self, committed: Mapping[TopicPartitionId, CommittedOffset], ends: Offsets
    ) -> str:
        """Why the logs do not show an exactly-once application; empty if they do.

        Internal topics that were written in transactions show it, unless an offset was committed
        outside of one since. Without internal topics every committed offset has to show it.
        """
        doubt = why_not_exactly_once(self.scene, ends)
        if doubt and doubt != _NO_INTERNAL:
            return doubt
        if not committed and not any(ends.values()):
            return ""  # it has never processed anything
        in_transaction = newest_commits(self.scene, committed)
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

    def _not_empty(self) -> str:
        state = self.scene.cluster.group_state(self.scene.group)
        if state is None or state.is_empty:
            return ""
        return f"the group is {state.state} (type {state.type})"


@dataclass(frozen=True, slots=True)
class OffsetsFirstMethod:
    """Committed offsets, then ends: a restore loses nothing and may repeat.

    Read the other way round, the state would lack effects of records below the offsets. Everything
    below the ends of internal topics must be decided, as it is saved with the point: what a
    transaction's offsets cover may lie behind another's open data. All their transactions are the
    application's own, and end within seconds. An output may be held up for ever by somebody else's
    open transaction: its end stands all the same (own records may lie behind that transaction), and
    only the backup of that topic waits until it can be read.
    """

    scene: Scene

    def take(self) -> Positions | NotTaken:
        """Positions of the application now, or why not."""
        cluster, written = self.scene.cluster, self.scene.standing.written
        internal = self.scene.standing.internal
        committed = committed_offsets(self.scene)
        self.scene.between("ends")
        ends = cluster.high_watermarks(written)
        deadline = time.monotonic() + _STABLE_S
        while behind := self._undecided(internal, ends):
            if time.monotonic() > deadline:
                return NotTaken(
                    f"{behind[0]} was not decided up to offset {ends[behind[0]]} within"
                    f" {_STABLE_S:g} s (a hanging transaction?)"
                )
            time.sleep(_POLL_S)
        notes = [] if committed else ["The application's group has no committed offsets."]
        held_up = self._undecided(self.scene.standing.outputs, ends)
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
            cluster.high_watermarks(written),
            note=" ".join(notes),
        )

    def _undecided(
        self, partitions: Sequence[TopicPartitionId], ends: Offsets
    ) -> list[TopicPartitionId]:
        """Partitions in which a transaction below the ends is open."""
        stable = self.scene.cluster.last_stable_offsets(partitions)
        return sorted(p for p, offset in stable.items() if offset < ends[p])


def why_not_exactly_once(scene: Scene, ends: Offsets) -> str:
    """Why the newest batches of internal topics do not show an exactly-once application.

    Empty when every one was written in a transaction. An at_least_once application commits offsets
    long after its changelogs, so that the same offsets twice prove nothing.
    """
    internal = scene.standing.internal
    starts = scene.cluster.log_start_offsets(internal)
    newest = {p: OffsetRange(ends[p] - 1, ends[p]) for p in internal if ends[p] > starts[p]}
    if not newest:
        return _NO_INTERNAL
    try:
        raw = scene.reader.read(newest, deadline_s=_READ_S)
    except UNREADABLE as error:
        return error.problem.rstrip(".")
    batches = {p: one.batches[-1].header for p, one in raw.items() if one.batches}
    if not batches:
        return "compaction left no record that shows the processing guarantee"
    plain = [p for p, batch in batches.items() if not batch.is_transactional]
    if plain:
        return f"{plain[0]} is written without transactions (processing.guarantee at_least_once)"
    return ""


def newest_commits(
    scene: Scene, wanted: Iterable[TopicPartitionId]
) -> Mapping[TopicPartitionId, bool]:
    """Whether the newest commit of the group for each partition was made in a transaction.

    Looks back through the group's partition of `__consumer_offsets`, up to 32 MiB of it. What is
    not found there, or may not be read, is left out.
    """
    topic = scene.cluster.metadata().topics.get(CONSUMER_OFFSETS)
    missing = set(wanted)
    if topic is None or not missing:
        return {}
    partition = TopicPartitionId(
        CONSUMER_OFFSETS, coordinator_partition(scene.group, topic.partitions)
    )
    search = _CommitSearch(scene.group, missing)
    deadline, left, step = time.monotonic() + _READ_S, _COMMITS_BYTES, _FIRST_STEP
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
