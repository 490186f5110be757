"""The status of followers. Light: commands that need no brokers read it."""

import json
import time
from dataclasses import dataclass, fields
from typing import Final

from kstreams_assets.layout import Warehouse
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath

_LONGEST_AGE_S: Final = 60
_NEWS_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """What a follower reports about itself; times in epoch milliseconds.

    `covered_at_ms` is when the newest covered point was taken: a loss of the cluster costs what
    came after it. `failures` counts those in a row, `problem` is the last one. `executor` is where
    the newest step read: `python` (its own process) or `spark`. `catching_up` says how far a long
    backup is, such as `First backup: 34 % read, about 2 h left.` `told_at_ms` is when this status
    was written.
    """

    application_id: str
    pid: int
    host: str
    started_at_ms: int
    stepped_at_ms: int | None = None
    ended_at_ms: int | None = None
    covered_point: str | None = None
    covered_at_ms: int | None = None
    guarantee: str | None = None
    steps: int = 0
    records: int = 0
    step_s: float = 0.0
    pause_s: float = 0.0
    executor: str | None = None
    failures: int = 0
    problem: str = ""
    catching_up: str = ""
    told_at_ms: int | None = None

    def trouble(self, longest_s: float) -> str:
        """Return why it cannot be relied on; empty if the newest covered point is young enough."""
        now = now_ms()
        reason = "".join(f" {text}" for text in (self.catching_up, self.problem) if text)
        if self.ended_at_ms is not None:
            return f"It has ended.{reason}"
        if self.covered_at_ms is None:
            waited_s = (now - self.started_at_ms) / 1000
            return f"No point is covered yet.{reason}" if waited_s > longest_s or reason else ""
        age_s = (now - self.covered_at_ms) / 1000
        if age_s <= longest_s:
            return ""
        return f"The newest covered point is {age_s:.0f} s old, over {longest_s:.0f} s.{reason}"


def status_of(warehouse: Warehouse, application_id: str) -> FollowerStatus | None:
    """Return the last status of an application's follower, None if there never was one."""
    try:
        stored = json.loads(status_file(warehouse, application_id).read_text())
        # Another release may write other fields.
        known = {one.name: stored[one.name] for one in fields(FollowerStatus) if one.name in stored}
        return FollowerStatus(**known)
    except (FileNotFoundError, ValueError, TypeError):
        return None


def trouble_of(settings: ApplicationSettings) -> str:
    """Return the problem of an application's follower; empty if it follows."""
    status = status_of(settings.warehouse, settings.application_id)
    if status is None:
        return "No follower has run here."
    return status.trouble(longest_age_s(settings))


def longest_age_s(settings: ApplicationSettings) -> float:
    """Return the longest allowed age (s) of the newest covered point: the objective, or 60 s."""
    return settings.recovery_points.objective_seconds or _LONGEST_AGE_S


def catching_up(warehouse: Warehouse, application_id: str) -> str:
    """Return how far a follower with much to read is; empty if there is none."""
    status = status_of(warehouse, application_id)
    if status is None or status.ended_at_ms is not None or status.told_at_ms is None:
        return ""
    is_news = now_ms() - status.told_at_ms < 1000 * _NEWS_S
    return status.catching_up if is_news else ""


def status_file(warehouse: Warehouse, application_id: str) -> StorePath:
    """Return the path of the status of an application's follower."""
    return warehouse.lock_file(f"followers/{application_id}").with_suffix(".json")


def now_ms() -> int:
    """Return the present time, epoch milliseconds."""
    return time.time_ns() // 1_000_000
