"""Limits of backups and restores: command line before environment before YAML; the dry run."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kstreams_assets.backup.amounts import Estimate, Pace, TopicAmount
from kstreams_assets.backup.run import BackupJob
from kstreams_assets.settings import BackupSettings
from tests.cli.application import Program, document, write
from tests.clock import freeze_time

VARIABLE = "KSTREAMS_ASSETS_BACKUP_BYTES_PER_SECOND"


@pytest.fixture(autouse=True)
def _soon_after() -> Iterator[None]:
    with freeze_time(datetime(2026, 10, 20, 4, 30, tzinfo=UTC)):
        yield


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[BackupSettings]:
    """The settings that estimates were asked with."""
    found: list[BackupSettings] = []

    def plan(job: BackupJob, _: object) -> Estimate:
        found.append(job.settings.backup)
        limit = job.settings.backup.bytes_per_second
        pace = None if limit is None else Pace(limit, "the throttle")
        name = job.settings.application_id
        return Estimate(name, ("w",), (TopicAmount("t", 6_000_000, 6_000_000_000),), pace)

    monkeypatch.setattr(BackupJob, "plan", plan)
    monkeypatch.delenv(VARIABLE, raising=False)
    return found


def _file(folder: Path, **backup: int) -> Path:
    return write(folder / "defs.yaml", document(warehouse=str(folder / "warehouse"), backup=backup))


def test_the_command_line_goes_before_the_environment_before_the_yaml(
    program: Program,
    asked: list[BackupSettings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = _file(tmp_path, bytes_per_second=20_000_000, broker_bytes_per_second=10_000, tasks=3)
    words = ("backup", "--app", file, "--dry-run")
    assert program(*words).exit_code == 0
    monkeypatch.setenv(VARIABLE, "30000000")
    assert program(*words).exit_code == 0
    assert program(*words, "--bytes-per-second", "40000000", "--tasks", "1").exit_code == 0
    assert [one.bytes_per_second for one in asked] == [20_000_000, 30_000_000, 40_000_000]
    assert [one.tasks for one in asked] == [3, 3, 1]
    assert {one.broker_bytes_per_second for one in asked} == {10_000}


def test_a_rate_that_would_never_end_is_refused(program: Program, tmp_path: Path) -> None:
    done = program("backup", "--app", _file(tmp_path), "--bytes-per-second", "5")
    assert done.exit_code == 2
    assert "10000" in done.err


def test_the_dry_run_says_how_much_and_how_long(
    program: Program, asked: list[BackupSettings], tmp_path: Path
) -> None:
    file = _file(tmp_path, bytes_per_second=20_000_000)
    done = program("backup", "--app", file, "--dry-run")
    assert "about 6.0 GB in 6,000,000 offsets; 5 min at 20.0 MB/s, the throttle" in done.out
    told = json.loads(program("backup", "--app", file, "--dry-run", "--json").out)
    assert (told["bytes"], told["seconds"]) == (6_000_000_000, 300)
    unlimited = program("backup", "--app", _file(tmp_path), "--dry-run")
    assert "known after the first" in unlimited.out
    assert not (tmp_path / "warehouse").exists()
    assert len(asked) == 3
