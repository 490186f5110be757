"""Readiness: whether a recovery can start now, and its blockers."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeVar

from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.follower_status import catching_up
from kstreams_assets.backup.requests import WindowStatus, window_statuses
from kstreams_assets.checks import Finding, Severity
from kstreams_assets.completeness.result import declared_rules
from kstreams_assets.errors import KafkaError, SecretNotFoundError, StoredDataError, WarehouseError
from kstreams_assets.model.damage import Damage, DamagedSpans, Verified
from kstreams_assets.model.drill import ObjectiveResult, StoredDrill
from kstreams_assets.model.governance_report import GovernanceReport
from kstreams_assets.model.point import Guarantee
from kstreams_assets.model.restorability import Recency, Restorable, Yardstick
from kstreams_assets.model.rule_results import Outcome, RuleResult, RuleStanding
from kstreams_assets.public_form import DAGSTER, JSON, TABLE, Form, Value, only
from kstreams_assets.repository.contents import View
from kstreams_assets.repository.coverage import newest_restorable, recovery_point_is_recent
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import store_at
from kstreams_assets.texts import few, iso_time

DRILL_IS_OLD_S: Final = 30 * 86_400.0
VERIFICATION_IS_OLD_S: Final = 7 * 86_400.0

T = TypeVar("T")

_DAY_S: Final = 86_400.0
_FEW: Final = 5
_RED: Final = frozenset({Outcome.VIOLATED, Outcome.FAILED})


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts from which readiness is evaluated.

    `due` are closed windows without a backup, oldest first, except the newest window, whose backup
    may be running. `damaged` are spans with missing files, or with files that do not match the
    ledger. `damaged_snapshots` are KTable snapshots with missing or altered files, `damaged_tables`
    are altered control tables. `verified` is the result of verifications, None if it cannot be
    read. `unreadable` lists the reasons why facts could not be read; these facts count as empty.

    `results` are the newest evaluations of each rule at each place, None without declared rules.
    `findings` are None before the first governance check. `warehouse_mode` is the mode of the
    warehouse folder if other users can enter it. `catching_up` is the progress of a follower with a
    backlog. `cluster_problem` is the error of the source cluster, None if it answers;
    `cluster_asked` is False if it was not asked.
    """

    now_ms: int
    recency: Recency
    due: tuple[str, ...] = ()
    without_point: tuple[str, ...] = ()
    """Closed windows without a recovery point; they have no backup."""
    damaged: tuple[Damage, ...] = ()
    damaged_snapshots: tuple[Damage, ...] = ()
    damaged_tables: tuple[Damage, ...] = ()
    verified: Verified | None = None
    unreadable: tuple[str, ...] = ()
    results: tuple[RuleResult, ...] | None = None
    findings: tuple[Finding, ...] | None = None
    drill: StoredDrill | None = None
    drill_declared: bool = True
    warehouse_mode: str | None = None
    catching_up: str = ""
    left_out_changelogs: tuple[str, ...] = ()
    """Changelogs that are not selected for backup."""
    cluster_asked: bool = False
    cluster_problem: str | None = None


@dataclass(frozen=True, slots=True)
class Readiness:
    """The result of all checks; blockers (errors) come first."""

    statements: tuple[Finding, ...]

    @property
    def against(self) -> tuple[Finding, ...]:
        """The blockers of a recovery."""
        return tuple(one for one in self.statements if one.severity is Severity.ERROR)

    @property
    def ready(self) -> bool:
        """Whether a recovery has no blockers now."""
        return not self.against

    @property
    def why(self) -> str:
        """The blockers as text."""
        return " ".join(one.text for one in self.against) or "No blockers."


STATEMENT: Final = Form(
    Finding,
    "subject",
    Value("speaks_against", bool, lambda one: one.severity is Severity.ERROR),
    *only(JSON, Value("text", heading="what was found")),
    *only(DAGSTER, "statement=text"),
    Value("against", of=lambda one: "yes" * (one.severity is Severity.ERROR), where=TABLE),
)
"""One statement of readiness."""

READINESS: Final = Form(
    Readiness,
    *only(JSON, "ready why", Value("statements", form=STATEMENT)),
    *only(
        DAGSTER,
        Value("ready", of=lambda found: "yes" if found.ready else "no"),
        "ready_why=why",
        Value("readiness", of="statements", form=STATEMENT),
    ),
)


def evaluate_readiness(facts: Facts) -> Readiness:
    """Evaluate whether the application can be recovered at the time of the facts."""
    statements = [
        *_of_backups(facts),
        *_of_verification(facts),
        *_of_rules(facts.results),
        *_of_governance(facts.findings),
        _of_drill(facts),
        *_of_places(facts),
    ]
    return Readiness(tuple(sorted(statements, key=lambda one: one.severity is Severity.WARN)))


