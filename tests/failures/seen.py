"""What was seen, in the few words that a matrix has room for."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.backup.verdicts import evaluate
from kstreams_assets.checks import Severity
from kstreams_assets.completeness.evaluate import Evaluator
from kstreams_assets.errors import RestoreIncompleteError
from kstreams_assets.governance.run import check_governance
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.rule_results import Outcome
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.request import ChangelogSource
from spark_resources.work import Spark
from tests.failures.revival import Revived, restored_under_own_names, revived
from tests.failures.stage import Stage
from tests.restore.example_comparison import differences_from_control
from tests.restore.trial import SourceRun
from tests.streams.cluster import unique_name
from tests.streams.feed import produce

GREEN: Final = "green"
AS_CONTROL: Final = "goes on as the control run"
"""The restored application wrote, record by record, what the uninterrupted run wrote."""
OTHERWISE: Final = "goes on otherwise than the control run"
_OUTCOMES: Final = {
    Outcome.PASSED: GREEN,
    Outcome.VIOLATED: "red",
    Outcome.NOT_VERIFIABLE: "not verifiable",
    Outcome.FAILED: "not evaluated",
}


def checks_of(stage: Stage, backups: Iterable[WindowBackup]) -> dict[str, str]:
    """Every check of every topic of these windows: green, or by which topics it is not."""
    found: dict[str, dict[str, set[str]]] = {}
    for backup in backups:
        for verdict in evaluate(backup, stage.settings.application):
            failed = found.setdefault(verdict.check, {})
            if not verdict.passed:
                word = "red" if verdict.severity is Severity.ERROR else "warning"
                failed.setdefault(word, set()).add(plain(stage, verdict.subject))
    return {check: _colours(failed) for check, failed in sorted(found.items())}


def _colours(failed: Mapping[str, set[str]]) -> str:
    texts = [f"{word}: {', '.join(sorted(topics))}" for word, topics in sorted(failed.items())]
    return "; ".join(texts) or GREEN


def rules_of(stage: Stage, point: RecoveryPoint, spark: Spark) -> dict[str, str]:
    """How the completeness rules and recomputations came out at a point that is backed up."""
    with Evaluator(stage.settings, spark=spark, run_id=unique_name("rules")) as evaluator:
        results = evaluator.point(point.id)
    return {result.rule: _OUTCOMES[result.outcome] for result in results}


def governance_of(stage: Stage, *checks: str) -> dict[str, str]:
    """These checks of the declaration against the cluster, and all others that are red."""
    report, _ = check_governance(stage.settings, run_id=unique_name("governance"))
    found: dict[str, str] = {}
    for verdict in report.evaluations:
        if verdict.check in checks or verdict.is_red:
            word = "red" if verdict.is_red else "warning"
            subjects = sorted({plain(stage, finding.subject) for finding in verdict.findings})
            found[verdict.check] = f"{word}: {', '.join(subjects)}" if subjects else GREEN
    return found


def plain(stage: Stage, text: str) -> str:
    """A text with the names that users know in place of those of this run."""
    return text.replace(stage.settings.application_id, stage.name).replace(stage.prefix, "")


def points_of(stage: Stage) -> dict[str, str]:
    """What the points were taken with, and what restores of them give now."""
    statuses = (
        Repository.open(stage.settings).reading(stage.settings).statuses([*stage.points.values()])
    )
    guarantees = sorted({status.guarantee.value for status in statuses})
    restorability = sorted({status.restorability.value for status in statuses if status.covered})
    return {
        "recovery points taken": " or ".join(guarantees),
        "covered recovery points give": " or ".join(restorability) or "none is covered",
    }


def after_going_on(
    stage: Stage, control: SourceRun, applications: Sequence[Revived], *, replay: bool = True
) -> dict[str, str]:
    """Feed each restored application what its point lacks, and hold it against the control run."""
    for one in applications if replay else ():
        rest = control.after(one.restored.point)[stage.input]
        produce(one.servers, one.topic(stage.input), rest)
    found: dict[str, str] = {}
    for one in applications:
        one.restored.drain()
        wrong = differences_from_control(
            one.restored, not_compared=stage.trial.not_compared, by_last=False
        )
        found[one.label] = OTHERWISE if wrong else AS_CONTROL
    return found


def restored_and_compared(
    stage: Stage,
    control: SourceRun,
    spark: Spark,
    *labels: str,
    target: KafkaConnection | None = None,
    changelogs: ChangelogSource = ChangelogSource.RAW,
    with_rules: bool = True,
) -> dict[str, str]:
    """Restore these points beside the application (or elsewhere), and let them go on to its end.

    On the first one the completeness rules have to hold before its offsets are committed, unless
    they are left out.
    """
    where = target or stage.settings.connection
    restored = {
        label: restored_under_own_names(
            control,
            label,
            where,
            spark,
            changelogs=changelogs,
            with_rules=with_rules and label == labels[0],
        )
        for label in labels
    }
    with revived(stage, restored) as applications:
        found = after_going_on(stage, control, applications)
    if not with_rules:
        return found
    return found | {labels[0]: f"its rules pass; {found[labels[0]]}"}


def blocker(error: RestoreIncompleteError) -> str:
    """Why a restore got no group offsets."""
    return f"refused, no group offset is committed: {', '.join(sorted(error.violated))}"
