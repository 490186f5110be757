"""Select the topics of an application that are backed up."""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from kstreams_assets.app.model import AppTopic, BackupMode, StreamsApplication
from kstreams_assets.errors import ConfigurationError


def select_topics(
    application: StreamsApplication,
    *,
    mode: BackupMode,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> tuple[AppTopic, ...]:
    """The topics to back up, sorted by name.

    `mode` gives the base; `include` adds topics of the application that the mode omits (it does not
    restrict); `exclude` then removes topics. Patterns are globs (`*`, `?`, `[...]`) over full
    names, case sensitive.

    Raises ConfigurationError for a pattern that matches no topic of the application, and if no
    topic remains.
    """
    included = _matched(application, "include", include)
    excluded = _matched(application, "exclude", exclude)
    selected = tuple(
        topic
        for topic in application.topics
        if topic.name not in excluded and (mode.includes(topic.roles) or topic.name in included)
    )
    if not selected:
        raise ConfigurationError(
            f"No topic of application {application.application_id} remains for backup (mode"
            f" {mode.value}, {len(application.topics)} topic(s), {len(excluded)} excluded).",
            remedy="Exclude less, or give the application's topology text.",
        )
    return selected


def _matched(
    application: StreamsApplication, setting: str, patterns: Sequence[str]
) -> frozenset[str]:
    names = [topic.name for topic in application.topics]
    matched: set[str] = set()
    for pattern in patterns:
        hits = {name for name in names if fnmatchcase(name, pattern)}
        if not hits:
            near = _near(pattern, names)
            hint = f" (near: {', '.join(near)})" if near else ""
            raise ConfigurationError(
                f"The {setting} pattern {pattern!r} matches no topic of application"
                f" {application.application_id}{hint}.",
                remedy="Correct the pattern (full names, case sensitive, * ? [...]) or remove it"
                f" from {setting}.",
                keys=[setting],
                value=pattern,
            )
        matched |= hits
    return frozenset(matched)


def _near(pattern: str, names: list[str]) -> list[str]:
    """Names like the pattern; letters in the other case count as similar, wildcards do not
    count."""
    plain = "".join(char for char in pattern if char not in "*?[]").lower()
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(plain, by_lower, n=3, cutoff=0.5)
    holding = [lower for lower in by_lower if plain and plain in lower and lower not in close]
    return [by_lower[lower] for lower in (close + holding)[:3]]
