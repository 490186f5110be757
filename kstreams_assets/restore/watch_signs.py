"""What can be seen of a restored application on its new cluster. Pure.

Only what brokers know is judged: group, committed offsets, logs. Whether an instance started with
an old `state.dir` is not among it; `NOT_SEEN_FROM_OUTSIDE` says how an operator can tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kstreams_assets.offsets import TopicPartitionId

NOT_SEEN_FROM_OUTSIDE: Final = (
    "Brokers cannot show whether an instance kept an old state.dir, which gives wrong results"
    " without an error. Its log does: 'Finished restoring changelog <partition> to store <store>"
    " with a total number of <n> records' (INFO, class StoreChangelogReader). At the first start"
    " the <n> of all partitions of a changelog must add up to the number restored. Less means old"
    " state: stop all instances, delete state.dir/<application.id> on each, restore again, start."
)


class Health(StrEnum):
    """How the application does.

    `waiting`: its group has no member. `catching_up`: it runs. `healthy`: it has read everything
    that was there. `unhealthy`: something that does not pass by waiting. `timed_out`: none of these
    in the time allowed.
    """

    WAITING = "waiting"
    CATCHING_UP = "catching_up"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    TIMED_OUT = "timed_out"


class Sign(StrEnum):
    """Something that is not as in a healthy start; each fails without a word in the log."""

    NOT_STARTED = "not_started"
    OFFSETS_EXPIRE = "offsets_expire"
    NOT_STABLE = "not_stable"
    NOT_MOVING = "not_moving"
    STALE_LEADER_EPOCH = "stale_leader_epoch"
    OFFSETS_GONE = "offsets_gone"
    OFFSETS_RESET = "offsets_reset"
    OFFSETS_OUT_OF_RANGE = "offsets_out_of_range"
    TOPIC_REPLACED = "topic_replaced"
    RECORDS_DELETED = "records_deleted"


_PASSING: Final = {Sign.NOT_STARTED, Sign.OFFSETS_EXPIRE, Sign.NOT_STABLE}


@dataclass(frozen=True, slots=True)
class Trouble:
    """One sign, what was seen, and what the operator should do."""

    sign: Sign
    problem: str
    remedy: str

    @property
    def is_fatal(self) -> bool:
        """Whether waiting does not help."""
        return self.sign not in _PASSING

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take, in seconds.

    Nothing moves while the application restores its stores from the changelogs: for that it is
    given the time that `restored_per_s` records a second take, above `not_moving_after_s`.
    """

    every_s: float = 3.0
    timeout_s: float = 900.0
    not_started_after_s: float = 60.0
    not_stable_after_s: float = 120.0
    not_moving_after_s: float = 60.0
    restored_per_s: float = 20_000.0


@dataclass(frozen=True, slots=True)
class Expected:
    """What the restore left on the target, in the target's names and offsets.

    `committed` are the offsets it committed, `required` the partitions that the application has to
    read. `changelog_records` are the records it restores its stores from, by topic; `kept_from` the
    log starts that must not move while the relaxed configs hold (changelogs, global topics).
    `committed_at_ms` is None when it is not known.
    """

    group: str
    topic_ids: Mapping[str, str]
    committed: Mapping[TopicPartitionId, int]
    required: frozenset[TopicPartitionId]
    changelog_records: Mapping[str, int] = field(default_factory=dict)
    kept_from: Mapping[TopicPartitionId, int] = field(default_factory=dict)
    committed_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """One partition that the group reads.

    `committed` is what the group reads next, None without one; `leader_epoch` the epoch it was
    committed with, `current_epoch` that of the partition's leader. `end` is the last stable offset.
    `next_record` is the first record from there on that a reader of committed records gets, None
    when only control records, aborted data and holes are left; `records_left` counts such records,
    None when they were too many to count (`next_record` is then where the group stands).
    """

    committed: int | None
    log_start: int
    end: int
    high_watermark: int
    next_record: int | None
    records_left: int | None
    leader_epoch: int | None = None
    current_epoch: int | None = None

    @property
    def at_most_left(self) -> int:
        """Records left, or an upper bound where they were not counted."""
        if self.records_left is not None:
            return self.records_left
        start = self.log_start if self.committed is None else self.committed
        return max(0, self.end - start)


@dataclass(frozen=True, slots=True)
class Observation:
    """The cluster at one moment.

    `at_s` counts on without jumps, `at_ms` is epoch milliseconds. `group_type`, `group_state` and
    `members` as in `GroupState`, None without a group. `topic_ids` are those of all topics there
    are. `log_starts` are those of `Expected.kept_from`. `new_groups` are other groups that appeared
    since the watch began.
    """

    at_s: float
    at_ms: int
    group_type: str | None
    group_state: str | None
    members: int | None
    topic_ids: Mapping[str, str]
    partitions: Mapping[TopicPartitionId, PartitionSeen]
    log_starts: Mapping[TopicPartitionId, int] = field(default_factory=dict)
    new_groups: tuple[str, ...] = ()

    @property
    def has_members(self) -> bool:
        """Whether an instance has joined the group."""
        return self.group_state not in (None, "Empty", "Dead")

    @property
    def is_stable(self) -> bool:
        """Whether the members have their partitions."""
        return self.group_state == "Stable"


@dataclass(frozen=True, slots=True)
class Assessment:
    """What one observation means, given those before it.

    `records_left` is an upper bound unless `counted`. `moved` of `partitions` have a committed
    offset beyond what the restore committed. `watched_s` is the time since the first observation.
    """

    health: Health
    observation: Observation
    watched_s: float
    records_left: int
    counted: bool
    moved: int
    partitions: int
    troubles: tuple[Trouble, ...]

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.health not in (Health.WAITING, Health.CATCHING_UP)

    def __str__(self) -> str:
        seen = self.observation
        group = f"{seen.group_type} group {seen.group_state}" if seen.group_state else "no group"
        if seen.members:
            group += f" with {seen.members} members" if seen.members > 1 else " with 1 member"
        left = f"{'' if self.counted else 'at most '}{self.records_left:,} records left"
        return (
            f"{self.health.value.replace('_', ' ')}: {group}; {left};"
            f" offsets moved in {self.moved} of {self.partitions} partitions"
        )
