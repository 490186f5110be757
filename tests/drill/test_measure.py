"""What processes and the machine use."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from kstreams_assets.drill.application import MachineUse, TreeMeter, size_of
from tests.timing import eventually

_WORK = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
    "child.wait()\n"
    "print('child has ended', flush=True)\n"
    "time.sleep(60)\n"
)
_CHILD = (
    "import sys, time\n"
    "kept = bytearray(80_000_000)\n"
    "began = time.process_time()\n"
    "while time.process_time() - began < 0.6: pass\n"
    "sys.stdin.readline()\n"
)


def test_children_count_also_when_they_have_ended() -> None:
    command = [sys.executable, "-c", _WORK.format(child=_CHILD)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            meter = TreeMeter(process.pid)
            assert eventually(lambda: meter.sample().cpu_s >= 0.6)
            assert process.stdin is not None
            process.stdin.write(b"you may end\n")
            process.stdin.flush()
            assert process.stdout is not None
            process.stdout.readline()
            use = meter.sample()
        finally:
            process.kill()
    assert use.cpu_s >= 0.6
    assert use.peak_memory_bytes >= 80_000_000
    assert meter.sample() == use


def test_shares_of_the_machine() -> None:
    before = MachineUse(all_s=100.0, idle_s=50.0, io_wait_s=5.0)
    later = MachineUse(all_s=110.0, idle_s=52.0, io_wait_s=6.0)
    busy, waited = before.shares_until(later)
    assert busy == pytest.approx(0.7)
    assert waited == pytest.approx(0.1)
    assert before.shares_until(before) == (None, None)
    unknown = MachineUse(all_s=110.0, idle_s=52.0, io_wait_s=None)
    assert before.shares_until(unknown) == (pytest.approx(0.8), None)


def test_the_machine_answers() -> None:
    before = MachineUse.now()
    began = time.process_time()
    while time.process_time() - began < 0.2:
        pass
    busy, _ = before.shares_until(MachineUse.now())
    assert busy is not None
    assert 0 < busy <= 1


def test_size_of_a_folder(tmp_path: Path) -> None:
    assert size_of(tmp_path / "none") == 0
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"12345")
    (tmp_path / "a" / "b" / "two").write_bytes(b"123")
    assert size_of(tmp_path) == 8
