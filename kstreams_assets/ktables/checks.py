"""Checks of KTables: each evaluates one snapshot of a store."""

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
    "The table may be up to one commit interval ahead of the committed offsets. Take exact points"
    " (exactly_once_v2, or a stopped application) if that matters."
)
_COMPACTED: Final = (
    "Keys may be missing. Use a window whose point is sealed, and set min.compaction.lag.ms to more"
    " than the window length and the delay of the backup."
)

KTABLE_CHECKS: Final[Mapping[str, str]] = {
    EVERY_ROW_DECODES: (
        "Keys and values of all rows match the declared format of the store, and no key is null."
        " Red: the affected rows are in the table with their bytes and `decode_error`. The message"
        " names topic, partition and offset of the first ones. Correct the format in the YAML and"
        " make the window again, or find out which program wrote the records."
    ),
    SNAPSHOT_IS_PROVED: (
        "The table has exactly the contents of the store at the recovery point of the window. Red:"
        " compaction may have removed records before they were backed up, so keys may be missing."
        " Warning: the recovery point is not exact. The message names the reason. Take a sealed,"
        " exact point, or use another window."
    ),
}


def evaluate_all(settings: ApplicationSettings, snapshots: Sequence[Snapshot]) -> list[Evaluation]:
    """Evaluate all checks of these snapshots, in their order."""
    unproved = {snapshot.point_id for snapshot in snapshots if not snapshot.proved}
    points = Repository.open(settings).points.load(sorted(unproved))
    guarantees: dict[str, Guarantee] = {point.id: point.guarantee_of_cut for point in points}
    return [
        evaluation
        for snapshot in snapshots
        for evaluation in evaluate_snapshot(snapshot, guarantees.get(snapshot.point_id))
    ]


def evaluate_snapshot(snapshot: Snapshot, guarantee: Guarantee | None) -> list[Evaluation]:
    """Evaluate all checks of a snapshot.

    `guarantee` is that of its recovery point; None if the point has expired, which counts as exact.
    """
    return [every_row_decodes(snapshot), snapshot_is_proved(snapshot, guarantee)]


def every_row_decodes(snapshot: Snapshot) -> Evaluation:
    """Check that all rows were decoded."""
    store, window = snapshot.store, snapshot.window.key
    numbers = {"rows": snapshot.rows, "problem_rows": snapshot.problem_rows}
    if snapshot.problem_rows == 0:
        text = f"All {snapshot.rows:,} rows were decoded."
        return passed(EVERY_ROW_DECODES, store, text, window=window, numbers=numbers)
    problems = "; ".join(
        f"{snapshot.topic}-{problem.partition} offset {problem.offset}: {problem.problem}"
        for problem in snapshot.problems[:_MOST]
    )
    more = snapshot.problem_rows - min(_MOST, len(snapshot.problems))
    rest = f"; and {more:,} more" if more > 0 else ""
    finding = Finding(
        store,
        f"{snapshot.problem_rows:,} of {snapshot.rows:,} rows could not be decoded:"
        f" {problems}{rest}.",
        action="They are in the table with their bytes. Correct the format of the store in the"
        " YAML and make the window again. If the format is right, find out which program wrote"
        " these records.",
    )
    return failed(EVERY_ROW_DECODES, store, [finding], window=window, numbers=numbers)


def snapshot_is_proved(snapshot: Snapshot, guarantee: Guarantee | None) -> Evaluation:
    """Check that the snapshot has exactly the contents of the store; requires an exact point."""
    store, window = snapshot.store, snapshot.window.key
    if snapshot.proved:
        text = f"Exactly the contents at recovery point {snapshot.point_id}."
        return passed(SNAPSHOT_IS_PROVED, store, text, window=window)
    weak = guarantee is Guarantee.AT_LEAST_ONCE
    finding = Finding(
        store,
        f"Recovery point {snapshot.point_id}: {snapshot.reason.rstrip('.')}.",
        action=_NOT_EXACT if weak else _COMPACTED,
        severity=Severity.WARN if weak else Severity.ERROR,
    )
    return failed(SNAPSHOT_IS_PROVED, store, [finding], window=window)
