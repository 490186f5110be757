"""A warehouse of an earlier commit: every answer is the same, and it is restored."""

import json
from pathlib import Path

import pytest

from tests.contract.stored import OFFLINE, answer, expected_file, target_cluster, unpacked


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    unpacked(folder)
    return folder


@pytest.mark.e2e
@pytest.mark.parametrize("name", OFFLINE)
def test_a_command_answers_as_it_did(place: Path, name: str) -> None:
    assert answer(place, *OFFLINE[name]) == _expected(name)


@pytest.mark.e2e
@pytest.mark.kafka
@pytest.mark.spark
def test_it_is_planned_and_restored_as_it_was(place: Path, tmp_path: Path) -> None:
    with target_cluster(tmp_path / "target") as cluster:
        for name in ("plan", "run"):
            found = answer(place, "restore", name, cluster=cluster)
            assert found == _expected(f"restore_{name}")


def _expected(name: str) -> object:
    return json.loads(expected_file(name).read_text("utf-8"))
