"""What an outage of the source cluster would lose now, and when the next window closes."""

import time

from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import duration, iso_time
from kstreams_assets.warehouse.calendar import WindowCalendar
from kstreams_assets.warehouse.coverage import newest_restorable
from kstreams_assets.warehouse.judge import Restores
from kstreams_assets.warehouse.spans import Window


def outage_now(settings: ApplicationSettings) -> str:
    """What would be lost if the source cluster were gone now; two sentences at most."""
    now_ms = time.time_ns() // 1_000_000
    found = newest_restorable(settings)
    if found.covered is None:
        return (
            "If the source cluster were lost now, nothing could be restored: no recovery point is"
            " backed up yet."
        )
    point = found.enough or found.covered
    text = (
        "If the source cluster were lost now, what was written in the last"
        f" {duration(now_ms - point.taken_at_ms)} would be lost: the newest recovery point that is"
        f" backed up is of {iso_time(point.taken_at_ms)}"
    )
    if found.enough is None:
        return f"{text}, and gives {point.gives} only."
    if point.gives is Restores.AT_LEAST_ONCE:
        return f"{text}, and gives at_least_once, as the application does."
    return f"{text}."


def outage_loss_ms(settings: ApplicationSettings) -> int | None:
    """Of how long the records would be lost if the source cluster were gone now, in ms.

    None when nothing could be restored.
    """
    found = newest_restorable(settings)
    point = found.enough or found.covered
    return None if point is None else time.time_ns() // 1_000_000 - point.taken_at_ms


def window_loss(length_ms: int) -> str:
    """What windows of this length mean, however often recovery points are taken."""
    return (
        f"Windows are of {duration(length_ms)}: a lost source cluster takes up to"
        f" {duration(length_ms)} of records with it (and the delay of the backup), however often"
        " recovery points are taken. Choose windows.every by what may be lost, or run"
        " kstreams-assets follow: then it is seconds, however long the windows are."
    )


def next_close(settings: ApplicationSettings) -> str:
    """When the window that is open now closes."""
    window = open_window(settings)
    left = duration(window.end_ms - time.time_ns() // 1_000_000)
    return f"The window {window.key} closes at {iso_time(window.end_ms)}, in {left}."


def open_window(settings: ApplicationSettings) -> Window:
    """The window that closes next."""
    return WindowCalendar(settings.windows).closes_next()
