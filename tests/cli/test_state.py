"""`state`: what it prints, and its errors, from a prepared warehouse."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import Guarantee
from kstreams_assets.repository.repository import Repository
from tests.cli.application import Program, document, nothing_written, write
from tests.clock import freeze_time
from tests.ktables.samples import KEYS, snapshot, write_window
from tests.ktables.stored_log import APPLICATION_ID, STORE, TOPIC, Change, StoredLog
from tests.streams.workbench import NoSpark

VALUE = pa.struct([("count", pa.int64())])
CHANGELOGS = {
    f"shop-{store}-changelog": {"roles": ["changelog"]} for store in ("totals", "sessions")
}
STORES = {
    store: {"changelog": f"shop-{store}-changelog", "key": "string", "value": "long"}
    for store in ("totals", "sessions")
}
STORES["sessions"]["kind"] = "session"


@pytest.fixture(autouse=True)
def _half_past_four() -> Iterator[None]:
    with freeze_time(datetime(2026, 10, 20, 4, 30, tzinfo=UTC)):
        yield


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    """Key `a`: 1, then 2 (not proved); `bad` does not decode; sessions of `a` and `traced`."""
    topics = {"t": {"roles": ["input"]}, **CHANGELOGS}
    path = write(
        tmp_path / "defs.yaml",
        document(warehouse=str(tmp_path / "warehouse"), topics=topics, stores=STORES),
    )
    configured = load_settings(path)
    bad = {"offset": 9, "key": b"bad", "value": b"\x01", "decode_error": "value: 1 byte"}
    for window, count in zip(KEYS[:2], (1, 2), strict=True):
        row = {
            "offset": count,
            "decoded_key": "a",
            "decoded_value": {"count": count},
            "key": b"a",
            "value": b"{}",
        }
        write_window(configured, "totals", window, [row, bad], value=VALUE)
    session = {"offset": 1, "decoded_key": "a", "decoded_value": 5, "value": b"\x05"}
    times = {"session_start_ms": 1_792_454_400_000, "session_end_ms": 1_792_454_401_500}
    named = {"headers": [("trace", b"t-7"), ("id", b"\x01\x02"), ("none", None)]}
    sessions = [{**session, **times}, {**session, **times, **named, "decoded_key": "traced"}]
    write_window(configured, "sessions", KEYS[0], sessions, parts=list(times))
    Repository(configured.warehouse, APPLICATION_ID).snapshots.record(
        [
            snapshot(KEYS[0]),
            snapshot(KEYS[1], proved=False, reason="Compaction came first."),
            snapshot(KEYS[0], "sessions"),
        ]
    )
    return path


def _cells(out: str, text: str) -> list[str]:
    (row,) = [line for line in out.splitlines() if text in line]
    return [cell.strip() for cell in row.strip("│|").split("│")]


def test_the_newest_value(program: Program, app_file: Path) -> None:
    with nothing_written(app_file.parent):
        result = program("state", "--app", app_file, "--store", "totals", "--key", "a")
    assert result.exit_code == 0
    assert result.out.startswith("Store totals, key a\n")
    assert _cells(result.out, KEYS[1]) == [
        KEYS[1],
        "2026-10-20T01:55:00.000+00:00",
        "no",
        '{"count": 2}',
        "2026-10-20T00:00:00.000+00:00",
    ]
    assert result.err == f"NOTE {KEYS[1]}: Compaction came first.\n"


def test_as_of_in_json(program: Program, app_file: Path) -> None:
    options = ["--store", "totals", "--key", "a", "--as-of", "2026-10-20T01:00:00Z", "--json"]
    result = program("state", "--app", app_file, *options)
    assert (result.exit_code, result.err) == (0, "")
    assert json.loads(result.out) == {
        "application_id": "shop",
        "store": "totals",
        "key": "a",
        "window": KEYS[0],
        "base_window": None,
        "recovery_point": f"point-{KEYS[0]}",
        "taken_at": "2026-10-20T00:55:00.000+00:00",
        "proved": True,
        "reason": "",
        "rows": [
            {
                "key": "a",
                "value": {"count": 1},
                "decode_error": None,
                "timestamp_ms": 1_792_454_400_000,
                "partition": 0,
                "offset": 1,
                "key_hex": "61",
                "value_hex": "7b7d",
            }
        ],
    }


def test_history(program: Program, app_file: Path) -> None:
    options = ["--store", "totals", "--key", "a", "--history"]
    result = program("state", "--app", app_file, *options)
    assert [_cells(result.out, key)[3] for key in KEYS[:2]] == ['{"count": 1}', '{"count": 2}']
    found = json.loads(program("state", "--app", app_file, *options, "--json").out)
    assert [state["window"] for state in found["history"]] == KEYS[:2]


def test_a_session(program: Program, app_file: Path) -> None:
    result = program("state", "--app", app_file, "--store", "sessions", "--key", "a")
    assert "session start" in result.out
    assert _cells(result.out, KEYS[0])[3:6] == [
        "2026-10-20T00:00:00.000+00:00",
        "2026-10-20T00:00:01.500+00:00",
        "5",
    ]


def test_headers_that_a_store_keeps(program: Program, app_file: Path) -> None:
    options = ["--store", "sessions", "--key", "traced"]
    shown = program("state", "--app", app_file, *options).out
    assert "headers" in shown
    assert _cells(shown, KEYS[0])[-1] == "trace=t-7, id=0x0102, none=null"
    (row,) = json.loads(program("state", "--app", app_file, *options, "--json").out)["rows"]
    assert row["headers"] == [
        {"key": "trace", "value_hex": "742d37"},
        {"key": "id", "value_hex": "0102"},
        {"key": "none", "value_hex": None},
    ]
    without = program("state", "--app", app_file, "--store", "sessions", "--key", "a").out
    assert "headers" not in without


def test_a_value_that_does_not_decode(program: Program, app_file: Path) -> None:
    result = program("state", "--app", app_file, "--store", "totals", "--key-hex", "0x626164")
    assert _cells(result.out, KEYS[1])[3] == "(value: 1 byte) 0x01"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--store", "totals"], "Exactly one of --key and --key-hex is required"),
        (
            ["--store", "totals", "--key", "a", "--key-hex", "61"],
            "Exactly one of --key and --key-hex",
        ),
        (["--store", "totals", "--key-hex", "6"], "--key-hex is '6'."),
        (["--store", "total", "--key", "a"], "shop has no store 'total' (near: totals)."),
        (["--store", "totals", "--key", "z"], "Store 'totals' holds no key z in window"),
        (
            ["--store", "totals", "--key", "a", "--as-of", "2026-10-19T00:00:00Z"],
            f"The oldest of 2 is that of window {KEYS[0]}",
        ),
        (["--store", "totals", "--key", "a", "--as-of", "9 o'clock"], "as_of is"),
        (["--store", "totals", "--key", "a", "--as-of", "2026-10-20T01:00"], "time zone"),
    ],
)
def test_errors_are_one_line(
    program: Program, app_file: Path, options: list[str], text: str
) -> None:
    result = program("state", "--app", app_file, *options)
    assert (result.exit_code, result.out) == (2, "")
    assert text in result.err
    assert result.err.count("\n") == 1


@pytest.fixture
def followed(tmp_path: Path) -> Path:
    """A store without any snapshot; of its three points the last one is not covered."""
    log = StoredLog(Warehouse(tmp_path / "warehouse"), NoSpark())
    changes = [Change(offset, b"a", b"%d" % offset, 1_792_454_400_000) for offset in range(9)]
    log.point(0, {0: 4})
    log.point(1, {0: 9}, guarantee=Guarantee.AT_LEAST_ONCE)
    log.back_up(1, {0: (0, 9)}, changes)
    log.point(2, {0: 20})
    return write(
        tmp_path / "defs.yaml",
        document(
            APPLICATION_ID,
            warehouse=str(tmp_path / "warehouse"),
            topics={"t": {"roles": ["input"]}, TOPIC: {"roles": ["changelog"]}},
            stores={STORE: {"changelog": TOPIC, "key": "string", "value": "string"}},
        ),
    )


def test_a_point_without_a_snapshot(program: Program, followed: Path) -> None:
    options = ["--store", STORE, "--key", "a", "--point", "point-0000"]
    with nothing_written(followed.parent):
        shown = program("state", "--app", followed, *options)
        found = json.loads(program("state", "--app", followed, *options, "--json").out)
    assert _cells(shown.out, "yes")[:4] == ["", "1970-01-01T00:59:59.000+00:00", "yes", "3"]
    assert (found["window"], found["base_window"], found["proved"]) == (None, None, True)
    assert found["recovery_point"] == "point-0000"
    assert [(row["value"], row["offset"]) for row in found["rows"]] == [("3", 3)]


def test_as_of_without_a_snapshot(program: Program, followed: Path) -> None:
    options = ["--store", STORE, "--key", "a", "--as-of", "2026-10-20T01:00:00Z"]
    result = program("state", "--app", followed, *options)
    assert _cells(result.out, "2026-10-20")[2:4] == ["no", "8"]
    assert result.err == "NOTE point-0001: At least once.\n"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ["--point", "point-0002"],
            "Store 'store' is not covered by backups at recovery point point-0002",
        ),
        (["--point", "point-7"], "app has no recovery point 'point-7'"),
        (
            ["--point", "point-0000", "--as-of", "2026-10-20T00:00:00Z"],
            "--point cannot be combined with",
        ),
        (["--point", "point-0000", "--history"], "--point cannot be combined with"),
        (
            ["--as-of", "1969-01-01T00:00:00Z"],
            "not cover any recovery point that was complete then",
        ),
        (["--history"], "has no snapshot. Backups do not cover any recovery point"),
    ],
)
def test_points_that_give_no_state(
    program: Program, followed: Path, options: list[str], text: str
) -> None:
    result = program("state", "--app", followed, "--store", STORE, "--key", "a", *options)
    assert (result.exit_code, result.out) == (2, "")
    assert text in result.err
    assert result.err.count("\n") == 1
