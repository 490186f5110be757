"""`kstreams-assets governance`: what is declared of an application, compared with its cluster."""

import sys
from dataclasses import asdict
from typing import Any

import click

from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.spark_run import new_run_id
from kstreams_assets.governance.findings import GovernanceReport, GovernanceVerdict
from kstreams_assets.governance.run import check_governance
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.point import iso_time


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
        [[v.check, _result(v), v.looked_at, " ".join(v.not_judged)] for v in report.verdicts],
    )
    for verdict in report.verdicts:
        for finding in verdict.findings:
            click.echo(f"{finding.severity.value.upper()} {verdict.check}: {finding}", err=True)


def _result(verdict: GovernanceVerdict) -> str:
    if not verdict.compared:
        return "not compared"
    if verdict.passed:
        return "passed"
    return f"{'RED' if verdict.is_red else 'WARN'}: {len(verdict.findings)}"


def _document(report: GovernanceReport) -> dict[str, Any]:
    return {
        "application_id": report.application_id,
        "cluster_id": report.cluster_id,
        "judged_at": iso_time(report.judged_at_ms),
        "passed": not report.is_red,
        "checks": [
            {
                "check": verdict.check,
                "passed": verdict.passed if verdict.compared else None,
                "compared": verdict.compared,
                "severity": verdict.severity.value,
                "looked_at": verdict.looked_at,
                "not_judged": list(verdict.not_judged),
                "findings": [asdict(finding) for finding in verdict.findings],
            }
            for verdict in report.verdicts
        ],
    }
