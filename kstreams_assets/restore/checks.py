"""The checks of restores: what they claim, and how they came out."""

from collections.abc import Mapping, Sequence
from typing import Final

import dagster as dg

from kstreams_assets.errors import GroupOffsetsDifferError
from kstreams_assets.restore.after import listed
from kstreams_assets.restore.plan import TopicPlan
from kstreams_assets.restore.result import Difference
from kstreams_assets.restore.run import RestoreResult

MATCHES_BACKUP: Final = "restored_matches_backup"
OFFSETS_MATCH: Final = "offsets_match"

RESTORE_CHECKS: Final[Mapping[str, str]] = {
    MATCHES_BACKUP: "What was read back from the target is what the backup holds: the same keys,"
    " values, headers and timestamps in the same order, nothing more, and the last stable offset is"
    " the high watermark. Red: the message names topic, partition and offset; no group offsets are"
    " committed. Delete the topics of the restore on the target and restore again; see who else"
    " writes there.",
}
GROUP_OFFSETS_CHECKS: Final[Mapping[str, str]] = {
    OFFSETS_MATCH: "The group's committed offsets, read back from the target, are the mapped ones"
    " of the recovery point with metadata unchanged, and lie inside the log. Red: do not start the"
    " application; restore again.",
}


def verdict(
    key: dg.AssetKey,
    topic: TopicPlan | None,
    result: RestoreResult,
    elsewhere: Sequence[Difference],
) -> dg.AssetCheckResult:
    """The check of one topic, None for one that the restore leaves out.

    `elsewhere` are differences of topics that have no asset in the run.
    """
    name = None if topic is None else topic.target
    found = [d for d in result.problems if d.target.topic == name]
    found += elsewhere
    compared = sum(p.compared for p in result.verified if p.target.topic == name)
    # A failed restore of which no difference is known must not pass either.
    passed = not found and (result.passed or bool(result.problems))
    if found:
        text = listed(found)
    elif not passed:
        text = result.restore.problem
    else:
        text = "Not part of this restore." if topic is None else f"{compared:,} records compared."
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=MATCHES_BACKUP,
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=text,
        metadata={"compared_records": compared, "differences": len(found)},
    )


def offsets_differ(key: dg.AssetKey, error: GroupOffsetsDifferError) -> dg.AssetCheckEvaluation:
    """The red check of group offsets that are not as committed."""
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=OFFSETS_MATCH,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=str(error),
        metadata={},
    )
