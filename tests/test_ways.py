"""`tools.house ways`: a file counts when one of its functions runs, not when it is imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import ways
from tools.house import ROOT


def recorded(folder: Path, *arguments: str) -> tuple[int, set[str]]:
    """The exit code of the program, and the files of which a function ran."""
    log = folder / "ran.json"
    process = subprocess.run(
        [sys.executable, ways.__file__, str(log), str(ROOT), *arguments],
        cwd=folder,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return process.returncode, set(json.loads(log.read_text()))


def test_files_whose_functions_run_count_and_those_only_imported_do_not(tmp_path: Path) -> None:
    code, ran = recorded(tmp_path, "windows", "--app", str(tmp_path / "not-there.yaml"))
    assert code == 2
    assert {"kstreams_assets/cli/main.py", "kstreams_assets/errors.py"} <= ran
    assert "kstreams_assets/model/point.py" not in ran


@pytest.mark.kafka
def test_every_way_of_a_user_is_recorded_on_a_real_broker() -> None:
    found = {way.name: way.files for way in ways.ways_of(ROOT)}
    assert set(found) == {"take", "backup", "follow", "restore", "expire"}
    for name, file in {
        "take": "recovery/recorder.py",
        "backup": "backup/run.py",
        "follow": "backup/follow.py",
        "restore": "restore/job.py",
        "expire": "upkeep/expire.py",
    }.items():
        assert f"kstreams_assets/{file}" in found[name]
    assert found["expire"].isdisjoint({"kstreams_assets/restore/job.py"})
