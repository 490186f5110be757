"""What a Spark job makes a snapshot from, and what it made. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kstreams_assets.ktables.plan import SnapshotPlan
from kstreams_assets.ktables.snapshot import RowProblem, Snapshot
from kstreams_assets.ktables.store_format import StoreFormat
from kstreams_assets.offsets import OffsetRange


@dataclass(frozen=True, slots=True)
class SnapshotWork:
    """The rows of one snapshot: which files hold them, which of their offsets count.

    Of `base_files` (an earlier window of the same table) the rows in `base_ranges` count, of
    `whole_files` and `saved_file` all, of `cut_files` those in `ranges`; both are by partition.
    `saved_file` may repeat offsets of the span files. `stream_times` are those of the base.
    `records` is about how many there are in all of these, `record_bytes` what one takes.
    """

    window: str
    format: StoreFormat
    partitions: tuple[int, ...]
    base_files: tuple[str, ...]
    base_ranges: Mapping[int, Sequence[OffsetRange]] | None
    whole_files: tuple[str, ...]
    cut_files: tuple[str, ...]
    ranges: Mapping[int, Sequence[OffsetRange]]
    saved_file: str | None = None
    stream_times: Mapping[int, int] = field(default_factory=dict)
    records: int = 0
    record_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class PartitionContent:
    """What a snapshot holds of one partition (see `SnapshotPartition`)."""

    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotContent:
    """A snapshot as it was written."""

    delta_version: int
    partitions: Mapping[int, PartitionContent]
    stream_times: Mapping[int, int]
    problem_rows: int
    problems: tuple[RowProblem, ...]


def work_of(
    plan: SnapshotPlan,
    base: Snapshot | None,
    base_files: Sequence[str],
    saved_file: str | None,
    saved_records: int = 0,
) -> SnapshotWork:
    """The work of a plan, once its base is there and saved records are staged."""
    whole: list[str] = []
    cut: list[str] = []
    for part in plan.partitions:
        for file in part.files:
            inside = any(
                r.start <= file.first_offset and file.last_offset < r.end for r in part.ranges
            )
            (whole if inside else cut).append(str(file.path))
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
