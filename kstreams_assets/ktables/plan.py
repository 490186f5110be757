"""What a snapshot of one store in one window takes from where. Pure.

A snapshot holds what the records of its topic in `[log start, end)` outside the excluded ranges of
the window's closing recovery point leave behind. It is made from the nearest earlier snapshot on
which it may build (its base) and the records that this one did not hold, or from all records.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kstreams_assets.app.store_format import StoreKind
from kstreams_assets.ktables.snapshot import Snapshot, SnapshotPartition, TableStore
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.store import StorePath
from kstreams_assets.warehouse.point import PartitionCut, RecoveryPoint
from kstreams_assets.warehouse.records import SpanFile
from kstreams_assets.warehouse.spans import Window
from spark_resources.work import Renumbering, SnapshotWork


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition: where the state stands, and what is read for it.

    `ranges` of records are read from the backup (in order, disjoint). Of the base those rows count
    whose offset lies in `base_rows`; None without a base. `saved` are the offsets of which records
    that were saved with recovery points are looked up besides.
    """

    cut: PartitionCut
    ranges: Sequence[OffsetRange]
    base_rows: OffsetRange | None = None
    saved: Sequence[OffsetRange] = ()
    files: Sequence[SpanFile] = ()


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """One snapshot to make.

    `base` is a snapshot that is there or one that is made before this one in the same run: only
    where it stands counts. `records` and `bytes` are those of the backup, without saved records.
    """

    store: TableStore
    window: Window
    point: RecoveryPoint
    partitions: tuple[PartitionPlan, ...]
    base: Snapshot | None
    proved: bool
    reason: str
    records: int = 0
    bytes: int = 0

    def promised(self, application_id: str) -> Snapshot:
        """The snapshot as far as it is known before it is made."""
        return Snapshot(
            application_id=application_id,
            store=self.store.store,
            topic=self.store.topic,
            window=self.window,
            point_id=self.point.id,
            taken_at_ms=self.point.taken_at_ms,
            proved=self.proved,
            reason=self.reason,
            base_window=self.base.window.key if self.base else None,
            fingerprint=self.store.format.fingerprint,
            partitions=tuple(
                SnapshotPartition(
                    partition=part.cut.partition,
                    topic_id=part.cut.topic_id,
                    log_start=part.cut.log_start,
                    end=part.cut.end,
                    excluded=part.cut.excluded,
                )
                for part in self.partitions
            ),
            records=self.records,
        )


def state_cuts(point: RecoveryPoint, topic: str) -> list[PartitionCut]:
    """Where the state that a topic holds stood at a point, by partition.

    The application has put an input that serves as changelog into its store up to the committed
    offset, and nothing of it where it has not committed any.
    """
    committed = {(o.topic, o.partition): o.offset for o in point.group_offsets}
    return [
        _until(cut, committed.get((topic, cut.partition)))
        for cut in sorted(point.partitions, key=lambda c: c.partition)
        if cut.topic == topic
    ]


def choose_base(
    store: TableStore,
    window: Window,
    cuts: Sequence[PartitionCut],
    snapshots: Iterable[Snapshot],
) -> Snapshot | None:
    """The snapshot of the nearest earlier window on which one of these cuts can build."""
    earlier = (s for s in snapshots if s.window.end_ms <= window.start_ms)
    fitting = (s for s in earlier if _may_build_on(store, s, cuts))
    return max(fitting, key=lambda s: s.window, default=None)


def plan_partitions(cuts: Iterable[PartitionCut], base: Snapshot | None) -> list[PartitionPlan]:
    """What is to be read of each partition.

    Records of ranges that the base excluded lie below its end: everything from the first of them on
    is read again, deletions too, and the base's rows from there on do not count.
    """
    stood = {part.partition: part for part in base.partitions} if base else {}
    return [_plan_partition(cut, stood.get(cut.partition)) for cut in cuts]


def with_saved(part: PartitionPlan, thinned: Iterable[OffsetRange]) -> PartitionPlan:
    """The same with the offsets whose records may have been saved with recovery points.

    From where the point itself saved them on; and where backups were thinned out before they were
    read, since an earlier point may have saved what they lack.
    """
    wanted = list(thinned)
    if part.cut.saved_from is not None:
        wanted.append(OffsetRange(part.cut.saved_from, part.cut.end))
    return replace(part, saved=RangeSet(part.ranges) & wanted)


def saved_cuts(parts: Iterable[PartitionPlan]) -> Mapping[TopicPartitionId, PartitionCut]:
    """Cuts that have saved exactly the offsets that are to be looked up."""
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
    """Whether nothing is in the base that is not in the cut, deleted or expired records aside."""
    if part.topic_id != cut.topic_id or part.end > cut.end or part.log_start > cut.log_start:
        return False
    if versioned and (part.excluded or part.log_start != cut.log_start):
        # Which late versions a store takes depends on all the records before them.
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


def work_of(
    plan: SnapshotPlan,
    base: Snapshot | None,
    base_files: Sequence[StorePath],
    saved_file: StorePath | None,
    saved_records: int = 0,
) -> SnapshotWork:
    """The work of a plan, once its base is there and saved records are staged."""
    whole: list[StorePath] = []
    cut: list[StorePath] = []
    for part in plan.partitions:
        for file in part.files:
            inside = RangeSet(part.ranges).covers(file.first_offset, file.last_offset + 1)
            (whole if inside else cut).append(file.path)
    records = plan.records + saved_records + (base.rows if base else 0)
    times = {part.partition: part.stream_time_ms for part in base.partitions} if base else {}
    return SnapshotWork(
        window=plan.window.key,
        format=plan.store.format,
        partitions=tuple(part.cut.partition for part in plan.partitions),
        base_files=tuple(base_files),
        base_ranges=_base_ranges(plan, base),
        whole_files=tuple(whole),
        cut_files=tuple(cut),
        ranges={part.cut.partition: part.ranges for part in plan.partitions},
        saved_file=saved_file,
        stream_times={number: at for number, at in times.items() if at is not None},
        records=records,
        record_bytes=(plan.bytes + (base.bytes if base else 0)) / max(records, 1),
        renumbering=Renumbering.of(file for part in plan.partitions for file in part.files),
    )


def _base_ranges(
    plan: SnapshotPlan, base: Snapshot | None
) -> Mapping[int, Sequence[OffsetRange]] | None:
    """The rows of the base that count; None where all of them do."""
    if base is None:
        return None
    stood = {part.partition: part for part in base.partitions}
    rows = {
        part.cut.partition: part.base_rows for part in plan.partitions if part.base_rows is not None
    }
    if all(rows[number] == OffsetRange(part.log_start, part.end) for number, part in stood.items()):
        return None
    return {number: [kept] for number, kept in rows.items()}
