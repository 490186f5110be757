"""Watches an application that was started on a restore until it is healthy or has failed."""

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kstreams_assets.checks import Finding, Severity
from kstreams_assets.errors import (
    KStreamsAssetsError,
    OffsetOutOfRangeError,
    RawReadTimeoutError,
    UnstableGroupOffsetsError,
)
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.raw_batch import RawBatch, content_of_range
from kstreams_assets.kafka.raw_log import RawLogReader
from kstreams_assets.model.restores import RestoreState, StoredRestore
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.public_form import Form, Seconds, Value
from kstreams_assets.restore.steps import Step, require
from kstreams_assets.restore.target import partitions_of, require_own_target, roles_of
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import few

NOT_SEEN_FROM_OUTSIDE: Final = (
    "Brokers cannot show whether an instance kept an old state.dir, which causes wrong results"
    " without an error. Check its log: 'Finished restoring changelog <partition> to store <store>"
    " with a total number of <n> records' (INFO, class StoreChangelogReader). At the first start,"
    " the <n> of all partitions of a changelog must add up to the number of restored records. A"
    " smaller sum means old state: stop all instances, delete state.dir/<application.id> on each,"
    " restore again, start."
)


class Health(StrEnum):
    """The health of the application.

    `waiting`: its group has no member. `catching_up`: it runs. `healthy`: it has read everything
    that was there. `unhealthy`: a problem that does not pass by waiting. `timed_out`: none of these
    within the time limit.
    """

    WAITING = "waiting"
    CATCHING_UP = "catching_up"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    TIMED_OUT = "timed_out"


class Sign(StrEnum):
    """A deviation from a healthy start; each of them fails without a log message."""

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


