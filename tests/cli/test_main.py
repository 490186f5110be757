"""Exit codes, help, and errors in one line."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest

from kstreams_assets.cli import main as main_module
from kstreams_assets.cli.main import cli
from tests.cli.application import Program, document, nothing_written, write

SECRET = "hunter2-do-not-show"


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            found += _commands(below, (*path, name))
    return found


@pytest.mark.parametrize("path", _commands(cli), ids=" ".join)
def test_help(program: Program, path: tuple[str, ...]) -> None:
    for option in ("--help", "-h"):
        result = program(*path, option)
        assert result.exit_code == 0
        assert result.out.startswith(f"Usage: kstreams-assets {' '.join(path)}".rstrip())
        assert "Raises" not in result.out
        assert result.err == ""


def test_every_command_is_there() -> None:
    assert {path for path in _commands(cli.with_all()) if path} >= {
        ("backup",),
        ("discover",),
        ("windows",),
        ("recovery-points",),
        ("recovery-points", "take"),
        ("recovery-points", "list"),
        ("recovery-points", "show"),
        ("ktables", "make"),
        ("ktables", "list"),
        ("state",),
        ("restore", "plan"),
        ("restore", "run"),
        ("restore", "list"),
        ("restore", "map"),
        ("restore", "group-offsets"),
        ("restore", "watch"),
        ("restore", "finish"),
        ("restore", "previous-offsets"),
        ("restore", "rollback"),
        ("restore", "serve"),
    }


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["windows"], "Missing option '--app'"),
        (["windows", "--app", "x.yaml", "--last", "many"], "'many' is not a valid integer"),
        (["backup", "--app", "x.yaml", "--windo", "y"], "--windo"),
    ],
)
def test_wrong_usage(program: Program, arguments: list[str], text: str) -> None:
    result = program(*arguments)
    assert result.exit_code == 2
    assert text in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "command",
    [
        ["backup"],
        ["windows"],
        ["recovery-points", "take"],
        ["recovery-points", "list"],
        ["recovery-points", "show", "x"],
        ["ktables", "make"],
        ["ktables", "list"],
        ["state", "--store", "s", "--key", "k"],
        ["restore", "plan"],
        ["restore", "run"],
        ["restore", "list"],
        ["restore", "map", "t", "0"],
        ["restore", "group-offsets", "g"],
        ["restore", "watch"],
        ["restore", "finish"],
        ["restore", "previous-offsets"],
        ["restore", "serve"],
        ["discover"],
    ],
    ids=" ".join,
)
def test_a_wrong_file_is_one_line_and_exit_code_2(
    program: Program, tmp_path: Path, command: list[str]
) -> None:
    path = write(tmp_path / "defs.yaml", document(applicaton=SECRET))
    with nothing_written(tmp_path):
        result = program(*command, "--app", path)
    assert (result.exit_code, result.out) == (2, "")
    assert result.err.startswith(f"Error: {path}: ")
    assert result.err.count("\n") == 1
    assert "applicaton" in result.err
    assert SECRET not in result.err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--topic", "nope"], "Not among the backed-up topics of shop: nope. They are: t, u."),
        (["--window", "2026-10-20"], "There is no closed window '2026-10-20'"),
        (["--window", "2026-10-20-00:30"], "There is no closed window '2026-10-20-00:30'"),
        (["--window", "2999-01-01-00:00"], "The newest closed window is 20"),
        (["--warehouse", "gs://bucket"], "neither on a local or mounted disk"),
        (["--bootstrap", "nowhere"], "'nowhere' is not host:port"),
        (["--application-id", "other"], "no application of type"),
    ],
)
def test_what_backup_refuses(
    program: Program, tmp_path: Path, options: list[str], text: str
) -> None:
    path = write(tmp_path / "defs.yaml", document(warehouse=str(tmp_path / "w")))
    with nothing_written(tmp_path):
        result = program("backup", "--app", path, *options)
    assert result.exit_code == 2
    assert text in result.err
    assert result.err.count("\n") == 1


def test_discover_needs_to_know_what_and_where(program: Program) -> None:
    result = program("discover", "--bootstrap", "a:1")
    assert result.exit_code == 2
    assert "Give --application-id and --bootstrap, or --app" in result.err


def test_an_absent_secret_is_named_not_shown(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    sasl = {"mechanism": "PLAIN", "username": "u", "password": {"env": "KAFKA_PASSWORD"}}
    connection = {"bootstrap_servers": "localhost:1", "security_protocol": "SASL_PLAINTEXT"}
    path = write(tmp_path / "defs.yaml", document(connection={**connection, "sasl": sasl}))
    result = program("recovery-points", "take", "--app", path, "--warehouse", tmp_path / "w")
    assert result.exit_code == 2
    assert "The secret for sasl.password is not available" in result.err
    assert "KAFKA_PASSWORD" in result.err
    assert result.err.count("\n") == 1


def test_nobody_listens(program: Program, tmp_path: Path) -> None:
    connection = {"bootstrap_servers": "127.0.0.1:1", "request_timeout_seconds": 0.5}
    path = write(tmp_path / "defs.yaml", document(connection=connection))
    result = program("recovery-points", "take", "--app", path, "--warehouse", tmp_path / "w")
    assert result.exit_code == 2
    assert "Kafka at 127.0.0.1:1 did not answer within" in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "w" / "recovery_points").exists()


def test_a_secret_that_a_library_repeats_is_masked_in_its_stack_trace() -> None:
    said = """
