"""Completeness rules as a Dagster asset, with the evaluation replaced: what Dagster is told."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kstreams_assets.app.rules import Place, Recomputation
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat
from kstreams_assets.checks import Severity
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.model.rule_results import Outcome, RuleResult
from kstreams_assets.model.spans import Window
from kstreams_assets.orchestration import completeness as assets
from kstreams_assets.settings import ApplicationSettings
from spark_resources.resource import SparkSessionResource
from tests.completeness.outcomes import result, rule
from tests.ktables import samples
from tests.ktables.samples import KEYS
from tests.orchestration.project import run_windows

LOST, SMALL, TOTALS = "nothing_lost", "small_orders", "recompute_totals"


@dataclass
class _Evaluation:
    """Stands in for `Evaluator`: outcomes by rule and window, the others hold."""

    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    error: Exception | None = None
    windows: list[str] = field(default_factory=list)
    run_id: str = ""

    def __call__(
        self,
        settings: ApplicationSettings,
        *,
        spark: SparkSessionResource,
        run_id: str,
        log: Callable[[str], None],
    ) -> AbstractContextManager["_Evaluation"]:
        log("begun")
        self.run_id = run_id
        return nullcontext(self)

    def window(self, window: Window) -> list[RuleResult]:
        self.windows.append(window.key)
        if self.error is not None:
            raise self.error
        return [
            result(
                self.outcomes.get((name, window.key), Outcome.PASSED),
                rule=name,
                window=window.key,
                point_id=f"point-{window.key}",
                severity=Severity.WARN if name == SMALL else Severity.ERROR,
                run_id=self.run_id,
            )
            for name in (LOST, SMALL, TOTALS)
            if name not in self.without
        ]


@pytest.fixture
def evaluation(monkeypatch: pytest.MonkeyPatch) -> _Evaluation:
    """The evaluation that the asset makes."""
    made = _Evaluation()
    monkeypatch.setattr(assets, "Evaluator", made)
    return made


@pytest.fixture
def settings(tmp_path: Path) -> ApplicationSettings:
    """Two rules and a recomputed store."""
    return replace(
        samples.settings(tmp_path),
        completeness=(rule(LOST), rule(SMALL, severity=Severity.WARN)),
        recomputed=(Recomputation(store="totals", source="orders.eu"),),
    )


def _materialise(
    settings: ApplicationSettings, first: str, last: str
) -> tuple[dg.ExecuteInProcessResult, dict[str, dict[str, Any]]]:
    """The run, and the metadata of each window's materialisation."""
    (definition,) = assets.build_completeness_assets(settings)
    done = run_windows(definition, [definition.key], first, last)
    return done, {
        event.partition or "": {
            name: value.value for name, value in event.materialization.metadata.items()
        }
        for event in done.all_events
        if event.is_step_materialization
    }


def _evaluated(done: dg.ExecuteInProcessResult, check: str) -> dict[str, dg.AssetCheckEvaluation]:
    return {
        evaluation.partition or "": evaluation
        for evaluation in done.get_asset_check_evaluations()
        if evaluation.check_name == check
    }


def test_without_rules_and_recomputations_there_is_no_asset(
    settings: ApplicationSettings, tmp_path: Path
) -> None:
    assert assets.build_completeness_assets(samples.settings(tmp_path)) == []
    only_restores = (rule(on=frozenset({Place.RESTORE})),)
    without = replace(settings, completeness=only_restores, recomputed=())
    assert assets.build_completeness_assets(without) == []


def test_key_edges_group_checks(settings: ApplicationSettings) -> None:
    (definition,) = assets.build_completeness_assets(settings)
    (spec,) = definition.specs
    assert spec.key.to_user_string() == "shop/completeness"
    assert {dep.asset_key.to_user_string() for dep in spec.deps} == {
        "shop/backup/orders.eu",
        "shop/backup/shop-totals-changelog",
        "shop/backup/shop-sessions-changelog",
        "shop/ktable/totals",
        "shop/ktable/sessions",
        "shop/recovery_points",
    }
    assert spec.group_name == "shop/completeness"
    assert definition.node_def.pools == {"kstreams_completeness_shop"}
    policy = definition.backfill_policy
    assert policy is not None
    assert policy.max_partitions_per_run is None
    assert {check.name for check in definition.check_specs} == {LOST, SMALL, TOTALS}
    assert not any(check.blocking for check in definition.check_specs)