def _information(subject: str, text: str) -> Finding:
    """Return information for the operator that is not a blocker."""
    return Finding(subject, text, severity=Severity.WARN)


def _of_backups(facts: Facts) -> Iterator[Finding]:
    recency, due, damaged = facts.recency, facts.due, facts.damaged
    missing = recency.restorable.enough is None or not recency.passed
    severity = Severity.ERROR if missing else Severity.WARN
    yield Finding("recovery point", recency.explanation, severity=severity)
    yield from _of_guarantee(recency.restorable.yardstick)
    if facts.left_out_changelogs:
        yield _information(
            "backup mode",
            f"Changelogs are not selected for backup: {few(facts.left_out_changelogs)}. A restore"
            " with `--mode state` is refused unless they are excluded; `rebuild` and `logs` work.",
        )
    if facts.catching_up:
        yield _information("follower", facts.catching_up)
    if due:
        yield Finding(
            "windows",
            f"{len(due)} closed windows are not backed up, from {due[0]} on.",
            action="Back them up, and check that the backup sensor is running.",
        )
    elif not facts.without_point:
        yield _information(
            "windows", "All closed windows are backed up, except possibly the newest."
        )
    if facts.without_point:
        yield _information(
            "windows",
            f"{len(facts.without_point)} closed windows have no recovery point and no backup (the"
            f" newest is {facts.without_point[-1]}). The next window with a point contains their"
            " records.",
        )
    if damaged:
        windows = len({damage.window for damage in damaged})
        yield Finding(
            "stored files",
            f"Files of {windows} windows do not match the ledger. {damaged[0]}.",
            action=f"{damaged[0].remedy} kstreams-assets windows lists all damaged windows.",
        )
    if facts.damaged_snapshots:
        first, *others = facts.damaged_snapshots
        rest = f" (and {len(others)} more)" if others else ""
        yield Finding(
            "KTable snapshots",
            f"Files of KTable snapshots were changed: {first}{rest}.",
            action="Create the snapshots again (kstreams-assets ktables make --window WINDOW), or"
            " restore the files from a copy of the warehouse.",
        )


def _of_guarantee(yardstick: Yardstick | None) -> Iterator[Finding]:
    """Report the guarantee of the application, and an unintended change from exactly-once."""
    if yardstick is None:
        return
    other = yardstick.other
    if yardstick.guarantee is Guarantee.AT_LEAST_ONCE and other is not None:
        yield Finding(
            "guarantee",
            f"{yardstick} Before, at {iso_time(other.taken_at_ms)}, it processed exactly once.",
            action="If that is not intended, find the instance with another processing.guarantee."
            " With `guarantee: exact` in the YAML, only exact points count.",
            severity=Severity.WARN,
        )
    else:
        yield _information("guarantee", str(yardstick))


def _of_verification(facts: Facts) -> Iterator[Finding]:
    """Report damaged tables, and findings of verifications that are not repaired yet."""
    for damage in facts.damaged_tables[:_FEW]:
        yield replace(damage.finding, subject=f"table {damage.subject}")
    for problem in facts.unreadable if not facts.damaged_tables else ():
        yield Finding("warehouse", problem)
    verified = facts.verified
    if verified is None:
        return
    now = {damage.identity for damage in facts.damaged_tables}
    open_ = [damage for damage in verified.open if damage.identity not in now]
    for damage in open_[:_FEW]:
        found = damage.finding
        yield replace(found, subject="verification", found=f"{found.subject}: {found.found}")
    if open_[_FEW:]:
        rest = open_[_FEW:]
        yield Finding(
            "verification",
            f"{len(rest)} more damages; run kstreams-assets verify.",
            severity=min(damage.severity for damage in rest),
        )
    if open_:
        yield _information("verification", "After the repair, run kstreams-assets verify again.")
    at_ms = verified.full_at_ms
    if at_ms is None:
        yield _information(
            "verification",
            "The warehouse was never verified in full. Run kstreams-assets verify --full, or let"
            " verify.full_every do so.",
        )
    elif facts.now_ms - at_ms > 1000 * VERIFICATION_IS_OLD_S:
        days = (facts.now_ms - at_ms) / 1000 / _DAY_S
        yield _information(
            "verification",
            f"The last verify --full was {days:.0f} days ago ({iso_time(at_ms)}). Run"
            " kstreams-assets verify --full, or let verify.full_every do so.",
        )
    elif not open_:
        yield _information(
            "verification",
            f"The last verify --full (all files or a sample) was at {iso_time(at_ms)}, without open"
            " findings.",
        )


