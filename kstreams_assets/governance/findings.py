"""What a check of an application's governance says, and the table that keeps it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from kstreams_assets.checks import Severity
from kstreams_assets.warehouse.column import ApplicationId, Column, RunId
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.table import Table

_MOST: Final = 10

CHECKS: Final[Mapping[str, str]] = {
    "internal_topics_as_declared": (
        "The repartition and subscription topics of the application are those of its topology, and"
        " those that are declared: none lacks, none is left over. Red: the application was changed,"
        " never started, or another version of it ran here."
    ),
    "stores_as_declared": (
        "The changelogs on the cluster are those of the topology's stores, and the stores are those"
        " that are declared. Red: a store was added, removed or renamed; under a new name it begins"
        " empty."
    ),
    "topology_as_declared": (
        "Inputs and outputs are on the cluster and are those that are declared, and the group"
        " commits offsets of the topology's inputs alone. Red: the topology text is not that of the"
        " application which runs."
    ),
    "partitions_as_needed": (
        "Topics that meet in one store have equally many partitions, internal topics as many as"
        " what they come from, and declared counts hold. Red: Kafka Streams refuses to start, or"
        " keys lie apart from their state."
    ),
    "changelogs_replicated": (
        "Internal topics have the declared replication factor (3 where there are three brokers) and"
        " min.insync.replicas (2), and every replica is in sync. Red: one broker's loss can take"
        " state along, or writes are refused."
    ),
    "cleanup_policies_fit": (
        "Every topic's cleanup.policy fits what it is for: compact for stores, compact,delete for"
        " windows and sessions, delete without retention for repartition topics. Red: records that"
        " are still needed are removed."
    ),
    "retention_covers_windows": (
        "Changelogs of windows keep records for as long as the store does, and all that is backed"
        " up stays until the backup has read it. Red: retention.ms is shorter."
    ),
    "inputs_kept_for_rebuild": (
        "Inputs reach back as far as a rebuild of the application from them needs. Red: their"
        " retention is shorter than declared."
    ),
    "tombstone_share": (
        "Changelogs are not flooded with tombstones: their share in the newest windows is below the"
        " limit."
    ),
    "store_growth": "No store grows by more than the limit from one window to the next.",
    "lag_within_limits": (
        "The application is not further behind than the limit, and Kafka deleted nothing before it"
        " was processed. Red: records were deleted unprocessed."
    ),
    "keys_are_spread": (
        "No partition gets more than the limit of its topic's records: no key is hot."
    ),
    "owner_and_objective_declared": (
        "The application has an owner, and says how much may be lost or how long a recovery may"
        " take."
    ),
}
"""Every check and what it claims, in the order in which they are shown."""


NOTHING_COMPARED: Final = "Nothing was compared."
"""What a check says that had nothing to look at; it has not passed."""


@dataclass(frozen=True, slots=True)
class GovernanceFinding:
    """One deviation of a topic, store or group (`subject`): what is, what should be, what to do."""

    subject: str
    found: str
    expected: str
    remedy: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        return f"{self.subject}: {self.found}; expected: {self.expected}. {self.remedy}"


@dataclass(frozen=True, slots=True)
class GovernanceVerdict:
    """How one check came out.

    `looked_at` says what was compared, `not_judged` what was not and why.
    """

    check: str
    looked_at: str
    findings: tuple[GovernanceFinding, ...] = ()
    not_judged: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def compared(self) -> bool:
        """Whether anything was compared at all: what is not declared or not there cannot pass."""
        return bool(self.findings) or self.looked_at != NOTHING_COMPARED

    @property
    def is_red(self) -> bool:
        """Whether an error was found, and not warnings alone."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def severity(self) -> Severity:
        """How bad it is when it failed."""
        return Severity.ERROR if self.is_red or self.passed else Severity.WARN

    @property
    def explanation(self) -> str:
        """What was found, with the remedies; or what was looked at."""
        texts = [str(finding) for finding in self.findings[:_MOST]] or [self.looked_at]
        if len(self.findings) > _MOST:
            texts.append(f"And {len(self.findings) - _MOST} more.")
        return " ".join([*texts, *(f"Not judged: {text}" for text in self.not_judged)])


