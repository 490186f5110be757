"""The sensor that requests KTables and completeness rules of windows that are backed up."""

import json
from collections.abc import Iterable, Sequence, Set
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
FOLLOW_UP_TAG: Final = "kstreams/follow-up"
"""On a run of the sensor: what it makes, `ktables` or `completeness`."""
_CURSOR_VERSION: Final = 1


def build_follow_up_sensors(settings: ApplicationSettings) -> list[dg.SensorDefinition]:
    """The sensor, on from the start if the settings say so; none where there is nothing to request.

    It reads the ledger, so backups of any program count. Only windows that close while it is on are
    followed up, and the one that had closed last when it looked first: an old warehouse or a lost
    database of Dagster is no reason to make old tables again.

    Tables and rules are runs of their own: a run occupies its pools to its end, and only tables
    need that of the backups.
    """
    application_id = settings.application_id
    stores = [store.store for store in table_stores(settings)]
    stages = (
        _Stage("ktables", tuple(ktable_key(settings, store) for store in stores)),
        _Stage(
            "completeness",
            (completeness_key(settings),) if rule_checks(settings, AT_WINDOWS) else (),
        ),
    )
    if not any(stage.targets for stage in stages):
        return []
    running, stopped = dg.DefaultSensorStatus.RUNNING, dg.DefaultSensorStatus.STOPPED

    @dg.sensor(
        name=follow_up_sensor(application_id),
        target=[target for stage in stages for target in stage.targets],
        minimum_interval_seconds=EVERY_S,
        default_status=running if settings.sensors_running else stopped,
        description=(
            f"Requests the KTables of `{application_id}` for each window that closes, once all of"
            " its topics are backed up by any program; then its completeness rules."
        ),
        tags={"kstreams/app": application_id},
    )
    def follow_up(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        waiting = Waiting.parse(context.cursor).with_closed(WindowCalendar(settings.windows))
        return _Tick(settings, context.instance, stores, *stages).result(waiting)

    return [follow_up]


@dataclass(frozen=True, slots=True)
class _Stage:
    """What one run makes: its name in tags and run keys, and its assets; none: there is none."""

    name: str
    targets: tuple[dg.AssetKey, ...]


@dataclass(frozen=True, slots=True)
class _Tick:
    """One look at what is due."""

    settings: ApplicationSettings
    instance: dg.DagsterInstance
    stores: Sequence[str]
    tables: _Stage
    rules: _Stage

    def result(self, waiting: "Waiting") -> dg.SensorResult:
        """What is requested, and the cursor."""
        reasons: list[str] = []
        requests: list[dg.RunRequest] = []
        # Of the state before this tick: rules of the tables that it requests are not due.
        for_rules, unfinished = waiting.for_rules, self._unfinished(self.tables)
        first = self.tables if self.tables.targets else self.rules
        if self._is_free(first, reasons):
            waiting, ready = self._backed_up(waiting)
            requests += self._request(first, ready)
            if not ready:
                reasons.append(f"{len(waiting.windows)} windows are not backed up yet.")
            elif first is self.tables and self.rules.targets:
                waiting = replace(waiting, for_rules=(*waiting.for_rules, *ready)[-MOST_WINDOWS:])
        if for_rules and self._is_free(self.rules, reasons):
            with_tables = self._with_tables(for_rules, unfinished)
            ready = _first_range([window for window in for_rules if window in with_tables])
            requests += self._request(self.rules, ready)
            waiting = replace(waiting, for_rules=_less(waiting.for_rules, ready))
            if not ready:
                reasons.append(f"{len(for_rules)} windows have no KTables yet.")
        cursor = waiting.dump() if waiting.closed_ms is not None else None
        if requests:
            return dg.SensorResult(run_requests=requests, cursor=cursor)
        return dg.SensorResult(skip_reason=" ".join(reasons), cursor=cursor)

    def _backed_up(self, waiting: "Waiting") -> tuple["Waiting", tuple[Window, ...]]:
        """The first range of windows that are backed up, and what waits without it."""
        ledger_version = Repository.open(self.settings).ledger.version()
        if not waiting.windows or ledger_version == waiting.ledger_version:
            return waiting, ()
        statuses = window_statuses(self.settings)
        # Nothing was backed up with a window without a point: nothing follows from it.
        windows = _less(waiting.windows, {one.window for one in statuses if one.without_point})
        done = {status.window for status in statuses if status.is_backed_up}
        ready = _first_range([window for window in windows if window in done])
        seen = None if ready else ledger_version
        return replace(waiting, windows=_less(windows, ready), ledger_version=seen), ready

    def _with_tables(
        self, windows: Sequence[Window], unfinished: Sequence[dg.DagsterRun]
    ) -> Set[Window]:
        """Those of which every store has a table, but for those of runs that have not ended."""
        keys = [window.key for window in windows]
        snapshots = Repository.open(self.settings).snapshots.of(stores=self.stores, windows=keys)
        there = {(snapshot.store, snapshot.window) for snapshot in snapshots}
        ranges = [(run.tags[RANGE_START_TAG], run.tags[RANGE_END_TAG]) for run in unfinished]
        return {
            window
            for window in windows
            if all((store, window) in there for store in self.stores)
            and not any(first <= window.key <= last for first, last in ranges)
        }

    def _is_free(self, stage: _Stage, reasons: list[str]) -> bool:
        """Whether no run of it has not ended; windows that close meanwhile are then one run."""
        unfinished = self._unfinished(stage)
        if unfinished:
            reasons.append(f"Run {unfinished[0].run_id} has not ended.")
        return not unfinished

    def _unfinished(self, stage: _Stage) -> Sequence[dg.DagsterRun]:
        statuses = [dg.DagsterRunStatus.QUEUED, *IN_PROGRESS]
        tags = {
            SENSOR_NAME_TAG: follow_up_sensor(self.settings.application_id),
            **self._tags(stage),
        }
        return self.instance.get_runs(dg.RunsFilter(tags=tags, statuses=statuses), limit=1)

    def _tags(self, stage: _Stage) -> dict[str, str]:
        return {"kstreams/app": self.settings.application_id, FOLLOW_UP_TAG: stage.name}

    def _request(self, stage: _Stage, windows: Sequence[Window]) -> list[dg.RunRequest]:
        if not windows:
            return []
        first, last = windows[0].key, windows[-1].key
        request = dg.RunRequest(
            run_key=f"{self.settings.application_id}|{stage.name}|{first}|{last}",
            asset_selection=[*stage.targets],
            tags={**self._tags(stage), RANGE_START_TAG: first, RANGE_END_TAG: last},
        )
        return [request]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Windows that have closed and are still to be requested, in order: the cursor."""

    windows: tuple[Window, ...] = ()
    for_rules: tuple[Window, ...] = ()
    """Windows whose tables were requested, and whose rules were not."""
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
            windows, for_rules = (
                tuple(Window(int(b), int(e), str(key)) for b, e, key in facts.get(name, ()))
                for name in ("windows", "for_rules")
            )
            version = facts["ledger_version"]
            version = None if version is None else int(version)
            return cls(windows, for_rules, int(facts["closed_ms"]), version)
        except (ValueError, KeyError, TypeError):
            return cls()

    def dump(self) -> str:
        """The cursor as text."""
        return json.dumps(
            {
                "version": _CURSOR_VERSION,
                "windows": [(w.start_ms, w.end_ms, w.key) for w in self.windows],
                "for_rules": [(w.start_ms, w.end_ms, w.key) for w in self.for_rules],
                "closed_ms": self.closed_ms,
                "ledger_version": self.ledger_version,
            }
        )

    def with_closed(self, calendar: WindowCalendar) -> "Waiting":
        """With the windows that have closed since; of more than `MOST_WINDOWS` the newest.

        Windows of another schedule are left out.
        """
        newest = calendar.newest_closed()
        if newest is None:
            return self
        since_ms = newest.start_ms if self.closed_ms is None else self.closed_ms
        closed = calendar.closed_since(since_ms)
        waiting, for_rules = (
            tuple(window for window in windows if calendar.has_closed(window.key))
            for windows in (self.windows, self.for_rules)
        )
        return Waiting(
            (*waiting, *closed)[-MOST_WINDOWS:],
            for_rules,
            newest.end_ms,
            None if closed else self.ledger_version,
        )


def _less(windows: Iterable[Window], gone: Iterable[Window]) -> tuple[Window, ...]:
    without = {*gone}
    return tuple(window for window in windows if window not in without)


def _first_range(windows: Sequence[Window]) -> tuple[Window, ...]:
    """The first of the windows, and those that follow it without a gap."""
    found: list[Window] = []
    for window in windows:
        if found and found[-1].end_ms != window.start_ms:
            break
        found.append(window)
    return tuple(found)
