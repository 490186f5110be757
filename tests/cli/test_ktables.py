"""`ktables make` and `ktables list`, with the run itself replaced."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.cli import ktables
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.snapshot import RowProblem, Snapshot
from kstreams_assets.model.spans import SpanContent, SpanResult, Window
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from tests.backup.samples import backup, cut, point, span
from tests.cli.application import Program, document, nothing_written, write
from tests.cli.test_state import CHANGELOGS, STORES
from tests.clock import freeze_time
from tests.ktables.samples import KEYS, SCHEDULE, snapshot, write_window

BAD = RowProblem(0, 7, "value: 3 bytes where a long has 8")


@dataclass
class _Run:
    """Stands in for `make_snapshots`."""

    asked: tuple[list[str], list[str]] = ([], [])
    weak: bool = False
    bad: bool = False

    def __call__(
        self, settings: object, windows: Sequence[Window], *, stores: Sequence[str], **_: Any
    ) -> list[Snapshot]:
        self.asked = ([window.key for window in windows], list(stores))
        made = [snapshot(window.key, store) for window in windows for store in stores]
        if self.bad:
            made = [replace(one, problem_rows=1, problems=(BAD,)) for one in made]
        if self.weak:
            made = [replace(one, proved=False, reason="Compaction came first.") for one in made]
        return made


@pytest.fixture(autouse=True)
def _half_past_four() -> Iterator[None]:
    with freeze_time(datetime(2026, 10, 20, 4, 30, tzinfo=UTC)):
        yield


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> _Run:
    """The run that the command makes."""
    made = _Run()
    monkeypatch.setattr(ktables, "make_snapshots", made)
    return made


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    """Two stores; both are backed up in windows 00:00 and 01:00, one of them in 02:00."""
    topics = {"t": {"roles": ["input"]}, **CHANGELOGS}
    warehouse = Warehouse(tmp_path / "warehouse")
    path = write(
        tmp_path / "defs.yaml",
        document(warehouse=str(warehouse.root), topics=topics, stores=STORES),
    )
    calendar = WindowCalendar(SCHEDULE)
    first_ms = calendar.window(KEYS[0]).start_ms + 1
    Repository(warehouse, "shop").points.append(point(first_ms, cut(0, 9)))
    for key, names in ((KEYS[0], CHANGELOGS), (KEYS[1], CHANGELOGS), (KEYS[2], [*CHANGELOGS][:1])):
        window = calendar.window(key)
        made = [
            replace(
                backup(
                    SpanResult(
                        replace(span(0, 9, topic=topic), window=window), SpanContent(9, 99), ()
                    ),
                    topic=topic,
                ),
                window=window,
            )
            for topic in names
        ]
        Ledger(warehouse, "shop").record(made, run_id="run-1")
    return path


@pytest.mark.parametrize(
    ("options", "windows", "stores"),
    [
        ([], KEYS[1:2], ["sessions", "totals"]),
        (["--last", "9"], KEYS[:2], ["sessions", "totals"]),
        (["--store", "totals"], KEYS[2:3], ["totals"]),
        (["--window", KEYS[3], "--window", KEYS[0]], [KEYS[0], KEYS[3]], ["sessions", "totals"]),
    ],
)
def test_what_is_made(
    program: Program,
    app_file: Path,
    run: _Run,
    options: list[str],
    windows: list[str],
    stores: list[str],
) -> None:
    result = program("ktables", "make", "--app", app_file, *options)
    assert (result.exit_code, result.err) == (0, "")
    assert run.asked == (windows, stores)
    assert f"shop: {len(windows) * len(stores)} snapshots in" in result.out


def test_a_red_check_is_exit_code_1(program: Program, app_file: Path, run: _Run) -> None:
    run.bad = True
    result = program("ktables", "make", "--app", app_file, "--store", "totals")
    assert result.exit_code == 1
    assert "RED: every_row_decodes" in result.out
    assert result.err.startswith(f"ERROR totals every_row_decodes {KEYS[2]}: 1 of 9 rows")
    assert f"shop-totals-changelog-0 offset 7: {BAD.problem}" in result.err


def test_a_warning_is_not(program: Program, app_file: Path, run: _Run) -> None:
    run.weak = True
    weak = point(1, point_id=f"point-{KEYS[2]}")  # taken as at_least_once
    Repository(Warehouse(app_file.parent / "warehouse"), "shop").points.append(weak)
    result = program("ktables", "make", "--app", app_file, "--store", "totals")
    assert result.exit_code == 0
    assert result.err.startswith(f"WARN totals snapshot_is_proved {KEYS[2]}:")


def test_json(program: Program, app_file: Path, run: _Run) -> None:
    run.bad = True
    result = program("ktables", "make", "--app", app_file, "--store", "totals", "--json")
    found = json.loads(result.out)
    assert found["passed"] is False
    (made,) = found["snapshots"]
    assert (made["window"], made["store"], made["rows"]) == (KEYS[2], "totals", 9)
    assert [check["passed"] for check in made["checks"]] == [False, True]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--store", "total"], "shop has no store 'total' (near: totals)."),
        (["--window", "2026-10-20"], "There is no closed window '2026-10-20'"),
    ],
)
def test_what_make_refuses(
    program: Program, app_file: Path, run: _Run, options: list[str], text: str
) -> None:
    result = program("ktables", "make", "--app", app_file, *options)
    assert result.exit_code == 2
    assert text in result.err
    assert run.asked == ([], [])


def test_a_store_whose_log_is_not_backed_up(program: Program, tmp_path: Path, run: _Run) -> None:
    topics = {"t": {"roles": ["input"]}, **CHANGELOGS}
    path = write(
        tmp_path / "defs.yaml",
        document(warehouse=str(tmp_path), topics=topics, stores=STORES, exclude=["shop-totals-*"]),
    )
    result = program("ktables", "make", "--app", path, "--store", "totals")
    assert result.exit_code == 2
    assert (
        "The changelog of store totals is not backed up. Stores with a backup: sessions"
        in result.err
    )


def test_nothing_is_backed_up_yet(program: Program, tmp_path: Path, run: _Run) -> None:
    topics = {"t": {"roles": ["input"]}, **CHANGELOGS}
    path = write(
        tmp_path / "defs.yaml",
        document(warehouse=str(tmp_path / "w"), topics=topics, stores=STORES),
    )
    with nothing_written(tmp_path):
        result = program("ktables", "make", "--app", path)
    assert result.exit_code == 0
    assert result.err == "NOTE No window is backed up yet: run kstreams-assets backup first.\n"


def test_list(program: Program, app_file: Path) -> None:
    warehouse = Warehouse(app_file.parent / "warehouse")
    configured = load_settings(app_file)
    for store in ("totals", "sessions"):
        write_window(configured, store, KEYS[0], [{"offset": 1}])
    weak = replace(snapshot(KEYS[1]), proved=False, reason="Compaction came first.")
    made = [snapshot(KEYS[0]), weak, snapshot(KEYS[0], "sessions")]
    Repository(warehouse, "shop").snapshots.record(made)
    found = json.loads(program("ktables", "list", "--app", app_file, "--json").out)["snapshots"]
    assert [(s["window"], s["store"], s["proved"]) for s in found] == [
        (KEYS[1], "totals", False),
        (KEYS[0], "sessions", True),
        (KEYS[0], "totals", True),
    ]
    result = program("ktables", "list", "--app", app_file, "--last", "1")
    assert "RED: snapshot_is_proved" in result.out
    assert "sessions" not in result.out
    only = program("ktables", "list", "--app", app_file, "--store", "sessions", "--json")
    assert len(json.loads(only.out)["snapshots"]) == 1
