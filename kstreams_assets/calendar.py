"""The windows of a schedule: their keys, the closed windows and the open window."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kstreams_assets.cron import Cron, NotCronError
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.model.spans import Window
from kstreams_assets.settings import WindowSchedule

_DAY: Final = "%Y-%m-%d"
_MINUTE: Final = "%Y-%m-%d-%H:%M"
_START_FORMATS: Final = (_DAY, _MINUTE, "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M")
_EARLIEST: Final = "1970-01-02"
_ONE_DAY: Final = timedelta(days=1)
_LONGEST_DAYS: Final = 366 * 9
"""A schedule without a day in this time never fires: leap days are at most 8 years apart."""
_SHIFTING_HOURS: Final = (1, 2, 3)
"""Local hours that may occur twice or not at all; Dagster checks these hours only."""


class WindowCalendar:
    """Map keys to windows and back; keys and times are those of Dagster's partitions.

    Raises:
        ConfigurationError: Start, cron or time zone is not understood.
    """

    def __init__(self, schedule: WindowSchedule) -> None:
        start = start_of(schedule)
        try:
            self._cron = Cron.of(schedule.cron)
            self._zone = ZoneInfo(schedule.timezone)
        except (NotCronError, ZoneInfoNotFoundError, ValueError) as error:
            raise not_understood(schedule, error) from error
        self.format = key_format(schedule)
        self._start_ms = _ms(start.replace(tzinfo=self._zone))
        self._days: dict[date, list[int]] = {}

    def window(self, key: str) -> Window:
        """The window of a key.

        Raises:
            ConfigurationError: The schedule has no such closed window.
        """
        window = self._of_key(key)
        if window is None or window.end_ms > _now_ms():
            newest = self.newest_closed()
            raise ConfigurationError(
                f"There is no closed window {key!r}.",
                remedy=f"The newest closed window is {newest.key}; keys look like it."
                if newest
                else "No window has closed yet; wait for the first to close.",
            )
        return window

    def started(self, key: str) -> Window:
        """The window of a key, which may still be open.

        Raises:
            ConfigurationError: The schedule has no window of this key that has started.
        """
        window = self._of_key(key)
        if window is None or window.start_ms > _now_ms():
            raise ConfigurationError(
                f"There is no window {key!r} that has started.",
                remedy=f"The open window is {self.closes_next().key}; keys look like it.",
            )
        return window

    def windows(self, keys: Iterable[str]) -> list[Window]:
        """The windows of these keys, in order of time.

        Raises:
            ConfigurationError: The schedule has no such closed window.
        """
        return [self.window(key) for key in sorted(set(keys))]

    def has_closed(self, key: str) -> bool:
        """Whether it is the key of a closed window."""
        window = self._of_key(key)
        return window is not None and window.end_ms <= _now_ms()

    def newest_closed(self) -> Window | None:
        """The window that closed last; None before the first window has closed."""
        end_ms = next(self._back_from(_now_ms()))
        begins = next(self._back_from(end_ms - 1))
        return None if begins < self._start_ms else self._window(begins)

    def closes_next(self) -> Window:
        """The open window; before the first window, the first."""
        begins = next(self._back_from(_now_ms()))
        return self._window(max(begins, self.first_ms))

    def key_at(self, instant_ms: int) -> str:
        """The key of the window that contains this time."""
        return self._key(next(self._back_from(instant_ms)))

    def closed_since(self, instant_ms: int) -> list[Window]:
        """Closed windows that end after this time (epoch milliseconds), in order of time."""
        first_ms, now_ms = self.first_ms, _now_ms()
        begins = max(first_ms, next(self._back_from(instant_ms)) if instant_ms > first_ms else 0)
        found: list[Window] = []
        for end_ms in self._after(begins):
            if end_ms > now_ms:
                return found
            if end_ms > instant_ms:
                found.append(Window(begins, end_ms, self._key(begins)))
            begins = end_ms
        return found

    @property
    def first_ms(self) -> int:
        """Start of the first window (epoch ms)."""
        return next(self._after(self._start_ms - 1))

    def _of_key(self, key: str) -> Window | None:
        try:
            wall = datetime.strptime(key, self.format)
        except ValueError:
            return None
        instants = self._of_day(wall.date())
        begins = instants[0] if instants and self.format == _DAY else self._instant(wall)
        at = bisect_left(instants, begins)
        if begins not in instants[at : at + 1] or begins < self._start_ms:
            return None
        return self._window(begins) if self._key(begins) == key else None

    def _window(self, start_ms: int) -> Window:
        return Window(start_ms, next(self._after(start_ms)), self._key(start_ms))

    def _key(self, start_ms: int) -> str:
        return self._local(start_ms).strftime(self.format)

    def _local(self, epoch_ms: int) -> datetime:
        return datetime.fromtimestamp(epoch_ms / 1000, tz=self._zone)

    def _after(self, epoch_ms: int) -> Iterator[int]:
        """Starts of windows after this time, in order."""
        day, empty = self._local(epoch_ms).date(), 0
        while empty < _LONGEST_DAYS:
            instants = self._of_day(day)
            instants = instants[bisect_right(instants, epoch_ms) :]
            yield from instants
            empty = 0 if instants else empty + 1
            day += _ONE_DAY
        raise self._never()

    def _back_from(self, epoch_ms: int) -> Iterator[int]:
        """Starts of windows up to this time, latest first."""
        day, empty = self._local(epoch_ms).date(), 0
        while empty < _LONGEST_DAYS:
            instants = self._of_day(day)
            instants = instants[: bisect_right(instants, epoch_ms)]
            yield from reversed(instants)
            empty = 0 if instants else empty + 1
            day -= _ONE_DAY
        raise self._never()

    def _never(self) -> ConfigurationError:
        return ConfigurationError(
            "The schedule of the windows never fires.",
            remedy="Correct the days and months of windows.every.",
        )

    def _of_day(self, day: date) -> list[int]:
        """Starts of windows on a local day (epoch milliseconds)."""
        found = self._days.get(day)
        if found is None:
            found = self._days[day] = [
                self._instant(datetime(day.year, day.month, day.day, hour, minute))
                for hour in self._cron.hours
                for minute in self._cron.minutes
                if self._cron.fires_on(day)
            ]
        return found

    def _instant(self, wall: datetime) -> int:
        """The timestamp of a local time, as Dagster computes it.

        A local time that occurs twice means the later one. A local time that does not occur means
        the end of the skipped hour. Keys and times thus stay the same.
        """
        local = wall.replace(tzinfo=self._zone)
        if local.hour in _SHIFTING_HOURS:
            local = local.replace(fold=1)
            if (
                datetime.fromtimestamp(local.timestamp(), tz=self._zone).replace(tzinfo=None)
                != wall
            ):
                local = local.replace(minute=0, fold=0) + timedelta(hours=1)
        return _ms(local)


def key_format(schedule: WindowSchedule) -> str:
    """The format of keys, for `strftime`."""
    return _DAY if schedule.is_daily else _MINUTE


def start_of(schedule: WindowSchedule) -> datetime:
    """The start of the first window on the wall clock, to the minute or day that keys have.

    Raises:
        ConfigurationError: The text is not a date.
    """
    text = _first_key(schedule) if schedule.start is None else schedule.start
    for fmt in _START_FORMATS:
        try:
            start = datetime.strptime(text, fmt).replace(tzinfo=UTC)
        except ValueError:
            continue
        start = start.replace(hour=0, minute=0) if schedule.is_daily else start
        return start.replace(tzinfo=None)
    raise ConfigurationError(
        f"windows.start is {schedule.start!r}.",
        remedy="Give a date such as 2026-11-01, or a date and time such as 2026-11-01-13:30.",
    )


def _first_key(schedule: WindowSchedule) -> str:
    """The key of the window in which the application was first seen; before that, the open one."""
    seen_ms = schedule.first_seen_ms()
    every = WindowCalendar(schedule.model_copy(update={"start": _EARLIEST}))
    return every.key_at(_now_ms() if seen_ms is None else seen_ms)


def not_understood(schedule: WindowSchedule, error: Exception) -> ConfigurationError:
    """The error for a schedule that cannot be parsed."""
    start = "" if schedule.start is None else f" from {schedule.start!r}"
    return ConfigurationError(
        f"The windows {schedule.cron!r}{start} ({schedule.timezone}) are not"
        f" understood: {str(error).rstrip('.')}.",
        remedy="Give minute, hour, day or a cron schedule, and a start such as 2026-11-01.",
    )


def now() -> datetime:
    """The current time; tests replace this function."""
    return datetime.now(tz=UTC)


def _now_ms() -> int:
    return _ms(now())


def _ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
