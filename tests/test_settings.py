"""Schedules of windows, and what is refused."""

import pytest

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.settings import WindowSchedule


@pytest.mark.parametrize(
    ("every", "cron", "daily"),
    [
        ("minute", "* * * * *", False),
        ("hour", "0 * * * *", False),
        ("day", "0 0 * * *", True),
        ("*/15 * * * *", "*/15 * * * *", False),
        ("30 6 * * *", "30 6 * * *", True),
        ("0 0 * * 1", "0 0 * * 1", True),
        ("0 */6 * * *", "0 */6 * * *", False),
        ("0 8,20 * * *", "0 8,20 * * *", False),
    ],
)
def test_periods(every: str, cron: str, daily: bool) -> None:
    schedule = WindowSchedule.every(every, start="2026-11-01")
    assert schedule.cron == cron
    assert schedule.is_daily is daily


@pytest.mark.parametrize("every", ["week", "", "0 * * *", "0 * * * * *", "Hour"])
def test_periods_that_are_none(every: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"windows\.every is .*minute, hour, day"
    ) as caught:
        WindowSchedule.every(every, start="2026-11-01")
    assert repr(every) in str(caught.value)


@pytest.mark.parametrize("every", ["minute", "hour", "0 */6 * * *", "0 8,20 * * *"])
def test_a_time_zone_is_for_windows_of_a_day_or_more(every: str) -> None:
    with pytest.raises(ConfigurationError, match="an hour can occur twice"):
        WindowSchedule.every(every, start="2026-11-01", timezone="Europe/Berlin")


def test_days_may_be_local() -> None:
    schedule = WindowSchedule.every("day", start="2026-11-01", timezone="Europe/Berlin")
    assert schedule.timezone == "Europe/Berlin"
