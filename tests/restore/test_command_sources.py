"""Where programs around a restore come from, and what they know: never from a stored row."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.drill.command import drill_command
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.local.process import GuardedProcess
from kstreams_assets.model.restores import RestoreState, StoredRestore
from kstreams_assets.restore import commands
from kstreams_assets.restore.command_sources import command_notes, with_target
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.settings import (
    ApplicationSettings,
    DrillSettings,
    RestoreSettings,
    VerifyExtent,
)
from tests.restore import outcomes

SECRETS = {
    "KAFKA_PASSWORD": "hunter2",
    "AWS_SECRET_ACCESS_KEY": "hunter3",
    "KSTREAMS_ASSETS_S3_SECRET": "hunter4",
    "KUBERNETES_TOKEN": "hunter5",
}
PRINT = "import json, os; print(json.dumps(dict(os.environ)))"
FACTS = {
    "KSTREAMS_RESTORE_ID": "point-1-0123abcd",
    "KSTREAMS_RESTORE_APPLICATION_ID": "shop",
    "KSTREAMS_RESTORE_POINT_ID": "point-1",
    "KSTREAMS_RESTORE_GROUP": "shop",
    "KSTREAMS_RESTORE_TARGET": "target:1",
    "KSTREAMS_RESTORE_TARGET_CLUSTER_ID": "target-cluster",
    "KSTREAMS_RESTORE_MODE": "state",
}
MINE = RestoreSettings(
    before_command="stop it", after_command="start it", command_timeout_seconds=70
)


@pytest.fixture(autouse=True)
def secret_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a process that knows Kafka's password."""
    for name, value in {**SECRETS, "TZ": "Europe/Berlin", "LANG": "C.UTF-8"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def settings(tmp_path: Path) -> ApplicationSettings:
    made = outcomes.settings(tmp_path / "warehouse")
    own = {
        "before_command": MINE.before_command,
        "after_command": MINE.after_command,
        "command_timeout_seconds": MINE.command_timeout_seconds,
    }
    return replace(made, restore=made.restore.model_copy(update=own))


def _stored(**asked: Any) -> StoredRestore:
    made = outcomes.stored(outcomes.plan(RestoreRequest()), RestoreState.COMMITTED)
    return replace(made, request=json.dumps({"mode": "state", **asked}))


def _printed(file: Path) -> str:
    program = file.with_suffix(".py")
    program.write_text(f"import json, os; json.dump(dict(os.environ), open({str(file)!r}, 'w'))")
    return f"'{sys.executable}' '{program}'"


def _environment(file: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(file.read_text())
    return {name: value for name, value in found.items() if name != "LC_CTYPE"}  # Python's own


class TestStoredRow:
    """A row of the table `restores` names a program: whoever can write the bucket wrote it."""

    @pytest.mark.parametrize("own", [RestoreSettings(), MINE])
    def test_it_never_runs(self, tmp_path: Path, own: RestoreSettings) -> None:
        evil, mine = tmp_path / "evil", tmp_path / "mine"
        own = (
            own
            if own.after_command is None
            else own.model_copy(update={"after_command": f"touch {mine}"})
        )
        row = _stored(after_command=f"touch {evil}", before_command=f"touch {evil}")
        commands.run_after(row, own, report=lambda _: None)
        assert (evil.exists(), mine.exists()) == (False, own.after_command is not None)

    def test_without_a_command_of_the_operator_it_says_so(self) -> None:
        said: list[str] = []
        commands.run_after(
            _stored(after_command="kubectl scale"), RestoreSettings(), report=said.append
        )
        (line,) = said
        assert "restore point-1-0123abcd names after_command" in line
        assert "this run names none: no after command runs" in line
        assert "--after-command" in line
        assert "restore.after_command in the YAML" in line
        assert "kubectl" not in line  # nobody is to copy it from there

    @pytest.mark.parametrize("name", ["before", "after"])
    def test_a_plan_that_continues_the_restore_says_so(
        self, settings: ApplicationSettings, name: str
    ) -> None:
        stored = _stored(**{f"{name}_command": "false"})
        told = command_notes(settings, RestoreRequest(), group="shop", stored=stored)
        assert [note for note in told if f"names {name}_command" in note]
        asked = RestoreRequest(before_command="a", after_command="b")
        assert [*command_notes(settings, asked, group="shop", stored=stored)] == []

    def test_of_an_ordinary_restore_there_is_nothing_to_say(
        self, settings: ApplicationSettings
    ) -> None:
        for row in (None, _stored(), _stored(after_command=None)):
            bare = replace(settings, restore=RestoreSettings())
            assert [*command_notes(bare, RestoreRequest(), group="shop", stored=row)] == []


class TestYaml:
    """Commands of the YAML belong to its target and to the application's own name."""

    @staticmethod
    def _asked(settings: ApplicationSettings, **given: Any) -> RestoreRequest:
        values = with_target({"before_command": None, **given}, settings)
        return RestoreRequest.asked(values, verify=VerifyExtent.FULL)

    @pytest.mark.parametrize("target", [None, "target:1"])
    def test_they_are_those_of_a_restore_to_its_target(
        self, settings: ApplicationSettings, target: str | None
    ) -> None:
        request = self._asked(settings, target=target)
        assert (request.before_command, request.after_command) == ("stop it", "start it")
        assert request.command_timeout_s == 70

    def test_no_application_continues_from_logs(self, settings: ApplicationSettings) -> None:
        asked = with_target({"mode": "logs"}, settings)
        request = RestoreRequest.asked(asked, verify=VerifyExtent.FULL)
        assert (request.before_command, request.after_command) == (None, None)
        notes = list(command_notes(settings, request, group="shop", stored=None))
        assert [note.partition(":")[0] for note in notes] == [
            "The before command of the YAML does not run",
            "The after command of the YAML does not run",
        ]

    def test_arguments_win(self, settings: ApplicationSettings) -> None:
        request = self._asked(settings, after_command="other", command_timeout_s=300.0)
        assert (request.before_command, request.after_command) == ("stop it", "other")
        assert request.command_timeout_s == 300

    @pytest.mark.parametrize(
        "elsewhere", [{"target": "staging:1"}, {"target": "local:x"}, {"application_id": "shop-2"}]
    )
    def test_a_restore_elsewhere_does_not_stop_the_application(
        self, settings: ApplicationSettings, elsewhere: Mapping[str, str]
    ) -> None:
        request = self._asked(settings, **elsewhere)
        assert (request.before_command, request.after_command) == (None, None)
        group = elsewhere.get("application_id", "shop")
        notes = [*command_notes(settings, request, group=group, stored=None)]
        assert len(notes) == 2
        assert "The before command of the YAML does not run" in notes[0]
        assert "--after-command" in notes[1]

    def test_without_a_target_in_the_yaml_they_go_with_any_but_a_local_one(
        self, settings: ApplicationSettings
    ) -> None:
        settings = replace(settings, restore=settings.restore.model_copy(update={"target": None}))
        assert self._asked(settings, target="any:1").before_command == "stop it"
        assert self._asked(settings, target="local").before_command is None


class TestEnvironment:
    """What a program learns: how to run, what is restored, and no secret."""

    def test_of_a_command_after(self, tmp_path: Path) -> None:
        file = tmp_path / "after"
        own = RestoreSettings(after_command=_printed(file))
        commands.run_after(_stored(), own, report=lambda _: None)
        found = _environment(file)
        assert found.items() >= {**FACTS, "KSTREAMS_RESTORE_STEP": "after"}.items()
        assert found["PATH"] == os.environ["PATH"]
        assert (found["TZ"], found["LANG"]) == ("Europe/Berlin", "C.UTF-8")
        self._nothing_else(found)

    def test_of_a_command_before(
        self, tmp_path: Path, settings: ApplicationSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(commands, "plan_again", lambda settings, plan, target: plan)
        monkeypatch.setattr(commands, "_await_empty_group", lambda *_: None)
        file = tmp_path / "before"
        plan = outcomes.plan(RestoreRequest(before_command=_printed(file)))
        target = KafkaConnection(bootstrap_servers="target:1")
        commands.run_before(settings, plan, target, report=lambda _: None)
        found = _environment(file)
        assert found.items() >= {**FACTS, "KSTREAMS_RESTORE_STEP": "before"}.items()
        self._nothing_else(found)

    def test_what_the_yaml_passes_on(self, tmp_path: Path) -> None:
        file = tmp_path / "after"
        own = RestoreSettings(after_command=_printed(file), pass_on=("KUBERNETES_TOKEN",))
        commands.run_after(_stored(), own, report=lambda _: None)
        found = _environment(file)
        assert found["KUBERNETES_TOKEN"] == "hunter5"
        assert "KAFKA_PASSWORD" not in found

    def test_a_fact_that_no_environment_can_hold(self, tmp_path: Path) -> None:
        file = tmp_path / "after"
        row = replace(_stored(), group="sh\0op")
        commands.run_after(
            row, RestoreSettings(after_command=_printed(file)), report=lambda _: None
        )
        assert _environment(file)["KSTREAMS_RESTORE_GROUP"] == "shop"

    def test_of_a_drill(self, settings: ApplicationSettings, tmp_path: Path) -> None:
        drill = DrillSettings(
            command=("app", "{client_properties}", "{state_dir}"), environment={"MINE": "1"}
        )
        command = drill_command(
            replace(settings, drill=drill),
            connection=KafkaConnection(bootstrap_servers="127.0.0.1:1"),
            client_properties=tmp_path,
            state_dir=tmp_path,
        )
        assert command.environment["MINE"] == "1"
        self._nothing_else(command.environment, "MINE")

    def test_of_any_program_that_is_started(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", PRINT]
        with GuardedProcess(command, log_file=tmp_path / "log") as process:
            assert process.wait(timeout_s=30) == 0
            found = json.loads(process.log_tail())
        found.pop("LC_CTYPE", None)  # Python's own
        self._nothing_else(found)

    @staticmethod
    def _nothing_else(found: Mapping[str, str], *also: str) -> None:
        assert "hunter" not in json.dumps(dict(found))
        usual = {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "JAVA_HOME"}
        usual |= {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG"}
        others = found.keys() - usual - {*also}
        assert others <= {*FACTS, "KSTREAMS_RESTORE_STEP"}
