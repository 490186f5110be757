"""What on-call engineers read names checks and metrics that there are, and leaves none out."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstreams_assets.backup.verdicts import CHANGELOG_CHECKS
from kstreams_assets.backup.verdicts import CHECKS as BACKUP_CHECKS
from kstreams_assets.governance.evaluation import CHECKS as GOVERNANCE_CHECKS
from kstreams_assets.ktables.checks import KTABLE_CHECKS
from kstreams_assets.metrics.catalogue import METRICS
from kstreams_assets.model.restorability import POINT_CHECKS
from kstreams_assets.orchestration.drill import DRILL_CHECKS
from kstreams_assets.orchestration.restorable import RESTORABLE_CHECKS
from kstreams_assets.orchestration.restore import GROUP_OFFSETS_CHECKS, RESTORE_CHECKS
from kstreams_assets.orchestration.upkeep import VERIFICATION_CHECKS
from tests.docs.documents import CHECKOUT, documents

OPERATIONS = CHECKOUT / "docs" / "operations"
CHECKS = {
    *BACKUP_CHECKS,
    *CHANGELOG_CHECKS,
    *POINT_CHECKS,
    *RESTORABLE_CHECKS,
    *KTABLE_CHECKS,
    *RESTORE_CHECKS,
    *GROUP_OFFSETS_CHECKS,
    *GOVERNANCE_CHECKS,
    *DRILL_CHECKS,
    *VERIFICATION_CHECKS,
}
# Not the pools of Dagster, such as kstreams_restore_<application id> and kstreams_drills.
_METRIC = re.compile(r"\bkstreams_(?!assets\b|points?\b|drills\b)[a-z_]+\b(?!<)")


@pytest.mark.parametrize("check", sorted(CHECKS))
def test_the_runbook_says_what_to_do_for_every_check(check: str) -> None:
    runbook = (OPERATIONS / "runbook.md").read_text(encoding="utf-8")
    has_section = re.search(rf"^### {check}$", runbook, re.MULTILINE)
    has_row = re.search(rf"^\| [^|]*`{check}`[^|]* \| \S", runbook, re.MULTILINE)
    assert has_section or has_row


def test_decision_records_name_checks_that_there_are() -> None:
    for name in ("adr-template.md", "adr-order-processor.md"):
        text = (OPERATIONS / name).read_text(encoding="utf-8")
        for said in re.findall(r"\*[Cc]hecked by\*([^.:]+)", text):
            named = set(re.findall(r"`(\w+)`", said))
            assert named, said
            assert named <= CHECKS, said


def _metrics(file: Path) -> Iterator[str]:
    yield from _METRIC.findall(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", documents(), ids=lambda f: str(f.relative_to(CHECKOUT)))
def test_metrics_that_are_named_exist(file: Path) -> None:
    assert set(_metrics(file)) - METRICS.keys() == set()


def test_metrics_are_looked_for_where_they_are_named() -> None:
    how_to = CHECKOUT / "docs" / "how-to" / "watch-with-prometheus.md"
    assert len(set(_metrics(how_to))) > 15


@pytest.mark.parametrize("name", ["docs/operations/threat-model.md", "SECURITY.md"])
def test_every_protection_names_files_that_exist(name: str) -> None:
    text = (CHECKOUT / name).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|txt|lock|md))`", text))
    assert named
    assert [path for path in sorted(named) if not (CHECKOUT / path).exists()] == []
