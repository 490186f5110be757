"""Splits windows into increments, and the amount to read of a large one into parts.

Each part is one commit: a kill costs one part.

A part is an increment that ends anywhere, not at a recovery point. It takes one millisecond of
the window's time, so that parts and increments have the same order in time as in offsets.
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
"""A part is this fraction of what is left, as settings allow: at most 4 % are read twice."""
_LONGEST_S: Final = 300.0
"""A part takes no longer at the expected pace, so that observers see progress."""


def next_increments(
    repo: Repository, window: Window, end_ms: int, topics: Iterable[AppTopic]
) -> list[tuple[Window, tuple[AppTopic, ...]]]:
    """Return the increments up to a time, each with the topics that are backed up equally far.

    A topic that could not be read for a while continues at the end of its own last increment.
    Topics that are furthest come first.
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
    """Whether a window of this many bytes is backed up in parts."""
    return size > max(settings.commit_bytes, 2 * settings.part_bytes)


def first_part(
    plan: RunPlan,
    rest: Window,
    amounts: Amounts,
    settings: BackupSettings,
    pace: Pace | None = None,
) -> RunPlan | None:
    """Return the part of a plan for `rest` that the next commit takes; None if that is all.

    Every partition has the same share in bytes, or all that it has. So small partitions are
    done with the first part, and those that are read in parallel end together.
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
    """Return the bytes to take of each at most, so that all together come to the limit."""
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
