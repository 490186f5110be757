"""Checks that all input of a restore is intact, before anything is created on the target."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kstreams_assets.checks import Finding, Severity
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.damage import Damage, DamageKind, Verified
from kstreams_assets.model.data_files import By, SpanFile
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.inspection import inspect
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.plan import RestorePlan, TopicPlan
from kstreams_assets.store import FileIdentity, StorePath, store_at

_NEEDED: Final = frozenset(
    {
        "recovery_points",
        "recovery_point_records",
        "windows",
        "increments",
        "topics",
        "restores",
        "offset_maps",
        "ktable_snapshots",
    }
)
"""The control tables that a restore reads or continues from."""


def of_tables(repo: Repository, verified: Verified) -> list[Finding]:
    """Return findings for damaged tables that a restore reads."""
    found = repo.control_tables.damaged(verified.heads)
    return [
        _blocker(one)
        for one in found
        if one.severity is Severity.ERROR
        and (one.kind is DamageKind.WAREHOUSE or one.table in _NEEDED)
    ]


def of_plan(
    warehouse: Warehouse, verified: Verified, topics: Sequence[TopicPlan], point_id: str | None
) -> Iterator[Finding]:
    """Yield the findings of a verification about the point, rows and files of a plan.

    Findings about one file are checked again: it may have been restored since.
    """
    noted = {
        file.path: (file, p.source)
        for topic in topics
        for p in topic.partitions
        for file in p.files
    }
    for damage in verified.open:
        is_lost = damage.severity is Severity.ERROR or bool(damage.accepted)
        if not is_lost or not _is_needed(damage, topics, point_id):
            continue
        file = noted.get(warehouse.root / damage.place)
        if file is None or _is_changed(*file):
            yield _blocker(damage)


def _is_needed(damage: Damage, topics: Sequence[TopicPlan], point_id: str | None) -> bool:
    if damage.kind is DamageKind.TABLE:
        return damage.by_reading and damage.table in _NEEDED
    if damage.kind is DamageKind.POINT:
        return point_id in damage.points
    if damage.kind is DamageKind.SNAPSHOT:
        return any(
            topic.snapshot is not None
            and (topic.snapshot.store, topic.snapshot.window) == (damage.store, damage.window)
            for topic in topics
        )
    if damage.kind not in (DamageKind.FILE, DamageKind.LEDGER, DamageKind.SAVED_RECORDS):
        return False
    return any(
        damage.topic == topic.source
        and damage.partition == partition.source.partition
        and damage.touches(one.start, one.end)
        for topic in topics
        if topic.snapshot is None
        for partition in topic.partitions
        for one in partition.ranges
    )


def _is_changed(file: SpanFile, whose: TopicPartitionId) -> bool:
    expected = file.expected(whose)
    return expected is not None and bool(inspect([expected], By.DIGEST))


def _blocker(damage: Damage) -> Finding:
    found = damage.finding
    return Finding(f"warehouse, {found.subject}", found.found, action=found.action)


@dataclass(frozen=True, slots=True)
class Soundness:
    """The result of reading all files of a plan.

    `blockers` are files that differ from those of their backups. `sound` are the others, with
    their identity before they were read: while that is unchanged, they need no further reading.
    """

    blockers: list[str]
    sound: Mapping[StorePath, FileIdentity]


def soundness(plan: RestorePlan) -> Soundness:
    """Compare the digests of the files of a plan with those recorded by their backups.

    Every file is read, several at a time. Files of earlier releases, without recorded digests, are
    left to the tasks. Snapshots are compared when they are staged.
    """
    files = {
        file.path: expected
        for topic in plan.topics
        if topic.snapshot is None
        for partition in topic.partitions
        for file in partition.files
        if (expected := file.expected(partition.source))
    }
    before = {path: store_at(path).identity() for path in files}
    damages = inspect([*files.values()], By.DIGEST)
    blockers = [
        f"The backup of {one.topic}-{one.partition}, window {one.window}: {one.problem}."
        f" {one.remedy} Then run the restore again."
        for one in damages
    ]
    bad = {one.place for one in damages}
    sound = {
        path: known for path, known in before.items() if known and files[path].place not in bad
    }
    return Soundness(blockers, sound)


def stored_verdict(repo: Repository) -> Verified:
    """Return the findings of verifications, or none if their table cannot be read: restores do not
    need it."""
    try:
        return repo.verifications.verified()
    except KStreamsAssetsError:
        return Verified()
