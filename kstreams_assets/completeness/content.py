"""Rows in the views of a rule, as ranges in the warehouse or on a cluster. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import PartitionCut, RecoveryPoint, WantedPartition
from kstreams_assets.model.store_states import state_cuts
from kstreams_assets.offsets import RangeSet
from kstreams_assets.rules.view import BEFORE, View, ViewKind


class Part(StrEnum):
    """The part of a topic or store that a view contains.

    `all`: everything at the point. `new`: records of a topic after the point of the previous
    window. `before`: the state, or the records in flight, at that previous point.
    """

    ALL = "all"
    NEW = "new"
    BEFORE = "before"


@dataclass(frozen=True, slots=True)
class ViewPart:
    """A view for one evaluation; `of_snapshot`: the store is read from its KTable snapshot."""

    view: View
    part: Part
    of_snapshot: bool = False


@dataclass(frozen=True, slots=True)
class EvaluationPoint:
    """A recovery point at which rules are evaluated, and the point of the previous window."""

    point: RecoveryPoint
    before: RecoveryPoint | None = None
    window: str | None = None

    def at(self, part: Part) -> RecoveryPoint | None:
        """Return the point of a part of a view."""
        return self.before if part is Part.BEFORE else self.point


def part_of(name: str, view: View, *, by_window: bool) -> Part:
    """Return the part in a view with this name; `by_window`: the rule covers new records only."""
    if name.endswith(BEFORE):
        return Part.BEFORE
    if not by_window or view.kind is ViewKind.STORE or view.is_transient:
        return Part.ALL
    return Part.NEW


def partitions_of_view(
    view: View, evaluation_point: EvaluationPoint, part: Part
) -> tuple[WantedPartition, ...]:
    """Return the partitions and offset ranges of a view, as far as the point contains them.

    Inputs contain the records below the committed offsets. Backed-up records count from offset 0,
    even if the log started later at the point.
    """
    if part is Part.BEFORE:
        if evaluation_point.before is None:
            return ()
        return _partitions(view, evaluation_point.before, before=True)
    now = _partitions(view, evaluation_point.point)
    if part is Part.ALL or evaluation_point.before is None:
        return now
    then = {one.cut.id: one for one in _partitions(view, evaluation_point.before)}
    return tuple(_without(one, then.get(one.cut.id)) for one in now)


def in_flight_from(view: View, evaluation_point: EvaluationPoint) -> Mapping[int, int]:
    """Return the offset of the first record in flight at the point, by partition."""
    cuts = [cut for cut in evaluation_point.point.partitions if cut.topic == view.topic]
    if view.is_transient:
        return {cut.partition: 0 for cut in cuts}
    if view.kind is ViewKind.STORE or not view.is_read_and_written:
        return {}
    return {cut.partition: evaluation_point.point.group.offset_in(cut) or 0 for cut in cuts}


def _partitions(
    view: View, point: RecoveryPoint, *, before: bool = False
) -> tuple[WantedPartition, ...]:
    if view.kind is ViewKind.STORE:
        return tuple(
            WantedPartition(
                cut,
                cut.records_from(cut.log_start),
                point.group.at(cut),
            )
            for cut in state_cuts(point, view.topic, view.roles)
        )
    cuts = sorted(
        (cut for cut in point.partitions if cut.topic == view.topic), key=lambda c: c.partition
    )
    found = []
    for cut in cuts:
        offset = point.group.at(cut)
        start, end = _bounds(view, cut, offset, before=before)
        found.append(WantedPartition(cut, RangeSet.of(start, end, without=cut.excluded), offset))
    return tuple(found)


def _bounds(
    view: View, cut: PartitionCut, committed: GroupOffset | None, *, before: bool
) -> tuple[int, int]:
    taken_in = 0 if committed is None else committed.offset
    if view.is_transient:
        return max(cut.log_start, taken_in), cut.end
    if view.is_read_and_written:
        return (taken_in if before else 0), cut.end
    if view.roles.is_input:
        return 0, min(taken_in, cut.end)
    return 0, cut.end


def _without(now: WantedPartition, then: WantedPartition | None) -> WantedPartition:
    if then is None or then.cut.topic_id != now.cut.topic_id:
        return now
    return replace(now, ranges=RangeSet(now.ranges) - then.ranges)
