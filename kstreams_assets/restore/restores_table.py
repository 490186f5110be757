"""The table `restores`: every state that each restore has gone through."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

import pyarrow.compute as pc

from kstreams_assets.recovery.point import GroupOffset
from kstreams_assets.restore.plan import PlacedTopic
from kstreams_assets.restore.request import RestoreMode
from kstreams_assets.warehouse.column import ApplicationId, Column, RunId
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.table import Table


class RestoreState(StrEnum):
    """How far a restore is.

    `planned`: it has begun, topics may be there in part. `produced`: all records are on the target,
    the offset maps are stored. `verified`: the target was read back and is as in the backup.
    `failed_verification`: it is not; no group offset was committed. `committed`: the group offsets
    are on the target. `rolled_back`: the former group offsets are there again. `finished`: the
    application has caught up and the topics have their own configs again.
    """

    PLANNED = "planned"
    PRODUCED = "produced"
    VERIFIED = "verified"
    FAILED_VERIFICATION = "failed_verification"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """One restored topic.

    `target_topic_id` tells a topic that this restore wrote from another one of the same name.
    `base_offsets` are, by partition, the target's ends before the first restored record. `roles`
    are the values of `TopicRole`. `put_back` are the configs that `finish` sets, None removes the
    topic's own value. `created`: the restore created the topic.
    """

    source: str
    target: str
    target_topic_id: str
    base_offsets: tuple[int, ...]
    records: int
    roles: tuple[str, ...] = ()
    put_back: Mapping[str, str | None] = field(default_factory=dict)
    created: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRestore:
    """A restore in one of its states, a row of the table; `change` is set when it is stored.

    `run_id` is the run that changed the state. `to_commit` are the point's offsets, set once all
    records are produced.
    """

    application_id: ApplicationId
    restore_id: Annotated[str, Column("The same for the same point, mode, names and target.")]
    change: Annotated[
        int,
        Column("Number of the change; the highest one is how the restore stands.", type="int32"),
    ] = field(default=0, compare=False)
    state: Annotated[
        RestoreState,
        Column(
            "`planned`, `produced`, `verified`, `failed_verification`, `committed`,"
            " `rolled_back`, `finished`."
        ),
    ]
    changed_at_ms: Annotated[int, Column("When it came into this state, epoch milliseconds.")]
    created_at_ms: Annotated[int, Column("When it was begun, epoch milliseconds.")]
    run_id: RunId
    point_id: Annotated[str, Column("The recovery point.")]
    group: Annotated[str, Column("Consumer group on the target, its application id.")]
    target_cluster_id: Annotated[str, Column("Id of the target cluster.")]
    target_bootstrap_servers: Annotated[str, Column("Where it was.")]
    mode: Annotated[RestoreMode, Column("`state`, `rebuild` or `inputs_until`.")]
    request: Annotated[str, Column("What was asked for, as JSON.")]
    topics: Annotated[
        tuple[StoredTopic, ...],
        Column(
            "Names, id on the target, ends there before the first restored record, number of"
            " records, configs that `finish` puts back."
        ),
    ]
    former_offsets: Annotated[
        tuple[GroupOffset, ...] | None,
        Column("What the group had committed on the target before; null before the commit."),
    ] = None
    to_commit: Annotated[
        tuple[GroupOffset, ...],
        Column("What is to be committed once the restore is verified, in the target's offsets."),
    ] = ()
    committed: Annotated[
        tuple[GroupOffset, ...] | None,
        Column("What was committed, in the target's offsets; null before the commit."),
    ] = None
    verified_records: Annotated[int | None, Column("Records that were read back and compared.")] = (
        None
    )
    problem: Annotated[str, Column("What went wrong, empty when nothing did.")] = ""
    placed: Annotated[
        tuple[PlacedTopic, ...],
        Column(
            "Excluded topics in which the group goes on: where, how that is known, and its"
            " `offsets` there, which are among those `to_commit`; null in rows of earlier releases."
        ),
    ] = ()

    @property
    def asked(self) -> Mapping[str, Any]:
        """The request as it was stored; fields that an earlier release did not know are absent."""
        return json.loads(self.request)

    @property
    def skips_completeness(self) -> bool:
        """Whether group offsets may be committed whatever completeness rules say."""
        return bool(self.asked.get("skip_completeness", False))

    def own_topic(self, target: str, topic_id: str) -> StoredTopic | None:
        """What was noted of a target topic, if the topic of this id is the one that was noted.

        A topic that was noted before it was created, and not after, has no id yet.
        """
        for topic in self.topics:
            if topic.target == target:
                return topic if topic.target_topic_id in ("", topic_id) else None
        return None

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to be done, so that the recovery point may go."""
        return self.state is RestoreState.FINISHED


