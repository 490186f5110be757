"""`kstreams-assets completeness`: evaluate completeness rules and list results."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from kstreams_assets.app.rules import Place
from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.cli import exit_codes
from kstreams_assets.cli.help import Group, option
from kstreams_assets.cli.options import app_options, last_option
from kstreams_assets.cli.output import print_json, print_table
from kstreams_assets.cli.spark_run import spark_run
from kstreams_assets.completeness.evaluate import Evaluator
from kstreams_assets.completeness.result import AT_WINDOWS, NULL, ON_RESTORES, rule_checks
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.restorability import PointStatus, Restorability
from kstreams_assets.model.rule_results import RULE, RuleResult, explanation_of, is_red, severity_of
from kstreams_assets.model.spans import Window
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.request import RestoreRequest, parse_instant
from kstreams_assets.restore.selection import choose
from kstreams_assets.settings import ApplicationSettings

_log = logging.getLogger(__name__)
rule_option = option(
    "--rule",
    "names",
    section="Selection",
    metavar="RULE",
    multiple=True,
    help="Rule to include (default: all rules). Repeatable.",
)


@click.group("completeness", cls=Group, epilog="kstreams-assets completeness check --app defs.yaml")
def completeness() -> None:
    """Evaluate completeness rules and list results

    A completeness rule is a SQL query that returns the rows in violation. Rules and recomputed
    stores are declared in the YAML file.
    """


@completeness.command(
    epilog="kstreams-assets completeness check --app defs.yaml --rule no_order_lost"
)
@app_options
@option(
    "--window",
    "key",
    section="Selection",
    metavar="KEY",
    help="Evaluate at the end of this window (default: newest backed-up window).",
)
@option(
    "--as-of",
    section="Selection",
    metavar="TIME",
    help="Evaluate at the newest backed-up recovery point that was completely taken by this time"
    " (ISO 8601, such as 2026-11-21T14:30:00Z).",
)
@option(
    "--point",
    "point_id",
    section="Selection",
    metavar="ID",
    help="Evaluate at this recovery point.",
)
@option(
    "--restore",
    "restore_id",
    section="Selection",
    metavar="ID",
    help="Evaluate on the target cluster of this restore.",
)
@rule_option
def check(
    settings: ApplicationSettings,
    as_json: bool,
    key: str | None,
    as_of: str | None,
    point_id: str | None,
    restore_id: str | None,
    names: tuple[str, ...],
) -> None:
    """Evaluate completeness rules

    Prints the result of each rule and the rows in violation. Rules read the backups. With
    --restore they read the target cluster and the group offsets of the restore.

    The outcome not_verifiable is a warning: the backup or the recovery point does not allow a
    decision, for example because the point is not exact.

    Exit code 1: a rule of severity error is violated, or a rule of any severity failed (its query
    could not run).
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
        click.echo("NOTE No completeness rule is declared for this evaluation.", err=True)
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


@completeness.command("list", epilog="kstreams-assets completeness list --app defs.yaml --last 5")
@app_options
@rule_option
@last_option("results")
def list_results(
    settings: ApplicationSettings, as_json: bool, names: tuple[str, ...], last: int
) -> None:
    """List the results of completeness rules

    The command reads the warehouse only.
    """
    table, count = Repository.open(settings).results, max(last, 0)
    newest = table.of(rules=names)[::-1][:count] if names else table.newest(count)
    if as_json:
        print_json({"evaluations": RULE.documents(newest)})
        return
    print_table(
        f"Evaluations of {settings.application_id}, newest first",
        *RULE.table(
            newest,
            *("evaluated_at", "rule", "result", "violations", "place", "window", "recovery_point"),
        ),
    )


def _rules(
    settings: ApplicationSettings, names: Sequence[str], places: frozenset[Place]
) -> list[str]:
    declared = [each.rule for each in rule_checks(settings, places)]
    unknown = sorted(set(names) - set(declared))
    if unknown:
        raise ConfigurationError(
            f"{settings.application_id} has no completeness rule {', '.join(unknown)} to evaluate"
            " here.",
            remedy=f"Available rules: {', '.join(declared) or 'none'} (recompute_STORE for a"
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
    """Return the newest covered point that was complete at a time, with any guarantee."""
    points = Repository.open(settings).points
    coverage = Repository.open(settings).reading(settings)

    def evaluate(ids: Sequence[str]) -> Sequence[PointStatus]:
        loaded = {point.id: point for point in points.load(ids)}
        return coverage.statuses([loaded[each] for each in ids if each in loaded])

    request = RestoreRequest(as_of_ms=parse_instant(as_of), accept=Restorability.UNPROVEN)
    choice = choose(points.instants(), evaluate, request)
    if choice.status is None:
        blocker = choice.blockers[0]
        raise ConfigurationError(f"{blocker.subject}: {blocker.found}", remedy=blocker.action)
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
                "evaluations": RULE.documents(results),
            }
        )
    else:
        print_results(f"{settings.application_id}: {len(results)} completeness rules", results)


def print_results(title: str, results: Sequence[RuleResult]) -> None:
    """Print results and rows in violation; print problems and remedies to standard error."""
    print_table(
        title,
        *RULE.table(
            results,
            *("rule", "result", "violations", "place", "window", "recovery_point"),
            *("stores_from", "s"),
        ),
    )
    for result in results:
        if result.sample.rows:
            shown, count = len(result.sample.rows), result.violations
            print_table(
                f"{result.rule}: {count:,} row(s) in violation"
                + (f", the first {shown}" if shown < count else ""),
                list(result.sample.columns),
                [[NULL if cell is None else cell for cell in row] for row in result.sample.rows],
            )
    for result in results:
        if not result.passed:
            level = severity_of(result).value.upper()
            click.echo(f"{level} {result.rule}: {explanation_of(result)}", err=True)
