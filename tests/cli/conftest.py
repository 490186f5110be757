"""Fixtures of the command line's tests."""

import pytest

from tests.cli.application import Program
from tests.cli.shop import shop
from tests.restore.restored_app import backed_up, requests, restored_app


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """The command line, which soon notices that there is no cluster."""
    monkeypatch.setattr("kstreams_assets.drill.readiness._ASK_CLUSTER_S", 0.3)
    return Program(monkeypatch, capsys)


__all__ = ["backed_up", "program", "requests", "restored_app", "shop"]
