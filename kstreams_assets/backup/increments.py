"""Merges the increments of a closed window: one row and one file for each span.

Only damaged increments are read from Kafka again. If Kafka has lost their records too, the
increments of that partition are kept unmerged.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise

from kstreams_assets.backup.commits import Committer
from kstreams_assets.backup.context import RunContext
from kstreams_assets.backup.merge import Pieces, damaged_entries, drop_superseded, merge
from kstreams_assets.backup.planner import Planner
from kstreams_assets.backup.recorded import current_facts, window_backups
from kstreams_assets.backup.result import BackupReadError, Executor, TopicBackup, WindowBackup
from kstreams_assets.errors import StoredDataError
from kstreams_assets.model.recordings import LedgerEntry
from kstreams_assets.model.spans import Window
from kstreams_assets.model.tables import Lock
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.records import tidy_records
from kstreams_assets.store.failures import storage_errors, storage_failures
from kstreams_assets.store.locks import LockHandle

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IncrementMerger:
    """Merges increments to windows; reads damaged ones again with the committer."""

    ctx: RunContext
    planner: Planner
    committer: Committer

    def locked(self) -> AbstractContextManager[LockHandle]:
        """Allow one merging run at a time: it deletes files that another one would read."""
        return self.ctx.repo.lock(
            Lock.MERGE,
            purpose=f"merging increments, run {self.ctx.run_id}",
            wait_s=self.ctx.settings.backup.lock_wait_seconds,
        )

    def close(self, window: Window) -> list[WindowBackup]:
        """Merge the increments of a closed window; skip topics that the window has already.

        Files are written without the application's lock, so that others can work meanwhile.

        Raises:
            StoredDataError: An increment cannot be read.
        """
        with self.locked():
            return self.merge(window)

    def merge(self, window: Window) -> list[WindowBackup]:
        """As `close`, for a caller that holds the lock.

        If Kafka has lost records of a damaged increment, the increments of that partition stay:
        points restore from the intact ones, and the others are reported as damaged.
        """
        try:
            return self._merge(window)
        except (StoredDataError, *storage_errors()):
            damaged = self._damaged(window)
            if not damaged:
                with storage_failures(self.ctx.records):
                    raise
        self.committer.read_again(damaged)
        left = self._damaged(window)
        for entry, problem in left.items():
            _log.warning("%s", lost_increment(entry, problem))
        return self._merge(window, {entry.result.partition for entry in left})

    def _damaged(self, window: Window) -> dict[LedgerEntry, str]:
        entries = self.ctx.repo.ledger.increments_of(window, self.ctx.missing(window))
        return damaged_entries(self.ctx.records, entries)

    def _pieces(self, window: Window) -> dict[str, list[Pieces]]:
        ctx = self.ctx
        return pieces_of(window, ctx.repo.ledger.increments_of(window, ctx.missing(window)))

    def _merge(
        self, window: Window, without: Set[TopicPartitionId] = frozenset()
    ) -> list[WindowBackup]:
        """Merge the increments of a window, except those of some partitions."""
        ctx, began = self.ctx, time.monotonic()
        found = self._pieces(window)
        if not found:
            return []
        pieces = {
            topic: [one for one in of_topic if one.partition not in without]
            for topic, of_topic in found.items()
        }

        def require_unchanged() -> None:
            if self._pieces(window) != found:
                raise BackupReadError(
                    windows=[window], reason="another run has backed it up meanwhile"
                )

        with merge(
            ctx.records,
            [one for of_topic in pieces.values() for one in of_topic],
            parts={(window.key, topic) for topic in pieces},
            settings=ctx.settings.backup,
            check=ctx.check,
            writing=ctx.writing,
            require_unchanged=require_unchanged,
            provenance=ctx.provenance([window]),
        ) as merged:
            edges = self.planner.edges([window])
            closing = edges.closing_point(window)
            facts = current_facts(ctx, self.planner.described())
            previous = ctx.repo.topics.before(window.start_ms)
            roles = {topic.name: topic.roles for topic in ctx.topics}
            backups = [
                TopicBackup(
                    window=window,
                    topic=topic,
                    role="+".join(sorted(roles[topic])),
                    spans=tuple(merged.results[one.id] for one in of_topic),
                    facts=facts.get(topic),
                    previous_facts=previous.get(topic),
                    recovery_point_id=closing.id if closing else None,
                    delta_version=merged.version,
                    duration_s=time.monotonic() - began,
                    executor=Executor.PYTHON,
                )
                for topic, of_topic in pieces.items()
            ]
            ctx.repo.topics.record(backups, writer=merged.lock)
            ctx.repo.ledger.record(backups, run_id=ctx.run_id, writer=merged.lock)
        return window_backups(ctx.repo, [window], backups, edges)

    def drop_superseded(self) -> None:
        """Delete increments that the ledger has as windows by now.

        Also those of earlier windows: a run may have been killed before it deleted them.
        """
        ctx = self.ctx
        windows = ctx.repo.ledger.closed_with_increments()
        if not windows:
            return
        with self.locked(), ctx.writing() as lock:
            provenance = ctx.provenance(windows)
            if drop_superseded(ctx.repo, ctx.records, windows, writer=lock, provenance=provenance):
                is_read = bool(ctx.repo.restores.writing())
                tidy_records(ctx.records, keep_files=is_read)


def pieces_of(window: Window, entries: Iterable[LedgerEntry]) -> dict[str, list[Pieces]]:
    """Return by topic the increments of a window that can be merged.

    Only topics with an increment up to the window's end, and without missing offsets between
    increments. Increments of an earlier topic incarnation stay unmerged.
    """
    by_topic: dict[str, dict[TopicPartitionId, list[LedgerEntry]]] = defaultdict(dict)
    ended: set[str] = set()
    for entry in sorted(entries, key=lambda e: e.result.plan.window):
        partition = entry.result.partition
        by_topic[partition.topic]
        if entry.result.plan.window.end_ms == window.end_ms:
            ended.add(partition.topic)
        if entry.has_span:
            by_topic[partition.topic].setdefault(partition, []).append(entry)
    found: dict[str, list[Pieces]] = {}
    for topic in sorted(ended):
        pieces = [_last_incarnation(window, of_it) for of_it in by_topic[topic].values()]
        if all(_is_whole(one) for one in pieces):
            found[topic] = pieces
    return found


def _last_incarnation(window: Window, entries: Sequence[LedgerEntry]) -> Pieces:
    life = entries[-1].result.plan.topic_id
    return Pieces(window, tuple(e for e in entries if e.result.plan.topic_id == life))


def _is_whole(pieces: Pieces) -> bool:
    plans = [entry.result.plan for entry in pieces.entries]
    return all(one.end == other.start for one, other in pairwise(plans))


def lost_increment(entry: LedgerEntry, problem: str) -> str:
    """Return what is lost by a damaged increment whose records Kafka no longer has."""
    plan = entry.result.plan
    return (
        f"Window {plan.window.key}, {plan.partition}: offsets {plan.start} to {plan.end - 1} are"
        f" lost ({problem}), and Kafka no longer has all of them. The increments before and after"
        " stay and can be restored. Restore the file from a copy of the warehouse (kstreams-assets"
        " verify --repair --from URL)."
    )
