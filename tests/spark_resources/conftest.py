"""Fixtures of the tests of Spark's resources."""

from tests.cli.conftest import program

__all__ = ["program"]