import sys
from pydantic import SecretStr
from kstreams_assets.cli import main as module
from kstreams_assets.secret import Secret

@module.cli.command("probe")
def probe():
    password = Secret.of(SecretStr("hunter2-" * 3)).resolve("sasl.password")
    raise LookupError(f"refused {password}")

sys.argv = ["kstreams-assets", "-v", "probe"]
module.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", said], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.count("refused *****") >= 2
    assert "hunter2" not in done.stderr


def test_ctrl_c(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module.cli, "invoke", interrupt)
    result = program("windows", "--app", tmp_path / "defs.yaml")
    assert result.exit_code == 130
    assert "Interrupted" in result.err
    assert "Traceback" not in result.err


_PROGRESS = """
import logging, sys
from kstreams_assets.cli import main as module

@module.cli.command("probe")
def probe():
    logging.getLogger("kstreams_assets.backup.run").info("Reading offsets.")
    raise LookupError("nothing")

module.main()
"""


@pytest.mark.parametrize(
    ("terminal", "options", "progress", "trace"),
    [(True, [], True, False), (False, [], False, False), (False, ["-v"], True, True)],
)
def test_progress_is_for_who_looks_on(
    terminal: bool, options: list[str], progress: bool, trace: bool
) -> None:
    ours, theirs = pty.openpty() if terminal else os.pipe()
    command = [sys.executable, "-c", _PROGRESS, *options, "probe"]
    done = subprocess.run(command, stderr=theirs, stdout=subprocess.PIPE, timeout=60, check=False)
    os.close(theirs)
    said = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.returncode == 2
    assert ("Reading offsets." in said) is progress
    assert ("Traceback" in said) is trace


def test_as_a_process_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "defs.yaml", document(applicaton="x"))
    done = subprocess.run(
        [sys.executable, "-m", "kstreams_assets.cli.main", "windows", "--app", path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"Error: {path}: ")


def test_what_fails_on_the_way_out_of_ctrl_c_is_no_error_of_its_own(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            message = "the gateway is closed"
            raise ConnectionError(message)

    monkeypatch.setattr(main_module.cli, "invoke", interrupt)
    result = program("windows", "--app", tmp_path / "defs.yaml")
    assert result.exit_code == 130
    assert result.err.strip().startswith("Interrupted")
