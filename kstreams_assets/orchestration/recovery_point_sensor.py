"""The recorder sensor: each tick takes one recovery point."""

import json
import time
from dataclasses import asdict, dataclass
from typing import Final

import dagster as dg

from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.model.point import POINT, RecoveryPoint
from kstreams_assets.model.restorability import Recency
from kstreams_assets.model.tables import Lock
from kstreams_assets.orchestration.check_events import TOOK, is_check_due
from kstreams_assets.orchestration.keys import (
    recovery_points_key,
    recovery_points_sensor,
    restorable_key,
)
from kstreams_assets.orchestration.metadata import Values, metadata
from kstreams_assets.orchestration.recovery_points import RECENCY
from kstreams_assets.recovery.recorder import recorder_of
from kstreams_assets.repository.coverage import recovery_point_is_recent
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store.failures import storage_errors

CALL_TIMEOUT_S: Final = 10.0
"""Longest wait for one answer of the cluster; Dagster gives a tick 60 s."""

LOCK_WAIT_S: Final = 20.0
EVENT_EVERY_S: Final = 60
_CHECK: Final = "recovery_point_is_recent"
_LONGEST_WAIT_S: Final = 20.0
"""For commits: Dagster ends a tick after 60 s, and a lock may need as long."""
_CURSOR_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RecorderCursor:
    """What the newest event of the asset said, and when (epoch milliseconds)."""

    event_at_ms: int
    guarantee: str
    sealed: bool

    @classmethod
    def parse(cls, text: str | None) -> "RecorderCursor | None":
        """The cursor of the last tick; None where it cannot be read (an event more is no harm)."""
        try:
            facts = json.loads(text or "")
            if facts["version"] != _CURSOR_VERSION:
                return None
            return cls(int(facts["event_at_ms"]), str(facts["guarantee"]), bool(facts["sealed"]))
        except (ValueError, KeyError, TypeError):
            return None

    def dump(self) -> str:
        """The cursor as text."""
        return json.dumps({"version": _CURSOR_VERSION, **asdict(self)})


def build_recovery_point_sensor(settings: ApplicationSettings) -> dg.SensorDefinition:
    """The sensor that takes an application's recovery points, on if the settings say so.

    A cluster that does not answer fails the tick: a point that could not be taken is no skip. The
    check is evaluated and reported before the point is taken, so whatever becomes of the take (it
    raises, hangs, waits for a lock, its process is killed), the check grows red in time.
    """
    application_id = settings.application_id
    running, stopped = dg.DefaultSensorStatus.RUNNING, dg.DefaultSensorStatus.STOPPED

    @dg.sensor(
        name=recovery_points_sensor(application_id),
        # Dagster looks every five seconds; a tick a moment too early would wait for the next look.
        minimum_interval_seconds=max(1, settings.recovery_points.every_seconds - 1),
        default_status=running if settings.sensors_running else stopped,
        description=(
            f"Takes a recovery point of `{application_id}` in each tick. Once a minute, and when"
            " the guarantee changes, the asset gets an event. Its check is evaluated once a minute,"
            " also when no point can be taken."
        ),
        tags={"kstreams/app": application_id},
    )
    def recovery_points(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        recency = _evaluated_if_due(settings, context.instance)
        # Two daemons may tick in the same instant; one after the other, they see each other.
        repo = Repository.open(settings)
        with repo.lock(Lock.RECORDER_SENSOR, purpose="recorder sensor", wait_s=LOCK_WAIT_S):
            age_s = _newest_age_s(settings)
            if age_s is not None and 0 <= age_s < settings.recovery_points.every_seconds / 2:
                return dg.SensorResult(
                    skip_reason=f"Another recovery point was taken {age_s:.1f} s ago."
                )
            point = _take(settings)
        return _result(settings, point, RecorderCursor.parse(context.cursor), recency)

    return recovery_points


def _newest_age_s(settings: ApplicationSettings) -> float | None:
    """How old the newest point is; negative when the clock was set back."""
    newest = Repository.open(settings).points.newest()
    return time.time() - newest[0].taken_at_ms / 1000 if newest else None


def _take(settings: ApplicationSettings) -> RecoveryPoint:
    timeout_s = min(CALL_TIMEOUT_S, settings.connection.request_timeout_seconds)
    with KafkaCluster(settings.connection, timeout_s=timeout_s) as cluster:
        recorder = recorder_of(settings, cluster)
        return recorder.take(commit_wait_s=settings.recovery_points.wait_s(_LONGEST_WAIT_S))


def _result(
    settings: ApplicationSettings,
    point: RecoveryPoint,
    last: RecorderCursor | None,
    recency: Recency | None,
) -> dg.SensorResult:
    told = f"Recovery point {point.id}: {point.guarantee}, {_sealed(point)}, {point.took_ms} ms."
    if last is not None and not _is_event_due(point, last):
        return dg.SensorResult(skip_reason=told, cursor=last.dump())
    values = metadata(POINT, point)
    values["all_points"] = dg.MetadataValue.asset(restorable_key(settings))
    if recency is not None:
        values |= metadata(RECENCY, recency)
    cursor = RecorderCursor(point.taken_at_ms, point.guarantee.value, point.sealed)
    key = recovery_points_key(settings)
    event = dg.AssetMaterialization(asset_key=key, metadata=values)
    return dg.SensorResult(skip_reason=told, asset_events=[event], cursor=cursor.dump())


def _evaluated_if_due(
    settings: ApplicationSettings, instance: dg.DagsterInstance
) -> Recency | None:
    """Evaluate the check and report it, if that was not done a short while ago.

    Reported at once and not with the result of the tick: a tick that fails reports nothing.
    """
    key = dg.AssetCheckKey(recovery_points_key(settings), _CHECK)
    if not is_check_due(instance, key, every_s=EVENT_EVERY_S):
        return None
    began = time.monotonic()
    recency: Recency | None = None
    values: Values = {}
    try:
        recency = recovery_point_is_recent(settings)
        passed, description = recency.passed, recency.explanation
        values |= metadata(RECENCY, recency)
    except (KStreamsAssetsError, *storage_errors()) as error:
        passed, description = False, f"The check could not be evaluated: {error}"
    values[TOOK] = dg.MetadataValue.float(round(time.monotonic() - began, 3))
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=key.asset_key,
            check_name=key.name,
            passed=passed,
            description=description,
            metadata=values,
        )
    )
    return recency


def _is_event_due(point: RecoveryPoint, last: RecorderCursor) -> bool:
    if (point.guarantee.value, point.sealed) != (last.guarantee, last.sealed):
        return True
    return not 0 <= point.taken_at_ms - last.event_at_ms < EVENT_EVERY_S * 1000


def _sealed(point: RecoveryPoint) -> str:
    return "sealed" if point.sealed else "not sealed"
