"""Names of assets, groups, pools and tags, and the windows as partitions.

Keys of assets come from the translator of the settings. Only `translator.py` makes keys.
"""

import warnings
from collections.abc import Iterable
from typing import Final

import dagster as dg

from kstreams_assets.app.names import sanitize_name as sanitize_name
from kstreams_assets.calendar import WindowCalendar, key_format, not_understood, start_of
from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from kstreams_assets.orchestration.translator import AssetKind, key_of
from kstreams_assets.settings import ApplicationSettings, WindowSchedule

GROUP_OFFSETS: Final = AssetKind.GROUP_OFFSETS.value
"""Stands among the topics of a restore."""
RESTORED_COMPLETENESS: Final = AssetKind.RESTORED_COMPLETENESS.value
"""Stands among the topics of a restore where there are completeness rules."""
RANGE_START_TAG: Final = "dagster/asset_partition_range_start"
RANGE_END_TAG: Final = "dagster/asset_partition_range_end"
PARTITION_TAG: Final = "dagster/partition"
BACKFILL_TAG: Final = "dagster/backfill"
RUN_KEY_TAG: Final = "dagster/run_key"
PRIORITY_TAG: Final = "dagster/priority"
SENSOR_NAME_TAG: Final = "dagster/sensor_name"
"""Tags that Dagster gives runs and reads; it exports no names for them."""
IN_PROGRESS: Final = (
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
    dg.DagsterRunStatus.SUSPENDED,
)
NOT_FINISHED: Final = (
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    *IN_PROGRESS,
)
"""Of runs: the statuses with a worker or a suspended one, and all before the end."""
DRILL_POOL: Final = "kstreams_drills"
"""The pool (size 1) of all drills, because concurrent drills distort each other's times."""


def refuse_collisions(names: Iterable[str]) -> None:
    """Refuse names of which two have the same identifier in Dagster.

    Raises:
        ConfigurationError: It names the two.
    """
    seen: dict[str, str] = {}
    for name in sorted(set(names)):
        other = seen.setdefault(sanitize_name(name), name)
        if other != name:
            raise collision(other, name)


def collision(first: str, second: str) -> ConfigurationError:
    """The error for two names that Dagster cannot tell apart."""
    return ConfigurationError(
        f"Dagster cannot tell {first!r} and {second!r} apart: it folds names to letters, digits"
        " and underscores.",
        remedy="Leave one of the two out (a topic: list it under not_mine; a store: give it"
        " ktable: false; an application: put it into a code location of its own), or rename it"
        " in Kafka.",
    )


def topic_key(settings: ApplicationSettings, topic: str) -> dg.AssetKey:
    """The external asset of a topic."""
    return key_of(settings, AssetKind.TOPIC, topic)


def backup_key(settings: ApplicationSettings, topic: str) -> dg.AssetKey:
    """The backup of a topic of an application."""
    return key_of(settings, AssetKind.BACKUP, topic)


def ktable_key(settings: ApplicationSettings, store: str) -> dg.AssetKey:
    """The snapshots of a state store of an application, as a table."""
    return key_of(settings, AssetKind.KTABLE, store)


def recovery_points_key(settings: ApplicationSettings) -> dg.AssetKey:
    """The recovery points of an application."""
    return key_of(settings, AssetKind.RECOVERY_POINTS)


def restore_key(settings: ApplicationSettings, topic: str) -> dg.AssetKey:
    """A topic of an application, restored to another cluster."""
    return key_of(settings, AssetKind.RESTORE, topic)


def group_offsets_key(settings: ApplicationSettings) -> dg.AssetKey:
    """The group offsets of a restored application."""
    return key_of(settings, AssetKind.GROUP_OFFSETS)


def governance_key(settings: ApplicationSettings) -> dg.AssetKey:
    """What an application's cluster shows, compared with what is declared."""
    return key_of(settings, AssetKind.GOVERNANCE)


def completeness_key(settings: ApplicationSettings) -> dg.AssetKey:
    """The completeness rules of an application, evaluated at each window."""
    return key_of(settings, AssetKind.COMPLETENESS)


def restore_completeness_key(settings: ApplicationSettings) -> dg.AssetKey:
    """The completeness rules of an application, evaluated on a restored cluster."""
    return key_of(settings, AssetKind.RESTORED_COMPLETENESS)


def drill_key(settings: ApplicationSettings) -> dg.AssetKey:
    """The restore drills of an application."""
    return key_of(settings, AssetKind.DRILL)


