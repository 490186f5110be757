"""Checks with one evaluation for each window, as Dagster's specs and events."""

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import dagster as dg

from kstreams_assets.checks import Evaluation, Severity, by_window

CHECK_SEVERITY: Final = {
    Severity.ERROR: dg.AssetCheckSeverity.ERROR,
    Severity.WARN: dg.AssetCheckSeverity.WARN,
}
_MOST: Final = 10
TOOK: Final = "evaluation_took_s"
"""Metadata of a check: how long its evaluation took."""
_SHARE: Final = 20
"""Checks of sensors are evaluated so seldom that they take at most a twentieth of the time."""


def window_check_specs(
    checks: Mapping[dg.AssetKey, Mapping[str, str]],
    windows: dg.TimeWindowPartitionsDefinition,
    *,
    blocking: bool = False,
) -> list[dg.AssetCheckSpec]:
    """The specs of checks, given by asset as name -> claim."""
    with warnings.catch_warnings():
        # Partitions of checks are a preview in this Dagster; it is pinned, and tests cover them.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return [
            dg.AssetCheckSpec(
                name, asset=key, description=text, blocking=blocking, partitions_def=windows
            )
            for key, of_asset in checks.items()
            for name, text in of_asset.items()
        ]


def window_check_events(
    context: dg.AssetExecutionContext,
    key: dg.AssetKey,
    check: str,
    verdicts: Sequence[Evaluation],
) -> Iterator[dg.AssetCheckResult | dg.AssetCheckEvaluation]:
    """One evaluation for each window; for a range also the summary that Dagster demands."""
    if not context.has_partition_key:
        for verdict in verdicts:
            yield window_evaluation(key, check, verdict)
    failed = [verdict for verdict in verdicts if not verdict.passed]
    worst = any(verdict.severity is Severity.ERROR for verdict in failed)
    text = "\n\n".join(by_window(failed)[:_MOST])
    yield dg.AssetCheckResult(
        asset_key=key,
        check_name=check,
        passed=not failed,
        severity=dg.AssetCheckSeverity.ERROR if worst or not failed else dg.AssetCheckSeverity.WARN,
        description=text or verdicts[-1].explanation,
        metadata={"windows": len(verdicts), "failed_windows": len(failed)},
    )


def window_evaluation(key: dg.AssetKey, check: str, verdict: Evaluation) -> dg.AssetCheckEvaluation:
    """How one check came out in one window."""
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=check,
        partition=verdict.window,
        passed=verdict.passed,
        severity=CHECK_SEVERITY[verdict.severity],
        description=verdict.explanation,
        metadata=metadata_numbers(verdict.numbers),
    )


def metadata_numbers(numbers: Mapping[str, int]) -> dict[str, dg.MetadataValue]:
    """Numbers as metadata, which the UI plots."""
    return {name: dg.MetadataValue.int(value) for name, value in numbers.items()}


def is_check_due(instance: dg.DagsterInstance, key: dg.AssetCheckKey, *, every_s: float) -> bool:
    """Whether a sensor is to evaluate a check again.

    Dagster's own record decides: a cursor is not kept when a tick fails.
    """
    record = instance.get_latest_asset_check_evaluation_record(key)
    event = record.event if record else None
    evaluation = event.asset_check_evaluation if event else None
    if event is None or evaluation is None:  # never, or a run that evaluates it did not end
        return True
    took = evaluation.metadata.get(TOOK)
    took_s = took.value if isinstance(took, dg.FloatMetadataValue) and took.value else 0.0
    return not 0 <= time.time() - event.timestamp < max(every_s, _SHARE * took_s)
