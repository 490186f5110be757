"""A process as a container of a pod has it: nothing can be written but what is mounted."""

import functools
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# All file systems become read-only, but for the folders in $WRITABLE, the first of which is /tmp.
_SCRIPT = textwrap.dedent(
    """
    set -eu
    mount --make-rprivate /
    set_tmp=${WRITABLE%%:*}
    for folder in ${WRITABLE//:/ }; do mount --bind "$folder" "$folder"; done
    for place in $(awk '{print $2}' /proc/mounts | sort -u); do
      case :$WRITABLE: in *:$place:*) continue;; esac
      case $place in /proc*|/sys*|/dev*) continue;; esac
      mount -o remount,bind,ro "$place" || true
    done
    mount --bind "$set_tmp" /tmp
    if touch /etc/kstreams-assets-test /root/kstreams-assets-test 2>/dev/null; then exit 97; fi
    touch /tmp/is-writable
    exec "$@"
    """
)


@functools.cache
def is_possible() -> bool:
    """Whether this user may make namespaces; in many containers nobody may."""
    try:
        done = subprocess.run(
            [*_UNSHARE, "mount", "--make-rprivate", "/"],
            capture_output=True,
            timeout=30,
            check=False,
        )
    except FileNotFoundError:
        return False
    return done.returncode == 0


@dataclass(frozen=True, slots=True)
class Container:
    """Runs command lines of manifests; `writable` are folders, the first of them is /tmp.

    Where no namespaces can be made it runs them with these folders all the same.
    """

    writable: tuple[Path, ...]
    environment: Mapping[str, str]

    def start(self, command: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
        """Start it, its output appended to a file."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self._command(command), env=self._environment(), stdout=output, stderr=output
            )

    def run(
        self, command: Sequence[str], *, timeout_s: float
    ) -> "subprocess.CompletedProcess[str]":
        """Run it to its end; what it has started ends with it."""
        return subprocess.run(
            self._command(command),
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def close(self) -> None:
        """End the engine that commands have left where no namespace has done it."""
        if not is_possible():
            self.run(["kstreams-assets", "engine", "stop"], timeout_s=120)

    def _command(self, command: Sequence[str]) -> list[str]:
        program, *arguments = command
        assert program == "kstreams-assets"
        ours = [sys.executable, "-m", "kstreams_assets.cli.main", *arguments]
        return [*_UNSHARE, "bash", "-c", _SCRIPT, "pod", *ours] if is_possible() else ours

    def _environment(self) -> dict[str, str]:
        tmp = "/tmp" if is_possible() else str(self.writable[0])
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return {
            **kept,
            "PATH": path,
            "HOME": tmp,
            "TMPDIR": tmp,
            "KSTREAMS_ASSETS_ENGINES": f"{tmp}/engines",
            "WRITABLE": ":".join(map(str, self.writable)),
            **self.environment,
        }


_KEPT = ("JAVA_HOME", "KSTREAMS_ASSETS_JARS", "LANG", "PYTHONPATH")


def send(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to the command itself, as the init process of a container does."""
    inner = psutil.Process(process.pid).children()
    target = inner[0].pid if is_possible() and inner else process.pid
    os.kill(target, number)
