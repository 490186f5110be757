"""What `make dev` switches on."""

from pathlib import Path

import pytest

from examples.demo.place import DEFS
from kstreams_assets.app_file.read import load_settings


def test_only_the_example_whose_cluster_runs_has_its_sensors_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KSTREAMS_WAREHOUSE", str(tmp_path))
    monkeypatch.setenv("KSTREAMS_SENSORS", "running")
    files = sorted(DEFS.parents[1].glob("*/defs.yaml"))
    running = [file for file in files if load_settings(file).sensors_running]
    assert len(files) > 1
    assert running == [DEFS]
