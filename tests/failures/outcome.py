"""What a drill has observed, and the file in which it is recorded."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "operations" / "failures"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario as it was seen on a real application.

    `happens` says what became of the application, `checks` how each check came out, `restores` what
    a restore from each point gave: by what is meant, in words. `test` is the drill, `seconds` what
    it took without the broker and the Spark session that all drills share.
    """

    scenario: str
    application: str
    happens: Mapping[str, str]
    checks: Mapping[str, str]
    restores: Mapping[str, str]
    test: str
    seconds: float

    def differences(self, recorded: "Outcome | None") -> list[str]:
        """Where this differs from what is recorded, times aside."""
        if recorded is None:
            return [f"{self.scenario} is not recorded"]
        found = asdict(replace(self, seconds=0))
        before = asdict(replace(recorded, seconds=0))
        return [
            f"{name}: {found[name]} for {before[name]}"
            for name in found
            if found[name] != before[name]
        ]


def file_of(scenario: str, folder: Path = FOLDER) -> Path:
    """Where the outcome of a scenario is recorded."""
    return folder / f"{scenario}.yaml"


def load(scenario: str, folder: Path = FOLDER) -> Outcome | None:
    """What is recorded of a scenario, None if nothing is."""
    file = file_of(scenario, folder)
    if not file.is_file():
        return None
    said: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert said.keys() == {field.name for field in fields(Outcome)}, file
    return Outcome(**said)


def save(outcome: Outcome, folder: Path = FOLDER) -> None:
    """Record an outcome."""
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(asdict(outcome), sort_keys=False, width=100, allow_unicode=True)
    head = "# Written by the drill itself (pytest tests/failures --record-failures); do not edit.\n"
    file_of(outcome.scenario, folder).write_text(head + text, encoding="utf-8")
