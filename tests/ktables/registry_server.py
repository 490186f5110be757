"""A real schema registry in memory, on a free port of 127.0.0.1."""

import re
import tarfile
import time
from pathlib import Path
from typing import Self

from kstreams_assets.local.process import GuardedProcess
from spark_resources.jars import verify_jars
from spark_resources.java import find_java

_START_TIMEOUT_S = 90.0
_LISTENING = re.compile(r"Listening on: (http://127\.0\.0\.1:\d+)")


class RegistryServer:
    """Apicurio Registry with Confluent's REST interface, as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: GuardedProcess | None = None
        self.url = ""

    def __enter__(self) -> Self:
        (archive,) = verify_jars("registry", hashes=False).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            folder = self._folder / "registry"
            if hasattr(tarfile, "data_filter"):
                packed.extractall(folder, filter="data")
            else:  # before Python 3.11.4; the archive is checked by its sha256
                packed.extractall(folder)  # noqa: S202
        self._process = GuardedProcess(
            [
                str(find_java().executable),
                "-Xmx256m",
                "-XX:TieredStopAtLevel=1",
                "-Dquarkus.http.host=127.0.0.1",
                "-Dquarkus.http.port=0",
                "-jar",
                str(next((self._folder / "registry").glob("*-runner.jar"))),
            ],
            log_file=self._folder / "registry.log",
        )
        self.url = f"{self._await_address(self._process)}/apis/ccompat/v7"
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop it; what it held is gone."""
        if self._process is not None:
            self._process.stop()

    def _await_address(self, process: GuardedProcess) -> str:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and process.running:
            found = _LISTENING.search(process.log_tail(200))
            if found:
                return found.group(1)
            time.sleep(0.1)
        raise AssertionError(f"the registry did not start: {process.log_tail()}")
