"""A server with AWS's own interfaces on this machine: moto."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kstreams_assets import secrets_manager
from kstreams_assets.aws import aws_session

REGION = "eu-central-1"


@dataclass(frozen=True, slots=True)
class Moto:
    """The server; `environment` is what its clients need."""

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }

    def client(self, service: str) -> Any:
        """A client of one service."""
        session = aws_session(region=REGION, keys=("test", "test", None))
        return session.client(service, endpoint_url=self.endpoint)

    def secret(self, value: str | bytes, name: str | None = None) -> str:
        """The ARN of a new secret."""
        where = "SecretBinary" if isinstance(value, bytes) else "SecretString"
        made = self.client("secretsmanager").create_secret(
            Name=name or f"kafka/{secrets.token_hex(4)}", **{where: value}
        )
        return str(made["ARN"])


@pytest.fixture(scope="session")
def moto_server() -> Iterator[Moto]:
    """One for all tests of this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield Moto(f"http://{host}:{port}")
    server.stop()


@pytest.fixture
def moto(moto_server: Moto, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moto]:
    """The server, in the environment of this process; nothing was read from it yet."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in moto_server.environment.items():
        monkeypatch.setenv(name, value)
    secrets_manager._values.clear()
    yield moto_server
    secrets_manager._values.clear()
