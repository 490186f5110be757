"""Windows as Dagster's partitions; keys and times are those of the calendar."""

import dagster as dg

from kstreams_assets.settings import WindowSchedule
from kstreams_assets.warehouse.calendar import (
    WindowCalendar,
    key_format,
    not_understood,
    start_of,
)


def window_partitions(schedule: WindowSchedule) -> dg.TimeWindowPartitionsDefinition:
    """The partitions of a schedule; only closed windows exist.

    Raises:
        ConfigurationError: Start or cron is not understood.
    """
    WindowCalendar(schedule)
    fmt = key_format(schedule)
    try:
        return dg.TimeWindowPartitionsDefinition(
            start=start_of(schedule).strftime(fmt),
            fmt=fmt,
            cron_schedule=schedule.cron,
            timezone=schedule.timezone,
        )
    except (dg.DagsterInvalidDefinitionError, ValueError) as error:
        raise not_understood(schedule, error) from error
