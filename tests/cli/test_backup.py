"""What the command `backup` shows of a topic that could not be read."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kstreams_assets.backup.result import UnreadTopic
from kstreams_assets.cli import backup as backup_module
from kstreams_assets.layout import Warehouse
from tests.backup.samples import backup, result, span, window, window_backup
from tests.cli.application import Program, document, write
from tests.clock import freeze_time


@pytest.fixture(autouse=True)
def _soon_after() -> Iterator[None]:
    with freeze_time(datetime(2026, 10, 20, 4, 30, tzinfo=UTC)):
        yield


@pytest.fixture
def app_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An application whose backup finds a transaction open in the topic `shared`."""
    reason = "An open transaction blocks committed records."
    unread = [UnreadTopic(window(0), "shared", reason)]
    made = window_backup(backup(result(span(0, 9))), unread=unread)
    monkeypatch.setattr(backup_module, "_run", lambda *_, **__: [made])
    warehouse = Warehouse(tmp_path / "warehouse")
    return write(tmp_path / "defs.yaml", document(warehouse=str(warehouse.root)))


def test_a_topic_that_could_not_be_read_is_red_beside_the_others(
    program: Program, app_file: Path
) -> None:
    done = program("backup", "--app", app_file)
    assert done.exit_code == 1
    assert "RED: not backed up" in done.out
    assert "shared every_offset_accounted w0000: Not backed up. An open transaction" in done.err


def test_a_script_sees_it_too(program: Program, app_file: Path) -> None:
    done = program("backup", "--app", app_file, "--json")
    report = json.loads(done.out)
    assert (done.exit_code, report["passed"]) == (1, False)
    (found,) = report["windows"]
    assert [topic["topic"] for topic in found["topics"]] == ["t"]
    (left_out,) = found["not_backed_up"]
    assert left_out["topic"] == "shared"
    assert "open transaction" in left_out["explanation"]
