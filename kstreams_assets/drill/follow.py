"""Follows a drilled application from its start until its lag is zero, in bounded time."""

import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from kstreams_assets.drill.process import DrilledApplication
from kstreams_assets.drill.report import Failure, LagSample, Phase
from kstreams_assets.drill.settings import DrillSettings
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.restore.restores_table import StoredRestore
from kstreams_assets.restore.watch import follow
from kstreams_assets.restore.watch_signs import Assessment, Health, Limits
from kstreams_assets.settings import ApplicationSettings

_EVERY_S: Final = 0.5
_SLACK_S: Final = 60.0


@dataclass(slots=True)
class Follower:
    """Looks at the group and the process twice a second.

    `caught_up_s` is set once the application has caught up: from its start to the first look of
    those, without a gap to the last, at which nothing was left to be processed. `lag` and
    `waiting` (records that had not been processed before the start) are filled in meanwhile.
    """

    settings: ApplicationSettings
    restore: StoredRestore
    cluster: KafkaCluster
    log: Callable[[str], None]
    caught_up_s: float | None = None
    waiting: int | None = None
    waiting_counted: bool = True
    lag: list[LagSample] = field(default_factory=list)
    _zero_since_s: float | None = None
    _told: str = ""

    def before_start(self) -> None:
        """Count what waits for the application."""
        with closing(self._assessments()) as assessments:
            first = next(assessments)
        self.waiting, self.waiting_counted = first.records_left, first.counted

    def until_running(self, application: DrilledApplication) -> Failure | None:
        """Wait for RUNNING; why it was not reached."""
        drill = self.settings.drill
        for seen in self._looks(application):
            if application.running_s is not None:
                return None
            failure = self._ended(application, seen, Phase.START)
            if failure is not None:
                return failure
            if time.monotonic() - application.started_s > drill.start_timeout_s:
                return Failure(Phase.START, _never_running(drill, seen))
        return None

    def until_caught_up(self, application: DrilledApplication) -> Failure | None:
        """Wait until nothing is left to be processed; why that was not reached."""
        drill = self.settings.drill
        began_s = time.monotonic()
        for seen in self._looks(application):
            if self._is_caught_up(application, seen):
                return None
            failure = self._ended(application, seen, Phase.CATCH_UP)
            if failure is not None:
                return failure
            if time.monotonic() - began_s > drill.catch_up_timeout_s:
                return Failure(Phase.CATCH_UP, _never_caught_up(drill, seen))
        return None

    def _looks(self, application: DrilledApplication) -> Generator[Assessment, None, None]:
        """Assessments without end: `follow` ends when a first goal is reached, more may follow."""
        while True:
            with closing(self._assessments()) as assessments:
                for seen in assessments:
                    self._note(application, seen)
                    yield seen

    def _assessments(self) -> Generator[Assessment, None, None]:
        drill = self.settings.drill
        longest_s = drill.start_timeout_s + drill.catch_up_timeout_s + _SLACK_S
        limits = Limits(
            every_s=_EVERY_S,
            timeout_s=longest_s,
            not_started_after_s=longest_s,
            not_stable_after_s=longest_s,
            # how long that may last is the drill's own limit
            not_moving_after_s=longest_s,
        )
        return follow(self.settings, self.restore, self.cluster, limits=limits)

    def _note(self, application: DrilledApplication, seen: Assessment) -> None:
        at_s = time.monotonic() - application.started_s
        self.lag.append(LagSample(at_s, seen.records_left, seen.counted))
        nothing_left = seen.observation.is_stable and seen.counted and seen.records_left == 0
        if not nothing_left:
            self._zero_since_s = None
        elif self._zero_since_s is None:
            self._zero_since_s = at_s
        told = str(seen)
        if told != self._told:
            self._told = told
            self.log(f"{at_s:.1f} s after its start the application is {told}.")

    def _is_caught_up(self, application: DrilledApplication, seen: Assessment) -> bool:
        if seen.health is not Health.HEALTHY or self._zero_since_s is None:
            return False
        # Lag was zero before RUNNING was said: then it is RUNNING that was waited for.
        self.caught_up_s = max(self._zero_since_s, application.running_s or 0.0)
        return True

    def _ended(
        self, application: DrilledApplication, seen: Assessment, phase: Phase
    ) -> Failure | None:
        code = application.exit_code
        if code is not None:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            last = next((line for line in reversed(application.last_lines()) if line.strip()), "")
            said = f" Its last line: {last.strip()}." if last else " It wrote nothing."
            when = "before it was RUNNING" if phase is Phase.START else "before it had caught up"
            return Failure(
                phase,
                f"The application {how} {when}.{said} Read lastLines in the report, and correct"
                " drill.command, its environment or the application.",
            )
        if seen.health is Health.UNHEALTHY:
            troubles = " ".join(str(t) for t in seen.troubles if t.is_fatal)
            return Failure(phase, f"The application is not well: {troubles}")
        return None


def _never_running(drill: DrillSettings, seen: Assessment) -> str:
    return (
        f"The application was not RUNNING within {drill.start_timeout_s:g} s: no line of its output"
        f" matched {drill.running_line!r} (last seen: {seen}). Read lastLines in the report; if it"
        " runs, correct drill.running_line or the level of its log, if it needs longer, raise"
        " drill.start_timeout_seconds."
    )


def _never_caught_up(drill: DrillSettings, seen: Assessment) -> str:
    return (
        f"The application had not caught up within {drill.catch_up_timeout_s:g} s of RUNNING (last"
        f" seen: {seen}). See its log for errors about records; if it only needs longer, raise"
        " drill.catch_up_timeout_seconds."
    )
