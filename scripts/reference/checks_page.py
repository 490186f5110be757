"""The page of the checks, and of what else is judged."""

from collections.abc import Iterator

from kstreams_assets.backup.verdicts import CHANGELOG_CHECKS, CHECKS
from kstreams_assets.governance.evaluation import CHECKS as GOVERNANCE_CHECKS
from kstreams_assets.ktables.checks import KTABLE_CHECKS
from kstreams_assets.model.restorability import POINT_CHECKS, Restorability
from kstreams_assets.model.rule_results import Outcome
from kstreams_assets.model.spans import LOSSES, UNKNOWN, GapCause
from kstreams_assets.orchestration.drill import DRILL_CHECKS
from kstreams_assets.orchestration.restorable import RESTORABLE_CHECKS
from kstreams_assets.orchestration.restore import GROUP_OFFSETS_CHECKS, RESTORE_CHECKS
from kstreams_assets.orchestration.upkeep import VERIFICATION_CHECKS
from scripts.reference.markdown import named, table

_GAPS = {
    GapCause.TRANSACTION_MARKER: "Commit and abort markers take an offset each.",
    GapCause.ABORTED: "Records of aborted transactions.",
    GapCause.COMPACTED: "The raw log no longer holds them: compaction removed them, because a later"
    " record of the same key superseded them.",
    GapCause.PURGED: "Repartition records below the committed offset: processed; Kafka Streams"
    " deletes them itself.",
    GapCause.RETENTION: "The log start offset has passed them: retention, or DeleteRecords.",
    GapCause.TOPIC_RECREATED: "They belonged to an earlier topic of the same name.",
    GapCause.TOPIC_DELETED: "The topic is gone.",
    GapCause.LOG_TRUNCATED: "An unclean leader election truncated the log: a replica without"
    " them became the leader.",
    GapCause.UNEXPLAINED: "Kafka shows committed records that the backup does not hold.",
    GapCause.NOT_EXAMINED: "The log could not be inspected after the records were read (see"
    " `backup.scan_stall_seconds`). The next run inspects the log and reads no record twice.",
    GapCause.COMPACTED_BY_EXPIRE: "Earlier values of keys in a changelog, which"
    " `kstreams-assets expire` omitted when it merged windows before a kept recovery point.",
    GapCause.EXPIRED: "No kept recovery point needs them: `kstreams-assets expire` dropped them.",
    GapCause.RESTORED: "A restore of this warehouse wrote them: the backups of the topic before it"
    " hold these records.",
    GapCause.NOT_RESTORED: "They came after the recovery point from which the application was"
    " restored; the offsets are those of the topic before the restore.",
}

_RESTORABILITY = {
    Restorability.EXACT: "State, records in flight and offsets of exactly the same committed"
    " transactions.",
    Restorability.AT_LEAST_ONCE: "Nothing is lost; up to one commit interval may be processed"
    " twice.",
    Restorability.UNPROVEN: "Covered, but compaction may have removed changelog records of the"
    " point before they were read, and the point is not sealed.",
    Restorability.NOTHING: "Not covered: offsets that it needs are not in the backups. The reason"
    " names them, and the windows to back up.",
}


_CHECK_OF = {
    Outcome.PASSED: "green",
    Outcome.VIOLATED: "red, or a warning with severity `warn`",
    Outcome.NOT_VERIFIABLE: "a warning",
    Outcome.FAILED: "red",
}
_OUTCOMES = {
    Outcome.PASSED: "No row in violation, at a point where that proves it.",
    Outcome.VIOLATED: "Rows in violation. The evaluation lists the first ones.",
    Outcome.NOT_VERIFIABLE: "The result is uncertain: the point is not exact, necessary records are"
    " not in the backup, or records arrived late.",
    Outcome.FAILED: "The rule could not be evaluated. The explanation names the reason.",
}
_OF_RESTORABILITY = (
    "Each restored topic has, with one evaluation for each restore; while it is red, no group"
    " offsets are committed:"
)


def check_lines() -> Iterator[str]:
    """Every check, what recovery points give, and every cause of a gap."""
    yield "What to do when one is red: [runbook](../operations/runbook.md)."
    changelogs = {name: f"Changelogs only. {text}" for name, text in CHANGELOG_CHECKS.items()}
    for text, checks in (
        (
            "Each backup of a topic has these checks, with one evaluation for each window:",
            {**CHECKS, **changelogs},
        ),
        (
            "The asset of the recovery points has, with one evaluation for each of its events:",
            POINT_CHECKS,
        ),
        ("`<application id>/restorable` has:", RESTORABLE_CHECKS),
        (_OF_RESTORABILITY, RESTORE_CHECKS),
        ("Each KTable has, with one evaluation for each window:", KTABLE_CHECKS),
        ("The group offsets of a restore have:", GROUP_OFFSETS_CHECKS),
        ("Governance has, with one evaluation each time it is looked at:", GOVERNANCE_CHECKS),
        ("Drills have:", DRILL_CHECKS),
        ("Verifications of the warehouse have:", VERIFICATION_CHECKS),
    ):
        yield from ("", text, "")
        yield from named("check", "claim", checks)
    yield from _completeness()
    yield from _restorability()
    yield from _gaps()


def _completeness() -> Iterator[str]:
    yield from ("", "## Completeness rules", "")
    yield "`<application id>/completeness` has a check for each rule of the YAML, under its name,"
    yield "and `recompute_<store>` for each recomputed store, with one evaluation for each window."
    yield "So has `<application id>/restore/restored_completeness` for rules with `restore` in"
    yield "`on`, with one for each restore."
    yield ""
    yield from table(
        ("outcome", "check", "what"),
        ((f"`{one}`", _CHECK_OF[one], _OUTCOMES[one]) for one in Outcome),
    )


def _restorability() -> Iterator[str]:
    yield from ("", "## Restorability of a recovery point", "")
    yield "Shown by `kstreams-assets recovery-points list`, each with its reason; it changes with"
    yield from ("what is backed up.", "")
    yield from named(
        "restorability",
        "what",
        {one.value: _RESTORABILITY[one] for one in Restorability},
    )


def _gaps() -> Iterator[str]:
    yield from ("", "## Gaps", "")
    yield "A span is the range of offsets of one partition in a window. An offset of a span without"
    yield "a record is a gap. Each gap has a cause in the ledger (the list of backed-up windows)."
    yield ""
    yield from table(
        ("cause", "loss", "what"),
        ((f"`{cause}`", _is_loss(cause), _GAPS[cause]) for cause in GapCause),
    )
    yield ""
    yield "Loss turns `no_source_loss` red; `unexplained` and `not_examined` turn"
    yield "`every_offset_accounted` red."


def _is_loss(cause: GapCause) -> str:
    if cause in UNKNOWN:
        return "unknown"
    return "**yes**" if cause in LOSSES else "no"
