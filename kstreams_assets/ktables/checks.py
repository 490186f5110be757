"""The checks of KTables: claims about one store in one window, judged from its snapshot. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kstreams_assets.checks import Severity
from kstreams_assets.ktables.snapshot import RowProblem, Snapshot
from kstreams_assets.warehouse.point import Guarantee

EVERY_ROW_DECODES: Final = "every_row_decodes"
SNAPSHOT_IS_PROVED: Final = "snapshot_is_proved"
_MOST: Final = 5

KTABLE_CHECKS: Final[Mapping[str, str]] = {
    EVERY_ROW_DECODES: (
        "Every row's key and value could be read as the store's declared format says, and no key is"
        " null. Red: the rows are in the table with their bytes and `decode_error`; the message"
        " names topic, partition and offset of the first ones. Correct the format in the YAML and"
        " make the window again, or find out who wrote them."
    ),
    SNAPSHOT_IS_PROVED: (
        "The table holds exactly what the store held at the window's recovery point. Red:"
        " compaction may have removed records before they were backed up, so that keys may lack."
        " Warning: the point itself is not exact. The message says why; take a sealed, exact"
        " point, or use another window."
    ),
}


@dataclass(frozen=True, slots=True)
class StoreVerdict:
    """One check of one store in one window; `explanation` says what to do when it failed."""

    check: str
    store: str
    window: str
    passed: bool
    explanation: str
    severity: Severity = Severity.ERROR
    numbers: Mapping[str, int] = field(default_factory=dict)


def judge_snapshot(snapshot: Snapshot, guarantee: Guarantee | None) -> list[StoreVerdict]:
    """Every check of a snapshot; `guarantee` is what its recovery point was taken with.

    None when the point is not there any more; it then counts as exact.
    """
    return [every_row_decodes(snapshot), snapshot_is_proved(snapshot, guarantee)]


def every_row_decodes(snapshot: Snapshot) -> StoreVerdict:
    """No row has a problem."""
    numbers = {"rows": snapshot.rows, "problem_rows": snapshot.problem_rows}
    if snapshot.problem_rows == 0:
        text = f"All {snapshot.rows:,} rows were decoded."
        return _verdict(snapshot, EVERY_ROW_DECODES, True, text, numbers)
    told = "; ".join(_told(snapshot.topic, problem) for problem in snapshot.problems[:_MOST])
    more = snapshot.problem_rows - min(_MOST, len(snapshot.problems))
    rest = f"; and {more:,} more" if more > 0 else ""
    return _verdict(
        snapshot,
        EVERY_ROW_DECODES,
        False,
        f"{snapshot.problem_rows:,} of {snapshot.rows:,} rows could not be decoded: {told}{rest}."
        " They are in the table with their bytes. Correct the format of the store in the YAML and"
        " make the window again; if the format is right, find out who wrote these records.",
        numbers,
    )


def snapshot_is_proved(snapshot: Snapshot, guarantee: Guarantee | None) -> StoreVerdict:
    """The snapshot is exactly the store's content; of a point that is not exact it cannot be."""
    if snapshot.proved:
        text = f"Exactly the content at recovery point {snapshot.point_id}."
        return _verdict(snapshot, SNAPSHOT_IS_PROVED, True, text)
    weak = guarantee is Guarantee.AT_LEAST_ONCE
    why = snapshot.reason.rstrip(".")
    remedy = (
        "The table may be up to one commit interval ahead of the committed offsets; take exact"
        " points (exactly_once_v2, or a stopped application) if that matters."
        if weak
        else "Keys may lack. Use a window whose point is sealed, and set min.compaction.lag.ms to"
        " more than the window length and the delay of the backup."
    )
    return _verdict(
        snapshot,
        SNAPSHOT_IS_PROVED,
        False,
        f"Recovery point {snapshot.point_id}: {why}. {remedy}",
        severity=Severity.WARN if weak else Severity.ERROR,
    )


def _told(topic: str, problem: RowProblem) -> str:
    return f"{topic}-{problem.partition} offset {problem.offset}: {problem.problem}"


def _verdict(
    snapshot: Snapshot,
    check: str,
    passed: bool,
    explanation: str,
    numbers: Mapping[str, int] | None = None,
    severity: Severity = Severity.ERROR,
) -> StoreVerdict:
    return StoreVerdict(
        check=check,
        store=snapshot.store,
        window=snapshot.window.key,
        passed=passed,
        explanation=explanation,
        severity=severity,
        numbers=numbers or {},
    )
