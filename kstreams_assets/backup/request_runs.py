"""What Dagster knows of an application's backup runs: those under way, and those that failed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import dagster as dg
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    RUN_KEY_TAG,
    SENSOR_NAME_TAG,
)

from kstreams_assets.backup.requests import Attempt, BackupRequest
from kstreams_assets.naming import backup_key, backups_sensor, pool
from kstreams_assets.settings import ApplicationSettings

_REMEMBERED_RUNS: Final = 200
_LAUNCH_WITHIN: Final = timedelta(minutes=2)
"""A run that was created and not submitted for so long was left behind by a killed daemon."""
_RETRY_WITHIN: Final = timedelta(minutes=10)
_APP_TAG: Final = "kstreams/app"
_WAREHOUSE_TAG: Final = "kstreams/warehouse"
_RETRY_TAG: Final = "kstreams/retry"
PARTLY_DONE_TAG: Final = "kstreams/partly-done"
"""On a failed run that has backed up all topics but some that could not be read."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Something that may still back up windows: no run is to be requested beside it.

    `left_behind` is set where a run was created and never submitted: it is to be requested again.
    """

    reason: str
    left_behind: dg.RunRequest | None = None


@dataclass(frozen=True, slots=True)
class BackupRuns:
    """Runs of one application's backups in a Dagster instance."""

    settings: ApplicationSettings
    instance: dg.DagsterInstance

    def under_way(self, now: datetime) -> UnderWay | None:
        """What has not ended yet, whoever started it; None when nothing is under way."""
        records = self.instance.get_run_records(
            filters=dg.RunsFilter(statuses=list(NOT_FINISHED_STATUSES))
        )
        for record in records:
            run = record.dagster_run
            if not self._writes_these_backups(run):
                continue
            is_old = now - record.create_timestamp > _LAUNCH_WITHIN
            if run.status is dg.DagsterRunStatus.NOT_STARTED and is_old:
                if self._is_own(run):
                    return UnderWay(f"Run {run.run_id} was never submitted.", self._again(run))
                continue
            return UnderWay(
                f"Run {run.run_id} of these backups has not ended ({run.status.value})."
            )
        return self._about_to_be_retried(now) or self._backfill()

    def attempts(self) -> list[Attempt]:
        """Ended runs of the sensor, those that bear on what is requested next."""
        succeeded = [dg.DagsterRunStatus.SUCCESS]
        records = {
            record.storage_id: record
            for record in (
                *self._failed(),
                *self._own(succeeded, {_RETRY_TAG: "true"}),
                *self._own(succeeded, limit=1),
            )
        }
        return [_attempt(record) for record in records.values()]

    def of_key(self, run_key: str) -> Sequence[dg.RunRecord]:
        """The runs that a run key has: none or one, unless Dagster retried it."""
        return self._own([], {RUN_KEY_TAG: run_key})

    def run_request(self, request: BackupRequest, run_key: str) -> dg.RunRequest:
        """One run for a range of windows, with the tags that the questions above look for."""
        application_id = self.settings.application_id
        return dg.RunRequest(
            run_key=run_key,
            asset_selection=[backup_key(application_id, t) for t in sorted(request.topics)],
            tags={
                **self._tags,
                **({_RETRY_TAG: "true"} if request.attempt > 1 else {}),
                ASSET_PARTITION_RANGE_START_TAG: request.windows[0].key,
                ASSET_PARTITION_RANGE_END_TAG: request.windows[-1].key,
            },
        )

    @property
    def _tags(self) -> dict[str, str]:
        """The same application may be backed up to two warehouses by one Dagster."""
        return {
            _APP_TAG: self.settings.application_id,
            _WAREHOUSE_TAG: str(self.settings.warehouse.root),
        }

    @property
    def _own_tags(self) -> dict[str, str]:
        return {**self._tags, SENSOR_NAME_TAG: backups_sensor(self.settings.application_id)}

    def _own(
        self,
        statuses: Iterable[dg.DagsterRunStatus],
        tags: Mapping[str, str] | None = None,
        *,
        limit: int = _REMEMBERED_RUNS,
    ) -> Sequence[dg.RunRecord]:
        """Runs that the sensor requested, the newest first."""
        return self.instance.get_run_records(
            filters=dg.RunsFilter(statuses=list(statuses), tags={**self._own_tags, **(tags or {})}),
            limit=limit,
        )

    def _failed(self) -> Sequence[dg.RunRecord]:
        return self._own([dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED])

    def _is_own(self, run: dg.DagsterRun) -> bool:
        return RUN_KEY_TAG in run.tags and self._own_tags.items() <= run.tags.items()

    def _writes_these_backups(self, run: dg.DagsterRun) -> bool:
        pools = run.run_op_concurrency.all_pools if run.run_op_concurrency else None
        if pools and pool(self.settings.application_id) in pools:
            return True
        return self._are_these_backups(run.asset_selection or ())

    def _are_these_backups(self, keys: Iterable[dg.AssetKey]) -> bool:
        return any(key.path[:2] == ["backup", self.settings.application_id] for key in keys)

    def _again(self, run: dg.DagsterRun) -> dg.RunRequest:
        """Dagster submits the run that it has when it sees the run key again."""
        added_by_dagster = ("dagster/", ".dagster/")
        kept = {ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG}
        return dg.RunRequest(
            run_key=run.tags[RUN_KEY_TAG],
            asset_selection=sorted(run.asset_selection or ()),
            tags={
                tag: value
                for tag, value in run.tags.items()
                if tag in kept or not tag.startswith(added_by_dagster)
            },
        )

    def _about_to_be_retried(self, now: datetime) -> UnderWay | None:
        """A run whose process died and that Dagster will run again by itself."""
        for record in self._failed():
            run = record.dagster_run
            is_recent = now - record.update_timestamp < _RETRY_WITHIN
            if run.is_complete_and_waiting_to_retry and is_recent:
                return UnderWay(f"Dagster is about to retry run {run.run_id}.")
        return None

    def _backfill(self) -> UnderWay | None:
        """A backfill that was started by hand and may not have created its run yet."""
        going = self.instance.get_backfills(
            filters=BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED])
        )
        for backfill in going:
            if self._are_these_backups(backfill.asset_selection or ()):
                return UnderWay(f"Backfill {backfill.backfill_id} of these backups goes on.")
        return None


def _attempt(record: dg.RunRecord) -> Attempt:
    tags = record.dagster_run.tags
    ended_s = record.end_time or record.update_timestamp.timestamp()
    return Attempt(
        first=tags.get(ASSET_PARTITION_RANGE_START_TAG, ""),
        last=tags.get(ASSET_PARTITION_RANGE_END_TAG, ""),
        ended_at_ms=round(ended_s * 1000),
        succeeded=record.dagster_run.status is dg.DagsterRunStatus.SUCCESS,
        again=_RETRY_TAG in tags,
        partly_done=PARTLY_DONE_TAG in tags,
    )
