"""Fixtures of the command line's tests."""

import pytest

from tests.cli.application import Program


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """The command line."""
    return Program(monkeypatch, capsys)
