"""The small process between an owner and its child: the child dies with its owner.

Run as a script (`guardian.py <command> ...`) by guarded_process.py, with only the standard library.
Its standard input is a pipe whose other end only the owner holds: end of file means that the owner
has ended. Standard output has the status (`started <pid>`, `failed <reason>`, `exited <code>`),
standard error is the child's log.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys

_POLL_S = 1.0
_PR_SET_PDEATHSIG = 1


def _die_with_guardian() -> None:
    """In the child, on Linux: let the kernel kill it if the guardian itself is killed."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _report(line: str) -> None:
    with contextlib.suppress(OSError):  # the owner has ended and does not read
        os.write(1, f"{line}\n".encode())


def _signal_group(child: "subprocess.Popen[bytes]", number: int) -> None:
    """Signal the child's process group; the child is not reaped yet, so its id is its own."""
    # macOS returns EPERM for a group that consists of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _guard(child: "subprocess.Popen[bytes]", wakeup: int, owner: int) -> None:
    """Pass the owner's commands on until the child has exited."""
    signals = {b"T": signal.SIGTERM, b"K": signal.SIGKILL}
    sources = [0, wakeup]
    while child.poll() is None:
        ready, _, _ = select.select(sources, [], [], _POLL_S)
        if wakeup in ready and signal.SIGTERM in os.read(wakeup, 64):
            _signal_group(child, signal.SIGKILL)
        if 0 in ready:
            wish = os.read(0, 1)
            if not wish:
                sources.remove(0)
            _signal_group(child, signals.get(wish, signal.SIGKILL))
        # A process forked from the owner may keep the pipe open: then the parent's id decides.
        if os.getppid() != owner:
            _signal_group(child, signal.SIGKILL)


def main() -> None:
    """Start the command of the argument list and guard it."""
    owner = os.getppid()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        child = subprocess.Popen(
            sys.argv[1:],
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=2,
            process_group=0,
            preexec_fn=_die_with_guardian,
        )
    except OSError as error:
        _report(f"failed {error}")
        return
    _report(f"started {child.pid}")
    _guard(child, reader, owner)
    _signal_group(child, signal.SIGKILL)  # leftover processes in the child's group
    _report(f"exited {child.returncode}")


if __name__ == "__main__":
    main()
