"""`init` makes a code location that Dagster loads, and changes nothing that is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kstreams_assets.cli.init import DAGSTER_YAML
from tests.cli.application import Program, document

ROOT = Path(__file__).parents[2]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    return Program(monkeypatch, capsys)


def test_dagster_loads_what_it_makes(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "shop-backups"
    done = program("init", folder)
    assert done.exit_code == 0, done.err
    place = folder / "shop_backups" / "defs" / "shop"
    place.mkdir()
    (place / "defs.yaml").write_text(yaml.safe_dump(document()))
    _dagster(folder, "definitions", "validate", "--workspace", "workspace.yaml")
    listed = _dagster(
        folder, "asset", "list", "-m", "shop_backups.definitions", "-d", ".", "--select", "*"
    )
    assert {"shop/restore/t", "shop/backup/t", "shop/recovery_points"} <= set(listed.split())


def _dagster(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("dagster"), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DAGSTER_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_that_is_there_is_changed(program: Program, tmp_path: Path) -> None:
    (tmp_path / "workspace.yaml").write_text("mine")
    done = program("init", tmp_path, "--module", "backups")
    assert done.exit_code == 2
    assert "workspace.yaml" in done.err
    assert [each.name for each in tmp_path.iterdir()] == ["workspace.yaml"]


def test_a_name_that_is_no_module_is_refused(program: Program, tmp_path: Path) -> None:
    done = program("init", tmp_path / "2026-backups")
    assert done.exit_code == 2
    assert "--module" in done.err


def test_dagster_is_set_up_as_here() -> None:
    here = yaml.safe_load((ROOT / "dagster.yaml").read_text("utf-8"))
    assert yaml.safe_load(DAGSTER_YAML) == here
