"""The lock, against other processes."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kstreams_assets.lease import warehouse_lock
from kstreams_assets.store.locks import WarehouseLockedError
from tests.timing import DEADLINE_S

_HOLDER = """
import sys, time
from pathlib import Path
from kstreams_assets.lease import warehouse_lock
with warehouse_lock(Path(sys.argv[1]), purpose="backup run 7", wait_s=5) as lock:
    if len(sys.argv) > 2:
        lock.note_writer(int(sys.argv[2]))
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def _other_process(path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    command = [sys.executable, "-c", _HOLDER, str(path), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@contextmanager
def _java(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is called `java`, as an orphaned JVM would be."""
    java = tmp_path / "java"
    java.symlink_to("/bin/sleep")
    with subprocess.Popen([java, "60"]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a lock; its folder does not exist."""
    return tmp_path / ".locks" / "shop.lock"


def _take(path: Path, wait_s: float = 0.0) -> None:
    with warehouse_lock(path, purpose="test", wait_s=wait_s):
        pass


def test_it_can_be_taken_again_and_again(path: Path) -> None:
    for _ in range(2):
        _take(path)


def test_it_is_given_back_after_an_error(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), warehouse_lock(path, purpose="test", wait_s=0):
        _ = 1 / 0
    _take(path)


def test_another_process_holds_it(path: Path) -> None:
    with _other_process(path) as holder:
        began = time.monotonic()
        with pytest.raises(WarehouseLockedError) as caught:
            _take(path, wait_s=0.5)
        assert 0.5 <= time.monotonic() - began < 30  # its holder stays for 60 s
        text = str(caught.value)
        assert f"process {holder.pid} on {socket.gethostname()} (backup run 7, 20" in text
        assert "Wait until that run has ended" in text
        assert caught.value.path == path
        _take(path.with_name("other.lock"))


def test_two_locks_of_one_process_exclude_each_other(path: Path) -> None:
    with (
        warehouse_lock(path, purpose="first", wait_s=0),
        pytest.raises(WarehouseLockedError, match="first"),
    ):
        _take(path)


def test_it_waits_for_its_holder(path: Path) -> None:
    with _other_process(path) as holder:
        os.kill(holder.pid, signal.SIGSTOP)
        with pytest.raises(WarehouseLockedError):
            _take(path)
        os.kill(holder.pid, signal.SIGKILL)
        _take(path, wait_s=DEADLINE_S)


def test_a_killed_holder_leaves_nothing_behind(path: Path) -> None:
    with _other_process(path) as holder:
        holder.kill()
        holder.wait(DEADLINE_S)
        assert json.loads(path.read_text())["pid"] == holder.pid
        _take(path)


def test_the_jvm_of_a_killed_holder_is_waited_for(path: Path, tmp_path: Path) -> None:
    with _java(tmp_path) as jvm, _other_process(path, str(jvm.pid)) as holder:
        holder.kill()
        holder.wait(DEADLINE_S)
        with pytest.raises(WarehouseLockedError, match=f"whose JVM {jvm.pid} still runs"):
            _take(path, wait_s=0.3)
        jvm.kill()
        jvm.wait(DEADLINE_S)
        _take(path)


def test_a_zombie_jvm_is_not_waited_for(path: Path, tmp_path: Path) -> None:
    with _java(tmp_path) as jvm, _other_process(path, str(jvm.pid)) as holder:
        holder.kill()
        holder.wait(DEADLINE_S)
        jvm.kill()
        _take(path, wait_s=DEADLINE_S)


def test_tasks_of_a_killed_holder_are_waited_for(path: Path) -> None:
    with _other_process(path) as holder, path.with_suffix(".tasks").open("wb") as task:
        fcntl.flock(task, fcntl.LOCK_SH)
        holder.kill()
        holder.wait(DEADLINE_S)
        with pytest.raises(WarehouseLockedError, match="tasks of a run that was killed"):
            _take(path, wait_s=0.3)
        fcntl.flock(task, fcntl.LOCK_UN)
        _take(path)


def test_a_process_id_that_was_given_to_another_program(path: Path) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as other:
        try:
            with _other_process(path, str(other.pid)) as holder:
                holder.kill()
                holder.wait(DEADLINE_S)
                _take(path)
        finally:
            other.kill()


@pytest.mark.parametrize("text", ["", "not JSON", '{"pid": 1, "writer_pid": null}'])
def test_whatever_stands_in_the_file(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    _take(path)


def test_a_jvm_of_another_machine_cannot_be_seen(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    with _java(tmp_path) as jvm:
        path.write_text(json.dumps({"pid": 1, "host": "elsewhere", "writer_pid": jvm.pid}))
        _take(path)
