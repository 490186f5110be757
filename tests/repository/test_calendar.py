"""Windows of every kind of schedule, and keys that are none."""

import itertools
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from dagster._utils.schedules import is_valid_cron_schedule

from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.cron import is_cron
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.spans import Window
from kstreams_assets.orchestration.keys import window_partitions
from kstreams_assets.settings import WindowSchedule
from tests.clock import freeze_time
from tests.timing import processor_time

HOUR_MS = 3_600_000


def _ms(year: int, month: int, day: int, hour: int = 0, minute: int = 0, zone: str = "UTC") -> int:
    moment = datetime(year, month, day, hour, minute, tzinfo=ZoneInfo(zone))
    return round(moment.timestamp() * 1000)


def _calendar(every: str, start: str = "2026-10-20", timezone: str = "UTC") -> WindowCalendar:
    return WindowCalendar(WindowSchedule.every(every, start=start, timezone=timezone))


class TestWindow:
    """A key and its instants."""

    @pytest.mark.parametrize(
        ("every", "key", "start_ms", "length_ms"),
        [
            ("minute", "2026-10-20-13:07", _ms(2026, 10, 20, 13, 7), 60_000),
            ("hour", "2026-10-20-13:00", _ms(2026, 10, 20, 13), HOUR_MS),
            ("day", "2026-10-20", _ms(2026, 10, 20), 24 * HOUR_MS),
            ("*/15 * * * *", "2026-10-20-13:45", _ms(2026, 10, 20, 13, 45), 15 * 60_000),
            ("30 6 * * *", "2026-10-20", _ms(2026, 10, 20, 6, 30), 24 * HOUR_MS),
            ("0 0 * * 1", "2026-10-26", _ms(2026, 10, 26), 7 * 24 * HOUR_MS),
        ],
    )
    def test_of_a_key(self, every: str, key: str, start_ms: int, length_ms: int) -> None:
        assert _calendar(every).window(key) == Window(start_ms, start_ms + length_ms, key)

    @pytest.mark.parametrize(
        ("key", "zone", "hours"),
        [
            ("2026-10-25", "Europe/Berlin", 25),
            ("2026-03-29", "Europe/Berlin", 23),
            ("2026-10-25", "UTC", 24),
            ("2026-11-01", "America/New_York", 25),
        ],
    )
    def test_a_local_day_is_as_long_as_it_is(self, key: str, zone: str, hours: int) -> None:
        window = _calendar("day", "2026-01-01", zone).window(key)
        day = datetime.strptime(key, "%Y-%m-%d").replace(tzinfo=ZoneInfo(zone))
        assert window.start_ms == round(day.timestamp() * 1000)
        assert window.end_ms - window.start_ms == hours * HOUR_MS

    @pytest.mark.parametrize(
        "key",
        [
            "2026-10-19-13:00",  # before the first
            "2026-10-20-13:30",  # between two
            "2999-01-01-00:00",  # still open
            "2026-10-20",  # of another schedule
            "yesterday",
            "",
        ],
    )
    def test_a_key_that_is_none(self, key: str) -> None:
        with freeze_time(datetime(2026, 10, 21, 9, 30, tzinfo=UTC)):
            with pytest.raises(ConfigurationError, match="There is no closed window") as caught:
                _calendar("hour").window(key)
            assert repr(key) in caught.value.problem
            assert "The newest closed window is 2026-10-21-08:00" in str(caught.value)

    def test_a_key_before_any_window_has_closed(self) -> None:
        with (
            freeze_time(datetime(2026, 10, 20, 0, 30, tzinfo=UTC)),
            pytest.raises(ConfigurationError, match="No window has closed yet"),
        ):
            _calendar("hour").window("2026-10-20-00:00")

    @pytest.mark.parametrize("count", [3, 40])
    def test_windows_come_in_order_of_time_and_once(self, count: int) -> None:
        with freeze_time(datetime(2026, 10, 24, tzinfo=UTC)):
            calendar = _calendar("hour")
            keys = [window.key for window in calendar.closed_since(0)][5 : 5 + 2 * count : 2]
            expected = [calendar.window(key) for key in keys]
            assert calendar.windows([*keys[::-1], keys[0]]) == expected
            with pytest.raises(ConfigurationError, match="no closed window '2026-10-20-13:30'"):
                calendar.windows([*keys, "2026-10-20-13:30"])
            assert calendar.windows([]) == []

    def test_many_windows_are_found_in_one_go(self) -> None:
        with freeze_time(datetime(2026, 10, 24, tzinfo=UTC)):
            calendar = _calendar("minute")
            with processor_time() as took:
                windows = calendar.closed_since(0)
                assert calendar.windows(w.key for w in windows) == windows
            assert len(windows) == 4 * 24 * 60
            assert took.seconds < 3  # one by one: 30 s