def _of_rules(results: Sequence[RuleResult] | None) -> Iterator[Finding]:
    if results is None:
        yield _information("completeness", "No completeness rule is declared.")
        return
    if not results:
        yield Finding(
            "completeness",
            "The completeness rules were never evaluated.",
            action="Run kstreams-assets completeness check.",
        )
        return
    red = [r for r in results if r.outcome in _RED]
    for result in red:
        at = f"window {result.window}" if result.window else f"point {result.point_id}"
        yield Finding(
            "completeness",
            f"Rule {result.rule} does not hold at {at} ({result.place}): {result.explanation}",
            severity=result.severity,
        )
    unsure = sorted({r.rule for r in results if r.outcome is Outcome.NOT_VERIFIABLE})
    if unsure:
        yield _information("completeness", f"Not verifiable: {', '.join(unsure)}.")
    if not red:
        passed = len({r.rule for r in results if r.passed})
        yield _information("completeness", f"{passed} rules hold, as last evaluated.")


def _of_governance(findings: Sequence[Finding] | None) -> Iterator[Finding]:
    if findings is None:
        yield _information(
            "governance",
            "The cluster was never compared with the declared settings. Run kstreams-assets"
            " governance.",
        )
        return
    if not findings:
        yield _information("governance", "No open findings.")
    yield from findings[:_FEW]
    rest = findings[_FEW:]
    if rest:
        yield Finding(
            "governance",
            f"{len(rest)} more findings; run kstreams-assets governance.",
            severity=min(finding.severity for finding in rest),
        )


def _of_drill(facts: Facts) -> Finding:
    drill = facts.drill
    if drill is None:
        to_do = (
            "Run kstreams-assets drill."
            if facts.drill_declared
            else "Give drill.command in the YAML, then run kstreams-assets drill."
        )
        return Finding("drill", "No restore drill has run yet.", action=to_do)
    at = iso_time(drill.began_at_ms)
    if not drill.passed:
        return Finding("drill", f"The last drill ({at}) failed: {drill.reason}")
    age_s = (facts.now_ms - drill.began_at_ms) / 1000
    took = f"{drill.total_s:.1f} s" if drill.total_s is not None else "an unknown time"
    if age_s > DRILL_IS_OLD_S:
        return Finding(
            "drill",
            f"The last drill was {age_s / _DAY_S:.0f} days ago ({at}).",
            action="Run kstreams-assets drill, or let drill.every do so.",
        )
    if drill.objective_result is ObjectiveResult.MISSED:
        return Finding(
            "drill",
            f"The last drill ({at}) took {took}, more than the objective of {drill.objective_s:g}"
            " s.",
            action="Its report names the longest phase and a remedy.",
        )
    objective = (
        "no objective is declared (drill.objective_seconds)"
        if drill.objective_s is None
        else f"the objective is {drill.objective_s:g} s"
    )
    return _information("drill", f"The last drill ({at}) passed in {took}; {objective}.")


def _of_places(facts: Facts) -> Iterator[Finding]:
    """Report the source cluster, which a recovery does not need, and the warehouse folder."""
    if facts.cluster_asked and facts.cluster_problem is None:
        yield _information("cluster", "The source cluster answers.")
    elif facts.cluster_asked:
        yield _information(
            "cluster",
            f"The source cluster does not answer ({facts.cluster_problem}). A recovery needs only"
            " the warehouse, and so do these checks.",
        )
    if facts.warehouse_mode is not None:
        yield _information(
            "warehouse",
            f"Other users can read the folder of the warehouse (mode {facts.warehouse_mode}),"
            " which contains production records. Run chmod 700 on the folder.",
        )


