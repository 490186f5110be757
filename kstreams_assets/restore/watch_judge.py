"""Observations of a restored application over time, judged. Pure."""

from typing import Final

from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore import watch_troubles
from kstreams_assets.restore.watch_signs import (
    Assessment,
    Expected,
    Health,
    Limits,
    Observation,
    PartitionSeen,
    Trouble,
)

_GOALS: Final = 2


class Judge:
    """Judges observations of one application, given in the order in which they were made."""

    def __init__(self, expected: Expected, limits: Limits) -> None:
        self._expected = expected
        self._limits = limits
        restored = sum(expected.changelog_records.values())
        self._patience_s = limits.not_moving_after_s + restored / limits.restored_per_s
        self._began_s: float | None = None
        self._stable_since_s: float | None = None
        self._unstable_since_s: float | None = None
        # partitions with records left: the committed offset, and since when it is that
        self._standing: dict[TopicPartitionId, tuple[int | None, float]] = {}
        self._epochs_ahead: dict[TopicPartitionId, tuple[int | None, int]] = {}
        self._goals: dict[TopicPartitionId, int] | None = None
        self._reached = 0

    def judge(self, seen: Observation) -> Assessment:
        """What this observation means."""
        if self._began_s is None:
            self._began_s = seen.at_s
        watched_s = seen.at_s - self._began_s
        self._note_group(seen)
        self._note_standing(seen)
        self._note_goals(seen)
        troubles = (
            *watch_troubles.of_topics(self._expected, seen),
            *watch_troubles.of_offsets(self._expected, seen),
            *watch_troubles.of_epochs(seen, self._stale_epochs(seen)),
            *self._of_group(seen, watched_s),
            *self._of_movement(seen),
        )
        partitions = seen.partitions.values()
        return Assessment(
            health=self._health(seen, troubles, watched_s),
            observation=seen,
            watched_s=watched_s,
            records_left=sum(p.at_most_left for p in partitions),
            counted=all(p.records_left is not None for p in partitions),
            moved=sum(self._has_moved(id_, p) for id_, p in seen.partitions.items()),
            partitions=len(seen.partitions),
            troubles=troubles,
        )

    def _health(self, seen: Observation, troubles: tuple[Trouble, ...], watched_s: float) -> Health:
        if any(trouble.is_fatal for trouble in troubles):
            return Health.UNHEALTHY
        if self._reached >= _GOALS:
            return Health.HEALTHY
        if watched_s >= self._limits.timeout_s:
            return Health.TIMED_OUT
        return Health.CATCHING_UP if seen.has_members else Health.WAITING

    def _has_moved(self, id_: TopicPartitionId, partition: PartitionSeen) -> bool:
        before = self._expected.committed.get(id_)
        now = partition.committed
        return now is not None and (before is None or now > before)

    def _note_group(self, seen: Observation) -> None:
        if not seen.is_stable:
            self._stable_since_s = None
        elif self._stable_since_s is None:
            self._stable_since_s = seen.at_s
        if seen.is_stable or not seen.has_members:
            self._unstable_since_s = None
        elif self._unstable_since_s is None:
            self._unstable_since_s = seen.at_s

    def _note_standing(self, seen: Observation) -> None:
        standing = {}
        for id_, partition in seen.partitions.items():
            if partition.next_record is not None:
                before = self._standing.get(id_)
                is_same = before is not None and before[0] == partition.committed
                now = (partition.committed, seen.at_s)
                standing[id_] = before if before is not None and is_same else now
        self._standing = standing

    def _note_goals(self, seen: Observation) -> None:
        """Follow two goals: what lay in the logs at first, then what lay there on reaching it.

        An application under load never reads its last record. What it writes to its own
        repartition topics on the way to the first goal belongs to the second.
        """
        ends = {id_: partition.end for id_, partition in seen.partitions.items()}
        if not seen.is_stable:
            self._goals, self._reached = None, 0
        elif self._goals is None:
            self._goals = ends
        elif all(
            _has_passed(seen.partitions[id_], goal)
            for id_, goal in self._goals.items()
            if id_ in seen.partitions
        ):
            self._goals, self._reached = ends, self._reached + 1

    def _stale_epochs(self, seen: Observation) -> dict[TopicPartitionId, tuple[int | None, int]]:
        """Epochs ahead of their partition, seen twice: brokers hear of elections one by one."""
        ahead = {
            id_: (partition.committed, partition.leader_epoch)
            for id_, partition in seen.partitions.items()
            if partition.leader_epoch is not None
            and partition.current_epoch is not None
            and partition.leader_epoch > partition.current_epoch
        }
        stale = {id_: now for id_, now in ahead.items() if self._epochs_ahead.get(id_) == now}
        self._epochs_ahead = ahead
        return stale

    def _of_group(self, seen: Observation, watched_s: float) -> list[Trouble]:
        limits, since_s = self._limits, self._unstable_since_s
        if not seen.has_members:
            if watched_s < limits.not_started_after_s:
                return []
            return watch_troubles.not_started(self._expected, seen, watched_s)
        if since_s is None or seen.at_s - since_s < limits.not_stable_after_s:
            return []
        return [watch_troubles.not_stable(self._expected, seen, seen.at_s - since_s)]

    def _of_movement(self, seen: Observation) -> list[Trouble]:
        since_s = self._stable_since_s
        if since_s is None or seen.at_s - since_s < self._patience_s:
            return []
        stuck = [
            id_
            for id_, (_, standing_s) in self._standing.items()
            if seen.at_s - standing_s >= self._patience_s
        ]
        return watch_troubles.not_moving(self._expected, seen, stuck, self._patience_s)


def _has_passed(seen: PartitionSeen, goal: int) -> bool:
    return seen.next_record is None or seen.next_record >= goal