class TestClosed:
    """Which windows have closed."""

    def test_the_newest(self) -> None:
        calendar = _calendar("hour")
        with freeze_time(datetime(2026, 10, 20, 1, 0, tzinfo=UTC)):
            assert calendar.newest_closed() == calendar.window("2026-10-20-00:00")
        with freeze_time(datetime(2026, 10, 20, 0, 59, 59, tzinfo=UTC)):
            assert calendar.newest_closed() is None
            assert calendar.closed_since(0) == []

    @pytest.mark.parametrize(
        ("every", "start", "zone"),
        [
            ("minute", "2026-10-26-02:05", "UTC"),
            ("hour", "2026-10-25", "UTC"),
            ("hour", "2026-10-25-00:30", "UTC"),
            ("day", "2026-10-20", "UTC"),
            ("day", "2026-10-20", "Europe/Berlin"),
            ("30 6 * * *", "2026-10-20", "America/New_York"),
            ("0 0 * * 1", "2026-10-01", "UTC"),
            ("0 */6 * * *", "2026-10-20", "UTC"),
            ("0 8,20 * * *", "2026-10-20", "UTC"),
        ],
    )
    def test_since_any_instant(self, every: str, start: str, zone: str) -> None:
        with freeze_time(datetime(2026, 10, 26, 2, 30, tzinfo=UTC)):
            calendar = _calendar(every, start, zone)
            keys = [window.key for window in calendar.closed_since(0)]
            windows = [calendar.window(key) for key in keys]
            assert windows[-1] == calendar.newest_closed()
            assert all(a.end_ms == b.start_ms for a, b in itertools.pairwise(windows))
            for window in (windows[0], windows[len(windows) // 2], windows[-1]):
                for instant in (window.start_ms, window.start_ms + 1, window.end_ms - 1):
                    expected = [w for w in windows if w.end_ms > instant]
                    assert calendar.closed_since(instant) == expected
            assert calendar.closed_since(windows[-1].end_ms) == []
            assert calendar.closed_since(0) == windows


class TestAsDagster:
    """What Dagster makes partitions of is what is backed up: same keys, same times."""

    @pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "America/Havana", "UTC"])
    @pytest.mark.parametrize(
        "cron",
        ["0 0 * * *", "30 2 * * *", "15 1 * * *", "0 3 * * 0", "0 0 1 * *", "0 12 * * mon-fri"],
    )
    def test_days(self, cron: str, zone: str) -> None:
        self._same(WindowSchedule.every(cron, start="2024-02-27", timezone=zone))

    @pytest.mark.parametrize(
        "cron",
        [
            "*/15 * * * *",
            "7 * * * *",
            "0 8,20 * * *",
            "0 */6 * * *",
            "5-50/20 1-3 * * *",
            "0 0,12 13 * fri",
            "0 0,12 1 jan,jul ?",
            "30 */12 29 2 *",
            "0 0,12 L * *",
            "0 0,12 * * sat#2",
            "0 0,12 * * L5",
            "0 0,12 * * 5-1",
        ],
    )
    def test_shorter_windows(self, cron: str) -> None:
        self._same(WindowSchedule.every(cron, start="2026-02-01-13:07"))

    def _same(self, schedule: WindowSchedule) -> None:
        for now in (datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)):
            with freeze_time(now):
                calendar, partitions = WindowCalendar(schedule), window_partitions(schedule)
                keys = partitions.get_partition_keys()
                windows = calendar.closed_since(0)
                assert [window.key for window in windows] == list(keys)
                times = partitions.time_windows_for_partition_keys(frozenset(keys))
                assert [(w.start_ms / 1000, w.end_ms / 1000) for w in windows] == [
                    (t.start.timestamp(), t.end.timestamp()) for t in times
                ]
                assert not windows or calendar.first_ms == windows[0].start_ms
                assert calendar.newest_closed() == (windows[-1] if windows else None)
                opens = partitions.get_next_partition_window(
                    datetime.fromtimestamp(windows[-1].end_ms / 1000, tz=UTC)
                    if windows
                    else partitions.start,
                    respect_bounds=False,
                )
                assert opens is not None
                assert calendar.closes_next().start_ms == opens.start.timestamp() * 1000
                assert calendar.closes_next().end_ms == opens.end.timestamp() * 1000

    @pytest.mark.parametrize(
        "text",
        [
            *("* * * * *", "@daily", "0 4 * * 0", "*/5 0-6/2 1,15 * 7", "0 0 l * *", "0 0 30 2 *"),
            *("0 0 * * fri#6", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8"),
            *(
                "",
                "* * * *",
                "* * * * * *",
                "*/0 * * * *",
                "1,,2 * * * *",
                "-1 * * * *",
                "a * * * *",
            ),
            *("0 0 * jan-mar mon", "0 0 ? * ?", "@often", "5/15 * * * *", "0 0 * * 6-2"),
        ],
    )
    def test_what_a_schedule_is(self, text: str) -> None:
        assert is_cron(text) == is_valid_cron_schedule(text)


class TestErrors:
    """What a user may write wrong."""

    @pytest.mark.parametrize("start", ["01.11.2026", "2026-13-01", "soon", ""])
    def test_start(self, start: str) -> None:
        with pytest.raises(ConfigurationError, match=r"windows\.start is .*Give a date such as"):
            _calendar("hour", start)

    @pytest.mark.parametrize(
        "start", ["2026-11-01", "2026-11-01-13:30", "2026-11-01T13:30", "2026-11-01 13:30"]
    )
    def test_ways_to_write_a_start(self, start: str) -> None:
        with freeze_time(datetime(2026, 11, 2, tzinfo=UTC)):
            first = next(iter(_calendar("minute", start).closed_since(0)))
        assert first.key == ("2026-11-01-13:30" if "13" in start else "2026-11-01-00:00")

    @pytest.mark.parametrize("cron", ["61 * * * *", "0 0 32 * *", "a b c d e"])
    def test_cron(self, cron: str) -> None:
        with pytest.raises(ConfigurationError, match="not understood") as caught:
            _calendar(cron)
        assert cron in str(caught.value)
        assert "Give minute, hour, day" in str(caught.value)

    @pytest.mark.parametrize("zone", ["Mars/Olympus", "Europe/../Berlin"])
    def test_time_zone(self, zone: str) -> None:
        with pytest.raises(ConfigurationError, match="not understood") as caught:
            _calendar("day", timezone=zone)
        assert zone in str(caught.value)