@dataclass(frozen=True)
class Evidence:
    """Reads each part of the warehouse once, at its first use.

    Each part raises NewerLayoutError if a newer release wrote its table.
    """

    settings: ApplicationSettings

    @cached_property
    def _repo(self) -> Repository:
        return Repository.open(self.settings)

    @cached_property
    def windows(self) -> list[WindowStatus]:
        """All closed windows since the first recovery point, oldest first."""
        return window_statuses(self.settings)

    @cached_property
    def view(self) -> View:
        """One state of the tables, with all files on a disk inspected."""
        return self._repo.reading(self.settings, inspect_timeout_s=math.inf)

    @cached_property
    def restorable(self) -> Restorable:
        """The newest recovery points that backups cover."""
        return newest_restorable(self.settings, self.view)

    @cached_property
    def damaged(self) -> DamagedSpans:
        """Backups whose files are missing or do not match the ledger."""
        settings = self.settings
        return Repository.open(settings).ledger.damaged()

    @cached_property
    def damaged_snapshots(self) -> list[Damage]:
        """KTable snapshots whose files are missing or have another size."""
        return self._repo.snapshots.damaged()

    @cached_property
    def verified(self) -> Verified | None:
        """The result of verifications; None if their table cannot be read."""
        try:
            return self._repo.verifications.verified()
        except (StoredDataError, WarehouseError):
            return None  # it is among the damaged tables

    @cached_property
    def damaged_tables(self) -> list[Damage]:
        """Control tables that were altered or lost commits."""
        verified = self.verified
        return self._repo.control_tables.damaged(verified.heads if verified else None)

    @cached_property
    def rules(self) -> list[RuleStanding]:
        """The newest results of each declared rule at each place."""
        table = self._repo.results
        return table.standings(declared_rules(self.settings))

    @cached_property
    def governance(self) -> GovernanceReport | None:
        """The newest governance report, None before the first."""
        return self._repo.findings.newest()

    @cached_property
    def drill(self) -> StoredDrill | None:
        """The newest drill, None before the first."""
        return self._repo.drills.newest()


_ASK_CLUSTER_S: Final = 5.0


def readiness(
    settings: ApplicationSettings, *, ask_cluster: bool = False, now_ms: int | None = None
) -> Readiness:
    """Evaluate whether the application can be recovered now.

    `ask_cluster`: also report whether the source cluster answers (within some seconds), which does
    not affect the result. `now_ms` defaults to the present time. Raises NewerLayoutError if a newer
    release wrote the warehouse.
    """
    facts = facts_of(Evidence(settings), now_ms or time.time_ns() // 1_000_000)
    if ask_cluster:
        problem = _cluster_problem(settings)
        facts = replace(facts, cluster_asked=True, cluster_problem=problem)
    return evaluate_readiness(facts)


def facts_of(evidence: Evidence, now_ms: int) -> Facts:
    """Read the facts for readiness from the warehouse."""
    settings, unreadable = evidence.settings, dict[str, None]()

    def read(part: Callable[[], T], otherwise: T) -> T:
        """Read a part; record the error of a damaged table and continue with the other parts."""
        try:
            return part()
        except (StoredDataError, WarehouseError) as error:
            unreadable[str(error)] = None
            return otherwise

    def recency() -> Recency:
        return recovery_point_is_recent(settings, restorable=evidence.restorable, now_ms=now_ms)

    declared = settings.completeness or settings.recomputed
    rules = read(lambda: evidence.rules, []) if declared else []
    facts = Facts(
        now_ms=now_ms,
        recency=read(recency, _NOT_KNOWN),
        due=read(
            lambda: tuple(status.window.key for status in evidence.windows[:-1] if status.is_due),
            (),
        ),
        without_point=read(
            lambda: tuple(status.window.key for status in evidence.windows if status.without_point),
            (),
        ),
        damaged=read(lambda: tuple(evidence.damaged), ()),
        damaged_snapshots=read(lambda: tuple(evidence.damaged_snapshots), ()),
        damaged_tables=read(lambda: tuple(evidence.damaged_tables), ()),
        verified=evidence.verified,
        results=tuple(rule.newest for rule in rules) if declared else None,
        findings=read(lambda: _findings(evidence.governance), None),
        drill=read(lambda: evidence.drill, None),
        drill_declared=bool(settings.drill.command),
        warehouse_mode=store_at(settings.warehouse.root).open_to_others(),
        catching_up=catching_up(settings.warehouse, settings.application_id),
        left_out_changelogs=tuple(
            topic.name
            for topic in settings.application.with_role(TopicRole.CHANGELOG)
            if topic not in settings.topics
        ),
    )
    return replace(facts, unreadable=tuple(unreadable))


_NOT_KNOWN: Final = Recency(
    passed=False,
    explanation="Restorable points cannot be determined, because the warehouse cannot be read.",
    age_s=None,
    objective_s=None,
    restorable=Restorable(exact=None, covered=None),
)


def _findings(report: GovernanceReport | None) -> tuple[Finding, ...] | None:
    if report is None:
        return None
    return tuple(
        Finding("governance", f"{evaluation.check}: {finding}", severity=finding.severity)
        for evaluation in report.evaluations
        for finding in evaluation.findings
    )


def _cluster_problem(settings: ApplicationSettings) -> str | None:
    from kstreams_assets.kafka.cluster import KafkaCluster  # not where only the warehouse is asked

    try:
        with KafkaCluster(settings.connection, timeout_s=_ASK_CLUSTER_S) as cluster:
            cluster.broker_ids()
    except (KafkaError, SecretNotFoundError) as error:
        return error.problem.rstrip(".")
    return None
