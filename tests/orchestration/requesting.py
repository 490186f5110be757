"""An application whose windows close without a broker, a Dagster instance, and its sensor."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import dagster as dg
from dagster._core.events import DagsterEvent, DagsterEventType, JobFailureData, RunFailureReason
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    RUN_KEY_TAG,
    SENSOR_NAME_TAG,
)
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from kstreams_assets.app.model import AppTopic, Store, TopicRole, TopicRoles
from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.spans import Gap, GapCause
from kstreams_assets.orchestration import backup_sensor as sensor
from kstreams_assets.orchestration.keys import backups_sensor
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from tests.backup.samples import APPLICATION_ID, application, backup, cut, point, result, span
from tests.clock import freeze_time
from tests.orchestration.default_keys import backup_key

TOPICS = tuple(AppTopic(name, TopicRoles({TopicRole.INPUT})) for name in ("t", "u"))
FIRST = datetime(2026, 10, 20, tzinfo=UTC)
SCHEDULE = WindowSchedule.every("minute", start=f"{FIRST:%Y-%m-%d}")
ROOT = Path(__file__).resolve().parents[2]
JOB_ORIGIN = RemoteJobOrigin(
    RemoteRepositoryOrigin(
        InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="none")), "none"
    ),
    "none",
)
"""Queued runs need one; nothing here loads it."""


def settings_of(
    root: Path, *, topics: tuple[AppTopic, ...] = TOPICS, stores: tuple[Store, ...] = ()
) -> ApplicationSettings:
    """Two inputs, windows of a minute, sensors on, a broker that is not there."""
    return ApplicationSettings(
        application=replace(application(*topics), stores=stores),
        topics=topics,
        connection=KafkaConnection(bootstrap_servers="127.0.0.1:1", request_timeout_seconds=1),
        warehouse=Warehouse(root),
        windows=SCHEDULE,
        sensors_running=True,
    )


def key(index: int) -> str:
    """The key of a window by its number."""
    return f"{FIRST + timedelta(minutes=index):%Y-%m-%d-%H:%M}"


def indices(request: dg.RunRequest) -> range:
    """The numbers of the windows that a request is for."""
    first, last = (
        datetime.strptime(request.tags[tag], "%Y-%m-%d-%H:%M").replace(tzinfo=UTC)
        for tag in (ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG)
    )
    minute = timedelta(minutes=1)
    return range((first - FIRST) // minute, (last - FIRST) // minute + 1)


def take_first_point(root: Path) -> None:
    """The recovery point from which on windows are due: in window 0."""
    taken_at_ms = round(FIRST.timestamp() * 1000) + 1_000
    Repository(Warehouse(root), APPLICATION_ID).points.append(point(taken_at_ms, cut(0, 5)))


def record(
    root: Path,
    windows: Iterable[int],
    *,
    topics: Iterable[str] = ("t", "u"),
    run_id: str = "run-1",
    lost: Iterable[int] = (),
    empty: Iterable[int] = (),
) -> None:
    """Write windows into the ledger; of some, topic `t` has lost four records, or all are empty."""
    calendar = WindowCalendar(SCHEDULE)
    found = calendar.windows(key(index) for index in windows)
    without, nothing = {key(index) for index in lost}, {key(index) for index in empty}
    gap = Gap(GapCause.RETENTION, 0, 4, 4)
    backups = [
        replace(
            backup(
                result(
                    replace(span(5 if window.key in nothing else 0, 5, topic=topic), window=window),
                    *([gap] if topic == "t" and window.key in without else []),
                ),
                topic=topic,
            ),
            window=window,
        )
        for window in found
        for topic in topics
    ]
    Ledger(Warehouse(root), APPLICATION_ID).record(backups, run_id=run_id)


@contextmanager
def instance_at(home: Path) -> Iterator[dg.DagsterInstance]:
    """A persistent instance with the settings of this repository: runs are queued."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "dagster.yaml").exists():
        shutil.copy(ROOT / "dagster.yaml", home / "dagster.yaml")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def queue(
    instance: dg.DagsterInstance,
    definitions: dg.Definitions,
    request: dg.RunRequest,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.QUEUED,
) -> dg.DagsterRun:
    """A run of these assets, with their pools, as the daemon puts it into Dagster's queue."""
    keys = frozenset(request.asset_selection or ())
    job = definitions.resolve_implicit_global_asset_job_def().get_subset(asset_selection=keys)
    return instance.create_run_for_job(
        job,
        status=status,
        asset_selection=keys,
        tags=dict(request.tags),
        remote_job_origin=JOB_ORIGIN,
    )


@dataclass
class Bench:
    """The sensor on one instance at a time that the test chooses."""

    root: Path
    instance: dg.DagsterInstance
    minutes: float = 0.5
    """Time since the first window began; a window is closed when its minute is over."""
    cursor: str | None = None
    topics: tuple[AppTopic, ...] = TOPICS
    stores: tuple[Store, ...] = ()

    def __post_init__(self) -> None:
        take_first_point(self.root)

    @property
    def now(self) -> datetime:
        """What the clock says."""
        return FIRST + timedelta(minutes=self.minutes)

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Dagster's clock and the sensor's show the bench's time."""
        with freeze_time(self.now), mock.patch.object(sensor, "_now", return_value=self.now):
            yield

    def tick(self) -> dg.RunRequest | str:
        """One tick: what it requests, or why nothing."""
        settings = settings_of(self.root, topics=self.topics, stores=self.stores)
        backups = sensor.build_backup_sensor(settings)
        context = dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, sensor_name=backups.name
        )
        with self.clock():
            data = backups.evaluate_tick(context)
        self.cursor = data.cursor
        if not data.run_requests:
            assert data.skip_message
            return data.skip_message
        [request] = data.run_requests
        return request

    def request(self) -> dg.RunRequest:
        """One tick that must request a run."""
        found = self.tick()
        assert isinstance(found, dg.RunRequest), found
        return found

    def reason(self) -> str:
        """One tick that must request nothing."""
        found = self.tick()
        assert isinstance(found, str), found
        return found

    def start(
        self,
        request: dg.RunRequest,
        status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
    ) -> dg.DagsterRun:
        """What the daemon does with a request."""
        assert request.run_key is not None
        with self.clock():
            return create_run_for_test(
                self.instance,
                status=status,
                tags={
                    **request.tags,
                    RUN_KEY_TAG: request.run_key,
                    SENSOR_NAME_TAG: backups_sensor(APPLICATION_ID),
                },
                asset_selection=frozenset(request.asset_selection or ()),
            )

    def end(self, run: dg.DagsterRun, *, succeeded: bool) -> None:
        """The run ends now."""
        kind = DagsterEventType.RUN_SUCCESS if succeeded else DagsterEventType.RUN_FAILURE
        why = None if succeeded else JobFailureData(None, RunFailureReason.STEP_FAILURE)
        event = DagsterEvent(kind.value, run.job_name, event_specific_data=why)
        with self.clock():
            self.instance.report_dagster_event(event, run.run_id)

    def back_up(self, request: dg.RunRequest) -> None:
        """A run of the request that succeeds."""
        run = self.start(request)
        record(self.root, indices(request))
        self.end(run, succeeded=True)


def backup_keys(*topics: str) -> set[dg.AssetKey]:
    """The assets of these topics' backups."""
    return {backup_key(APPLICATION_ID, topic) for topic in topics}