@dataclass(frozen=True, slots=True)
class GovernanceReport:
    """All checks of an application at one instant (epoch milliseconds)."""

    application_id: str
    run_id: str
    cluster_id: str
    judged_at_ms: int
    verdicts: tuple[GovernanceVerdict, ...]

    @property
    def is_red(self) -> bool:
        """Whether an error was found."""
        return any(verdict.is_red for verdict in self.verdicts)

    def of_severity(self, severity: Severity) -> list[GovernanceFinding]:
        """All findings that are so bad."""
        return [f for v in self.verdicts for f in v.findings if f.severity is severity]

    def verdict(self, check: str) -> GovernanceVerdict:
        """The verdict of a check; KeyError when there is none."""
        for verdict in self.verdicts:
            if verdict.check == check:
                return verdict
        raise KeyError(check)


def verdict(
    check: str,
    looked_at: str,
    findings: Iterable[GovernanceFinding] = (),
    not_judged: Iterable[str] = (),
) -> GovernanceVerdict:
    """A verdict with its findings, the bad ones first."""
    ordered = sorted(findings, key=lambda f: (f.severity is Severity.WARN, f.subject))
    return GovernanceVerdict(check, looked_at, tuple(ordered), tuple(not_judged))


_KEPT_MS: Final = 90 * 86_400_000


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """One check of one report."""

    application_id: ApplicationId
    judged_at_ms: Annotated[int, Column("When the cluster was looked at, epoch milliseconds.")]
    run_id: RunId
    cluster_id: Annotated[str, Column("Id of the Kafka cluster.")]
    position: Annotated[int, Column("Place of the check in the report.", type="int32")]
    check: Annotated[str, Column("The check.")]
    passed: Annotated[bool, Column("Whether nothing was found.")]
    severity: Annotated[Severity, Column("How bad it is when it failed.")]
    looked_at: Annotated[str, Column("What was compared.")]
    not_judged: Annotated[tuple[str, ...], Column("What could not be looked at, and why.")]
    findings: Annotated[
        tuple[GovernanceFinding, ...],
        Column("Topic, store or application (`subject`), what is, what should be, what to do."),
    ]


class FindingsTable:
    """Reports of all applications, one row for each check; kept for 90 days."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = Table(
            warehouse.control("governance_findings"),
            StoredVerdict,
            grows_along="judged_at_ms",
            statistics=("judged_at_ms",),
            kept=_KEPT_MS,
        )

    def record(self, report: GovernanceReport) -> None:
        """Add a report; old ones go now and then."""
        self._table.append([_stored(report, n, v) for n, v in enumerate(report.verdicts)])

    def newest(self, application_id: str) -> GovernanceReport | None:
        """The newest report of an application, None before the first.

        Raises:
            NewerLayoutError: A newer release wrote the table.
        """
        rows = self._table.newest_rows(application_id, 1)
        if not rows:
            return None
        run_id = max(row.run_id for row in rows)  # of two in one millisecond
        rows = sorted((r for r in rows if r.run_id == run_id), key=lambda r: r.position)
        return GovernanceReport(
            application_id=application_id,
            run_id=run_id,
            cluster_id=rows[0].cluster_id,
            judged_at_ms=rows[0].judged_at_ms,
            verdicts=tuple(
                GovernanceVerdict(row.check, row.looked_at, row.findings, row.not_judged)
                for row in rows
            ),
        )


def _stored(report: GovernanceReport, position: int, verdict: GovernanceVerdict) -> StoredVerdict:
    return StoredVerdict(
        application_id=report.application_id,
        judged_at_ms=report.judged_at_ms,
        run_id=report.run_id,
        cluster_id=report.cluster_id,
        position=position,
        check=verdict.check,
        passed=verdict.passed,
        severity=verdict.severity,
        looked_at=verdict.looked_at,
        not_judged=verdict.not_judged,
        findings=verdict.findings,
    )
