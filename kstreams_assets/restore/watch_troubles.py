"""Signs of trouble in one observation of a restored application, with what to do. Pure.

What needs several observations (how long, again) is told to these functions by `watch_judge`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.restore.watch_signs import Expected, Observation, Sign, Trouble

_FEW: Final = 5
_DAY_MS: Final = 86_400_000
# offsets.retention.minutes of a broker is 7 days unless it is set.
_OFFSETS_KEPT_DAYS: Final = 7
_WARN_OF_EXPIRY_DAYS: Final = 5
_AGAIN: Final = (
    "delete the topics of the restore, restore again, delete state.dir/<application.id> on every"
    " instance, and start the application."
)


def of_topics(expected: Expected, seen: Observation) -> list[Trouble]:
    """Topics that are not those of the restore any more, and restored records that were deleted."""
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
            "Deleted or made anew since the restore: topic {}. Its records and committed offsets"
            " are gone; Kafka Streams takes an empty changelog without a word.",
            f"Stop the application, {_AGAIN}",
        ),
        *_trouble(
            Sign.RECORDS_DELETED,
            deleted,
            "Restored records were deleted: {}. What the application had not loaded of them is"
            " missing in its state.",
            f"Find out who changed retention.ms or deleted records; stop the application, {_AGAIN}",
        ),
    ]


def of_offsets(expected: Expected, seen: Observation) -> list[Trouble]:
    """Committed offsets that are gone, went back, or lie outside the log."""
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
            "Keep the application stopped: it would read everything again on top of its state. Run"
            " the restore again, which commits them anew; if the application ran meanwhile, first"
            " delete the topics of the restore.",
        ),
        *_trouble(
            Sign.OFFSETS_RESET,
            back,
            "Committed offsets went back: {}. Input is applied a second time on top of the restored"
            " state (auto.offset.reset, or somebody set them).",
            f"The state on this cluster is wrong. Stop the application, {_AGAIN}",
        ),
        *_trouble(
            Sign.OFFSETS_OUT_OF_RANGE,
            outside,
            "Committed offsets lie outside the log: {}. The application goes on where"
            " auto.offset.reset says: it reads everything again, or skips records.",
            f"Records were deleted (retention, DeleteRecords). Stop the application, {_AGAIN}",
        ),
    ]


def of_epochs(
    seen: Observation, stale: Mapping[TopicPartitionId, tuple[int | None, int]]
) -> list[Trouble]:
    """Offsets with a leader epoch that their partition has not reached; consumers then wait."""
    shown = [
        f"{id_} (offset {committed} with epoch {epoch}, the partition has"
        f" {seen.partitions[id_].current_epoch})"
        for id_, (committed, epoch) in sorted(stale.items())
    ]
    return _trouble(
        Sign.STALE_LEADER_EPOCH,
        shown,
        "Offsets were committed with a leader epoch of another cluster: {}. The application is a"
        " stable member and reads nothing, for ever; its log is clean.",
        "A restore commits none, so something else copies offsets to this cluster: stop it, and the"
        " application; run the restore again (it commits the offsets anew); start the application.",
    )


def not_started(expected: Expected, seen: Observation, waited_s: float) -> list[Trouble]:
    """A group that has had no member for a while, and what becomes of its offsets."""
    new = f" New on the cluster since: group {_few(seen.new_groups)}." if seen.new_groups else ""
    troubles = [
        Trouble(
            Sign.NOT_STARTED,
            f"Group {expected.group} has had no member for {waited_s:.0f} s.{new}",
            f"Start the application. If it runs: its application.id must be {expected.group}, its"
            " bootstrap.servers this cluster.",
        )
    ]
    days = _days_since_commit(expected, seen)
    if days is not None and days >= _WARN_OF_EXPIRY_DAYS:
        troubles.append(
            Trouble(
                Sign.OFFSETS_EXPIRE,
                f"The offsets of group {expected.group} were committed {days:.1f} days ago and"
                " nobody has joined: brokers forget them after offsets.retention.minutes"
                f" ({_OFFSETS_KEPT_DAYS} days by default).",
                "Start the application now, or run the restore again, which commits them anew.",
            )
        )
    return troubles


def not_stable(expected: Expected, seen: Observation, since_s: float) -> Trouble:
    """A group with members that stays without an assignment."""
    return Trouble(
        Sign.NOT_STABLE,
        f"Group {expected.group} has been {seen.group_state} for {since_s:.0f} s.",
        "Read the application's log: members that start and fail again; input topics that are"
        " missing or partition counts that differ (NotReady).",
    )


def not_moving(
    expected: Expected, seen: Observation, stuck: Iterable[TopicPartitionId], patience_s: float
) -> list[Trouble]:
    """Partitions with records left for which a stable group commits nothing."""
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
        "Look into the application's log. 'Restoration in progress': it still loads its stores"
        f" ({changelogs:,} records), wait longer. Tasks that are corrupted or cannot be locked: an"
        " old state.dir; stop, delete state.dir/<application.id> on every instance, start. Errors"
        " about a record: it cannot be processed. Nothing at all: the consumer holds a leader epoch"
        " of another cluster; stop, run the restore again (it commits the offsets anew), start.",
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


def _trouble(sign: Sign, shown: list[str], problem: str, remedy: str) -> list[Trouble]:
    return [Trouble(sign, problem.replace("{}", _few(shown)), remedy)] if shown else []


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _FEW} more" if len(listed) > _FEW else ""
    return ", ".join(listed[:_FEW]) + more
