"""The YAML of an application, and how the program is run on it."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kstreams_assets.cli.main import main

TYPE = "kstreams_assets.components.KafkaStreamsAppComponent"


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended."""

    exit_code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Program:
    """The command line as a shell would run it, exit code and all."""

    monkeypatch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> Result:
        """Run it."""
        self.monkeypatch.setattr(sys, "argv", ["kstreams-assets", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        out, err = self.capture.readouterr()
        return Result(code, out, err)


def document(application_id: str = "shop", **more: Any) -> dict[str, Any]:
    """One document of a component's YAML."""
    attributes = {
        "application_id": application_id,
        "connection": {"bootstrap_servers": "localhost:1"},
        "warehouse": "/nowhere/warehouse",
        "windows": {"every": "hour", "start": "2026-10-20"},
        "topics": {"t": {"roles": ["input"]}, "u": {"roles": ["output"]}},
    } | more
    return {"type": TYPE, "attributes": attributes}


def write(path: Path, *documents: Mapping[str, Any]) -> Path:
    """Write documents into one file."""
    path.write_text(yaml.safe_dump_all(list(documents)))
    return path


@contextmanager
def nothing_written(folder: Path) -> Iterator[None]:
    """No file appears below the folder."""
    before = sorted(folder.rglob("*"))
    yield
    assert sorted(folder.rglob("*")) == before
