"""Windows that a killed command recorded and did not show are shown by the next one."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.backup.unreported import ReportMarks
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.spans import Gap, GapCause, Window
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from tests.backup.samples import APPLICATION_ID, backup, cut, point, result, span, window_backup
from tests.backup.writing import write
from tests.cli.application import Program, document
from tests.cli.conftest import program
from tests.streams.workbench import Workbench

__all__ = ["program"]

DAYS = 3
FIRST = datetime.now(tz=UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(DAYS)
KEYS = [f"{FIRST + timedelta(day):%Y-%m-%d}" for day in range(DAYS)]
LIMIT_S = 400

_HELD_AFTER_THE_FIRST_COMMIT = """
import sys, time
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.cli.main import main

record = Ledger.record

def held(*arguments, **named):
    record(*arguments, **named)
    print("recorded", flush=True)
    time.sleep(120)

Ledger.record = held
sys.exit(main())
"""


class TestMarks:
    """A mark goes with a command that ends well, and stays of any other."""

    def test_of_a_command_that_ends_well(self, tmp_path: Path) -> None:
        marks = ReportMarks(Warehouse(tmp_path), "shop")
        assert marks.run_ids() == []
        with marks.of_run("r1"):
            assert marks.run_ids() == ["r1"]
            with marks.left_behind("r1") as is_left_behind:
                assert not is_left_behind, "its process lives"
        assert marks.run_ids() == []

    def test_of_a_command_that_fails(self, tmp_path: Path) -> None:
        marks = ReportMarks(Warehouse(tmp_path), "shop")
        with contextlib.suppress(ZeroDivisionError), marks.of_run("r1"):
            raise ZeroDivisionError
        with contextlib.suppress(ZeroDivisionError), marks.left_behind("r1") as is_left_behind:
            assert is_left_behind
            raise ZeroDivisionError
        with marks.left_behind("r1") as is_left_behind:
            assert is_left_behind
        assert marks.run_ids() == []
        with marks.left_behind("r1") as is_left_behind:
            assert not is_left_behind
        assert marks.run_ids() == []


_HOLDS_A_MARK = """
import sys, time
from pathlib import Path
from kstreams_assets.backup.unreported import ReportMarks
from kstreams_assets.layout import Warehouse

with ReportMarks(Warehouse(Path(sys.argv[1])), "shop").of_run(sys.argv[2]):
    print("marked", flush=True)
    time.sleep(120)
"""


def _killed_run(root: Path, run_id: str, windows: Sequence[WindowBackup]) -> None:
    """The ledger has windows of a run whose process was killed; while it lived it was let alone."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS_A_MARK, str(root), run_id], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "marked\n"
        for window in windows:
            Ledger(Warehouse(root), APPLICATION_ID).record(window.topics, run_id=run_id)
        with ReportMarks(Warehouse(root), APPLICATION_ID).left_behind(run_id) as is_left_behind:
            assert not is_left_behind
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def _stored(key: str, start: datetime, length: timedelta) -> WindowBackup:
    """A window of the topics `t`, which has lost four records, and `u`."""
    window = Window(
        round(start.timestamp() * 1000), round((start + length).timestamp() * 1000), key
    )
    lost = Gap(GapCause.RETENTION, 0, 4, 4)
    topics = tuple(
        replace(
            backup(result(replace(span(0, 9, topic=topic), window=window), *gaps), topic=topic),
            window=window,
        )
        for topic, gaps in (("t", [lost]), ("u", []))
    )
    return window_backup(*topics)


class TestAfterAKill:
    """The ledger is there, the process is gone."""

    def test_the_next_command_shows_its_checks_once(self, tmp_path: Path, program: Program) -> None:
        root = tmp_path / "warehouse"
        file = tmp_path / "defs.yaml"
        file.write_text(
            yaml.safe_dump(
                document(warehouse=str(root), windows={"every": "day", "start": KEYS[2]})
            )
        )
        Repository(Warehouse(root), APPLICATION_ID).points.append(
            point(round(FIRST.timestamp() * 1000) + 2 * 86_400_000 + 1, cut(0, 9))
        )
        day = _stored(KEYS[2], FIRST + timedelta(2), timedelta(1))
        _killed_run(root, "cli-killed", [day])
        shown = program("backup", "--app", file, "--json")
        assert shown.exit_code == 1, shown.err
        (ended,) = json.loads(shown.out)["ended_early"]
        assert (ended["run"], ended["windows"][0]["window"]) == ("cli-killed", KEYS[2])
        again = program("backup", "--app", file, "--json")
        assert again.exit_code == 0
        assert json.loads(again.out)["ended_early"] == []


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    """Three days with records and a point each; of the first, Kafka has lost ten records."""
    topics = [workbench.topic("orders", partitions=2), workbench.topic("gone")]
    table = Repository(workbench.warehouse, workbench.application_id).points
    for day in range(DAYS):
        for topic in topics:
            write(workbench, topic, 20)
        point = workbench.take_point()
        noon_ms = round((FIRST + timedelta(day, hours=12)).timestamp() * 1000)
        table.append(replace(point, id=f"day-{day}", taken_at_ms=noon_ms))
        table.drop({point.id: point.taken_at_ms})
    workbench.delete_records(topics[0], 10)
    return workbench


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.drill
def test_the_next_command_shows_the_checks_of_a_killed_one(
    bench: Workbench, tmp_path: Path
) -> None:
    file = tmp_path / "defs.yaml"
    attributes = {
        "application_id": bench.application_id,
        "topics": {topic: {"roles": ["input"]} for topic in bench.roles},
        "connection": {"bootstrap_servers": bench.bootstrap_servers},
        "warehouse": str(bench.warehouse.root),
        "windows": {"every": "day", "start": KEYS[0]},
        "backup": {"commit_bytes": 1},
    }
    component = "kstreams_assets.components.KafkaStreamsAppComponent"
    file.write_text(yaml.safe_dump({"type": component, "attributes": attributes}), "utf-8")
    command = ["backup", "--app", str(file), "--json"]
    killed = subprocess.Popen(
        [sys.executable, "-c", _HELD_AFTER_THE_FIRST_COMMIT, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ,
        text=True,
    )
    try:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "recorded\n"
        killed.send_signal(signal.SIGKILL)
        assert killed.wait(10) == -signal.SIGKILL
    finally:
        killed.kill()
        killed.wait(10)

    def again() -> tuple[int, dict]:
        done = subprocess.run(
            [sys.executable, "-m", "kstreams_assets.cli.main", *command],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    code, shown = again()
    assert code == 1, "a check of the killed run is red"
    assert not shown["passed"]
    assert [window["window"] for window in shown["windows"]] == KEYS[1:]
    (ended,) = shown["ended_early"]
    (first,) = ended["windows"]
    assert first["window"] == KEYS[0]
    red = {
        (topic["topic"], check["check"])
        for topic in first["topics"]
        for check in topic["checks"]
        if not check["passed"]
    }
    orders = next(topic for topic in bench.roles if topic.startswith("orders"))
    assert red == {(orders, "no_source_loss")}

    code, shown = again()
    assert code == 0
    assert (shown["windows"], shown["ended_early"]) == ([], [])
