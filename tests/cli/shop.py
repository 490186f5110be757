"""A simulated application that the program restores."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.application import Program, Result, document, write
from tests.restore.restored_app import RestoredApp
from tests.restore.simulated_target import Killed


@dataclass(frozen=True, slots=True)
class Shop(RestoredApp):
    """The application, and its YAML in a folder of its own."""

    file: Path
    program: Program

    def __call__(self, command: str, *options: str | Path) -> Result:
        """Run a command of `restore`."""
        return self.program("restore", command, "--app", self.file, *options)

    def json(self, command: str, *options: str | Path) -> dict[str, Any]:
        """Its document, whatever the exit code."""
        return json.loads(self(command, *options, "--json").out)

    def killed(self, step: str, *options: str | Path) -> None:
        """Run a restore that is killed before a step."""
        self.target.kill_before = step
        with pytest.raises(Killed):
            self("run", *options)
        self.target.kill_before = ""

    def configure(self, **more: Any) -> None:
        """Write the YAML, with these keys besides."""
        roles = {name: sorted(map(str, of_it)) for name, of_it in self.app.roles.items()}
        keys: dict[str, Any] = {
            "warehouse": str(self.warehouse.root),
            "windows": {"every": "hour", "start": self.app.settings.windows.start},
            "topics": {name: {"roles": of_it} for name, of_it in roles.items()},
            "guarantee": "exact",
            "restore": {"target": {"bootstrap_servers": "target:1"}},
        }
        write(self.file, document(**(keys | more)))


@pytest.fixture
def shop(restored_app: RestoredApp, tmp_path: Path, program: Program) -> Shop:
    """The application with a warehouse, a target and a YAML of its own."""
    made = Shop(
        restored_app.app,
        restored_app.warehouse,
        restored_app.target,
        tmp_path / "defs.yaml",
        program,
    )
    made.configure()
    return made
