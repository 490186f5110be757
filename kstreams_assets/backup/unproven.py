"""Which recovery points of a window its changelogs no longer prove. Pure."""

from collections.abc import Iterable

from kstreams_assets.app.model import TopicRole
from kstreams_assets.backup.result import SpanResult, TopicBackup
from kstreams_assets.recovery.point import PartitionCut, RecoveryPoint

_SOURCES = frozenset({TopicRole.INPUT, TopicRole.GLOBAL})


def unproven_points(backup: TopicBackup, points: Iterable[RecoveryPoint]) -> tuple[str, ...]:
    """Ids of the points in the window of a backup that stand above a hole of one of its spans.

    The spans were read after the points were cut, so what the log no longer held may have been
    removed because of a record at or above the point. Sealed points are safe from it, but for
    source topics that serve as changelogs: those are not sealed.
    """
    thinned = {span.partition: span for span in backup.spans if span.first_hole is not None}
    inside = range(backup.window.start_ms, backup.window.end_ms)
    return tuple(
        point.id
        for point in points
        if point.effective_at_ms in inside
        and any(
            _is_above(cut, span)
            for partition, span in thinned.items()
            if (cut := point.cut(partition)) is not None
            and (not point.sealed or cut.roles & _SOURCES)
        )
    )


def _is_above(cut: PartitionCut, span: SpanResult) -> bool:
    return (
        cut.topic_id == span.plan.topic_id
        and span.first_hole is not None
        and span.first_hole < cut.end
        and cut.log_start < span.plan.end
    )
