"""What the demo measured and found: tables for the reader, JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.checks import Evaluation
from kstreams_assets.cli.output import print_table
from kstreams_assets.model.rule_results import RuleResult
from kstreams_assets.model.spans import SpanResult, Window


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the demo checks."""

    what: str
    expected: object
    found: object

    @property
    def holds(self) -> bool:
        """Whether it is as it must be."""
        return self.expected == self.found


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The story in numbers; times in seconds.

    `recovery_point_age_s` is how old the restored point was when the cluster was lost (RPO);
    `recovery_s` runs from the loss until the application was RUNNING with its state (RTO), and
    `caught_up_s` until it had processed everything that was replayed. `phases_s` shows where the
    time went.
    """

    orders: int
    acknowledged_before_the_loss: int
    recovery_points: int
    restored_point: str
    restored_point_guarantee: str
    recovery_point_age_s: float
    recovery_s: float
    caught_up_s: float
    phases_s: Mapping[str, float]
    records_restored: int
    records_verified: int
    orders_replayed: int
    customers: int
    customers_that_differ: int
    lost_after_replay: int
    findings: Sequence[Finding] = field(default_factory=tuple)

    @property
    def holds(self) -> bool:
        """Whether everything was as it must be."""
        return all(finding.holds for finding in self.findings)

    def write(self, file: Path) -> None:
        """As JSON."""
        document = {name: _rounded(value) for name, value in asdict(self).items()}
        document["passed"] = self.holds
        file.write_text(json.dumps(document, indent=2, default=str) + "\n", encoding="utf-8")

    def print_tables(self) -> None:
        """What happened, and what was checked."""
        print_table(
            "The cluster was lost, the application went on elsewhere",
            ["", ""],
            [
                [
                    "orders acknowledged when the cluster was lost",
                    self.acknowledged_before_the_loss,
                ],
                ["restored to", f"{self.restored_point} ({self.restored_point_guarantee})"],
                ["age of that point at the loss (RPO)", f"{self.recovery_point_age_s:.1f} s"],
                [
                    "from the loss until the application is RUNNING with its state (RTO)",
                    f"{self.recovery_s:.1f} s",
                ],
                *[[f"  part of it: {name}", f"{s:.1f} s"] for name, s in self.phases_s.items()],
                [
                    "from the loss until all replayed orders are processed",
                    f"{self.caught_up_s:.1f} s",
                ],
                ["records restored", self.records_restored],
                ["records verified one by one", self.records_verified],
                ["orders replayed by the shop", self.orders_replayed],
                ["orders in all", self.orders],
                ["lost after replay", self.lost_after_replay or "nothing"],
            ],
        )
        for finding in self.findings:
            mark = "ok " if finding.holds else "BAD"
            print(f"  {mark} {finding.what}: {finding.found} (expected {finding.expected})")


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def print_windows(backups: Sequence[WindowBackup], checks: Sequence[Evaluation]) -> None:
    """The table window x topic x records x bytes x gaps x checks."""
    print_table(
        "Backed up",
        ["window", "topic", "records", "bytes", "gaps", "checks"],
        [
            [
                backup.window.key,
                topic.topic,
                topic.records,
                sum(span.content.bytes for span in topic.spans),
                _gaps(topic.spans),
                _checks(
                    [c for c in checks if (c.window, c.subject) == (backup.window.key, topic.topic)]
                ),
            ]
            for backup in backups
            for topic in backup.topics
        ],
    )


def backup_findings(
    windows: Sequence[Window], reported: Sequence[str], checks: Sequence[Evaluation]
) -> list[Finding]:
    """Whether every window was reported to Dagster, and every check passed."""
    red = [f"{check.window} {check.subject} {check.check}" for check in checks if not check.passed]
    return [
        Finding("windows reported to Dagster", sorted(w.key for w in windows), sorted(reported)),
        Finding("red checks of the backup", [], red),
    ]


def rule_findings(rules: Sequence[RuleResult]) -> list[Finding]:
    """Whether the rules of the business were evaluated on the new cluster and hold there."""
    return [
        Finding("completeness rules were evaluated", True, bool(rules)),
        Finding(
            "completeness rules that do not hold on the new cluster",
            [],
            [f"{rule.rule}: {rule.outcome}" for rule in rules if not rule.passed],
        ),
    ]


def _gaps(spans: Sequence[SpanResult]) -> str:
    offsets: dict[str, int] = {}
    for gap in (gap for span in spans for gap in span.gaps):
        offsets[gap.cause] = offsets.get(gap.cause, 0) + (gap.offsets or 0)
    return ", ".join(f"{count:,} {cause}" for cause, count in sorted(offsets.items()))


def _checks(checks: Sequence[Evaluation]) -> str:
    red = [check.check for check in checks if not check.passed]
    return f"RED: {', '.join(red)}" if red else f"{len(checks)} passed"
