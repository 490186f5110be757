"""A drilled application as a process: what it says, what it uses, how it ends."""

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from kstreams_assets.drill.application import DrilledApplication
from kstreams_assets.drill.command import DrillCommand
from kstreams_assets.drill.report import RateFrom
from kstreams_assets.drill.run import measure_of
from kstreams_assets.errors import ProcessError
from tests.drill.restores import stored_restore
from tests.timing import eventually

_ASSIGNED = "State transition from STARTING to PARTITIONS_ASSIGNED"
_RESTORED = "Finished restoring changelog {} to store s with a total number of {} records"


def _application(folder: Path, text: str) -> DrilledApplication:
    command = DrillCommand(
        arguments=(sys.executable, "-u", "-c", text),
        environment={**os.environ, "SAID": "by the environment"},
        working_directory=folder,
    )
    return DrilledApplication(command, log_file=folder / "log" / "a.log", running_line="^UP")


def test_running_is_measured_and_stopped(tmp_path: Path) -> None:
    text = (
        "import os, time\n"
        "print(os.environ['SAID'], os.getcwd())\n"
        "began = time.process_time()\n"
        "while time.process_time() - began < 0.3: pass\n"
        "print('UP')\n"
        "time.sleep(600)\n"
    )
    with _application(tmp_path, text) as application:
        assert eventually(lambda: application.use_at_running)
        running_s, at_running = application.running_s, application.use_at_running
        assert running_s is not None
        assert 0.3 <= running_s <= time.monotonic() - application.started_s
        assert at_running is not None
        assert at_running.cpu_s >= 0.3
        assert at_running.peak_memory_bytes > 1_000_000
        assert application.exit_code is None
        assert application.last_lines() == (f"by the environment {tmp_path}", "UP")
        pid = application._process.pid
    assert application.exit_code == -15
    assert not psutil.pid_exists(pid)


def test_what_it_said_last_is_read_to_the_end(tmp_path: Path) -> None:
    with _application(tmp_path, "print('UP'); raise SystemExit(4)") as application:
        assert eventually(lambda: application.exit_code is not None)
    assert application.exit_code == 4
    assert application.running_s is not None


def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    command = DrillCommand((str(broken),), dict(os.environ), None)
    with pytest.raises(ProcessError, match="Cannot start"):
        DrilledApplication(command, log_file=tmp_path / "a.log", running_line="UP")


def test_the_rate_comes_from_the_lines_of_kafka_streams(tmp_path: Path) -> None:
    lines = (_ASSIGNED, _RESTORED.format("s-changelog-0", 30), _RESTORED.format("other-0", 5))
    text = (
        "import os, time\n"
        f"first, *more = {lines!r}\n"
        "print(first)\n"
        "while not os.path.exists('go on'): time.sleep(0.02)\n"
        "for line in (*more, 'UP'): print(line)\n"
        "time.sleep(600)\n"
    )
    with _application(tmp_path, text) as application:
        assert eventually(lambda: application.log._assigned_at_s is not None)
        time.sleep(0.3)
        (tmp_path / "go on").touch()
        assert eventually(lambda: application.running_s)
        restoration_s = application.log.restoration_s
        found = measure_of(
            application,
            stored_restore("s-changelog", records=40),
            caught_up_s=None,
            state_dir=tmp_path,
            failed=True,
        )
    assert (found.changelog_records, found.changelog_records_expected) == (30, 40)
    assert found.rate_from is RateFrom.LOG
    assert restoration_s is not None
    assert restoration_s >= 0.3
    assert found.changelog_records_per_s == pytest.approx(30 / restoration_s)
    assert found.last_lines == (*lines, "UP")


def test_without_such_lines_it_comes_from_offsets(tmp_path: Path) -> None:
    with _application(tmp_path, "print('UP')") as application:
        assert eventually(lambda: application.running_s)
        found = measure_of(
            application,
            stored_restore("s-changelog", records=40),
            caught_up_s=1.0,
            state_dir=tmp_path,
            failed=False,
        )
    assert (found.changelog_records, found.rate_from) == (None, RateFrom.OFFSETS)
    assert found.to_running_s is not None
    assert found.changelog_records_per_s == pytest.approx(40 / found.to_running_s)
    assert found.last_lines == ()
    assert found.state_bytes > 0  # its log lies there