def test_a_single_window(settings: ApplicationSettings, evaluation: _Evaluation) -> None:
    evaluation.outcomes[LOST, KEYS[1]] = Outcome.VIOLATED
    evaluation.outcomes[TOTALS, KEYS[1]] = Outcome.NOT_VERIFIABLE
    done, found = _materialise(settings, KEYS[1], KEYS[1])
    assert done.success
    assert evaluation.windows == [KEYS[1]]
    (only,) = _evaluated(done, LOST).values()
    assert (only.passed, only.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert only.description == "It is violated. Do something."
    shown = {name: value.value for name, value in only.metadata.items()}
    assert (shown["outcome"], shown["violations"], shown["took_s"]) == ("violated", 2, 1.5)
    assert shown["stores_from"] == "KTable snapshots"
    table = only.metadata["rows_in_violation"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [column.name for column in table.schema.columns] == ["customer", "difference"]
    assert [record.data for record in table.records] == [
        {"customer": "anna", "difference": "2"},
        {"customer": "null", "difference": "-1"},
    ]
    assert len(done.get_asset_check_evaluations()) == 3
    (without,) = _evaluated(done, SMALL).values()
    assert "rows_in_violation" not in without.metadata
    (values,) = found.values()
    assert (values["rules"], values["passed"], values["violated"]) == (3, 1, 1)
    assert (values["not_verifiable"], values["failed"], values["violations"]) == (1, 0, 2)
    assert values["took_s"] == 4.5
    rows = [record.data for record in values["evaluations"].records]
    assert {row["rule"]: row["outcome"] for row in rows} == {
        LOST: "violated",
        SMALL: "passed",
        TOTALS: "not_verifiable",
    }
    assert values["recovery_point"] == f"point-{KEYS[1]}"


def test_a_range_has_an_evaluation_for_each_window_and_a_summary(
    settings: ApplicationSettings, evaluation: _Evaluation
) -> None:
    evaluation.outcomes[LOST, KEYS[1]] = Outcome.VIOLATED
    done, found = _materialise(settings, KEYS[0], KEYS[2])
    assert evaluation.windows == KEYS[:3]
    assert {key: values["violated"] for key, values in found.items()} == {
        KEYS[0]: 0,
        KEYS[1]: 1,
        KEYS[2]: 0,
    }
    checked = _evaluated(done, LOST)
    assert {key: e.passed for key, e in checked.items()} == {
        KEYS[0]: True,
        KEYS[1]: False,
        KEYS[2]: True,
        "": False,
    }
    assert checked[KEYS[1]].metadata["rows_in_violation"] is not None
    summary = checked[""]
    assert summary.description == f"{KEYS[1]}: It is violated. Do something."
    assert summary.metadata["failed_windows"].value == 1
    assert all(e.passed for e in _evaluated(done, TOTALS).values())


def test_what_is_not_verifiable_is_a_warning_and_never_passed(
    settings: ApplicationSettings, evaluation: _Evaluation
) -> None:
    evaluation.outcomes[TOTALS, KEYS[0]] = Outcome.NOT_VERIFIABLE
    for last in KEYS[:2]:
        done, _ = _materialise(settings, KEYS[0], last)
        warned = [e for e in _evaluated(done, TOTALS).values() if not e.passed]
        assert {e.severity for e in warned} == {dg.AssetCheckSeverity.WARN}
        assert all("Not verifiable exactly: " in (e.description or "") for e in warned)
        assert len(warned) == (1 if last == KEYS[0] else 2)


def test_a_rule_that_cannot_be_evaluated_is_red_even_if_it_only_warns(
    settings: ApplicationSettings, evaluation: _Evaluation
) -> None:
    evaluation.outcomes[SMALL, KEYS[0]] = Outcome.FAILED
    evaluation.outcomes[SMALL, KEYS[1]] = Outcome.VIOLATED
    done, _ = _materialise(settings, KEYS[0], KEYS[1])
    checked = _evaluated(done, SMALL)
    assert checked[KEYS[0]].severity is dg.AssetCheckSeverity.ERROR
    assert checked[KEYS[1]].severity is dg.AssetCheckSeverity.WARN
    assert checked[""].severity is dg.AssetCheckSeverity.ERROR


def test_a_rule_without_any_evaluation_has_not_passed(
    settings: ApplicationSettings, evaluation: _Evaluation
) -> None:
    evaluation.without = (LOST,)
    for last in KEYS[:2]:
        done, _ = _materialise(settings, KEYS[0], last)
        (summary,) = _evaluated(done, LOST).values()
        assert not summary.passed
        assert summary.description == "It was evaluated in no window."


def test_an_error_of_ours_is_a_failure_in_its_own_words(
    settings: ApplicationSettings, evaluation: _Evaluation
) -> None:
    evaluation.error = KStreamsAssetsError("No backup.", remedy="Make one.")
    done, _ = _materialise(settings, KEYS[0], KEYS[0])
    (failure,) = done.get_step_failure_events()
    data = failure.step_failure_data
    assert data.user_failure_data is not None
    assert data.user_failure_data.description == str(evaluation.error)


def test_the_code_version_is_that_of_rules_and_formats(settings: ApplicationSettings) -> None:
    def version(**changed: Any) -> str | None:
        (definition,) = assets.build_completeness_assets(replace(settings, **changed))
        (spec,) = definition.specs
        return spec.code_version

    named, other = settings.completeness
    text = named.model_copy(update={"query": "SELECT 1 WHERE false"})
    recomputed = settings.recomputed[0].model_copy(update={"where": "_value IS NOT NULL"})
    described = named.model_copy(update={"description": "In other words.", "line": 7})
    numbers = StoreFormat(value=Format(Encoding.LONG))
    before = version()
    assert version(completeness=(described, other)) == before
    found = {
        before,
        version(completeness=(text, other)),
        version(recomputed=(recomputed,)),
        version(store_formats={**settings.store_formats, "totals": numbers}),
    }
    assert len(found) == 4
