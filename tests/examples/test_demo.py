"""What a newcomer runs first: `make demo`, whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.drill,
    pytest.mark.alone,
    pytest.mark.cluster,
    pytest.mark.on_store,
]

_CODE = """
import sys
from pathlib import Path
from examples.demo.__main__ import run
from examples.demo.place import Place
sys.exit(run(Place(Path(sys.argv[1]))))
"""
_TIMEOUT_S = 570


def test_the_demo_loses_nothing_and_proves_it(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(folder)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    report = json.loads((folder / "demo-report.json").read_text("utf-8"))
    assert report["passed"]
    assert report["restored_point_guarantee"] == "exact"
    assert report["customers_that_differ"] == report["lost_after_replay"] == 0
    assert report["records_verified"] == report["records_restored"] > 0
    found = {finding["what"]: finding["found"] for finding in report["findings"]}
    assert found["completeness rules were evaluated"] is True
    assert "BAD" not in done.stdout
