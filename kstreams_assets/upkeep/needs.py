"""Records of a topic that the listed recovery points need. Pure.

All points count, not only the oldest: after a reset of the committed offsets of a group, a later
point can need more records than an earlier one.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from kstreams_assets.app.model import TopicRoles
from kstreams_assets.model.point import PartitionCut, PartitionIncarnation, RecoveryPoint
from kstreams_assets.offsets import OffsetRange, RangeSet


@dataclass(frozen=True, slots=True)
class PartitionNeed:
    """Records of one incarnation of a partition that any point needs.

    Each point has a pair: it needs every record of `[whole_from, end)`. `least` is the lowest
    `whole_from` of all points, `floor` the lowest log start offset. `undecided` are offsets of
    transactions that some point excludes. `lacked_from_ms` is the time of the first point without
    this incarnation (epoch milliseconds).
    """

    pairs: Iterable[tuple[int, int]] = ()
    floor: int = 0
    undecided: RangeSet = field(default_factory=RangeSet)
    lacked_from_ms: float = math.inf
    least: float = field(init=False)
    _ends: list[int] = field(init=False)
    _least_from: list[int] = field(init=False)
    """For each end, the lowest `whole_from` of the points that end there or later."""

    def __post_init__(self) -> None:
        ordered = sorted((end, whole_from) for whole_from, end in set(self.pairs))
        least = [*accumulate((one for _, one in reversed(ordered)), min)][::-1]
        object.__setattr__(self, "_ends", [end for end, _ in ordered])
        object.__setattr__(self, "_least_from", least)
        object.__setattr__(self, "least", min(least, default=math.inf))

    @property
    def is_listed(self) -> bool:
        """Whether some point has the incarnation."""
        return bool(self._ends)

    def allows(self, start: int, end: int) -> bool:
        """Whether every point needs at most the last record of each key in `[start, end)`.

        This applies to points that end at or before `start`, and to points that need every record
        only from `end`.
        """
        index = bisect_right(self._ends, start)
        return index == len(self._ends) or self._least_from[index] >= end

    def ends_inside(self, start: int, end: int) -> bool:
        """Whether a point ends inside `(start, end)`."""
        index = bisect_right(self._ends, start)
        return index < len(self._ends) and self._ends[index] < end


Untouched = Callable[[PartitionIncarnation, int], int]
"""Returns the first offset that compaction could not remove at a time (epoch milliseconds)."""


@dataclass(frozen=True, slots=True)
class TopicNeeds:
    """Records of a topic that the listed points need, by incarnation of its partitions.

    `first_at_ms` is the time of the first point (epoch milliseconds).
    """

    by_life: Mapping[PartitionIncarnation, PartitionNeed]
    first_at_ms: float

    @classmethod
    def of(
        cls,
        points: Iterable[RecoveryPoint],
        roles: TopicRoles,
        *,
        whole_logs: bool = False,
        untouched: Untouched | None = None,
    ) -> "TopicNeeds":
        """Compute the needs from points narrowed to the topic, see `RecoveryPointTable.of_topic`.

        Args:
            points: All listed points.
            roles: Roles of the topic, see `roles_of`.
            whole_logs: Whether points need complete logs of inputs and outputs.
            untouched: Returns the offset from which a point also needs every record.
        """
        ordered = sorted(points, key=lambda point: point.effective_at_ms)
        pairs: defaultdict[PartitionIncarnation, set[tuple[int, int]]] = defaultdict(set)
        floors: dict[PartitionIncarnation, int] = {}
        undecided: defaultdict[PartitionIncarnation, set[OffsetRange]] = defaultdict(set)
        having: defaultdict[PartitionIncarnation, int] = defaultdict(int)
        for number, point in enumerate(ordered):
            for cut in point.partitions:
                life = cut.life
                whole_from = _whole_from(cut, roles, point.group.offset_in(cut), whole_logs)
                if untouched is not None:
                    whole_from = min(whole_from, untouched(life, point.effective_at_ms))
                pairs[life].add((whole_from, cut.end))
                floors[life] = min(cut.log_start, floors.get(life, cut.log_start))
                undecided[life].update(cut.excluded)
                having[life] += having[life] == number
        taken = [*(point.effective_at_ms for point in ordered), math.inf]
        return cls(
            {
                life: PartitionNeed(
                    of_life, floors[life], RangeSet(undecided[life]), taken[having[life]]
                )
                for life, of_life in pairs.items()
            },
            taken[0],
        )

    def of_life(self, life: PartitionIncarnation) -> PartitionNeed:
        """Return the need of one incarnation of a partition; empty if no point has it."""
        return self.by_life.get(life) or PartitionNeed(lacked_from_ms=self.first_at_ms)


def roles_of(declared: TopicRoles, points: Iterable[RecoveryPoint]) -> TopicRoles:
    """Return all roles of a topic, now and at the times of these points."""
    return TopicRoles(declared.union(*{cut.roles for p in points for cut in p.partitions}))


def _whole_from(
    cut: PartitionCut, roles: TopicRoles, committed: int | None, whole_logs: bool
) -> int:
    if whole_logs and not (roles.in_flight_only or roles.changelog_only):
        return min(cut.log_start, cut.end)
    return cut.whole_from(roles, committed)
