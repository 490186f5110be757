"""Fixtures of the governance tests."""

from tests.governance.live import live

__all__ = ["live"]
