"""Windows as Dagster partitions: one schedule, the same keys everywhere."""

from collections.abc import Iterable
from datetime import UTC, datetime
from zoneinfo import ZoneInfoNotFoundError

import dagster as dg

from kstreams_assets.errors import ConfigurationError
from kstreams_assets.settings import WindowSchedule
from kstreams_assets.warehouse.spans import Window

_DAY = "%Y-%m-%d"
_MINUTE = "%Y-%m-%d-%H:%M"
_FEW = 10
_START_FORMATS = (_DAY, _MINUTE, "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M")


class UnknownWindowError(ConfigurationError):
    """A window key that the schedule does not have, or a window that is still open."""

    def __init__(self, *, key: str, newest: str | None) -> None:
        super().__init__(
            f"There is no closed window {key!r}.",
            remedy=f"The newest closed window is {newest}; keys look like it."
            if newest
            else "No window has closed yet; wait for the first to close.",
        )
        self.key = key


def window_partitions(schedule: WindowSchedule) -> dg.TimeWindowPartitionsDefinition:
    """The partitions of a schedule; only closed windows exist.

    Raises:
        ConfigurationError: Start or cron is not understood.
    """
    fmt = _DAY if schedule.is_daily else _MINUTE
    try:
        return dg.TimeWindowPartitionsDefinition(
            start=_start(schedule.start).strftime(fmt),
            fmt=fmt,
            cron_schedule=schedule.cron,
            timezone=schedule.timezone,
        )
    except (dg.DagsterInvalidDefinitionError, ZoneInfoNotFoundError, ValueError) as error:
        raise ConfigurationError(
            f"The windows {schedule.cron!r} from {schedule.start!r} ({schedule.timezone}) are not"
            f" understood: {str(error).rstrip('.')}.",
            remedy="Give minute, hour, day or a cron schedule, and a start such as 2026-11-01.",
        ) from error


class WindowCalendar:
    """Turns partition keys into windows and back."""

    def __init__(self, schedule: WindowSchedule) -> None:
        self.partitions = window_partitions(schedule)

    def window(self, key: str) -> Window:
        """The window of a key.

        Raises:
            UnknownWindowError: The schedule has no such closed window.
        """
        if self.partitions.has_partition_key(key):
            window = _window(key, self.partitions.time_window_for_partition_key(key))
            # Of an instant between two windows Dagster makes the later one.
            if self._key_at(window.start_ms) == key:
                return window
        newest = self.newest_closed()
        raise UnknownWindowError(key=key, newest=newest.key if newest else None)

    def windows(self, keys: Iterable[str]) -> list[Window]:
        """The windows of these keys, in order of time.

        Raises:
            UnknownWindowError: The schedule has no such closed window.
        """
        wanted = sorted(set(keys))
        if len(wanted) <= _FEW:
            return [self.window(key) for key in wanted]
        first, last = self.window(wanted[0]), self.window(wanted[-1])
        found = {window.key: window for window in self._between(first.start_ms, last.end_ms)}
        return [found.get(key) or self.window(key) for key in wanted]

    def first_closed(self) -> Window | None:
        """The first window of the schedule, None before it has closed."""
        key = self.partitions.get_first_partition_key()
        return None if key is None else self.window(key)

    def newest_closed(self) -> Window | None:
        """The window that closed last, None before the first has closed."""
        key = self.partitions.get_last_partition_key()
        if key is None:
            return None
        return _window(key, self.partitions.time_window_for_partition_key(key))

    def closes_next(self) -> Window:
        """The window that is open now; before the first, the first."""
        newest = self.newest_closed()
        begins = self.partitions.start if newest is None else _instant(newest.end_ms)
        span = self.partitions.get_next_partition_window(begins, respect_bounds=False)
        if span is None:
            message = f"{self.partitions.cron_schedule} has no window after {begins}"
            raise ValueError(message)
        fmt = self.partitions.fmt
        return _window(span.start.strftime(fmt), span)

    def closed_since(self, instant_ms: int) -> list[Window]:
        """Closed windows that end after an instant (epoch milliseconds), in order of time."""
        first = self.first_closed()
        newest = self.newest_closed()
        if first is None or newest is None:
            return []
        if instant_ms > first.start_ms:
            # A window is found by its start, so begin with the one that the instant lies in.
            key = self._key_at(instant_ms)
            first = _window(key, self.partitions.time_window_for_partition_key(key))
        return [w for w in self._between(first.start_ms, newest.end_ms) if instant_ms < w.end_ms]

    def _key_at(self, instant_ms: int) -> str:
        return self.partitions.get_partition_key_for_timestamp(instant_ms / 1000)

    def _between(self, start_ms: int, end_ms: int) -> list[Window]:
        """The windows that begin and end in a time, found in one go: one by one takes 3 ms each."""
        span = dg.TimeWindow(_instant(start_ms), _instant(end_ms))
        keys = self.partitions.get_partition_keys_in_time_window(span)
        times = self.partitions.time_windows_for_partition_keys(frozenset(keys), validate=False)
        windows = [_window(key, time) for key, time in zip(keys, times, strict=True)]
        return [window for window in windows if window.end_ms <= end_ms]


def _window(key: str, span: dg.TimeWindow) -> Window:
    return Window(_ms(span.start), _ms(span.end), key)


def _instant(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, tz=UTC)


def _ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


def _start(text: str) -> datetime:
    for fmt in _START_FORMATS:
        try:
            return datetime.strptime(text, fmt).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise ConfigurationError(
        f"windows.start is {text!r}.",
        remedy="Give a date such as 2026-11-01, or a date and time such as 2026-11-01-13:30.",
    )
