"""`state`: what it prints, and its errors, from a prepared warehouse."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from kstreams_assets.app_file.read import load_settings
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from tests.cli.application import Program, document, nothing_written, write
from tests.clock import freeze_time
from tests.ktables.samples import KEYS, snapshot, write_window

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
    SnapshotsTable(configured.warehouse).record(
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
        (["--store", "totals"], "One of --key and --key-hex is needed"),
        (["--store", "totals", "--key", "a", "--key-hex", "61"], "One of --key and --key-hex"),
        (["--store", "totals", "--key-hex", "6"], "--key-hex is '6'."),
        (["--store", "total", "--key", "a"], "shop has no store 'total' (near: totals)."),
        (["--store", "totals", "--key", "z"], "Store 'totals' holds no key z in window"),
        (
            ["--store", "totals", "--key", "a", "--as-of", "2026-10-19T00:00:00Z"],
            f"the oldest of 2 is that of window {KEYS[0]}",
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
