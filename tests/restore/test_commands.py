"""Commands before and after a restore: what runs, what is shown, and what stops it."""

import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import pytest
from pydantic import SecretStr

from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.kafka.groups import GroupState
from kstreams_assets.model.restores import RestoreState
from kstreams_assets.restore import commands
from kstreams_assets.restore.plan import RestorePlan
from kstreams_assets.restore.request import RestoreRequest
from kstreams_assets.secret import Secret
from kstreams_assets.settings import ApplicationSettings, RestoreSettings, VerifyExtent
from tests.restore import outcomes
from tests.timing import eventually

TARGET = KafkaConnection(bootstrap_servers="target:1")
RUNNING = GroupState("shop", "classic", "Stable", 2)
EMPTY = GroupState("shop", "classic", "Empty", 0)


def python(text: str) -> str:
    """A command that runs this program."""
    return f'"{sys.executable}" -c "{text}"'


@dataclass
class _Cluster:
    """A target whose group is in these states, one after the other, the last one for ever."""

    states: list[GroupState | None]
    asked: int = 0
    planned: list[RestoreRequest] = field(default_factory=list)

    def __call__(self, connection: KafkaConnection) -> Self:
        assert connection == TARGET
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def group_state(self, group: str) -> GroupState | None:
        assert group == "shop"
        self.asked += 1
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def plan_again(
        self, settings: ApplicationSettings, plan: RestorePlan, target: KafkaConnection
    ) -> RestorePlan:
        self.planned.append(plan.request)
        return replace(plan, notes=("planned again",))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> _Cluster:
    made = _Cluster([EMPTY])
    monkeypatch.setattr(commands, "KafkaCluster", made)
    monkeypatch.setattr(commands, "plan_again", made.plan_again)
    monkeypatch.setattr(commands, "_ASKED_EVERY_S", 0.01)
    return made


@pytest.fixture
def settings(tmp_path: Path) -> ApplicationSettings:
    return outcomes.settings(tmp_path / "warehouse")


def _before(
    settings: ApplicationSettings, command: str | None, *, timeout_s: float = 60
) -> tuple[RestorePlan, list[str]]:
    request = RestoreRequest(before_command=command, command_timeout_s=timeout_s)
    said: list[str] = []
    return (
        commands.run_before(settings, outcomes.plan(request), TARGET, report=said.append),
        said,
    )


def _after(command: str | None, *, timeout_s: float = 60) -> list[str]:
    said: list[str] = []
    restore = outcomes.stored(outcomes.plan(RestoreRequest()), RestoreState.COMMITTED)
    given = RestoreSettings(after_command=command, command_timeout_seconds=timeout_s)
    commands.run_after(restore, given, report=said.append)
    return said


class TestBefore:
    """The command that stops the application."""

    def test_without_one_nothing_is_asked_or_planned_again(
        self, settings: ApplicationSettings, cluster: _Cluster
    ) -> None:
        plan, said = _before(settings, None)
        assert (plan.notes, said, cluster.asked, cluster.planned) == ((), [], 0, [])

    def test_it_runs_and_the_restore_is_planned_again_without_it(
        self, settings: ApplicationSettings, cluster: _Cluster, tmp_path: Path
    ) -> None:
        plan, said = _before(settings, f"touch '{tmp_path}/stopped now'")
        assert (tmp_path / "stopped now").is_file()
        assert plan.notes == ("planned again",)
        # Members of the group stand against that plan: nothing is to stop them any more.
        assert [request.before_command for request in cluster.planned] == [None]
        assert said[0] == f"The before command runs: touch '{tmp_path}/stopped now'"
        assert re.match(r"The before command is done after \d+\.\d", said[-1])

    def test_members_are_awaited_to_leave(
        self, settings: ApplicationSettings, cluster: _Cluster
    ) -> None:
        cluster.states = [RUNNING, RUNNING, RUNNING, EMPTY]
        _, said = _before(settings, "true")
        assert cluster.asked == 4
        assert said.count("Group shop is still Stable; waiting until it is empty.") == 1
        assert len(cluster.planned) == 1

    def test_a_group_that_is_not_there_is_empty(
        self, settings: ApplicationSettings, cluster: _Cluster
    ) -> None:
        cluster.states = [None]
        _before(settings, "true")
        assert (cluster.asked, len(cluster.planned)) == (1, 1)

    def test_members_that_stay_are_awaited_no_longer_than_the_timeout(
        self, settings: ApplicationSettings, cluster: _Cluster
    ) -> None:
        cluster.states = [RUNNING]
        began = time.monotonic()
        _before(settings, "true", timeout_s=1.0)
        assert 1.0 <= time.monotonic() - began < 60
        assert len(cluster.planned) == 1  # which says what stands against it

    def test_a_failure_stops_the_restore(
        self, settings: ApplicationSettings, cluster: _Cluster
    ) -> None:
        with pytest.raises(KStreamsAssetsError, match="ended with exit code 3") as raised:
            _before(settings, python("import sys; sys.exit(3)"))
        assert "The before command" in str(raised.value)
        assert "No record was written." in str(raised.value)
        assert (cluster.asked, cluster.planned) == (0, [])


