"""`windows` and `recovery-points list` and `show`: tables and JSON from a prepared warehouse."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import ConsumerGroup, GroupOffset
from kstreams_assets.model.spans import Gap, GapCause, SpanContent, SpanResult
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import WindowSchedule
from tests.backup.held_records import hold_records
from tests.backup.samples import backup, cut, point, span
from tests.cli.application import Program, document, nothing_written, write
from tests.clock import freeze_time
from tests.timing import processor_time


def _ms(hour: int, minute: int) -> int:
    return round(datetime(2026, 10, 20, hour, minute, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture(autouse=True)
def _half_past_four() -> Iterator[None]:
    with freeze_time(datetime(2026, 10, 20, 4, 30, tzinfo=UTC)):
        yield


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    """The YAML of an application with a warehouse of its own."""
    return write(tmp_path / "defs.yaml", document(warehouse=str(tmp_path / "warehouse")))


@pytest.fixture
def filled(app_file: Path) -> Path:
    """Points at 01:59 and 03:30; of window 01:00 both topics are backed up, of 02:00 one."""
    warehouse = Warehouse(app_file.parent / "warehouse")
    points = Repository(warehouse, "shop").points
    committed = [GroupOffset("t", 0, 1200, "metadata")]
    points.append(point(_ms(1, 59), cut(0, 1234), group_offsets=committed, point_id="first"))
    points.append(point(_ms(3, 30), cut(0, 5000), cut(0, 7, topic="u"), point_id="second"))
    calendar = WindowCalendar(WindowSchedule.every("hour", start="2026-10-20"))
    lost = Gap(GapCause.RETENTION, 0, 34, 34)
    for hour, topics in ((1, ("t", "u")), (2, ("t",))):
        window = calendar.window(f"2026-10-20-0{hour}:00")
        backups = [
            replace(
                backup(
                    SpanResult(
                        replace(span(0, 1234, topic=topic), window=window),
                        SpanContent(records=1200, bytes=99_999),
                        (lost,) if topic == "u" else (),
                    ),
                    topic=topic,
                ),
                window=window,
            )
            for topic in topics
        ]
        Ledger(warehouse, "shop").record(backups, run_id="run-1")
    hold_records(warehouse, "shop")
    return app_file


class TestWindows:
    """What is backed up, what is due."""

    def test_json(self, program: Program, filled: Path) -> None:
        result = program("windows", "--app", filled, "--json")
        assert (result.exit_code, result.err) == (0, "")
        found = json.loads(result.out)
        assert found.pop("outage_loss_ms") > 0
        assert found == {
            "application_id": "shop",
            "due": 2,
            "windows": [
                _window("03:00", "due", points=1, missing=["t", "u"]),
                _window("02:00", "due", topics=1, records=1200, size=99_999, missing=["u"]),
                _window("01:00", "done", 1, topics=2, records=2400, size=199_998, lost=1),
            ],
        }

    def test_table(self, program: Program, filled: Path) -> None:
        result = program("windows", "--app", filled)
        assert result.exit_code == 0
        assert "Windows of shop: 3 closed, 2 due" in result.out
        (row,) = [line for line in result.out.splitlines() if "2026-10-20-01:00" in line]
        cells = [cell.strip() for cell in row.strip("│|").split("│")]
        assert cells == ["2026-10-20-01:00", "done", "1", "2", "2,400", "199,998", "1"]

    def test_the_last_few(self, program: Program, filled: Path) -> None:
        found = json.loads(program("windows", "--app", filled, "--json", "--last", "1").out)
        assert [window["window"] for window in found["windows"]] == ["2026-10-20-03:00"]
        assert found["due"] == 2

    def test_an_empty_warehouse(self, program: Program, app_file: Path) -> None:
        with nothing_written(app_file.parent):
            found = json.loads(program("windows", "--app", app_file, "--json").out)
        assert [window["window"] for window in found["windows"]] == ["2026-10-20-03:00"]

    def test_before_the_first_window_has_closed(self, program: Program, filled: Path) -> None:
        with freeze_time(datetime(2026, 10, 20, 0, 30, tzinfo=UTC)):
            found = json.loads(program("windows", "--app", filled, "--json").out)
        found.pop("outage_loss_ms")
        assert found == {"application_id": "shop", "due": 0, "windows": []}

    def test_another_warehouse(self, program: Program, filled: Path, tmp_path: Path) -> None:
        options = ["--json", "--warehouse", str(tmp_path / "other")]
        assert json.loads(program("windows", "--app", filled, *options).out)["due"] == 1


def _window(
    hour: str,
    state: str,
    points: int = 0,
    *,
    topics: int = 0,
    records: int = 0,
    size: int = 0,
    lost: int = 0,
    missing: list[str] | None = None,
) -> dict[str, object]:
    return {
        "window": f"2026-10-20-{hour}",
        "state": state,
        "points": points,
        "topics": topics,
        "records": records,
        "bytes": size,
        "lost": lost,
        "missing_topics": missing or [],
        "damaged": [],
    }


class TestRecoveryPoints:
    """Listed and shown without a broker."""

    def test_list_json(self, program: Program, filled: Path) -> None:
        result = program("recovery-points", "list", "--app", filled, "--json")
        assert (result.exit_code, result.err) == (0, "")
        second, first = json.loads(result.out)["recovery_points"]
        assert (second["id"], first["id"]) == ("second", "first")
        assert first["taken_at"] == "2026-10-20T01:59:00.000+00:00"
        assert first["taken_at_ms"] == _ms(1, 59)
        assert (first["method"], first["guarantee"]) == ("offsets_first", "at_least_once")
        (position,) = first["partitions"]
        assert (position["topic"], position["log_start"], position["end"]) == ("t", 0, 1234)
        assert first["group_offsets"] == [
            {"topic": "t", "partition": 0, "offset": 1200, "metadata": "metadata"}
        ]
        assert (first["covered"], first["gives"]) == (True, "at_least_once")
        assert first["gives_reason"] == first["reason"]
        assert (second["covered"], second["gives"]) == (False, "nothing")
        assert second["gives_reason"] == (
            "Not covered: t-0: offsets 1234 to 4999 are not backed up: back up window"
            " 2026-10-20-03:00."
        )

    def test_list_table(self, program: Program, filled: Path) -> None:
        result = program("recovery-points", "list", "--app", filled, "--last", "1")
        assert result.exit_code == 0
        assert "second" in result.out
        assert "first" not in result.out.replace("offsets_first", "").replace("newest first", "")
        (row,) = [line for line in result.out.splitlines() if "second" in line]
        cells = [cell.strip() for cell in row.strip("│|").split("│")]
        assert cells[:7] == [
            "second",
            "2026-10-20T03:30:00.000+00:00",
            "offsets_first",
            "at_least_once",
            "no",
            "no",
            "nothing",
        ]
        assert cells[7] == ""  # not pinned
        assert cells[8].startswith("Not covered: t-0: offsets 1234")

    def test_list_among_thousands(self, program: Program, filled: Path) -> None:
        cuts = [cut(number, 10**6, topic=f"topic-{number // 4}") for number in range(20)]
        points = [point(_ms(3, 59) + n, *cuts, point_id=f"p{n}") for n in range(8000)]
        Repository(Warehouse(filled.parent / "warehouse"), "shop").points.append_many(points)
        with processor_time() as took:
            result = program("recovery-points", "list", "--app", filled, "--json")
        assert [p["id"] for p in json.loads(result.out)["recovery_points"]][:2] == [
            "p7999",
            "p7998",
        ]
        assert took.seconds < 2

    def test_list_an_empty_warehouse(self, program: Program, app_file: Path) -> None:
        result = program("recovery-points", "list", "--app", app_file, "--json")
        assert json.loads(result.out) == {"recovery_points": []}

    def test_list_beside_another_application(self, program: Program, filled: Path) -> None:
        other = write(
            filled.with_name("other.yaml"),
            document("other", warehouse=str(filled.parent / "warehouse")),
        )
        result = program("recovery-points", "list", "--app", other, "--json")
        assert json.loads(result.out) == {"recovery_points": []}

    def test_show(self, program: Program, filled: Path) -> None:
        result = program("recovery-points", "show", "first", "--app", filled)
        assert result.exit_code == 0
        assert "Recovery point first of shop: at_least_once by offsets_first" in result.out
        (row,) = [line for line in result.out.splitlines() if "1,234" in line]
        assert [cell.strip() for cell in row.strip("│|").split("│")] == [
            "t",
            "0",
            "0",
            "1,234",
            "1,200",
            "",
        ]
        assert "Restorability from the backups: at_least_once." in result.out
        found = json.loads(
            program("recovery-points", "show", "first", "--app", filled, "--json").out
        )
        assert (found["id"], found["application_id"]) == ("first", "shop")
        assert "Other groups" not in result.out

    def test_show_other_groups(self, program: Program, filled: Path) -> None:
        reader = ConsumerGroup("reader", (GroupOffset("out", 3, 1711, ""),))
        taken = replace(point(_ms(4, 1), point_id="third"), other_groups=(reader,))
        Repository(Warehouse(filled.parent / "warehouse"), "shop").points.append(taken)
        result = program("recovery-points", "show", "third", "--app", filled)
        (row,) = [line for line in result.out.splitlines() if "1,711" in line]
        assert [cell.strip() for cell in row.strip("│|").split("│")] == [
            "reader",
            "out",
            "3",
            "1,711",
        ]

    def test_show_none(self, program: Program, filled: Path) -> None:
        result = program("recovery-points", "show", "third", "--app", filled)
        assert result.exit_code == 2
        assert result.err == (
            "Error: shop has no recovery point 'third'. List the ids: kstreams-assets"
            " recovery-points list.\n"
        )
