"""`kstreams-assets governance`: what is declared of an application, compared with its cluster."""

import sys
from typing import Any

import click

from kstreams_assets.checks import Evaluation, Finding, Outcome
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.spark_run import new_run_id
from kstreams_assets.governance.findings import GovernanceReport
from kstreams_assets.governance.run import check_governance
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import iso_time


@click.command("governance")
@app_options
def governance(settings: ApplicationSettings, as_json: bool) -> None:
    """Compare what is declared of an application with its cluster.

    Topics, stores, partitions, replication, retention, lag, owner: each finding says what to do.
    Control calls only, no JVM. Exits 1 when one is an error.
    """
    report, _ = check_governance(settings, run_id=new_run_id())
    if as_json:
        print_json(_document(report))
    else:
        _print(report)
    if report.is_red:
        sys.exit(exit_codes.CHECK_FAILED)


def _print(report: GovernanceReport) -> None:
    print_table(
        f"Governance of {report.application_id} on cluster {report.cluster_id},"
        f" {iso_time(report.judged_at_ms)}",
        ["check", "result", "looked at", "not judged"],
        [[e.check, _result(e), e.summary, " ".join(e.not_judged)] for e in report.evaluations],
    )
    for evaluation in report.evaluations:
        for finding in evaluation.findings:
            click.echo(f"{finding.severity.value.upper()} {evaluation.check}: {finding}", err=True)


def _result(evaluation: Evaluation) -> str:
    if not _is_compared(evaluation):
        return "not compared"
    if evaluation.passed:
        return "passed"
    return f"{'RED' if evaluation.is_red else 'WARN'}: {len(evaluation.findings)}"


def _document(report: GovernanceReport) -> dict[str, Any]:
    return {
        "application_id": report.application_id,
        "cluster_id": report.cluster_id,
        "judged_at": iso_time(report.judged_at_ms),
        "passed": not report.is_red,
        "checks": [
            {
                "check": evaluation.check,
                "passed": evaluation.passed if _is_compared(evaluation) else None,
                "compared": _is_compared(evaluation),
                "severity": evaluation.severity.value,
                "looked_at": evaluation.summary,
                "not_judged": list(evaluation.not_judged),
                "findings": [_finding(finding) for finding in evaluation.findings],
            }
            for evaluation in report.evaluations
        ],
    }


def _is_compared(evaluation: Evaluation) -> bool:
    return evaluation.outcome is not Outcome.NOT_VERIFIABLE


def _finding(finding: Finding) -> dict[str, str]:
    return {
        "subject": finding.subject,
        "found": finding.found,
        "expected": finding.expected,
        "remedy": finding.action,
        "severity": finding.severity.value,
    }
