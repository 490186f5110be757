"""`init` makes a code location that Dagster loads, and changes nothing that is there."""

import os
import subprocess
import sys
import tomllib
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


def test_its_next_steps_work_with_what_is_installed(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(name: str) -> list[str]:
        done = program("init", tmp_path / name, "--module", "backups")
        assert done.exit_code == 0, done.err
        return [line.strip() for line in done.out.splitlines()[1:]]

    there = steps("a folder")
    assert there[0] == f"cd '{tmp_path / 'a folder'}'"
    assert "follow --app backups/defs/APP/defs.yaml" in there[2]
    assert not any("pip install" in line for line in there)
    monkeypatch.setattr("kstreams_assets.cli.init.find_spec", lambda _: None)
    *_, install, last = steps("other")
    assert install.startswith("pip install dagster-webserver==")
    assert "[ui]" in install
    assert last.endswith("dagster dev")


def test_a_program_beside_python_is_called_by_its_path(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstreams_assets.cli.init.which", lambda _: None)
    done = program("init", tmp_path / "x", "--module", "backups")
    assert f"{Path(sys.executable).with_name('dagster')} dev" in done.out


def test_the_extra_with_the_web_interface_fits_dagster() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    dagster = next(d for d in project["dependencies"] if d.startswith("dagster=="))
    web = f"dagster-webserver=={dagster.partition('==')[2]}"
    assert web in project["optional-dependencies"]["ui"]
    assert {*project["optional-dependencies"]["ui"]} <= {*project["optional-dependencies"]["dev"]}
