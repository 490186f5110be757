"""kstreams_assets/local/process.py, with small shell and Python children."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kstreams_assets.errors import ProcessError
from kstreams_assets.local.process import GuardedProcess
from tests.timing import eventually

_DEAF = "trap '' TERM; echo ready; while :; do sleep 0.1; done"


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    result = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, timeout=10
    )
    return result.stdout.strip() not in ("",) and not result.stdout.strip().startswith("Z")


def start_owner(tmp_path: Path, script: str) -> tuple[subprocess.Popen[str], int, int]:
    """Start a Python process that owns a guarded `sleep`; return it, child and guardian ids."""
    code = f"""
import sys, time, os, pathlib
from kstreams_assets.local.process import GuardedProcess
process = GuardedProcess(["sleep", "300"], log_file=pathlib.Path({str(tmp_path / "log")!r}))
print(process.pid, process.guardian_pid, flush=True)
{script}
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert owner.stdout is not None
    child, guardian = map(int, owner.stdout.readline().split())
    return owner, child, guardian


def test_output_and_exit_code(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    process = GuardedProcess(["sh", "-c", "echo out; echo err >&2; exit 7"], log_file=log)
    assert process.wait(timeout_s=60) == 7
    assert process.returncode == 7
    assert not process.running
    assert log.read_text() == "out\nerr\n"


def test_log_tail_holds_only_what_this_process_wrote(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    log.write_text("earlier\n")
    process = GuardedProcess(["sh", "-c", "echo one; echo two; echo three"], log_file=log)
    process.wait(timeout_s=60)
    assert process.log_tail() == "one\ntwo\nthree"
    assert process.log_tail(2) == "two\nthree"
    assert log.read_text().startswith("earlier\n")


def test_environment_and_working_directory(tmp_path: Path) -> None:
    process = GuardedProcess(
        ["/bin/sh", "-c", 'echo "$COLOUR $(pwd)"'],
        log_file=tmp_path / "log",
        environment={"COLOUR": "green", "PATH": os.environ["PATH"]},
        working_directory=tmp_path,
    )
    process.wait(timeout_s=60)
    assert process.log_tail() == f"green {tmp_path}"


def test_a_program_that_does_not_exist_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match=r"Cannot start no-such-program: .*No such file"):
        GuardedProcess(["no-such-program"], log_file=tmp_path / "log")


def test_stop_asks_with_sigterm(tmp_path: Path) -> None:
    with GuardedProcess(["sleep", "300"], log_file=tmp_path / "log") as process:
        assert process.running
        assert process.stop() == -signal.SIGTERM
        assert process.stop() == -signal.SIGTERM  # again: nothing happens


def test_stop_of_a_deaf_process_ends_with_sigkill_in_bounded_time(tmp_path: Path) -> None:
    with GuardedProcess(["sh", "-c", _DEAF], log_file=tmp_path / "log") as process:
        assert eventually(lambda: "ready" in process.log_tail())
        started = time.monotonic()
        assert process.stop(timeout_s=0.5) == -signal.SIGKILL
        assert 0.4 < time.monotonic() - started < 60  # it is deaf for ever


def test_wait_raises_when_time_is_up(tmp_path: Path) -> None:
    with (
        GuardedProcess(["sleep", "300"], log_file=tmp_path / "log") as process,
        pytest.raises(TimeoutError, match="still runs after"),
    ):
        process.wait(timeout_s=0.1)


def test_kill_takes_the_children_of_the_child_too(tmp_path: Path) -> None:
    with GuardedProcess(["sh", "-c", "sleep 300 & echo $!; wait"], log_file=tmp_path / "l") as one:
        assert eventually(lambda: one.log_tail() != "")
        grandchild = int(one.log_tail())
        assert alive(grandchild)
        assert one.kill() == -signal.SIGKILL
    assert eventually(lambda: not alive(grandchild))


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name
)
def test_the_child_dies_with_its_owner(tmp_path: Path, number: signal.Signals) -> None:
    owner, child, guardian = start_owner(tmp_path, "time.sleep(300)")
    assert alive(child)
    owner.send_signal(number)
    owner.wait(timeout=60)
    assert eventually(lambda: not alive(child) and not alive(guardian))


def test_the_child_dies_when_the_owner_just_ends(tmp_path: Path) -> None:
    owner, child, guardian = start_owner(tmp_path, "os._exit(0)")
    owner.wait(timeout=60)
    assert eventually(lambda: not alive(child) and not alive(guardian))


def test_a_fork_of_the_owner_does_not_keep_the_child_alive(tmp_path: Path) -> None:
    """A forked process inherits the pipe; end of file then does not come."""
    script = """
fork = os.fork()
if fork == 0:
    time.sleep(30)
    os._exit(0)
print(fork, flush=True)
time.sleep(300)
"""
    owner, child, guardian = start_owner(tmp_path, script)
    assert owner.stdout is not None
    fork = int(owner.stdout.readline())
    owner.kill()
    owner.wait(timeout=60)
    try:
        assert eventually(lambda: not alive(child) and not alive(guardian))
        assert alive(fork)
    finally:
        os.kill(fork, signal.SIGKILL)


def test_the_child_dies_when_its_guardian_is_killed(tmp_path: Path) -> None:
    process = GuardedProcess(["sleep", "300"], log_file=tmp_path / "log")
    os.kill(process.guardian_pid, signal.SIGKILL)
    if sys.platform == "linux":  # elsewhere the owner kills it when it next asks
        assert eventually(lambda: not alive(process.pid))
    assert process.wait(timeout_s=60) == -signal.SIGKILL
    assert eventually(lambda: not alive(process.pid))


def test_ctrl_c_in_the_terminal_of_the_owner_does_not_reach_it(tmp_path: Path) -> None:
    with GuardedProcess(["sleep", "300"], log_file=tmp_path / "log") as process:
        for pid in (process.pid, process.guardian_pid):
            assert os.getsid(pid) != os.getsid(0)


def test_the_end_of_the_thread_that_started_it_does_not_end_the_child(tmp_path: Path) -> None:
    started: list[GuardedProcess] = []
    thread = threading.Thread(
        target=lambda: started.append(GuardedProcess(["sleep", "300"], log_file=tmp_path / "log"))
    )
    thread.start()
    thread.join(timeout=60)
    time.sleep(0.3)
    assert started[0].running
    started[0].kill()
