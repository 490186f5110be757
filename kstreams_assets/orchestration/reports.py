"""The sensor that gives Dagster what the ledger has and Dagster has not.

Windows are backed up outside of Dagster (command line, cron), or by runs that were killed before
they could report; and Dagster's database may be lost. Each recording of a window is looked for
among Dagster's events; if it is not there, it gets the events and checks that a run would have
given it, without a run.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import dagster as dg

from kstreams_assets.app.model import AppTopic
from kstreams_assets.backup.recorded import recorded_backups
from kstreams_assets.backup.report import TopicReport, WindowReport
from kstreams_assets.backup.result import WindowBackup
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.model.recordings import Recording
from kstreams_assets.model.spans import Window
from kstreams_assets.model.tables import Lock
from kstreams_assets.orchestration.backup import backup_event, topic_checks
from kstreams_assets.orchestration.check_events import window_evaluation
from kstreams_assets.orchestration.keys import backup_key, reports_sensor
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings

EVERY_S: Final = 30
REPORT_S: Final = 20.0
"""A tick of a sensor may take a minute."""
_LOCK_WAIT_S: Final = 10.0
_WINDOWS_AT_ONCE: Final = 50
_EVENTS_AT_ONCE: Final = 1_000
_CURSOR_VERSION: Final = 1
_RUN: Final = "backed_up_by_run"
_RECORDED_AT: Final = "recorded_at"


def build_reports_sensor(settings: ApplicationSettings) -> dg.SensorDefinition:
    """The sensor that reports windows; always on from the start, since it only reads tables."""
    application_id = settings.application_id

    @dg.sensor(
        name=reports_sensor(application_id),
        minimum_interval_seconds=EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Reports windows of `{application_id}` that the ledger has and Dagster has not, with"
            " their checks: those of the command line and of runs that were killed, and all of them"
            " after Dagster's database was lost."
        ),
        tags={"kstreams/app": application_id},
    )
    def reports(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        if not settings.warehouse.control("windows").exists():
            return dg.SensorResult(skip_reason="Nothing is backed up yet.")
        # Two daemons may look in the same instant; one after the other, they see each other.
        repo = Repository.open(settings)
        with repo.lock(Lock.REPORTS_SENSOR, purpose="reports sensor", wait_s=_LOCK_WAIT_S):
            report = Reporter(settings, context.instance).report(Position.parse(context.cursor))
        return dg.SensorResult(skip_reason=report.describe(), cursor=report.position.dump())

    return reports


@dataclass(frozen=True, slots=True)
class Position:
    """How far the ledger has been compared with Dagster's events.

    Dagster keeps it with the events: where they are lost, it is lost, and all is compared again.
    """

    ledger_version: int
    begins_ms: int | None
    """Windows of this version of the ledger that begin at or after this are still to be compared;
    None: no windows."""

    @classmethod
    def parse(cls, text: str | None) -> "Position | None":
        """The position of the last tick; None where it cannot be read: all is compared again."""
        try:
            facts = json.loads(text or "")
            if facts["version"] != _CURSOR_VERSION:
                return None
            begins_ms = facts["begins_ms"]
            return cls(int(facts["ledger_version"]), None if begins_ms is None else int(begins_ms))
        except (ValueError, KeyError, TypeError):
            return None

    def dump(self) -> str:
        """The position as text."""
        return json.dumps({"version": _CURSOR_VERSION, **asdict(self)})


@dataclass(frozen=True, slots=True)
class Report:
    """What one call has reported (keys of windows), how many it left, where the next goes on."""

    position: Position
    reported: Sequence[str] = ()
    left: int = 0

    def describe(self) -> str:
        """The report in one or two sentences."""
        parts: list[str] = []
        if self.reported:
            parts.append(
                f"Reported {len(self.reported)} windows, {min(self.reported)} to"
                f" {max(self.reported)}."
            )
        if self.left:
            parts.append(f"{self.left} are left to a later tick, or to the run that backs them up.")
        return " ".join(parts) or "Dagster has every window that is backed up."


@dataclass(frozen=True, slots=True)
class Reporter:
    """Compares the ledger of one application with one Dagster instance, and reports."""

    settings: ApplicationSettings
    instance: dg.DagsterInstance

    def report(self, position: Position | None, *, limit_s: float = REPORT_S) -> Report:
        """Report what is missing from a position on, the oldest windows first.

        Oldest first, so that what Dagster shows as the latest is the newest window in the end.
        After `limit_s` seconds the rest is left to the next call. Each call gets on, by one topic
        of a window at least.
        """
        deadline = time.monotonic() + limit_s
        version = (
            self._repo.ledger.version()
        )  # before its rows are read, so that none is passed over
        begins_ms = self._begins_ms(position, version)
        if begins_ms is None:
            return Report(Position(version, None))
        calendar = WindowCalendar(self.settings.windows)
        recordings = [
            recording
            for recording in self._repo.ledger.recordings(self._topics, begins_ms=begins_ms)
            if calendar.has_closed(recording.window.key)  # others are of another schedule
        ]
        reported: list[str] = []
        left = self._report(recordings, deadline, reported)
        begins_ms = min((window.start_ms for window in left), default=None)
        return Report(Position(version, begins_ms), reported, len(left))

    def _begins_ms(self, position: Position | None, version: int) -> int | None:
        """From which window on to compare: where the last call stopped, or an older new one."""
        if position is None:
            return 0
        begins = [position.begins_ms]
        if version != position.ledger_version:
            begins.append(
                self._repo.ledger.first_recorded_since(position.ledger_version, self._topics)
            )
        return min((begins_ms for begins_ms in begins if begins_ms is not None), default=None)

    @property
    def _repo(self) -> Repository:
        return Repository.open(self.settings)

    @property
    def _topics(self) -> Mapping[str, AppTopic]:
        return {topic.name: topic for topic in self.settings.topics}

    def _report(
        self, recordings: Sequence[Recording], deadline: float, reported: list[str]
    ) -> set[Window]:
        """Report what is missing of these, noted in `reported`; the windows that are left."""
        windows = sorted({recording.window for recording in recordings})
        left: set[Window] = set()
        got_on = False
        for first in range(0, len(windows), _WINDOWS_AT_ONCE):
            if first and time.monotonic() >= deadline:
                return left | {*windows[first:]}
            batch = {*windows[first : first + _WINDOWS_AT_ONCE]}
            missing, going_on = self._missing([r for r in recordings if r.window in batch])
            left |= {recording.window for recording in going_on}
            for backup, wanted in self._recorded(missing):
                for topic in WindowReport.of(backup, self.settings.application).topics:
                    recording = wanted.get(topic.backup.topic)
                    if recording is None:
                        continue
                    if got_on and time.monotonic() >= deadline:
                        return left | {window for window in windows if window >= backup.window}
                    self._report_topic(topic, recording)
                    got_on = True
                reported.append(backup.window.key)
        return left

    def _missing(self, recordings: Sequence[Recording]) -> tuple[list[Recording], list[Recording]]:
        """Those of which Dagster has no events, and those whose run may still write them."""
        # Runs are looked at before events: one that ends in between has written its events.
        run_ids = sorted({recording.run_id for recording in recordings})
        runs = self.instance.get_runs(dg.RunsFilter(run_ids=run_ids))
        going_on = {run.run_id for run in runs if not run.is_finished}
        by_topic: dict[str, list[Recording]] = {}
        for recording in recordings:
            by_topic.setdefault(recording.topic, []).append(recording)
        missing = [
            recording
            for topic, of_topic in by_topic.items()
            for recording in self._not_told(topic, of_topic)
        ]
        return (
            [recording for recording in missing if recording.run_id not in going_on],
            [recording for recording in missing if recording.run_id in going_on],
        )

    def _not_told(self, topic: str, recordings: Sequence[Recording]) -> list[Recording]:
        """Those that have no event, or whose last check was not evaluated after it.

        A process that is killed while it reports leaves events without checks.
        """
        key = backup_key(self.settings, topic)
        windows = [recording.window.key for recording in recordings]
        last_check = dg.AssetCheckKey(key, [*topic_checks(self._topics[topic])][-1])
        evaluated = {
            info.partition_key: info.latest_check_event_storage_id
            for info in self.instance.event_log_storage.get_asset_check_partition_info(
                [last_check], partition_keys=windows
            )
        }
        told = {
            _identity(record)
            for record in self._records(key, windows)
            if evaluated.get(record.partition_key, -1) > record.storage_id
        }
        return [
            recording
            for recording in recordings
            if told.isdisjoint(
                (recording.window.key, recording.run_id, at_ms)
                for at_ms in (None, recording.recorded_at_ms)
            )
        ]

    def _records(self, key: dg.AssetKey, windows: Sequence[str]) -> Iterator[dg.EventLogRecord]:
        wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=windows)
        for fetch in (self.instance.fetch_materializations, self.instance.fetch_observations):
            cursor: str | None = None
            while True:
                found = fetch(wanted, _EVENTS_AT_ONCE, cursor)
                yield from found.records
                if not found.has_more:
                    break
                cursor = found.cursor

    def _recorded(
        self, missing: Sequence[Recording]
    ) -> list[tuple[WindowBackup, Mapping[str, Recording]]]:
        """The windows of these, with all their topics: checks look at the others, too."""
        if not missing:
            return []
        recorded = self._repo.ledger.of_windows({recording.window.key for recording in missing})
        # What was recorded again since is left to the next call: its run may go on.
        still = {*missing} & {Recording.of(rows) for rows in recorded.values()}
        return [
            (backup, {one.topic: one for one in still if one.window == backup.window})
            for backup in recorded_backups(self.settings, recorded)
        ]

    def _report_topic(self, topic: TopicReport, recording: Recording) -> None:
        """The event of one topic in one window, then its checks."""
        key = backup_key(self.settings, topic.backup.topic)
        source = {
            _RUN: self._run(recording.run_id),
            _RECORDED_AT: dg.MetadataValue.timestamp(recording.recorded_at_ms / 1000),
        }
        self.instance.report_runless_asset_event(backup_event(key, topic, source))
        for verdict in topic.checks:
            self._evaluate(window_evaluation(key, verdict.check, verdict), recording.run_id)

    def _evaluate(self, evaluation: dg.AssetCheckEvaluation, run_id: str) -> None:
        """Report a check; without a run only where the partition has no evaluation yet.

        Dagster's database takes one evaluation without a run of each check and partition. A later
        one has to have the id of a run: that which recorded the window.
        """
        partition = [evaluation.partition] if evaluation.partition else None
        earlier = self.instance.event_log_storage.get_asset_check_partition_info(
            [evaluation.asset_check_key], partition_keys=partition
        )
        if not earlier:
            self.instance.report_runless_asset_event(evaluation)
            return
        event = dg.DagsterEvent(
            event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION.value,
            job_name="",  # as Dagster itself names that of an event without a run
            event_specific_data=evaluation,
        )
        self.instance.report_dagster_event(event, run_id)

    def _run(self, run_id: str) -> dg.MetadataValue:
        """A link where it leads to a run."""
        is_here = self.instance.has_run(run_id)
        return dg.MetadataValue.dagster_run(run_id) if is_here else dg.MetadataValue.text(run_id)


def _identity(record: dg.EventLogRecord) -> tuple[str | None, str, int | None]:
    """Which recording an event is about: window, run, and when, where its run did not write it."""
    if record.run_id:
        return record.partition_key, record.run_id, None
    event = record.asset_materialization or record.asset_observation
    metadata = event.metadata if event else {}
    run, at = metadata.get(_RUN), metadata.get(_RECORDED_AT)
    at_s = at.value if isinstance(at, dg.TimestampMetadataValue) else 0.0
    return record.partition_key, str(run.value if run else ""), round(at_s * 1000)
