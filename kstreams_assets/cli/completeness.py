"""`kstreams-assets completeness`: evaluate completeness rules, and list how they came out."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from kstreams_assets.app.rules import Place
from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.completeness_output import outcome_text, result_document, tell_results
from kstreams_assets.cli.options import app_options
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.spark_run import spark_run
from kstreams_assets.completeness.evaluate import Evaluator
from kstreams_assets.completeness.result import (
    AT_WINDOWS,
    ON_RESTORES,
    ResultsTable,
    RuleResult,
    is_red,
    rule_checks,
)
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.restore.request import RestoreRequest, parse_instant
from kstreams_assets.restore.selection import choose
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import iso_time
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.contents import Contents
from kstreams_assets.warehouse.judge import PointStatus, Restores
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.spans import Window

_log = logging.getLogger(__name__)


@click.group("completeness")
def completeness() -> None:
    """Evaluate the rules by which the business knows that nothing is lost."""


@completeness.command()
@app_options
@click.option("--window", "key", help="At the recovery point that ends this window.")
@click.option("--as-of", help="At the newest covered point that was complete then, ISO 8601.")
@click.option("--point", "point_id", help="At this recovery point.")
@click.option("--restore", "restore_id", help="On the cluster that this restore went to.")
@click.option("--rule", "names", multiple=True, help="Only this rule; repeat for more.")
def check(
    settings: ApplicationSettings,
    as_json: bool,
    key: str | None,
    as_of: str | None,
    point_id: str | None,
    restore_id: str | None,
    names: tuple[str, ...],
) -> None:
    """Evaluate rules and recomputations; without an option, at the newest window backed up.

    Prints each rule's outcome and the rows in violation. Exits 1 when a rule of severity error is
    violated or could not be evaluated; rules that are not verifiable exactly are warnings. Needs
    no broker, but for --restore: there the rules see what the group has committed, or is to commit.

    \f
    Raises ConfigurationError for options that contradict each other, unknown rules, windows,
    points and restores.
    """
    given = [option for option in (key, as_of, point_id, restore_id) if option is not None]
    if len(given) > 1:
        raise ConfigurationError(
            f"Several of --window, --as-of, --point and --restore are given ({', '.join(given)}).",
            remedy="Give one of them, or none for the newest window that is backed up.",
        )
    places = AT_WINDOWS if restore_id is None else ON_RESTORES
    rules = _rules(settings, names, places)
    if not rules:
        results: Sequence[RuleResult] = ()
        click.echo("NOTE No completeness rule is declared for this place.", err=True)
    elif restore_id is not None:
        results = _on_restore(settings, restore_id, rules)
    elif as_of is not None or point_id is not None:
        chosen = point_id or _point_as_of(settings, as_of or "")
        with _evaluator(settings) as evaluator:
            results = evaluator.point(chosen, rules=rules)
    else:
        results = _at_window(settings, key, rules)
    _report(settings, results, as_json=as_json)
    if any(map(is_red, results)):
        sys.exit(exit_codes.CHECK_FAILED)


@completeness.command("list")
@app_options
@click.option("--rule", "names", multiple=True, help="Only this rule; repeat for more.")
@click.option("--last", default=20, show_default=True, help="How many, newest first.")
def list_results(
    settings: ApplicationSettings, as_json: bool, names: tuple[str, ...], last: int
) -> None:
    """The newest evaluations there are, newest first. Needs neither broker nor JVM."""
    table, count = ResultsTable(settings.warehouse), max(last, 0)
    if names:
        newest = table.of(settings.application_id, rules=names)[::-1][:count]
    else:
        newest = table.newest(settings.application_id, count)
    if as_json:
        print_json({"evaluations": [result_document(result) for result in newest]})
        return
    print_table(
        f"Evaluations of {settings.application_id}, newest first",
        ["evaluated at", "rule", "outcome", "rows in violation", "where", "window", "point"],
        [
            [
                iso_time(result.evaluated_at_ms),
                result.rule,
                outcome_text(result),
                result.violations,
                result.place.value,
                result.window or "",
                result.point_id,
            ]
            for result in newest
        ],
    )


def _rules(
    settings: ApplicationSettings, names: Sequence[str], places: frozenset[Place]
) -> list[str]:
    declared = [each.rule for each in rule_checks(settings, places)]
    unknown = sorted(set(names) - set(declared))
    if unknown:
        raise ConfigurationError(
            f"{settings.application_id} has no completeness rule {', '.join(unknown)} for this"
            " place.",
            remedy=f"Rules that it has: {', '.join(declared) or 'none'} (recompute_STORE for a"
            " recomputed store).",
        )
    return [rule for rule in declared if not names or rule in names]


def _at_window(
    settings: ApplicationSettings, key: str | None, rules: Sequence[str]
) -> list[RuleResult]:
    window = _newest(settings) if key is None else WindowCalendar(settings.windows).window(key)
    if window is None:
        click.echo("NOTE No window is backed up yet: run kstreams-assets backup first.", err=True)
        return []
    with _evaluator(settings) as evaluator:
        return evaluator.window(window, rules=rules)


@contextmanager
def _evaluator(settings: ApplicationSettings) -> Iterator[Evaluator]:
    with (
        spark_run() as run,
        Evaluator(settings, spark=run.spark, run_id=run.id, log=_log.info) as evaluator,
    ):
        yield evaluator


def _newest(settings: ApplicationSettings) -> Window | None:
    done = [status.window for status in window_statuses(settings) if not status.is_due]
    return done[-1] if done else None


def _point_as_of(settings: ApplicationSettings, as_of: str) -> str:
    """The newest point, complete at a time, that backups cover, whatever it guarantees."""
    points = RecoveryPointTable(settings.warehouse)
    coverage = Contents.of(settings)

    def judge(ids: Sequence[str]) -> Sequence[PointStatus]:
        loaded = {point.id: point for point in points.load(settings.application_id, ids)}
        return coverage.statuses([loaded[each] for each in ids if each in loaded])

    request = RestoreRequest(as_of_ms=parse_instant(as_of), accept=Restores.UNPROVEN)
    choice = choose(points.instants(settings.application_id), judge, request)
    if choice.status is None:
        refusal = choice.refusals[0]
        raise ConfigurationError(f"{refusal.subject}: {refusal.found}", remedy=refusal.action)
    return choice.status.id


def _on_restore(
    settings: ApplicationSettings, restore_id: str, rules: Sequence[str]
) -> list[RuleResult]:
    from kstreams_assets.cli.restore_options import chosen_restore
    from kstreams_assets.completeness.on_restores import evaluate_restore
    from kstreams_assets.restore.target import open_stored_target

    restore = chosen_restore(settings, restore_id)
    with spark_run() as run, open_stored_target(settings, restore) as target:
        return evaluate_restore(
            settings, restore, target, spark=run.spark, rules=rules, log=_log.info
        )


def _report(settings: ApplicationSettings, results: Sequence[RuleResult], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "application_id": settings.application_id,
                "passed": not any(map(is_red, results)),
                "evaluations": [result_document(result) for result in results],
            }
        )
    else:
        tell_results(f"{settings.application_id}: {len(results)} completeness rules", results)
