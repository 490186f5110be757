"""What a disk, a damaged table or a fault of our own does to a command: one line, exit code 2."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kstreams_assets.cli import main as main_module
from kstreams_assets.errors import WarehouseError
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.tables import CONTROL_TABLES
from kstreams_assets.repository.repository import Repository
from tests.backup.samples import cut, point
from tests.cli.application import Program, Result, document, nothing_written, write
from tests.clock import freeze_time

_TAKEN_MS = round(datetime(2026, 10, 20, 1, 59, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture(autouse=True)
def _soon_after() -> Iterator[None]:
    with freeze_time(datetime(2026, 10, 20, 4, 30, tzinfo=UTC)):
        yield


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    """The YAML of an application with one recovery point in its warehouse."""
    warehouse = Warehouse(tmp_path / "warehouse")
    Repository(warehouse, "shop").points.append(point(_TAKEN_MS, cut(0, 10), point_id="first"))
    return write(tmp_path / "defs.yaml", document(warehouse=str(warehouse.root)))


def _is_one_line(result: Result, *texts: str) -> None:
    assert result.exit_code == 2, result
    assert result.err.startswith("Error: ")
    assert result.err.count("\n") == 1, result.err
    for text in texts:
        assert text in result.err


def test_a_fault_of_our_own_is_never_a_red_check(
    program: Program, app_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LookupError("no such thing\n\tat java.lang.Something")

    monkeypatch.setattr(main_module.cli, "invoke", fail)
    _is_one_line(program("windows", "--app", app_file), "LookupError: no such thing.", "report it")


def test_with_verbose_the_stack_trace_is_there(app_file: Path) -> None:
    _data_files(app_file)[0].unlink()
    done = _as_process("-v", "recovery-points", "list", "--app", app_file)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "Traceback" not in _as_process("recovery-points", "list", "--app", app_file).stderr


def test_a_removed_data_file(program: Program, app_file: Path) -> None:
    (file,) = _data_files(app_file)
    file.unlink()
    for command in (["recovery-points", "list"], ["windows"]):
        _is_one_line(program(*command, "--app", app_file), str(file.name), "is missing")
    ready = program("ready", "--app", app_file, "--json")
    assert ready.exit_code == 1
    assert file.name in ready.out


def test_a_truncated_data_file(program: Program, app_file: Path) -> None:
    (file,) = _data_files(app_file)
    file.write_bytes(file.read_bytes()[:100])
    result = program("recovery-points", "list", "--app", app_file)
    _is_one_line(result, str(app_file.parent / "warehouse" / "recovery_points"), "is damaged")


@pytest.mark.parametrize("what", ["garbage", "nothing"])
def test_a_damaged_log(program: Program, app_file: Path, what: str) -> None:
    log = app_file.parent / "warehouse" / "recovery_points" / "_delta_log"
    if what == "garbage":
        for file in log.glob("*.json"):
            file.write_text("garbage{")
    else:
        shutil.rmtree(log)
    _is_one_line(program("recovery-points", "list", "--app", app_file), "recovery_points")


_READERS = (
    ["windows"],
    ["recovery-points", "list"],
    ["ready"],
    ["restore", "list"],
    ["restore", "plan"],
    ["state", "totals", "--key", "a"],
    ["restore", "map", "orders", "0", "1"],
)


@pytest.mark.parametrize("table", sorted(CONTROL_TABLES))
def test_a_damaged_control_table(program: Program, app_file: Path, table: str) -> None:
    """Whoever reads it names it in one line, `ready` says no; for the others nothing changes."""
    before = [program(*command, "--app", app_file) for command in _READERS]
    log = app_file.parent / "warehouse" / table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    for file in log.iterdir():
        file.unlink()
    (log / f"{0:020}.json").write_text("garbage{")
    named = []
    for command, was in zip(_READERS, before, strict=True):
        result = program(*command, "--app", app_file)
        if f"/{table} cannot be used" in result.err:
            _is_one_line(result, "from a copy of the warehouse")
            named.append(command)
        elif command == ["ready"]:
            assert result.exit_code == 1
            assert f"table {table}" in " ".join(result.out.split())
            named.append(command)
        else:
            assert (result.exit_code, result.err) == (was.exit_code, was.err)
    assert named


def test_the_warehouse_is_a_file(program: Program, tmp_path: Path) -> None:
    (tmp_path / "warehouse").write_text("")
    app_file = write(tmp_path / "defs.yaml", document(warehouse=str(tmp_path / "warehouse")))
    for command in (["windows"], ["recovery-points", "list"], ["governance"], ["backup"]):
        _is_one_line(program(*command, "--app", app_file), str(tmp_path / "warehouse"), "folder")


def test_no_right_to_write(app_file: Path) -> None:
    root = app_file.parent / "warehouse"
    for folder in (root, *root.rglob("*")):
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    try:
        done = _as_process("--points", root)
    finally:
        for folder in (root, *root.rglob("*")):
            folder.chmod(0o755)
    assert done.stdout.strip() == "WarehouseError"
    assert "Give this user read and write rights" in done.stderr


def test_a_full_disk_is_named() -> None:
    from deltalake.exceptions import DeltaError

    from kstreams_assets.store.failures import storage_failures

    said = (
        "Failed to parse parquet: External: Generic LocalFileSystem error: Unable to copy data to"
        " file: No space left on device (os error 28)"
    )
    with (
        pytest.raises(WarehouseError, match="The disk is full: free some space"),
        storage_failures(Path("/w/recovery_points")),
    ):
        raise DeltaError(said)


def test_nobody_reads_to_the_end(app_file: Path) -> None:
    command = [sys.executable, "-m", "kstreams_assets.cli.main", "recovery-points", "list"]
    process = subprocess.Popen(
        [*command, "--app", str(app_file), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    assert process.wait(timeout=60) == 2, said
    assert "Traceback" not in said


def _data_files(app_file: Path) -> list[Path]:
    return list((app_file.parent / "warehouse" / "recovery_points").rglob("*.parquet"))


_APPEND = """
import sys
from pathlib import Path
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.layout import Warehouse
from kstreams_assets.repository.repository import Repository
from tests.backup.samples import cut, point
try:
    points = Repository(Warehouse(Path(sys.argv[1])), "shop").points
    points.append(point(1, cut(0, 10), point_id="x"))
except KStreamsAssetsError as error:
    print(type(error).__name__)
    print(error, file=sys.stderr)
"""


def _as_process(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command line, or with `--points ROOT` a point that is appended there, without root."""
    if arguments[0] == "--points":
        command = [sys.executable, "-c", _APPEND, str(arguments[1])]
        if os.geteuid() == 0:
            # Root may write everywhere, unless it has lost these capabilities.
            lost = "-dac_override,-dac_read_search,-fowner"
            command = ["setpriv", "--bounding-set", lost, "--inh-caps", lost, *command]
    else:
        command = [sys.executable, "-m", "kstreams_assets.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_reader_says_that_there_is_no_warehouse_and_makes_none(
    program: Program, app_file: Path, tmp_path: Path
) -> None:
    for command in (["windows"], ["recovery-points", "list"], ["restore", "list"], ["ready"]):
        with nothing_written(tmp_path):
            result = program(*command, "--app", app_file, "--warehouse", tmp_path / "none")
        assert f"{tmp_path / 'none'} cannot be used: there is no warehouse" in result.err
        assert "There is no warehouse" not in program(*command, "--app", app_file).err
