"""The asset `<app>/restorable`: could the application be restored right now, at a glance."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import dagster as dg

from kstreams_assets.drill.readiness import READINESS, Evidence, Facts, evaluate_readiness, facts_of
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.model.restorability import Recency, recovery_point_age
from kstreams_assets.orchestration.check_events import TOOK, is_check_due
from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.orchestration.keys import restorable_key, restorable_sensor
from kstreams_assets.orchestration.metadata import Values, metadata
from kstreams_assets.orchestration.recovery_points import LISTED_POINTS, listed_points
from kstreams_assets.orchestration.upkeep import of_warehouse
from kstreams_assets.public_form import DAGSTER, Form, Timestamp, Value, only
from kstreams_assets.repository.coverage import newest_statuses
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store.failures import storage_errors

RESTORABLE: Final = "restorable"
WINDOWS_HAVE_POINTS: Final = "windows_have_points"
RESTORABLE_CHECKS: Final[Mapping[str, str]] = {
    RESTORABLE: "The application could be restored right now, by the same evaluation as"
    " `kstreams-assets ready`: the age of the newest exact covered point against the objective,"
    " windows that are due, damage, completeness rules, governance, drills. Red: the description"
    " lists the reasons and what to do.",
    WINDOWS_HAVE_POINTS: "A recovery point was taken in every closed window since the first backup."
    " A warning: windows without a point cannot be restored, and their records belong to the next"
    " window with a point. Keep the recorder running.",
}
"""Checks of the asset `<app>/restorable`."""

EVERY_S: Final = 300
"""How often the sensor evaluates the asset; less often where an evaluation takes long."""
FRESHNESS: Final = dg.FreshnessPolicy.time_window(
    fail_window=timedelta(hours=1), warn_window=timedelta(minutes=20)
)
"""When the last evaluation is too old to be believed."""
_FEW: Final = 10


_NEWEST_EXACT: Final = Form(
    Recency,
    *only(
        DAGSTER,
        "newest_exact_point=restorable.exact.id",
        Value("newest_exact_point_taken_at", Timestamp, "restorable.exact.taken_at_ms"),
        "recovery_point_objective_s=objective_s",
    ),
)


def build_restorable_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    """The asset of one application; materializing it evaluates it. Needs no broker and no JVM."""
    application_id = settings.application_id
    key = restorable_key(settings)

    @dg.asset(
        key=key,
        description=(
            f"Whether `{application_id}` could be restored right now, and to which recovery points."
            " Materialize to evaluate it now; a sensor does so every five minutes. It reads the"
            " warehouse only."
        ),
        kinds={"recovery-point", "report"},
        freshness_policy=FRESHNESS,
        **of_warehouse(settings, "restorable", settings.warehouse.control("recovery_points")),
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, description=text)
            for name, text in RESTORABLE_CHECKS.items()
        ],
    )
    def restorable() -> dg.MaterializeResult:
        with told_as_failure():
            shown = _evaluated(settings)
        return dg.MaterializeResult(
            metadata=shown.values,
            check_results=[
                dg.AssetCheckResult(
                    asset_key=key,
                    check_name=check.check_name,
                    passed=check.passed,
                    severity=check.severity,
                    description=check.description,
                    metadata=check.metadata,
                )
                for check in shown.checks
            ],
        )

    return restorable


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """The metadata of the asset, and its checks."""

    values: Values
    checks: tuple[dg.AssetCheckEvaluation, ...]


def _evaluated(settings: ApplicationSettings) -> _Evaluated:
    """What the warehouse says now; raises NewerLayoutError where a newer release wrote it."""
    began = time.monotonic()
    evidence = Evidence(settings)
    facts = facts_of(evidence, time.time_ns() // 1_000_000)
    found = evaluate_readiness(facts)
    values = {
        "restorable": dg.MetadataValue.text("yes" if found.ready else "no"),
        **_newest_exact(facts),
        **metadata(READINESS, found),
        **listed_points(settings, newest_statuses(settings, LISTED_POINTS, evidence.view)),
    }
    took = {TOOK: dg.MetadataValue.float(round(time.monotonic() - began, 3))}
    key = restorable_key(settings)
    of_restorable = dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=RESTORABLE,
        passed=found.ready,
        severity=dg.AssetCheckSeverity.ERROR,
        description=found.why,
        metadata={**_newest_exact(facts), **took},
    )
    return _Evaluated(values, (of_restorable, _windows_have_points(key, facts)))


def _newest_exact(facts: Facts) -> Values:
    """The newest exact covered point, its age, and the objective."""
    age_s = recovery_point_age(facts.recency.restorable.exact, facts.now_ms)
    age = {} if age_s is None else {"newest_exact_point_age_s": dg.MetadataValue.float(age_s)}
    return {**age, **metadata(_NEWEST_EXACT, facts.recency)}


def _windows_have_points(key: dg.AssetKey, facts: Facts) -> dg.AssetCheckEvaluation:
    without = facts.without_point
    listed = ", ".join(without[-_FEW:])
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=WINDOWS_HAVE_POINTS,
        passed=not without,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{len(without)} windows have no recovery point, the newest are {listed}."
        if without
        else "Every closed window has a recovery point.",
        metadata={"windows_without_point": dg.MetadataValue.int(len(without))},
    )


def build_restorable_sensor(settings: ApplicationSettings) -> dg.SensorDefinition:
    """The sensor that evaluates the asset; on from the start, because it reads tables alone."""
    application_id = settings.application_id
    key = restorable_key(settings)

    @dg.sensor(
        name=restorable_sensor(application_id),
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Evaluates whether `{application_id}` could be restored right now, every five minutes,"
            " and reports it on the asset."
        ),
        tags={"kstreams/app": application_id},
    )
    def restorable(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        check = dg.AssetCheckKey(key, RESTORABLE)
        if not is_check_due(context.instance, check, every_s=EVERY_S):
            return dg.SensorResult(skip_reason="The last evaluation is recent.")
        return dg.SensorResult(
            skip_reason="Evaluated and reported.", asset_events=list(_events(settings))
        )

    return restorable


def _events(
    settings: ApplicationSettings,
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    """What a tick reports; a warehouse that cannot be evaluated is a red check."""
    key = restorable_key(settings)
    try:
        shown = _evaluated(settings)
    except (KStreamsAssetsError, *storage_errors()) as error:
        yield dg.AssetCheckEvaluation(
            asset_key=key,
            check_name=RESTORABLE,
            passed=False,
            severity=dg.AssetCheckSeverity.ERROR,
            description=f"The check could not be evaluated: {error}",
            metadata={},
        )
        return
    yield dg.AssetMaterialization(asset_key=key, metadata=shown.values)
    yield from shown.checks
