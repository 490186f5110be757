"""The sensor that requests backup runs of windows that have ended."""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import dagster as dg

from kstreams_assets.backup.requests import (
    BackupRequest,
    Paused,
    RequestClaim,
    claim_file,
    next_request,
    pause_s,
    read_claim,
    window_statuses,
    write_claim,
)
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.model.tables import Lock
from kstreams_assets.orchestration.backup import BackupRuns
from kstreams_assets.orchestration.keys import backup_key, backups_sensor
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings

EVERY_S: Final = 30
_LOCK_WAIT_S: Final = 10.0
_CURSOR_VERSION: Final = 1
_SOMETHING_TO_DO: Final = json.dumps({"version": _CURSOR_VERSION})
"""A cursor that no look ends with; Dagster takes an empty one for no change."""


def build_backup_sensor(settings: ApplicationSettings) -> dg.SensorDefinition:
    """The sensor of an application's backups, on from the start if the settings say so."""
    application_id = settings.application_id
    running, stopped = dg.DefaultSensorStatus.RUNNING, dg.DefaultSensorStatus.STOPPED

    @dg.sensor(
        name=backups_sensor(application_id),
        target=[backup_key(settings, topic.name) for topic in settings.topics],
        minimum_interval_seconds=EVERY_S,
        default_status=running if settings.sensors_running else stopped,
        description=(
            f"Requests one run for the closed windows of `{application_id}` that are not backed up:"
            " the oldest first, one run at a time, windows that failed again after a pause."
        ),
        tags={"kstreams/app": application_id},
    )
    def backups(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        # Two daemons may ask in the same instant; one after the other, they see each other.
        repo = Repository.open(settings)
        with repo.lock(Lock.BACKUP_SENSOR, purpose="backup sensor", wait_s=_LOCK_WAIT_S):
            return _Tick(settings, BackupRuns(settings, context.instance), context.cursor).result()

    return backups


@dataclass(frozen=True, slots=True)
class _Tick:
    """One look at what is due."""

    settings: ApplicationSettings
    runs: BackupRuns
    cursor: str | None

    def result(self) -> dg.SensorResult:
        began = _now()
        nothing_due = self._nothing_due()
        if nothing_due == self.cursor:
            return _wait("No window has closed since the last look.", cursor=nothing_due)
        # Runs are looked at before the ledger: one that ends in between has written the ledger.
        under_way = self.runs.under_way(began)
        if under_way is not None:
            if under_way.left_behind is None:
                return _wait(under_way.reason)
            return _request(under_way.left_behind)
        attempts = self.runs.attempts()
        now_ms = round(began.timestamp() * 1000)
        request = next_request(window_statuses(self.settings), attempts, now_ms=now_ms)
        if request is None:
            return _wait("Every closed window is backed up.", cursor=nothing_due)
        if isinstance(request, Paused):
            again = datetime.fromtimestamp(request.until_ms / 1000, tz=UTC)
            return _wait(
                f"Windows that failed: {request.windows}. They are tried again from"
                f" {again:%H:%M:%S} UTC on; the failed runs say why."
            )
        return self._claimed(request, began, now_ms)

    def _claimed(self, request: BackupRequest, began: datetime, now_ms: int) -> dg.SensorResult:
        path = claim_file(self.settings.warehouse, self.settings.application_id)
        claim = read_claim(path)
        if claim and claim.counts_at(now_ms) and not self.runs.of_key(claim.run_key):
            return _wait(f"Dagster is about to start the run {claim.run_key}.")
        run_key = self._run_key(request, began)
        if run_key is None:
            return _wait("A run of these windows has ended a short while ago.")
        write_claim(path, RequestClaim(run_key, now_ms))
        return _request(self.runs.run_request(request, run_key))

    def _run_key(self, request: BackupRequest, began: datetime) -> str | None:
        """A key that no run has; None when a run of these windows ended a short while ago.

        Windows are due although a run of them succeeded when a further topic was selected since,
        or when that run ended after the ledger was read.
        """
        first, last = request.windows[0].key, request.windows[-1].key
        attempt = request.attempt
        while True:
            run_key = f"{self.settings.application_id}|{first}|{last}|{attempt}"
            records = self.runs.of_key(run_key)
            if not records:
                return run_key
            pause = timedelta(seconds=pause_s(attempt))
            if any(began - record.update_timestamp < pause for record in records):
                return None
            attempt += 1

    def _nothing_due(self) -> str:
        """The cursor that a look leaves which finds nothing due now.

        Until another window closes or another topic is selected, there is no need to look again.
        """
        newest = WindowCalendar(self.settings.windows).newest_closed()
        topics = "\n".join(sorted(topic.name for topic in self.settings.topics))
        return json.dumps(
            {
                "version": _CURSOR_VERSION,
                "backed_up_to": newest.key if newest else None,
                "warehouse": str(self.settings.warehouse.root),
                "topics": hashlib.sha256(topics.encode()).hexdigest()[:16],
            }
        )


def _now() -> datetime:
    return datetime.now(tz=UTC)


def _wait(reason: str, *, cursor: str = _SOMETHING_TO_DO) -> dg.SensorResult:
    return dg.SensorResult(skip_reason=reason, cursor=cursor)


def _request(request: dg.RunRequest) -> dg.SensorResult:
    return dg.SensorResult(run_requests=[request], cursor=_SOMETHING_TO_DO)
