"""Assets of a whole application's warehouse: its verification, second copy and policy."""

from collections.abc import Mapping
from typing import Final, TypedDict

import dagster as dg
from pydantic import Field

from kstreams_assets.checks import Finding
from kstreams_assets.orchestration.failure import told_as_failure
from kstreams_assets.orchestration.keys import (
    backup_key,
    expire_key,
    group,
    pool,
    recovery_points_key,
    sanitize_name,
    second_copy_key,
    verification_key,
)
from kstreams_assets.orchestration.metadata import metadata
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import StorePath
from kstreams_assets.texts import bytes_text, iso_time
from kstreams_assets.upkeep.copy import CopyJob
from kstreams_assets.upkeep.expire import ExpireJob
from kstreams_assets.upkeep.public import COPY, EXPIRE_PLAN, EXPIRE_RESULT, VERIFICATION
from kstreams_assets.upkeep.verify import Verification, VerifyJob


class Arguments(TypedDict):
    """Some of those of an asset."""

    deps: list[dg.AssetKey]
    group_name: str
    owners: list[str]
    tags: dict[str, str]
    metadata: dict[str, str]


def of_warehouse(settings: ApplicationSettings, part: str, place: StorePath) -> Arguments:
    """Arguments of an asset that follows the recovery points and all backups of an application.

    `part` is the name of its group, `place` where its results are.
    """
    application_id = settings.application_id
    return {
        "deps": [
            recovery_points_key(settings),
            *(backup_key(settings, topic.name) for topic in settings.topics),
        ],
        "group_name": group(application_id, part),
        "owners": list(settings.owners),
        "tags": {**settings.tags, "kstreams/app": application_id},
        "metadata": {"dagster/uri": str(place)},
    }


def schedules(
    settings: ApplicationSettings,
    name: str,
    key: dg.AssetKey,
    cron: str | None,
    description: str,
    *,
    config: Mapping[str, object] | None = None,
) -> list[dg.ScheduleDefinition]:
    """The schedule of an asset in UTC, on where the sensors are on; none without a `cron` schedule.

    `config` is that of its runs.
    """
    if cron is None:
        return []
    on, off = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED
    return [
        dg.ScheduleDefinition(
            name=f"{sanitize_name(settings.application_id)}_{name}",
            target=[key],
            cron_schedule=cron,
            execution_timezone="UTC",
            run_config=config and {"ops": {key.to_python_identifier(): {"config": dict(config)}}},
            default_status=on if settings.sensors_running else off,
            description=description,
            tags={"kstreams/app": settings.application_id},
        )
    ]


SOUND: Final = "warehouse_is_sound"
READ: Final = "every_file_was_read"
VERIFICATION_CHECKS: Final[Mapping[str, str]] = {
    SOUND: "All inspected tables of the application are intact, with their commit chains, ledger,"
    " files and recovery points. Red: the check names window, topic and partition of each damage,"
    " the recovery points that it makes unrestorable, and the remedy.",
    READ: "Every file was read and compared with its digest within the last 30 days, at once or"
    " sample by sample. Only a warning.",
}
"""Checks of the asset `<app>/verification`."""

_READ_MS: Final = 30 * 86_400_000


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
    key = verification_key(settings)

    @dg.asset(
        key=key,
        description=(
            f"File integrity of the backups of `{application_id}`. With `full` in its config"
            " it also reads the contents of files."
        ),
        kinds={"deltalake", "report"},
        **of_warehouse(settings, "verification", settings.warehouse.control("verifications")),
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, description=text)
            for name, text in VERIFICATION_CHECKS.items()
        ],
    )
    def verification(
        context: dg.AssetExecutionContext, config: VerificationConfig
    ) -> dg.MaterializeResult:
        with told_as_failure():
            found = VerifyJob(
                settings,
                full=config.full,
                sample=config.sample,
                bytes_per_s=settings.verify.bytes_per_second,
                run_id=context.run.run_id,
                log=context.log.info,
            ).run()
        return dg.MaterializeResult(
            metadata=metadata(VERIFICATION, found),
            check_results=[_sound(key, found), _read(key, found)],
        )

    return verification


