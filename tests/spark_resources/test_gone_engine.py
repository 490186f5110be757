"""A server that does not answer: a dead engine is not asked again, another one comes back."""

import socket
import time
from pathlib import Path

import pytest

from kstreams_assets.errors import EngineError
from spark_resources import session as module
from spark_resources.engine import Engine
from spark_resources.session import LazySession, _retry_policy
from spark_resources.settings import SparkSettings

_SOON_S = 30.0
"""Three dead engines: each was given up after 17 s once."""


class _Gone:
    """The use of an engine that was killed a moment ago."""

    def __init__(self, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        settings = SparkSettings().model_dump(mode="json")
        self.engine = Engine("key", port, "token", 1, 1, 0, "0", "code", settings)
        self.log = log

    def is_alive(self) -> bool:
        """It is not."""
        return False

    def close(self) -> None:
        """Nothing to let go."""


def test_another_server_is_asked_often_and_for_ten_minutes() -> None:
    state = _retry_policy(None).to_state()
    pauses_ms = list(iter(state.next_attempt, None))
    assert max(pauses_ms) < 6_000
    assert sum(pauses_ms) > 600_000


def test_another_engine_is_tried_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried: list[_Gone] = []

    def lease(_: object) -> _Gone:
        tried.append(_Gone(tmp_path / "log"))
        return tried[-1]

    monkeypatch.setattr(module, "lease", lease)
    began = time.monotonic()
    with pytest.raises(EngineError, match="Connection refused"):
        _ = LazySession(SparkSettings()).spark_session
    assert len(tried) == 3
    assert time.monotonic() - began < _SOON_S
