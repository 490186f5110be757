"""`kstreams-assets governance`: compare declared settings with the cluster."""

import sys

import click

from kstreams_assets.checks import Evaluation
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.help import Command
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.spark_run import new_run_id
from kstreams_assets.governance.run import check_governance
from kstreams_assets.model.governance_report import REPORT, GovernanceReport, is_compared
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import iso_time


@click.command("governance", cls=Command, epilog="kstreams-assets governance --app defs.yaml")
@app_options
def governance(settings: ApplicationSettings, as_json: bool) -> None:
    """Compare declared settings with the cluster

    The checks cover topics, stores, partitions, replication, retention, lag and owners. Each
    finding names a remedy. The command reads metadata only, no records.

    Exit code 1: a finding of severity error.
    """
    report, _ = check_governance(settings, run_id=new_run_id())
    if as_json:
        print_json(REPORT.document(report))
    else:
        _print(report)
    if report.is_red:
        sys.exit(exit_codes.CHECK_FAILED)


def _print(report: GovernanceReport) -> None:
    print_table(
        f"Governance of {report.application_id} on cluster {report.cluster_id},"
        f" {iso_time(report.judged_at_ms)}",
        ["check", "result", "checked", "not evaluated"],
        [[e.check, _result(e), e.summary, " ".join(e.not_judged)] for e in report.evaluations],
    )
    for evaluation in report.evaluations:
        for finding in evaluation.findings:
            click.echo(f"{finding.severity.value.upper()} {evaluation.check}: {finding}", err=True)


def _result(evaluation: Evaluation) -> str:
    if not is_compared(evaluation):
        return "not compared"
    if evaluation.passed:
        return "passed"
    return f"{'RED' if evaluation.is_red else 'WARN'}: {len(evaluation.findings)}"
