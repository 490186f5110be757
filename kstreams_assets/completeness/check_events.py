"""Evaluations of completeness rules as Dagster's events, with the rows in violation."""

from collections.abc import Iterator, Sequence
from typing import Final

import dagster as dg

from kstreams_assets.backup.check_events import CHECK_SEVERITY
from kstreams_assets.completeness.checks import explanation_of, is_red, severity_of
from kstreams_assets.completeness.metadata import rule_metadata
from kstreams_assets.completeness.result import RuleResult

_MOST: Final = 10


def rule_check_events(
    context: dg.AssetExecutionContext,
    key: dg.AssetKey,
    check: str,
    results: Sequence[RuleResult],
) -> Iterator[dg.AssetCheckResult | dg.AssetCheckEvaluation]:
    """One evaluation for each window; for a range also the summary that Dagster demands."""
    if context.has_partition_key and len(results) == 1:
        yield rule_check_result(key, check, results[0])
        return
    for result in results:
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=check,
            partition=result.window,
            passed=result.passed,
            severity=CHECK_SEVERITY[severity_of(result)],
            description=explanation_of(result),
            metadata=rule_metadata(result),
        )
    yield _summary(key, check, results)


def rule_check_result(key: dg.AssetKey, check: str, result: RuleResult) -> dg.AssetCheckResult:
    """The evaluation of one rule."""
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=check,
        passed=result.passed,
        severity=CHECK_SEVERITY[severity_of(result)],
        description=explanation_of(result),
        metadata=rule_metadata(result),
    )


def _summary(key: dg.AssetKey, check: str, results: Sequence[RuleResult]) -> dg.AssetCheckResult:
    failed = [result for result in results if not result.passed]
    passed = bool(results) and not failed
    is_error = passed or any(map(is_red, failed))
    texts = [f"{result.window}: {explanation_of(result)}" for result in failed[:_MOST]]
    if not results:
        texts = ["It was evaluated in no window."]
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=check,
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
        description="\n\n".join(texts) or f"It held in all {len(results)} windows.",
        metadata={
            "windows": len(results),
            "failed_windows": len(failed),
            "violations": sum(result.violations for result in results),
        },
    )
