"""A real S3 server on this machine: SeaweedFS."""

import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from examples.demo.place import WAREHOUSE_VARIABLE
from kstreams_assets.local.process import GuardedProcess
from kstreams_assets.store import ObjectPath, ObjectStoreSettings

BUCKET = "warehouses"
_START_S = 60.0
_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)


@dataclass(slots=True)
class SeaweedFS:
    """The server, with a bucket, a user who may do everything and one who may only read."""

    folder: Path
    key: str = "test-key"
    secret: str = field(default_factory=lambda: secrets.token_hex(20), repr=False)
    reader: tuple[str, str] = field(
        default_factory=lambda: ("reader-key", secrets.token_hex(20)), repr=False
    )
    process: GuardedProcess | None = field(default=None, init=False)
    _ports: dict[str, int] = field(default_factory=dict, init=False)

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._ports['s3.port']}"

    @property
    def environment(self) -> Mapping[str, str]:
        """By which its clients find it."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
        }

    def place(self, name: str | None = None, **settings: object) -> ObjectPath:
        """A place of its own; the environment must say where the server is."""
        told = ObjectStoreSettings.model_validate({"endpoint": self.endpoint, **settings})
        return ObjectPath.at(f"s3://{BUCKET}/{name or secrets.token_hex(6)}", told)

    def start(self) -> None:
        """Start it, and make the bucket."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._ports:
            self._ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
        config = self._write_identities()
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        self.process = GuardedProcess(
            [
                str(Path(sys.executable).with_name("weed")),
                "server",
                f"-dir={data}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                "-filer",
                "-s3",
                f"-s3.config={config}",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-s3.autoCreateBucket=false",
                "-volume.max=0",
                "-master.volumeSizeLimitMB=512",
                "-master.telemetry=false",
                *(f"-{name}={port}" for name, port in self._ports.items()),
            ],
            log_file=self.folder / "weed.log",
            environment=_environment(),
            working_directory=self.folder,
        )
        deadline = time.monotonic() + _START_S
        while not self._answers():
            assert self.process.returncode is None, (self.folder / "weed.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "SeaweedFS did not start"
            time.sleep(0.2)

    def replace_key(self, key: str) -> None:
        """Give the writer another key, with the same secret; it knows the old one no more."""
        self.key = key
        self._write_identities()
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGHUP)
        deadline = time.monotonic() + _START_S
        while not self._answers():
            assert time.monotonic() < deadline, "SeaweedFS did not take the key"
            time.sleep(0.1)

    def _write_identities(self) -> Path:
        identities = [
            _identity("writer", (self.key, self.secret), ["Admin", "Read", "Write", "List"]),
            _identity("reader", self.reader, ["Read", "List"]),
        ]
        config = self.folder / "s3.json"
        config.write_text(json.dumps({"identities": identities}), encoding="utf-8")
        return config

    def _answers(self) -> bool:
        """Whether the bucket is there; it is made as soon as that can be done."""
        try:
            pafs.S3FileSystem(
                access_key=self.key,
                secret_key=self.secret,
                endpoint_override=self.endpoint.removeprefix("http://"),
                scheme="http",
                region="us-east-1",
                allow_bucket_creation=True,
                connect_timeout=5,
                request_timeout=10,
            ).create_dir(BUCKET)
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """End it; what it holds stays."""
        if self.process is not None:
            self.process.kill()
            self.process = None


def _environment() -> dict[str, str]:
    """With a key by which it encrypts at rest, and without those of another server, which it takes.

    They are in the environment where all warehouses of a run are in that server.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return own | {"WEED_S3_SSE_KEK": secrets.token_hex(32)}


def _identity(name: str, keys: tuple[str, str], actions: list[str]) -> dict[str, object]:
    credentials = [{"accessKey": keys[0], "secretKey": keys[1]}]
    return {"name": name, "credentials": credentials, "actions": actions}


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def serving() -> Iterator[SeaweedFS]:
    """A server with data of its own."""
    folder = Path(tempfile.mkdtemp(prefix="kstreams-assets-seaweed-"))
    server = SeaweedFS(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def seaweed() -> Iterator[SeaweedFS]:
    """A server for the tests of this process."""
    with serving() as server:
        yield server


@pytest.fixture
def store(seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    """A new place in it, for this process and those that it starts."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    return seaweed.place()


STORE_VARIABLE = "KSTREAMS_ASSETS_TEST_STORE"
"""The URL below which a run of tests keeps its warehouses, if not in folders."""


@contextmanager
def in_store() -> Iterator[None]:
    """Let tests of this process, and what they start, keep their warehouses in a server."""
    with serving() as server:
        url = f"s3://{BUCKET}/tests"
        os.environ |= {**server.environment, STORE_VARIABLE: url, WAREHOUSE_VARIABLE: url}
        yield
