"""The checks of KTables: claims about one store in one window, judged from its snapshot."""

from collections.abc import Mapping, Sequence
from typing import Final

from kstreams_assets.checks import Evaluation, Finding, Severity, failed, passed
from kstreams_assets.model.point import Guarantee
from kstreams_assets.model.snapshot import Snapshot
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings

EVERY_ROW_DECODES: Final = "every_row_decodes"
SNAPSHOT_IS_PROVED: Final = "snapshot_is_proved"
_MOST: Final = 5
_NOT_EXACT: Final = (
    "The table may be up to one commit interval ahead of the committed offsets; take exact points"
    " (exactly_once_v2, or a stopped application) if that matters."
)
_THINNED: Final = (
    "Keys may be missing. Use a window whose point is sealed, and set min.compaction.lag.ms to more"
    " than the window length and the delay of the backup."
)

KTABLE_CHECKS: Final[Mapping[str, str]] = {
    EVERY_ROW_DECODES: (
        "Every row's key and value could be read as the store's declared format says, and no key is"
        " null. Red: the rows are in the table with their bytes and `decode_error`; the message"
        " names topic, partition and offset of the first ones. Correct the format in the YAML and"
        " make the window again, or find out who wrote them."
    ),
    SNAPSHOT_IS_PROVED: (
        "The table holds exactly what the store held at the window's recovery point. Red:"
        " compaction may have removed records before they were backed up: keys may be missing."
        " Warning: the point itself is not exact. The message says why; take a sealed, exact"
        " point, or use another window."
    ),
}


def judge_all(settings: ApplicationSettings, snapshots: Sequence[Snapshot]) -> list[Evaluation]:
    """Every check of these snapshots, in their order."""
    unproved = {snapshot.point_id for snapshot in snapshots if not snapshot.proved}
    points = Repository.open(settings).points.load(sorted(unproved))
    guarantees: dict[str, Guarantee] = {point.id: point.guarantee_of_cut for point in points}
    return [
        evaluation
        for snapshot in snapshots
        for evaluation in judge_snapshot(snapshot, guarantees.get(snapshot.point_id))
    ]


def judge_snapshot(snapshot: Snapshot, guarantee: Guarantee | None) -> list[Evaluation]:
    """Every check of a snapshot; `guarantee` is what its recovery point was taken with.

    None when the point is not there any more; it then counts as exact.
    """
    return [every_row_decodes(snapshot), snapshot_is_proved(snapshot, guarantee)]


def every_row_decodes(snapshot: Snapshot) -> Evaluation:
    """No row has a problem."""
    store, window = snapshot.store, snapshot.window.key
    numbers = {"rows": snapshot.rows, "problem_rows": snapshot.problem_rows}
    if snapshot.problem_rows == 0:
        text = f"All {snapshot.rows:,} rows were decoded."
        return passed(EVERY_ROW_DECODES, store, text, window=window, numbers=numbers)
    told = "; ".join(
        f"{snapshot.topic}-{problem.partition} offset {problem.offset}: {problem.problem}"
        for problem in snapshot.problems[:_MOST]
    )
    more = snapshot.problem_rows - min(_MOST, len(snapshot.problems))
    rest = f"; and {more:,} more" if more > 0 else ""
    finding = Finding(
        store,
        f"{snapshot.problem_rows:,} of {snapshot.rows:,} rows could not be decoded: {told}{rest}.",
        action="They are in the table with their bytes. Correct the format of the store in the"
        " YAML and make the window again; if the format is right, find out who wrote these"
        " records.",
    )
    return failed(EVERY_ROW_DECODES, store, [finding], window=window, numbers=numbers)


def snapshot_is_proved(snapshot: Snapshot, guarantee: Guarantee | None) -> Evaluation:
    """The snapshot is exactly the store's content; of a point that is not exact it cannot be."""
    store, window = snapshot.store, snapshot.window.key
    if snapshot.proved:
        text = f"Exactly the content at recovery point {snapshot.point_id}."
        return passed(SNAPSHOT_IS_PROVED, store, text, window=window)
    weak = guarantee is Guarantee.AT_LEAST_ONCE
    finding = Finding(
        store,
        f"Recovery point {snapshot.point_id}: {snapshot.reason.rstrip('.')}.",
        action=_NOT_EXACT if weak else _THINNED,
        severity=Severity.WARN if weak else Severity.ERROR,
    )
    return failed(SNAPSHOT_IS_PROVED, store, [finding], window=window)
