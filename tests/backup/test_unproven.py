"""Which points of a window its changelogs no longer prove."""

from dataclasses import replace

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.backup.recorded import unproven_points
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.spans import SpanResult
from tests.backup.samples import backup, cut, point, result, span


def _thinned(start: int = 0, end: int = 100, *, partition: int = 0, hole: int = 40) -> SpanResult:
    plan = span(start, end, partition=partition)
    return replace(result(plan), first_hole=hole, contiguity_known=True)


def _found(*points: RecoveryPoint, span: SpanResult | None = None) -> tuple[str, ...]:
    whole = result(_thinned(partition=1).plan)
    return unproven_points(backup(span or _thinned(), whole), points)


def test_points_of_the_window_that_stand_above_a_hole() -> None:
    points = [point(1, cut(0, 40)), point(2, cut(0, 41)), point(9, cut(0, 100))]
    assert _found(*points) == ("point-2", "point-9")


def test_points_of_other_windows_are_not_told_again() -> None:
    assert _found(point(11, cut(0, 100)), point(9, cut(0, 100))) == ("point-9",)
    late = point(15, cut(0, 100), closes_window_end_ms=10)
    assert _found(late) == ("point-15",)


def test_sealed_points_are_safe_but_for_source_topics() -> None:
    sealed = replace(point(5, cut(0, 100)), sealed=True)
    assert _found(sealed) == ()
    roles = TopicRoles({TopicRole.INPUT, TopicRole.CHANGELOG})
    source = replace(sealed, partitions=(replace(cut(0, 100), roles=roles),))
    assert _found(source) == ("point-5",)


def test_other_partitions_and_lives_say_nothing() -> None:
    assert _found(point(5, cut(1, 100)), point(6, cut(0, 100, topic_id="life-2"))) == ()


def test_a_span_below_the_log_start_of_the_point_says_nothing() -> None:
    assert _found(point(5, cut(0, 150, log_start=100))) == ()
    assert _found(point(5, cut(0, 150, log_start=99))) == ("point-5",)


def test_contiguous_spans_spoil_nothing() -> None:
    whole = result(_thinned().plan)
    assert unproven_points(backup(whole), [point(5, cut(0, 100))]) == ()