class TestAfter:
    """The command that starts the application."""

    def test_without_one_nothing_runs(self) -> None:
        assert _after(None) == []

    def test_it_runs(self, tmp_path: Path) -> None:
        said = _after(f"touch {tmp_path}/started")
        assert (tmp_path / "started").is_file()
        assert said[-1].startswith("The after command is done after ")

    def test_a_failure_says_that_the_restore_is_done(self) -> None:
        with pytest.raises(KStreamsAssetsError) as raised:
            _after("false")
        text = str(raised.value)
        assert "The after command ended with exit code 1: false." in text
        assert "Restore point-1-0123abcd is complete: its group offsets are committed" in text
        assert "writes no record twice" not in text

    def test_of_a_restore_of_an_earlier_release(self) -> None:
        restore = outcomes.stored(outcomes.plan(RestoreRequest()), RestoreState.COMMITTED)
        commands.run_after(replace(restore, request="{}"), RestoreSettings(), report=pytest.fail)


class TestOutput:
    """What an operator sees of a command."""

    def test_both_streams_the_last_lines_and_no_endless_ones(self) -> None:
        text = (
            "import sys; [print('line', n, flush=True) for n in range(1000)];"
            "print('y' * 10000, file=sys.stderr)"
        )
        _, *said, _ = _after(python(text))
        assert len(said) == 20
        assert said[0] == "  line 981"
        assert said[-1] == "  " + "y" * 300

    def test_it_is_shown_of_a_failure_as_well(self) -> None:
        said: list[str] = []
        given = RestoreSettings(after_command=python("import sys; sys.exit('no such namespace')"))
        restore = outcomes.stored(outcomes.plan(RestoreRequest()), RestoreState.COMMITTED)
        with pytest.raises(KStreamsAssetsError, match="The after command ended with exit code"):
            commands.run_after(restore, given, report=said.append)
        assert said[-1] == "  no such namespace"

    def test_secrets_of_the_connection_are_masked_in_command_and_output(self) -> None:
        secret = Secret.of(SecretStr("pa55-of-the-hook")).resolve("sasl.password")
        said = "\n".join(_after(f"echo {secret} it is"))
        assert "it is" in said
        assert secret not in said
        with pytest.raises(KStreamsAssetsError) as raised:
            _after(f"false {secret}")
        assert secret not in str(raised.value)

    def test_it_has_no_input_and_learns_where_kubernetes_is(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        text = (
            "import os, sys; print(os.environ['KUBERNETES_SERVICE_HOST'], repr(sys.stdin.read()))"
        )
        assert "  10.0.0.1 ''" in _after(python(text))

    def test_no_shell_looks_at_it(self, tmp_path: Path) -> None:
        assert _after(f"echo $HOME; touch {tmp_path}/x")[1] == f"  $HOME; touch {tmp_path}/x"
        assert not (tmp_path / "x").exists()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Path]:
    """Where a command notes the process that it has left behind."""
    file = tmp_path / "pid"
    yield file
    if file.exists() and _is_alive(int(file.read_text())):
        os.kill(int(file.read_text()), 9)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # An orphan that nobody has reaped yet is dead.
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_command_that_takes_too_long_is_killed_with_its_children(child: Path) -> None:
    text = f"sleep 300 & echo $! > {shlex.quote(str(child))}; echo begun; wait"
    began = time.monotonic()
    with pytest.raises(KStreamsAssetsError, match="did not end within 4 s and was killed"):
        _after(shlex.join(["sh", "-c", text]), timeout_s=4)
    assert time.monotonic() - began < 60  # the command takes 300 s
    assert eventually(lambda: not _is_alive(int(child.read_text())))


class TestRequest:
    """Commands that cannot be meant so are refused before anything is done."""

    @pytest.mark.parametrize(
        ("values", "text"),
        [
            ({"before_command": " "}, "before_command has no program"),
            ({"after_command": "kubectl 'x"}, "after_command cannot be split"),
            ({"before_command": "a", "command_timeout_s": 0}, "timeout of commands is 0"),
            ({"before_command": "a", "target": "local:x"}, "target local:x"),
            ({"after_command": "a", "target": "local"}, "target local"),
        ],
    )
    def test_refused(self, values: dict[str, object], text: str) -> None:
        with pytest.raises(ConfigurationError, match=text):
            RestoreRequest.asked(values, verify=VerifyExtent.FULL)

    def test_programs_that_are_not_there(self) -> None:
        commands.require_programs(RestoreRequest(before_command="true", after_command="true -x"))
        for name in ("before", "after"):
            request = RestoreRequest.model_validate({f"{name}_command": "no-such-program -x"})
            with pytest.raises(ConfigurationError, match=f"The {name} command cannot be started"):
                commands.require_programs(request)