def build_verification_schedules(settings: ApplicationSettings) -> list[dg.ScheduleDefinition]:
    """Those of `verify.every` and `verify.full_every`; on where the sensors are on."""
    said, key = settings.verify, verification_key(settings)
    sampled = {"full": True, "sample": said.sample} if said.sample else {"full": False}
    text = f"Looks whether the warehouse of `{settings.application_id}` is whole."
    return [
        *schedules(settings, "verification", key, said.every, text, config=sampled),
        *schedules(
            settings, "verification_full", key, said.full_every, text, config={"full": True}
        ),
    ]


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


COMPLETE: Final = "source_gave_every_file"
_MOST: Final = 20


def build_second_copy_assets(settings: ApplicationSettings) -> list[dg.AssetsDefinition]:
    """The asset `<app>/second_copy`, where `second_copy.to` says where it is; no JVM, no broker."""
    told, application_id = settings.second_copy, settings.application_id
    to = told.place
    if to is None:
        return []
    key = second_copy_key(settings)

    @dg.asset(
        key=key,
        description=(
            f"What the warehouse holds of `{application_id}`, copied to `{to}` and compared. Only"
            " what is new is copied; restores can be made from the copy alone."
        ),
        kinds={"deltalake"},
        **of_warehouse(settings, "second_copy", to),
        check_specs=[
            dg.AssetCheckSpec(
                COMPLETE,
                asset=key,
                description="Every file of the source is the one that was written, or the copy has"
                " it already. Red: the damaged files by name; all else is copied.",
            )
        ],
    )
    def second_copy(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with told_as_failure():
            result = CopyJob(
                settings.warehouse,
                to,
                applications=[application_id],
                bytes_per_s=told.bytes_per_second,
                on_phase=lambda progress: context.log.info(str(progress)),
            ).run()
        found = result.lacking_texts
        return dg.MaterializeResult(
            metadata=metadata(COPY, result),
            check_results=[
                dg.AssetCheckResult(
                    check_name=COMPLETE,
                    passed=not found,
                    description="; ".join(found[:_MOST]) or "Nothing is lacking.",
                    metadata={"lacking": dg.MetadataValue.int(len(found))},
                )
            ],
        )

    return [second_copy]


def build_second_copy_schedules(settings: ApplicationSettings) -> list[dg.ScheduleDefinition]:
    """The schedule of `second_copy.every`, none without it; on where the sensors are on."""
    copy, key = settings.second_copy, second_copy_key(settings)
    text = f"Brings the copy of {settings.application_id} in {copy.place} up to date."
    return schedules(settings, "second_copy", key, copy.every if copy.place else None, text)


class ExpireConfig(dg.Config):
    """One run of the policy."""

    dry_run: bool = Field(default=False, description="Say what would be done; change nothing.")


def build_expire_assets(settings: ApplicationSettings) -> list[dg.AssetsDefinition]:
    """The policy of an application; none where nothing is said of what is kept."""
    return [] if settings.keep is None else [_expire_asset(settings)]


def build_expire_schedules(settings: ApplicationSettings) -> list[dg.ScheduleDefinition]:
    """The schedule of `keep.every`, none without it; on where the sensors are on."""
    cron = None if settings.keep is None else settings.keep.every
    text = f"Drops what the policy of `{settings.application_id}` does not keep."
    return schedules(settings, "expire", expire_key(settings), cron, text)


def _expire_asset(settings: ApplicationSettings) -> dg.AssetsDefinition:
    application_id = settings.application_id

    @dg.asset(
        key=expire_key(settings),
        description=(
            f"Recovery points of `{application_id}` that its policy (`keep`) does not keep go, and"
            " of the backups what no kept point needs. Points that stay restore as before."
        ),
        kinds={"deltalake"},
        **of_warehouse(settings, "backups", settings.warehouse.root),
        pool=pool(application_id),
    )
    def expired(context: dg.AssetExecutionContext, config: ExpireConfig) -> dg.MaterializeResult:
        with told_as_failure():
            if config.dry_run:
                plan = ExpireJob(settings).plan()
                plan.require_allowed()
                return dg.MaterializeResult(metadata=metadata(EXPIRE_PLAN, plan))
            done = ExpireJob(settings, context.run.run_id, log=context.log.info).run()
        return dg.MaterializeResult(metadata=metadata(EXPIRE_RESULT, done))

    return expired
