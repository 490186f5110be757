"""A clock that stands still, for the calendar and for Dagster."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from unittest import mock

from dagster._core.test_utils import freeze_time as freeze_dagster


@contextmanager
def freeze_time(moment: datetime) -> Iterator[None]:
    """It is this moment."""
    with (
        freeze_dagster(moment),
        mock.patch("kstreams_assets.calendar.now", return_value=moment),
    ):
        yield
