"""The parts of a store's state at a recovery point."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kstreams_assets.app.model import NO_ROLES, TopicRoles
from kstreams_assets.app.store_format import StoreKind
from kstreams_assets.model.data_files import SpanFile, TableScan
from kstreams_assets.model.point import PartitionCut, RecoveryPoint
from kstreams_assets.model.snapshot import Snapshot, SnapshotPartition, TableStore
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition: the position of the state, and the records to read for it.

    `ranges` of records are read from the backup (in order, disjoint). Of the base, the rows whose
    offset is in `base_rows` count; None without a base. `saved` are the offsets whose records are
    also looked up among those saved with recovery points.
    """

    cut: PartitionCut
    ranges: Sequence[OffsetRange]
    base_rows: OffsetRange | None = None
    saved: Sequence[OffsetRange] = ()
    files: Sequence[SpanFile] = ()


@dataclass(frozen=True, slots=True)
class StoreState:
    """The state of a store at a recovery point: a base, and records above it.

    `base` is a snapshot that exists or is made before it is used: only its position counts.
    `proved`: whether this exactly equals the store's content; `reason` says why. `records` and
    `bytes` are those of the backup, without saved records. `scan` reads the files of all
    partitions through the table of records; None where it cannot.
    """

    store: TableStore
    point: RecoveryPoint
    partitions: tuple[PartitionPlan, ...]
    base: Snapshot | None
    proved: bool
    reason: str
    records: int = 0
    bytes: int = 0
    scan: TableScan | None = None


def state_cuts(
    point: RecoveryPoint, topic: str, roles: TopicRoles = NO_ROLES
) -> list[PartitionCut]:
    """The positions of a topic's state at a point, by partition.

    For an input that is also a changelog, the store contains the records up to the committed
    offset, and none without a committed offset. `roles` are the topic's, for points of an earlier
    release, which do not have them.
    """
    cuts = [
        cut if cut.roles else replace(cut, roles=roles)
        for cut in sorted(point.partitions, key=lambda c: c.partition)
        if cut.topic == topic
    ]
    return [_until(cut, point.group.offset_in(cut)) for cut in cuts]


def choose_base(
    store: TableStore, cuts: Sequence[PartitionCut], snapshots: Iterable[Snapshot]
) -> Snapshot | None:
    """The snapshot of the last window on which a state at these cuts can be based."""
    fitting = (s for s in snapshots if _may_build_on(store, s, cuts))
    return max(fitting, key=lambda s: s.window, default=None)


def plan_partitions(cuts: Iterable[PartitionCut], base: Snapshot | None) -> list[PartitionPlan]:
    """The records to read of each partition.

    Records of ranges that the base excluded are below its end: everything from the first of them is
    read again, including deletions, and the base's rows from there on do not count.
    """
    stood = {part.partition: part for part in base.partitions} if base else {}
    return [_plan_partition(cut, stood.get(cut.partition)) for cut in cuts]


def with_saved(part: PartitionPlan, thinned: Iterable[OffsetRange]) -> PartitionPlan:
    """A copy with the offsets whose records may have been saved with recovery points.

    These are offsets that the point itself saved, and holes in backups that were already compacted
    when they were read, because an earlier point may have saved the missing records.
    """
    wanted = list(thinned)
    if part.cut.saved_from is not None:
        wanted.append(OffsetRange(part.cut.saved_from, part.cut.end))
    return replace(part, saved=RangeSet(part.ranges) & wanted)


def saved_cuts(parts: Iterable[PartitionPlan]) -> Mapping[TopicPartitionId, PartitionCut]:
    """Cuts that have saved exactly the offsets to look up."""
    cuts = {}
    for part in parts:
        if part.saved:
            low, high = part.saved[0].start, part.saved[-1].end
            cuts[part.cut.id] = replace(
                part.cut,
                saved_from=low,
                end=high,
                excluded=tuple(RangeSet.of(low, high, without=part.saved)),
            )
    return cuts


def _until(cut: PartitionCut, committed: int | None) -> PartitionCut:
    is_source_changelog = cut.roles.is_source_changelog
    if committed is None and cut.roles.is_input:
        committed = cut.log_start
    if not is_source_changelog or committed is None or committed >= cut.end:
        return cut
    end = max(committed, cut.log_start)
    return replace(cut, end=end, excluded=tuple(RangeSet(cut.excluded).clip(0, end)))


def _may_build_on(store: TableStore, base: Snapshot, cuts: Sequence[PartitionCut]) -> bool:
    if base.topic != store.topic or base.fingerprint != store.format.fingerprint:
        return False
    now = {cut.partition: cut for cut in cuts}
    return all(
        (cut := now.get(part.partition)) is not None
        and _follows(part, cut, versioned=store.format.kind is StoreKind.VERSIONED)
        for part in base.partitions
    )


def _follows(part: SnapshotPartition, cut: PartitionCut, *, versioned: bool) -> bool:
    """Whether the base contains only records of the cut, except deleted or expired ones."""
    if part.topic_id != cut.topic_id or part.end > cut.end or part.log_start > cut.log_start:
        return False
    if versioned and (part.excluded or part.log_start != cut.log_start):
        # A store's decision about late versions depends on all the records before them.
        return False
    return all(
        RangeSet(part.excluded).covers(bad.start, bad.end)
        for bad in RangeSet(cut.excluded).clip(0, part.end)
    )


def _plan_partition(cut: PartitionCut, base: SnapshotPartition | None) -> PartitionPlan:
    if base is None:
        return PartitionPlan(cut, cut.records_from(cut.log_start))
    start = max(cut.log_start, min(base.whole_below, cut.end))
    return PartitionPlan(
        cut,
        cut.records_from(start),
        base_rows=OffsetRange(cut.log_start, max(cut.log_start, base.whole_below)),
    )


def base_ranges(
    state: StoreState, base: Snapshot | None
) -> Mapping[int, Sequence[OffsetRange]] | None:
    """The rows of the base that count; None for all."""
    if base is None:
        return None
    stood = {part.partition: part for part in base.partitions}
    rows = {
        part.cut.partition: part.base_rows
        for part in state.partitions
        if part.base_rows is not None
    }
    if all(rows[number] == OffsetRange(part.log_start, part.end) for number, part in stood.items()):
        return None
    return {number: [kept] for number, kept in rows.items()}
