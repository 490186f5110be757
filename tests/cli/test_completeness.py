"""`completeness check` and `list`, with the evaluation itself replaced."""

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app.rules import Place
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.checks import Severity
from kstreams_assets.cli import completeness
from kstreams_assets.completeness import on_restores
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.restores import RestoreState, StoredRestore
from kstreams_assets.model.rule_results import Outcome, RuleResult
from kstreams_assets.model.spans import SpanContent, SpanResult, Window
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.request import RestoreRequest
from tests.backup.held_records import hold_records
from tests.backup.samples import backup, cut, point, span
from tests.cli.application import Program, document, nothing_written, write
from tests.clock import freeze_time
from tests.completeness.outcomes import result
from tests.ktables.samples import KEYS, SCHEDULE
from tests.restore import outcomes

LOST, SMALL, ELSEWHERE = "nothing_lost", "small_orders", "on_restores"
RULES = [
    {"name": LOST, "balance": "t == u"},
    {"name": SMALL, "sql": "SELECT * FROM t WHERE _offset < 0", "severity": "warn"},
    {"name": ELSEWHERE, "balance": "t == u", "on": ["restore"]},
]


@dataclass
class _Evaluation:
    """Stands in for evaluations of every kind; rules hold unless told otherwise."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    asked: list[tuple[str, list[str]]] = field(default_factory=list)

    def window(self, window: Window, *, rules: Sequence[str]) -> list[RuleResult]:
        return self._results(window.key, rules, window=window.key)

    def point(self, point_id: str, *, rules: Sequence[str]) -> list[RuleResult]:
        return self._results(point_id, rules, point_id=point_id)

    def restore(
        self,
        settings: object,
        restore: StoredRestore,
        target: KafkaConnection,
        *,
        rules: Sequence[str],
        **_: Any,
    ) -> list[RuleResult]:
        where = f"{restore.restore_id} on {target.bootstrap_servers}"
        return self._results(where, rules, place=Place.RESTORE)

    def _results(self, where: str, rules: Sequence[str], **more: Any) -> list[RuleResult]:
        self.asked.append((where, list(rules)))
        severity = {SMALL: Severity.WARN}
        return [
            result(
                self.outcomes.get(name, Outcome.PASSED),
                rule=name,
                severity=severity.get(name, Severity.ERROR),
                **more,
            )
            for name in rules
        ]


@pytest.fixture(autouse=True)
def _half_past_four() -> Iterator[None]:
    with freeze_time(datetime(2026, 10, 20, 4, 30, tzinfo=UTC)):
        yield


@pytest.fixture
def evaluation(monkeypatch: pytest.MonkeyPatch) -> _Evaluation:
    """What the command calls."""
    made = _Evaluation()
    monkeypatch.setattr(completeness, "Evaluator", lambda *_, **__: nullcontext(made))
    monkeypatch.setattr(on_restores, "evaluate_restore", made.restore)
    return made


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path / "warehouse")


@pytest.fixture
def app_file(tmp_path: Path, warehouse: Warehouse) -> Path:
    """Windows 00:00 and 01:00 are backed up, of 02:00 one topic of two; a point in each."""
    calendar = WindowCalendar(SCHEDULE)
    table = Repository(warehouse, "shop").points
    for index, key in enumerate(KEYS[:3]):
        window = calendar.window(key)
        cuts = [cut(0, 9 * (index + 1), topic=topic) for topic in ("t", "u")]
        table.append(point(window.end_ms - 1, *cuts, point_id=f"point-{index}"))
        made = [
            replace(
                backup(
                    SpanResult(
                        replace(span(9 * index, 9 * index + 9, topic=topic), window=window),
                        SpanContent(9, 99),
                        (),
                    ),
                    topic=topic,
                ),
                window=window,
            )
            for topic in ("t", "u")[: 2 if index < 2 else 1]
        ]
        Ledger(warehouse, "shop").record(made, run_id="run-1")
    hold_records(warehouse, "shop")
    more = {
        "warehouse": str(warehouse.root),
        "completeness": RULES,
        "restore": {"target": {"bootstrap_servers": "target:1"}},
    }
    return write(tmp_path / "defs.yaml", document(**more))


@pytest.mark.parametrize(
    ("options", "where", "rules"),
    [
        ([], KEYS[1], [LOST, SMALL]),
        (["--window", KEYS[0]], KEYS[0], [LOST, SMALL]),
        (["--rule", SMALL], KEYS[1], [SMALL]),
        (["--point", "point-2"], "point-2", [LOST, SMALL]),
        (["--as-of", "2026-10-20T02:00:01Z"], "point-1", [LOST, SMALL]),
        # Begun by then, and complete a millisecond later.
        (["--as-of", "2026-10-20T02:00:00Z"], "point-0", [LOST, SMALL]),
        (["--as-of", "2026-10-20T01:30:00Z"], "point-0", [LOST, SMALL]),
    ],
)
def test_what_is_evaluated(
    program: Program,
    app_file: Path,
    evaluation: _Evaluation,
    options: list[str],
    where: str,
    rules: list[str],
) -> None:
    done = program("completeness", "check", "--app", app_file, *options)
    assert (done.exit_code, done.err) == (0, "")
    assert evaluation.asked == [(where, rules)]
    assert f"shop: {len(rules)} completeness rules" in done.out


def test_on_the_target_of_a_restore(
    program: Program, app_file: Path, warehouse: Warehouse, evaluation: _Evaluation
) -> None:
    made = outcomes.stored(outcomes.plan(RestoreRequest()), RestoreState.COMMITTED)
    Repository(warehouse, made.application_id).restores.append(made)
    command = ("completeness", "check", "--app", app_file, "--restore", made.restore_id)
    done = program(*command)
    assert (done.exit_code, done.err) == (0, "")
    assert evaluation.asked == [("point-1-0123abcd on target:1", [LOST, SMALL, ELSEWHERE])]


def test_a_violation_is_exit_code_1_and_shows_the_rows(
    program: Program, app_file: Path, evaluation: _Evaluation
) -> None:
    evaluation.outcomes[LOST] = Outcome.VIOLATED
    done = program("completeness", "check", "--app", app_file)
    assert done.exit_code == 1
    assert "RED: violated" in done.out
    assert f"{LOST}: 2 row(s) in violation" in done.out
    assert "anna" in done.out
    assert "null" in done.out
    assert done.err == f"ERROR {LOST}: It is violated. Do something.\n"


@pytest.mark.parametrize(
    ("name", "outcome", "code", "level"),
    [
        (SMALL, Outcome.VIOLATED, 0, "WARN"),
        (LOST, Outcome.NOT_VERIFIABLE, 0, "WARN"),
        (SMALL, Outcome.FAILED, 1, "ERROR"),
    ],
)
def test_what_did_not_pass_is_always_told(
    program: Program,
    app_file: Path,
    evaluation: _Evaluation,
    name: str,
    outcome: Outcome,
    code: int,
    level: str,
) -> None:
    evaluation.outcomes[name] = outcome
    done = program("completeness", "check", "--app", app_file)
    assert done.exit_code == code
    assert done.err.startswith(f"{level} {name}: ")
    assert f"{outcome.value.replace('_', ' ')}" in done.out


def test_json(program: Program, app_file: Path, evaluation: _Evaluation) -> None:
    evaluation.outcomes[LOST] = Outcome.VIOLATED
    done = program("completeness", "check", "--app", app_file, "--json")
    assert done.exit_code == 1
    found = json.loads(done.out)
    assert found["passed"] is False
    lost, small = found["evaluations"]
    assert (lost["rule"], lost["outcome"], lost["violations"]) == (LOST, "violated", 2)
    assert (lost["columns"], lost["rows"]) == (
        ["customer", "difference"],
        [["anna", "2"], [None, "-1"]],
    )
    assert (small["passed"], small["window"]) == (True, KEYS[1])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--window", KEYS[0], "--point", "p"], "Several of --window, --as-of, --point and"),
        (["--window", "2026-10-20"], "There is no closed window '2026-10-20'"),
        (
            ["--rule", "lost"],
            "shop has no completeness rule lost to evaluate here. Available rules",
        ),
        (["--rule", ELSEWHERE], f"shop has no completeness rule {ELSEWHERE} to evaluate here."),
        (["--as-of", "2026-10-20T00:30:00Z"], "No recovery point that was complete at"),
        (["--as-of", "yesterday"], "as_of is 'yesterday'."),
        (["--restore", "r-9"], "shop has no restore 'r-9' in"),
    ],
)
def test_what_is_refused(
    program: Program, app_file: Path, evaluation: _Evaluation, options: list[str], text: str
) -> None:
    done = program("completeness", "check", "--app", app_file, *options)
    assert done.exit_code == 2
    assert text in done.err
    assert done.err.count("\n") == 1
    assert evaluation.asked == []


def test_nothing_to_evaluate(program: Program, tmp_path: Path, evaluation: _Evaluation) -> None:
    without = write(tmp_path / "without.yaml", document(warehouse=str(tmp_path / "w")))
    empty = write(
        tmp_path / "empty.yaml", document(warehouse=str(tmp_path / "w"), completeness=RULES)
    )
    with nothing_written(tmp_path):
        no_rule = program("completeness", "check", "--app", without)
        no_window = program("completeness", "check", "--app", empty)
    assert no_rule.exit_code == no_window.exit_code == 0
    assert no_rule.err == "NOTE No completeness rule is declared for this evaluation.\n"
    assert no_window.err.startswith("NOTE No window is backed up yet: run kstreams-assets backup")
    assert evaluation.asked == []


def test_list(program: Program, app_file: Path, warehouse: Warehouse) -> None:
    table = Repository(warehouse, "shop").results
    table.record([result(evaluated_at_ms=1_000), result(rule=SMALL, evaluated_at_ms=2_000)])
    table.record([result(Outcome.VIOLATED, evaluated_at_ms=3_000, window=KEYS[0])])
    found = json.loads(program("completeness", "list", "--app", app_file, "--json").out)
    assert [(e["rule"], e["outcome"]) for e in found["evaluations"]] == [
        (LOST, "violated"),
        (SMALL, "passed"),
        (LOST, "passed"),
    ]
    newest = program("completeness", "list", "--app", app_file, "--last", "1").out
    assert "RED: violated" in newest
    assert SMALL not in newest
    only = program("completeness", "list", "--app", app_file, "--rule", SMALL, "--json").out
    assert [e["rule"] for e in json.loads(only)["evaluations"]] == [SMALL]
