"""The failure matrix says what the drills recorded, for every scenario there is."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from scripts import generate_failure_matrix
from scripts.generate_failure_matrix import MATRIX, main, matrix
from tests.docs.documents import CHECKOUT
from tests.failures.outcome import FOLDER, file_of, load, save
from tests.failures.scenarios import SCENARIOS, Scenario


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what is recorded."""
    return Path(shutil.copytree(FOLDER, tmp_path / "failures"))


def test_the_committed_document_is_what_was_recorded() -> None:
    assert MATRIX.read_text(encoding="utf-8") == matrix(), (
        "run: python -m scripts.generate_failure_matrix"
    )


def test_every_scenario_is_recorded_and_nothing_else() -> None:
    assert {file.stem for file in FOLDER.glob("*.yaml")} == {s.id for s in SCENARIOS}
    assert len({scenario.id for scenario in SCENARIOS}) == len(SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.id)
def test_a_recorded_test_exists_and_records_this_scenario(scenario: Scenario) -> None:
    outcome = load(scenario.id)
    assert outcome is not None
    file, _, test = outcome.test.partition("::")
    source = (CHECKOUT / file).read_text(encoding="utf-8")
    found = re.search(rf"^def {test}\(.*?(?=^def |\Z)", source, re.MULTILINE | re.DOTALL)
    assert found, outcome.test
    assert f'"{scenario.id}",' in found[0]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.id)
def test_an_outcome_says_something_of_everything(scenario: Scenario) -> None:
    outcome = load(scenario.id)
    assert outcome is not None
    assert outcome.scenario == scenario.id
    assert outcome.happens
    assert outcome.checks
    assert outcome.restores


def test_every_drill_records_a_scenario() -> None:
    tests = {
        f"{file.relative_to(CHECKOUT)}::{name}"
        for file in (CHECKOUT / "tests" / "failures").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)
    }
    assert tests == {outcome.test for s in SCENARIOS if (outcome := load(s.id)) is not None}


def test_another_outcome_makes_the_document_stale(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SCENARIOS[0].id
    outcome = load(first, folder)
    assert outcome is not None
    save(replace(outcome, happens={"the application": "does something else"}), folder)
    assert matrix(folder) != matrix()
    monkeypatch.setattr(generate_failure_matrix, "matrix", lambda: matrix(folder))
    result = CliRunner().invoke(main, ["--check"])
    assert result.exit_code == 1
    assert "stale" in result.output


def test_a_scenario_without_outcome_is_an_error(folder: Path) -> None:
    file_of(SCENARIOS[0].id, folder).unlink()
    with pytest.raises(ValueError, match=SCENARIOS[0].id):
        matrix(folder)


def test_times_alone_are_no_difference() -> None:
    outcome = load(SCENARIOS[0].id)
    assert outcome is not None
    assert replace(outcome, seconds=outcome.seconds + 9).differences(outcome) == []
    other = replace(outcome, checks={"no_source_loss": "red: orders"})
    assert [text.partition(":")[0] for text in other.differences(outcome)] == ["checks"]
