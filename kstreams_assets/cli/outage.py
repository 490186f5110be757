"""What an outage of the source cluster would lose now, and when the next window closes."""

import time

from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.model.restorability import Restores
from kstreams_assets.model.spans import Window
from kstreams_assets.repository.coverage import newest_restorable
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import duration, iso_time


def outage_now(settings: ApplicationSettings) -> str:
    """What would be lost if the source cluster were gone now; two sentences at most."""
    now_ms = time.time_ns() // 1_000_000
    found = newest_restorable(settings)
    if found.covered is None:
        return (
            "If the source cluster is lost now, nothing can be restored: no recovery point is"
            " backed up yet."
        )
    point = found.enough or found.covered
    text = (
        "If the source cluster is lost now, records of the last"
        f" {duration(now_ms - point.taken_at_ms)} are lost. The newest backed-up recovery point is"
        f" from {iso_time(point.taken_at_ms)}"
    )
    if found.enough is None:
        return f"{text} and is only {point.gives}."
    if point.gives is Restores.AT_LEAST_ONCE:
        return f"{text} and is at_least_once, like the application."
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
        f"Windows are {duration(length_ms)} long. If the source cluster is lost, up to"
        f" {duration(length_ms)} of records are lost, plus the backup delay, no matter how often"
        " recovery points are taken. Choose a shorter windows.every, or run kstreams-assets"
        " follow to reduce the loss to seconds."
    )


def next_close(settings: ApplicationSettings) -> str:
    """When the window that is open now closes."""
    window = open_window(settings)
    left = duration(window.end_ms - time.time_ns() // 1_000_000)
    return f"Window {window.key} closes at {iso_time(window.end_ms)}, in {left}."


def open_window(settings: ApplicationSettings) -> Window:
    """The window that closes next."""
    return WindowCalendar(settings.windows).closes_next()