def diagnosis(sign: Sign, problem: str, remedy: str) -> Finding:
    """Return a sign with its observation and remedy; an error if waiting does not help."""
    severity = Severity.WARN if sign in _PASSING else Severity.ERROR
    return Finding(sign.value, problem, action=remedy, severity=severity)


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits, in seconds.

    Nothing moves while the application restores its stores from the changelogs. This takes
    additional time at `restored_per_s` records per second, above `not_moving_after_s`.
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
    read. `changelog_records` are the records from which it restores its stores, by topic.
    `kept_from` are log starts that must not move while the relaxed configs are effective
    (changelogs, global topics). `committed_at_ms` is None if it is unknown.
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

    `committed` is the group's next offset, None without one; `leader_epoch` is the epoch of that
    commit, `current_epoch` that of the partition's leader. `end` is the last stable offset.
    `next_record` is the first record from there on for a reader of committed records, None if only
    control records, aborted data and holes are left. `records_left` counts such records, None if
    they were too many to count (`next_record` is then the group's position).
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
        """Records left, or an upper bound if they were not counted."""
        if self.records_left is not None:
            return self.records_left
        start = self.log_start if self.committed is None else self.committed
        return max(0, self.end - start)


@dataclass(frozen=True, slots=True)
class Observation:
    """The cluster at one time.

    `at_s` is monotonic, `at_ms` is epoch milliseconds. `group_type`, `group_state` and `members` as
    in `GroupState`, None without a group. `topic_ids` are those of all existing topics.
    `log_starts` are those of `Expected.kept_from`. `new_groups` are other groups that appeared
    since the start of the watch.
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
    """The evaluation of an observation, given earlier ones.

    `records_left` is an upper bound unless `counted`. `moved` of `partitions` have a committed
    offset beyond the restored one. `watched_s` is the time since the first observation.
    """

    health: Health
    observation: Observation
    watched_s: float
    records_left: int
    counted: bool
    moved: int
    partitions: int
    troubles: tuple[Finding, ...]

    @property
    def has_ended(self) -> bool:
        """Whether further waiting is useless."""
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


ASSESSMENT: Final = Form(
    Assessment,
    "health",
    Value("watched_s", Seconds),
    Value(
        "group",
        of="observation",
        form=Form(Observation, "type=group_type state=group_state members"),
    ),
    "records_left counted moved partitions",
    Value("troubles", form=Form(Finding, "sign=subject problem=found remedy=action")),
)


_FEW: Final = 5
_DAY_MS: Final = 86_400_000
# offsets.retention.minutes of a broker is 7 days unless it is set.
_OFFSETS_KEPT_DAYS: Final = 7
_WARN_OF_EXPIRY_DAYS: Final = 5
_AGAIN: Final = (
    "delete the topics of the restore, restore again, delete state.dir/<application.id> on every"
    " instance, and start the application."
)


def of_topics(expected: Expected, seen: Observation) -> list[Finding]:
    """Return topics that are not those of the restore any more, and deleted restored records."""
    replaced = _replaced(expected, seen)
    deleted = [
        f"{id_} (log start {seen.log_starts[id_]}, restored from {start})"
        for id_, start in sorted(expected.kept_from.items())
        if seen.log_starts.get(id_, start) > start and id_.topic not in replaced
    ]
    return [
        *_trouble(
            Sign.TOPIC_REPLACED,
            replaced,
            "Deleted or recreated since the restore: topic {}. Its records and committed offsets"
            " are lost; Kafka Streams accepts an empty changelog without an error.",
            f"Stop the application, {_AGAIN}",
        ),
        *_trouble(
            Sign.RECORDS_DELETED,
            deleted,
            "Restored records were deleted: {}. Records that the application had not loaded are"
            " missing from its state.",
            f"Find out who changed retention.ms or deleted records; stop the application, {_AGAIN}",
        ),
    ]


def of_offsets(expected: Expected, seen: Observation) -> list[Finding]:
    """Return committed offsets that are gone, moved backwards, or are outside the log."""
    gone, back, outside = [], [], []
    replaced = set(_replaced(expected, seen))
    for id_, partition in sorted(seen.partitions.items()):
        if id_.topic in replaced:
            continue
        wanted, committed = expected.committed.get(id_), partition.committed
        if committed is None:
            if wanted is not None:
                gone.append(f"{id_} ({wanted} was committed)")
        elif not partition.log_start <= committed <= partition.high_watermark:
            log = f"the log holds {partition.log_start} to {partition.high_watermark}"
            outside.append(f"{id_} ({committed}; {log})")
        elif wanted is not None and committed < wanted:
            back.append(f"{id_} ({committed}; {wanted} was committed)")
    return [
        *_trouble(
            Sign.OFFSETS_GONE,
            gone,
            f"Committed offsets of group {expected.group} are gone: {{}}."
            f" {_why_gone(expected, seen)}",
            "Keep the application stopped: it would apply all records again on top of its state."
            " Run the restore again to commit the offsets again. If the application ran"
            " meanwhile, delete the topics of the restore first.",
        ),
        *_trouble(
            Sign.OFFSETS_RESET,
            back,
            "Committed offsets moved backwards: {}. Input is applied twice to the restored state"
            " (auto.offset.reset, or a manual offset change).",
            f"The state on this cluster is wrong. Stop the application, {_AGAIN}",
        ),
        *_trouble(
            Sign.OFFSETS_OUT_OF_RANGE,
            outside,
            "Committed offsets are outside the log: {}. The application continues at"
            " auto.offset.reset: it reads all records again, or skips records.",
            f"Records were deleted (retention, DeleteRecords). Stop the application, {_AGAIN}",
        ),
    ]


def of_epochs(
    seen: Observation, stale: Mapping[TopicPartitionId, tuple[int | None, int]]
) -> list[Finding]:
    """Return offsets with a leader epoch ahead of their partition; consumers then wait."""
    shown = [
        f"{id_} (offset {committed} with epoch {epoch}, the partition has"
        f" {seen.partitions[id_].current_epoch})"
        for id_, (committed, epoch) in sorted(stale.items())
    ]
    return _trouble(
        Sign.STALE_LEADER_EPOCH,
        shown,
        "Offsets were committed with a leader epoch of another cluster: {}. The application is a"
        " stable member but never reads a record, without an error in its log.",
        "Restores commit no leader epochs, so another process copies offsets to this cluster."
        " Stop it and the application, run the restore again to commit the offsets, then start"
        " the application.",
    )


def not_started(expected: Expected, seen: Observation, waited_s: float) -> list[Finding]:
    """Return a group without members for a while, and the expiry of its offsets."""
    new = (
        f" New on the cluster since: group {few(seen.new_groups, _FEW)}." if seen.new_groups else ""
    )
    troubles = [
        diagnosis(
            Sign.NOT_STARTED,
            f"Group {expected.group} has had no member for {waited_s:.0f} s.{new}",
            "Start the application. If it is running, check that its application.id is"
            f" {expected.group} and that its bootstrap.servers point to this cluster.",
        )
    ]
    days = _days_since_commit(expected, seen)
    if days is not None and days >= _WARN_OF_EXPIRY_DAYS:
        troubles.append(
            diagnosis(
                Sign.OFFSETS_EXPIRE,
                f"The offsets of group {expected.group} were committed {days:.1f} days ago, and no"
                " member has joined. Brokers delete them after offsets.retention.minutes"
                f" ({_OFFSETS_KEPT_DAYS} days by default).",
                "Start the application now, or run the restore again to commit them again.",
            )
        )
    return troubles


def not_stable(expected: Expected, seen: Observation, since_s: float) -> Finding:
    """Return a group with members that remains without an assignment."""
    return diagnosis(
        Sign.NOT_STABLE,
        f"Group {expected.group} has been {seen.group_state} for {since_s:.0f} s.",
        "Check the application's log for restarting members, missing input topics or different"
        " partition counts (NotReady).",
    )


def not_moving(
    expected: Expected, seen: Observation, stuck: Iterable[TopicPartitionId], patience_s: float
) -> list[Finding]:
    """Return partitions with records left for which a stable group commits nothing."""
    shown = []
    for id_ in sorted(stuck):
        partition = seen.partitions[id_]
        place = "no offset" if partition.committed is None else f"offset {partition.committed}"
        shown.append(f"{id_} ({place}, {partition.at_most_left:,} records left)")
    changelogs = sum(expected.changelog_records.values())
    return _trouble(
        Sign.NOT_MOVING,
        shown,
        f"The group is Stable, but for {patience_s:.0f} s nothing was committed for {{}}.",
        "Check the application's log. 'Restoration in progress': it is still loading its stores"
        f" ({changelogs:,} records), wait longer. Corrupted or locked tasks: an old state.dir;"
        " stop, delete state.dir/<application.id> on every instance, start. Errors about a"
        " record: the application cannot process it. No message: the consumer has a leader epoch"
        " of another cluster; stop, run the restore again to commit the offsets, start.",
    )


def _replaced(expected: Expected, seen: Observation) -> list[str]:
    return [
        name
        for name, topic_id in sorted(expected.topic_ids.items())
        if seen.topic_ids.get(name) != topic_id
    ]


def _why_gone(expected: Expected, seen: Observation) -> str:
    days = _days_since_commit(expected, seen)
    if days is not None and days >= _OFFSETS_KEPT_DAYS:
        return (
            f"They were committed {days:.1f} days ago, and a group without members loses its"
            " offsets"
            f" after offsets.retention.minutes ({_OFFSETS_KEPT_DAYS} days by default)."
        )
    return "The group was deleted, or its offsets were."


def _days_since_commit(expected: Expected, seen: Observation) -> float | None:
    if expected.committed_at_ms is None:
        return None
    return (seen.at_ms - expected.committed_at_ms) / _DAY_MS


def _trouble(sign: Sign, shown: list[str], problem: str, remedy: str) -> list[Finding]:
    return [diagnosis(sign, problem.replace("{}", few(shown, _FEW)), remedy)] if shown else []


_GOALS: Final = 2


class Evaluator:
    """Evaluates observations of one application, in their order."""

    def __init__(self, expected: Expected, limits: Limits) -> None:
        self._expected = expected
        self._limits = limits
        restored = sum(expected.changelog_records.values())
        self._patience_s = limits.not_moving_after_s + restored / limits.restored_per_s
        self._began_s: float | None = None
        self._stable_since_s: float | None = None
        self._unstable_since_s: float | None = None
        # partitions with records left: the committed offset, and since when it is unchanged
        self._unchanged: dict[TopicPartitionId, tuple[int | None, float]] = {}
        self._epochs_ahead: dict[TopicPartitionId, tuple[int | None, int]] = {}
        self._goals: dict[TopicPartitionId, int] | None = None
        self._reached = 0

    def evaluate(self, seen: Observation) -> Assessment:
        """Evaluate this observation."""
        if self._began_s is None:
            self._began_s = seen.at_s
        watched_s = seen.at_s - self._began_s
        self._record_group(seen)
        self._record_unchanged(seen)
        self._record_goals(seen)
        troubles = (
            *of_topics(self._expected, seen),
            *of_offsets(self._expected, seen),
            *of_epochs(seen, self._stale_epochs(seen)),
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

    def _health(self, seen: Observation, troubles: tuple[Finding, ...], watched_s: float) -> Health:
        if any(trouble.severity is Severity.ERROR for trouble in troubles):
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

    def _record_group(self, seen: Observation) -> None:
        if not seen.is_stable:
            self._stable_since_s = None
        elif self._stable_since_s is None:
            self._stable_since_s = seen.at_s
        if seen.is_stable or not seen.has_members:
            self._unstable_since_s = None
        elif self._unstable_since_s is None:
            self._unstable_since_s = seen.at_s

    def _record_unchanged(self, seen: Observation) -> None:
        standing = {}
        for id_, partition in seen.partitions.items():
            if partition.next_record is not None:
                before = self._unchanged.get(id_)
                is_same = before is not None and before[0] == partition.committed
                now = (partition.committed, seen.at_s)
                standing[id_] = before if before is not None and is_same else now
        self._unchanged = standing

    def _record_goals(self, seen: Observation) -> None:
        """Track two goals: the log ends at first, then those on reaching the first goal.

        An application under load never reads its last record. Records that it writes to its own
        repartition topics on the way to the first goal belong to the second.
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
        """Return epochs ahead of their partition, seen twice: brokers learn of elections late."""
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

    def _of_group(self, seen: Observation, watched_s: float) -> list[Finding]:
        limits, since_s = self._limits, self._unstable_since_s
        if not seen.has_members:
            if watched_s < limits.not_started_after_s:
                return []
            return not_started(self._expected, seen, watched_s)
        if since_s is None or seen.at_s - since_s < limits.not_stable_after_s:
            return []
        return [not_stable(self._expected, seen, seen.at_s - since_s)]

    def _of_movement(self, seen: Observation) -> list[Finding]:
        since_s = self._stable_since_s
        if since_s is None or seen.at_s - since_s < self._patience_s:
            return []
        stuck = [
            id_
            for id_, (_, standing_s) in self._unchanged.items()
            if seen.at_s - standing_s >= self._patience_s
        ]
        return not_moving(self._expected, seen, stuck, self._patience_s)


def _has_passed(seen: PartitionSeen, goal: int) -> bool:
    return seen.next_record is None or seen.next_record >= goal


# How much of the raw log one observation counts: the lag must be exact only if it is small.
_COUNTED_OFFSETS: Final = 50_000
_COUNTING_S: Final = 8.0


def watch(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaCluster,
    *,
    limits: Limits = Limits(),
    report: Callable[[Assessment], None] | None = None,
) -> Assessment:
    """Watch the application until it is healthy, has failed, or time is up; return the assessment.

    `report` receives every assessment, one each `limits.every_s`. Needs DESCRIBE on the group and
    READ on the topics it reads. Raises what `follow` raises.
    """
    assessments = follow(settings, restore, target, limits=limits)
    while True:
        assessment = next(assessments)
        if report is not None:
            report(assessment)
        if assessment.has_ended:
            assessments.close()
            return assessment


def follow(
    settings: ApplicationSettings,
    restore: StoredRestore,
    target: KafkaCluster,
    *,
    limits: Limits = Limits(),
) -> Generator[Assessment, None, None]:
    """Assess the application every `limits.every_s` seconds; the last assessment has ended.

    Raises KStreamsAssetsError unless the group offsets of the restore are committed, and for mode
    `logs`; what `require_own_target` raises; KafkaError if the target does not answer or rights
    are missing.
    """
    require(restore, Step.WATCH)
    if not restore.mode.commits_offsets:
        raise KStreamsAssetsError(
            f"Restore {restore.restore_id} has mode {restore.mode}: it commits no group offsets, so"
            " no application continues from it.",
            remedy="Run kstreams-assets restore finish to restore the topics' original configs.",
        )
    require_own_target(settings, restore, target)
    expected = expected_of(restore)
    evaluator = Evaluator(expected, limits)
    observer = _Observer(target, expected)
    give_up_s = time.monotonic() + limits.timeout_s
    while True:
        began = time.monotonic()
        try:
            assessment = evaluator.evaluate(observer.observe())
        except UnstableGroupOffsetsError:
            if time.monotonic() > give_up_s:
                raise
            continue  # commits are in progress: the request waited 25 s and is repeated
        yield assessment
        if assessment.has_ended:
            return
        time.sleep(max(0.0, limits.every_s - (time.monotonic() - began)))


def expected_of(restore: StoredRestore) -> Expected:
    """Return what a restore left on its target.

    The group has to read the partitions for which it had offsets. If none were committed (all is
    recomputed), it has to read all its inputs.
    """
    committed = {one.id: one.offset for one in restore.committed or ()}
    inputs = frozenset(
        id_
        for topic in restore.topics
        if roles_of(topic).is_read_by_group
        for id_ in partitions_of(topic)
    )
    is_relaxed = restore.state is not RestoreState.FINISHED
    return Expected(
        group=restore.group,
        topic_ids={topic.target: topic.target_topic_id for topic in restore.topics},
        committed=committed,
        required=frozenset(committed) or inputs,
        changelog_records={
            topic.target: topic.records for topic in restore.topics if roles_of(topic).is_changelog
        },
        kept_from={
            id_: base
            for topic in restore.topics
            if is_relaxed and roles_of(topic).rebuilds_store
            for id_, base in zip(partitions_of(topic), topic.base_offsets, strict=True)
        },
        committed_at_ms=(
            restore.changed_at_ms if restore.state is RestoreState.COMMITTED else None
        ),
    )


class _Observer:
    """Observes one group and its logs."""

    def __init__(self, cluster: KafkaCluster, expected: Expected) -> None:
        self._cluster = cluster
        self._expected = expected
        self._raw = cluster.raw_log()
        self._read_by_group = set(expected.required)
        self._groups_at_first: frozenset[str] | None = None

    def observe(self) -> Observation:
        """Return the present state of the cluster."""
        expected, cluster = self._expected, self._cluster
        present = cluster.metadata().topics
        state = cluster.group_state(expected.group)
        is_idle = state is None or state.is_empty
        kept = [id_ for id_ in expected.kept_from if id_.topic in present]
        wanted = {id_ for id_ in self._read_by_group if id_.topic in present}
        # log starts first: the application deletes records after committing them as processed
        starts = dict(cluster.log_start_offsets({*kept, *wanted}))
        committed = {
            id_: offset
            for id_, offset in cluster.group_offsets(expected.group).items()
            if id_.topic in present
        }
        self._read_by_group |= committed.keys()
        return Observation(
            at_s=time.monotonic(),
            at_ms=time.time_ns() // 1_000_000,
            group_type=None if state is None else state.type,
            group_state=None if state is None else state.state,
            members=None if state is None else state.member_count,
            topic_ids={name: topic.topic_id for name, topic in present.items()},
            partitions=self._partitions({*wanted, *committed}, starts, committed),
            log_starts={id_: starts[id_] for id_ in kept},
            new_groups=self._new_groups() if is_idle else (),
        )

    def _partitions(
        self,
        wanted: set[TopicPartitionId],
        starts: dict[TopicPartitionId, int],
        committed: Mapping[TopicPartitionId, CommittedOffset],
    ) -> dict[TopicPartitionId, PartitionSeen]:
        late = wanted - starts.keys()
        if (
            late
        ):  # the group has just started to commit these: their log starts may have moved since
            starts |= {
                id_: min(start, committed[id_].offset)
                for id_, start in self._cluster.log_start_offsets(late).items()
            }
        ends = self._cluster.last_stable_offsets(wanted)
        highs = self._cluster.high_watermarks(wanted)
        epochs = self._cluster.leader_epochs({id_.topic for id_ in wanted})
        positions = {
            id_: committed[id_].offset if id_ in committed else starts[id_] for id_ in wanted
        }
        left = self._left(positions, starts, ends)
        return {
            id_: PartitionSeen(
                committed=committed[id_].offset if id_ in committed else None,
                log_start=starts[id_],
                end=ends[id_],
                high_watermark=highs[id_],
                next_record=left[id_][0],
                records_left=left[id_][1],
                leader_epoch=committed[id_].leader_epoch if id_ in committed else None,
                current_epoch=epochs.get(id_),
            )
            for id_ in sorted(wanted)
        }

    def _left(
        self,
        positions: Mapping[TopicPartitionId, int],
        starts: Mapping[TopicPartitionId, int],
        ends: Mapping[TopicPartitionId, int],
    ) -> dict[TopicPartitionId, tuple[int | None, int | None]]:
        """Return next record and number of records left by partition, shortest remainder first."""
        deadline = time.monotonic() + _COUNTING_S
        left: dict[TopicPartitionId, tuple[int | None, int | None]] = {}
        for id_ in sorted(positions, key=lambda id_: ends[id_] - positions[id_]):
            start, end = max(positions[id_], starts[id_]), ends[id_]
            limit_s = deadline - time.monotonic()
            if start >= end:
                left[id_] = (None, 0)
            elif end - start > _COUNTED_OFFSETS or limit_s <= 0:
                left[id_] = (start, None)
            else:
                left[id_] = records_left(self._raw, id_, start, end, deadline_s=limit_s)
        return left

    def _new_groups(self) -> tuple[str, ...]:
        found = self._cluster.group_ids()
        if self._groups_at_first is None:
            self._groups_at_first = found | {self._expected.group}
        return tuple(sorted(found - self._groups_at_first))


def records_left(
    raw: RawLogReader, partition: TopicPartitionId, start: int, end: int, *, deadline_s: float
) -> tuple[int | None, int | None]:
    """Return the first committed record in [start, end) and their number; None without any.

    Control records, aborted data and records removed by compaction do not count. If `deadline_s`
    is over or the log has moved, nothing is counted and the first is `start`.
    """
    try:
        batches = list(raw.scan(partition, start, end, deadline_s=deadline_s))
    except (RawReadTimeoutError, OffsetOutOfRangeError):
        return start, None
    return _first_visible(batches, start, end), content_of_range(batches, start, end).visible


def _first_visible(batches: list[RawBatch], start: int, end: int) -> int | None:
    for batch in batches:
        if batch.is_control or batch.aborted is not False:
            continue
        offsets = batch.record_offsets
        if offsets is None:
            offsets = range(batch.base_offset, batch.last_offset + 1)
        first = next((offset for offset in offsets if start <= offset < end), None)
        if first is not None:
            return first
    return None