class RestoresTable:
    """Restores of all applications, one row for each change of state."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._table = Table(
            warehouse.control("restores"),
            StoredRestore,
            grows_along="changed_at_ms",
            statistics=("restore_id", "change", "changed_at_ms"),
        )

    def append(self, restore: StoredRestore) -> None:
        """Store a restore in a new state, which from then on is its newest.

        The order in which states are stored decides, not the clock: it may have been set back.
        """
        earlier = self._changes(restore.application_id, restore.restore_id)
        self._table.append([replace(restore, change=max(earlier, default=0) + 1)])

    def newest(self, application_id: str, restore_id: str) -> StoredRestore | None:
        """A restore as it stands, None when there is none with this id."""
        return max(self._of(application_id, restore_id), key=_place, default=None)

    def all(self, application_id: str) -> list[StoredRestore]:
        """Every restore as it stands; the one that was begun last comes first."""
        return _as_they_stand(self._table.rows(application_id))

    def onto(self, target_cluster_id: str) -> list[StoredRestore]:
        """The restores of all applications onto one cluster, as in `all`."""
        where = pc.field("target_cluster_id") == target_cluster_id
        return _as_they_stand(self._table.rows(None, where))

    def history(self, application_id: str, restore_id: str) -> list[StoredRestore]:
        """A restore in each of its states, oldest first."""
        return sorted(self._of(application_id, restore_id), key=_place)

    def of_run(self, application_id: str, run_id: str) -> list[StoredRestore]:
        """The restores whose state this run changed, as they stand; as in `all`."""
        where = pc.field("run_id") == run_id
        rows = self._table.read(application_id=application_id, columns=["restore_id"], where=where)
        ids = set(rows["restore_id"].to_pylist())
        return [restore for restore in self.all(application_id) if restore.restore_id in ids]

    def unfinished(self, application_id: str) -> list[StoredRestore]:
        """The restores that are not finished, as they stand; as in `all`."""
        return [restore for restore in self.all(application_id) if not restore.is_finished]

    def pinned(self, application_id: str) -> frozenset[str]:
        """Ids of the recovery points that unfinished restores are made from."""
        points = {restore.point_id for restore in self.unfinished(application_id)}
        return frozenset(points - {""})

    def _of(self, application_id: str, restore_id: str) -> list[StoredRestore]:
        return self._table.rows(application_id, pc.field("restore_id") == restore_id)

    def _changes(self, application_id: str, restore_id: str) -> list[int]:
        where = pc.field("restore_id") == restore_id
        rows = self._table.read(application_id=application_id, columns=["change"], where=where)
        return rows["change"].to_pylist()


def writers_of(restores: Iterable[StoredRestore]) -> dict[str, StoredRestore]:
    """By the id of a target topic the restore that wrote it; the one that was begun last counts."""
    return {
        topic.target_topic_id: restore
        for restore in sorted(restores, key=lambda r: (r.created_at_ms, r.restore_id))
        for topic in restore.topics
        if topic.target_topic_id
    }


def _as_they_stand(restores: Iterable[StoredRestore]) -> list[StoredRestore]:
    newest = {(r.application_id, r.restore_id): r for r in sorted(restores, key=_place)}
    return sorted(newest.values(), key=lambda r: (r.created_at_ms, r.restore_id), reverse=True)


def _place(restore: StoredRestore) -> tuple[int, int]:
    """Two processes may have stored the same change of a restore at once: the later one counts."""
    return restore.change, restore.changed_at_ms