def expire_key(settings: ApplicationSettings) -> dg.AssetKey:
    """What a policy keeps of the backups of an application."""
    return key_of(settings, AssetKind.EXPIRE)


def second_copy_key(settings: ApplicationSettings) -> dg.AssetKey:
    """What of an application is in the second copy of its warehouse."""
    return key_of(settings, AssetKind.SECOND_COPY)


def verification_key(settings: ApplicationSettings) -> dg.AssetKey:
    """The looks at all that the warehouse holds of an application."""
    return key_of(settings, AssetKind.VERIFICATION)


def restorable_key(settings: ApplicationSettings) -> dg.AssetKey:
    """Whether an application could be restored right now."""
    return key_of(settings, AssetKind.RESTORABLE)


def group(application_id: str, part: str) -> str:
    """The group of an application's topics, backups and so on."""
    return f"{sanitize_name(application_id)}/{part}"


def restore_op(application_id: str) -> str:
    """The op that restores topics, whose configuration is that of a restore."""
    return f"restore_{sanitize_name(application_id)}"


def restore_job(application_id: str) -> str:
    """The job that restores an application."""
    return f"{sanitize_name(application_id)}_restore"


def drill_job(application_id: str) -> str:
    """The job that makes a drill of an application."""
    return f"{sanitize_name(application_id)}_drill"


def pool(application_id: str) -> str:
    """The pool (size 1) that keeps an application's tables to one writing process."""
    return f"kstreams_{sanitize_name(application_id)}"


def restore_pool(application_id: str) -> str:
    """The pool (size 1) that keeps an application to one restore at a time."""
    return f"kstreams_restore_{sanitize_name(application_id)}"


def completeness_pool(application_id: str) -> str:
    """The pool (size 1) that keeps an application to one evaluation of its rules at a time."""
    return f"kstreams_completeness_{sanitize_name(application_id)}"


def recovery_points_sensor(application_id: str) -> str:
    """The sensor that takes an application's recovery points."""
    return f"{sanitize_name(application_id)}_recovery_points"


def backups_sensor(application_id: str) -> str:
    """The sensor that requests an application's backups."""
    return f"{sanitize_name(application_id)}_backups"


def reports_sensor(application_id: str) -> str:
    """The sensor that reports what the ledger has and Dagster has not."""
    return f"{sanitize_name(application_id)}_reports"


def restorable_sensor(application_id: str) -> str:
    """The sensor that evaluates whether an application could be restored right now."""
    return f"{sanitize_name(application_id)}_restorable"


def follow_up_sensor(application_id: str) -> str:
    """The sensor that requests KTables and rules of windows that are backed up."""
    return f"{sanitize_name(application_id)}_follow_up"


with warnings.catch_warnings():
    # A beta parameter in this Dagster; it is pinned, and tests cover it.
    warnings.simplefilter("ignore", dg.BetaWarning)
    UP_TO_THE_OPEN_WINDOW: Final = dg.TimeWindowPartitionMapping(
        allow_nonexistent_upstream_partitions=True
    )
    """From backups, which have closed windows only, to restores."""


def window_partitions(schedule: WindowSchedule) -> dg.TimeWindowPartitionsDefinition:
    """The closed windows of a schedule; none before the first backup, once there is one.

    Raises:
        ConfigurationError: Start or cron is not understood.
    """
    return _partitions(schedule)


def restorable_windows(schedule: WindowSchedule) -> dg.TimeWindowPartitionsDefinition:
    """The windows that can be restored: the open one too.

    Raises:
        ConfigurationError: Start or cron is not understood.
    """
    return _partitions(schedule, open_too=True)


def _first_shown(schedule: WindowSchedule) -> str:
    """The window in which the application was first seen, if the schedule does not start later."""
    start = start_of(schedule).strftime(key_format(schedule))
    try:
        seen_ms = schedule.first_seen_ms()
    except KStreamsAssetsError:  # definitions load without the warehouse
        seen_ms = None
    if seen_ms is not None:
        start = max(start, WindowCalendar(schedule).key_at(seen_ms))
    return start


def _partitions(
    schedule: WindowSchedule, *, open_too: bool = False
) -> dg.TimeWindowPartitionsDefinition:
    WindowCalendar(schedule)
    try:
        return dg.TimeWindowPartitionsDefinition(
            start=_first_shown(schedule),
            fmt=key_format(schedule),
            cron_schedule=schedule.cron,
            timezone=schedule.timezone,
            end_offset=1 if open_too else 0,
        )
    except (dg.DagsterInvalidDefinitionError, ValueError) as error:
        raise not_understood(schedule, error) from error
