"""The harness of benchmarks: rounds in turn, medians, ratios, and the table of them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.harness import Act, Case, CaseResult, Measured, Options, run_case
from scripts.reference.benchmark_table import table

_CONSUMER = "ConsumerPerformance, fetch time"


def _ran(folder: Path, *, scale: float = 1.0) -> list[str]:
    """Runs a case of two acts whose seconds are known; the names in the order of their runs."""
    order: list[str] = []
    fetched, backed_up = iter([9.0, 1.0, 2.0, 4.0]), iter([99.0, 3.0, 4.0, 20.0])

    def fetch() -> Measured:
        order.append("fetch")
        return Measured(next(fetched))

    def backup() -> Measured:
        order.append("backup")
        return Measured(next(backed_up), peak_mb=100.0)

    @contextmanager
    def opened(_: Options) -> Iterator[Case]:
        at_most = {"ratio": 2.5, "peak_mb": 200.0}
        yield Case(
            "A trial",
            [Act(_CONSUMER, fetch), Act("backup", backup, against=_CONSUMER, at_most=at_most)],
        )

    run_case("transactional", opened, Options(rounds=3, scale=scale, output=folder))
    return order


def test_acts_take_turns_and_the_first_round_does_not_count(tmp_path: Path) -> None:
    assert _ran(tmp_path) == ["fetch", "backup"] * 4
    told = json.loads((tmp_path / "transactional.json").read_text("utf-8"))
    fetch, backup = told["acts"]
    assert [one["seconds"] for one in fetch["rounds"]] == [1.0, 2.0, 4.0]
    # Ratios 3, 2 and 5 of the rounds, not the ratio of the medians.
    assert backup["medians"] == {"seconds": 4.0, "peak_mb": 100.0, "ratio": 3.0}
    assert backup["met"] == {"ratio": False, "peak_mb": True}


def test_a_result_reads_back_as_it_was_written(tmp_path: Path) -> None:
    _ran(tmp_path)
    found = CaseResult.read(tmp_path / "transactional.json")
    assert found is not None
    assert found.medians()["backup"]["ratio"] == 3.0
    page = (tmp_path / "transactional.md").read_text("utf-8")
    assert "ratio ≤ 2.50: NOT MET; peak_mb ≤ 200: met" in page


def test_the_table_has_what_was_measured_and_what_was_not(tmp_path: Path) -> None:
    _ran(tmp_path)
    lines = table(tmp_path).splitlines()
    (backup,) = [line for line in lines if "5 % aborted" in line]
    assert "4.0 s" in backup
    assert "3.00 times Kafka's consumer" in backup
    assert "≤ 2.5: not met" in backup
    assert sum("not measured yet" in line for line in lines) == len(lines) - 3


def test_a_trial_is_not_in_the_table(tmp_path: Path) -> None:
    _ran(tmp_path, scale=0.1)
    lines = table(tmp_path).splitlines()
    assert sum("not measured yet" in line for line in lines) == len(lines) - 2


def test_a_result_without_its_act_is_refused(tmp_path: Path) -> None:
    _ran(tmp_path)
    (tmp_path / "transactional.json").rename(tmp_path / "plain.json")
    (tmp_path / "plain.json").write_text(
        (tmp_path / "plain.json").read_text("utf-8").replace('"backup"', '"another"'), "utf-8"
    )
    with pytest.raises(ValueError, match="no act 'backup'"):
        table(tmp_path)
