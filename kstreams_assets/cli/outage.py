"""Data loss if the source cluster fails now, and the end of the current window."""

import time

from kstreams_assets.calendar import WindowCalendar
from kstreams_assets.model.restorability import Restorability
from kstreams_assets.model.spans import Window
from kstreams_assets.repository.coverage import newest_restorable
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import duration, iso_time


def outage_now(settings: ApplicationSettings) -> str:
    """Describe the data loss if the source cluster fails now, in at most two sentences."""
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
        return f"{text} and is only {point.restorability}."
    if point.restorability is Restorability.AT_LEAST_ONCE:
        return f"{text} and is at_least_once, like the application."
    return f"{text}."


def outage_loss_ms(settings: ApplicationSettings) -> int | None:
    """Return the age of the newest restorable point (ms): records since then would be lost.

    None if nothing can be restored.
    """
    found = newest_restorable(settings)
    point = found.enough or found.covered
    return None if point is None else time.time_ns() // 1_000_000 - point.taken_at_ms


def window_loss(length_ms: int) -> str:
    """Describe the possible data loss with windows of this length."""
    return (
        f"Windows are {duration(length_ms)} long. If the source cluster is lost, up to"
        f" {duration(length_ms)} of records are lost, plus the backup delay, no matter how often"
        " recovery points are taken. Choose a shorter windows.every, or run kstreams-assets"
        " follow to reduce the loss to seconds."
    )


def next_close(settings: ApplicationSettings) -> str:
    """Describe when the current window closes."""
    window = open_window(settings)
    left = duration(window.end_ms - time.time_ns() // 1_000_000)
    return f"Window {window.key} closes at {iso_time(window.end_ms)}, in {left}."


def open_window(settings: ApplicationSettings) -> Window:
    """Return the window that closes next."""
    return WindowCalendar(settings.windows).closes_next()
