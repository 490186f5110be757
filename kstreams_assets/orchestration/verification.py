"""The asset of looks at the whole warehouse, its checks and schedules."""

from collections.abc import Mapping
from typing import Final

import dagster as dg
from pydantic import Field

from kstreams_assets.checks import Finding
from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.orchestration.governance import findings_table
from kstreams_assets.orchestration.keys import (
    backup_key,
    folded,
    group,
    recovery_points_key,
    verification_key,
)
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import bytes_text, iso_time
from kstreams_assets.upkeep.verify import Verification, verify

SOUND: Final = "warehouse_is_sound"
READ: Final = "every_file_was_read"
VERIFICATION_CHECKS: Final[Mapping[str, str]] = {
    SOUND: "All that the warehouse holds of the application is as it was written, as far as it was"
    " looked at: tables and their chains of commits, ledger, files, points. Red: each damage is"
    " named with window, topic, partition, the recovery points that it takes away, and what to do.",
    READ: "Every file was read and compared with its digest within the last 30 days, at once or"
    " sample by sample. Only a warning.",
}
"""Checks of the asset `<app>/verification`."""

_READ_MS: Final = 30 * 86_400_000
_MOST: Final = 200
"""So many damages are shown in a table of the UI."""


class VerificationConfig(dg.Config):
    """How much is looked at."""

    full: bool = Field(default=False, description="Read files and compare their digests.")
    sample: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="With full: which share of the files, those not read for longest.",
    )


def build_verification_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    """The asset `<app>/verification`; needs no broker and no JVM."""
    application_id = settings.application_id
    key = verification_key(application_id)

    @dg.asset(
        key=key,
        deps=[
            recovery_points_key(application_id),
            *(backup_key(application_id, topic.name) for topic in settings.topics),
        ],
        description=(
            f"Whether all that the warehouse holds of `{application_id}` is as it was written; with"
            " `full` in its config files are read, too."
        ),
        group_name=group(application_id, "verification"),
        kinds={"deltalake", "report"},
        owners=list(settings.owners),
        tags={**settings.tags, "kstreams/app": application_id},
        metadata={"dagster/uri": str(settings.warehouse.control("verifications"))},
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, description=text)
            for name, text in VERIFICATION_CHECKS.items()
        ],
    )
    def verification(
        context: dg.AssetExecutionContext, config: VerificationConfig
    ) -> dg.MaterializeResult:
        with told_as_failure():
            found = verify(
                settings,
                full=config.full,
                sample=config.sample,
                bytes_per_s=settings.verify.bytes_per_s,
                run_id=context.run.run_id,
                log=context.log.info,
            )
        return dg.MaterializeResult(
            metadata=_metadata(found), check_results=[_sound(key, found), _read(key, found)]
        )

    return verification


def build_verification_schedules(settings: ApplicationSettings) -> list[dg.ScheduleDefinition]:
    """Those of `verify.every` and `verify.full_every`; on where the sensors are on."""
    said = settings.verify
    sampled = {"full": True, "sample": said.sample} if said.sample else {"full": False}
    wanted = (
        ("verification", said.every, sampled),
        ("verification_full", said.full_every, {"full": True}),
    )
    on, off = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED
    key = verification_key(settings.application_id)
    return [
        dg.ScheduleDefinition(
            name=f"{folded(settings.application_id)}_{name}",
            target=dg.AssetSelection.assets(key),
            cron_schedule=cron,
            execution_timezone="UTC",
            run_config={"ops": {key.to_python_identifier(): {"config": config}}},
            default_status=on if settings.sensors_running else off,
            description=f"Looks whether the warehouse of `{settings.application_id}` is whole.",
            tags={"kstreams/app": settings.application_id},
        )
        for name, cron, config in wanted
        if cron is not None
    ]


def _metadata(found: Verification) -> dict[str, dg.MetadataValue]:
    findings = tuple(damage.finding for damage in found.damages[:_MOST])
    metadata: dict[str, dg.MetadataValue] = {
        "kind": dg.MetadataValue.text(found.kind.value),
        "sample": dg.MetadataValue.float(found.sample),
        "files_read": dg.MetadataValue.int(found.files),
        "bytes_read": dg.MetadataValue.int(found.bytes),
        "took_s": dg.MetadataValue.float(round(found.took_ms / 1000, 3)),
        "damages": dg.MetadataValue.int(len(found.damages)),
        "errors": dg.MetadataValue.int(len(found.errors)),
    }
    if found.covered_since_ms is not None:
        at = dg.MetadataValue.timestamp(found.covered_since_ms / 1000)
        metadata["every_file_read_since"] = at
    if findings:
        metadata["findings"] = findings_table(findings)
    if found.unrecorded:
        metadata["not_recorded"] = dg.MetadataValue.text(found.unrecorded)
    return metadata


def _sound(key: dg.AssetKey, found: Verification) -> dg.AssetCheckResult:
    shown: list[Finding] = [damage.finding for damage in found.damages[:5]]
    more = len(found.damages) - len(shown)
    text = " ".join([*map(str, shown), *([f"And {more} more."] if more > 0 else [])])
    looked = f"{found.files:,} files were read ({bytes_text(found.bytes)})."
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=SOUND,
        passed=not found.damages,
        severity=dg.AssetCheckSeverity.ERROR if found.errors else dg.AssetCheckSeverity.WARN,
        description=text or f"Nothing is damaged. {looked}",
        metadata={"errors": len(found.errors), "damages": len(found.damages)},
    )


def _read(key: dg.AssetKey, found: Verification) -> dg.AssetCheckResult:
    since_ms = found.covered_since_ms
    passed = since_ms is not None and found.began_at_ms - since_ms <= _READ_MS
    told = (
        "Some were never read" if since_ms is None else f"All were read since {iso_time(since_ms)}"
    )
    remedy = "" if passed else " Run a full verification, or set verify.full_every in the YAML."
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=READ,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{told}.{remedy}",
    )
