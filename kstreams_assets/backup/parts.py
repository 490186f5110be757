"""Cuts windows into increments, and what is to be read of a large one into parts.

Each part is a commit: a kill costs one of them.

A part is an increment that ends anywhere, not at a recovery point. Its time is one millisecond of
the window's, so that parts and increments follow each other in time as they do in offsets.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from kstreams_assets.app.model import AppTopic
from kstreams_assets.backup.amounts import Amounts, Pace
from kstreams_assets.backup.planner import RunPlan
from kstreams_assets.model.spans import SpanPlan, Window
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import BackupSettings

_SHARE: Final = 25
"""A part is so manyth of what is left, where the settings allow it: 4 % are read twice at most."""
_LONGEST_S: Final = 300.0
"""A part takes no longer at the expected pace: who looks after a run sees that it goes on."""


def next_increments(
    repo: Repository, window: Window, end_ms: int, topics: Iterable[AppTopic]
) -> list[tuple[Window, tuple[AppTopic, ...]]]:
    """The increments up to an instant, each with the topics that are backed up equally far.

    A topic that could not be read for a while continues where its own last increment ends: what
    others hold by then is in none of its increments. Those that are furthest come first.
    """
    ended, number = repo.ledger.increments_so_far(window)
    by_start: dict[int, list[AppTopic]] = {}
    for topic in topics:
        by_start.setdefault(ended.get(topic.name, window.start_ms), []).append(topic)
    return [
        (window.increment(number + nth, start_ms, end_ms), tuple(by_start[start_ms]))
        for nth, start_ms in enumerate(sorted(by_start, reverse=True))
        if start_ms < end_ms
    ]


def is_large(size: float, settings: BackupSettings) -> bool:
    """Whether a window of so many bytes is backed up in parts."""
    return size > max(settings.commit_bytes, 2 * settings.part_bytes)


def first_part(
    plan: RunPlan,
    rest: Window,
    amounts: Amounts,
    settings: BackupSettings,
    pace: Pace | None = None,
) -> RunPlan | None:
    """Of a plan for `rest` alone, what the next commit takes; None where that is all of it.

    Every partition has a share: as many bytes as the others, or all there is of it. So small ones
    are done with the first part, and those that are read side by side end together.
    """
    size = amounts.of(plan.topics)
    longest = float("inf") if pace is None else _LONGEST_S * pace.bytes_per_s
    limit = max(settings.part_bytes, min(settings.commit_bytes, size / _SHARE, longest))
    if size <= 1.5 * limit or rest.end_ms - rest.start_ms < 2:
        return None
    part = replace(rest, end_ms=rest.start_ms + 1)
    sizes = [amounts.of_span(span) for topic in plan.topics for span in topic.spans]
    level = _level(sizes, limit)
    topics = tuple(
        replace(
            topic,
            window=part,
            spans=tuple(
                _cut(span, part, level / max(amounts.of_span(span), 1), topic.to_read > 0)
                for span in topic.spans
            ),
        )
        for topic in plan.topics
    )
    return replace(plan, topics=topics, unread=(), ends_early=True)


def _level(sizes: list[float], limit: float) -> float:
    """Up to how much is taken of each so that all together come to the limit."""
    left, others = limit, len(sizes)
    for size in sorted(sizes):
        if size * others >= left:
            return left / others
        left -= size
        others -= 1
    return max(sizes, default=0.0)


def _cut(span: SpanPlan, part: Window, share: float, is_read: bool) -> SpanPlan:
    end = span.end
    if is_read and share < 1:
        end = min(end, span.read_start + max(1, round(span.to_read * share)))
    return replace(span, window=part, end=end)
