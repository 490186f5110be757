"""`metrics`: a textfile, an endpoint, and what is refused."""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import requests

from tests.cli.application import Program, document, nothing_written, write
from tests.metrics.exposed import Exposed, when_up


@pytest.fixture
def app_file(tmp_path: Path) -> Path:
    """An application whose broker is down, with an empty warehouse."""
    (tmp_path / "warehouse").mkdir()
    return write(tmp_path / "defs.yaml", document(warehouse=str(tmp_path / "warehouse")))


def _other(app_file: Path, application_id: str) -> Path:
    warehouse = str(app_file.parent / "warehouse")
    path = app_file.with_name(f"{application_id}.yaml")
    return write(path, document(application_id, warehouse=warehouse))


def _textfile(program: Program, *apps: Path) -> Exposed:
    """What one scrape writes into a file."""
    file = apps[0].with_name("kstreams.prom")
    options = [word for app in apps for word in ("--app", app)]
    result = program("metrics", *options, "--textfile", file, "--timeout", "2")
    assert (result.exit_code, result.out) == (0, "")
    return Exposed.of_text(file.read_text("utf-8"))


class TestTextfile:
    """One scrape into a file."""

    def test_what_is_down_is_in_the_file_and_no_error(
        self, program: Program, app_file: Path
    ) -> None:
        found = when_up(
            lambda: _textfile(program, app_file), application_id="shop", source="warehouse"
        )
        assert found.one("kstreams_up", application_id="shop", source="cluster") == 0

    def test_several_applications_in_one_file(self, program: Program, app_file: Path) -> None:
        apps = app_file, _other(app_file, "depot")
        for application_id in ("shop", "depot"):
            labels = {"application_id": application_id, "source": "warehouse"}
            when_up(lambda: _textfile(program, *apps), **labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Exactly one of --textfile and --listen is required"),
        (["--textfile", "a.prom", "--listen", "127.0.0.1:0"], "Exactly one of"),
        (["--textfile", "a.txt"], r"ends in \.prom"),
        (["--listen", "9464"], "--listen is '9464'"),
        (["--textfile", "a.prom", "--timeout", "0"], "--timeout"),
    ],
)
def test_refused(program: Program, app_file: Path, options: list[str], message: str) -> None:
    with nothing_written(app_file.parent):
        result = program("metrics", "--app", app_file, *options)
    assert result.exit_code == 2
    assert re.search(message, result.err)


def test_two_of_one_name_are_refused(program: Program, app_file: Path) -> None:
    result = program("metrics", "--app", app_file, "--app", app_file, "--listen", "127.0.0.1:0")
    assert result.exit_code == 2
    assert "Two applications have the same id: shop" in result.err


def test_what_replaces_the_yaml_goes_with_one_application(program: Program, app_file: Path) -> None:
    apps = ["--app", app_file, "--app", _other(app_file, "depot")]
    result = program("metrics", *apps, "--bootstrap", "a:1", "--listen", "127.0.0.1:0")
    assert result.exit_code == 2
    assert "require a single --app" in result.err


def test_an_endpoint_until_it_is_interrupted(app_file: Path) -> None:
    command = [sys.executable, "-m", "kstreams_assets.cli.main", "metrics", "--app", app_file]
    options = ["--listen", "127.0.0.1:0", "--timeout", "1"]
    with subprocess.Popen(
        [*map(str, command), *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            said = re.fullmatch(r"Serving metrics on (http://127\.0\.0\.1:\d+/metrics)\n", line)
            assert said is not None
            get = partial(requests.get, said[1], timeout=60)
            when_up(lambda: Exposed.of_text(get().text), source="warehouse")
            process.send_signal(2)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
