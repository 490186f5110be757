"""`copy`: a second copy by options or YAML, and commands that read it."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.application import Program, document, write
from tests.upkeep.stock import Stock


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    """A warehouse with two windows of `shop`."""
    made = Stock(tmp_path / "warehouse")
    made.grow(range(2))
    return made


@pytest.fixture
def app_file(tmp_path: Path, stock: Stock) -> Path:
    """The YAML, which says where the copy is."""
    told = {"to": str(tmp_path / "copy"), "every": "15 * * * *"}
    more = {"warehouse": str(stock.warehouse.root), "second_copy": told}
    return write(tmp_path / "defs.yaml", document(**more))


def _read(program: Program, app_file: Path, *more: str | Path) -> tuple[str, object]:
    told = [
        program(*command, "--app", app_file, "--json", *more)
        for command in (("recovery-points", "list"), ("windows",))
    ]
    assert [one.exit_code for one in told] == [0, 0]
    return told[0].out, json.loads(told[1].out)["windows"]


def test_by_the_yaml(program: Program, app_file: Path, tmp_path: Path) -> None:
    before = _read(program, app_file)
    done = program("copy", "--app", app_file, "--json")
    assert done.exit_code == 0, done.err
    told = json.loads(done.out)
    assert told["to"] == str(tmp_path / "copy")
    assert told["files_copied"] > 4
    assert told["lacking"] == []
    again = program("copy", "--app", app_file, "--prune")
    assert again.exit_code == 0
    assert " 0 files (0 bytes) copied and compared" in again.out.replace("0 B", "0 bytes")
    shutil.rmtree(tmp_path / "warehouse")
    reading = ("--warehouse", tmp_path / "copy")
    assert _read(program, app_file, *reading) == before
    notes = tmp_path / "notes"
    assert _read(program, app_file, *reading, "--notes-in", notes) == before
    listed = program("restore", "list", "--app", app_file, *reading, "--notes-in", notes)
    assert listed.exit_code == 0


def test_what_is_damaged_is_named(program: Program, stock: Stock, tmp_path: Path) -> None:
    records = tmp_path / "warehouse" / "records" / "shop"
    bad = min(records.glob("*/*.parquet"), key=lambda file: file.name)
    bad.write_bytes(bad.read_bytes()[:-1] + b"?")
    to = tmp_path / "copy"
    done = program("copy", "--warehouse", str(stock.warehouse.root), "--to", to)
    assert done.exit_code == 1
    assert "MISSING window w0000, t-0: file records/shop/" in done.err


def test_promoted(program: Program, stock: Stock, tmp_path: Path) -> None:
    to = tmp_path / "copy"
    assert program("copy", "--promote", "--to", to).exit_code == 2
    assert program("copy", "--warehouse", str(stock.warehouse.root), "--to", to).exit_code == 0
    done = program("copy", "--promote", "--to", to)
    assert done.exit_code == 0
    assert f"{to} is now a warehouse" in done.out
    refused = program("copy", "--warehouse", str(stock.warehouse.root), "--to", to)
    assert refused.exit_code == 2
    assert "is an independent warehouse" in refused.err


@pytest.mark.parametrize("arguments", [["--to", "x"], ["--warehouse", "x"], []])
def test_what_is_not_said(program: Program, arguments: list[str]) -> None:
    done = program("copy", *arguments)
    assert done.exit_code == 2
    assert "not specified" in done.err


def test_a_copy_is_verified(
    program: Program, app_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstreams_assets.upkeep.verify.SETTLE_S", 0.2)
    assert program("copy", "--app", app_file).exit_code == 0
    options = ("--full", "--no-record", "--json")
    of_source = program("verify", "--app", app_file, *options)
    of_copy = program("verify", "--app", app_file, "--warehouse", tmp_path / "copy", *options)
    first, second = (json.loads(one.out)["applications"][0] for one in (of_source, of_copy))
    assert first["damages"] == second["damages"]
    assert first["files"] == second["files"] > 0
    (bad, *_) = (tmp_path / "copy" / "records" / "shop").glob("*/*.parquet")
    bad.write_bytes(bad.read_bytes()[:-1] + b"?")
    found = program("verify", "--app", app_file, "--warehouse", tmp_path / "copy", *options)
    assert found.exit_code == 1
    assert bad.name in found.out
    no = program("verify", "--app", app_file, "--warehouse", tmp_path / "copy", "--repair")
    assert no.exit_code in (1, 2)
