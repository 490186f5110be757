"""Cron schedules of five fields: parse them, and list the days and minutes when they fire."""

import calendar
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS: Final = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if number}
_WEEKDAYS: Final = {
    name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))
}
_ITEM: Final = re.compile(r"(?P<low>\*|\w+)(-(?P<high>\w+))?(/(?P<step>\d+))?")
_NTH: Final = re.compile(r"(?P<day>\w+)#(?P<nth>[1-5])|[lL](?P<last>\w+)")
_LAST: Final = 0
_SUNDAY: Final = 7


class NotCronError(ValueError):
    """A text that is not a cron schedule of five fields."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed schedule.

    If both days of the month and days of the week are given, either is enough, as in cron.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: frozenset[int]
    month_days: frozenset[int] | None
    """From 1; 0 is the last of the month. None: every day."""
    week_days: frozenset[tuple[int, int | None]] | None
    """Sunday is 0; with the number in the month, 0 the last. None: every day."""

    @classmethod
    def of(cls, text: str) -> "Cron":
        """Parse a schedule; raises NotCronError, which names the field."""
        fields = _NICKNAMES.get(text.strip().lower(), text).split()
        if len(fields) != 5:
            message = f"{text!r} has {len(fields)} fields instead of five"
            raise NotCronError(message)
        minute, hour, month_day, month, week_day = fields
        cron = cls(
            minutes=_numbers("minute", minute, 0, 59),
            hours=_numbers("hour", hour, 0, 23),
            months=frozenset(_numbers("month", month, 1, 12, _MONTHS)),
            month_days=None if month_day in "*?" else _month_days(month_day),
            week_days=None if week_day in "*?" else _week_days(week_day),
        )
        if cron.months == {2} and cron.month_days is not None and cron.month_days <= {30, 31}:
            raise NotCronError("February has no such day")
        return cron

    def fires_on(self, day: date) -> bool:
        """Whether the schedule fires on a day."""
        if day.month not in self.months:
            return False
        if self.month_days is None or self.week_days is None:
            return (self.month_days is None or self._on_month_day(day)) and (
                self.week_days is None or self._on_week_day(day)
            )
        return self._on_month_day(day) or self._on_week_day(day)

    def _on_month_day(self, day: date) -> bool:
        days = self.month_days or ()
        return day.day in days or (_LAST in days and day.day == _month_length(day))

    def _on_week_day(self, day: date) -> bool:
        of_week = day.isoweekday() % _SUNDAY
        nth = {None, (day.day - 1) // 7 + 1}
        if day.day + 7 > _month_length(day):
            nth.add(_LAST)
        return any(of_week == wanted and number in nth for wanted, number in self.week_days or ())


def is_cron(text: str) -> bool:
    """Whether the text is a cron schedule."""
    try:
        Cron.of(text)
    except NotCronError:
        return False
    return True


def _month_length(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def _month_days(field: str) -> frozenset[int]:
    items = field.split(",")
    numbers = [item for item in items if item.lower() != "l"]
    days = _numbers("day of the month", ",".join(numbers), 1, 31) if numbers else ()
    return frozenset(days) | (frozenset({_LAST}) if len(numbers) < len(items) else frozenset())


def _week_days(field: str) -> frozenset[tuple[int, int | None]]:
    found: set[tuple[int, int | None]] = set()
    for item in field.split(","):
        nth = _NTH.fullmatch(item)
        number = None if nth is None else int(nth["nth"] or _LAST)
        plain = item if nth is None else nth["day"] or nth["last"]
        days = _numbers("day of the week", plain, 0, _SUNDAY, _WEEKDAYS)
        found |= {(day % _SUNDAY, number) for day in days}
    return frozenset(found)


def _numbers(
    name: str, field: str, lowest: int, highest: int, names: Mapping[str, int] | None = None
) -> tuple[int, ...]:
    found: set[int] = set()
    for item in field.split(","):
        found.update(_item(name, item, lowest, highest, names or {}))
    return tuple(sorted(found))


def _item(
    name: str, item: str, lowest: int, highest: int, names: Mapping[str, int]
) -> Sequence[int]:
    parts = _ITEM.fullmatch(item)
    if parts is None:
        message = f"the {name} {item!r} is not understood"
        raise NotCronError(message)
    step = int(parts["step"] or 1)
    if parts["low"] == "*":
        low, high = lowest, min(highest, 6) if names is _WEEKDAYS else highest
    else:
        low = _number(name, parts["low"], names)
        last = highest if parts["step"] else low
        high = last if parts["high"] is None else _number(name, parts["high"], names)
    if not lowest <= low <= highest or not lowest <= high <= highest or step < 1:
        message = f"the {name} {item!r} is not between {lowest} and {highest}"
        raise NotCronError(message)
    if low > high:  # wraps around, as fri-mon
        return (*range(low, highest + 1, step), *range(lowest, high + 1, step))
    return range(low, high + 1, step)


def _number(name: str, text: str, names: Mapping[str, int]) -> int:
    if text.isdigit():
        return int(text)
    found = names.get(text.lower())
    if found is None:
        message = f"the {name} {text!r} is not understood"
        raise NotCronError(message)
    return found
