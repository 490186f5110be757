"""The table `restores`: every state that each restore has gone through."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.recovery.point import GroupOffset
from kstreams_assets.restore.plan import PlacedTopic
from kstreams_assets.restore.request import InputsAt, RestoreMode
from kstreams_assets.warehouse.control_table import ControlTable
from kstreams_assets.warehouse.layout import Warehouse

_GROUP_OFFSETS = pa.list_(
    pa.struct(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("metadata", pa.string()),
        ]
    )
)

SCHEMA = pa.schema(
    [
        pa.field("application_id", pa.string(), nullable=False),
        pa.field("restore_id", pa.string(), nullable=False),
        pa.field("change", pa.int32(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("changed_at_ms", pa.int64(), nullable=False),
        pa.field("created_at_ms", pa.int64(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("point_id", pa.string(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("target_cluster_id", pa.string(), nullable=False),
        pa.field("target_bootstrap_servers", pa.string(), nullable=False),
        pa.field("mode", pa.string(), nullable=False),
        pa.field("request", pa.string(), nullable=False),
        pa.field(
            "topics",
            pa.list_(
                pa.struct(
                    [
                        ("source", pa.string()),
                        ("target", pa.string()),
                        ("target_topic_id", pa.string()),
                        ("base_offsets", pa.list_(pa.int64())),
                        ("records", pa.int64()),
                        ("roles", pa.list_(pa.string())),
                        ("put_back", pa.map_(pa.string(), pa.string())),
                        ("created", pa.bool_()),
                    ]
                )
            ),
        ),
        pa.field("former_offsets", _GROUP_OFFSETS),
        pa.field("to_commit", _GROUP_OFFSETS),
        pa.field("committed", _GROUP_OFFSETS),
        pa.field("verified_records", pa.int64()),
        pa.field("problem", pa.string(), nullable=False),
        pa.field(
            "placed",
            pa.list_(
                pa.struct(
                    [
                        ("source", pa.string()),
                        ("target", pa.string()),
                        ("target_topic_id", pa.string()),
                        ("inputs_are_at", pa.string()),
                        ("offsets", _GROUP_OFFSETS),
                        ("writer_application_id", pa.string()),
                        ("written_by", pa.string()),
                    ]
                )
            ),
        ),
    ]
)


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


@dataclass(frozen=True, slots=True)
class StoredRestore:
    """A restore in one of its states; times are epoch milliseconds.

    `run_id` is the run that changed the state. `group` is the consumer group on the target.
    `request` is the request as JSON. `to_commit` are the point's offsets as they map to the target,
    set once all records are produced. `former_offsets` are those that the group had on the target
    before `committed` were committed (target topics and offsets); None where nothing was committed
    yet. `verified_records` counts the records that were read back. `problem` says what went wrong,
    empty when nothing did. `placed` are excluded topics in which the group goes on, their offsets
    are among those `to_commit`.
    """

    application_id: str
    restore_id: str
    state: RestoreState
    changed_at_ms: int
    created_at_ms: int
    run_id: str
    point_id: str
    group: str
    target_cluster_id: str
    target_bootstrap_servers: str
    mode: RestoreMode
    request: str
    topics: tuple[StoredTopic, ...]
    to_commit: tuple[GroupOffset, ...] = ()
    former_offsets: tuple[GroupOffset, ...] | None = None
    committed: tuple[GroupOffset, ...] | None = None
    verified_records: int | None = None
    problem: str = ""
    placed: tuple[PlacedTopic, ...] = ()

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
        self._table = ControlTable(
            warehouse.control("restores"),
            SCHEMA,
            grows_along="changed_at_ms",
            statistics=("restore_id", "change", "changed_at_ms"),
        )

    def append(self, restore: StoredRestore) -> None:
        """Store a restore in a new state, which from then on is its newest.

        The order in which states are stored decides, not the clock: it may have been set back.
        """
        earlier = self._changes(restore.application_id, restore.restore_id)
        self._table.append([_row(restore, max(earlier, default=0) + 1)])

    def newest(self, application_id: str, restore_id: str) -> StoredRestore | None:
        """A restore as it stands, None when there is none with this id."""
        where = pc.field("restore_id") == restore_id
        rows = self._table.read(application_id=application_id, where=where).to_pylist()
        return _restore(max(rows, key=_place)) if rows else None

    def all(self, application_id: str) -> list[StoredRestore]:
        """Every restore as it stands; the one that was begun last comes first."""
        return _as_they_stand(self._table.read(application_id=application_id))

    def onto(self, target_cluster_id: str) -> list[StoredRestore]:
        """The restores of all applications onto one cluster, as in `all`."""
        where = pc.field("target_cluster_id") == target_cluster_id
        return _as_they_stand(self._table.read(application_id=None, where=where))

    def history(self, application_id: str, restore_id: str) -> list[StoredRestore]:
        """A restore in each of its states, oldest first."""
        where = pc.field("restore_id") == restore_id
        rows = self._table.read(application_id=application_id, where=where).to_pylist()
        return [_restore(row) for row in sorted(rows, key=_place)]

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


def _as_they_stand(rows: pa.Table) -> list[StoredRestore]:
    ordered = sorted(rows.to_pylist(), key=_place)
    newest = {(row["application_id"], row["restore_id"]): row for row in ordered}
    found = [_restore(row) for row in newest.values()]
    return sorted(found, key=lambda r: (r.created_at_ms, r.restore_id), reverse=True)


def _place(row: Mapping[str, Any]) -> tuple[int, int]:
    """Two processes may have stored the same change of a restore at once: the later one counts."""
    return row["change"], row["changed_at_ms"]


def _row(restore: StoredRestore, change: int) -> dict[str, Any]:
    return {
        "application_id": restore.application_id,
        "restore_id": restore.restore_id,
        "change": change,
        "state": restore.state.value,
        "changed_at_ms": restore.changed_at_ms,
        "created_at_ms": restore.created_at_ms,
        "run_id": restore.run_id,
        "point_id": restore.point_id,
        "group": restore.group,
        "target_cluster_id": restore.target_cluster_id,
        "target_bootstrap_servers": restore.target_bootstrap_servers,
        "mode": restore.mode.value,
        "request": restore.request,
        "topics": [_topic_row(topic) for topic in restore.topics],
        "to_commit": _offset_rows(restore.to_commit),
        "former_offsets": _offset_rows(restore.former_offsets),
        "committed": _offset_rows(restore.committed),
        "verified_records": restore.verified_records,
        "problem": restore.problem,
        "placed": [
            {
                "source": topic.source,
                "target": topic.target,
                "target_topic_id": topic.target_topic_id,
                "inputs_are_at": topic.inputs_are_at.value,
                "offsets": _offset_rows(topic.offsets),
                "writer_application_id": topic.writer_application_id,
                "written_by": topic.written_by,
            }
            for topic in restore.placed
        ],
    }


def _topic_row(topic: StoredTopic) -> dict[str, Any]:
    return {
        "source": topic.source,
        "target": topic.target,
        "target_topic_id": topic.target_topic_id,
        "base_offsets": list(topic.base_offsets),
        "records": topic.records,
        "roles": list(topic.roles),
        "put_back": list(topic.put_back.items()),
        "created": topic.created,
    }


def _offset_rows(offsets: tuple[GroupOffset, ...] | None) -> list[dict[str, Any]] | None:
    if offsets is None:
        return None
    return [
        {"topic": o.topic, "partition": o.partition, "offset": o.offset, "metadata": o.metadata}
        for o in offsets
    ]


def _restore(row: Mapping[str, Any]) -> StoredRestore:
    values = {name: row[name] for name in StoredRestore.__dataclass_fields__}
    return StoredRestore(
        **values
        | {
            "state": RestoreState(row["state"]),
            "mode": RestoreMode(row["mode"]),
            "topics": tuple(_topic(topic) for topic in row["topics"]),
            "to_commit": _offsets(row["to_commit"]) or (),
            "former_offsets": _offsets(row["former_offsets"]),
            "committed": _offsets(row["committed"]),
            "placed": tuple(_placed(topic) for topic in row["placed"] or ()),
        }
    )


def _topic(row: Mapping[str, Any]) -> StoredTopic:
    return StoredTopic(
        source=row["source"],
        target=row["target"],
        target_topic_id=row["target_topic_id"],
        base_offsets=tuple(row["base_offsets"]),
        records=row["records"],
        roles=tuple(row["roles"]),
        put_back=dict(row["put_back"]),
        created=row["created"],
    )


def _placed(row: Mapping[str, Any]) -> PlacedTopic:
    return PlacedTopic(
        source=row["source"],
        target=row["target"],
        target_topic_id=row["target_topic_id"],
        inputs_are_at=InputsAt(row["inputs_are_at"]),
        offsets=_offsets(row["offsets"]) or (),
        writer_application_id=row["writer_application_id"],
        written_by=row["written_by"],
    )


def _offsets(rows: list[dict[str, Any]] | None) -> tuple[GroupOffset, ...] | None:
    return None if rows is None else tuple(GroupOffset(**row) for row in rows)
