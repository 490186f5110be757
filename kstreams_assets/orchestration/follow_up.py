"""The sensor that requests KTables and completeness rules of windows that are backed up."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import dagster as dg

from kstreams_assets.backup.requests import window_statuses
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.completeness.result import AT_WINDOWS, rule_checks
from kstreams_assets.ktables.stores import table_stores
from kstreams_assets.model.spans import Window
from kstreams_assets.orchestration.keys import (
    IN_PROGRESS,
    RANGE_END_TAG,
    RANGE_START_TAG,
    SENSOR_NAME_TAG,
    completeness_key,
    follow_up_sensor,
    ktable_key,
)
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings

EVERY_S: Final = 30
MOST_WINDOWS: Final = 200
"""Windows that are waited for, and windows of one run."""
_CURSOR_VERSION: Final = 1


def build_follow_up_sensors(settings: ApplicationSettings) -> list[dg.SensorDefinition]:
    """The sensor, on from the start if the settings say so; none where there is nothing to request.

    It looks at the ledger, so it does not matter who backs up. Only windows that close while it is
    on are followed up, and the one that had closed last when it looked first: an old warehouse or
    a lost database of Dagster is no reason to make old tables again.
    """
    application_id = settings.application_id
    targets = [ktable_key(settings, store.store) for store in table_stores(settings)]
    if rule_checks(settings, AT_WINDOWS):
        targets.append(completeness_key(settings))
    if not targets:
        return []
    name = follow_up_sensor(application_id)
    running, stopped = dg.DefaultSensorStatus.RUNNING, dg.DefaultSensorStatus.STOPPED

    @dg.sensor(
        name=name,
        target=targets,
        minimum_interval_seconds=EVERY_S,
        default_status=running if settings.sensors_running else stopped,
        description=(
            f"Requests the KTables and the completeness rules of `{application_id}` for each window"
            " that closes, once all of its topics are backed up, by whomever."
        ),
        tags={"kstreams/app": application_id},
    )
    def follow_up(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        waiting = Waiting.parse(context.cursor).with_closed(WindowCalendar(settings.windows))
        own = {SENSOR_NAME_TAG: name, "kstreams/app": application_id}
        filters = dg.RunsFilter(tags=own, statuses=list(IN_PROGRESS))
        going_on = context.instance.get_runs(filters, limit=1)
        if going_on:
            # The windows that close meanwhile are then one run, with one start of Spark.
            return _wait(f"Run {going_on[0].run_id} has not ended.", waiting)
        ledger_version = Repository.open(settings).ledger.version()
        if not waiting.windows or ledger_version == waiting.ledger_version:
            return _wait(f"{len(waiting.windows)} windows are not backed up yet.", waiting)
        statuses = window_statuses(settings)
        # Nothing was backed up with a window without a point: nothing follows from it.
        waiting = waiting.less(status.window for status in statuses if status.without_point)
        done = {status.window for status in statuses if status.is_backed_up}
        ready = next(_ranges([window for window in waiting.windows if window in done]), ())
        if not ready:
            looked = Waiting(waiting.windows, waiting.closed_ms, ledger_version)
            return _wait(f"{len(waiting.windows)} windows are not backed up yet.", looked)
        request = dg.RunRequest(
            run_key=f"{application_id}|{ready[0].key}|{ready[-1].key}",
            asset_selection=targets,
            tags={
                "kstreams/app": application_id,
                RANGE_START_TAG: ready[0].key,
                RANGE_END_TAG: ready[-1].key,
            },
        )
        rest = tuple(window for window in waiting.windows if window not in ready)
        cursor = Waiting(rest, waiting.closed_ms, None).dump()
        return dg.SensorResult(run_requests=[request], cursor=cursor)

    return [follow_up]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Windows that have closed and are still to be requested, in order: the cursor."""

    windows: tuple[Window, ...] = ()
    closed_ms: int | None = None
    """When the last window closed that was looked at; None before the first look."""
    ledger_version: int | None = None
    """The ledger in which none of the windows was backed up whole; None: not looked."""

    @classmethod
    def parse(cls, text: str | None) -> "Waiting":
        """The cursor of the last tick; where it cannot be read, that of a first look."""
        try:
            facts = json.loads(text or "")
            if facts["version"] != _CURSOR_VERSION:
                return cls()
            windows = tuple(Window(int(b), int(e), str(key)) for b, e, key in facts["windows"])
            version = facts["ledger_version"]
            return cls(windows, int(facts["closed_ms"]), None if version is None else int(version))
        except (ValueError, KeyError, TypeError):
            return cls()

    def dump(self) -> str:
        """The cursor as text."""
        return json.dumps(
            {
                "version": _CURSOR_VERSION,
                "windows": [(w.start_ms, w.end_ms, w.key) for w in self.windows],
                "closed_ms": self.closed_ms,
                "ledger_version": self.ledger_version,
            }
        )

    def less(self, windows: Iterable[Window]) -> "Waiting":
        """Without some windows."""
        gone = {*windows}
        return replace(self, windows=tuple(one for one in self.windows if one not in gone))

    def with_closed(self, calendar: WindowCalendar) -> "Waiting":
        """With the windows that have closed since; of more than `MOST_WINDOWS` the newest.

        Windows of another schedule are left out.
        """
        newest = calendar.newest_closed()
        if newest is None:
            return self
        since_ms = newest.start_ms if self.closed_ms is None else self.closed_ms
        closed = calendar.closed_since(since_ms)
        waiting = [window for window in self.windows if calendar.has_closed(window.key)]
        return Waiting(
            (*waiting, *closed)[-MOST_WINDOWS:],
            newest.end_ms,
            None if closed else self.ledger_version,
        )


def _ranges(windows: Sequence[Window]) -> Iterator[tuple[Window, ...]]:
    """Windows that follow each other, as one range each."""
    found: list[Window] = []
    for window in windows:
        if found and found[-1].end_ms != window.start_ms:
            yield tuple(found)
            found = []
        found.append(window)
    if found:
        yield tuple(found)


def _wait(reason: str, waiting: Waiting) -> dg.SensorResult:
    return dg.SensorResult(
        skip_reason=reason, cursor=waiting.dump() if waiting.closed_ms is not None else None
    )
